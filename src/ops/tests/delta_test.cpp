// delta_test.cpp -- the gated delta rule in its three forms (advance, peek, commit), on every device.
//
// Inputs of unit scale; states of a few tenths with a random decay beside them. Outputs are normalised, so
// absolute tolerances are relative to about 1.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/tests/op_test.h"

namespace braid {
namespace {

using namespace test;

constexpr float kUntouched = -7777.0f;
constexpr double kTolerance = 1e-5;
double outputs(const DeviceCase& device) { return device.tolerance(kTolerance); }

const DeltaShape kShapes[] = {
    {.key_heads = 1, .value_heads = 1, .key_dim = 128, .value_dim = 128, .conv_width = 4},
    {.key_heads = 2, .value_heads = 4, .key_dim = 128, .value_dim = 128, .conv_width = 4},
    {.key_heads = 2, .value_heads = 6, .key_dim = 64, .value_dim = 128, .conv_width = 4},
    {.key_heads = 4, .value_heads = 4, .key_dim = 32, .value_dim = 64, .conv_width = 4},
    {.key_heads = 1, .value_heads = 2, .key_dim = 32, .value_dim = 32, .conv_width = 3},
    {.key_heads = 2, .value_heads = 4, .key_dim = 128, .value_dim = 128, .conv_width = 4, .grouped = true},
    {.key_heads = 2, .value_heads = 6, .key_dim = 32, .value_dim = 32, .conv_width = 4, .grouped = true},
};
const DeltaShape kSmall = {.key_heads = 1, .value_heads = 2, .key_dim = 32, .value_dim = 32, .conv_width = 4};

struct Rows {
  std::vector<float> qkv, z, alpha, beta;
};
std::vector<float> pick(const std::vector<float>& all, int64_t width, const std::vector<int32_t>& rows) {
  std::vector<float> some;
  for (int32_t row : rows)
    some.insert(some.end(), all.begin() + row * width, all.begin() + (row + 1) * width);
  return some;
}
std::vector<int32_t> range(int32_t first, int32_t count) {
  std::vector<int32_t> rows;
  for (int32_t i = 0; i < count; ++i) rows.push_back(first + i);
  return rows;
}

// A device with one delta layer whose slots hold random states.
struct Delta {
  DeltaShape shape;
  World world;
  DeltaLayer layer;
  DeltaWeights weights;

  Delta(const DeviceCase& device, const DeltaShape& delta_shape, int32_t slots, Random& random,
        int32_t most_sequences = 16)
      : shape(delta_shape), world(device) {
    Device::WorkspaceNeeds needs;
    needs.max_sequences = most_sequences;
    needs.delta = shape;
    needs.max_width = shape.channels();
    world.prepare({}, needs);
    layer = world.delta_layer(shape, slots);
    weights.conv = world.array(random.normals(shape.channels() * shape.conv_width, 0.6f));
    std::vector<float> a;
    for (int32_t h = 0; h < shape.value_heads; ++h) a.push_back(-random.uniform(0.02f, 1.5f));
    weights.a = world.array(a);
    weights.dt = world.array(random.normals(shape.value_heads));
    std::vector<float> norm;
    for (int32_t i = 0; i < shape.value_dim; ++i) norm.push_back(random.uniform(0.5f, 1.5f));
    weights.norm = world.array(norm);
    weights.eps = 1e-6f;
    for (int32_t s = 0; s < slots; ++s) fill(s, random);
  }

  float& stored(int32_t s, int32_t h, int32_t key, int32_t value) const {
    const int64_t tile = value / layer.tile_columns;
    return layer.state(s, h)[(tile * shape.key_dim + key) * layer.tile_columns + value % layer.tile_columns];
  }
  void fill(int32_t s, Random& random) {
    for (int32_t h = 0; h < shape.value_heads; ++h) {
      const float decay = std::ldexp(1.0f, -static_cast<int>(random.between(0, 15)));
      layer.decay(s)[h] = decay;
      for (int32_t k = 0; k < shape.key_dim; ++k) {
        for (int32_t v = 0; v < shape.value_dim; ++v) stored(s, h, k, v) = random.normal() * 0.3f / decay;
      }
    }
    for (int64_t i = 0; i < shape.conv_elements(); ++i) layer.conv(s)[i] = random.normal();
  }

