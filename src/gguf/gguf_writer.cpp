// gguf_writer.cpp -- encodes keys when they are set, lays out tensors when the file is written.
#include "gguf/gguf_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/checked.h"
#include "base/output_file.h"

namespace braid {

namespace {

void append_bytes(std::vector<std::byte>& out, const void* from, size_t count) {
  const size_t at = out.size();
  out.resize(at + count);
  if (count > 0) std::memcpy(out.data() + at, from, count);
}

template <typename T>
void append(std::vector<std::byte>& out, T value) {
  append_bytes(out, &value, sizeof(T));
}

void append_string(std::vector<std::byte>& out, std::string_view text) {
  append(out, static_cast<uint64_t>(text.size()));
  append_bytes(out, text.data(), text.size());
}

bool holds_arrays(const GgufValue& value) {
  return value.is_array() && value.elem_type == GgufValueType::ARRAY;
}

std::vector<std::byte> encoded(const GgufValue& value) {
  std::vector<std::byte> bytes;
  if (value.is_array()) {
    append(bytes, static_cast<uint32_t>(value.elem_type));
    append(bytes, value.count);
  } else if (value.type == GgufValueType::STRING) {
    append(bytes, static_cast<uint64_t>(value.bytes.size()));
  }
  append_bytes(bytes, value.bytes.data(), value.bytes.size());
  return bytes;
}

uint64_t align_up(uint64_t value, uint64_t unit) { return (value + unit - 1) & ~(unit - 1); }

Status write_zeros(const ByteSink& sink, uint64_t count) {
  static constexpr std::byte kZeros[4096] = {};
  for (; count > 0;) {
    const uint64_t now = std::min<uint64_t>(count, sizeof(kZeros));
    BRAID_TRY(sink({kZeros, now}));
    count -= now;
  }
  return {};
}

}  // namespace

void GgufWriter::set(std::string_view key, GgufValueType type, std::vector<std::byte> bytes) {
  BRAID_CHECK(!key.empty() && key.size() <= 65535 && key.find('\0') == std::string_view::npos);
  const auto at =
      std::find_if(keys_.begin(), keys_.end(), [&](const Key& k) { return k.name == key; });
  if (at != keys_.end()) {
    at->type = type;
    at->bytes = std::move(bytes);
  } else {
    keys_.push_back({std::string(key), type, std::move(bytes)});
  }
}

template <typename T>
void GgufWriter::set_scalar(std::string_view key, GgufValueType type, T value) {
  std::vector<std::byte> bytes;
  append(bytes, value);
  set(key, type, std::move(bytes));
}

template <typename T>
void GgufWriter::set_array(std::string_view key, GgufValueType elem_type,
                           std::span<const T> values) {
  std::vector<std::byte> bytes;
  append(bytes, static_cast<uint32_t>(elem_type));
  append(bytes, static_cast<uint64_t>(values.size()));
  for (const T& value : values) {
    if constexpr (std::is_same_v<T, std::string_view>) {
      append_string(bytes, value);
    } else {
      append(bytes, value);
    }
  }
  set(key, GgufValueType::ARRAY, std::move(bytes));
}

void GgufWriter::set_u8(std::string_view key, uint8_t value) {
  set_scalar(key, GgufValueType::U8, value);
}
void GgufWriter::set_i8(std::string_view key, int8_t value) {
  set_scalar(key, GgufValueType::I8, value);
}
void GgufWriter::set_u16(std::string_view key, uint16_t value) {
  set_scalar(key, GgufValueType::U16, value);
}
void GgufWriter::set_i16(std::string_view key, int16_t value) {
  set_scalar(key, GgufValueType::I16, value);
}
void GgufWriter::set_u32(std::string_view key, uint32_t value) {
  set_scalar(key, GgufValueType::U32, value);
}
void GgufWriter::set_i32(std::string_view key, int32_t value) {
  set_scalar(key, GgufValueType::I32, value);
}
void GgufWriter::set_u64(std::string_view key, uint64_t value) {
  set_scalar(key, GgufValueType::U64, value);
}
void GgufWriter::set_i64(std::string_view key, int64_t value) {
  set_scalar(key, GgufValueType::I64, value);
}
void GgufWriter::set_f32(std::string_view key, float value) {
  set_scalar(key, GgufValueType::F32, value);
}
void GgufWriter::set_f64(std::string_view key, double value) {
  set_scalar(key, GgufValueType::F64, value);
}
void GgufWriter::set_bool(std::string_view key, bool value) {
  set_scalar(key, GgufValueType::BOOL, static_cast<uint8_t>(value ? 1 : 0));
}

void GgufWriter::set_string(std::string_view key, std::string_view value) {
  std::vector<std::byte> bytes;
  append_string(bytes, value);
  set(key, GgufValueType::STRING, std::move(bytes));
}

void GgufWriter::set_strings(std::string_view key, std::span<const std::string_view> values) {
  set_array(key, GgufValueType::STRING, values);
}
void GgufWriter::set_u32s(std::string_view key, std::span<const uint32_t> values) {
  set_array(key, GgufValueType::U32, values);
}
void GgufWriter::set_i32s(std::string_view key, std::span<const int32_t> values) {
  set_array(key, GgufValueType::I32, values);
}
void GgufWriter::set_f32s(std::string_view key, std::span<const float> values) {
  set_array(key, GgufValueType::F32, values);
}

void GgufWriter::set_value(std::string_view key, const GgufValue& value) {
  BRAID_CHECK(!holds_arrays(value));
  set(key, value.type, encoded(value));
}

void GgufWriter::copy_metadata(const GgufFile& file) {
  BRAID_CHECK(keys_.empty());  // keeps keys unique without searching for each
  for (const GgufEntry& entry : file.entries()) {
    if (!holds_arrays(entry.value))
      keys_.push_back({std::string(entry.key), entry.value.type, encoded(entry.value)});
  }
}

void GgufWriter::remove(std::string_view key) {
  std::erase_if(keys_, [&](const Key& k) { return k.name == key; });
}

bool GgufWriter::has(std::string_view key) const {
  return std::any_of(keys_.begin(), keys_.end(), [&](const Key& k) { return k.name == key; });
}

uint64_t GgufWriter::alignment() const {
  for (const Key& key : keys_) {
    if (key.name != "general.alignment") continue;
    BRAID_CHECK(key.type == GgufValueType::U32);
    uint32_t value = 0;
    std::memcpy(&value, key.bytes.data(), 4);
    BRAID_CHECK(value >= 8 && value <= 1 << 20 && (value & (value - 1)) == 0);
    return value;
  }
  return 32;
}

void GgufWriter::add_tensor(std::string_view name, GgmlType type, uint32_t n_dims,
                            const std::array<uint64_t, 4>& ne,
                            std::function<Status(const ByteSink&)> produce) {
  BRAID_CHECK(!name.empty() && name.size() <= 63 && n_dims <= 4);
  std::optional<uint64_t> size = row_bytes(type, ne[0]);
  for (uint32_t i = 0; i < 4; ++i) {
    BRAID_CHECK(ne[i] >= 1 && (i < n_dims || ne[i] == 1));
    if (i > 0 && size) size = checked_mul(*size, ne[i]);
  }
  BRAID_CHECK(size.has_value());
  tensors_.push_back({std::string(name), type, n_dims, ne, *size, std::move(produce)});
}

void GgufWriter::add_tensor(std::string_view name, GgmlType type, uint32_t n_dims,
                            const std::array<uint64_t, 4>& ne, std::span<const std::byte> data) {
  add_tensor(name, type, n_dims, ne, [data](const ByteSink& sink) { return sink(data); });
  BRAID_CHECK(tensors_.back().size_bytes == data.size());
}

std::vector<std::byte> GgufWriter::header() const {
  std::vector<std::byte> out;
  append_bytes(out, "GGUF", 4);
  append(out, uint32_t{3});
  append(out, static_cast<uint64_t>(tensors_.size()));
  append(out, static_cast<uint64_t>(keys_.size()));
  for (const Key& key : keys_) {
    append_string(out, key.name);
    append(out, static_cast<uint32_t>(key.type));
    append_bytes(out, key.bytes.data(), key.bytes.size());
  }
  const uint64_t unit = alignment();
  uint64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    append_string(out, tensor.name);
    append(out, tensor.n_dims);
    for (uint32_t i = 0; i < tensor.n_dims; ++i) append(out, tensor.ne[i]);
    append(out, static_cast<uint32_t>(tensor.type));
    append(out, offset);
    offset += align_up(tensor.size_bytes, unit);
  }
  out.resize(align_up(out.size(), unit));
  return out;
}

