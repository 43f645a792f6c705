// Products of the CPU: tiles hold the file's bits, all instruction sets give the bytes of the plain
// loops, and a row's result does not depend on other rows or threads.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <vector>

#include "gguf/block_layouts.h"
#include "gguf/half.h"
#include "ops/cpu/gemm/linear.h"
#include "ops/cpu/gemm/products.h"
#include "ops/cpu/gemm/repack.h"
#include "ops/cpu/moe.h"
#include "ops/cpu/prefetch.h"
#include "ops/cpu/workspace.h"

namespace braid::cpu {
namespace {

const GgmlType kTypes[] = {GgmlType::F32,    GgmlType::F16,    GgmlType::BF16,    GgmlType::Q8_0,
                           GgmlType::Q4_0,   GgmlType::Q4_1,   GgmlType::Q5_0,    GgmlType::Q5_1,
                           GgmlType::Q2_K,   GgmlType::Q3_K,   GgmlType::Q4_K,    GgmlType::Q5_K,
                           GgmlType::Q6_K,   GgmlType::IQ4_NL, GgmlType::IQ4_XS,  GgmlType::IQ2_XXS,
                           GgmlType::IQ2_XS, GgmlType::IQ2_S,  GgmlType::IQ3_XXS, GgmlType::IQ3_S,
                           GgmlType::IQ1_S,  GgmlType::IQ1_M,  GgmlType::TQ1_0,   GgmlType::TQ2_0,
                           GgmlType::MXFP4,  GgmlType::NVFP4,  GgmlType::Q1_0,    GgmlType::Q2_0};
const GgmlType kCoded[] = {GgmlType::Q8_0,   GgmlType::Q4_K,   GgmlType::Q5_K,  GgmlType::Q6_K,
                           GgmlType::Q4_0,   GgmlType::Q4_1,   GgmlType::Q5_0,  GgmlType::Q5_1,
                           GgmlType::IQ4_NL, GgmlType::IQ4_XS, GgmlType::MXFP4, GgmlType::NVFP4};

void put_half(std::byte* at, float value) {
  const uint16_t bits = f32_to_f16(value);
  std::memcpy(at, &bits, 2);
}

std::vector<std::byte> random_rows(GgmlType type, int64_t n, int64_t k, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> factor(-0.02f, 0.02f);
  const size_t blocks = static_cast<size_t>(n * k) / block_elems(type), bytes = block_bytes(type);
  std::vector<std::byte> out(blocks * bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  for (size_t i = 0; i < blocks; i++) {
    std::byte* block = out.data() + i * bytes;
    switch (type) {
      case GgmlType::F32: {
        const float v = factor(random);
        std::memcpy(block, &v, 4);
        break;
      }
      case GgmlType::BF16: {
        const uint16_t v = f32_to_bf16(factor(random));
        std::memcpy(block, &v, 2);
        break;
      }
      case GgmlType::Q4_1:
      case GgmlType::Q5_1:
      case GgmlType::Q4_K:
      case GgmlType::Q5_K:
        put_half(block, factor(random));
        put_half(block + 2, factor(random));
        break;
      case GgmlType::Q2_K:
        put_half(block + 80, factor(random));
        put_half(block + 82, factor(random));
        break;
      case GgmlType::Q3_K:
        put_half(block + 108, factor(random));
        break;
      case GgmlType::Q6_K:
        put_half(block + 208, factor(random));
        break;
      case GgmlType::TQ1_0:
        put_half(block + 52, factor(random));
        break;
      case GgmlType::TQ2_0:
        put_half(block + 64, factor(random));
        break;
      case GgmlType::MXFP4:
        block[0] = static_cast<std::byte>(115 + random() % 8);
        break;
      case GgmlType::NVFP4:
      case GgmlType::IQ1_M:
        break;
      default:
        put_half(block, factor(random));
        break;
    }
  }
  return out;
}

void put_factors(GgmlType type, std::byte* block) {
  switch (type) {
    case GgmlType::MXFP4:
      block[0] = std::byte{118};
      break;
    case GgmlType::NVFP4:
      std::fill_n(block, 4, std::byte{0x28});
      break;
    case GgmlType::Q6_K:
      put_half(block + 208, 0.01f);
      break;
    case GgmlType::Q4_1:
    case GgmlType::Q5_1:
    case GgmlType::Q4_K:
    case GgmlType::Q5_K:
      put_half(block + 2, 0.01f);
      [[fallthrough]];
    default:
      put_half(block, 0.01f);
      break;
  }
}

struct Matrix {
  std::vector<std::byte> file;
  Weight weight;

  Matrix(GgmlType type, int64_t n, int64_t k, uint32_t seed, int64_t experts = 1)
      : file(random_rows(type, n * experts, k, seed)) {
    weight.name = "w";
    weight.type = type;
    weight.n = n;
    weight.k = k;
    weight.experts = experts;
    weight.file = file;
  }
};

std::vector<float> random_floats(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& v : out) v = normal(random);
  return out;
}

Tensor tensor_of(std::vector<float>& v, int64_t rows, int64_t cols) {
  return {v.data(), DType::f32, rows, cols, cols};
}

int64_t block_multiple(GgmlType type, int64_t k) {
  const int64_t unit = block_elems(type);
  return (k + unit - 1) / unit * unit;
}

TEST(Repack, EveryTypeKeepsItsValuesBitForBit) {
  for (const GgmlType type : kTypes) {
    for (const int64_t k : {block_multiple(type, 96), block_multiple(type, 768)}) {
      for (const int rows : {1, 16}) {
        const auto file = random_rows(type, rows, k, 7);
        const size_t row_bytes = static_cast<size_t>(k) / block_elems(type) * block_bytes(type);
        const Layout layout = layout_of(type);
        Mapping tiles = std::move(Mapping::make(group_bytes(layout, type, k)).value());
        repack_group(layout, type, file.data(), row_bytes, rows, k, tiles.data());
        std::vector<float> want(static_cast<size_t>(k)), panel(kBlockK * kGroupRows);
        for (int r = 0; r < rows; r++) {
          decode_row(type, file.data() + static_cast<size_t>(r) * row_bytes, want.data(), k);
          for (int64_t begin = 0; begin < k; begin += kBlockK) {
            decode_panel(layout, type, tiles.data(), k, begin / kBlockK, panel.data());
            for (int64_t i = begin; i < std::min(k, begin + kBlockK); i++) {
              const float got = panel[static_cast<size_t>((i - begin) * kGroupRows + r)];
              const float expected = want[static_cast<size_t>(i)];
              if (std::isnan(got) && std::isnan(expected)) continue;
              ASSERT_EQ(std::memcmp(&got, &expected, 4), 0)
                  << type_name(type) << " row " << r << " element " << i << ": " << got << " "
                  << expected;
            }
          }
        }
      }
    }
  }
}

TEST(Prefetch, DistanceFollowsTheLastLevelCache) {
  std::string folder = (std::filesystem::temp_directory_path() / "braid-prefetch-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::filesystem::path root = folder;
  EXPECT_EQ(last_level_cache_bytes(root.string()), 0u);
  const char* const sizes[] = {"32K", "32K", "512K", "32768K"};
  for (int i = 0; i < 4; i++) {
    const auto folder = root / "cpu0" / "cache" / ("index" + std::to_string(i));
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "size") << sizes[i] << "\n";
  }
  const size_t cache_bytes = last_level_cache_bytes(root.string());
  EXPECT_EQ(cache_bytes, size_t{32} << 20);
  EXPECT_EQ(prefetch_distance(size_t{28} << 20, cache_bytes), kAheadInCache);
  EXPECT_EQ(prefetch_distance(size_t{500} << 20, cache_bytes), kAheadInMemory);
  std::filesystem::remove_all(root);
}

struct Call {
  Mapping tiles, scratch;
  std::vector<ActHead> head;
  std::vector<ActCodes> codes;
  std::vector<ActNibbles> nibbles;
  std::vector<ActWide> wide;
  std::vector<float> out;

