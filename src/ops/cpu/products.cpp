// products.cpp -- which table of kernels this processor runs.

#include "ops/cpu/products.h"

#include <algorithm>
#include <array>
#include <string_view>

#if defined(__x86_64__)
#include "ops/cpu/kernels_avx2.h"
#include "ops/cpu/kernels_avx512.h"
#elif defined(__aarch64__)
#include "ops/cpu/kernels_neon.h"
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#endif

namespace braid::cpu {
namespace {

// Exact products for every layout: seven of their own, and for all others (raw, the small types) the last,
// which decodes by the file's type.
void fill_floats(ProductTable* t, const std::array<Kernel, 8>& kernels) {
  for (size_t i = 0; i < kLayouts; i++) {
    const Kernel kernel = kernels[std::min(i, kernels.size() - 1)];
    t->f32[i] = t->i16[i] = t->i8[i] = {kernel, kernel, kNeedsFloat, kNeedsFloat};
  }
}

}  // namespace

#if defined(__x86_64__)
const ProductTable& avx2_products() {
  static const ProductTable table = [] {
    ProductTable t;
    t.name = "avx2";
    fill_floats(&t, {avx2::decoded_rows<Layout::w8>, avx2::decoded_rows<Layout::w4k>,
                     avx2::decoded_rows<Layout::w5k>, avx2::decoded_rows<Layout::w6k>, avx2::f32_rows,
                     avx2::f16_rows, avx2::bf16_rows, avx2::decoded_rows<Layout::raw>});
    const auto at = [](Layout layout) { return static_cast<int>(layout); };
    t.i8[at(Layout::w8)] = {avx2::w8_few, avx2::w8_many, kNeedsNibbles, kNeedsWide};
    t.i16[at(Layout::w8)] = {avx2::w8_many, avx2::w8_many, kNeedsWide, kNeedsWide};
    t.i8[at(Layout::w4k)] = {avx2::w4k_few, avx2::w4k_many, kNeedsCodes, kNeedsCodes};
    t.i8[at(Layout::w5k)] = {avx2::w5k_few, avx2::w5k_many, kNeedsCodes, kNeedsCodes};
    t.i8[at(Layout::w6k)] = {avx2::w6k_few, avx2::w6k_many, kNeedsCodes, kNeedsCodes};
    const auto set = [&](Kernels* list, Layout layout, Kernel kernel, uint8_t needs) {
      list[at(layout)] = {kernel, kernel, needs, needs};
    };
    set(t.i8, Layout::q4_0, avx2::small_rows<Layout::q4_0>, kNeedsCodes);
    set(t.i8, Layout::q4_1, avx2::small_rows<Layout::q4_1>, kNeedsCodes);
    set(t.i8, Layout::q5_0, avx2::small_rows<Layout::q5_0>, kNeedsCodes);
    set(t.i8, Layout::q5_1, avx2::small_rows<Layout::q5_1>, kNeedsCodes);
    set(t.i8, Layout::mxfp4, avx2::small_rows<Layout::mxfp4>, kNeedsCodes);
    set(t.i8, Layout::nvfp4, avx2::small_rows<Layout::nvfp4>, kNeedsCodes);
    t.i8[at(Layout::iq4_nl)] = {avx2::small_rows<Layout::iq4_nl>, avx2::wide_rows<Layout::iq4_nl>,
                                kNeedsNibbles, kNeedsWide};
    t.i8[at(Layout::iq4_xs)] = {avx2::small_rows<Layout::iq4_xs>, avx2::wide_rows<Layout::iq4_xs>,
                                kNeedsNibbles, kNeedsWide};
    set(t.i16, Layout::w4k, avx2::wide_rows<Layout::w4k>, kNeedsWide);
    set(t.i16, Layout::w5k, avx2::wide_rows<Layout::w5k>, kNeedsWide);
    set(t.i16, Layout::w6k, avx2::wide_rows<Layout::w6k>, kNeedsWide);
    set(t.i16, Layout::q4_0, avx2::wide_rows<Layout::q4_0>, kNeedsWide);
    set(t.i16, Layout::q4_1, avx2::wide_rows<Layout::q4_1>, kNeedsWide);
    set(t.i16, Layout::q5_0, avx2::wide_rows<Layout::q5_0>, kNeedsWide);
    set(t.i16, Layout::q5_1, avx2::wide_rows<Layout::q5_1>, kNeedsWide);
    set(t.i16, Layout::mxfp4, avx2::wide_rows<Layout::mxfp4>, kNeedsWide);
    set(t.i16, Layout::nvfp4, avx2::wide_rows<Layout::nvfp4>, kNeedsWide);
    set(t.i16, Layout::iq4_nl, avx2::wide_rows<Layout::iq4_nl>, kNeedsWide);
    set(t.i16, Layout::iq4_xs, avx2::wide_rows<Layout::iq4_xs>, kNeedsWide);
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
    fill_floats(&t, {avx512::decoded_rows<Layout::w8>, avx512::decoded_rows<Layout::w4k>,
                     avx512::decoded_rows<Layout::w5k>, avx512::decoded_rows<Layout::w6k>, avx512::f32_rows,
                     avx512::f16_rows, avx512::bf16_rows, avx512::decoded_rows<Layout::raw>});
    const auto at = [](Layout layout) { return static_cast<int>(layout); };
    t.i8[at(Layout::w8)] = {avx512::w8_few, avx512::w8_many, kNeedsCodes, kNeedsCodes};
    t.i16[at(Layout::w8)] = {avx512::w8_wide_few, avx512::w8_wide_many, kNeedsNibbles, kNeedsNibbles};
    t.i8[at(Layout::w4k)] = {avx512::w4k_few, avx512::w4k_many, kNeedsCodes, kNeedsCodes};
    t.i8[at(Layout::w5k)] = {avx512::w5k_few, avx512::w5k_many, kNeedsCodes, kNeedsCodes};
    t.i8[at(Layout::w6k)] = {avx512::w6k_few, avx512::w6k_many, kNeedsCodes, kNeedsCodes};
    const auto set = [&](Layout layout, Kernel codes, Kernel planes) {
      if (codes != nullptr) t.i8[at(layout)] = {codes, codes, kNeedsCodes, kNeedsCodes};
      t.i16[at(layout)] = {planes, planes, kNeedsNibbles, kNeedsNibbles};
    };
    set(Layout::w4k, nullptr, avx512::wide_rows<Layout::w4k>);
    set(Layout::w5k, nullptr, avx512::wide_rows<Layout::w5k>);
    set(Layout::w6k, nullptr, avx512::wide_rows<Layout::w6k>);
    set(Layout::q4_0, avx512::small_rows<Layout::q4_0>, avx512::wide_rows<Layout::q4_0>);
    set(Layout::q4_1, avx512::small_rows<Layout::q4_1>, avx512::wide_rows<Layout::q4_1>);
    set(Layout::q5_0, avx512::small_rows<Layout::q5_0>, avx512::wide_rows<Layout::q5_0>);
    set(Layout::q5_1, avx512::small_rows<Layout::q5_1>, avx512::wide_rows<Layout::q5_1>);
    set(Layout::iq4_nl, avx512::small_rows<Layout::iq4_nl>, avx512::wide_rows<Layout::iq4_nl>);
    set(Layout::iq4_xs, avx512::small_rows<Layout::iq4_xs>, avx512::wide_rows<Layout::iq4_xs>);
    set(Layout::mxfp4, avx512::small_rows<Layout::mxfp4>, avx512::wide_rows<Layout::mxfp4>);
    set(Layout::nvfp4, avx512::small_rows<Layout::nvfp4>, avx512::wide_rows<Layout::nvfp4>);
    t.quantize = avx512::quantize;
    t.silu_mul = avx512::silu_mul;
    return t;
  }();
  return table;
}
#elif defined(__aarch64__)
namespace {

bool has_dotprod() {
#if defined(__linux__)
  constexpr unsigned long kDotprod = 1ul << 20;  // HWCAP_ASIMDDP
  return (getauxval(AT_HWCAP) & kDotprod) != 0;
#else
  return false;
#endif
}

template <bool kDot>
ProductTable make_neon(const char* name) {
  ProductTable t;
  t.name = name;
  fill_floats(&t, {neon::decoded_rows<Layout::w8>, neon::decoded_rows<Layout::w4k>,
                   neon::decoded_rows<Layout::w5k>, neon::decoded_rows<Layout::w6k>, neon::f32_rows,
                   neon::f16_rows, neon::bf16_rows, neon::decoded_rows<Layout::raw>});
  const auto set = [](Kernels* list, Layout layout, Kernel kernel, uint8_t needs) {
    list[static_cast<int>(layout)] = {kernel, kernel, needs, needs};
  };
  set(t.i8, Layout::w8, neon::w8_rows<kDot>, kNeedsCodes);
  set(t.i16, Layout::w8, neon::w8_wide_rows<kDot>, kNeedsNibbles);
  set(t.i8, Layout::w4k, neon::w4k_rows<kDot>, kNeedsCodes);
  set(t.i8, Layout::w5k, neon::w5k_rows<kDot>, kNeedsCodes);
  set(t.i8, Layout::w6k, neon::w6k_rows<kDot>, kNeedsCodes);
  set(t.i16, Layout::w4k, neon::wide_rows<kDot, Layout::w4k>, kNeedsNibbles);
  set(t.i16, Layout::w5k, neon::wide_rows<kDot, Layout::w5k>, kNeedsNibbles);
  set(t.i16, Layout::w6k, neon::wide_rows<kDot, Layout::w6k>, kNeedsNibbles);
  set(t.i8, Layout::q4_0, neon::small_rows<kDot, Layout::q4_0>, kNeedsCodes);
  set(t.i16, Layout::q4_0, neon::wide_rows<kDot, Layout::q4_0>, kNeedsNibbles);
  set(t.i8, Layout::q4_1, neon::small_rows<kDot, Layout::q4_1>, kNeedsCodes);
  set(t.i16, Layout::q4_1, neon::wide_rows<kDot, Layout::q4_1>, kNeedsNibbles);
  set(t.i8, Layout::q5_0, neon::small_rows<kDot, Layout::q5_0>, kNeedsCodes);
  set(t.i16, Layout::q5_0, neon::wide_rows<kDot, Layout::q5_0>, kNeedsNibbles);
  set(t.i8, Layout::q5_1, neon::small_rows<kDot, Layout::q5_1>, kNeedsCodes);
  set(t.i16, Layout::q5_1, neon::wide_rows<kDot, Layout::q5_1>, kNeedsNibbles);
  set(t.i8, Layout::iq4_nl, neon::small_rows<kDot, Layout::iq4_nl>, kNeedsCodes);
  set(t.i16, Layout::iq4_nl, neon::wide_rows<kDot, Layout::iq4_nl>, kNeedsNibbles);
  set(t.i8, Layout::iq4_xs, neon::small_rows<kDot, Layout::iq4_xs>, kNeedsCodes);
  set(t.i16, Layout::iq4_xs, neon::wide_rows<kDot, Layout::iq4_xs>, kNeedsNibbles);
  set(t.i8, Layout::mxfp4, neon::small_rows<kDot, Layout::mxfp4>, kNeedsCodes);
  set(t.i16, Layout::mxfp4, neon::wide_rows<kDot, Layout::mxfp4>, kNeedsNibbles);
  set(t.i8, Layout::nvfp4, neon::small_rows<kDot, Layout::nvfp4>, kNeedsCodes);
  set(t.i16, Layout::nvfp4, neon::wide_rows<kDot, Layout::nvfp4>, kNeedsNibbles);
  t.quantize = neon::quantize;
  t.silu_mul = neon::silu_mul;
  return t;
}

}  // namespace

const ProductTable& neon_products() {
  static const ProductTable table = make_neon<false>("neon");
  return table;
}

const ProductTable& dotprod_products() {
  static const ProductTable table = make_neon<true>("dotprod");
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
#elif defined(__aarch64__)
  if (has_dotprod() && (name.empty() || name == "dotprod")) return &dotprod_products();
  if (name.empty() || name == "neon") return &neon_products();
#endif
  return name.empty() ? &scalar_products() : nullptr;
}

}  // namespace braid::cpu