uint64_t GgufWriter::file_bytes() const {
  const uint64_t unit = alignment();
  uint64_t total = header().size();
  for (const Tensor& tensor : tensors_) total += align_up(tensor.size_bytes, unit);
  return total;
}

Status GgufWriter::write_to(const ByteSink& sink) const {
  const uint64_t unit = alignment();
  BRAID_TRY(sink(header()));
  for (const Tensor& tensor : tensors_) {
    uint64_t written = 0;
    BRAID_TRY(tensor.produce([&](std::span<const std::byte> bytes) {
      written += bytes.size();
      BRAID_CHECK(written <= tensor.size_bytes);
      return sink(bytes);
    }));
    BRAID_CHECK(written == tensor.size_bytes);
    BRAID_TRY(write_zeros(sink, align_up(written, unit) - written));
  }
  return {};
}

Status GgufWriter::write_file(const std::string& path) const {
  BRAID_ASSIGN(OutputFile file, OutputFile::create(path));
  BRAID_TRY(write_to([&](std::span<const std::byte> bytes) { return file.write(bytes); }));
  return file.finish();
}

std::vector<std::byte> GgufWriter::to_bytes() const {
  std::vector<std::byte> out;
  out.reserve(file_bytes());
  const Status status = write_to([&](std::span<const std::byte> bytes) {
    append_bytes(out, bytes.data(), bytes.size());
    return Status();
  });
  BRAID_CHECK(status.ok());
  return out;
}

}  // namespace braid
