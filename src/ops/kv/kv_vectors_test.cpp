// kv_vectors_test.cpp -- published answers, and fixed bytes of the project's own formats.
#include <functional>
#include <string>

#include "ops/kv/formats.h"
#include "ops/kv/kv_rows_test.h"
#include "ops/kv/rotation.h"

namespace braid {
namespace {

using kv_test::encoded;
using kv_test::unit_rows;

std::vector<uint8_t> bytes_of_hex(const std::string& text) {
  std::vector<uint8_t> bytes;
  int digits = 0;
  int value = 0;
  for (const char c : text) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) continue;
    value = value * 16 + digit;
    if (++digits % 2 == 0) {
      bytes.push_back(static_cast<uint8_t>(value));
      value = 0;
    }
  }
  return bytes;
}

double row_a(int32_t i) { return i == 0 ? 1 : 0; }
double row_b(int32_t i) { return (2 * i - 127) / 128.0; }
double row_c(int32_t i) { return ((29 * i + 7) % 64 - 32) / 16.0; }
double row_zero(int32_t) { return 0; }
double row_classic(int32_t i) { return (2 * i - 31) / 32.0; }

std::vector<uint8_t> row_bytes(const KvCodec& codec, int32_t head_dim,
                               const std::function<double(int32_t)>& x) {
  const auto unit = encoded(codec, head_dim, KvSide::k,
                            unit_rows(head_dim, [&](int32_t, int32_t d) { return x(d); }));
  const auto bytes = static_cast<size_t>(codec.row_bytes(head_dim));
  std::vector<uint8_t> rows(bytes * kBlockTokens);
  codec.pack_rows(unit.data(), head_dim, rows.data());
  const std::vector<uint8_t> first(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(bytes));
  for (size_t t = 0; t < kBlockTokens; ++t)
    EXPECT_TRUE(std::equal(first.begin(), first.end(),
                           rows.begin() + static_cast<std::ptrdiff_t>(t * bytes)))
        << t;
  return first;
}

TEST(KvVectors, ClassicTypes) {
  const std::pair<const KvCodec*, const char*> answers[] = {
      {&kv::kQ8_0, "d01f8189919aa2aab2bac3cbd3dbe3ecf4fc040c141d252d353d464e565e666f777f"},
      {&kv::kQ5_1, "002cc0bb0000ffff00112233445566778899aabbccddeeff"},
      {&kv::kQ5_0, "c02b0000ffff102132435465768798a9bacbdcedfeff"},
      {&kv::kQ4_1, "2230c0bb80809191a2a2b3b3c4c4d5d5e6e6f7f7"},
      {&kv::kQ4_0, "c02f809191a2a2b3b3c4c4d5d5e6e6f7f7f8"},
  };
  for (const auto& [codec, answer] : answers)
    EXPECT_EQ(row_bytes(*codec, 32, row_classic), bytes_of_hex(answer)) << codec->name;
}

TEST(KvVectors, Tbq4) {
  EXPECT_EQ(row_bytes(kv::kTbq4_0, 128, row_a), bytes_of_hex("3e3c"
                                                             "44444bb4b4bbb4bb44bbb4b4b44b4b44"
                                                             "44bb4bbbbbbb44b4b444b44bbbbbbb44"
                                                             "b4b4bb4b4b4bbb444b4bb4b4bb4bbbb4"
                                                             "b444b44b4b4bb44b4b4bb4b4b4bbbbb4"));
  EXPECT_EQ(row_bytes(kv::kTbq4_0, 128, row_b), bytes_of_hex("8846"
                                                             "97885448355ad91bc647ab5d2a694d47"
                                                             "95863a24c365747454b95947452c66d5"
                                                             "7467cbe33298aa97daf3ac4758cd2525"
                                                             "98395b48d9aafac8a7b3ca6a3a798fc4"));
  EXPECT_EQ(row_bytes(kv::kTbq4_0, 128, row_c), bytes_of_hex("994a"
                                                             "49aaed4d43be29266163cbd654959bec"
                                                             "686a57439c881a18dd444c84a4006499"
                                                             "65376887466689 97a74468bcc5786752"
                                                             "516caa148a968aa9ababab8498757274"));
  EXPECT_EQ(row_bytes(kv::kTbq4_0, 128, row_zero), bytes_of_hex("0000" + std::string(128, '8')));
}