  void run(const ProductTable& table, const Kernels& kernels, bool few, bool wide_codes,
           const Matrix& m, const std::vector<float>& x, int64_t rows) {
    const int64_t k = m.weight.k, n = m.weight.n, groups = (n + 15) / 16;
    const GgmlType type = m.weight.type;
    const Layout layout = layout_of(type);
    const size_t bytes = group_bytes(layout, type, k);
    tiles = std::move(Mapping::make(bytes * static_cast<size_t>(groups) + 8192).value());
    scratch = std::move(Mapping::make(kScratchBytes).value());
    for (int64_t g = 0; g < groups; g++) {
      repack_group(layout, type,
                   m.file.data() + static_cast<size_t>(g) * 16 * m.weight.file_row_bytes(),
                   m.weight.file_row_bytes(), static_cast<int>(std::min<int64_t>(16, n - 16 * g)),
                   k, tiles.data() + static_cast<size_t>(g) * bytes);
    }
    const auto blocks = static_cast<size_t>((k + kBlockK - 1) / kBlockK * rows);
    head.resize(blocks);
    codes.resize(blocks);
    nibbles.resize(blocks);
    wide.resize(blocks);
    const uint8_t needs = few ? kernels.few_needs : kernels.many_needs;
    for (int64_t r = 0; r < rows; r++) {
      table.quantize({x.data() + r * k, k, r, rows, needs, wide_codes, head.data(), codes.data(),
                      nibbles.data(), wide.data()});
    }
    out.assign(static_cast<size_t>(rows * groups * 16), -1.0f);
    Job job;
    job.tiles = tiles.data();
    job.k = k;
    job.groups = groups;
    job.group_bytes = bytes;
    job.raw_type = static_cast<uint32_t>(type);
    job.act = {rows,
               head.data(),
               codes.data(),
               nibbles.data(),
               needs & kNeedsWide ? wide.data() : nullptr,
               x.data(),
               k};
    job.rows = rows;
    job.out = out.data();
    job.out_stride = groups * 16;
    job.scratch = scratch.data();
    (few ? kernels.few : kernels.many)(job);
  }
};

std::vector<const ProductTable*> tables() {
  std::vector<const ProductTable*> out;
  for (const char* name : {"avx2", "avx512", "neon", "dotprod"}) {
    if (const ProductTable* t = choose_products(name)) out.push_back(t);
  }
  return out;
}

void expect_same(const ProductTable& table, Activations activations, GgmlType type, int64_t n,
                 int64_t k, int64_t rows, const std::vector<float>& x, const Matrix& m) {
  const auto kernels = [&](const ProductTable& t) -> const Kernels& {
    const auto i = static_cast<size_t>(layout_of(type));
    return activations == Activations::i8    ? t.i8[i]
           : activations == Activations::i16 ? t.i16[i]
                                             : t.f32[i];
  };
  const bool wide = activations == Activations::i16;
  Call want, got;
  want.run(scalar_products(), kernels(scalar_products()), false, wide, m, x, rows);
  for (const bool few : {true, false}) {
    if (few && rows > kFewRows) continue;
    got.run(table, kernels(table), few, wide, m, x, rows);
    for (size_t i = 0; i < want.out.size(); i++) {
      ASSERT_EQ(std::memcmp(&want.out[i], &got.out[i], 4), 0)
          << table.name << " " << type_name(type) << " n " << n << " k " << k << " rows " << rows
          << " few " << few << " at " << i << ": " << want.out[i] << " " << got.out[i];
    }
  }
}

TEST(Kernels, EveryInstructionSetGivesTheBytesOfThePlainLoops) {
  for (const ProductTable* table : tables()) {
    for (const GgmlType type : kTypes) {
      if (type == GgmlType::IQ1_M) continue;  // random bits hold NaN and huge scales
      for (const Activations activations : {Activations::i8, Activations::i16, Activations::f32}) {
        for (const int64_t k :
             {block_multiple(type, 32), block_multiple(type, 608), int64_t{1024}}) {
          for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 9, 13, 31}) {
            const int64_t n = 16 + rows;
            const Matrix m(type, n, k, static_cast<uint32_t>(k + rows));
            expect_same(*table, activations, type, n, k, rows,
                        random_floats(static_cast<size_t>(rows * k), 3), m);
          }
        }
      }
    }
  }
}

