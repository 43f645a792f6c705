// kv_cold_test.cpp -- sealed KV blocks: their content and readers, which depend on positions alone.
#include <fmt/format.h>

#include <cstring>

#include "ops/tests/kv_cold_world_test.h"

namespace braid {
namespace {

using namespace test;

constexpr int32_t kBlock = kBlockTokens;

TEST(KvCold, DevicesThatRefuseAreNamed) {
  const SealingDevices devices = sealing_devices();
  if (!devices.refusing.empty())
    GTEST_SKIP() << "not tested, as it seals no blocks: " << devices.refusing;
}

// Runs without the hot blocks that no row reads exactly.
void expect_plain(const ColdShape& shape, const std::vector<SequencePlan>& plans, uint64_t seed,
                  const std::string& what, float value_scale = 1.0f) {
  const auto scaled = [&](std::vector<float> o) {
    for (float& x : o) x /= value_scale;
    return o;
  };
  static const SealingDevices devices = sealing_devices();
  std::vector<float> expected;
  for (const DeviceCase& device : devices.all) {
    Random random(seed);
    ColdBatch rows(plans, random);
    ColdWorld world(device, shape, rows);
    world.fill(rows.batch(), random, value_scale);
    world.seal(rows.batch());
    const std::vector<float> q = random.normals(rows.tokens() * shape.width(), 2.0f);
    if (expected.empty()) expected = scaled(PlainAttention(world, shape, rows.batch()).all(q));
    world.release(rows);
    DeviceCase rounding = device;
    // it makes f16 of units, or of scales times q
    if (device.gpu) rounding.activation_type = DType::f16;
    const double limit = outputs(rounding, KvFormat::f16, 2.0f);
    expect_close(scaled(world.attend(rows.batch(), q)), expected, limit, limit,
                 device.name + " " + what);
  }
}

const std::vector<SequencePlan> kFewRows = {
    {70, 1}, {1100, 1}, {63, 1, {-1, 0, 0, 1}}, {70, 0, chain(3)}, {290, 3}};
const std::vector<SequencePlan> kManyRows = {
    {70, 1}, {40, 30}, {63, 1, {-1, 0, 0, 1}}, {70, 0, chain(3)}};

TEST(KvCold, EveryFormatIsReadAsItDecodes) {
  uint64_t seed = 1;
  for (const KvCodec* codec : kv_codecs()) {
    int widths = 0;
    for (const int32_t head_dim : {64, 128, 256}) {
      if (!kv_codec_accepts(*codec, head_dim).ok()) continue;
      const ColdShape shape{
          .heads = 2, .kv_heads = 1, .head_dim = head_dim, .k = codec, .v = codec};
      const std::string what = std::string(codec->name) + " width " + std::to_string(head_dim);
      expect_plain(shape, kFewRows, ++seed, what + " few rows");
      expect_plain(shape, kManyRows, ++seed, what);
      ++widths;
    }
    EXPECT_GE(widths, 1) << codec->name;
  }
}

TEST(KvCold, SidesMayDiffer) {
  const std::vector<SequencePlan> plans = {{100, 1}, {40, 30}, {95, 1, {-1, 0, 0, 1}}, {1100, 1}};
  const char* const pairs[][2] = {{"q8_0", "c4"}, {"c4", "q8_0"},     {"q8_0", "f16"},
                                  {"bf16", "c4"}, {"tbq4_0", "q8_0"}, {"c4", "tbq4_0"},
                                  {"f32", "c5"},  {"q4_1", "q5_0"},   {"q8_0", "q4_0"},
                                  {"q4_0", "c4"}, {"q4_0", "f16"}};
  uint64_t seed = 100;
  for (const auto& [k, v] : pairs) {
    const ColdShape shape{
        .heads = 4, .kv_heads = 2, .head_dim = 128, .k = codec_of(k), .v = codec_of(v)};
    expect_plain(shape, kFewRows, ++seed, std::string(k) + " and " + v + " few rows");
    expect_plain(shape, plans, ++seed, std::string(k) + " and " + v);
  }
}

TEST(KvCold, SmallAndLargeValues) {
  uint64_t seed = 150;
  for (const KvCodec* codec : kv_codecs()) {
    if (codec->bits_per_value(128, KvSide::v) > 16 || codec->name == "bf16") continue;
    const ColdShape shape{.heads = 2, .kv_heads = 1, .head_dim = 128, .k = codec, .v = codec};
    for (const float scale : {1.0f / 256, 256.0f})
      expect_plain(shape, kFewRows, ++seed, fmt::format("{} values times {}", codec->name, scale),
                   scale);
  }
}

TEST(KvCold, GroupsAndWidths) {
  const std::vector<SequencePlan> plans = {
      {520, 1}, {63, 40}, {127, 2, {-1, -1, 1, 2}}, {5, 1}, {0, 40}};
  uint64_t seed = 200;
  for (const char* name : {"q8_0", "q4_0", "c4", "q5_0"}) {
    for (const int32_t group : {1, 2, 4, 6, 9}) {
      const int32_t head_dim = group == 4 ? 256 : group == 6 || group == 9 ? 128 : 64;
      const ColdShape shape{.heads = 2 * group,
                            .kv_heads = 2,
                            .head_dim = head_dim,
                            .k = codec_of(name),
                            .v = codec_of(name)};
      const std::string what = std::string(name) + " group " + std::to_string(group);
      expect_plain(shape, kFewRows, ++seed, what + " few rows");
      expect_plain(shape, plans, ++seed, what);
    }
  }
}

// More runs of sealed blocks than a GPU has multiprocessors.
TEST(KvCold, ManySequencesOfUnlikeRows) {
  std::vector<SequencePlan> plans;
  for (int32_t i = 0; i < 30; ++i) {
    const int32_t past = 33 + i * i * 2;
    plans.push_back(i % 3 == 0   ? SequencePlan{past, 1, chain(7)}
                    : i % 3 == 1 ? SequencePlan{past, 1}
                                 : SequencePlan{past, 2, {-1, 0}});
  }
  uint64_t seed = 250;
  for (const char* name : {"c4", "q8_0"}) {
    const ColdShape shape{
        .heads = 12, .kv_heads = 2, .head_dim = 128, .k = codec_of(name), .v = codec_of(name)};
    expect_plain(shape, plans, ++seed, name);
    const std::string what = name;
    expect_plain(shape, {{1900, 1, chain(7)}, {70, 1}, {2000, 1}, {1500, 3}}, ++seed,
                 what + " long");
    expect_plain(shape, {{1900, 1, chain(7)}, {1000, 1, chain(3)}}, ++seed,
                 what + " by three tiles");
  }
}

TEST(KvCold, BordersLieWhereThePositionSays) {
  std::vector<SequencePlan> few, many, trees, prompts = {{0, 90}, {31, 33}};
  for (int32_t i = 0; i < kBlock; ++i) {
    if (i % 10 == 0) prompts.push_back({64 + i, 60 + 2 * i});
    few.push_back({96 + i, 1});
    many.push_back({80 + i, 2 + i % 2});
    trees.push_back({64 + i, i % 2, {-1, 0, 1, 1, 3, -1}});
  }
  uint64_t seed = 300;
  for (const char* name : {"q8_0", "tbq4_0", "c4"}) {
    const KvCodec* codec = codec_of(name);
    for (const int32_t tail : {0, 1, 3}) {
      for (const int32_t sinks : {0, 2}) {
        if (codec->rotated && tail + sinks != 1) continue;
        const ColdShape shape{.heads = 1,
                              .kv_heads = 1,
                              .head_dim = 128,
                              .k = codec,
                              .v = codec,
                              .tail = {tail, sinks}};
        const std::string what = fmt::format("{} tail {} sinks {}", name, tail, sinks);
        expect_plain(shape, few, ++seed, what + " few");
        expect_plain(shape, many, ++seed, what + " many");
        expect_plain(shape, prompts, ++seed, what + " prompts");
        if (tail > 0) expect_plain(shape, trees, ++seed, what + " trees");
      }
    }
  }
}

TEST(KvCold, WindowsHideSealedCellsToo) {
  const std::vector<SequencePlan> plans = {{300, 1}, {90, 50}, {95, 1, {-1, 0, 0, 1}}};
  for (const char* name : {"q8_0", "c4", "q4_0"}) {
    ColdShape shape{.k = codec_of(name), .v = codec_of(name), .window = 70};
    expect_plain(shape, plans, 400, name);
    shape.head_dim = 128;
    expect_plain(shape, kFewRows, 401, std::string(name) + " few rows");
  }
}

// Rows with a NaN leave zeros.
TEST(KvCold, UnitsAreWhatTheCodecMakesOfTheRows) {
  for (const DeviceCase& device : sealing_devices().all) {
    for (const auto& [k, v] : {std::pair{"q8_0", "c4"},
                               {"c4", "q8_0"},
                               {"q4_0", "q4_0"},
                               {"q5_1", "c5"},
                               {"tbq4_0", "q4_1"},
                               {"f16", "tq3_0"}}) {
      Random random(500);
      const ColdShape shape{
          .heads = 2, .kv_heads = 2, .head_dim = 128, .k = codec_of(k), .v = codec_of(v)};
      ColdBatch rows({{0, 70}, {0, 33}, {0, 31}}, random);
      ColdWorld world(device, shape, rows);
      const Batch batch = rows.batch();
      const int64_t count = rows.tokens() * shape.kv_width();
      std::vector<float> keys = random.normals(count), values = random.normals(count);
      keys[static_cast<size_t>(40 * shape.kv_width() + 3)] = NAN;  // block 1 of head 0
      // counts as the largest
      values[static_cast<size_t>(75 * shape.kv_width() + 128 + 5)] = INFINITY;
      values[static_cast<size_t>(80 * shape.kv_width() + 128 + 5)] = NAN;  // block 0 of head 1
      world.store_and_attend(batch, random.normals(rows.tokens() * shape.width()), keys, values);
      int zeros = 0;
      const auto check = [&](KvSide side, int32_t s, int32_t b, int32_t h) {
        const KvLayer& kv = world.kv();
        const KvCodec& codec = side == KvSide::k ? *shape.k : *shape.v;
        const int32_t at = batch.cold_blocks_of(s)[b];
        std::vector<uint8_t> unit(static_cast<size_t>(codec.unit_bytes(shape.head_dim, side)));
        const std::vector<uint16_t> hot = hot_rows(kv, side, batch.blocks_of(s)[b], h);
        if (!kv_encode(codec, shape.head_dim, side, hot.data(), shape.head_dim, nullptr,
                       unit.data()))
          ++zeros;
        const std::byte* sealed = side == KvSide::k ? kv.k_unit(at, h) : kv.v_unit(at, h);
        EXPECT_EQ(std::memcmp(sealed, unit.data(), unit.size()), 0)
            << device.name << " " << codec.name << " sequence " << s << " block " << b << " head "
            << h;
      };
      const auto check_all = [&] {
        for (int32_t s = 0; s < batch.sequences; ++s)
          for (int32_t b = 0; b < batch.context[s] / kBlock; ++b)
            for (const KvSide side : kKvSides)
              for (int32_t h = 0; h < 2; ++h) check(side, s, b, h);
      };
      check_all();
      EXPECT_EQ(zeros, 2);
      world.seal(batch);  // again
      check_all();
    }
  }
}

TEST(KvCold, BlocksAreSealedWhenTheirLastRowIsCertain) {
  for (const DeviceCase& device : sealing_devices().all) {
    Random random(510);
    const ColdShape shape{.k = codec_of("q8_0"), .v = codec_of("c4")};
    const ColdBatch rows({{0, 64, chain(4)}}, random);
    ColdWorld world(device, shape, rows);
    const std::vector<std::byte> nothing = world.units(rows.batch(), 0, 2);
    const auto step = [&](const SequencePlan& plan) {
      const ColdBatch part({plan}, rows);
      const int64_t n = part.tokens();
      world.store_and_attend(part.batch(), random.normals(n * shape.width()),
                             random.normals(n * shape.kv_width()),
                             random.normals(n * shape.kv_width()));
      return world.units(rows.batch(), 0, 2);
    };
    const size_t half = nothing.size() / 2;
    const auto same = [](const auto& a, const auto& b, size_t begin, size_t end) {
      return std::equal(a.begin() + static_cast<int64_t>(begin),
                        a.begin() + static_cast<int64_t>(end),
                        b.begin() + static_cast<int64_t>(begin));
    };
    EXPECT_EQ(step({0, 30}), nothing) << device.name;
    EXPECT_EQ(step({30, 1, chain(4)}), nothing) << device.name;
    const std::vector<std::byte> first = step({31, 1});
    EXPECT_FALSE(same(first, nothing, 0, half)) << device.name;
    EXPECT_TRUE(same(first, nothing, half, nothing.size())) << device.name;
    EXPECT_EQ(step({32, 31, chain(3)}), first) << device.name;
    const std::vector<std::byte> second = step({63, 1, chain(2)});
    EXPECT_TRUE(same(second, first, 0, half)) << device.name;
    EXPECT_FALSE(same(second, first, half, nothing.size())) << device.name;
  }
}

constexpr const char* kSome[][2] = {{"q8_0", "q8_0"}, {"c4", "c4"},       {"q4_0", "q4_0"},
                                    {"q8_0", "q4_0"}, {"q8_0", "tbq4_0"}, {"q5_1", "c4"}};

// A GPU differs by rounding; the reference adds nothing here.
std::vector<DeviceCase> exact_sealing_devices() {
  std::vector<DeviceCase> devices = sealing_devices().all;
  std::erase_if(devices, [](const DeviceCase& d) { return d.gpu || d.reference; });
  return devices;
}

std::vector<float> part_of(const std::vector<float>& all, int64_t first, int64_t rows,
                           int64_t width) {
  return {all.begin() + first * width, all.begin() + (first + rows) * width};
}

TEST(KvCold, BytesDoNotDependOnTheCut) {
  for (const DeviceCase& device : exact_sealing_devices()) {
    for (const auto& [k, v] : kSome) {
      for (const int32_t sinks : {0, 1}) {
        Random random(520 + sinks);
        const ColdShape shape{.heads = 4,
                              .kv_heads = 2,
                              .head_dim = 128,
                              .k = codec_of(k),
                              .v = codec_of(v),
                              .tail = {1, sinks}};
        constexpr int32_t kRows = 200;
        const ColdBatch whole({{0, kRows}}, random);
        const std::vector<float> qg = random.normals(kRows * shape.width());
        const std::vector<float> keys = random.normals(kRows * shape.kv_width());
        const std::vector<float> values = random.normals(kRows * shape.kv_width());
        ColdWorld all(device, shape, whole);
        const std::vector<float> expected = all.store_and_attend(whole.batch(), qg, keys, values);
        for (int round = 0; round < 4; ++round) {
          ColdWorld cut(device, shape, whole);
          ColdBatch rows = whole;
          for (int32_t past = 0; past < kRows;) {
            auto n = static_cast<int32_t>(random.between(2, round == 0 ? 7 : 90));
            if (kRows - past - n < 2) n = kRows - past;
            rows = ColdBatch({{past, n}}, rows);
            cut.release(rows);
            const std::vector<float> o =
                cut.store_and_attend(rows.batch(), part_of(qg, past, n, shape.width()),
                                     part_of(keys, past, n, shape.kv_width()),
                                     part_of(values, past, n, shape.kv_width()));
            expect_same(o, part_of(expected, past, n, shape.width()),
                        fmt::format("{} {} {} rows {} at {}", device.name, k, v, n, past));
            past += n;
          }
          EXPECT_EQ(cut.units(whole.batch(), 0, kRows / kBlock),
                    all.units(whole.batch(), 0, kRows / kBlock));
        }
      }
    }
  }
}

TEST(KvCold, BytesDependOnTheSequenceAlone) {
  const std::vector<SequencePlan> plans = {
      {60, 130}, {170, 1}, {700, 1}, {94, 1, {-1, 0, 0, 2, -1}}};
  for (const DeviceCase& device : exact_sealing_devices()) {
    for (const auto& [k, v] : kSome) {
      const ColdShape shape{
          .heads = 6, .kv_heads = 2, .head_dim = 128, .k = codec_of(k), .v = codec_of(v)};
      const auto attended = [&](const DeviceCase& on, const std::vector<SequencePlan>& some,
                                int64_t first) {
        Random random(530);
        const ColdBatch all(plans, random);
        ColdWorld world(on, shape, all);
        world.fill(all.batch(), random);
        world.seal(all.batch());
        const std::vector<float> q = random.normals(all.tokens() * shape.width());
        const ColdBatch rows(some, all);
        return world.attend(rows.batch(), part_of(q, first, rows.tokens(), shape.width()));
      };
      const std::vector<float> expected = attended(device, plans, 0);
      int64_t first = 0;
      for (size_t s = 0; s < plans.size(); ++s) {
        std::vector<SequencePlan> alone(plans.size());
        alone[s] = plans[s];
        const int64_t rows = plans[s].certain + std::ssize(plans[s].parents);
        expect_same(attended(device, alone, first), part_of(expected, first, rows, shape.width()),
                    fmt::format("{} {} {} sequence {}", device.name, k, v, s));
        first += rows;
      }
      for (const DeviceCase& other : other_thread_counts(device))
        expect_same(attended(other, plans, 0), expected, other.name);
    }
  }
}

TEST(KvCold, TreeRowsAreAsCertainOnes) {
  const std::vector<int32_t> parents = {-1, 0, 1, 1, 0, -1, 5, 3, 7, 2, 9, 4};
  for (const DeviceCase& device : exact_sealing_devices()) {
    for (const auto& [k, v] : kSome) {
      const ColdShape shape{
          .heads = 4, .kv_heads = 1, .head_dim = 128, .k = codec_of(k), .v = codec_of(v)};
      const int32_t context = 126;
      Random random(540);
      const ColdBatch rows({{context - 1, 1, parents}}, random);
      const std::vector<float> q = random.normals(rows.tokens() * shape.width());
      ColdWorld tree(device, shape, rows);
      tree.fill(rows.batch(), random);
      tree.seal(rows.batch());
      const std::vector<float> expected = tree.attend(rows.batch(), q);
      for (int32_t node = 0; node < std::ssize(parents); ++node) {
        std::vector<int32_t> path;
        for (int32_t at = node; at >= 0; at = parents[static_cast<size_t>(at)])
          path.insert(path.begin(), at);
        ColdWorld line(device, shape, rows);
        const size_t bytes =
            static_cast<size_t>(tree.kv().blocks * tree.kv().shape.k_block_bytes());
        std::memcpy(line.kv().k, tree.kv().k, bytes);
        std::memcpy(line.kv().v, tree.kv().v, bytes);
        std::vector<CellMove> moves;
        for (size_t i = 0; i < path.size(); ++i) {
          const auto to = static_cast<int32_t>(i);
          if (path[i] > to) moves.push_back({0, context + path[i], context + to});
        }
        line.world().ops().kv_move(line.kv(), moves, rows.batch());
        const ColdBatch single({{context + static_cast<int32_t>(path.size()) - 1, 1}}, rows);
        line.seal(ColdBatch({{context, 0}}, rows).batch());
        expect_same(line.attend(single.batch(), part_of(q, 1 + node, 1, shape.width())),
                    part_of(expected, 1 + node, 1, shape.width()),
                    fmt::format("{} {} {} node {}", device.name, k, v, node));
      }
    }
  }
}

}  // namespace
}  // namespace braid
