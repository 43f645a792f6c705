// jinja_filters_list.cpp -- filters that give elements. They give lists where Jinja has generators.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "text/jinja/jinja_builtins.h"
#include "text/jinja/jinja_text.h"

namespace braid::jinja {

namespace {

// Attribute paths, "a.b" or "a,b.0" or a number, applied to elements.
class AttributePath {
 public:
  // `several`: commas separate paths; get() then gives a tuple.
  AttributePath(Runtime& rt, const Value& spelled, bool several) : rt_(rt) {
    if (spelled.is_undefined() || spelled.is(Kind::none)) return;
    if (!spelled.is_string()) {
      paths_.push_back({spelled});
      return;
    }
    std::string_view rest = spelled.text();
    paths_.emplace_back();
    while (true) {
      const size_t end = std::min(rest.find_first_of(several ? ".," : "."), rest.size());
      const std::string_view name = rest.substr(0, end);
      const bool number =
          !name.empty() && name.size() < 10 && name.find_first_not_of("0123456789") == name.npos;
      if (!rt.list_add(paths_.back(), number ? Value::of(int64_t{std::stoi(std::string(name))})
                                             : spelled.part(name))) {
        return;
      }
      if (end == rest.size()) return;
      if (rest[end] == ',') paths_.emplace_back();
      rest.remove_prefix(end + 1);
    }
  }

  bool empty() const { return paths_.empty(); }

  Value get(const Value& item) const {
    if (paths_.empty()) return item;
    if (paths_.size() == 1) return get_one(item, paths_[0]);
    std::vector<Value> values;
    for (const auto& path : paths_) values.push_back(get_one(item, path));
    return rt_.tuple(std::move(values));
  }

 private:
  Value get_one(Value item, const std::vector<Value>& path) const {
    for (const Value& step : path) {
      if (!rt_.step()) return {};
      item = get_item(rt_, item, step);
    }
    return item;
  }

  Runtime& rt_;
  std::vector<std::vector<Value>> paths_;
};

// Key for sort, unique, min, max and groupby: lower case text unless case matters.
Value comparable(Runtime& rt, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is_string() || !rt.scan(value.size)) return value;
  return rt.text(lower(value.text()), 0, value.origin);
}

struct Keyed {
  Value key, item;
};

bool key_less(Runtime& rt, const Value& a, const Value& b) {
  // Elements that all lack the attribute are equal; undefined has no order otherwise.
  return !(a.is_undefined() && b.is_undefined()) && less(rt, a, b);
}

// Stable merge sort: unlike std::sort safe with mixed types, NaN, or a failed render.
void sort_keyed(Runtime& rt, std::vector<Keyed>& items, bool reverse) {
  std::vector<Keyed> spare(items.size());
  for (size_t width = 1; width < items.size() && !rt.failed(); width *= 2) {
    for (size_t begin = 0; begin < items.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, items.size());
      const size_t end = std::min(begin + 2 * width, items.size());
      size_t a = begin, b = middle;
      for (size_t out = begin; out < end; ++out) {
        bool right = a == middle;
        if (!right && b < end) {
          right = reverse ? key_less(rt, items[a].key, items[b].key)
                          : key_less(rt, items[b].key, items[a].key);
        }
        spare[out] = right ? items[b++] : items[a++];
      }
    }
    std::swap(items, spare);
  }
}

std::vector<Keyed> keyed(Runtime& rt, const Value& input, const AttributePath& path,
                         bool case_sensitive) {
  std::vector<Keyed> items;
  for (const Value& item : elements(rt, input)) {
    if (!rt.step() || !rt.charge(sizeof(Keyed) * 2)) break;
    items.push_back({comparable(rt, path.get(item), case_sensitive), item});
  }
  return items;
}

Value list_of(Runtime& rt, const std::vector<Keyed>& keyed) {
  std::vector<Value> items;
  for (const Keyed& entry : keyed) items.push_back(entry.item);
  return rt.failed() ? Value::undefined() : rt.list(std::move(items));
}

Value filter_sort(Runtime& rt, const Value& input, const Arguments& args) {
  const Bound bound(rt, "sort", args, {"reverse", "case_sensitive", "attribute"});
  const AttributePath path(rt, bound[2], true);
  std::vector<Keyed> items = keyed(rt, input, path, bound.truthy(1));
  sort_keyed(rt, items, bound.truthy(0));
  return list_of(rt, items);
}

