// gguf_writer.h -- building a GGUF file: metadata, then tensors whose bytes come from memory or are made on
// the way.
//
// The layout is the strict one every reader accepts: version 3, tensors in the order added, each at the next
// multiple of the alignment, zeros between and after the last. What is added is checked only for what would
// make a file that gguf.h refuses; such a mistake is a bug of the caller.
//
// A key "general.alignment" is obeyed; without it the alignment is 32.
// Memory: metadata is copied, tensor spans are not (they must live until the file is written).
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

// Takes the next bytes of a file or tensor.
using ByteSink = std::function<Status(std::span<const std::byte>)>;

class GgufWriter {
 public:
  // Sets a key: replaces the value where the key stands, or appends the key.
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
  // A value as a GgufFile holds it, of any type but arrays of arrays.
  void set_value(std::string_view key, const GgufValue& value);
  // All metadata of a file in its order, except arrays of arrays, which many readers refuse.
  // REQUIRES: no key was set yet.
  void copy_metadata(const GgufFile& file);
  void remove(std::string_view key);
  bool has(std::string_view key) const;

  // n_dims is what the file says; dims beyond it must be 1. data.size() must be the size of that type and
  // shape.
  void add_tensor(std::string_view name, GgmlType type, uint32_t n_dims, const std::array<uint64_t, 4>& ne,
                  std::span<const std::byte> data);
  // The same with bytes made while the file is written: `produce` is called once, in file order, and hands
  // exactly the tensor's bytes to its sink, in pieces of any size.
  void add_tensor(std::string_view name, GgmlType type, uint32_t n_dims, const std::array<uint64_t, 4>& ne,
                  std::function<Status(const ByteSink&)> produce);

  // Bytes the file will have.
  uint64_t file_bytes() const;

  // Streams the file. Errors: those of the sink and of the producers.
  Status write_to(const ByteSink& sink) const;
  // PATH is whole or untouched; a FIFO or a device is written into (base/files/output_file.h).
  // Errors: those of OutputFile, and of the producers.
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