TEST(Kernels, ExtremeCodesDoNotOverflow) {
  for (const ProductTable* table : tables()) {
    for (const GgmlType type : kCoded) {
      for (const int fill : {0x00, 0x7f, 0x80, 0xff}) {
        Matrix m(type, 32, 512, 1);
        const size_t bytes = block_bytes(type);
        for (size_t block = 0; block < m.file.size(); block += bytes) {
          std::fill_n(m.file.begin() + static_cast<int64_t>(block), bytes,
                      static_cast<std::byte>(fill));
          put_factors(type, m.file.data() + block);
        }
        for (const float value : {1.0f, -1.0f}) {
          for (const bool alternating : {false, true}) {
            std::vector<float> x(5 * 512, value);
            for (size_t i = 0; alternating && i < x.size(); i += 2) x[i] = -value;
            for (const int64_t rows : {1, 2, 4, 5}) {
              expect_same(*table, Activations::i8, type, 32, 512, rows, x, m);
              expect_same(*table, Activations::i16, type, 32, 512, rows, x, m);
            }
          }
        }
      }
    }
  }
}

TEST(Kernels, ZerosAndTinyRowsGiveZero) {
  for (const ProductTable* table : tables()) {
    for (const GgmlType type : kCoded) {
      std::vector<float> x(512, 0.0f);
      x[300] = 1e-35f;
      expect_same(*table, Activations::i8, type, 16, 512, 1, x, Matrix(type, 16, 512, 1));
      Call call;
      const auto i = static_cast<size_t>(layout_of(type));
      call.run(*table, table->i8[i], true, false, Matrix(type, 16, 512, 1), x, 1);
      for (const float v : call.out) EXPECT_EQ(v, 0.0f);
    }
  }
}