  Rows random_rows(int32_t count, Random& random) const {
    return {random.normals(count * shape.channels()), random.normals(count * shape.value_width()),
            random.normals(count * shape.value_heads, 2.0f), random.normals(count * shape.value_heads)};
  }
  Rows picked(const Rows& all, const std::vector<int32_t>& rows) const {
    return {pick(all.qkv, shape.channels(), rows), pick(all.z, shape.value_width(), rows),
            pick(all.alpha, shape.value_heads, rows), pick(all.beta, shape.value_heads, rows)};
  }
  DeltaInputs upload(const Rows& rows, int32_t count) {
    return {world.tensor(count, shape.channels(), rows.qkv), world.tensor(count, shape.value_width(), rows.z),
            world.tensor(count, shape.value_heads, rows.alpha),
            world.tensor(count, shape.value_heads, rows.beta)};
  }
  std::vector<float> advance(const TestBatch& rows, const Rows& inputs) { return run(rows, inputs, nullptr); }
  // Both forms, as a step runs them.
  std::vector<float> run(const TestBatch& rows, const Rows& inputs, DeltaJournal* journal) {
    const int32_t count = rows.tokens();
    const DeltaInputs in = upload(inputs, count);
    const Tensor o =
        world.tensor(count, shape.value_width(),
                     std::vector<float>(static_cast<size_t>(count * shape.value_width()), kUntouched));
    world.ops().delta_advance(o, in, weights, layer, rows.batch());
    if (journal != nullptr) world.ops().delta_peek(o, *journal, in, weights, layer, rows.batch());
    world.device().synchronize();
    return values_of(o);
  }

  std::vector<float> bytes(int32_t s) const { return {layer.slot(s), layer.slot(s) + shape.slot_elements()}; }
  std::vector<float> states(int32_t s) const {
    std::vector<float> values;
    for (int32_t h = 0; h < shape.value_heads; ++h) {
      for (int32_t k = 0; k < shape.key_dim; ++k) {
        for (int32_t v = 0; v < shape.value_dim; ++v) values.push_back(layer.at(s, h, k, v));
      }
    }
    return values;
  }
  // Ring rows that a continuation at `position` will read, oldest first.
  std::vector<float> history(int32_t s, int32_t position) const {
    std::vector<float> values;
    for (int32_t p = std::max(position - shape.conv_width + 1, 0); p < position; ++p) {
      const float* row = layer.conv(s) + p % shape.conv_width * shape.channels();
      values.insert(values.end(), row, row + shape.channels());
    }
    return values;
  }
};

std::vector<float> row_of(const std::vector<float>& o, int64_t row, int64_t width) {
  return {o.begin() + row * width, o.begin() + (row + 1) * width};
}

// ---- agreement with the reference ----

struct StepResult {
  std::vector<float> o;
  std::vector<float> states;   // of all slots, conv rings of sequences behind them
  std::vector<float> journal;  // of uncertain rows
};

StepResult step(const DeviceCase& device, const DeltaShape& shape, const std::vector<SequencePlan>& plans,
                uint64_t seed) {
  Random random(seed);
  const TestBatch rows(plans, random);
  const Batch& batch = rows.batch();
  Delta delta(device, shape, rows.slots(), random);
  DeltaJournal journal = delta.world.journal(shape, rows.tokens());
  StepResult result;
  result.o = delta.run(rows, delta.random_rows(rows.tokens(), random), &journal);
  for (int32_t s = 0; s < rows.slots(); ++s) {
    for (float v : delta.states(s)) result.states.push_back(v);
  }
  for (int32_t s = 0; s < batch.sequences; ++s) {
    for (float v : delta.history(batch.slot[s], batch.context[s])) result.states.push_back(v);
    for (int64_t t = batch.first_row[s] + batch.certain[s]; t < batch.first_row[s] + batch.rows[s]; ++t) {
      auto keep = [&](const float* data, int64_t width) {
        result.journal.insert(result.journal.end(), data + t * width, data + (t + 1) * width);
      };
      keep(journal.k, shape.key_width());
      keep(journal.d, shape.value_width());
      keep(journal.g, shape.value_heads);
      keep(journal.conv_in, shape.channels());
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
        const auto plans = random_plans(random, static_cast<int32_t>(random.between(1, 6)), 60, 40, 24);
        const StepResult actual = step(device, shape, plans, seed);
        const StepResult expected = step(reference_for(device), shape, plans, seed);
        const std::string what = device.name + " seed " + std::to_string(seed);
        expect_close(actual.o, expected.o, outputs(device), outputs(device), what + " o");
        expect_close(actual.states, expected.states, kTolerance, kTolerance, what + " states");
        expect_close(actual.journal, expected.journal, kTolerance, kTolerance, what + " journal");
        for (const DeviceCase& other : other_thread_counts(device)) {
          const StepResult same = step(other, shape, plans, seed);
          expect_same(same.o, actual.o, other.name);
          expect_same(same.states, actual.states, other.name);
          expect_same(same.journal, actual.journal, other.name);
        }
      }
    }
  }
}

TEST(Delta, PeeksAtSixtyFourRows) {
  for (const DeviceCase& device : sequence_devices()) {
    Random random(5);
    for (const auto& parents : {chain(64), random_tree(64, random), std::vector<int32_t>(64, -1)}) {
      const StepResult actual = step(device, kShapes[1], {{9, 1, parents}}, 6);
      const StepResult expected = step(reference_for(device), kShapes[1], {{9, 1, parents}}, 6);
      expect_close(actual.o, expected.o, outputs(device), outputs(device), device.name);
      expect_close(actual.journal, expected.journal, kTolerance, kTolerance, device.name);
    }
  }
}

// Long runs of certain rows, which a device may take in chunks of its own: every length around a border,
// positions that begin inside a chunk, several sequences of different lengths. A chunk form rounds more than
// the recurrence: 1e-3 of the whole (relative RMS), and single values of outputs that the norm made large up
// to 1e-2.
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
  std::vector<std::vector<SequencePlan>> cases = {{{0, 512}},
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
        expect_long_run(actual.journal, expected.journal, device, what + " journal");
      }
    }
  }
}