Value filter_unique(Runtime& rt, const Value& input, const Arguments& args) {
  const Bound bound(rt, "unique", args, {"case_sensitive", "attribute"});
  const AttributePath path(rt, bound[1], false);
  const Value seen = rt.dict();
  std::vector<Value> items;
  for (const Keyed& entry : keyed(rt, input, path, bound.truthy(0))) {
    if (rt.failed()) return {};
    if (!rt.search(*seen.dict, entry.key)) return {};
    if (seen.dict->find(entry.key) != nullptr) continue;
    if (!rt.dict_set(*seen.dict, entry.key, Value::none()) || !rt.list_add(items, entry.item))
      return {};
  }
  return rt.failed() ? Value::undefined() : rt.list(std::move(items));
}

Value extreme(Runtime& rt, const char* name, const Value& input, const Arguments& args,
              bool largest) {
  const Bound bound(rt, name, args, {"case_sensitive", "attribute"});
  const AttributePath path(rt, bound[1], false);
  const std::vector<Keyed> items = keyed(rt, input, path, bound.truthy(0));
  if (rt.failed() || items.empty()) return {};
  const Keyed* best = &items[0];
  for (const Keyed& entry : items) {
    if (&entry == best) continue;
    if (largest ? less(rt, best->key, entry.key) : less(rt, entry.key, best->key)) best = &entry;
  }
  return best->item;
}
Value filter_min(Runtime& rt, const Value& input, const Arguments& args) {
  return extreme(rt, "min", input, args, false);
}
Value filter_max(Runtime& rt, const Value& input, const Arguments& args) {
  return extreme(rt, "max", input, args, true);
}

Value filter_sum(Runtime& rt, const Value& input, const Arguments& args) {
  const Bound bound(rt, "sum", args, {"attribute", "start"});
  const AttributePath path(rt, bound[0], false);
  Value total = bound.given(1) ? bound[1] : Value::of(int64_t{0});
  for (const Value& item : elements(rt, input)) {
    if (!rt.step()) return {};
    total = calculate(rt, Operator::add, total, path.get(item));
  }
  return total;
}

Value filter_groupby(Runtime& rt, const Value& input, const Arguments& args) {
  const Bound bound(rt, "groupby", args, {"attribute", "default", "case_sensitive"});
  if (!bound.given(0)) return rt.fail("groupby needs an attribute");
  const AttributePath path(rt, bound[0], true);
  std::vector<Keyed> items;
  for (const Value& item : elements(rt, input)) {
    if (!rt.step() || !rt.charge(sizeof(Keyed) * 2)) return {};
    const Value key = path.get(item);
    items.push_back({key.is_undefined() && bound.given(1) ? bound[1] : key, item});
  }
  for (Keyed& entry : items) entry.key = comparable(rt, entry.key, bound.truthy(2));
  sort_keyed(rt, items, false);
  std::vector<Value> groups;
  for (size_t begin = 0, end = 0; begin < items.size() && !rt.failed(); begin = end) {
    std::vector<Value> members;
    while (end < items.size() && (end == begin || equal(rt, items[begin].key, items[end].key))) {
      if (!rt.list_add(members, items[end++].item)) return {};
    }
    // The key has the spelling of the first member, because the comparison may ignore case.
    const Value spelled = path.get(items[begin].item);
    Value group =
        rt.pair(spelled.is_undefined() ? items[begin].key : spelled, rt.list(std::move(members)));
    if (rt.failed()) return {};
    group.flags = kGroup;
    if (!rt.list_add(groups, group)) return {};
  }
  return rt.failed() ? Value::undefined() : rt.list(std::move(groups));
}

Value filter_dictsort(Runtime& rt, const Value& input, const Arguments& args) {
  const Bound bound(rt, "dictsort", args, {"case_sensitive", "by", "reverse"});
  const std::string_view by = bound.text(rt, 1, "key");
  if (!input.is(Kind::dict))
    return rt.fail(fmt::format("dictsort needs a dict, not a {}", type_name(input)));
  if (by != "key" && by != "value") return rt.fail("dictsort sorts by 'key' or 'value'");
  std::vector<Keyed> items;
  for (const auto& [key, value] : input.dict->entries) {
    if (!rt.step() || !rt.charge(sizeof(Keyed) * 2)) return {};
    items.push_back(
        {comparable(rt, by == "key" ? key : value, bound.truthy(0)), rt.pair(key, value)});
  }
  sort_keyed(rt, items, bound.truthy(2));
  return list_of(rt, items);
}