TEST(Kernels, ARowWithWhatIsNoNumberGivesNone) {
  std::vector<const ProductTable*> all = tables();
  all.push_back(&scalar_products());
  constexpr int64_t kK = 512, kN = 16;
  for (const ProductTable* table : all) {
    for (const GgmlType type : kCoded) {
      const Matrix m(type, kN, kK, 1);
      const auto i = static_cast<size_t>(layout_of(type));
      for (const bool wide : {false, true}) {
        const Kernels& kernels = wide ? table->i16[i] : table->i8[i];
        for (const float value : {NAN, -NAN, INFINITY, -INFINITY}) {
          for (const int64_t at : {0, 7, 8, 15, 31, 299, 511}) {
            for (const int64_t rows : {1, 2, 5}) {
              std::vector<float> x = random_floats(static_cast<size_t>(rows * kK), 3);
              const int64_t bad = rows / 2;
              x[static_cast<size_t>(bad * kK + at)] = value;
              Call call;
              call.run(*table, kernels, rows <= kFewRows, wide, m, x, rows);
              for (int64_t r = 0; r < rows; r++)
                for (int64_t n = 0; n < kN; n++)
                  ASSERT_EQ(std::isfinite(call.out[static_cast<size_t>(r * kN + n)]), r != bad)
                      << table->name << " " << type_name(type) << " wide " << wide << " value "
                      << value << " at " << at << " rows " << rows << " row " << r;
            }
          }
        }
      }
    }
  }
}

TEST(Kernels, QuantizedRowsAreNearTheExactProduct) {
  struct Limit {
    Activations activations;
    double relative_rms;
  };
  for (const Limit limit : {Limit{Activations::i8, 0.015}, Limit{Activations::i16, 1e-4},
                            Limit{Activations::f32, 2e-6}}) {
    for (const GgmlType type : kTypes) {
      if (type == GgmlType::IQ1_M || type == GgmlType::NVFP4 || type == GgmlType::F16) continue;
      const int64_t n = 48, k = 1024;
      const Matrix m(type, n, k, 11);
      const std::vector<float> x = random_floats(static_cast<size_t>(k), 12);
      const ProductTable& table = *choose_products(nullptr);
      const auto i = static_cast<size_t>(layout_of(type));
      const Kernels& kernels = limit.activations == Activations::i8    ? table.i8[i]
                               : limit.activations == Activations::i16 ? table.i16[i]
                                                                       : table.f32[i];
      Call call;
      call.run(table, kernels, true, limit.activations == Activations::i16, m, x, 1);
      std::vector<float> row(static_cast<size_t>(k));
      double error = 0, total = 0;
      for (int64_t r = 0; r < n; r++) {
        decode_row(type, m.file.data() + static_cast<size_t>(r) * m.weight.file_row_bytes(),
                   row.data(), k);
        double exact = 0, norm = 0;
        for (size_t j = 0; j < row.size(); j++) {
          exact += double{row[j]} * double{x[j]};
          norm += double{row[j]} * double{row[j]};
        }
        error += std::pow(exact - call.out[static_cast<size_t>(r)], 2);
        total += norm;
      }
      EXPECT_LT(std::sqrt(error / total), limit.relative_rms) << type_name(type);
    }
  }
}