// Every length: the run that follows sees what the run before it left.
TEST(Delta, RunsOfEveryLengthFollowEachOther) {
  const DeltaShape& shape = kShapes[0];
  for (const DeviceCase& device : sequence_devices()) {
    auto run = [&](const DeviceCase& on) {
      Random random(83);
      const TestBatch like({{2000, 1}}, random);
      Delta delta(on, shape, like.slots(), random);
      std::vector<float> all;
      int32_t at = 0;
      for (int32_t rows : {47, 48, 49, 50, 63, 64, 65, 1, 79, 80, 81, 3, 127, 128, 129, 191, 192, 193, 2}) {
        for (float v : delta.advance(TestBatch({{at, rows}}, like), delta.random_rows(rows, random)))
          all.push_back(v);
        at += rows;
      }
      for (float v : delta.states(like.batch().slot[0])) all.push_back(v);
      return all;
    };
    expect_long_run(run(device), run(reference_for(device)), device, device.name);
  }
}

// The decay beside the state is a product over the sequence's tokens: no cut may change it.
TEST(Delta, DecayDoesNotDependOnTheForm) {
  for (const DeviceCase& device : sequence_devices()) {
    std::vector<float> expected;
    for (int32_t piece : {150, 1, 37, 70}) {
      Random random(85);
      const TestBatch like({{150, 1}}, random);
      Delta delta(device, kShapes[1], like.slots(), random);
      const Rows inputs = delta.random_rows(150, random);
      for (int32_t at = 0; at < 150; at += piece) {
        const int32_t rows = std::min(piece, 150 - at);
        delta.advance(TestBatch({{at, rows}}, like), delta.picked(inputs, range(at, rows)));
      }
      const float* decay = delta.layer.decay(like.batch().slot[0]);
      const std::vector<float> actual(decay, decay + kShapes[1].value_heads);
      if (expected.empty()) expected = actual;
      expect_same(actual, expected, device.name);
    }
  }
}

