// gguf_writer.h -- builds a GGUF file from metadata and tensors, from memory or a producer.
// Version 3, tensors in the order added, aligned ("general.alignment", default 32), padded with
// zeros. Mistakes that make gguf.h refuse the file are bugs of the caller. Metadata is copied;
// tensor spans must live until the file is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gguf/gguf.h"

namespace braid {

using ByteSink = std::function<Status(std::span<const std::byte>)>;

class GgufWriter {
 public:
  // Setting an existing key replaces its value in place; a new key is appended.
  void set_u8(std::string_view key, uint8_t value);
  void set_i8(std::string_view key, int8_t value);
  void set_u16(std::string_view key, uint16_t value);
  void set_i16(std::string_view key, int16_t value);
  void set_u32(std::string_view key, uint32_t value);
  void set_i32(std::string_view key, int32_t value);
  void set_u64(std::string_view key, uint64_t value);
  void set_i64(std::string_view key, int64_t value);
  void set_f32(std::string_view key, float value);
  void set_f64(std::string_view key, double value);
  void set_bool(std::string_view key, bool value);
  void set_string(std::string_view key, std::string_view value);
  void set_strings(std::string_view key, std::span<const std::string_view> values);
  void set_u32s(std::string_view key, std::span<const uint32_t> values);
  void set_i32s(std::string_view key, std::span<const int32_t> values);
  void set_f32s(std::string_view key, std::span<const float> values);
  // Any type except arrays of arrays.
  void set_value(std::string_view key, const GgufValue& value);
  // All metadata except arrays of arrays, which many readers refuse. REQUIRES: no key is set.
  void copy_metadata(const GgufFile& file);
  void remove(std::string_view key);
  bool has(std::string_view key) const;

  // n_dims is stored; dims beyond it must be 1. data.size() must match type and shape.
  void add_tensor(std::string_view name, GgmlType type, uint32_t n_dims,
                  const std::array<uint64_t, 4>& ne, std::span<const std::byte> data);
  // `produce` is called once, in file order, and passes exactly the tensor's bytes to its sink.
  void add_tensor(std::string_view name, GgmlType type, uint32_t n_dims,
                  const std::array<uint64_t, 4>& ne,
                  std::function<Status(const ByteSink&)> produce);

  uint64_t file_bytes() const;

  // Streams the file. Errors: those of the sink and of the producers.
  Status write_to(const ByteSink& sink) const;
  // As OutputFile (base/output_file.h). Errors: those of OutputFile, and of the producers.
  Status write_file(const std::string& path) const;
  std::vector<std::byte> to_bytes() const;
  // All of the file before the bytes of its tensors.
  std::vector<std::byte> header() const;

 private:
  struct Key {
    std::string name;
    GgufValueType type;
    std::vector<std::byte> bytes;  // as in the file, after the type
  };
  struct Tensor {
    std::string name;
    GgmlType type;
    uint32_t n_dims;
    std::array<uint64_t, 4> ne;
    uint64_t size_bytes;
    std::function<Status(const ByteSink&)> produce;
  };
  void set(std::string_view key, GgufValueType type, std::vector<std::byte> bytes);
  template <typename T>
  void set_scalar(std::string_view key, GgufValueType type, T value);
  template <typename T>
  void set_array(std::string_view key, GgufValueType elem_type, std::span<const T> values);
  uint64_t alignment() const;

  std::vector<Key> keys_;
  std::vector<Tensor> tensors_;
};

}  // namespace braid