TEST(SiluMul, IsWithinTwoMillionths) {
  const std::vector<float> up = random_floats(4096, 5);
  std::vector<float> gate(4096), y(4096), plain(4096);
  for (size_t i = 0; i < gate.size(); i++) gate[i] = (static_cast<float>(i) - 2048.0f) / 16.0f;
  scalar_products().silu_mul(plain.data(), gate.data(), up.data(), 4096);
  for (size_t i = 0; i < gate.size(); i++) {
    const double want = gate[i] / (1.0 + std::exp(-double{gate[i]})) * up[i];
    EXPECT_NEAR(plain[i], want, 1e-6 * std::fabs(want) + 1e-30) << gate[i];
  }
  for (const ProductTable* table : tables()) {
    table->silu_mul(y.data(), gate.data(), up.data(), 4096);
    EXPECT_EQ(std::memcmp(y.data(), plain.data(), y.size() * 4), 0) << table->name;
  }
}

std::unique_ptr<Products> loaded(ThreadPool& pool, Activations activations,
                                 std::vector<Weight*> weights, Device::WorkspaceNeeds needs) {
  auto products = std::move(Products::make(pool, activations).value());
  EXPECT_TRUE(products->load_weights(weights, {}).ok());
  EXPECT_TRUE(products->reserve(needs).ok());
  return products;
}

TEST(Linear, RowsDoNotDependOnTheBatchOrTheThreads) {
  const int64_t k = 768, rows = 300;
  Matrix q8(GgmlType::Q8_0, 100, k, 1), q4(GgmlType::Q4_K, 64, k, 2), q5(GgmlType::Q5_K, 7, k, 3),
      q6(GgmlType::Q6_K, 33, k, 4), half(GgmlType::BF16, 40, k, 5), gate(GgmlType::Q4_K, 50, k, 6),
      up(GgmlType::Q6_K, 50, k, 7);
  std::vector<float> x = random_floats(static_cast<size_t>(rows * k), 8);
  for (const Activations activations : {Activations::i8, Activations::i16, Activations::f32}) {
    std::vector<std::vector<float>> first;
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      Device::WorkspaceNeeds needs;
      needs.max_tokens = rows;
      needs.max_width = k;
      const auto products = loaded(
          pool, activations,
          {&q8.weight, &q4.weight, &q5.weight, &q6.weight, &half.weight, &gate.weight, &up.weight},
          needs);
      for (const int64_t batch : {1, 3, 16, 100, 300}) {
        std::vector<std::vector<float>> y;
        std::vector<LinearPart> all;
        for (Matrix* m : {&q8, &q4, &q5, &q6, &half, &gate}) {
          y.emplace_back(static_cast<size_t>(rows * m->weight.n), 0.5f);
          all.push_back({&m->weight, nullptr, {}, m == &half ? Tail::add : Tail::store});
        }
        all.back().up = &up.weight;
        all.back().tail = Tail::silu_mul;
        for (int64_t row = 0; row < rows; row += batch) {
          const int64_t count = std::min(batch, rows - row);
          for (size_t i = 0; i < all.size(); i++) {
            const int64_t n = all[i].w->n;
            all[i].y = {y[i].data() + row * n, DType::f32, count, n, n};
          }
          products->linear(all, {x.data() + row * k, DType::f32, count, k, k});
        }
        if (first.empty()) first = y;
        for (size_t i = 0; i < y.size(); i++) {
          ASSERT_EQ(std::memcmp(first[i].data(), y[i].data(), y[i].size() * 4), 0)
              << "part " << i << " batch " << batch << " threads " << threads;
        }
      }
    }
  }
}