TEST(KvVectors, Tq3) {
  EXPECT_EQ(row_bytes(kv::kTq3_0, 128, row_a), bytes_of_hex("613d aa6956565a6696a9 90eeac16"
                                                            "613d 5a59556aa69655a5 dc8f623f"
                                                            "613d 669599a599669565 7a35a5b7"
                                                            "613d a696999699665665 6265a5be"));
  EXPECT_EQ(row_bytes(kv::kTq3_0, 128, row_b), bytes_of_hex("b046 0389961c7ba5c57b 4e747215"
                                                            "b046 3265e9ee4ab86aae 1a021c84"
                                                            "b046 fdd90535d9b6a866 b0bc3b0d"
                                                            "b046 4089588d97d9c593 57ff7ab5"));
  EXPECT_EQ(row_bytes(kv::kTq3_0, 128, row_c), bytes_of_hex("684a 54bf7534dcb92ae1 7d1cb0f8"
                                                            "684a dc9b02019e1a050e 055f93c2"
                                                            "684a 7e3cf730a7acca9f 90b0d206"
                                                            "684a e81531415625e0ed 34fbbf03"));
  std::string zero;
  for (int block = 0; block < 4; ++block) zero += "0000 0000000000000000 ffffffff";
  EXPECT_EQ(row_bytes(kv::kTq3_0, 128, row_zero), bytes_of_hex(zero));
}

TEST(KvVectors, GroupsOfAHeadStandBesideEachOther) {
  for (const KvCodec* codec : {&kv::kTbq4_0, &kv::kTq3_0, &kv::kQ4_0, &kv::kQ5_1}) {
    auto both = row_bytes(*codec, 128, row_b);
    const auto second = row_bytes(*codec, 128, row_c);
    both.insert(both.end(), second.begin(), second.end());
    EXPECT_EQ(row_bytes(*codec, 256, [](int32_t d) { return d < 128 ? row_b(d) : row_c(d - 128); }),
              both)
        << codec->name;
  }
}

TEST(KvVectors, Rotation) {
  const double answers[3][8] = {
      {-0.0883883, -0.0883883, -0.0883883, -0.0883883, 0.0883883, -0.0883883, -0.0883883,
       0.0883883},
      {-0.0156464, 0.0405962, 0.0139549, 0.0093033, -0.0921872, -0.0689289, 0.0067660, -0.0841525},
      {0.0414306, -0.0938529, 0.0515768, 0.0651052, 0.1581125, 0.1733319, 0.1598036, -0.0853977}};
  const double norms[3] = {1, 6.531773304, 13.067134345};
  double (*const rows[3])(int32_t) = {row_a, row_b, row_c};
  for (int r = 0; r < 3; ++r) {
    float x[128];
    for (int i = 0; i < 128; ++i) x[i] = static_cast<float>(rows[r](i));
    kv::rotate_group(x);
    for (int i = 0; i < 8; ++i) EXPECT_NEAR(x[i] / norms[r], answers[r][i], 1e-7) << r << " " << i;
    kv::unrotate_group(x);
    for (int i = 0; i < 128; ++i) EXPECT_NEAR(x[i], rows[r](i), 1e-6) << r << " " << i;
  }
}

