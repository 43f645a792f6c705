// types.h -- GGUF element types and their sizes, numbered as in files.
// A type stores `block_elems` elements of a row in `block_bytes` bytes. A row is a whole number of
// blocks; rows follow without padding. block_layouts.h defines the contents.
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
  std::string_view name;  // lower case letters as other tools print it: "q4_K", "bf16"
  uint32_t block_elems;
  uint32_t block_bytes;
};

std::span<const GgmlTypeInfo> ggml_types();

// Null for ids that are unknown or no longer used.
const GgmlTypeInfo* find_ggml_type(uint32_t id);

// Ignores case. Null if unknown.
const GgmlTypeInfo* find_ggml_type(std::string_view name);

const GgmlTypeInfo& type_info(GgmlType type);
inline std::string_view type_name(GgmlType type) { return type_info(type).name; }
inline uint32_t block_elems(GgmlType type) { return type_info(type).block_elems; }
inline uint32_t block_bytes(GgmlType type) { return type_info(type).block_bytes; }

// Bytes of a row; empty if it is not a whole number of blocks or the size exceeds 64 bits.
std::optional<uint64_t> row_bytes(GgmlType type, uint64_t elems);

}  // namespace braid