// The same sequence alone and among others: blocks, clusters and grids differ, bytes do not.
TEST(Delta, ManySequencesGiveTheBytesOfOne) {
  for (const DeviceCase& device : sequence_devices()) {
    Random random(87);
    const int32_t sequences = device.gpu ? 210 : 70;
    const std::vector<SequencePlan> plans(static_cast<size_t>(sequences), SequencePlan{33, 1});
    const TestBatch whole(plans, random);
    Delta together(device, kShapes[1], whole.slots(), random, sequences);
    const Rows inputs = together.random_rows(whole.tokens(), random);
    std::vector<std::vector<float>> start;
    for (int32_t s = 0; s < whole.slots(); ++s) start.push_back(together.bytes(s));
    const std::vector<float> expected = together.advance(whole, inputs);
    for (size_t s : {size_t{0}, size_t{13}, plans.size() - 1}) {
      const int32_t slot = whole.batch().slot[s];
      const std::vector<float> expected_slot = together.bytes(slot);
      std::copy(start[slot].begin(), start[slot].end(), together.layer.slot(slot));
      std::vector<SequencePlan> alone(plans.size());
      alone[s] = plans[s];
      const auto rows = range(whole.batch().first_row[s], 1);
      const std::vector<float> o = together.advance(TestBatch(alone, whole), together.picked(inputs, rows));
      expect_same(o, pick(expected, kShapes[1].value_width(), rows), device.name);
      expect_same(together.bytes(slot), expected_slot, device.name);
    }
  }
}

// Several rows of many sequences in one step, and the same rows one step each: other kernels on a GPU, which
// has three for one row of each, by how many heads all sequences have.
void expect_bytes_of_steps(const DeviceCase& device, const DeltaShape& shape, int32_t sequences) {
  constexpr int32_t kRows = 3;
  const std::string what = device.name + ", " + std::to_string(sequences) + " sequences";
  Random random(88);
  const TestBatch whole(std::vector<SequencePlan>(sequences, {0, kRows}), random);
  Delta delta(device, shape, whole.slots(), random, sequences * kRows);
  const Rows inputs = delta.random_rows(whole.tokens(), random);
  std::vector<std::vector<float>> start;
  for (int32_t s = 0; s < whole.slots(); ++s) start.push_back(delta.bytes(s));
  const std::vector<float> expected = delta.advance(whole, inputs);
  std::vector<std::vector<float>> after;
  for (int32_t s = 0; s < whole.slots(); ++s) {
    after.push_back(delta.bytes(s));
    std::copy(start[s].begin(), start[s].end(), delta.layer.slot(s));
  }
  for (int32_t row = 0; row < kRows; ++row) {
    std::vector<int32_t> rows;
    for (int32_t s = 0; s < sequences; ++s) rows.push_back(whole.batch().first_row[s] + row);
    const TestBatch step(std::vector<SequencePlan>(sequences, {row, 1}), whole);
    const std::vector<float> o = delta.advance(step, delta.picked(inputs, rows));
    expect_same(o, pick(expected, shape.value_width(), rows), what);
  }
  for (int32_t s = 0; s < whole.slots(); ++s) expect_same(delta.bytes(s), after[s], what);
}

TEST(Delta, RowsInOneStepGiveTheBytesOfSteps) {
  for (const DeviceCase& device : sequence_devices()) {
    for (const DeltaShape& shape : {kShapes[1], kShapes[2], kShapes[3], kShapes[5], kShapes[6]}) {
      for (int32_t sequences : device.gpu ? std::vector<int32_t>{20, 70, 210} : std::vector<int32_t>{70})
        expect_bytes_of_steps(device, shape, sequences);
    }
    if (device.gpu)
      expect_bytes_of_steps(
          device, {.key_heads = 8, .value_heads = 16, .key_dim = 128, .value_dim = 128, .conv_width = 4}, 52);
  }
}

// ---- what may be written ----

