// kv_error_test.cpp -- errors of decoded rows, for known kinds of rows.
#include <array>
#include <cstdio>
#include <functional>

#include "ops/kv/channel_planes.h"
#include "ops/kv/formats.h"
#include "ops/kv/kv_rows_test.h"

namespace braid {
namespace {

using kv_test::Error;
using kv_test::Noise;
using kv_test::round_trip;
using kv_test::unit_rows;

constexpr int32_t kWidth = 128;
constexpr int kUnits = 200;  // 6400 rows: repeated runs differ by 0.2 %

double error_of(const KvCodec& codec, const std::function<double(Noise&, int32_t, int32_t)>& value,
                KvSide side = KvSide::k, int units = kUnits) {
  Noise noise(2024);
  Error error;
  for (int u = 0; u < units; ++u) {
    const auto rows = unit_rows(kWidth, [&](int32_t t, int32_t d) { return value(noise, t, d); });
    const auto was = kv_test::floats_of(rows);
    const auto is = round_trip(codec, kWidth, side, rows);
    for (size_t i = 0; i < was.size(); ++i) error.add(is[i], was[i]);
  }
  return error.relative();
}

double normal(Noise& noise, int32_t, int32_t) { return noise.normal(); }
double outliers(Noise& noise, int32_t, int32_t d) {
  return noise.normal() * (d == 9 || d == 44 || d == 83 || d == 110 ? 8 : 1);
}
double bias(Noise& noise, int32_t, int32_t d) { return noise.normal() + (d == 40 ? 20 : 0); }
double laplace(Noise& noise, int32_t, int32_t) { return noise.laplace(); }

TEST(KvError, RowFormatsAreWithinTheirTable) {
  struct Row {
    const KvCodec* codec;
    // normal, four outlier channels, one channel far from zero, Laplace
    std::array<double, 4> percent;
  };
  const Row table[] = {
      {&kv::kBf16, {0.166, 0.166, 0.178, 0.166}}, {&kv::kQ8_0, {0.535, 1.05, 1.13, 0.67}},
      {&kv::kQ5_1, {3.79, 5.14, 5.16, 4.44}},     {&kv::kQ5_0, {4.27, 8.31, 8.94, 5.35}},
      {&kv::kQ4_1, {7.82, 10.6, 10.7, 9.18}},     {&kv::kQ4_0, {8.59, 16.5, 17.4, 10.7}},
      {&kv::kTbq4_0, {9.58, 9.21, 8.94, 9.52}},   {&kv::kTq3_0, {18.4, 17.5, 17.1, 18.3}},
  };
  double (*const kinds[4])(Noise&, int32_t, int32_t) = {normal, outliers, bias, laplace};
  for (const Row& row : table) {
    std::printf("[report] %-7s", std::string(row.codec->name).c_str());
    for (size_t kind = 0; kind < 4; ++kind) {
      const double percent = 100 * error_of(*row.codec, kinds[kind]);
      std::printf("  %7.3f (%.3f)", percent, row.percent[kind]);
      const double tolerance = row.codec == &kv::kBf16 ? 0.025 : 0.015;
      EXPECT_NEAR(percent, row.percent[kind], tolerance * row.percent[kind])
          << row.codec->name << " kind " << kind;
    }
    std::printf("\n");
  }
  EXPECT_NEAR(100 * error_of(kv::kTbq4_0, normal), 9.58, 0.08);
  EXPECT_NEAR(100 * error_of(kv::kTq3_0, normal), 18.40, 0.15);
  EXPECT_NEAR(100 * error_of(kv::kQ4_0, normal), 8.59, 0.07);
}

TEST(KvError, CodebookFormatsKeepLengths) {
  Noise noise(5);
  for (const KvCodec* codec : {&kv::kTbq4_0, &kv::kTq3_0}) {
    const auto rows =
        unit_rows(kWidth, [&](int32_t t, int32_t) { return noise.normal() * (1 + t); });
    const auto was = kv_test::floats_of(rows);
    const auto is = round_trip(*codec, kWidth, KvSide::k, rows);
    for (size_t t = 0; t < kBlockTokens; ++t) {
      double before = 0;
      double after = 0;
      for (size_t d = t * kWidth; d < (t + 1) * kWidth; ++d) {
        before += double{was[d]} * was[d];
        after += double{is[d]} * is[d];
      }
      EXPECT_NEAR(std::sqrt(after / before), 1.0, 6e-4) << codec->name << " row " << t;
    }
  }
}

// Like model keys: channels with different means and widths, rows of one length.
double key_like(Noise& noise, int32_t, int32_t d) {
  const double mean = d % 3 == 0 ? 1.5 * ((d * 7 % 11) - 5) / 5 : 0;
  const double width = 0.3 + (d * 13 % 17) / 10.0;
  return mean + width * noise.normal();
}

TEST(KvError, ChannelScalesBeatRowScalesOnKeys) {
  const double c5 = error_of(kv::kC5, key_like, KvSide::k, 40);
  const double c4 = error_of(kv::kC4, key_like, KvSide::k, 40);
  const double q5_0 = error_of(kv::kQ5_0, key_like, KvSide::k, 40);
  const double q4_0 = error_of(kv::kQ4_0, key_like, KvSide::k, 40);
  const double tbq4_0 = error_of(kv::kTbq4_0, key_like, KvSide::k, 40);
  std::printf("[report] c5 %.4f c4 %.4f; q5_0 %.4f q4_0 %.4f tbq4_0 %.4f\n", c5, c4, q5_0, q4_0,
              tbq4_0);
  EXPECT_LT(c5, 0.85 * q5_0);
  EXPECT_LT(c4, 0.85 * q4_0);
  EXPECT_LT(c4, 0.85 * tbq4_0);
  EXPECT_NEAR(c5 / c4, 0.5, 0.06);
}

// One row is five times, one a tenth as long as the rest; row factors keep their relative errors.
TEST(KvError, LongAndShortRowsOfVDoNotHurtEachOther) {
  const auto lengths = [](int32_t t) { return t == 11 ? 5.0 : t == 23 ? 0.1 : 1.0; };
  const auto worst = [&](const KvCodec& codec, KvSide side) {
    Noise noise(9);
    std::array<Error, kBlockTokens> rows_off;
    for (int u = 0; u < 20; ++u) {
      const auto rows =
          unit_rows(256, [&](int32_t t, int32_t) { return lengths(t) * noise.normal(); });
      const auto was = kv_test::floats_of(rows);
      const auto is = round_trip(codec, 256, side, rows);
      for (size_t i = 0; i < was.size(); ++i) rows_off[i / 256].add(is[i], was[i]);
    }
    double most = 0;
    for (const Error& e : rows_off) most = std::max(most, e.relative());
    return most;
  };
  EXPECT_LT(worst(kv::kC4, KvSide::v), 0.085);
  EXPECT_LT(worst(kv::kC5, KvSide::v), 0.043);
  EXPECT_GT(worst(kv::kC4, KvSide::k), 0.5)
      << "without factors the short row is lost: is the case one?";
}

TEST(KvError, ScalesLieOnTheirGrid) {
  for (const int e0 : {-14, -8, -1}) {
    for (int byte = 0; byte < 256; ++byte) {
      const float s = kv::grid_scale(static_cast<uint8_t>(byte), e0);
      EXPECT_EQ(s, std::ldexp(1.0f + static_cast<float>(byte & 15) / 16, e0 + (byte >> 4)));
      EXPECT_EQ(kv::grid_byte(s, e0), byte);
      // Ties go to the next scale.
      const float half =
          std::ldexp(1.0f + (static_cast<float>(byte & 15) + 0.5f) / 16, e0 + (byte >> 4));
      EXPECT_EQ(kv::grid_byte(half, e0), std::min(byte + 1, 255));
      EXPECT_EQ(kv::grid_byte(std::nextafter(half, 0.0f), e0), byte);
    }
  }
  EXPECT_EQ(kv::grid_byte(1e-5f, -14), 0);
  EXPECT_EQ(kv::grid_base(1e-5f), -14);
  EXPECT_EQ(kv::grid_base(8733.9f), -2);
  EXPECT_EQ(kv::grid_base(0.7f), -14);
  EXPECT_EQ(kv::grid_base(3e5f), 0);
  EXPECT_EQ(kv::grid_scale(kv::grid_byte(3e5f, 0), 0), 63488.0f);
}

}  // namespace
}  // namespace braid
