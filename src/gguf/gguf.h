// gguf.h -- reading a GGUF file: its metadata and where its tensors lie.
//
// Parsing is separate from opening: parse() looks at bytes somebody else keeps, open() maps a file (all
// shards of a split one) and keeps the mappings. Either way the bytes are hostile: every count, length and
// offset is checked before use, nothing is allocated that the size of the file does not justify, and a file
// that breaks the format is an Error with one sentence naming file, place and reason. The values of tensors
// are not looked at (validate_row in block_layouts.h does that), nor is the meaning of the metadata (the
// model layer does that).
//
// Always true of a GgufFile:
//   keys are unique, not empty, at most 65535 bytes; tensor names are unique, 1..63 bytes
//   a tensor has 1..4 dimensions >= 1 (missing ones are 1), a known type, rows of whole blocks,
//   and data.size() == row_bytes() * ne[1] * ne[2] * ne[3], entirely inside the file
//   every string_view and span points into the bytes of the file, and lives as long as they do
//
// Shapes: ne[0] is the row length (fastest). A matrix y = W x with K inputs and N outputs has ne = {K, N}.
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
#include "gguf/formats/types.h"

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

// "u32", "string", ...
std::string_view gguf_value_type_name(GgufValueType type);
// Bytes of one value of a fixed size; 0 for strings and arrays.
uint32_t gguf_value_bytes(GgufValueType type);

// One metadata value, still in its encoded form (little-endian, unaligned).
struct GgufValue {
  GgufValueType type = GgufValueType::U8;
  GgufValueType elem_type = GgufValueType::U8;  // of an array's elements
  uint64_t count = 1;                           // of an array's elements
  // Fixed-size scalar: its bytes. String: its characters, without the length. Array: its elements as stored
  // (strings with their length in front), without type and count.
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
  // `name` stands in messages for where the bytes came from. The bytes must outlive the result.
  // Accepts one shard of a split file as it is.
  static Result<GgufFile> parse(std::span<const std::byte> bytes, std::string name);

  // Maps PATH; if it is the first shard of a split file (NAME-00001-of-0000N.gguf), all shards, joined:
  // metadata of the first, tensors of all. Errors: not_found, io (as MappedFile), corrupt, unsupported
  // (version 1, other byte order, not the first shard).
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
  // As find_tensor; absence is an Error(corrupt).
  Result<const GgufTensor*> tensor(std::string_view name) const;

  // The value of a key that must be there. Integers of any width are accepted if the value fits, floats of
  // either width (f64 is rounded). An absent key, another type or a value that does not fit is an
  // Error(corrupt).
  Result<uint32_t> get_u32(std::string_view key) const;
  Result<int32_t> get_i32(std::string_view key) const;
  Result<uint64_t> get_u64(std::string_view key) const;
  Result<float> get_f32(std::string_view key) const;
  Result<bool> get_bool(std::string_view key) const;
  Result<std::string_view> get_string(std::string_view key) const;

  // The same for a key that may be absent: empty if it is. A present one of the wrong type is still an Error.
  Result<std::optional<uint32_t>> find_u32(std::string_view key) const;
  Result<std::optional<int32_t>> find_i32(std::string_view key) const;
  Result<std::optional<uint64_t>> find_u64(std::string_view key) const;
  Result<std::optional<float>> find_f32(std::string_view key) const;
  Result<std::optional<bool>> find_bool(std::string_view key) const;
  Result<std::optional<std::string_view>> find_string(std::string_view key) const;

  // Arrays. The strings are views into the file. O(n).
  Result<std::vector<std::string_view>> get_strings(std::string_view key) const;
  Result<std::vector<uint32_t>> get_u32s(std::string_view key) const;
  Result<std::vector<int32_t>> get_i32s(std::string_view key) const;
  Result<std::vector<float>> get_f32s(std::string_view key) const;

  // A number that is one value for all layers in some files and an array with one value per layer in others:
  // always `count` values. An array of another length is an Error (a longer one is cut: some files describe
  // layers that they do not hold).
  Result<std::vector<uint32_t>> get_u32_each(std::string_view key, size_t count) const;
  Result<std::vector<float>> get_f32_each(std::string_view key, size_t count) const;

  // Bytes of all files, and the mappings (one per shard, none after parse()), for madvise.
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
