// safetensors.h -- reading a .safetensors file: the tensors of a checkpoint as others publish them.
//
// Layout: u64 length of the header, the header (a JSON object: tensor name -> {dtype, shape, data_offsets},
// and optionally "__metadata__" with string values), then the data. As with gguf.h the bytes are hostile:
// parsing does not touch data, allocates in proportion to the header, and answers a broken file with one
// sentence.
//
// Always true of a SafetensorsFile:
//   names are unique; data.size() is the size of dtype and shape; the tensors tile the data section without
//   gap or overlap; every span points into the bytes of the file. Spans have no alignment: load elements with
//   memcpy.
//
// Shapes are row-major, slowest dimension first (the reverse of GgufTensor::ne).
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
#include "gguf/formats/types.h"

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
  // The type that decode_row (block_layouts.h) reads these elements as; empty if there is none.
  std::optional<GgmlType> ggml_type() const;
};

class SafetensorsFile {
 public:
  // `name` stands in messages for where the bytes came from. The bytes must outlive the result.
  static Result<SafetensorsFile> parse(std::span<const std::byte> bytes, std::string name);
  // Maps PATH and keeps the mapping. Errors: not_found, io, corrupt, unsupported (an unknown dtype).
  static Result<SafetensorsFile> open(const std::string& path);

  const std::string& name() const { return name_; }
  // In the order of their data.
  std::span<const SafetensorsTensor> tensors() const { return tensors_; }
  // Null if absent. O(log n).
  const SafetensorsTensor* find_tensor(std::string_view name) const;
  // As find_tensor; absence is an Error(corrupt).
  Result<const SafetensorsTensor*> tensor(std::string_view name) const;
  // "__metadata__", in file order.
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
