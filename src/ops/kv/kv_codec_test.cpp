// kv_codec_test.cpp -- properties of all formats: names, sizes, memory bounds, edge cases.
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <set>

#include "ops/kv/formats.h"
#include "ops/kv/kv_rows_test.h"
#include "ops/kv/kv_tail.h"

namespace braid {
namespace {

using kv_test::decoded;
using kv_test::encoded;
using kv_test::Noise;
using kv_test::unit_rows;

constexpr int32_t kWidths[] = {32, 64, 128, 192, 256, 512};

template <typename Visit>
void for_each_unit(Visit visit) {
  int visited = 0;
  for (const KvCodec* codec : kv_codecs()) {
    for (const int32_t head_dim : kWidths) {
      if (!kv_codec_accepts(*codec, head_dim).ok()) continue;
      for (const KvSide side : kKvSides) {
        SCOPED_TRACE(testing::Message()
                     << codec->name << " " << head_dim << (side == KvSide::k ? " k" : " v"));
        visit(*codec, head_dim, side);
        ++visited;
      }
    }
  }
  EXPECT_GE(visited, 12 * 3 * 2);
}

std::vector<uint16_t> lively_rows(int32_t head_dim, uint64_t seed) {
  Noise noise(seed);
  return unit_rows(head_dim, [&](int32_t t, int32_t d) {
    return noise.normal() * (d % 16 == 3 ? 6 : 1) * (t == 5 ? 5 : 1) + (d % 32 == 7 ? 4 : 0);
  });
}

// Bytes next to protected pages: accesses before or after them fault.
class FencedBytes {
 public:
  explicit FencedBytes(size_t size)
      : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))), size_(size) {
    middle_ = (size + page_ - 1) / page_ * page_;
    void* map = mmap(nullptr, middle_ + 2 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(map, MAP_FAILED);
    base_ = static_cast<uint8_t*>(map);
    EXPECT_EQ(mprotect(base_ + page_, middle_, PROT_READ | PROT_WRITE), 0);
  }
  FencedBytes(const FencedBytes&) = delete;
  FencedBytes& operator=(const FencedBytes&) = delete;
  ~FencedBytes() { munmap(base_, middle_ + 2 * page_); }
  uint8_t* after_fence() { return base_ + page_; }
  uint8_t* before_fence() { return base_ + page_ + middle_ - size_; }

 private:
  size_t page_, size_, middle_ = 0;
  uint8_t* base_ = nullptr;
};

TEST(KvCodec, NamesAreFoundAndOthersRefusedWithTheList) {
  std::set<std::string_view> names;
  for (const KvCodec* codec : kv_codecs()) {
    EXPECT_TRUE(names.insert(codec->name).second) << codec->name;
    const auto found = find_kv_codec(codec->name);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(*found, codec);
  }
  EXPECT_EQ(names.size(), 12u);
  EXPECT_EQ(*find_kv_codec("TBQ4_0"), &kv::kTbq4_0);
  for (const char* wrong : {"", "q4", "q4_00", "q4_k", "turbo3", "c3", "r_q4_0", "f16 "}) {
    const auto refused = find_kv_codec(wrong);
    ASSERT_FALSE(refused.ok()) << wrong;
    EXPECT_EQ(refused.error().kind, ErrorKind::invalid_argument);
    for (const std::string_view name : names)
      EXPECT_NE(refused.error().message.find(name), std::string::npos) << refused.error().message;
  }
}

TEST(KvCodec, WidestComesFirst) {
  double before = 1e9;
  for (const KvCodec* codec : kv_codecs()) {
    const double bits = codec->bits_per_value(256, KvSide::k);
    EXPECT_LE(bits, before) << codec->name;
    before = bits;
  }
}