TEST(Delta, WritesOnlyItsRowsAndSlots) {
  for (const DeviceCase& device : sequence_devices()) {
    Random random(11);
    const TestBatch rows({{4, 3, {-1, 0, 0}}, {9, 0, {-1, 0}}, {0, 2}, {30, 0}}, random);
    const Batch& batch = rows.batch();
    Delta delta(device, kShapes[3], rows.slots(), random);
    const Rows inputs = delta.random_rows(rows.tokens(), random);
    std::vector<std::vector<float>> before;
    for (int32_t s = 0; s < rows.slots(); ++s) before.push_back(delta.bytes(s));
    const int64_t width = kShapes[3].value_width();
    const Tensor o = delta.world.tensor(
        rows.tokens(), width, std::vector<float>(static_cast<size_t>(rows.tokens() * width), kUntouched));
    const DeltaInputs in = delta.upload(inputs, rows.tokens());
    delta.world.ops().delta_advance(o, in, delta.weights, delta.layer, batch);
    delta.world.device().synchronize();
    for (int32_t t = 0; t < rows.tokens(); ++t) {
      const int32_t s = batch.sequence[t];
      const bool certain = t - batch.first_row[s] < batch.certain[s];
      EXPECT_EQ(o.f32(t)[0] == kUntouched, !certain) << device.name << " row " << t;
    }
    std::vector<bool> advanced(static_cast<size_t>(rows.slots()), false);
    for (int32_t s = 0; s < batch.sequences; ++s) advanced[batch.slot[s]] = batch.certain[s] > 0;
    for (int32_t s = 0; s < rows.slots(); ++s) {
      EXPECT_EQ(delta.bytes(s) != before[s], advanced[s]) << device.name << " slot " << s;
      before[s] = delta.bytes(s);
    }
    const std::vector<float> o_before = values_of(o);
    DeltaJournal journal = delta.world.journal(kShapes[3], rows.tokens());
    delta.world.ops().delta_peek(o, journal, in, delta.weights, delta.layer, batch);
    delta.world.device().synchronize();
    for (int32_t t = 0; t < rows.tokens(); ++t) {
      const int32_t s = batch.sequence[t];
      const bool certain = t - batch.first_row[s] < batch.certain[s];
      if (certain) expect_same(row_of(values_of(o), t, width), row_of(o_before, t, width), device.name);
      EXPECT_NE(o.f32(t)[0], kUntouched) << device.name << " row " << t;
    }
    for (int32_t s = 0; s < rows.slots(); ++s)
      expect_same(delta.bytes(s), before[s], device.name + " peek wrote");
  }
}

TEST(Delta, FreshSequenceIgnoresWhatTheSlotHeld) {
  for (const DeviceCase& device : sequence_devices()) {
    Random random(13);
    const TestBatch rows({{0, 9, chain(2)}}, random);
    Delta delta(device, kShapes[1], rows.slots(), random);
    const Rows inputs = delta.random_rows(rows.tokens(), random);
    const int32_t slot = rows.batch().slot[0];
    DeltaJournal journal = delta.world.journal(kShapes[1], rows.tokens());
    const std::vector<float> first = delta.run(rows, inputs, &journal);
    const std::vector<float> state = delta.states(slot);
    std::fill_n(delta.layer.slot(slot), kShapes[1].slot_elements(), NAN);
    expect_same(delta.run(rows, inputs, &journal), first, device.name);
    expect_same(delta.states(slot), state, device.name);
    std::fill_n(delta.layer.slot(slot), kShapes[1].slot_elements(), 0.0f);  // as allocated
    expect_same(delta.run(rows, inputs, &journal), first, device.name);
  }
}

// ---- cuts ----