TEST(KvVectors, ScoresInTheStoredDomain) {
  const std::pair<const KvCodec*, double> answers[] = {{&kv::kTbq4_0, 3.87657},
                                                       {&kv::kTq3_0, 3.37154}};
  for (const auto& [codec, answer] : answers) {
    std::vector<float> rows(size_t{kBlockTokens} * 128);
    const auto unit = encoded(*codec, 128, KvSide::k,
                              unit_rows(128, [](int32_t, int32_t d) { return row_b(d); }));
    codec->decode(unit.data(), 128, KvSide::k, rows.data());
    float q[128];
    for (int i = 0; i < 128; ++i) q[i] = static_cast<float>(row_c(i));
    const auto plain = kv_test::decoded(*codec, 128, KvSide::k, unit);
    double outside = 0;
    for (size_t i = 0; i < 128; ++i) outside += double{q[i]} * plain[i];
    kv::rotate_group(q);
    double inside = 0;
    for (size_t i = 0; i < 128; ++i) inside += double{q[i]} * rows[i];
    EXPECT_NEAR(inside, answer, 2e-5) << codec->name;
    EXPECT_NEAR(outside, inside, 1e-5 * answer) << codec->name;
  }
}

uint64_t fnv1a(const std::vector<uint8_t>& bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const uint8_t b : bytes) hash = (hash ^ b) * 0x100000001b3;
  return hash;
}

// Integers over powers of two only, so that all machines agree.
double stress_value(int32_t t, int32_t d) {
  const auto noise = static_cast<double>((t * 2654435761u + d * 40503u * 97u) >> 16 & 255) - 127.5;
  const double width = d % 16 == 3 ? 4 : 0.5;
  const double mean = d % 8 == 5 ? 96 : 0;
  const double length = t == 7 ? 8 : t == 20 ? 0.125 : 1;
  return (noise * width + mean) / 64 * length;
}

TEST(KvVectors, BlockFormatsKeepTheirBytes) {
  struct Answer {
    const KvCodec* codec;
    KvSide side;
    uint64_t hash;
  };
  const Answer answers[] = {
      {&kv::kC5, KvSide::k, 0xccc198b870449625},
      {&kv::kC5, KvSide::v, 0x3c13143ad2861a0},
      {&kv::kC4, KvSide::k, 0xddcd056ed508bf3c},
      {&kv::kC4, KvSide::v, 0xf85eff5a102b9ec5},
  };
  for (const Answer& a : answers) {
    const uint64_t hash = fnv1a(encoded(*a.codec, 128, a.side, unit_rows(128, stress_value)));
    EXPECT_EQ(hash, a.hash) << a.codec->name << (a.side == KvSide::k ? " k" : " v") << std::hex
                            << " 0x" << hash;
  }
}

TEST(KvVectors, ChannelFormatByHand) {
  const auto rows =
      unit_rows(64, [](int32_t t, int32_t d) { return d == 0 ? 0.5 * (t % 16) : 2.0; });
  const auto unit = encoded(kv::kC4, 64, KvSide::k, rows);
  // Channel 0: low 0, high 7.5, middle 3.75 = 127 steps of zstep = f16(3.75 / 127); scale 0.5 =
  // 2^-1. e0 = -14, as -1 - 15 would be subnormal: byte (-1 + 14) << 4.
  EXPECT_EQ(unit[0], 0x00);  // cells 0 and 16 of channel 0: codes 0
  EXPECT_EQ(unit[1], 0x11);
  EXPECT_EQ(unit[15], 0xff);
  const uint8_t* planes = unit.data() + 64 * 16;
  EXPECT_EQ(planes[0], 13 << 4);
  EXPECT_EQ(static_cast<int8_t>(planes[64]), 127);
  // Other channels: 2.0 = 67.73 zsteps, rounded to 68; the scale is the smallest one.
  EXPECT_EQ(planes[1], 0);
  EXPECT_EQ(static_cast<int8_t>(planes[64 + 1]), 68);
  EXPECT_EQ(planes[128] | planes[129] << 8, f32_to_f16(3.75f / 127));
  EXPECT_EQ(static_cast<int8_t>(planes[130]), -14);
  for (int i = 131; i < 144; ++i) EXPECT_EQ(planes[i], 0) << i;
}

}  // namespace
}  // namespace braid
