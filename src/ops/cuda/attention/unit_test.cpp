// unit_test.cpp -- the kernels for sealed blocks on the host: bytes, and decoded rows.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ops/cuda/attention/host_block_test.h"
#include "ops/cuda/attention/unit_expand.h"
#include "ops/cuda/attention/unit_seal.h"
#include "ops/kv/kv_codec.h"
#include "ops/kv/kv_rows_test.h"

namespace braid::cuda {
namespace {

using namespace kv_test;
using Rows = std::vector<uint16_t>;

// Rows of every kind that a cache can hold, and invalid ones.
std::vector<std::pair<std::string, Rows>> all_rows(int32_t width) {
  Noise noise(static_cast<uint64_t>(width));
  std::vector<std::pair<std::string, Rows>> all;
  const auto add = [&](const char* name, auto value) {
    all.emplace_back(name, unit_rows(width, value));
  };
  add("normal", [&](int, int) { return noise.normal(); });
  add("laplace", [&](int, int d) { return noise.laplace() * (d % 7 == 0 ? 20 : 1); });
  add("channels apart", [&](int, int d) { return 3.0 * (d % 11) - 9 + 0.1 * noise.normal(); });
  add("rows of many lengths", [&](int t, int) { return std::ldexp(noise.normal(), t % 16 - 12); });
  add("zeros", [](int, int) { return 0.0; });
  add("zeros of both signs", [](int t, int d) { return (t * 5 + d * 3) % 7 < 3 ? -0.0 : 0.0; });
  add("one number", [](int, int) { return 1.25; });
  add("one number below zero", [](int, int) { return -0.3; });
  add("one value", [](int t, int d) { return t == 5 && d == 17 ? 2.0 : 0.0; });
  add("constant channels", [](int, int d) { return d - 31.5; });
  add("constant rows", [](int t, int) { return t - 15.5; });
  add("subnormal", [&](int, int) { return 0x1p-24 * std::floor(noise.uniform() * 9 - 4); });
  add("large", [&](int, int) { return noise.normal() * 30000; });
  add("largest", [&](int, int) { return noise.uniform() < 0.5 ? 65504.0 : -65504.0; });
  add("halfway", [&](int t, int d) { return (t * 7 + d * 13) % 32 * 0.5 - 8; });
  Rows bits(static_cast<size_t>(kBlockTokens * width));
  for (uint16_t& b : bits) {
    b = static_cast<uint16_t>(noise.byte() | noise.byte() << 8);
    if ((b & 0x7fff) > 0x7c00) b = 0x7c00;  // an infinity, but not a NaN
  }
  all.emplace_back("any bits", bits);
  Rows infinite = all[0].second;
  infinite[3] = 0x7c00;
  infinite[static_cast<size_t>(width) + 9] = 0xfc00;
  all.emplace_back("infinite", infinite);
  return all;
}

std::vector<uint8_t> sealed(const KvCodec& codec, UnitKind kind, int32_t width, KvSide side,
                            const Rows& rows, int order) {
  HostBlock<kUnitThreads> block(order);
  auto scratch = std::make_unique<UnitScratch>();
  std::memset(static_cast<void*>(scratch.get()), 0xa5, sizeof(UnitScratch));
  const auto bytes = static_cast<size_t>(codec.unit_bytes(width, side));
  EXPECT_EQ(unit_bytes_of(kind, width, side == KvSide::v), static_cast<int>(bytes)) << codec.name;
  std::vector<uint8_t> unit(bytes + 64, 0xa5);
  seal_unit(block, *scratch, kind, width, side == KvSide::v, rows.data(), unit.data());
  for (size_t i = bytes; i < unit.size(); ++i)
    EXPECT_EQ(unit[i], 0xa5) << codec.name << " writes behind";
  unit.resize(bytes);
  return unit;
}

template <typename Run>
void for_all_units(Run run) {
  for (const KvCodec* codec : kv_codecs()) {
    for (const int32_t width : {64, 96, 128, 192, 256}) {
      if (!kv_codec_accepts(*codec, width).ok()) continue;
      for (const KvSide side : kKvSides)
        for (const auto& [name, rows] : all_rows(width))
          run(*codec, unit_kind(codec->name), width, side, rows,
              std::string(codec->name) + (side == KvSide::k ? " K " : " V ") +
                  std::to_string(width) + " " + name);
    }
  }
}

TEST(GpuUnits, SealedBytesAreThoseOfTheCodec) {
  int order = 0;
  for_all_units([&](const KvCodec& codec, UnitKind kind, int32_t width, KvSide side,
                    const Rows& rows, const std::string& what) {
    EXPECT_EQ(sealed(codec, kind, width, side, rows, order++ % 3),
              encoded(codec, width, side, rows))
        << what;
  });
}

TEST(GpuUnits, NumbersThatAreNoneLeaveZeros) {
  for (const KvCodec* codec : kv_codecs()) {
    const UnitKind kind = unit_kind(codec->name);
    for (const KvSide side : kKvSides) {
      for (const size_t at : {size_t{0}, size_t{4000}, size_t{32 * 128 - 1}}) {
        Rows rows = all_rows(128)[0].second;
        rows[at] = 0xfe01;
        const std::vector<uint8_t> unit = sealed(*codec, kind, 128, side, rows, 2);
        EXPECT_EQ(unit, std::vector<uint8_t>(unit.size(), 0)) << codec->name;
      }
    }
  }
}

TEST(GpuUnits, ExpandedRowsAreWhatTheCodecDecodes) {
  int order = 0;
  for_all_units([&](const KvCodec& codec, UnitKind kind, int32_t width, KvSide side,
                    const Rows& rows, const std::string& what) {
    const std::vector<uint8_t> unit = encoded(codec, width, side, rows);
    HostBlock<kUnitThreads> block(order++ % 3);
    auto scratch = std::make_unique<UnitRows>();
    Rows out(rows.size() + 8, 0xa5a5);
    expand_unit(block, is_rotated(kind) ? scratch.get() : nullptr, kind, width, side == KvSide::v,
                unit.data(), out.data());
    for (size_t i = rows.size(); i < out.size(); ++i)
      EXPECT_EQ(out[i], 0xa5a5) << what << " writes behind";
    out.resize(rows.size());
    std::vector<float> exact = decoded(codec, width, side, unit);
    for (float& x : exact) x = std::clamp(x, -65504.0f, 65504.0f);
    EXPECT_EQ(out, halves_of(exact)) << what;
  });
}

// Any bytes expand as the codec decodes them.
TEST(GpuUnits, AnyBytesExpand) {
  Noise noise(77);
  for (const KvCodec* codec : kv_codecs()) {
    const UnitKind kind = unit_kind(codec->name);
    if (family_of(kind) == UnitFamily::number) continue;
    for (const KvSide side : kKvSides) {
      std::vector<uint8_t> unit(static_cast<size_t>(codec->unit_bytes(128, side)));
      for (uint8_t& b : unit) b = noise.byte() & 0x7b;  // no infinity or NaN as f16
      HostBlock<kUnitThreads> block(2);
      auto scratch = std::make_unique<UnitRows>();
      Rows out(32 * 128);
      expand_unit(block, scratch.get(), kind, 128, side == KvSide::v, unit.data(), out.data());
      std::vector<float> exact = decoded(*codec, 128, side, unit);
      for (float& x : exact) x = std::clamp(x, -65504.0f, 65504.0f);
      EXPECT_EQ(out, halves_of(exact)) << codec->name;
    }
  }
}

}  // namespace
}  // namespace braid::cuda
