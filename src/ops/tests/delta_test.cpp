// delta_test.cpp -- the gated delta rule over certain rows and trees, on every device.
// Outputs are normalized, so absolute tolerances are relative to about 1.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/tests/delta_world_test.h"

namespace braid {
namespace {

using namespace test;

struct StepResult {
  std::vector<float> o;
  std::vector<float> states;   // of all slots, then conv rings of sequences
  std::vector<float> entries;  // of uncertain rows, with their convolution inputs
};

StepResult step(const DeviceCase& device, const DeltaShape& shape,
                const std::vector<SequencePlan>& plans, uint64_t seed) {
  Random random(seed);
  const TestBatch rows(plans, random);
  const Batch& batch = rows.batch();
  Delta delta(device, shape, rows.slots(), random);
  for (int32_t s = 0; s < batch.sequences; ++s) {
    const int32_t past = batch.context[s] - batch.certain[s];
    delta.stand(batch.slot[s], past, static_cast<int32_t>(random.between(0, std::min(past, 7))),
                random);
  }
  StepResult result;
  result.o = delta.run(rows, delta.random_rows(rows.tokens(), random));
  std::vector<int32_t> reached(static_cast<size_t>(rows.slots()), 0);
  for (int32_t s = 0; s < batch.sequences; ++s) reached[batch.slot[s]] = batch.context[s];
  for (int32_t s = 0; s < rows.slots(); ++s) {
    for (float v : delta.states(s, reached[s])) result.states.push_back(v);
  }
  const DeltaLayer& layer = delta.layer;
  for (int32_t s = 0; s < batch.sequences; ++s) {
    const int32_t slot = batch.slot[s];
    for (float v : delta.history(slot, batch.context[s])) result.states.push_back(v);
    for (int32_t cell = batch.context[s];
         cell < batch.context[s] + batch.rows[s] - batch.certain[s]; ++cell) {
      const auto keep = [&](const float* data, int64_t width) {
        result.entries.insert(result.entries.end(), data, data + width);
      };
      keep(layer.key(slot, cell, 0), shape.key_width());
      keep(layer.delta(slot, cell, 0), shape.value_width());
      keep(layer.gate(slot, cell), shape.value_heads);
      keep(layer.conv_row(slot, cell), shape.channels());
    }
  }
  return result;
}

TEST(Delta, AgreesWithTheReferenceOnRandomBatches) {
  for (const DeviceCase& device : sequence_devices()) {
    uint64_t seed = 700;
    for (const DeltaShape& shape : kShapes) {
      for (int round = 0; round < 3; ++round) {
        Random random(++seed);
        const auto plans =
            random_plans(random, static_cast<int32_t>(random.between(1, 6)), 60, 40, 24);
        const StepResult actual = step(device, shape, plans, seed);
        const StepResult expected = step(reference_for(device), shape, plans, seed);
        const std::string what = device.name + " seed " + std::to_string(seed);
        expect_close(actual.o, expected.o, outputs(device), outputs(device), what + " o");
        expect_close(actual.states, expected.states, kTolerance, kTolerance, what + " states");
        expect_close(actual.entries, expected.entries, kTolerance, kTolerance, what + " entries");
        for (const DeviceCase& other : other_thread_counts(device)) {
          const StepResult same = step(other, shape, plans, seed);
          expect_same(same.o, actual.o, other.name);
          expect_same(same.states, actual.states, other.name);
          expect_same(same.entries, actual.entries, other.name);
        }
      }
    }
  }
}

TEST(Delta, SixtyFourUncertainRows) {
  for (const DeviceCase& device : sequence_devices()) {
    Random random(5);
    for (const auto& parents : {chain(64), random_tree(64, random), std::vector<int32_t>(64, -1)}) {
      const StepResult actual = step(device, kShapes[1], {{9, 1, parents}}, 6);
      const StepResult expected = step(reference_for(device), kShapes[1], {{9, 1, parents}}, 6);
      expect_close(actual.o, expected.o, outputs(device), outputs(device), device.name);
      expect_close(actual.entries, expected.entries, kTolerance, kTolerance, device.name);
    }
  }
}

// Runs of every length around the border of a device's chunks. A chunk form rounds more than the
// recurrence: 1e-3 (relative RMS), up to 1e-2 for single values that the norm made large.
void expect_long_run(const std::vector<float>& actual, const std::vector<float>& expected,
                     const DeviceCase& device, const std::string& what) {
  const double each = device.gpu ? 1e-2 : kTolerance;
  expect_close(actual, expected, each, each, what);
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < std::min(actual.size(), expected.size()); ++i) {
    error += (double{actual[i]} - expected[i]) * (double{actual[i]} - expected[i]);
    size += double{expected[i]} * expected[i];
  }
  EXPECT_LE(std::sqrt(error), (device.gpu ? 1e-3 : kTolerance) * std::sqrt(size)) << what;
}

TEST(Delta, LongRunsAgreeWithTheReference) {
  std::vector<std::vector<SequencePlan>> cases = {
      {{0, 512}},
      {{64, 63}},
      {{1, 64}, {128, 128}},
      {{63, 65}, {0, 1}, {100, 49}, {0, 48}, {7, 200, chain(3)}},
      {{3000, 190}, {17, 1}, {0, 0}, {40, 300}}};
  for (const DeviceCase& device : sequence_devices()) {
    for (size_t i = 0; i < cases.size(); ++i) {
      for (const DeltaShape& shape : {kShapes[i % 2], kShapes[5]}) {
        const StepResult actual = step(device, shape, cases[i], 80 + i);
        const StepResult expected = step(reference_for(device), shape, cases[i], 80 + i);
        const std::string what =
            device.name + " case " + std::to_string(i) + (shape.grouped ? " grouped" : "");
        expect_long_run(actual.o, expected.o, device, what + " o");
        expect_long_run(actual.states, expected.states, device, what + " states");
        expect_long_run(actual.entries, expected.entries, device, what + " entries");
      }
    }
  }
}

TEST(Delta, RunsOfEveryLengthFollowEachOther) {
  const DeltaShape& shape = kShapes[0];
  for (const DeviceCase& device : sequence_devices()) {
    auto run = [&](const DeviceCase& on) {
      Random random(83);
      const TestBatch like({{2000, 1}}, random);
      Delta delta(on, shape, like.slots(), random);
      delta.stand(like.batch().slot[0], 0, 0, random);
      std::vector<float> all;
      int32_t at = 0;
      for (int32_t rows :
           {47, 48, 49, 50, 63, 64, 65, 1, 79, 80, 81, 3, 127, 128, 129, 191, 192, 193, 2}) {
        for (float v : delta.run(TestBatch({{at, rows}}, like), delta.random_rows(rows, random)))
          all.push_back(v);
        at += rows;
      }
      for (float v : delta.states(like.batch().slot[0], at)) all.push_back(v);
      return all;
    };
    expect_long_run(run(device), run(reference_for(device)), device, device.name);
  }
}

// Blocks, clusters and grids differ, bytes do not.
TEST(Delta, ManySequencesGiveTheBytesOfOne) {
  for (const DeviceCase& device : sequence_devices()) {
    Random random(87);
    const int32_t sequences = device.gpu ? 210 : 70;
    const std::vector<SequencePlan> plans(static_cast<size_t>(sequences), SequencePlan{33, 1});
    const TestBatch whole(plans, random);
    Delta together(device, kShapes[1], whole.slots(), random, sequences);
    together.stand(whole, random);
    const Rows inputs = together.random_rows(whole.tokens(), random);
    std::vector<std::vector<float>> start;
    for (int32_t s = 0; s < whole.slots(); ++s) start.push_back(together.bytes(s));
    const std::vector<float> expected = together.run(whole, inputs);
    for (size_t s : {size_t{0}, size_t{13}, plans.size() - 1}) {
      const int32_t slot = whole.batch().slot[s];
      const std::vector<float> expected_slot = together.bytes(slot);
      std::copy(start[slot].begin(), start[slot].end(), together.layer.slot(slot));
      const TestBatch alone(plans[s], whole, static_cast<int32_t>(s));
      const auto rows = range(whole.batch().first_row[s], 1);
      const std::vector<float> o = together.run(alone, together.picked(inputs, rows));
      expect_same(o, pick(expected, kShapes[1].value_width(), rows), device.name);
      expect_same(together.bytes(slot), expected_slot, device.name);
    }
  }
}

void expect_bytes_of_steps(const DeviceCase& device, const DeltaShape& shape, int32_t sequences) {
  constexpr int32_t kRows = 3;
  const std::string what = device.name + ", " + std::to_string(sequences) + " sequences";
  Random random(88);
  const TestBatch whole(std::vector<SequencePlan>(sequences, {0, kRows}), random);
  Delta delta(device, shape, whole.slots(), random, sequences * kRows);
  const Rows inputs = delta.random_rows(whole.tokens(), random);
  std::vector<std::vector<float>> start;
  for (int32_t s = 0; s < whole.slots(); ++s) start.push_back(delta.bytes(s));
  const std::vector<float> expected = delta.run(whole, inputs);
  std::vector<std::vector<float>> after;
  for (int32_t s = 0; s < whole.slots(); ++s) {
    after.push_back(delta.bytes(s));
    std::copy(start[s].begin(), start[s].end(), delta.layer.slot(s));
  }
  for (int32_t row = 0; row < kRows; ++row) {
    std::vector<int32_t> rows;
    for (int32_t s = 0; s < sequences; ++s) rows.push_back(whole.batch().first_row[s] + row);
    const TestBatch step(std::vector<SequencePlan>(sequences, {row, 1}), whole);
    const std::vector<float> o = delta.run(step, delta.picked(inputs, rows));
    expect_same(o, pick(expected, shape.value_width(), rows), what);
  }
  for (int32_t s = 0; s < whole.slots(); ++s) expect_same(delta.bytes(s), after[s], what);
}

TEST(Delta, RowsInOneStepGiveTheBytesOfSteps) {
  for (const DeviceCase& device : sequence_devices()) {
    if (World(device).device().delta_ring(0).every > 0) continue;
    for (const DeltaShape& shape : {kShapes[1], kShapes[2], kShapes[3], kShapes[5], kShapes[6]})
      expect_bytes_of_steps(device, shape, 70);
  }
}

TEST(Delta, WritesOnlyItsSlots) {
  for (const DeviceCase& device : sequence_devices()) {
    Random random(11);
    const TestBatch rows({{4, 3, {-1, 0, 0}}, {9, 0, {-1, 0}}, {0, 2}, {30, 0}, {17, 1}}, random);
    const Batch& batch = rows.batch();
    const DeltaShape& shape = kShapes[3];
    Delta delta(device, shape, rows.slots(), random);
    delta.stand(rows, random);
    std::vector<std::vector<float>> before;
    for (int32_t s = 0; s < rows.slots(); ++s) before.push_back(delta.bytes(s));
    const std::vector<float> o = delta.run(rows, delta.random_rows(rows.tokens(), random));
    for (const float value : o) ASSERT_NE(value, kUntouched) << device.name;
    std::vector<bool> runs(static_cast<size_t>(rows.slots()), false);
    for (int32_t s = 0; s < batch.sequences; ++s) runs[batch.slot[s]] = batch.rows[s] > 0;
    for (int32_t s = 0; s < rows.slots(); ++s)
      EXPECT_EQ(delta.bytes(s) != before[s], runs[s]) << device.name << " slot " << s;
    const int32_t tree = batch.slot[1];
    EXPECT_TRUE(std::equal(before[tree].begin(), before[tree].begin() + shape.state_elements(),
                           delta.layer.slot(tree)))
        << device.name;
  }
}

TEST(Delta, FreshSequenceIgnoresWhatTheSlotHeld) {
  for (const DeviceCase& device : sequence_devices()) {
    Random random(13);
    const TestBatch rows({{0, 9, chain(2)}}, random);
    Delta delta(device, kShapes[1], rows.slots(), random);
    const Rows inputs = delta.random_rows(rows.tokens(), random);
    const int32_t slot = rows.batch().slot[0];
    const std::vector<float> first = delta.run(rows, inputs);
    const std::vector<float> state = delta.states(slot, 9);
    std::fill_n(delta.layer.slot(slot), delta.layer.slot_elements(), NAN);
    expect_same(delta.run(rows, inputs), first, device.name);
    expect_same(delta.states(slot, 9), state, device.name);
    std::fill_n(delta.layer.slot(slot), delta.layer.slot_elements(), 0.0f);  // as allocated
    expect_same(delta.run(rows, inputs), first, device.name);
  }
}

// Where a lone row leaves an entry instead of folding, a cut leaves at least two rows.
TEST(Delta, FourThousandTokensCutAnywhereGiveTheSameBytes) {
  constexpr int32_t kTokens = 4096;
  for (const DeviceCase& device : sequence_devices()) {
    const int32_t least = World(device).device().delta_ring(0).every > 0 ? 2 : 1;
    std::vector<float> expected_o;
    std::vector<float> expected_slot;
    for (int cut = 0; cut < 4; ++cut) {
      Random random(17);
      const TestBatch like({{kTokens, 1}}, random);
      Delta delta(device, kSmall, like.slots(), random, 1, 0);
      const Rows inputs = delta.random_rows(kTokens, random);
      Random cuts(static_cast<uint64_t>(cut));
      std::vector<float> o;
      for (int32_t at = 0; at < kTokens;) {
        // Whole steps; single tokens, then whole steps; random steps.
        int64_t wanted = cut == 0 ? 512 : cuts.between(least, 300);
        if (cut == 1) wanted = at < 200 ? least : 512;
        auto count = static_cast<int32_t>(std::min<int64_t>(wanted, kTokens - at));
        if (const int32_t rest = kTokens - at - count; rest > 0 && rest < least) count += rest;
        const TestBatch piece({{at, count}}, like);
        for (float v : delta.run(piece, delta.picked(inputs, range(at, count)))) o.push_back(v);
        at += count;
      }
      const int32_t slot = like.batch().slot[0];
      if (cut == 0) {
        expected_o = o;
        expected_slot = delta.bytes(slot);
        for (float v : o) ASSERT_TRUE(std::isfinite(v));
      }
      expect_same(o, expected_o, device.name);
      expect_same(delta.bytes(slot), expected_slot, device.name);
    }
  }
}

TEST(Delta, LongRunsStayWithTheReference) {
  auto long_run = [](const DeviceCase& device) {
    Random random(19);
    const TestBatch like({{3000, 1}}, random);
    Delta delta(device, kSmall, like.slots(), random);
    std::vector<float> o;
    for (int32_t at = 0; at < 3000; at += 500) {
      for (float v : delta.run(TestBatch({{at, 500}}, like), delta.random_rows(500, random)))
        o.push_back(v);
    }
    for (float v : delta.states(like.batch().slot[0], 3000)) o.push_back(v);
    return o;
  };
  for (const DeviceCase& device : sequence_devices()) {
    expect_close(long_run(device), long_run(reference_for(device)), device.tolerance(2e-5),
                 device.tolerance(2e-5), device.name);
  }
}

TEST(Delta, CompanyChangesNothing) {
  for (const DeviceCase& device : sequence_devices()) {
    Random random(23);
    const std::vector<SequencePlan> plans = {
        {5, 20}, {9, 1}, {3, 2, {-1, 0, 0, 2}}, {7, 0, {-1, -1, 1}}};
    const TestBatch whole(plans, random);
    Delta together(device, kShapes[1], whole.slots(), random);
    together.stand(whole, random);
    const Rows inputs = together.random_rows(whole.tokens(), random);
    std::vector<std::vector<float>> start;
    for (int32_t s = 0; s < whole.slots(); ++s) start.push_back(together.bytes(s));
    const std::vector<float> expected = together.run(whole, inputs);
    for (size_t s = 0; s < plans.size(); ++s) {
      const int32_t slot = whole.batch().slot[s];
      const std::vector<float> expected_slot = together.bytes(slot);
      std::copy(start[slot].begin(), start[slot].end(), together.layer.slot(slot));
      std::vector<SequencePlan> alone(plans.size());
      alone[s] = plans[s];
      const TestBatch part(alone, whole);
      const auto rows = range(whole.batch().first_row[s], part.tokens());
      const std::vector<float> o = together.run(part, together.picked(inputs, rows));
      expect_same(o, pick(expected, kShapes[1].value_width(), rows), device.name);
      expect_same(together.bytes(slot), expected_slot, device.name);
    }
  }
}

// No convolution mixing, gates from closed forms.
struct Chosen {
  Delta delta;
  TestBatch like;

