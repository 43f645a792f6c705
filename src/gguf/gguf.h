// gguf.h -- reads a GGUF file: its metadata and the places of its tensors.
//
// parse() reads bytes that the caller keeps; open() maps all shards and keeps the mappings. The
// bytes are untrusted: counts, lengths and offsets are checked, and memory is bounded by the file's
// size. A broken file is an Error with file, place and reason. Tensor values (find_invalid_block)
// and the meaning of the metadata (model layer) are not checked.
//
// Invariants:
// - Keys are unique, not empty, at most 65535 bytes. Tensor names are unique, 1..63 bytes.
// - A tensor has 1..4 dimensions >= 1 (missing ones are 1), a known type and rows of whole blocks.
// - data.size() == row_bytes() * ne[1] * ne[2] * ne[3], entirely inside the file.
// - string_views and spans point into the bytes of the file and live as long as they do.
// - ne[0] is the row length. A matrix y = W x with K inputs and N outputs has ne = {K, N}.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "gguf/types.h"

namespace braid {

enum class GgufValueType : uint32_t {
  U8 = 0,
  I8 = 1,
  U16 = 2,
  I16 = 3,
  U32 = 4,
  I32 = 5,
  F32 = 6,
  BOOL = 7,
  STRING = 8,
  ARRAY = 9,
  U64 = 10,
  I64 = 11,
  F64 = 12,
};

std::string_view gguf_value_type_name(GgufValueType type);
// Bytes of a value of fixed size; 0 for strings and arrays.
uint32_t gguf_value_bytes(GgufValueType type);

// A metadata value in its encoded form (little-endian, unaligned).
struct GgufValue {
  GgufValueType type = GgufValueType::U8;
  GgufValueType elem_type = GgufValueType::U8;  // of an array
  uint64_t count = 1;                           // of an array
  // Scalar: its bytes. String: its characters. Array: its elements as stored.
  std::span<const std::byte> bytes;

  bool is_array() const { return type == GgufValueType::ARRAY; }
};

struct GgufEntry {
  std::string_view key;
  GgufValue value;
};

struct GgufTensor {
  std::string_view name;
  GgmlType type = GgmlType::F32;
  uint32_t n_dims = 1;  // as stored: 0 (a scalar) to 4
  std::array<uint64_t, 4> ne = {1, 1, 1, 1};
  std::span<const std::byte> data;
  uint32_t shard = 0;  // which file of a split model holds it

  uint64_t elems() const { return ne[0] * ne[1] * ne[2] * ne[3]; }
  uint64_t rows() const { return ne[1] * ne[2] * ne[3]; }
  uint64_t bytes_per_row() const { return ne[0] / block_elems(type) * block_bytes(type); }
};

class GgufFile {
 public:
  // `name` appears in messages. The bytes must outlive the result. A single shard is accepted.
  static Result<GgufFile> parse(std::span<const std::byte> bytes, std::string name);

  // Maps PATH, or all shards if it is the first one (NAME-00001-of-0000N.gguf): metadata of the
  // first, tensors of all. Errors: not_found, io, corrupt, unsupported (version 1, byte order,
  // other shard).
  static Result<GgufFile> open(const std::string& path);

  const std::string& name() const { return name_; }
  uint32_t version() const { return version_; }
  uint32_t alignment() const { return alignment_; }

  // In file order.
  std::span<const GgufEntry> entries() const { return entries_; }
  std::span<const GgufTensor> tensors() const { return tensors_; }

  // Null if absent. O(log n).
  const GgufValue* find(std::string_view key) const;
  const GgufTensor* find_tensor(std::string_view name) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }
  // As find_tensor, but absence is an Error(corrupt).
  Result<const GgufTensor*> tensor(std::string_view name) const;

  // Required keys: any integer or float width, if the value fits (f64 is rounded). An absent key,
  // another type or a value that does not fit is an Error(corrupt).
  Result<uint32_t> get_u32(std::string_view key) const;
  Result<int32_t> get_i32(std::string_view key) const;
  Result<uint64_t> get_u64(std::string_view key) const;
  Result<float> get_f32(std::string_view key) const;
  Result<bool> get_bool(std::string_view key) const;
  Result<std::string_view> get_string(std::string_view key) const;

  // Optional keys: empty if absent. A wrong type is still an Error.
  Result<std::optional<uint32_t>> find_u32(std::string_view key) const;
  Result<std::optional<int32_t>> find_i32(std::string_view key) const;
  Result<std::optional<uint64_t>> find_u64(std::string_view key) const;
  Result<std::optional<float>> find_f32(std::string_view key) const;
  Result<std::optional<bool>> find_bool(std::string_view key) const;
  Result<std::optional<std::string_view>> find_string(std::string_view key) const;

  // Arrays; the strings are views into the file. O(n).
  Result<std::vector<std::string_view>> get_strings(std::string_view key) const;
  Result<std::vector<uint32_t>> get_u32s(std::string_view key) const;
  Result<std::vector<int32_t>> get_i32s(std::string_view key) const;
  Result<std::vector<float>> get_f32s(std::string_view key) const;

  // A value for all layers or an array, as `count` values. A shorter array is an Error; a longer
  // one is cut, because some files describe layers that they do not hold.
  Result<std::vector<uint32_t>> get_u32_each(std::string_view key, size_t count) const;
  Result<std::vector<float>> get_f32_each(std::string_view key, size_t count) const;

  // Total bytes and mappings (one per shard, none after parse()), for madvise.
  uint64_t file_bytes() const { return file_bytes_; }
  std::span<const MappedFile> mappings() const { return mappings_; }

 private:
  friend class GgufParser;
  GgufFile() = default;
  Status index_entries();
  Status index_tensors();
  Status join_shards(const std::string& path);
  Error missing(std::string_view key) const;
  Error wrong(std::string_view key, const std::string& why) const;
  template <typename T>
  Result<T> integer(std::string_view key, const GgufValue& value, std::string_view wanted) const;
  template <typename T>
  Result<std::vector<T>> numbers(std::string_view key, std::string_view wanted) const;
  Result<float> real(std::string_view key, const GgufValue& value) const;

  std::string name_;
  uint32_t version_ = 3;
  uint32_t alignment_ = 32;
  uint64_t file_bytes_ = 0;
  std::vector<GgufEntry> entries_;
  std::vector<GgufTensor> tensors_;
  std::vector<uint32_t> entries_by_key_;   // positions in entries_, ordered by key
  std::vector<uint32_t> tensors_by_name_;  // likewise
  std::vector<MappedFile> mappings_;
};

}  // namespace braid