// Bytes, not values: the decay folds by the sequence's own history.
TEST(Delta, FourThousandTokensCutAnywhereGiveTheSameBytes) {
  constexpr int32_t kTokens = 4096;
  for (const DeviceCase& device : sequence_devices()) {
    std::vector<float> expected_o;
    std::vector<float> expected_slot;
    for (int cut = 0; cut < 4; ++cut) {
      Random random(17);
      const TestBatch like({{kTokens, 1}}, random);
      Delta delta(device, kSmall, like.slots(), random);
      const Rows inputs = delta.random_rows(kTokens, random);
      Random cuts(static_cast<uint64_t>(cut));
      std::vector<float> o;
      for (int32_t at = 0; at < kTokens;) {
        // Whole steps; single tokens, then whole steps; random steps.
        int64_t wanted = cut == 0 ? 512 : cuts.between(1, 300);
        if (cut == 1) wanted = at < 200 ? 1 : 512;
        const auto count = static_cast<int32_t>(std::min<int64_t>(wanted, kTokens - at));
        const TestBatch piece({{at, count}}, like);
        for (float v : delta.advance(piece, delta.picked(inputs, range(at, count)))) o.push_back(v);
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
      for (float v : delta.advance(TestBatch({{at, 500}}, like), delta.random_rows(500, random)))
        o.push_back(v);
    }
    for (float v : delta.states(like.batch().slot[0])) o.push_back(v);
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
    const std::vector<SequencePlan> plans = {{5, 20}, {9, 1}, {3, 2, {-1, 0, 0, 2}}, {7, 0, {-1, -1, 1}}};
    const TestBatch whole(plans, random);
    Delta together(device, kShapes[1], whole.slots(), random);
    const Rows inputs = together.random_rows(whole.tokens(), random);
    DeltaJournal journal = together.world.journal(kShapes[1], whole.tokens());
    std::vector<std::vector<float>> start;
    for (int32_t s = 0; s < whole.slots(); ++s) start.push_back(together.bytes(s));
    const std::vector<float> expected = together.run(whole, inputs, &journal);
    for (size_t s = 0; s < plans.size(); ++s) {
      const int32_t slot = whole.batch().slot[s];
      const std::vector<float> expected_slot = together.bytes(slot);
      std::copy(start[slot].begin(), start[slot].end(), together.layer.slot(slot));
      std::vector<SequencePlan> alone(plans.size());
      alone[s] = plans[s];
      const TestBatch part(alone, whole);
      const auto rows = range(whole.batch().first_row[s], part.tokens());
      const std::vector<float> o = together.run(part, together.picked(inputs, rows), &journal);
      expect_same(o, pick(expected, kShapes[1].value_width(), rows), device.name);
      expect_same(together.bytes(slot), expected_slot, device.name);
    }
  }
}

// ---- chosen gates and keys ----

// Inputs that make the rule readable: no convolution mixing, gates from closed forms.
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
  void run(int32_t position, const Rows& rows) { delta.advance(TestBatch({{position, 1}}, like), rows); }
};

float silu(float x) { return x / (1 + std::exp(-x)); }

