// unit_attention_test.cpp -- scores and sums against the decoded unit in double.
#include "ops/cpu/unit_attention.h"

#include <cmath>

#include "ops/cpu/unit_sets_test.h"
#include "ops/kv/formats.h"
#include "ops/kv/kv_rows_test.h"

namespace braid {
namespace {

using kv_test::Noise;

struct Case {
  const KvCodec* codec;
  int32_t head_dim;
  int32_t heads;
  std::vector<float> q, weights;  // [heads][head_dim], [heads][32]
  std::vector<uint8_t> k, v;
  std::vector<float> k_rows, v_rows;  // decoded
};

template <typename Visit>
void for_each_case(Visit visit) {
  cpu::for_each_set([&] {
    for (const KvCodec* codec : {&kv::kQ8_0, &kv::kQ4_0, &kv::kC4}) {
      for (const int32_t head_dim : {64, 128, 192, 256}) {
        for (int32_t heads = 1; heads <= 9; ++heads) {
          SCOPED_TRACE(testing::Message() << codec->name << " " << head_dim << " x " << heads);
          Noise noise(static_cast<uint64_t>(head_dim + heads));
          Case c{codec, head_dim, heads, {}, {}, {}, {}, {}, {}};
          for (int32_t i = 0; i < heads * head_dim; ++i)
            c.q.push_back(static_cast<float>(noise.normal()));
          for (int32_t i = 0; i < heads * kBlockTokens; ++i)
            c.weights.push_back(static_cast<float>(noise.uniform()));
          const double size = heads % 3 == 0 ? 0x1p10 : heads % 3 == 1 ? 1 : 0x1p-12;
          const auto rows = kv_test::unit_rows(head_dim, [&](int32_t t, int32_t d) {
            return size * (noise.normal() * (d % 16 == 3 ? 4 : 1) * (t == 6 ? 5 : 1) +
                           (d % 8 == 1 ? 3 : 0));
          });
          c.k = kv_test::encoded(*codec, head_dim, KvSide::k, rows);
          c.v = kv_test::encoded(*codec, head_dim, KvSide::v, rows);
          c.k_rows = kv_test::decoded(*codec, head_dim, KvSide::k, c.k);
          c.v_rows = kv_test::decoded(*codec, head_dim, KvSide::v, c.v);
          visit(c);
        }
      }
    }
  });
}

// f32 error of sums of 256 or 32 products; the codes of c4 are all positive.
TEST(UnitAttention, ScoresAreThoseOfTheDecodedRows) {
  for_each_case([](const Case& c) {
    std::vector<float> scores(static_cast<size_t>(c.heads) * kBlockTokens);
    cpu::score_unit(*c.codec, c.head_dim, c.heads, c.q.data(), c.k.data(), nullptr, scores.data());
    const auto width = static_cast<size_t>(c.head_dim);
    for (size_t h = 0; h < static_cast<size_t>(c.heads); ++h) {
      for (size_t t = 0; t < kBlockTokens; ++t) {
        double sum = 0;
        double sizes = 0;
        for (size_t d = 0; d < width; ++d) {
          const double product = double{c.q[h * width + d]} * c.k_rows[t * width + d];
          sum += product;
          sizes += std::fabs(product);
        }
        ASSERT_NEAR(scores[h * kBlockTokens + t], sum, 3e-6 * sizes)
            << "head " << h << " cell " << t;
      }
    }
  });
}

TEST(UnitAttention, SumsAreThoseOfTheDecodedRows) {
  for_each_case([](const Case& c) {
    const int64_t stride = c.head_dim + 16;
    std::vector<float> acc(static_cast<size_t>(c.heads * stride), 0.5f);
    cpu::add_unit(*c.codec, c.head_dim, c.heads, c.weights.data(), c.v.data(), nullptr, acc.data(),
                  stride);
    const auto width = static_cast<size_t>(c.head_dim);
    for (size_t h = 0; h < static_cast<size_t>(c.heads); ++h) {
      for (size_t d = 0; d < static_cast<size_t>(stride); ++d) {
        double sum = 0.5;
        double sizes = 0.5;
        for (size_t t = 0; t < kBlockTokens && d < width; ++t) {
          const double product = double{c.weights[h * kBlockTokens + t]} * c.v_rows[t * width + d];
          sum += product;
          sizes += std::fabs(product);
        }
        ASSERT_NEAR(acc[h * static_cast<size_t>(stride) + d], sum, 2e-6 * sizes)
            << "head " << h << " channel " << d;
      }
    }
  });
}

TEST(UnitAttention, HeadsDoNotDependOnEachOther) {
  for_each_case([](const Case& c) {
    const auto width = static_cast<size_t>(c.head_dim);
    std::vector<float> scores(static_cast<size_t>(c.heads) * kBlockTokens);
    std::vector<float> acc(static_cast<size_t>(c.heads) * width);
    cpu::score_unit(*c.codec, c.head_dim, c.heads, c.q.data(), c.k.data(), nullptr, scores.data());
    cpu::add_unit(*c.codec, c.head_dim, c.heads, c.weights.data(), c.v.data(), nullptr, acc.data(),
                  c.head_dim);
    for (size_t h = 0; h < static_cast<size_t>(c.heads); ++h) {
      std::vector<float> own(kBlockTokens);
      std::vector<float> sum(width);
      cpu::score_unit(*c.codec, c.head_dim, 1, c.q.data() + h * width, c.k.data(), nullptr,
                      own.data());
      cpu::add_unit(*c.codec, c.head_dim, 1, c.weights.data() + h * kBlockTokens, c.v.data(),
                    nullptr, sum.data(), c.head_dim);
      ASSERT_TRUE(std::equal(own.begin(), own.end(),
                             scores.begin() + static_cast<std::ptrdiff_t>(h * kBlockTokens)));
      ASSERT_TRUE(
          std::equal(sum.begin(), sum.end(), acc.begin() + static_cast<std::ptrdiff_t>(h * width)));
    }
  });
}

}  // namespace
}  // namespace braid