Value filter_items(Runtime& rt, const Value& input, const Arguments& args) {
  no_arguments(rt, "items", args);
  if (input.is_undefined()) return rt.list({});
  if (!input.is(Kind::dict))
    return rt.fail(fmt::format("items needs a dict, not a {}", type_name(input)));
  return method_of(Kind::dict, "items")(rt, input, args);
}

Value filter_list(Runtime& rt, const Value& input, const Arguments& args) {
  no_arguments(rt, "list", args);
  std::vector<Value> items = elements(rt, input);
  return rt.failed() ? Value::undefined() : rt.list(std::move(items));
}

Value filter_reverse(Runtime& rt, const Value& input, const Arguments& args) {
  no_arguments(rt, "reverse", args);
  if (input.is_string()) return get_slice(rt, input, {}, {}, Value::of(int64_t{-1}));
  std::vector<Value> items = elements(rt, input);
  std::reverse(items.begin(), items.end());
  return rt.failed() ? Value::undefined() : rt.list(std::move(items));
}

Value filter_first(Runtime& rt, const Value& input, const Arguments& args) {
  no_arguments(rt, "first", args);
  if (input.is_sequence() || input.is_string()) return get_item(rt, input, Value::of(int64_t{0}));
  const std::vector<Value> items = elements(rt, input);
  return items.empty() ? Value::undefined() : items.front();
}

Value filter_last(Runtime& rt, const Value& input, const Arguments& args) {
  no_arguments(rt, "last", args);
  if (input.is_sequence() || input.is_string()) return get_item(rt, input, Value::of(int64_t{-1}));
  const std::vector<Value> items = elements(rt, input);
  return items.empty() ? Value::undefined() : items.back();
}

Arguments without_first(const Arguments& args, size_t skip) {
  Arguments rest = args;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<ptrdiff_t>(skip));
  return rest;
}

// map(attribute=, default=) or map('filter', arguments...)
Value filter_map(Runtime& rt, const Value& input, const Arguments& args) {
  std::vector<Value> out;
  if (!truthy(input)) return rt.list({});  // also none and 0, as in Jinja
  if (args.positional.empty()) {
    const Bound bound(rt, "map", args, {"attribute", "default"});
    if (!bound.given(0)) return rt.fail("map needs a filter or an attribute");
    const AttributePath path(rt, bound[0], false);
    for (const Value& item : elements(rt, input)) {
      const Value value = path.get(item);
      if (!rt.list_add(out, value.is_undefined() && bound.given(1) ? bound[1] : value)) return {};
    }
  } else {
    const Value& name = args.positional[0];
    const FilterBody body = name.is_string() ? filter_of(name.text()) : nullptr;
    if (body == nullptr) return rt.fail("map needs the name of a filter");
    const Arguments rest = without_first(args, 1);
    Nested nested(rt);
    for (const Value& item : elements(rt, input)) {
      if (rt.failed() || !rt.list_add(out, body(rt, item, rest))) return {};
    }
  }
  return rt.failed() ? Value::undefined() : rt.list(std::move(out));
}

