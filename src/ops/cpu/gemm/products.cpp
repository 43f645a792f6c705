// products.cpp -- the choice of the kernel table for this processor.

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "ops/cpu/gemm/products.h"

#include <string_view>

#if defined(__x86_64__)
#include "ops/cpu/gemm/kernels_avx2.h"
#include "ops/cpu/gemm/kernels_avx512.h"
#elif defined(__aarch64__)
#include "ops/cpu/gemm/kernels_neon.h"
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#endif

namespace braid::cpu {
namespace {

void set_all(ProductTable* t, Layout layout, Kernel kernel) {
  const auto i = static_cast<size_t>(layout);
  t->f32[i] = t->i16[i] = t->i8[i] = {kernel, kernel, kNeedsFloat, kNeedsFloat};
}

#define BRAID_FLOAT_KERNELS(space, t)                           \
  do {                                                          \
    set_all(&t, Layout::w8, space::decoded_rows<Layout::w8>);   \
    set_all(&t, Layout::w4k, space::decoded_rows<Layout::w4k>); \
    set_all(&t, Layout::w5k, space::decoded_rows<Layout::w5k>); \
    set_all(&t, Layout::w6k, space::decoded_rows<Layout::w6k>); \
    set_all(&t, Layout::f32, space::f32_rows);                  \
    set_all(&t, Layout::f16, space::f16_rows);                  \
    set_all(&t, Layout::bf16, space::bf16_rows);                \
    set_all(&t, Layout::raw, space::decoded_rows<Layout::raw>); \
  } while (false)

}  // namespace

#if defined(__x86_64__)
const ProductTable& avx2_products() {
  static const ProductTable table = [] {
    ProductTable t;
    t.name = "avx2";
    BRAID_FLOAT_KERNELS(avx2, t);
    const auto at = [](Layout layout) { return static_cast<int>(layout); };
    t.i8[at(Layout::w8)] = {avx2::w8_few, avx2::w8_many, kNeedsNibbles, kNeedsWide};
    t.i16[at(Layout::w8)] = {avx2::w8_many, avx2::w8_many, kNeedsWide, kNeedsWide};
    t.i8[at(Layout::w4k)] = {avx2::w4k_few, avx2::w4k_many, kNeedsCodes, kNeedsCodes};
    t.i8[at(Layout::w5k)] = {avx2::w5k_few, avx2::w5k_many, kNeedsCodes, kNeedsCodes};
    t.i8[at(Layout::w6k)] = {avx2::w6k_few, avx2::w6k_many, kNeedsCodes, kNeedsCodes};
    const auto set = [&](Layout layout, Kernel codes, Kernel words) {
      if (codes != nullptr) t.i8[at(layout)] = {codes, codes, kNeedsCodes, kNeedsCodes};
      if (is_iq4(layout)) t.i8[at(layout)] = {codes, words, kNeedsNibbles, kNeedsWide};
      t.i16[at(layout)] = {words, words, kNeedsWide, kNeedsWide};
    };
    set(Layout::w4k, nullptr, avx2::wide_rows<Layout::w4k>);
    set(Layout::w5k, nullptr, avx2::wide_rows<Layout::w5k>);
    set(Layout::w6k, nullptr, avx2::wide_rows<Layout::w6k>);
#define BRAID_SMALL_AVX2(l)                              \
  set_all(&t, Layout::l, avx2::decoded_rows<Layout::l>); \
  set(Layout::l, avx2::small_rows<Layout::l>, avx2::wide_rows<Layout::l>);
    BRAID_SMALL_LAYOUTS(BRAID_SMALL_AVX2)
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
    BRAID_FLOAT_KERNELS(avx512, t);
    const auto at = [](Layout layout) { return static_cast<int>(layout); };
    t.i8[at(Layout::w8)] = {avx512::w8_few, avx512::w8_many, kNeedsCodes, kNeedsCodes};
    t.i16[at(Layout::w8)] = {avx512::w8_wide_few, avx512::w8_wide_many, kNeedsNibbles,
                             kNeedsNibbles};
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
#define BRAID_SMALL_AVX512(l)                              \
  set_all(&t, Layout::l, avx512::decoded_rows<Layout::l>); \
  set(Layout::l, avx512::small_rows<Layout::l>, avx512::wide_rows<Layout::l>);
    BRAID_SMALL_LAYOUTS(BRAID_SMALL_AVX512)
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
  BRAID_FLOAT_KERNELS(neon, t);
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
#define BRAID_SMALL_NEON(l)                                             \
  set_all(&t, Layout::l, neon::decoded_rows<Layout::l>);                \
  set(t.i8, Layout::l, neon::small_rows<kDot, Layout::l>, kNeedsCodes); \
  set(t.i16, Layout::l, neon::wide_rows<kDot, Layout::l>, kNeedsNibbles);
  BRAID_SMALL_LAYOUTS(BRAID_SMALL_NEON)
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

#if defined(__x86_64__)
// __builtin_cpu_supports("f16c") is missing in clang 14.
static bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

const ProductTable* choose_products(const char* forced) {
  const std::string_view name = forced != nullptr ? forced : "";
  if (name == "scalar") return &scalar_products();
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() &&
                    __builtin_cpu_supports("bmi2");
  // libgcc and compiler-rt report a set only if the system saves its registers (XGETBV).
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
  if (avx512 && (name.empty() || name == "avx512")) return &avx512_products();
  if (avx2 && (name.empty() || name == "avx2")) return &avx2_products();
#elif defined(__aarch64__)
  if (has_dotprod() && (name.empty() || name == "dotprod")) return &dotprod_products();
  if (name.empty() || name == "neon") return &neon_products();
#endif
  return name.empty() ? &scalar_products() : nullptr;
}

}  // namespace braid::cpu