TEST(Linear, TailsAndScales) {
  ThreadPool pool(2);
  Matrix gate(GgmlType::F32, 20, 64, 1), up(GgmlType::F32, 20, 64, 2);
  const float gate_scale[1] = {3.0f}, up_scale[1] = {-0.5f};
  gate.weight.scales = gate_scale;
  up.weight.scales = up_scale;
  Device::WorkspaceNeeds needs;
  needs.max_tokens = 8;
  needs.max_width = 64;
  const auto products = loaded(pool, Activations::i8, {&gate.weight, &up.weight}, needs);
  std::vector<float> x = random_floats(8 * 64, 3), y(8 * 20, 10.0f), h(8 * 20);
  const LinearPart parts[] = {{&gate.weight, nullptr, tensor_of(y, 8, 20), Tail::add},
                              {&gate.weight, &up.weight, tensor_of(h, 8, 20), Tail::silu_mul}};
  products->linear(parts, tensor_of(x, 8, 64));
  for (size_t t = 0; t < 8; t++) {
    for (size_t r = 0; r < 20; r++) {
      double g = 0, u = 0;
      for (size_t i = 0; i < 64; i++) {
        float wg, wu;
        std::memcpy(&wg, gate.file.data() + (r * 64 + i) * 4, 4);
        std::memcpy(&wu, up.file.data() + (r * 64 + i) * 4, 4);
        g += 3.0 * wg * x[t * 64 + i];
        u += -0.5 * wu * x[t * 64 + i];
      }
      EXPECT_NEAR(y[t * 20 + r], 10.0 + g, 1e-5);
      EXPECT_NEAR(h[t * 20 + r], g / (1 + std::exp(-g)) * u, 1e-6);
    }
  }
}

TEST(Embed, RowsAreThoseOfTheFile) {
  ThreadPool pool(2);
  Matrix table(GgmlType::Q6_K, 10, 512, 1);
  table.weight.is_product = false;
  table.weight.is_table = true;
  const auto products = loaded(pool, Activations::i8, {&table.weight}, {});
  EXPECT_EQ(table.weight.device_data, nullptr);
  EXPECT_EQ(products->weight_bytes(table.weight), 0u);
  const int32_t tokens[] = {9, 0, 3};
  Batch batch;
  batch.tokens = 3;
  batch.token = tokens;
  std::vector<float> y(3 * 512), want(512);
  products->embed(tensor_of(y, 3, 512), table.weight, batch);
  for (size_t t = 0; t < 3; t++) {
    decode_row(GgmlType::Q6_K, table.file.data() + static_cast<size_t>(tokens[t]) * 420,
               want.data(), 512);
    EXPECT_EQ(std::memcmp(want.data(), y.data() + t * 512, 512 * 4), 0);
  }
}

struct Experts {
  static constexpr int64_t kModel = 256, kWidth = 64, kShared = 96, kCount = 6, kUsed = 3;
  Matrix gate{GgmlType::Q8_0, kWidth, kModel, 1, kCount},
      up{GgmlType::Q8_0, kWidth, kModel, 2, kCount},
      down{GgmlType::Q8_0, kModel, kWidth, 3, kCount},
      shared_gate{GgmlType::Q8_0, kShared, kModel, 4},
      shared_up{GgmlType::Q8_0, kShared, kModel, 5},
      shared_down{GgmlType::Q8_0, kModel, kShared, 6};
  std::vector<float> shared_scale = random_floats(kModel, 7);

  std::vector<float> run(Activations activations, int threads, int64_t rows, int64_t batch) {
    ThreadPool pool(threads);
    Device::WorkspaceNeeds needs;
    needs.max_tokens = static_cast<int32_t>(rows);
    needs.max_width = needs.model_width = kModel;
    needs.experts = kCount;
    needs.experts_used = kUsed;
    needs.expert_width = kShared;
    const auto products = loaded(pool, activations,
                                 {&gate.weight, &up.weight, &down.weight, &shared_gate.weight,
                                  &shared_up.weight, &shared_down.weight},
                                 needs);
    std::vector<float> x = random_floats(static_cast<size_t>(rows * kModel), 8);
    std::vector<float> y(static_cast<size_t>(rows * kModel), 1.0f);
    std::vector<float> logits = random_floats(static_cast<size_t>(rows * kCount), 9);
    for (int64_t row = 0; row < rows; row += batch) {
      const int64_t count = std::min(batch, rows - row);
      std::vector<int32_t> ids(static_cast<size_t>(count * kUsed));
      std::vector<float> weights(ids.size());
      const Tensor id_tensor{ids.data(), DType::i32, count, kUsed, kUsed};
      const Tensor weight_tensor = tensor_of(weights, count, kUsed);
      std::vector<std::vector<float>> order(static_cast<size_t>(pool.size()),
                                            std::vector<float>(kCount));
      std::vector<float*> order_of;
      for (auto& worker : order) order_of.push_back(worker.data());
      moe_route(pool, order_of, id_tensor, weight_tensor,
                {logits.data() + row * kCount, DType::f32, count, kCount, kCount}, {kCount, kUsed});
      products->moe_ffn({y.data() + row * kModel, DType::f32, count, kModel, kModel},
                        {x.data() + row * kModel, DType::f32, count, kModel, kModel}, id_tensor,
                        weight_tensor,
                        {&gate.weight, &up.weight, &down.weight, &shared_gate.weight,
                         &shared_up.weight, &shared_down.weight, shared_scale.data()});
    }
    return y;
  }

