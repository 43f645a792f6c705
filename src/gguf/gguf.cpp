// gguf.cpp -- typed access to the metadata of a file whose structure gguf_parse.cpp has checked.
#include "gguf/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "gguf/gguf_text.h"

namespace braid {

namespace {

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <typename Use>
bool visit_integer(GgufValueType type, const std::byte* at, Use use) {
  switch (type) {
    case GgufValueType::U8:
      return use(load<uint8_t>(at)), true;
    case GgufValueType::I8:
      return use(load<int8_t>(at)), true;
    case GgufValueType::U16:
      return use(load<uint16_t>(at)), true;
    case GgufValueType::I16:
      return use(load<int16_t>(at)), true;
    case GgufValueType::U32:
      return use(load<uint32_t>(at)), true;
    case GgufValueType::I32:
      return use(load<int32_t>(at)), true;
    case GgufValueType::U64:
      return use(load<uint64_t>(at)), true;
    case GgufValueType::I64:
      return use(load<int64_t>(at)), true;
    default:
      return false;
  }
}

enum class Fit { yes, no, other_type };

template <typename T>
Fit load_number(GgufValueType type, const std::byte* at, T& out) {
  if constexpr (std::is_floating_point_v<T>) {
    if (type == GgufValueType::F32) {
      out = load<float>(at);
      return Fit::yes;
    }
    if (type == GgufValueType::F64) {
      out = static_cast<T>(load<double>(at));
      return Fit::yes;
    }
    return Fit::other_type;
  } else {
    bool fits = false;
    const bool is_integer = visit_integer(type, at, [&](auto x) {
      fits = std::in_range<T>(+x);
      if (fits) out = static_cast<T>(x);
    });
    return !is_integer ? Fit::other_type : fits ? Fit::yes : Fit::no;
  }
}

std::string shown_type(const GgufValue& value) {
  return value.is_array() ? fmt::format("an array of {}", gguf_value_type_name(value.elem_type))
                          : fmt::format("a {}", gguf_value_type_name(value.type));
}

}  // namespace

std::string_view gguf_value_type_name(GgufValueType type) {
  constexpr std::string_view kNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                         "bool", "string", "array", "u64", "i64", "f64"};
  return kNames[static_cast<uint32_t>(type)];
}

uint32_t gguf_value_bytes(GgufValueType type) {
  constexpr uint8_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kBytes[static_cast<uint32_t>(type)];
}

Error GgufFile::missing(std::string_view key) const {
  return Error{ErrorKind::corrupt,
               fmt::format("{}: the metadata key {} is missing", name_, quoted(key))};
}

Error GgufFile::wrong(std::string_view key, const std::string& why) const {
  return Error{ErrorKind::corrupt,
               fmt::format("{}: the metadata key {} {}", name_, quoted(key), why)};
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto at = std::lower_bound(
      entries_by_key_.begin(), entries_by_key_.end(), key,
      [&](uint32_t i, std::string_view wanted) { return entries_[i].key < wanted; });
  return at != entries_by_key_.end() && entries_[*at].key == key ? &entries_[*at].value : nullptr;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto at = std::lower_bound(
      tensors_by_name_.begin(), tensors_by_name_.end(), name,
      [&](uint32_t i, std::string_view wanted) { return tensors_[i].name < wanted; });
  return at != tensors_by_name_.end() && tensors_[*at].name == name ? &tensors_[*at] : nullptr;
}

Result<const GgufTensor*> GgufFile::tensor(std::string_view name) const {
  const GgufTensor* found = find_tensor(name);
  if (found == nullptr) {
    return Error{ErrorKind::corrupt,
                 fmt::format("{}: the tensor {} is missing", name_, quoted(name))};
  }
  return found;
}

template <typename T>
Result<T> GgufFile::integer(std::string_view key, const GgufValue& value,
                            std::string_view wanted) const {
  T out{};
  const Fit fit = load_number(value.type, value.bytes.data(), out);
  if (fit == Fit::other_type)
    return wrong(key, fmt::format("is {}, not {}", shown_type(value), wanted));
  if (fit == Fit::no) return wrong(key, fmt::format("has a value that does not fit {}", wanted));
  return out;
}

Result<float> GgufFile::real(std::string_view key, const GgufValue& value) const {
  return integer<float>(key, value, "a floating-point number");
}

template <typename T>
Result<std::vector<T>> GgufFile::numbers(std::string_view key, std::string_view wanted) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return missing(key);
  const uint32_t size = value->is_array() ? gguf_value_bytes(value->elem_type) : 0;
  if (size == 0)
    return wrong(key, fmt::format("is {}, not an array of {}", shown_type(*value), wanted));
  std::vector<T> out(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const Fit fit = load_number(value->elem_type, value->bytes.data() + i * size, out[i]);
    if (fit == Fit::other_type)
      return wrong(key, fmt::format("is {}, not an array of {}", shown_type(*value), wanted));
    if (fit == Fit::no)
      return wrong(key, fmt::format("has an element ({}) out of range for {}", i, wanted));
  }
  return out;
}