TEST(Delta, StrongDecayForgetsWithoutNan) {
  for (const DeviceCase& device : exact_devices()) {
    for (float g : {-80.0f, -103.0f, -400.0f}) {
      Random random(29);
      Chosen chosen(device, random);
      const Rows rows = chosen.row(3, g, 1, random);
      chosen.run(7, rows);
      for (int32_t h = 0; h < 2; ++h) {
        for (int32_t k = 0; k < 32; ++k) {
          for (int32_t v = 0; v < 32; ++v) {
            const float expected = k == 3 ? silu(rows.qkv[64 + h * 32 + v]) : 0.0f;
            ASSERT_NEAR(chosen.delta.layer.at(chosen.slot(), h, k, v), expected, 3e-6)
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
    for (int32_t h = 0; h < 2; ++h) {
      for (int32_t k = 0; k < 32; ++k) {
        for (int32_t v = 0; v < 32; ++v) {
          const float expected = silu(stored[k].qkv[64 + h * 32 + v]);
          ASSERT_NEAR(chosen.delta.layer.at(chosen.slot(), h, k, v), expected, 3e-6) << device.name;
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
      std::vector<float> expected = chosen.delta.states(chosen.slot());
      for (float& v : expected) v = static_cast<float>(v * std::exp(double{g}));
      chosen.run(3, chosen.row(1, g, 0, random));
      expect_close(chosen.delta.states(chosen.slot()), expected, 1e-30, 2e-6, device.name);
    }
  }
}

// With states wiped before each token and one key, S[key] is what the convolution made of the values.
TEST(Delta, ConvolutionOfAnImpulseIsItsTaps) {
  for (const DeviceCase& device : exact_devices()) {
    Random random(41);
    Chosen chosen(device, random);
    std::vector<float> conv(static_cast<size_t>(kSmall.channels() * 4), 0.0f);
    for (int64_t c = 0; c < kSmall.channels(); ++c) {
      for (int64_t j = 0; j < 4; ++j) conv[c * 4 + j] = c < 64 ? (j == 3 ? 1.0f : 0.0f) : random.normal();
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
      EXPECT_NEAR(chosen.delta.layer.at(chosen.slot(), 1, 0, 5), silu(tap), 1e-6)
          << device.name << " " << position;
      EXPECT_EQ(chosen.delta.layer.at(chosen.slot(), 1, 0, 6), 0.0f) << device.name;
    }
  }
}

// ---- trees ----

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
        const TestBatch tree({{context, 0, parents}, {}}, rows);
        const Rows inputs = delta.random_rows(tree.tokens(), random);
        DeltaJournal journal = delta.world.journal(shape, tree.tokens());
        const std::vector<float> peeked = delta.run(tree, inputs, &journal);
        for (int32_t node = 0; node < std::ssize(parents); ++node) {
          const auto path = path_to(node, parents);
          delta.world.ops().state_copy(delta.layer, rows.batch().slot[1], rows.batch().slot[0]);
          const TestBatch along({{}, {context, static_cast<int32_t>(path.size())}}, rows);
          const std::vector<float> o = delta.advance(along, delta.picked(inputs, path));
          expect_close(row_of(peeked, node, shape.value_width()),
                       row_of(o, std::ssize(path) - 1, shape.value_width()), outputs(device), outputs(device),
                       device.name + " node " + std::to_string(node));
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
    const Rows distinct = delta.random_rows(4, random);
    DeltaJournal journal = delta.world.journal(shape, 16);
    const std::vector<float> start = delta.bytes(twins.batch().slot[0]);
    const std::vector<float> o = delta.run(twins, delta.picked(distinct, {0, 1, 2, 3, 1, 2, 3}), &journal);
    for (int64_t i = 1; i <= 3; ++i) {
      expect_close(row_of(o, i + 3, shape.value_width()), row_of(o, i, shape.value_width()),
                   device.tolerance(1e-6), device.tolerance(1e-6), device.name);
    }
    auto run = [&](const std::vector<int32_t>& parents, const std::vector<int32_t>& order) {
      std::copy(start.begin(), start.end(), delta.layer.slot(twins.batch().slot[0]));
      return delta.run(TestBatch({{6, 1, parents}}, twins), delta.picked(distinct, order), &journal);
    };
    const std::vector<float> a = run({-1, 0, 0}, {0, 1, 2, 3});
    const std::vector<float> b = run({-1, 0, 0}, {0, 1, 3, 2});
    expect_close(row_of(a, 2, shape.value_width()), row_of(b, 3, shape.value_width()), device.tolerance(1e-6),
                 device.tolerance(1e-6), device.name);
    expect_close(row_of(a, 3, shape.value_width()), row_of(b, 2, shape.value_width()), device.tolerance(1e-6),
                 device.tolerance(1e-6), device.name);
  }
}

// Decays of very different size on branches that do not see each other must not meet in one exponent.
TEST(DeltaTree, BranchesOfUnequalDecayStayFinite) {
  auto run = [](const DeviceCase& device) {
    Random random(59);
    const TestBatch rows({{6, 0, {-1, 0, 0, 1, 2, 3, 4}}}, random);
    Delta delta(device, kSmall, rows.slots(), random);
    delta.weights.a = delta.world.array({-4.0f, -30.0f});
    Rows inputs = delta.random_rows(rows.tokens(), random);
    for (int32_t t : {1, 3, 5}) inputs.alpha[t * 2] = inputs.alpha[t * 2 + 1] = 40.0f;  // g = -160 and -1200
    for (int32_t t : {2, 4, 6}) inputs.alpha[t * 2] = inputs.alpha[t * 2 + 1] = -40.0f;
    DeltaJournal journal = delta.world.journal(kSmall, rows.tokens());
    return delta.run(rows, inputs, &journal);
  };
  for (const DeviceCase& device : sequence_devices()) {
    expect_close(run(device), run(reference_for(device)), outputs(device), outputs(device), device.name);
  }
}

// ---- commit ----

TEST(DeltaCommit, EqualsRunningThePathAsCertain) {
  Random shapes(61);
  const std::vector<int32_t> tree = {-1, 0, 1, 0, 2, 4, 3, 5, -1, 8, 7, 10, 11};
  for (const DeviceCase& device : sequence_devices()) {
    for (const DeltaShape& shape : kShapes) {
      for (int32_t node : {0, 1, 2, 4, 6, 9, 12}) {
        for (int32_t context : {1, 2, 5}) {
          if (context != 2 && shape.key_dim > 32) continue;
          Random random(67);
          const auto path = path_to(node, tree);
          const auto length = static_cast<int32_t>(path.size());
          const TestBatch rows({{context - 1, 1, tree}, {context - 1, 30}}, random);
          Delta delta(device, shape, rows.slots(), random);
          const int32_t committed = rows.batch().slot[0];
          const int32_t sequential = rows.batch().slot[1];
          const TestBatch peek({{context - 1, 1, tree}, {}}, rows);
          const Rows inputs = delta.random_rows(peek.tokens() + 1, random);
          delta.world.ops().state_copy(delta.layer, sequential, committed);
          DeltaJournal journal = delta.world.journal(shape, peek.tokens());
          delta.run(peek, delta.picked(inputs, range(0, peek.tokens())), &journal);
          std::vector<int32_t> batch_rows;
          for (int32_t i : path) batch_rows.push_back(1 + i);
          const AcceptedPath accepted[] = {{committed, length, context, batch_rows.data()},
                                           {sequential, 0, context, nullptr}};
          delta.world.ops().delta_commit(delta.layer, journal, accepted);

          batch_rows.insert(batch_rows.begin(), 0);
          const TestBatch along({{}, {context - 1, 1 + length}}, rows);
          delta.advance(along, delta.picked(inputs, batch_rows));
          const std::string what = device.name + " path of " + std::to_string(length);
          expect_close(delta.states(committed), delta.states(sequential), kTolerance, kTolerance, what);
          expect_same(delta.history(committed, context + length), delta.history(sequential, context + length),
                      what);

          const Rows next = delta.picked(inputs, {peek.tokens()});
          const std::vector<float> a = delta.advance(TestBatch({{context + length, 1}, {}}, rows), next);
          const std::vector<float> b = delta.advance(TestBatch({{}, {context + length, 1}}, rows), next);
          expect_close(a, b, device.tolerance(2e-5), device.tolerance(2e-5), what + " next token");
        }
      }
    }
  }
}

TEST(DeltaCommit, FoldsSmallDecays) {
  for (const DeviceCase& device : sequence_devices()) {
    Random random(71);
    const TestBatch rows({{5, 0, chain(12)}, {5, 12}}, random);
    Delta delta(device, kSmall, rows.slots(), random);
    delta.weights.a = delta.world.array({-3.0f, -40.0f});
    const int32_t committed = rows.batch().slot[0];
    const int32_t sequential = rows.batch().slot[1];
    const TestBatch peek({{5, 0, chain(12)}, {}}, rows);
    const Rows inputs = delta.random_rows(12, random);
    delta.world.ops().state_copy(delta.layer, sequential, committed);
    DeltaJournal journal = delta.world.journal(kSmall, 12);
    delta.run(peek, inputs, &journal);
    const auto path = range(0, 12);
    const AcceptedPath accepted = {committed, 12, 5, path.data()};
    delta.world.ops().delta_commit(delta.layer, journal, {&accepted, 1});
    delta.advance(TestBatch({{}, {5, 12}}, rows), inputs);
    expect_close(delta.states(committed), delta.states(sequential), kTolerance, kTolerance, device.name);
    for (int32_t h = 0; h < 2; ++h) {
      EXPECT_GE(delta.layer.decay(committed)[h], kFoldBelow) << device.name;
      EXPECT_LE(delta.layer.decay(committed)[h], 1.0f) << device.name;
    }
  }
}

TEST(StateCopy, CopiesTheWholeSlot) {
  for (const DeviceCase& device : sequence_devices()) {
    Random random(73);
    Delta delta(device, kShapes[2], 4, random);
    const std::vector<float> source = delta.bytes(1);
    const std::vector<float> neighbour = delta.bytes(3);
    delta.world.ops().state_copy(delta.layer, 2, 1);
    delta.world.device().synchronize();
    expect_same(delta.bytes(2), source, device.name);
    expect_same(delta.bytes(1), source, device.name);
    expect_same(delta.bytes(3), neighbour, device.name);
  }
}

}  // namespace
}  // namespace braid