TEST(KvCodec, Sizes) {
  struct Size {
    const char* name;
    int64_t k, v, row;
  };
  const Size sizes[] = {
      {"f32", 32768, 32768, 0},   {"f16", 16384, 16384, 0},  {"bf16", 16384, 16384, 0},
      {"q8_0", 8704, 8704, 272},  {"q5_1", 6144, 6144, 192}, {"q5_0", 5632, 5632, 176},
      {"q4_1", 5120, 5120, 160},  {"q4_0", 4608, 4608, 144}, {"tbq4_0", 4224, 4224, 132},
      {"tq3_0", 3200, 3200, 112}, {"c5", 5648, 5712, 0},     {"c4", 4624, 4688, 0},
  };
  for (const Size& size : sizes) {
    const KvCodec& codec = **find_kv_codec(size.name);
    EXPECT_EQ(codec.unit_bytes(256, KvSide::k), size.k) << size.name;
    EXPECT_EQ(codec.unit_bytes(256, KvSide::v), size.v) << size.name;
    EXPECT_EQ(codec.row_bytes == nullptr ? 0 : codec.row_bytes(256), size.row) << size.name;
  }
  for_each_unit([](const KvCodec& codec, int32_t head_dim, KvSide side) {
    EXPECT_EQ(codec.unit_bytes(head_dim, side) % 16, 0);
  });
}

TEST(KvCodec, RefusesHeadsThatDoNotFit) {
  for (const KvCodec* codec : kv_codecs()) {
    for (const int32_t head_dim : {0, -128, 1, 36, 100}) {
      const Status status = kv_codec_accepts(*codec, head_dim);
      ASSERT_FALSE(status.ok()) << codec->name << " " << head_dim;
      EXPECT_EQ(status.error().kind, ErrorKind::unsupported);
      EXPECT_NE(status.error().message.find(codec->name), std::string::npos);
    }
  }
  EXPECT_FALSE(kv_codec_accepts(kv::kTbq4_0, 64).ok());
  EXPECT_FALSE(kv_codec_accepts(kv::kTq3_0, 192).ok());
  EXPECT_TRUE(kv_codec_accepts(kv::kC4, 192).ok());
}

TEST(KvCodec, EncodeWritesEachByteTheSameWay) {
  for_each_unit([](const KvCodec& codec, int32_t head_dim, KvSide side) {
    const auto rows = lively_rows(head_dim, 1);
    const auto unit = encoded(codec, head_dim, side, rows);
    const int64_t stride = head_dim + 24;
    std::vector<uint16_t> apart(static_cast<size_t>(kBlockTokens * stride), 0x7e00);
    for (int32_t t = 0; t < kBlockTokens; ++t)
      std::copy_n(rows.begin() + int64_t{t} * head_dim, head_dim, apart.begin() + t * stride);
    std::vector<uint8_t> other(unit.size() + 16, 0xff);
    ASSERT_TRUE(kv_encode(codec, head_dim, side, apart.data(), stride, nullptr, other.data()));
    EXPECT_TRUE(std::equal(unit.begin(), unit.end(), other.begin()));
    for (size_t i = unit.size(); i < other.size(); ++i)
      EXPECT_EQ(other[i], 0xff) << "wrote behind the unit";
  });
}

TEST(KvCodec, DecodesAnyBytesAndReadsNoOthers) {
  for_each_unit([](const KvCodec& codec, int32_t head_dim, KvSide side) {
    const auto bytes = static_cast<size_t>(codec.unit_bytes(head_dim, side));
    FencedBytes unit(bytes);
    const size_t values = static_cast<size_t>(kBlockTokens) * static_cast<size_t>(head_dim);
    FencedBytes rows(values * sizeof(float));
    Noise noise(bytes);
    for (int round = 0; round < 4; ++round) {
      for (uint8_t* at : {unit.after_fence(), unit.before_fence()}) {
        for (size_t i = 0; i < bytes; ++i)
          at[i] = round == 0 ? 0xff : round == 1 ? 0 : noise.byte();
        for (uint8_t* to : {rows.after_fence(), rows.before_fence()}) {
          auto* out = reinterpret_cast<float*>(to);
          codec.decode(at, head_dim, side, out);
          std::vector<float> again(values);
          codec.decode(at, head_dim, side, again.data());
          EXPECT_EQ(std::memcmp(out, again.data(), values * sizeof(float)), 0)
              << "left some unwritten";
        }
      }
    }
  });
}

TEST(KvCodec, RowsAndUnitsHoldTheSame) {
  int formats = 0;
  for_each_unit([&](const KvCodec& codec, int32_t head_dim, KvSide side) {
    if (codec.row_bytes == nullptr) return;
    ++formats;
    Noise noise(7);
    std::vector<uint8_t> unit(static_cast<size_t>(codec.unit_bytes(head_dim, side)));
    for (uint8_t& b : unit) b = noise.byte();
    const auto bytes = static_cast<size_t>(codec.row_bytes(head_dim)) * kBlockTokens;
    FencedBytes fenced(bytes);
    uint8_t* rows = fenced.before_fence();
    codec.pack_rows(unit.data(), head_dim, rows);
    std::vector<uint8_t> back(unit.size(), 0xaa);
    codec.unpack_rows(rows, head_dim, back.data());
    EXPECT_EQ(unit, back);
  });
  EXPECT_GE(formats, 7 * 3 * 2);
}