  Chosen(const DeviceCase& device, Random& random)
      : delta(device, kSmall, 3, random), like({{1000, 1}}, random) {
    std::vector<float> conv(static_cast<size_t>(kSmall.channels() * kSmall.conv_width), 0.0f);
    for (int64_t c = 0; c < kSmall.channels(); ++c)
      conv[c * kSmall.conv_width + kSmall.conv_width - 1] = 1.0f;
    delta.weights.conv = delta.world.array(conv);
    delta.weights.a = delta.world.array({-4.0f, -4.0f});
    delta.weights.dt = delta.world.array({0.0f, 0.0f});
  }
  int32_t slot() const { return like.batch().slot[0]; }
  void stand(int32_t position, Random& random) { delta.stand(slot(), position, 0, random); }
  // One row; softplus(20 + small) = its argument and softplus(-200) = 0.
  Rows row(int32_t key, float g, float beta, Random& random) const {
    Rows rows = delta.random_rows(1, random);
    for (int32_t i = 0; i < kSmall.key_dim; ++i) {
      rows.qkv[i] = i == key ? 30.0f : 0.0f;
      rows.qkv[kSmall.key_dim + i] = i == key ? 30.0f : 0.0f;
    }
    for (float& alpha : rows.alpha) alpha = g == 0 ? -200.0f : g / -4.0f;
    for (float& value : rows.beta) value = beta == 1 ? 200.0f : -200.0f;
    return rows;
  }
  void run(int32_t position, const Rows& rows) {
    delta.run(TestBatch({{position, 1}}, like), rows);
  }
};

float silu(float x) { return x / (1 + std::exp(-x)); }

TEST(Delta, StrongDecayForgetsWithoutNan) {
  for (const DeviceCase& device : exact_devices()) {
    for (float g : {-80.0f, -103.0f, -400.0f}) {
      Random random(29);
      Chosen chosen(device, random);
      const Rows rows = chosen.row(3, g, 1, random);
      chosen.stand(7, random);
      chosen.run(7, rows);
      const std::vector<float> states = chosen.delta.states(chosen.slot(), 8);
      for (int32_t h = 0; h < 2; ++h) {
        for (int32_t k = 0; k < 32; ++k) {
          for (int32_t v = 0; v < 32; ++v) {
            const float expected = k == 3 ? silu(rows.qkv[64 + h * 32 + v]) : 0.0f;
            ASSERT_NEAR(states[static_cast<size_t>((h * 32 + k) * 32 + v)], expected, 3e-6)
                << device.name << " g " << g;
          }
        }
      }
    }
  }
}

TEST(Delta, OrthonormalKeysReturnStoredValues) {
  for (const DeviceCase& device : exact_devices()) {
    Random random(31);
    Chosen chosen(device, random);
    std::vector<Rows> stored;
    for (int32_t key = 0; key < 32; ++key) {
      stored.push_back(chosen.row(key, 0, 1, random));
      chosen.run(key, stored.back());
    }
    const std::vector<float> states = chosen.delta.states(chosen.slot(), 32);
    for (int32_t h = 0; h < 2; ++h) {
      for (int32_t k = 0; k < 32; ++k) {
        for (int32_t v = 0; v < 32; ++v) {
          const float expected = silu(stored[k].qkv[64 + h * 32 + v]);
          ASSERT_NEAR(states[static_cast<size_t>((h * 32 + k) * 32 + v)], expected, 3e-6)
              << device.name;
        }
      }
    }
  }
}

TEST(Delta, BetaZeroOnlyDecays) {
  for (const DeviceCase& device : exact_devices()) {
    for (float g : {0.0f, -84.0f}) {
      Random random(37);
      Chosen chosen(device, random);
      chosen.stand(3, random);
      std::vector<float> expected = chosen.delta.states(chosen.slot(), 3);
      for (float& v : expected) v = static_cast<float>(v * std::exp(double{g}));
      chosen.run(3, chosen.row(1, g, 0, random));
      expect_close(chosen.delta.states(chosen.slot(), 4), expected, 1e-30, 2e-6, device.name);
    }
  }
}

// With states cleared before each token and one key, S[key] is the convolution of the values.
TEST(Delta, ConvolutionOfAnImpulseIsItsTaps) {
  for (const DeviceCase& device : exact_devices()) {
    Random random(41);
    Chosen chosen(device, random);
    std::vector<float> conv(static_cast<size_t>(kSmall.channels() * 4), 0.0f);
    for (int64_t c = 0; c < kSmall.channels(); ++c) {
      for (int64_t j = 0; j < 4; ++j)
        conv[c * 4 + j] = c < 64 ? (j == 3 ? 1.0f : 0.0f) : random.normal();
    }
    chosen.delta.weights.conv = chosen.delta.world.array(conv);
    constexpr int32_t kChannel = 64 + 32 + 5;  // value 5 of head 1
    for (int32_t position = 0; position < 9; ++position) {
      Rows rows = chosen.row(0, -80, 1, random);
      std::fill(rows.qkv.begin() + 64, rows.qkv.end(), 0.0f);
      if (position == 2) rows.qkv[kChannel] = 1.0f;
      chosen.run(position, rows);
      const int32_t since = position - 2;
      const float tap = since >= 0 && since < 4 ? conv[kChannel * 4 + 3 - since] : 0.0f;
      EXPECT_NEAR(chosen.delta.state(chosen.slot(), position + 1, 1, 0, 5), silu(tap), 1e-6)
          << device.name << " " << position;
      EXPECT_EQ(chosen.delta.state(chosen.slot(), position + 1, 1, 0, 6), 0.0f) << device.name;
    }
  }
}

std::vector<int32_t> path_to(int32_t node, const std::vector<int32_t>& parents) {
  std::vector<int32_t> path;
  for (int32_t at = node; at >= 0; at = parents[at]) path.insert(path.begin(), at);
  return path;
}

TEST(DeltaTree, EveryNodeAgreesWithTheRecurrenceAlongItsPath) {
  Random shapes(43);
  const std::vector<std::vector<int32_t>> trees = {chain(1),
                                                   chain(17),
                                                   random_tree(23, shapes),
                                                   random_tree(40, shapes),
                                                   {-1, 0, 0, 0, 1, 1, 2, -1, 7, 8}};
  for (const DeviceCase& device : sequence_devices()) {
    for (const DeltaShape& shape : {kShapes[1], kShapes[3], kShapes[4]}) {
      for (const auto& parents : trees) {
        Random random(47);
        const int32_t context = 2;  // convolution windows reach before the sequence
        const TestBatch rows({{context, 0, parents}, {context, 0, chain(64)}}, random);
        Delta delta(device, shape, rows.slots(), random);
        delta.stand(rows, random);
        const TestBatch tree({{context, 0, parents}, {}}, rows);
        const Rows inputs = delta.random_rows(tree.tokens(), random);
        const std::vector<float> peeked = delta.run(tree, inputs);
        for (int32_t node = 0; node < std::ssize(parents); ++node) {
          const auto path = path_to(node, parents);
          delta.copy_slot(rows.batch().slot[1], rows.batch().slot[0]);
          const TestBatch along({{}, {context, static_cast<int32_t>(path.size())}}, rows);
          const std::vector<float> o = delta.run(along, delta.picked(inputs, path));
          expect_close(row_of(peeked, node, shape.value_width()),
                       row_of(o, std::ssize(path) - 1, shape.value_width()), outputs(device),
                       outputs(device), device.name + " node " + std::to_string(node));
        }
      }
    }
  }
}

TEST(DeltaTree, TwinBranchesAgreeAndSiblingsMayChangePlaces) {
  for (const DeviceCase& device : sequence_devices()) {
    Random random(53);
    const DeltaShape shape = kShapes[1];
    const TestBatch twins({{6, 1, {-1, 0, 1, -1, 3, 4}}}, random);
    Delta delta(device, shape, twins.slots(), random);
    delta.stand(twins, random);
    const Rows distinct = delta.random_rows(4, random);
    const std::vector<float> start = delta.bytes(twins.batch().slot[0]);
    const std::vector<float> o = delta.run(twins, delta.picked(distinct, {0, 1, 2, 3, 1, 2, 3}));
    for (int64_t i = 1; i <= 3; ++i) {
      expect_close(row_of(o, i + 3, shape.value_width()), row_of(o, i, shape.value_width()),
                   device.tolerance(1e-6), device.tolerance(1e-6), device.name);
    }
    auto run = [&](const std::vector<int32_t>& parents, const std::vector<int32_t>& order) {
      std::copy(start.begin(), start.end(), delta.layer.slot(twins.batch().slot[0]));
      return delta.run(TestBatch({{6, 1, parents}}, twins), delta.picked(distinct, order));
    };
    const std::vector<float> a = run({-1, 0, 0}, {0, 1, 2, 3});
    const std::vector<float> b = run({-1, 0, 0}, {0, 1, 3, 2});
    expect_close(row_of(a, 2, shape.value_width()), row_of(b, 3, shape.value_width()),
                 device.tolerance(1e-6), device.tolerance(1e-6), device.name);
    expect_close(row_of(a, 3, shape.value_width()), row_of(b, 2, shape.value_width()),
                 device.tolerance(1e-6), device.tolerance(1e-6), device.name);
  }
}

// Decays of very different size on separate branches must not share an exponent.
TEST(DeltaTree, BranchesOfUnequalDecayStayFinite) {
  auto run = [](const DeviceCase& device) {
    Random random(59);
    const TestBatch rows({{6, 0, {-1, 0, 0, 1, 2, 3, 4}}}, random);
    Delta delta(device, kSmall, rows.slots(), random);
    delta.stand(rows, random);
    delta.weights.a = delta.world.array({-4.0f, -30.0f});
    Rows inputs = delta.random_rows(rows.tokens(), random);
    // g = -160, -1200
    for (int32_t t : {1, 3, 5}) inputs.alpha[t * 2] = inputs.alpha[t * 2 + 1] = 40.0f;
    for (int32_t t : {2, 4, 6}) inputs.alpha[t * 2] = inputs.alpha[t * 2 + 1] = -40.0f;
    return delta.run(rows, inputs);
  };
  for (const DeviceCase& device : sequence_devices()) {
    expect_close(run(device), run(reference_for(device)), outputs(device), outputs(device),
                 device.name);
  }
}

TEST(StateCopy, CopiesTheWholeSlot) {
  for (const DeviceCase& device : sequence_devices()) {
    Random random(73);
    Delta delta(device, kShapes[2], 4, random);
    const std::vector<float> source = delta.bytes(1);
    const std::vector<float> neighbour = delta.bytes(3);
    delta.copy_slot(2, 1);
    delta.world.device().synchronize();
    expect_same(delta.bytes(2), source, device.name);
    expect_same(delta.bytes(1), source, device.name);
    expect_same(delta.bytes(3), neighbour, device.name);
  }
}

}  // namespace
}  // namespace braid