  static std::vector<double> multiply(const Matrix& m, int64_t expert,
                                      const std::vector<double>& x) {
    const Weight& w = m.weight;
    std::vector<float> row(static_cast<size_t>(w.k));
    std::vector<double> y(static_cast<size_t>(w.n));
    for (int64_t r = 0; r < w.n; r++) {
      decode_row(w.type, w.file_rows(expert, r, 1).data, row.data(), w.k);
      for (size_t i = 0; i < row.size(); i++) y[static_cast<size_t>(r)] += double{row[i]} * x[i];
    }
    return y;
  }

  static std::vector<double> ffn(const Matrix& g, const Matrix& u, const Matrix& d, int64_t e,
                                 const std::vector<double>& x) {
    std::vector<double> a = multiply(g, e, x), b = multiply(u, e, x);
    for (size_t i = 0; i < a.size(); i++) a[i] = a[i] / (1 + std::exp(-a[i])) * b[i];
    return multiply(d, e, a);
  }
};

TEST(Experts, AreSummedLikeTheDefinition) {
  Experts experts;
  const int64_t rows = 5;
  const std::vector<float> got = experts.run(Activations::f32, 2, rows, rows);
  const std::vector<float> x = random_floats(rows * Experts::kModel, 8);
  const std::vector<float> logits = random_floats(rows * Experts::kCount, 9);
  for (size_t t = 0; t < rows; t++) {
    const float* l = logits.data() + t * Experts::kCount;
    std::vector<int64_t> order = {0, 1, 2, 3, 4, 5};
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return l[a] > l[b]; });
    order.resize(Experts::kUsed);
    double sum = 0;
    for (const int64_t e : order) sum += std::exp(double{l[e]});
    const std::vector<double> row(x.begin() + static_cast<int64_t>(t) * Experts::kModel,
                                  x.begin() + static_cast<int64_t>(t + 1) * Experts::kModel);
    std::vector<double> want(Experts::kModel, 1.0);
    for (const int64_t e : order) {
      const auto y = Experts::ffn(experts.gate, experts.up, experts.down, e, row);
      for (size_t i = 0; i < want.size(); i++) want[i] += std::exp(double{l[e]}) / sum * y[i];
    }
    double s = 0;
    for (size_t i = 0; i < row.size(); i++) s += row[i] * experts.shared_scale[i];
    const auto y =
        Experts::ffn(experts.shared_gate, experts.shared_up, experts.shared_down, 0, row);
    for (size_t i = 0; i < want.size(); i++) {
      want[i] += y[i] / (1 + std::exp(-s));
      ASSERT_NEAR(got[t * Experts::kModel + i], want[i], 2e-4 * (1 + std::fabs(want[i])))
          << t << " " << i;
    }
  }
}

TEST(Experts, RowsDoNotDependOnTheBatchOrTheThreads) {
  Experts experts;
  for (const Activations activations : {Activations::i8, Activations::f32}) {
    const std::vector<float> want = experts.run(activations, 1, 40, 1);
    for (const int threads : {1, 2}) {
      for (const int64_t batch : {1, 3, 40}) {
        const std::vector<float> got = experts.run(activations, threads, 40, batch);
        ASSERT_EQ(std::memcmp(want.data(), got.data(), want.size() * 4), 0)
            << batch << " " << threads;
      }
    }
  }
}

}  // namespace
}  // namespace braid::cpu