// Defines get_name (required) and find_name (optional) from a conversion.
#define BRAID_GGUF_GETTERS(type, name, convert)                                   \
  Result<type> GgufFile::get_##name(std::string_view key) const {                 \
    const GgufValue* value = find(key);                                           \
    if (value == nullptr) return missing(key);                                    \
    return convert;                                                               \
  }                                                                               \
  Result<std::optional<type>> GgufFile::find_##name(std::string_view key) const { \
    if (!has(key)) return std::optional<type>();                                  \
    BRAID_ASSIGN(type out, get_##name(key));                                      \
    return std::optional<type>(out);                                              \
  }

BRAID_GGUF_GETTERS(uint32_t, u32, integer<uint32_t>(key, *value, "an unsigned 32-bit integer"))
BRAID_GGUF_GETTERS(int32_t, i32, integer<int32_t>(key, *value, "a 32-bit integer"))
BRAID_GGUF_GETTERS(uint64_t, u64, integer<uint64_t>(key, *value, "an unsigned 64-bit integer"))
BRAID_GGUF_GETTERS(float, f32, real(key, *value))
BRAID_GGUF_GETTERS(bool, bool,
                   value->type == GgufValueType::BOOL
                       ? Result<bool>(value->bytes[0] != std::byte{0})
                       : Result<bool>(wrong(key,
                                            fmt::format("is {}, not a bool", shown_type(*value)))))
BRAID_GGUF_GETTERS(std::string_view, string,
                   value->type == GgufValueType::STRING
                       ? Result<std::string_view>(
                             std::string_view(reinterpret_cast<const char*>(value->bytes.data()),
                                              value->bytes.size()))
                       : Result<std::string_view>(wrong(key, fmt::format("is {}, not a string",
                                                                         shown_type(*value)))))
#undef BRAID_GGUF_GETTERS

Result<std::vector<std::string_view>> GgufFile::get_strings(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return missing(key);
  if (!value->is_array() || value->elem_type != GgufValueType::STRING) {
    return wrong(key, fmt::format("is {}, not an array of strings", shown_type(*value)));
  }
  std::vector<std::string_view> out;
  out.reserve(value->count);
  const std::byte* at = value->bytes.data();
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto length = load<uint64_t>(at);
    out.emplace_back(reinterpret_cast<const char*>(at + 8), length);
    at += 8 + length;
  }
  return out;
}

Result<std::vector<uint32_t>> GgufFile::get_u32s(std::string_view key) const {
  return numbers<uint32_t>(key, "unsigned 32-bit integers");
}
Result<std::vector<int32_t>> GgufFile::get_i32s(std::string_view key) const {
  return numbers<int32_t>(key, "32-bit integers");
}
Result<std::vector<float>> GgufFile::get_f32s(std::string_view key) const {
  return numbers<float>(key, "floating-point numbers");
}

namespace {
// A scalar expands to one value per layer, and the file also chooses the number of layers.
constexpr size_t kMaxLayers = 1 << 16;

template <typename T, typename Wrong>
Result<std::vector<T>> cut_to(std::vector<T> values, size_t count, Wrong wrong) {
  if (values.size() < count)
    return wrong(fmt::format("has {} elements, fewer than the {} needed", values.size(), count));
  values.resize(count);
  return values;
}
}  // namespace

Result<std::vector<uint32_t>> GgufFile::get_u32_each(std::string_view key, size_t count) const {
  if (count > kMaxLayers)
    return wrong(key, fmt::format("is asked for {} layers, more than {}", count, kMaxLayers));
  const GgufValue* value = find(key);
  if (value != nullptr && value->is_array()) {
    BRAID_ASSIGN(auto values, get_u32s(key));
    return cut_to(std::move(values), count,
                  [&](const std::string& why) { return wrong(key, why); });
  }
  BRAID_ASSIGN(const uint32_t one, get_u32(key));
  return std::vector<uint32_t>(count, one);
}

Result<std::vector<float>> GgufFile::get_f32_each(std::string_view key, size_t count) const {
  if (count > kMaxLayers)
    return wrong(key, fmt::format("is asked for {} layers, more than {}", count, kMaxLayers));
  const GgufValue* value = find(key);
  if (value != nullptr && value->is_array()) {
    BRAID_ASSIGN(auto values, get_f32s(key));
    return cut_to(std::move(values), count,
                  [&](const std::string& why) { return wrong(key, why); });
  }
  BRAID_ASSIGN(const float one, get_f32(key));
  return std::vector<float>(count, one);
}

}  // namespace braid