// select, reject, selectattr and rejectattr: keeps elements whose test (or truth) is `wanted`.
Value filtered(Runtime& rt, const Value& input, const Arguments& args, bool by_attribute,
               bool wanted) {
  if (!truthy(input)) return rt.list({});  // also none and 0, as in Jinja
  const size_t first = by_attribute ? 1 : 0;
  if (args.positional.size() < first) return rt.fail("an attribute to select by is missing");
  const AttributePath path(rt, by_attribute ? args.positional[0] : Value::none(), false);
  TestBody test = nullptr;
  Arguments rest;
  if (args.positional.size() > first) {
    const Value& name = args.positional[first];
    test = name.is_string() ? test_of(name.text()) : nullptr;
    if (test == nullptr) return rt.fail("there is no test of the given name");
    rest = without_first(args, first + 1);
  }
  std::vector<Value> out;
  for (const Value& item : elements(rt, input)) {
    if (!rt.step()) return {};
    const Value value = path.get(item);
    const bool passes = test != nullptr ? test(rt, value, rest) : truthy(value);
    if (rt.failed()) return {};
    if (passes == wanted && !rt.list_add(out, item)) return {};
  }
  return rt.failed() ? Value::undefined() : rt.list(std::move(out));
}
Value filter_select(Runtime& rt, const Value& input, const Arguments& args) {
  return filtered(rt, input, args, false, true);
}
Value filter_reject(Runtime& rt, const Value& input, const Arguments& args) {
  return filtered(rt, input, args, false, false);
}
Value filter_selectattr(Runtime& rt, const Value& input, const Arguments& args) {
  return filtered(rt, input, args, true, true);
}
Value filter_rejectattr(Runtime& rt, const Value& input, const Arguments& args) {
  return filtered(rt, input, args, true, false);
}

Value filter_attr(Runtime& rt, const Value& input, const Arguments& args) {
  const Bound bound(rt, "attr", args, {"name"});
  const Value value = get_attribute(rt, input, std::string(bound.text(rt, 0, "")));
  return value.is_undefined() ? Value::undefined() : value;
}

Value filter_batch(Runtime& rt, const Value& input, const Arguments& args) {
  const Bound bound(rt, "batch", args, {"linecount", "fill_with"});
  const int64_t size = bound.whole(rt, 0, 0);
  if (size <= 0) return rt.fail("batch needs a positive size");
  std::vector<Value> batches, batch;
  for (const Value& item : elements(rt, input)) {
    if (static_cast<int64_t>(batch.size()) == size)
      batches.push_back(rt.list(std::exchange(batch, {})));
    if (!rt.list_add(batch, item)) return {};
  }
  if (!batch.empty()) {
    while (bound.given(1) && !bound[1].is(Kind::none) &&
           static_cast<int64_t>(batch.size()) < size) {
      if (!rt.list_add(batch, bound[1])) return {};
    }
    batches.push_back(rt.list(std::move(batch)));
  }
  return rt.failed() ? Value::undefined() : rt.list(std::move(batches));
}

Value filter_slice(Runtime& rt, const Value& input, const Arguments& args) {
  const Bound bound(rt, "slice", args, {"slices", "fill_with"});
  const int64_t count = bound.whole(rt, 0, 0);
  if (count <= 0) return rt.fail("slice needs a positive count");
  const std::vector<Value> items = elements(rt, input);
  const int64_t each = static_cast<int64_t>(items.size()) / count,
                longer = static_cast<int64_t>(items.size()) % count;
  std::vector<Value> slices;
  size_t at = 0;
  for (int64_t i = 0; i < count; ++i) {
    std::vector<Value> slice;
    for (int64_t n = each + (i < longer ? 1 : 0); n > 0; --n) {
      if (!rt.list_add(slice, items[at++])) return {};
    }
    if (bound.given(1) && !bound[1].is(Kind::none) && i >= longer) slice.push_back(bound[1]);
    if (!rt.list_add(slices, rt.list(std::move(slice)))) return {};
  }
  return rt.failed() ? Value::undefined() : rt.list(std::move(slices));
}

}  // namespace

FilterBody list_filter_of(std::string_view name) {
  static constexpr std::pair<std::string_view, FilterBody> kFilters[] = {
      {"attr", filter_attr},
      {"batch", filter_batch},
      {"dictsort", filter_dictsort},
      {"first", filter_first},
      {"groupby", filter_groupby},
      {"items", filter_items},
      {"last", filter_last},
      {"list", filter_list},
      {"map", filter_map},
      {"max", filter_max},
      {"min", filter_min},
      {"reject", filter_reject},
      {"rejectattr", filter_rejectattr},
      {"reverse", filter_reverse},
      {"select", filter_select},
      {"selectattr", filter_selectattr},
      {"slice", filter_slice},
      {"sort", filter_sort},
      {"sum", filter_sum},
      {"unique", filter_unique}};
  for (const auto& [known, body] : kFilters) {
    if (known == name) return body;
  }
  return nullptr;
}

}  // namespace braid::jinja
