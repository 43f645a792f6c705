// tail_scores_test.cpp -- attention of the last rows of a prompt, against plain loops in double.
#include <fmt/format.h>

#include "ops/tests/kv_cold_world_test.h"

namespace braid {
namespace {

using namespace test;

// 16-bit devices take these queries without rounding.
std::vector<float> queries_of(Random& random, int64_t count) {
  std::vector<float> q = random.normals(count, 1.5f);
  for (float& x : q) x = bf16_to_f32(f32_to_bf16(x));
  return q;
}

// Takes the angles of positions out of vectors.
class Angles {
 public:
  Angles(const RopeParams& rope, int32_t positions) : rope_(rope) {
    for (int32_t p = 0; p < positions; ++p) {
      for (int32_t i = 0; i < rope.dims / 2; ++i) {
        const double angle = p * rope_frequency(rope, i);
        of_.push_back({std::cos(angle), std::sin(angle)});
      }
    }
  }
  std::vector<double> without(const std::vector<float>& x, int32_t position) const {
    std::vector<double> y(x.begin(), x.end());
    const auto half = static_cast<size_t>(rope_.dims / 2);
    for (size_t i = 0; i < half; ++i) {
      const auto [cosine, sine] = of_[static_cast<size_t>(position) * half + i];
      y[i] = (x[i] * cosine + x[i + half] * sine) / rope_.magnitude;
      y[i + half] = (x[i + half] * cosine - x[i] * sine) / rope_.magnitude;
    }
    return y;
  }

