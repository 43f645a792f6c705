// schema_references.cpp -- see schema_references.h.
#include "text/schema_references.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <set>
#include <utility>

namespace braid {
namespace {

using Json = SchemaReferences::Json;

constexpr size_t kSmallObject = 16;  // members that are searched linearly

const std::string* text_of(const Json& value) {
  return value.is_string() ? &value.get_ref<const std::string&>() : nullptr;
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '%' && i + 2 < text.size() && hex_value(text[i + 1]) >= 0 &&
                        hex_value(text[i + 2]) >= 0;
    if (escape) {
      out += static_cast<char>(hex_value(text[i + 1]) * 16 + hex_value(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

// ---- URIs (RFC 3986, 5.2) ----

// Bytes of "scheme:" at the front; 0: absent.
size_t scheme_length(std::string_view uri) {
  if (uri.empty() || std::isalpha(static_cast<unsigned char>(uri[0])) == 0) return 0;
  const size_t end =
      uri.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-");
  return end != std::string_view::npos && uri[end] == ':' ? end + 1 : 0;
}

size_t path_begin(std::string_view uri) {
  const size_t scheme = scheme_length(uri);
  if (!uri.substr(scheme).starts_with("//")) return scheme;
  return std::min(uri.find_first_of("/?", scheme + 2), uri.size());
}

std::string without_dots(std::string_view path) {
  std::vector<std::string_view> kept;
  const bool rooted = path.starts_with('/');
  bool folder = false;  // ends with a slash
  for (size_t begin = rooted ? 1 : 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    folder = part == "." || part == "..";
    if (part == "..") {
      if (!kept.empty()) kept.pop_back();
    } else if (part != ".") {
      kept.push_back(part);
    }
    begin = end + 1;
  }
  std::string out = rooted ? "/" : "";
  for (size_t i = 0; i < kept.size(); ++i) {
    if (i > 0) out += '/';
    out += kept[i];
  }
  if (folder && !kept.empty()) out += '/';
  return out;
}

// Resolves `reference`, without a fragment, against `base`.
std::string resolved_uri(std::string_view base, std::string_view reference) {
  if (reference.empty()) return std::string(base);
  if (const size_t scheme = scheme_length(reference); scheme > 0) return std::string(reference);
  if (reference.starts_with("//"))
    return std::string(base.substr(0, scheme_length(base))) + std::string(reference);
  const size_t path = path_begin(base), query = std::min(base.find('?', path), base.size());
  if (reference[0] == '?') return std::string(base.substr(0, query)) + std::string(reference);
  const size_t ends = std::min(reference.find('?'), reference.size());
  std::string joined(reference.substr(0, ends));
  if (joined[0] != '/') {
    const std::string_view old = base.substr(path, query - path);
    const size_t slash = old.rfind('/');
    joined.insert(0, slash == std::string_view::npos ? "" : old.substr(0, slash + 1));
    if (old.empty() && path > scheme_length(base)) joined.insert(0, "/");
  }
  return std::string(base.substr(0, path)) + without_dots(joined) +
         std::string(reference.substr(ends));
}

}  // namespace

SchemaReferences::SchemaReferences(const Json& root) : root_(root) {
  if (!root.is_object()) return;
  const auto found = root.find("$schema");
  const std::string* name = found == root.end() ? nullptr : text_of(*found);
  if (name == nullptr) return;
  for (const char* old : {"draft-03", "draft-04"})
    if (name->find(old) != std::string::npos) draft_ = Draft::draft4;
  for (const char* old : {"draft-06", "draft-07"})
    if (name->find(old) != std::string::npos) draft_ = Draft::draft7;
}

namespace {

// Kind of a keyword's value; `nothing`: it holds no schema.
enum class Below : uint8_t { nothing, schema, schemas, map };

Below below(std::string_view keyword) {
  static const std::map<std::string_view, Below> kKeywords = {
      {"items", Below::schemas},
      {"allOf", Below::schemas},
      {"anyOf", Below::schemas},
      {"oneOf", Below::schemas},
      {"prefixItems", Below::schemas},
      {"additionalItems", Below::schema},
      {"contains", Below::schema},
      {"additionalProperties", Below::schema},
      {"propertyNames", Below::schema},
      {"not", Below::schema},
      {"if", Below::schema},
      {"then", Below::schema},
      {"else", Below::schema},
      {"unevaluatedItems", Below::schema},
      {"unevaluatedProperties", Below::schema},
      {"contentSchema", Below::schema},
      {"properties", Below::map},
      {"patternProperties", Below::map},
      {"$defs", Below::map},
      {"definitions", Below::map},
      {"dependentSchemas", Below::map},
      {"dependencies", Below::map},
  };
  const auto found = kKeywords.find(keyword);
  return found == kKeywords.end() ? Below::nothing : found->second;
}

}  // namespace

bool SchemaReferences::remember(std::map<std::string, const Json*>& names, std::string name,
                                const Json& schema) {
  if (name.size() > kMaxUriBytes || name_bytes_ + name.size() > kMaxNameBytes) return false;
  name_bytes_ += name.size();
  names.emplace(std::move(name), &schema);
  return true;
}

// The base of a schema with this $id inside `base`.
size_t SchemaReferences::named(const Json& schema, const Json& id, size_t base) {
  const std::string* text = text_of(id);
  if (text == nullptr || text->size() > kMaxUriBytes) return base;
  const size_t hash = std::min(text->find('#'), text->size());
  const std::string_view fragment =
      std::string_view(*text).substr(std::min(hash + 1, text->size()));
  if (hash > 0) {
    std::string uri = resolved_uri(bases_[base], std::string_view(*text).substr(0, hash));
    if (!remember(resources_, uri, schema)) return base;
    bases_.push_back(std::move(uri));
    base = bases_.size() - 1;
  }
  if (!fragment.empty()) remember(anchors_, bases_[base] + '#' + std::string(fragment), schema);
  return base;
}

void SchemaReferences::index_schema(const Place& place, std::vector<Place>& open) {
  const Json& schema = *place.at;
  const Json* id = nullptr;
  std::vector<const Json*> anchors, dynamic;
  bool refers = false, ref = false;
  const std::string_view id_name = draft_ == Draft::draft4 ? "id" : "$id";
  for (const auto& [key, value] : schema.items()) {
    if (key == id_name) id = &value;
    if (key == "$anchor") anchors.push_back(&value);
    if (key == "$dynamicAnchor") anchors.push_back(&value), dynamic.push_back(&value);
    ref = ref || key == "$ref";
    refers = refers || key == "$ref" || key == "$dynamicRef" || key == "$recursiveRef";
  }
  size_t base = place.base;
  if (id != nullptr && (siblings_hold() || !ref)) base = named(schema, *id, base);
  for (const Json* anchor : anchors)
    if (const std::string* name = text_of(*anchor))
      remember(anchors_, bases_[base] + '#' + *name, schema);
  for (const Json* anchor : dynamic) {
    const std::string* name = text_of(*anchor);
    if (name != nullptr && name->size() <= kMaxUriBytes) dynamic_[*name].push_back(&schema);
  }
  if (refers && base != 0) base_.emplace(&schema, base);
  for (const auto& [key, value] : schema.items()) {
    ++steps_;
    const Below kind = below(key);
    if (kind == Below::nothing || !value.is_structured()) continue;
    const bool list = kind == Below::schemas && value.is_array();
    open.push_back({&value, base,
                    list                 ? Holds::list
                    : kind == Below::map ? Holds::map
                                         : Holds::schema});
  }
}

void SchemaReferences::make_index() {
  indexed_ = true;
  resources_.emplace("", &root_);
  std::vector<Place> open{{&root_, 0, Holds::schema}};
  while (!open.empty()) {
    const Place place = open.back();
    open.pop_back();
    ++steps_;
    if (place.holds == Holds::schema) {
      if (place.at->is_object()) index_schema(place, open);
      continue;
    }
    for (const Json& inner : *place.at)
      if (inner.is_object()) open.push_back({&inner, place.base, Holds::schema});
  }
}

const std::string& SchemaReferences::base_of(const Json& schema) const {
  const auto found = base_.find(&schema);
  return bases_[found == base_.end() ? 0 : found->second];
}

const Json* SchemaReferences::member(const Json& of, const std::string& name) {
  steps_ += 4 + static_cast<int64_t>(name.size()) / 8;
  if (of.is_array()) {
    const bool index = !name.empty() && name.size() < 8 && (name == "0" || name[0] != '0') &&
                       name.find_first_not_of("0123456789") == std::string::npos;
    const size_t at = index ? std::stoul(name) : of.size();
    return at < of.size() ? &of[at] : nullptr;
  }
  if (!of.is_object()) return nullptr;
  if (of.size() <= kSmallObject) {
    const auto found = of.find(name);
    return found == of.end() ? nullptr : &*found;
  }
  const auto [known, added] = members_.try_emplace(&of);
  if (added) {
    steps_ += static_cast<int64_t>(of.size()) * 4;
    for (const auto& [key, value] : of.items()) known->second.emplace(key, &value);
  }
  const auto found = known->second.find(name);
  return found == known->second.end() ? nullptr : found->second;
}

const Json* SchemaReferences::at_pointer(const Json& from, std::string_view pointer) {
  const Json* at = &from;
  for (size_t begin = 0; begin < pointer.size() && at != nullptr;) {
    const size_t end = std::min(pointer.find('/', begin + 1), pointer.size());
    std::string name;
    for (size_t i = begin + 1; i < end; ++i) {
      const bool escaped =
          pointer[i] == '~' && i + 1 < end && (pointer[i + 1] == '0' || pointer[i + 1] == '1');
      name += escaped ? (pointer[++i] == '1' ? '/' : '~') : pointer[i];
    }
    at = member(*at, name);
    begin = end;
  }
  return at;
}

const Json* SchemaReferences::find(const Json& schema, const Json& reference) {
  const std::string* text = text_of(reference);
  if (text == nullptr) return nullptr;
  if (!indexed_) make_index();
  steps_ += 8 + static_cast<int64_t>(text->size()) / 8;
  const size_t hash = std::min(text->find('#'), text->size());
  if (hash > kMaxUriBytes) return nullptr;
  const std::string raw = text->substr(std::min(hash + 1, text->size()));
  const std::string decoded = percent_decoded(raw);
  const std::string uri = resolved_uri(base_of(schema), std::string_view(*text).substr(0, hash));
  const auto resource = resources_.find(uri);
  const Json* from = resource == resources_.end() ? nullptr : resource->second;
  if (decoded.empty()) return from;
  if (decoded[0] != '/') {
    const auto anchor = anchors_.find(uri + '#' + decoded);
    return anchor == anchors_.end() ? nullptr : anchor->second;
  }
  // Also tries the pointer as not encoded, and from the document's root despite a $id in between.
  // Otherwise it would name nothing.
  for (const Json* origin : {from, hash == 0 ? &root_ : nullptr}) {
    for (const std::string* pointer : {&decoded, &raw}) {
      const Json* found = origin == nullptr ? nullptr : at_pointer(*origin, *pointer);
      if (found != nullptr) return found;
    }
  }
  return nullptr;
}

const Json* SchemaReferences::target(const Json& schema, const Json& reference) {
  const Json* found = find(schema, reference);
  return found != nullptr && (found->is_object() || found->is_boolean()) ? found : nullptr;
}

const Json* SchemaReferences::dynamic_target(const Json& schema, const Json& reference) {
  const Json* first = target(schema, reference);
  const std::string* text = text_of(reference);
  if (first == nullptr || !first->is_object() || text == nullptr) return first;
  const auto anchor = first->find("$dynamicAnchor");
  const std::string* name = anchor == first->end() ? nullptr : text_of(*anchor);
  if (name == nullptr || !text->ends_with('#' + *name)) return first;
  const auto found = dynamic_.find(*name);
  return found != dynamic_.end() && found->second.size() > 1 ? nullptr : first;
}

}  // namespace braid
