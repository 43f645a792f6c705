#include "gguf/types.h"

#include <array>

#include "base/check.h"
#include "base/checked.h"

namespace braid {

namespace {

constexpr GgmlTypeInfo kTypes[] = {
    {GgmlType::F32, "f32", 1, 4},
    {GgmlType::F16, "f16", 1, 2},
    {GgmlType::Q4_0, "q4_0", 32, 18},
    {GgmlType::Q4_1, "q4_1", 32, 20},
    {GgmlType::Q5_0, "q5_0", 32, 22},
    {GgmlType::Q5_1, "q5_1", 32, 24},
    {GgmlType::Q8_0, "q8_0", 32, 34},
    {GgmlType::Q8_1, "q8_1", 32, 36},
    {GgmlType::Q2_K, "q2_K", 256, 84},
    {GgmlType::Q3_K, "q3_K", 256, 110},
    {GgmlType::Q4_K, "q4_K", 256, 144},
    {GgmlType::Q5_K, "q5_K", 256, 176},
    {GgmlType::Q6_K, "q6_K", 256, 210},
    {GgmlType::Q8_K, "q8_K", 256, 292},
    {GgmlType::IQ2_XXS, "iq2_xxs", 256, 66},
    {GgmlType::IQ2_XS, "iq2_xs", 256, 74},
    {GgmlType::IQ3_XXS, "iq3_xxs", 256, 98},
    {GgmlType::IQ1_S, "iq1_s", 256, 50},
    {GgmlType::IQ4_NL, "iq4_nl", 32, 18},
    {GgmlType::IQ3_S, "iq3_s", 256, 110},
    {GgmlType::IQ2_S, "iq2_s", 256, 82},
    {GgmlType::IQ4_XS, "iq4_xs", 256, 136},
    {GgmlType::I8, "i8", 1, 1},
    {GgmlType::I16, "i16", 1, 2},
    {GgmlType::I32, "i32", 1, 4},
    {GgmlType::I64, "i64", 1, 8},
    {GgmlType::F64, "f64", 1, 8},
    {GgmlType::IQ1_M, "iq1_m", 256, 56},
    {GgmlType::BF16, "bf16", 1, 2},
    {GgmlType::TQ1_0, "tq1_0", 256, 54},
    {GgmlType::TQ2_0, "tq2_0", 256, 66},
    {GgmlType::MXFP4, "mxfp4", 32, 17},
    {GgmlType::NVFP4, "nvfp4", 64, 36},
    {GgmlType::Q1_0, "q1_0", 128, 18},
    {GgmlType::Q2_0, "q2_0", 64, 18},
};

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool same_ignoring_case(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (lower(a[i]) != lower(b[i])) return false;
  }
  return true;
}

// Index into kTypes by id, so that a look-up is one load: loops over rows do it often.
constexpr uint32_t kIdEnd = 43;
constexpr std::array<int8_t, kIdEnd> make_index() {
  std::array<int8_t, kIdEnd> index{};
  for (auto& slot : index) slot = -1;
  for (size_t i = 0; i < std::size(kTypes); ++i)
    index[static_cast<uint32_t>(kTypes[i].type)] = static_cast<int8_t>(i);
  return index;
}
constexpr std::array<int8_t, kIdEnd> kIndex = make_index();

}  // namespace

std::span<const GgmlTypeInfo> ggml_types() { return kTypes; }

const GgmlTypeInfo* find_ggml_type(uint32_t id) {
  return id < kIdEnd && kIndex[id] >= 0 ? &kTypes[kIndex[id]] : nullptr;
}

const GgmlTypeInfo* find_ggml_type(std::string_view name) {
  for (const GgmlTypeInfo& info : kTypes) {
    if (same_ignoring_case(info.name, name)) return &info;
  }
  return nullptr;
}

const GgmlTypeInfo& type_info(GgmlType type) {
  const GgmlTypeInfo* info = find_ggml_type(static_cast<uint32_t>(type));
  BRAID_CHECK(info != nullptr);
  return *info;
}

std::optional<uint64_t> row_bytes(GgmlType type, uint64_t elems) {
  const GgmlTypeInfo& info = type_info(type);
  if (elems % info.block_elems != 0) return std::nullopt;
  return checked_mul(elems / info.block_elems, info.block_bytes);
}

}  // namespace braid