TEST(KvCodec, PlainFormatsAreExact) {
  Noise noise(3);
  std::vector<uint16_t> rows(size_t{kBlockTokens} * 64);
  for (uint16_t& bits : rows) {
    do {
      bits = static_cast<uint16_t>(noise.byte() << 8 | noise.byte());
    } while ((bits & 0x7c00) == 0x7c00);
  }
  for (const KvCodec* codec : {&kv::kF32, &kv::kF16}) {
    const auto out = decoded(*codec, 64, KvSide::k, encoded(*codec, 64, KvSide::k, rows));
    EXPECT_EQ(kv_test::halves_of(out), rows) << codec->name;
  }
  const auto once = decoded(kv::kBf16, 64, KvSide::v, encoded(kv::kBf16, 64, KvSide::v, rows));
  for (size_t i = 0; i < rows.size(); ++i)
    EXPECT_EQ(once[i], bf16_to_f32(f32_to_bf16(f16_to_f32(rows[i])))) << i;
}

TEST(KvCodec, RefusesNotANumber) {
  for_each_unit([](const KvCodec& codec, int32_t head_dim, KvSide side) {
    auto rows = lively_rows(head_dim, 2);
    std::vector<uint8_t> unit(static_cast<size_t>(codec.unit_bytes(head_dim, side)), 0x5a);
    const auto before = unit;
    for (const uint16_t nan : {0x7e00, 0xfe00, 0x7c01}) {
      auto bad = rows;
      bad[static_cast<size_t>(31 * head_dim + 3)] = nan;
      EXPECT_FALSE(kv_encode(codec, head_dim, side, bad.data(), head_dim, nullptr, unit.data()));
      EXPECT_EQ(unit, before);
    }
  });
}

TEST(KvCodec, InfinityCountsAsTheLargestNumberAndStaysFinite) {
  for_each_unit([](const KvCodec& codec, int32_t head_dim, KvSide side) {
    auto infinite = lively_rows(head_dim, 2);
    auto largest = infinite;
    for (int32_t d = 0; d < head_dim; ++d) {  // a row of them, and a channel
      infinite[static_cast<size_t>(9 * head_dim + d)] = d % 2 == 0 ? 0x7c00 : 0xfc00;
      largest[static_cast<size_t>(9 * head_dim + d)] = d % 2 == 0 ? 0x7bff : 0xfbff;
    }
    for (size_t t = 0; t < kBlockTokens; ++t) {
      infinite[t * static_cast<size_t>(head_dim) + 8] = 0x7c00;
      largest[t * static_cast<size_t>(head_dim) + 8] = 0x7bff;
    }
    const auto unit = encoded(codec, head_dim, side, infinite);
    EXPECT_EQ(unit, encoded(codec, head_dim, side, largest));
    for (const float x : decoded(codec, head_dim, side, unit)) ASSERT_TRUE(std::isfinite(x));
  });
}

// Smallest numbers, zeros of both signs, equal rows, equal channels, a single number.
TEST(KvCodec, OddRowsStayFiniteAndNear) {
  const std::vector<std::vector<uint16_t>> odd = {
      unit_rows(256, [](int32_t, int32_t) { return 0.0; }),
      unit_rows(256, [](int32_t, int32_t) { return -0.0; }),
      unit_rows(256, [](int32_t t, int32_t d) { return (t + d) % 2 ? 0x1p-24 : -0x1p-24; }),
      unit_rows(256, [](int32_t, int32_t) { return 3.0; }),
      unit_rows(256, [](int32_t t, int32_t d) { return t == 3 && d == 200 ? 1000.0 : 0.0; }),
      unit_rows(256, [](int32_t t, int32_t) { return t * 0.25 - 4; }),
      unit_rows(256, [](int32_t, int32_t d) { return d * 0.25 - 32; }),
  };
  for (const KvCodec* codec : kv_codecs()) {
    for (size_t i = 0; i < odd.size(); ++i) {
      for (const KvSide side : kKvSides) {
        const auto was = kv_test::floats_of(odd[i]);
        const auto is = decoded(*codec, 256, side, encoded(*codec, 256, side, odd[i]));
        kv_test::Error error;
        for (size_t j = 0; j < was.size(); ++j) {
          ASSERT_TRUE(std::isfinite(is[j])) << codec->name << " case " << i;
          error.add(is[j], was[j]);
        }
        if (i < 3) {  // close to zero: must stay so in every format
          EXPECT_LT(std::sqrt(error.off / static_cast<double>(was.size())), 1e-4)
              << codec->name << " case " << i;
        } else {
          EXPECT_LT(error.relative(), 0.26) << codec->name << " case " << i;
        }
      }
    }
  }
}

