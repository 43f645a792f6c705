// products.cpp -- which table of kernels this processor runs.

#include "ops/cpu/products.h"

#include <string_view>

#if defined(__x86_64__)
#include "ops/cpu/kernels_avx2.h"
#include "ops/cpu/kernels_avx512.h"
#endif

namespace braid::cpu {

#if defined(__x86_64__)
const ProductTable& avx2_products() {
  static const ProductTable table = [] {
    ProductTable t;
    t.name = "avx2";
    const Kernel floats[kLayouts] = {avx2::decoded_rows<Layout::w8>,
                                     avx2::decoded_rows<Layout::w4k>,
                                     avx2::decoded_rows<Layout::w5k>,
                                     avx2::decoded_rows<Layout::w6k>,
                                     avx2::f32_rows,
                                     avx2::f16_rows,
                                     avx2::bf16_rows,
                                     avx2::decoded_rows<Layout::raw>};
    for (int i = 0; i < kLayouts; i++) {
      t.f32[i] = t.i16[i] = t.i8[i] = {floats[i], floats[i], kNeedsFloat, kNeedsFloat};
    }
    const auto at = [](Layout layout) { return static_cast<int>(layout); };
    t.i8[at(Layout::w8)] = {avx2::w8_few, avx2::w8_many, kNeedsNibbles, kNeedsWide};
    t.i16[at(Layout::w8)] = {avx2::w8_many, avx2::w8_many, kNeedsWide, kNeedsWide};
    t.i8[at(Layout::w4k)] = {avx2::w4k_few, avx2::w4k_many, kNeedsCodes, kNeedsCodes};
    t.i8[at(Layout::w5k)] = {avx2::w5k_few, avx2::w5k_many, kNeedsCodes, kNeedsCodes};
    t.i8[at(Layout::w6k)] = {avx2::w6k_few, avx2::w6k_many, kNeedsCodes, kNeedsCodes};
    for (auto* list : {t.i8, t.i16, t.f32}) {
      list[at(Layout::f32)].few = avx2::f32_few;
      list[at(Layout::f16)].few = avx2::f16_few;
      list[at(Layout::bf16)].few = avx2::bf16_few;
    }
    t.quantize = avx2::quantize;
    t.silu_mul = avx2::silu_mul;
    return t;
  }();
  return table;
}

const ProductTable& avx512_products() {
  static const ProductTable table = [] {
    ProductTable t;
    t.name = "avx512";
    const Kernel floats[kLayouts] = {avx512::decoded_rows<Layout::w8>,
                                     avx512::decoded_rows<Layout::w4k>,
                                     avx512::decoded_rows<Layout::w5k>,
                                     avx512::decoded_rows<Layout::w6k>,
                                     avx512::f32_rows,
                                     avx512::f16_rows,
                                     avx512::bf16_rows,
                                     avx512::decoded_rows<Layout::raw>};
    for (int i = 0; i < kLayouts; i++) {
      t.f32[i] = t.i16[i] = t.i8[i] = {floats[i], floats[i], kNeedsFloat, kNeedsFloat};
    }
    const auto at = [](Layout layout) { return static_cast<int>(layout); };
    t.i8[at(Layout::w8)] = {avx512::w8_few, avx512::w8_many, kNeedsCodes, kNeedsCodes};
    t.i16[at(Layout::w8)] = {avx512::w8_wide_few, avx512::w8_wide_many, kNeedsNibbles, kNeedsNibbles};
    t.i8[at(Layout::w4k)] = {avx512::w4k_few, avx512::w4k_many, kNeedsCodes, kNeedsCodes};
    t.i8[at(Layout::w5k)] = {avx512::w5k_few, avx512::w5k_many, kNeedsCodes, kNeedsCodes};
    t.i8[at(Layout::w6k)] = {avx512::w6k_few, avx512::w6k_many, kNeedsCodes, kNeedsCodes};
    t.quantize = avx512::quantize;
    t.silu_mul = avx512::silu_mul;
    return t;
  }();
  return table;
}
#endif

const ProductTable* choose_products(const char* forced) {
  const std::string_view name = forced != nullptr ? forced : "";
  if (name == "scalar") return &scalar_products();
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
  // libgcc and compiler-rt report a set only if the system saves its registers (XGETBV).
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vnni");
  if (avx512 && (name.empty() || name == "avx512")) return &avx512_products();
  if (avx2 && (name.empty() || name == "avx2")) return &avx2_products();
#endif
  return name.empty() ? &scalar_products() : nullptr;
}

}  // namespace braid::cpu
