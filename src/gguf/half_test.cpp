// half_test.cpp -- every pattern of the small float formats, and the rounding to them.
#include "gguf/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace braid {
namespace {

TEST(Half, EveryF16PatternIsExactAndComesBack) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const uint32_t exponent = h >> 10 & 31;
    const uint32_t fraction = h & 1023;
    const float y = f16_to_f32(static_cast<uint16_t>(h));
    if (exponent == 31 && fraction != 0) {
      EXPECT_TRUE(std::isnan(y));
      EXPECT_EQ(f32_to_f16(y), (h & 0x8000) | 0x7e00);
      continue;
    }
    double expected = exponent == 31 ? std::numeric_limits<double>::infinity()
                      : exponent == 0
                          ? std::ldexp(fraction, -24)
                          : std::ldexp(1024 + fraction, static_cast<int>(exponent) - 25);
    if ((h & 0x8000) != 0) expected = -expected;
    EXPECT_EQ(y, expected) << h;
    EXPECT_EQ(std::signbit(y), (h & 0x8000) != 0) << h;
    EXPECT_EQ(f32_to_f16(y), h);
  }
}

TEST(Half, F16RoundsToNearestEven) {
  for (uint32_t h = 0; h < 0x7bff; ++h) {
    const float below = f16_to_f32(static_cast<uint16_t>(h));
    const float above = f16_to_f32(static_cast<uint16_t>(h + 1));
    const float middle = 0.5f * (below + above);  // exact: f32 has more digits
    EXPECT_EQ(f32_to_f16(middle), h % 2 == 0 ? h : h + 1);
    EXPECT_EQ(f32_to_f16(std::nextafter(middle, 0.0f)), h);
    EXPECT_EQ(f32_to_f16(-std::nextafter(middle, 1e9f)), (h + 1) | 0x8000);
  }
}

TEST(Half, F16Vectors) {
  EXPECT_EQ(f32_to_f16(0.1f), 0x2e66);
  EXPECT_EQ(f32_to_f16(1.0f / 3.0f), 0x3555);
  EXPECT_EQ(f32_to_f16(65519.0f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(0x1p-24f), 0x0001);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0x0000);
  EXPECT_EQ(f32_to_f16(3e-8f), 0x0001);
  EXPECT_EQ(f32_to_f16(1.00048828125f), 0x3c00);
  EXPECT_EQ(f32_to_f16(-0.0f), 0x8000);
  EXPECT_EQ(f32_to_f16(-std::numeric_limits<float>::infinity()), 0xfc00);
}

TEST(Half, EveryBf16PatternComesBack) {
  for (uint32_t b = 0; b < 65536; ++b) {
    const float y = bf16_to_f32(static_cast<uint16_t>(b));
    EXPECT_EQ(std::bit_cast<uint32_t>(y), b << 16);
    EXPECT_EQ(f32_to_bf16(y), std::isnan(y) ? (b | 0x40) : b);
  }
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // tie to even
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x00008001u)), 0x0001);  // subnormals are kept
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x7f800001u)), 0x7fc0);
}

TEST(Half, EveryBlockScaleByte) {
  for (int e = 0; e < 256; ++e) {
    EXPECT_EQ(e8m0_half_to_f32(static_cast<uint8_t>(e)), std::ldexp(1.0f, e - 128)) << e;
  }
  for (int s = 0; s < 256; ++s) {
    const int exponent = s >> 3 & 15;
    const int mantissa = s & 7;
    float expected = exponent == 0
                         ? std::ldexp(static_cast<float>(mantissa), -9)
                         : std::ldexp(1.0f + static_cast<float>(mantissa) / 8.0f, exponent - 7);
    if ((s & 127) == 127) expected = 0.0f;
    const float y = ue4m3_to_f32(static_cast<uint8_t>(s));
    EXPECT_EQ(y, expected) << s;
    if (s < 127) {
      EXPECT_EQ(f32_to_ue4m3(y), s);
    }
    if (s < 0x78) {
      EXPECT_EQ(f32_to_ue4m3_reference(y), s);
    }
  }
}

TEST(Half, Ue4m3Rounding) {
  struct Case {
    float x;
    int reference, nearest;
  };
  const Case cases[] = {{1.0f, 0x38, 0x38},          {1.0625f, 0x39, 0x38},  {240.0f, 0x77, 0x77},
                        {247.9f, 0x77, 0x77},        {248.0f, 0x7e, 0x78},   {256.0f, 0x7e, 0x78},
                        {300.0f, 0x7e, 0x79},        {0x1p-6f, 0x08, 0x08},  {0x1p-9f, 0x01, 0x01},
                        {0.0146484375f, 0x07, 0x08}, {0x1p-10f, 0x01, 0x00}, {0.0009f, 0x00, 0x00},
                        {1e9f, 0x7e, 0x7e},          {0.0f, 0, 0},           {-1.0f, 0, 0}};
  for (const Case& c : cases) {
    EXPECT_EQ(f32_to_ue4m3_reference(c.x), c.reference) << c.x;
    EXPECT_EQ(f32_to_ue4m3(c.x), c.nearest) << c.x;
  }
  EXPECT_EQ(f32_to_ue4m3(std::numeric_limits<float>::quiet_NaN()), 0);
}

}  // namespace
}  // namespace braid