TEST(KvCodec, LargestNumbersStayFinite) {
  constexpr double kLargest = 65504;
  const std::vector<uint16_t> mean(256, 0xfbff);
  const std::vector<std::vector<uint16_t>> largest = {
      unit_rows(256, [](int32_t, int32_t) { return kLargest; }),
      unit_rows(256, [](int32_t t, int32_t) { return t % 2 == 0 ? kLargest : -kLargest; }),
      unit_rows(256, [](int32_t, int32_t d) { return d % 2 == 0 ? kLargest : -kLargest; }),
      unit_rows(256, [](int32_t t, int32_t) { return t == 0 ? kLargest : 0x1p-24; }),
      unit_rows(256,
                [](int32_t t, int32_t d) {
                  return std::popcount(static_cast<uint32_t>(t & d)) % 2 * kLargest;
                }),
  };
  for (const KvCodec* codec : kv_codecs()) {
    for (size_t i = 0; i < largest.size(); ++i) {
      for (const KvSide side : kKvSides) {
        for (const float x : decoded(*codec, 256, side, encoded(*codec, 256, side, largest[i])))
          ASSERT_TRUE(std::isfinite(x)) << codec->name << " case " << i;
      }
      for (const float x : decoded(*codec, 256, KvSide::k,
                                   encoded(*codec, 256, KvSide::k, largest[i], mean.data())))
        ASSERT_TRUE(std::isfinite(x)) << codec->name << " case " << i << " less the mean";
    }
  }
}

TEST(KvCodec, TheMeanOfKeysIsTakenOff) {
  Noise noise(11);
  std::vector<uint16_t> mean(128);
  for (uint16_t& m : mean) m = f32_to_f16(static_cast<float>(std::round(noise.normal() * 16) / 8));
  const auto value = [](int32_t t, int32_t d) { return ((t * 37 + d * 11) % 65 - 32) / 8.0; };
  const auto rows = unit_rows(128, value);
  const auto differences = unit_rows(128, [&](int32_t t, int32_t d) {
    return value(t, d) - f16_to_f32(mean[static_cast<size_t>(d)]);
  });
  for (const KvCodec* codec : kv_codecs()) {
    EXPECT_EQ(encoded(*codec, 128, KvSide::k, rows, mean.data()),
              encoded(*codec, 128, KvSide::k, differences))
        << codec->name;
  }
}

// The exact part is the query's own block and at least `tail` blocks, at most one block minus a
// cell more. Blocks sealed for a query are full, and stay sealed for all later queries.
TEST(KvTail, DependsOnThePositionAlone) {
  for (const int32_t tail : {0, 1, 3, 31}) {
    for (const int32_t sinks : {0, 2}) {
      const KvTail rule{tail, sinks};
      int32_t before = rule.exact_from(0);
      EXPECT_EQ(before, rule.sealed_from());
      for (int32_t p = 0; p < 3000; ++p) {
        const int32_t from = rule.exact_from(p);
        ASSERT_EQ(from % kBlockTokens, 0);
        ASSERT_GE(from, before);
        if (from > rule.sealed_from()) {
          ASSERT_GE(p - from, tail * kBlockTokens) << p;
          ASSERT_LT(p - from, (tail + 1) * kBlockTokens) << p;
        } else {
          ASSERT_LT(p, (sinks + tail + 1) * kBlockTokens) << p;
        }
        before = from;
      }
    }
  }
  EXPECT_TRUE((KvTail{3, 0}).holds_drafts(96));
  EXPECT_FALSE((KvTail{3, 0}).holds_drafts(97));
  EXPECT_FALSE((KvTail{0, 0}).holds_drafts(1));
}

}  // namespace
}  // namespace braid