 private:
  RopeParams rope_;
  std::vector<std::pair<double, double>> of_;
};

struct TailCase {
  Shape shape;
  int32_t rows = 1;           // T'
  std::vector<float> q = {};  // [rows, H * Dh]
  bool plain = false;         // without angles
  RopeParams rope = {};
};

// scores [rows][cols], raised to the probabilities. key(head, cell, own): K as that row reads it.
template <typename Key>
void score_plainly(const TailCase& c, const Batch& batch, const Key& key, int64_t cols,
                   std::vector<float>& scores) {
  const int32_t first = batch.first_row[0] + batch.rows[0] - c.rows;
  const Angles angles(c.plain ? c.rope : RopeParams{}, batch.context[0]);
  const int32_t group = c.shape.heads / c.shape.kv_heads;
  for (int32_t at = 0; at < c.rows * c.shape.kv_heads; ++at) {
    const int32_t i = at / c.shape.kv_heads, kv_head = at % c.shape.kv_heads;
    const int32_t own = batch.position[first + i], lowest = std::min(own, c.shape.first_cell);
    std::vector<std::vector<double>> keys;
    for (int32_t j = lowest; j <= own; ++j) keys.push_back(angles.without(key(kv_head, j, own), j));
    for (int32_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      const auto from = c.q.begin() + i * c.shape.width() + int64_t{h} * c.shape.head_dim;
      const std::vector<double> query = angles.without({from, from + c.shape.head_dim}, own);
      std::vector<double> weights;
      double largest = -INFINITY, total = 0;
      for (const std::vector<double>& k : keys) {
        double sum = 0;
        for (size_t d = 0; d < k.size(); ++d) sum += query[d] * k[d];
        weights.push_back(sum * c.shape.params().scale);
        largest = std::max(largest, weights.back());
      }
      for (double& w : weights) total += w = std::exp(w - largest);
      for (size_t j = 0; j < weights.size(); ++j) {
        float& to = scores[static_cast<size_t>(i * cols + lowest) + j];
        to = std::max(to, static_cast<float>(weights[j] / total));
      }
    }
  }
}

std::vector<float> scored(World& world, const TailCase& c, const KvLayer& kv, const Batch& batch,
                          int64_t cols, const std::vector<float>& before) {
  const Tensor scores = world.tensor(c.rows, cols, before);
  Tensor rope, rope_of_position;
  if (c.plain) {
    rope = world.tensor(batch.tokens, c.rope.dims);
    world.ops().rope_table(rope, c.rope, batch);
    std::vector<int32_t> positions(static_cast<size_t>(cols));
    std::iota(positions.begin(), positions.end(), 0);
    std::vector<int32_t> zeros(positions.size());
    Batch all;
    all.tokens = static_cast<int32_t>(cols);
    all.position = positions.data();
    all.token = all.cell = all.sequence = all.parent = zeros.data();
    rope_of_position = world.tensor(cols, c.rope.dims);
    world.ops().rope_table(rope_of_position, c.rope, all);
  }
  world.ops().tail_scores(scores, world.tensor(c.rows, c.shape.width(), c.q), rope,
                          rope_of_position, static_cast<float>(c.rope.magnitude), c.shape.params(),
                          kv, batch);
  world.device().synchronize();
  return values_of(scores);
}

struct Outcome {
  std::vector<float> actual, expected;
};
// `sequences`: sequence 0 is the one that is scored. Tail columns and negative numbers must stay.
Outcome outcome_of(const DeviceCase& device, TailCase c, const std::vector<SequencePlan>& sequences,
                   uint64_t seed, int calls = 1) {
  Random random(seed);
  const TestBatch rows(sequences, random);
  Cells cells(device, c.shape, rows, 1 << 30, random);
  const Batch& batch = rows.batch();
  const int64_t cols = batch.context[0] + 5;
  Outcome out;
  out.expected.assign(static_cast<size_t>(c.rows * cols), -1.0f);
  out.actual = out.expected;
  for (int i = 0; i < calls; ++i) {
    c.q = queries_of(random, c.rows * c.shape.width());
    const auto key = [&](int32_t head, int32_t cell, int32_t) {
      return decode(c.shape.k, cells.k_row(batch, 0, cell, head), c.shape.head_dim);
    };
    score_plainly(c, batch, key, cols, out.expected);
    out.actual = scored(cells.world, c, cells.kv, batch, cols, out.actual);
  }
  return out;
}

std::vector<TailCase> tail_cases() {
  const RopeParams yarn{
      .dims = 32, .freq_base = 1e4, .factor = 4, .original_context = 512, .magnitude = 1.3};
  return {
      {{.heads = 2, .kv_heads = 2, .head_dim = 64}, 1},
      {{.heads = 4, .kv_heads = 1, .head_dim = 128}, 3},
      {{.heads = 8, .kv_heads = 1, .head_dim = 64, .k = KvFormat::bf16}, 8},
      {{.heads = 8, .kv_heads = 2, .head_dim = 256, .k = KvFormat::f32}, 16},
      {{.heads = 16, .kv_heads = 2, .head_dim = 128, .window = 40}, 16},
      {{.heads = 4, .kv_heads = 2, .head_dim = 64, .first_cell = 3}, 3},
      {{.heads = 2, .kv_heads = 2, .head_dim = 64}, 3, {}, true, {.dims = 64}},
      {{.heads = 4, .kv_heads = 1, .head_dim = 128, .k = KvFormat::f32}, 8, {}, true, yarn},
      {{.heads = 8, .kv_heads = 1, .head_dim = 256, .k = KvFormat::bf16}, 1, {}, true, yarn},
      {{.heads = 12, .kv_heads = 3, .head_dim = 96, .window = 7},
       16,
       {},
       true,
       {.dims = 20, .magnitude = 0.7}},
  };
}
const std::vector<std::vector<SequencePlan>> kPrompts = {
    {{0, 16}}, {{20, 30}, {7, 2}}, {{700, 40}, {90, 3}}, {{1500, 17}}};

TEST(TailScores, AgreeWithPlainLoops) {
  for (const DeviceCase& device : sequence_devices()) {
    uint64_t seed = 40;
    for (const TailCase& c : tail_cases()) {
      for (const auto& sequences : kPrompts) {
        const Outcome out = outcome_of(device, c, sequences, ++seed);
        expect_close(out.actual, out.expected, 1e-6, 5e-5,
                     fmt::format("{} heads {} rows {} past {} without angles: {}", device.name,
                                 c.shape.heads, c.rows, sequences[0].past, c.plain));
      }
    }
  }
}

// Layers raise the scores of layers before them.
TEST(TailScores, CallsAccumulate) {
  for (const DeviceCase& device : sequence_devices()) {
    const Outcome out = outcome_of(device, tail_cases()[2], {{300, 20}}, 7, 3);
    expect_close(out.actual, out.expected, 1e-6, 5e-5, device.name);
  }
}

TEST(TailScores, DoNotDependOnThreads) {
  for (const DeviceCase& device : sequence_devices()) {
    if (other_thread_counts(device).empty()) continue;
    for (const TailCase& c : tail_cases()) {
      const Outcome one = outcome_of(device, c, kPrompts[2], 9);
      for (const DeviceCase& other : other_thread_counts(device))
        expect_same(outcome_of(other, c, kPrompts[2], 9).actual, one.actual, other.name);
    }
  }
}

TEST(TailScores, OneHeadSumsToOne) {
  for (const DeviceCase& device : sequence_devices()) {
    const TailCase c{{.heads = 1, .kv_heads = 1, .head_dim = 64}, 4};
    const Outcome out = outcome_of(device, c, {{900, 70}}, 11);
    for (int32_t i = 0; i < c.rows; ++i) {
      double sum = 0;
      const int64_t cols = 970 + 5;
      for (int64_t j = 0; j < cols; ++j) {
        const float x = out.actual[static_cast<size_t>(i * cols + j)];
        if (j <= 966 + i)
          sum += x;
        else
          EXPECT_EQ(x, -1.0f) << device.name;
      }
      EXPECT_NEAR(sum, 1, 1e-5) << device.name;
    }
  }
}

// Blocks that the rows read from units, also where only some of them do; others are freed.
TEST(TailScores, ReadUnitsOfEveryFormat) {
  static const SealingDevices devices = sealing_devices();
  uint64_t seed = 60;
  for (const KvCodec* codec : kv_codecs()) {
    for (const bool plain : {false, true}) {
      const KvTail tail{.tail_blocks = 1, .sink_blocks = plain ? 1 : 0};
      const ColdShape cold{
          .heads = 4, .kv_heads = 2, .head_dim = 128, .k = codec, .v = codec, .tail = tail};
      TailCase c{{.heads = 4, .kv_heads = 2, .head_dim = 128}, 16, {}, plain, {.dims = 64}};
      const std::vector<SequencePlan> sequences = {{600, 47}, {70, 1}};
      ++seed;
      for (const DeviceCase& device : devices.all) {
        Random random(seed);
        ColdBatch rows(sequences, random);
        ColdWorld world(device, cold, rows);
        world.fill(rows.batch(), random);
        world.seal(rows.batch());
        c.q = queries_of(random, c.rows * c.shape.width());
        const Batch before = rows.batch();
        std::map<std::tuple<int32_t, int32_t, bool>, std::vector<float>> blocks;
        const auto key = [&](int32_t head, int32_t cell, int32_t own) {
          const bool exact = tail.reads_exact(own, cell);
          std::vector<float>& block = blocks[{head, cell / kBlockTokens, exact}];
          if (block.empty()) {
            const auto hot =
                hot_rows(world.kv(), KvSide::k, before.blocks_of(0)[cell / kBlockTokens], head);
            block =
                exact ? kv_test::floats_of(hot) : kv_test::round_trip(*codec, 128, KvSide::k, hot);
          }
          const auto from = block.begin() + int64_t{cell % kBlockTokens} * 128;
          return std::vector<float>(from, from + 128);
        };
        const int64_t cols = before.context[0];
        std::vector<float> expected(static_cast<size_t>(c.rows * cols));
        score_plainly(c, before, key, cols, expected);
        world.release(rows);
        const std::vector<float> actual = scored(world.world(), c, world.kv(), rows.batch(), cols,
                                                 std::vector<float>(expected.size()));
        // A GPU makes f16 of units.
        expect_close(actual, expected, device.gpu ? 1e-5 : 1e-6, device.gpu ? 1e-2 : 1e-4,
                     fmt::format("{} {}", device.name, codec->name));
      }
    }
  }
}

}  // namespace
}  // namespace braid
