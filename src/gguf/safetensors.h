// safetensors.h -- reads a .safetensors file: the tensors of a published checkpoint.
// Layout: u64 header length, header, data. The header is JSON: tensor name -> {dtype, shape,
// data_offsets}, and "__metadata__" with strings. The bytes are untrusted: memory is proportional
// to the header, and a broken file is an Error.
// Invariants: names are unique; data.size() matches dtype and shape; tensors tile the data section.
// Spans point into the file, without alignment: use memcpy. Shapes are row-major, slowest dimension
// first (the reverse of GgufTensor::ne).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "gguf/types.h"

namespace braid {

enum class SafetensorsDtype {
  BOOL,
  U8,
  I8,
  F8_E4M3,
  F8_E5M2,
  U16,
  I16,
  F16,
  BF16,
  U32,
  I32,
  F32,
  U64,
  I64,
  F64
};

std::string_view safetensors_dtype_name(SafetensorsDtype dtype);
uint32_t safetensors_dtype_bytes(SafetensorsDtype dtype);

struct SafetensorsTensor {
  std::string name;
  SafetensorsDtype dtype = SafetensorsDtype::F32;
  std::vector<uint64_t> shape;  // empty: a scalar; a dimension may be 0
  std::span<const std::byte> data;

  uint64_t elems() const;
  // The type for decode_row (block_layouts.h); empty if there is not one.
  std::optional<GgmlType> ggml_type() const;
};

class SafetensorsFile {
 public:
  // `name` appears in messages. The bytes must outlive the result.
  static Result<SafetensorsFile> parse(std::span<const std::byte> bytes, std::string name);
  // Maps PATH and keeps the mapping. Errors: not_found, io, corrupt, unsupported (unknown dtype).
  static Result<SafetensorsFile> open(const std::string& path);

  const std::string& name() const { return name_; }
  std::span<const SafetensorsTensor> tensors() const { return tensors_; }
  // Null if absent. O(log n).
  const SafetensorsTensor* find_tensor(std::string_view name) const;
  // As find_tensor, but absence is an Error(corrupt).
  Result<const SafetensorsTensor*> tensor(std::string_view name) const;
  std::span<const std::pair<std::string, std::string>> metadata() const { return metadata_; }

 private:
  SafetensorsFile() = default;

  std::string name_;
  std::vector<SafetensorsTensor> tensors_;
  std::vector<uint32_t> by_name_;  // positions in tensors_, ordered by name
  std::vector<std::pair<std::string, std::string>> metadata_;
  std::optional<MappedFile> mapping_;
};

}  // namespace braid
