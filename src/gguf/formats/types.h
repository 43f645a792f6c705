// types.h -- the element types a GGUF tensor can have, and how many bytes they take.
//
// A type stores `block_elems` consecutive elements of a row in `block_bytes` bytes; a row is a whole number
// of blocks and rows follow each other without padding. The numbers are those stored in files. What the bytes
// of a block mean is in block_layouts.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace braid {

enum class GgmlType : uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q8_1 = 9,
  Q2_K = 10,
  Q3_K = 11,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  Q8_K = 15,
  IQ2_XXS = 16,
  IQ2_XS = 17,
  IQ3_XXS = 18,
  IQ1_S = 19,
  IQ4_NL = 20,
  IQ3_S = 21,
  IQ2_S = 22,
  IQ4_XS = 23,
  I8 = 24,
  I16 = 25,
  I32 = 26,
  I64 = 27,
  F64 = 28,
  IQ1_M = 29,
  BF16 = 30,
  TQ1_0 = 34,
  TQ2_0 = 35,
  MXFP4 = 39,
  NVFP4 = 40,
  Q1_0 = 41,
  Q2_0 = 42,
};

struct GgmlTypeInfo {
  GgmlType type;
  std::string_view name;  // as other tools print it: "q4_K", "bf16"
  uint32_t block_elems;
  uint32_t block_bytes;
};

// Every type above, by ascending id.
std::span<const GgmlTypeInfo> ggml_types();

// The type stored in a file under `id`; null for ids that are unknown or no longer used.
const GgmlTypeInfo* find_ggml_type(uint32_t id);

// The type of that name, whatever the case of its letters; null if there is none.
const GgmlTypeInfo* find_ggml_type(std::string_view name);

// REQUIRES: type is one of the enumerators.
const GgmlTypeInfo& type_info(GgmlType type);
inline std::string_view type_name(GgmlType type) { return type_info(type).name; }
inline uint32_t block_elems(GgmlType type) { return type_info(type).block_elems; }
inline uint32_t block_bytes(GgmlType type) { return type_info(type).block_bytes; }

// Bytes of a row of `elems` elements; empty when that is not a whole number of blocks or does not fit 64
// bits.
std::optional<uint64_t> row_bytes(GgmlType type, uint64_t elems);

}  // namespace braid
