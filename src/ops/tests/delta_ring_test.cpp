// delta_ring_test.cpp -- entries of slots: where they are folded; accepted drafts equal tokens.
#include <iterator>
#include <tuple>

#include "ops/tests/delta_world_test.h"

namespace braid {
namespace {

using namespace test;

constexpr int32_t kDrafts = 8;

std::vector<int32_t> ancestors_of(int32_t node, const std::vector<int32_t>& parents) {
  std::vector<int32_t> path;
  for (int32_t at = node; at >= 0; at = parents[at]) path.insert(path.begin(), at);
  return path;
}

void accept(Delta& delta, const std::vector<int32_t>& path, int32_t context,
            const TestBatch& rows) {
  std::vector<CellMove> moves;
  for (int32_t i = 0; i < std::ssize(path); ++i)
    if (path[static_cast<size_t>(i)] != i)
      moves.push_back({0, context + path[static_cast<size_t>(i)], context + i});
  delta.world.ops().delta_move({&delta.layer, 1}, moves, rows.batch());
  delta.world.device().synchronize();
}

class DeltaRingOfShape : public ::testing::TestWithParam<size_t> {
 protected:
  const DeltaShape& shape() const { return kShapes[GetParam()]; }
};
INSTANTIATE_TEST_SUITE_P(Shapes, DeltaRingOfShape, ::testing::Range<size_t>(0, std::size(kShapes)));

TEST_P(DeltaRingOfShape, AcceptedPathsEqualCertainRows) {
  const std::vector<int32_t> tree = {-1, 0, 1, 0, 2, 4, 3, 5, -1, 8, 7, 10, 11};
  for (const DeviceCase& device : sequence_devices()) {
    for (int32_t node : {0, 1, 2, 4, 6, 9, 12}) {
      for (int32_t context : {1, 2, 5}) {
        if (context != 2 && shape().key_dim > 32) continue;
        Random random(67);
        const auto path = ancestors_of(node, tree);
        const auto length = static_cast<int32_t>(path.size());
        const TestBatch rows({{context - 1, 1, tree}, {context - 1, 30}}, random);
        Delta delta(device, shape(), rows.slots(), random);
        delta.stand(rows, random);
        const int32_t accepted = rows.batch().slot[0];
        const int32_t sequential = rows.batch().slot[1];
        const TestBatch guess({{context - 1, 1, tree}, {}}, rows);
        const Rows inputs = delta.random_rows(guess.tokens() + 1, random);
        delta.copy_slot(sequential, accepted);
        delta.run(guess, delta.picked(inputs, range(0, guess.tokens())));
        accept(delta, path, context, guess);

        std::vector<int32_t> batch_rows = {0};
        for (int32_t i : path) batch_rows.push_back(1 + i);
        const TestBatch along({{}, {context - 1, 1 + length}}, rows);
        delta.run(along, delta.picked(inputs, batch_rows));
        const std::string what = device.name + " path of " + std::to_string(length);
        expect_close(delta.states(accepted, context + length),
                     delta.states(sequential, context + length), kTolerance, kTolerance, what);
        expect_same(delta.history(accepted, context + length),
                    delta.history(sequential, context + length), what);

        const Rows next = delta.picked(inputs, {guess.tokens()});
        const std::vector<float> a = delta.run(TestBatch({{context + length, 1}, {}}, rows), next);
        const std::vector<float> b = delta.run(TestBatch({{}, {context + length, 1}}, rows), next);
        expect_close(a, b, device.tolerance(2e-5), device.tolerance(2e-5), what + " next token");
      }
    }
  }
}

TEST(DeltaRing, SmallDecaysStayInside) {
  for (const DeviceCase& device : sequence_devices()) {
    Random random(71);
    const TestBatch rows({{5, 0, chain(12)}, {5, 14}}, random);
    Delta delta(device, kSmall, rows.slots(), random);
    delta.stand(rows, random);
    delta.weights.a = delta.world.array({-3.0f, -40.0f});
    const int32_t accepted = rows.batch().slot[0];
    const int32_t sequential = rows.batch().slot[1];
    const Rows inputs = delta.random_rows(14, random);
    delta.copy_slot(sequential, accepted);
    delta.run(TestBatch({{5, 0, chain(12)}, {}}, rows), delta.picked(inputs, range(0, 12)));
    delta.run(TestBatch({{17, 2}, {}}, rows), delta.picked(inputs, range(12, 2)));
    delta.run(TestBatch({{}, {5, 14}}, rows), inputs);
    expect_close(delta.states(accepted, 19), delta.states(sequential, 19), kTolerance, kTolerance,
                 device.name);
    for (const int32_t slot : {accepted, sequential}) {
      for (int32_t h = 0; h < 2; ++h) {
        EXPECT_GE(delta.layer.decay(slot)[h], kFoldBelow) << device.name;
        EXPECT_LE(delta.layer.decay(slot)[h], 1.0f) << device.name;
        EXPECT_EQ(delta.layer.folded(slot)[h], 19) << device.name;
      }
    }
  }
}

TEST(DeltaRing, FoldsWhereTheContractSays) {
  for (const DeviceCase& device : sequence_devices()) {
    for (const int32_t drafts : {0, 3, kDrafts}) {
      for (const int32_t prompt : {2, 5, 8, 13, 31}) {
        Random random(91);
        const TestBatch like({{200, 1, chain(drafts)}}, random);
        Delta delta(device, kSmall, like.slots(), random, 16, drafts);
        const DeltaRing ring = delta.layer.ring;
        const int32_t slot = like.batch().slot[0];
        delta.run(TestBatch({{0, prompt}}, like), delta.random_rows(prompt, random));
        for (int32_t at = prompt; at < prompt + 40; ++at) {
          const auto guesses = static_cast<int32_t>(random.between(0, drafts));
          delta.run(TestBatch({{at, 1, chain(guesses)}}, like),
                    delta.random_rows(1 + guesses, random));
          const int32_t expected =
              ring.every == 0 ? at + 1 : std::max(prompt, ring.fold_position(at));
          for (int32_t h = 0; h < kSmall.value_heads; ++h)
            ASSERT_EQ(delta.layer.folded(slot)[h], expected)
                << device.name << " row " << at << ", prompt " << prompt << ", drafts " << drafts;
          const auto accepted = static_cast<int32_t>(random.between(0, guesses));
          at += accepted;
        }
      }
    }
  }
}

std::vector<float> held(const Delta& delta, int32_t slot, int32_t position) {
  const DeltaLayer& layer = delta.layer;
  std::vector<float> all(layer.state(slot, 0), layer.state(slot, 0) + delta.shape.state_elements());
  for (int32_t p = layer.folded(slot)[0]; p < position; ++p) {
    all.insert(all.end(), layer.key(slot, p, 0), layer.key(slot, p, 0) + delta.shape.key_width());
    all.insert(all.end(), layer.delta(slot, p, 0),
               layer.delta(slot, p, 0) + delta.shape.value_width());
    all.insert(all.end(), layer.gate(slot, p), layer.gate(slot, p) + delta.shape.value_heads);
  }
  for (const float v : delta.history(slot, position)) all.push_back(v);
  return all;
}

// Tokens one by one, and the same tokens after drafts: chains and trees with wrong branches, some
// accepted. The bytes are equal; on the reference, the numbers.
void expect_drafts_equal_tokens(const DeviceCase& device, const DeltaShape& shape, int32_t prompt,
                                uint64_t seed) {
  constexpr int32_t kTokens = 120;
  Random random(seed);
  const TestBatch like({{kTokens + 40, 1, chain(kDrafts)}, {kTokens + 40, 1}}, random);
  Delta delta(device, shape, like.slots(), random, 16, kDrafts);
  const Rows inputs = delta.random_rows(kTokens, random);
  const int32_t drafted = like.batch().slot[0];
  const int32_t plain = like.batch().slot[1];
  const std::string what =
      device.name + " prompt " + std::to_string(prompt) + " seed " + std::to_string(seed);
  const int64_t width = shape.value_width();
  std::vector<std::vector<float>> outputs_of(static_cast<size_t>(kTokens));
  delta.run(TestBatch({{}, {0, prompt}}, like), delta.picked(inputs, range(0, prompt)));
  delta.run(TestBatch({{0, prompt}, {}}, like), delta.picked(inputs, range(0, prompt)));
  for (int32_t at = prompt; at < kTokens; ++at)
    outputs_of[static_cast<size_t>(at)] =
        delta.run(TestBatch({{}, {at, 1}}, like), delta.picked(inputs, {at}));

  const auto expect_row = [&](const std::vector<float>& o, int64_t row, int32_t position) {
    const std::vector<float> actual = row_of(o, row, width);
    const std::vector<float>& expected = outputs_of[static_cast<size_t>(position)];
    if (!device.reference)
      return expect_same(actual, expected, what + " row " + std::to_string(position));
    expect_close(actual, expected, kTolerance, kTolerance, what);
  };
  int32_t at = prompt;
  while (at < kTokens - 1) {
    // right[i] is the node of position at + 1 + i.
    const auto nodes = static_cast<int32_t>(random.between(0, kDrafts));
    std::vector<int32_t> parents, right, rows = {at};
    for (int32_t n = 0; n < nodes; ++n) {
      const int32_t next = at + 1 + static_cast<int32_t>(right.size());
      const bool is_right = next < kTokens - 1 && random.between(0, 2) > 0;
      parents.push_back(is_right ? (right.empty() ? -1 : right.back())
                                 : static_cast<int32_t>(random.between(-1, n - 1)));
      rows.push_back(is_right ? next : static_cast<int32_t>(random.between(0, kTokens - 1)));
      if (is_right) right.push_back(n);
    }
    const TestBatch step({{at, 1, parents}, {}}, like);
    const std::vector<float> o = delta.run(step, delta.picked(inputs, rows));
    expect_row(o, 0, at);
    for (size_t i = 0; i < right.size(); ++i)
      expect_row(o, 1 + right[i], at + 1 + static_cast<int32_t>(i));
    right.resize(static_cast<size_t>(random.between(0, std::ssize(right))));
    accept(delta, right, at + 1, step);
    at += 1 + static_cast<int32_t>(right.size());
  }
  // One more row, so that both have folded as far.
  if (at == kTokens - 1)
    expect_row(delta.run(TestBatch({{at, 1}, {}}, like), delta.picked(inputs, {at})), 0, at);
  if (device.gpu) {
    EXPECT_EQ(delta.layer.folded(drafted)[0], delta.layer.folded(plain)[0]) << what;
    expect_same(held(delta, drafted, kTokens), held(delta, plain, kTokens), what + " held");
  }
  const std::vector<float> states = delta.states(drafted, kTokens),
                           wanted = delta.states(plain, kTokens);
  if (!device.reference) return expect_same(states, wanted, what + " states");
  expect_close(states, wanted, kTolerance, kTolerance, what);
}

TEST_P(DeltaRingOfShape, DraftsGiveWhatTokensGive) {
  for (const DeviceCase& device : sequence_devices())
    for (const int32_t prompt : {2, 8, 13, 31})
      expect_drafts_equal_tokens(device, shape(), prompt, 93);
}
TEST(DeltaRing, DraftsOfAnyKindGiveWhatTokensGive) {
  for (const DeviceCase& device : sequence_devices()) {
    for (uint64_t seed = 94; seed < 100; ++seed)
      expect_drafts_equal_tokens(device, kSmall, 5, seed);
  }
}

// Over a whole cycle of folds; a GPU picks kernels by the number of heads of all sequences.
TEST(DeltaRing, StepsOfManyGiveTheBytesOfOne) {
  for (const DeviceCase& device : sequence_devices()) {
    for (const DeltaShape& shape : {kShapes[1], kShapes[2], kShapes[3], kShapes[6]}) {
      for (const int32_t sequences :
           device.gpu ? std::vector<int32_t>{2, 20, 70, 210} : std::vector<int32_t>{9}) {
        Random random(101);
        std::vector<SequencePlan> plans;
        for (int32_t s = 0; s < sequences; ++s) plans.push_back({40 + s % 9, 1});
        const TestBatch like(plans, random);
        Delta delta(device, shape, like.slots(), random, sequences, 0);
        delta.stand(like, random);
        std::vector<float> start = delta.bytes(like.batch().slot[0]);
        const std::string what = device.name + ", " + std::to_string(sequences) + " sequences";
        std::vector<Rows> inputs;
        std::vector<std::vector<float>> first_row;
        for (int32_t step = 0; step < 10; ++step) {
          for (int32_t s = 0; s < sequences; ++s)
            plans[static_cast<size_t>(s)].past = 40 + s % 9 + step;
          inputs.push_back(delta.random_rows(sequences, random));
          first_row.push_back(
              row_of(delta.run(TestBatch(plans, like), inputs.back()), 0, shape.value_width()));
        }
        const std::vector<float> expected = delta.bytes(like.batch().slot[0]);
        std::copy(start.begin(), start.end(), delta.layer.slot(like.batch().slot[0]));
        for (int32_t step = 0; step < 10; ++step) {
          const TestBatch alone({40 + step, 1}, like, 0);
          expect_same(delta.run(alone, delta.picked(inputs[static_cast<size_t>(step)], {0})),
                      first_row[static_cast<size_t>(step)], what);
        }
        expect_same(delta.bytes(like.batch().slot[0]), expected, what);
      }
    }
  }
}

// Some sequences have no drafts, two certain rows or no row. All phases of the fold cycle occur.
class DeltaRingOfMany : public ::testing::TestWithParam<std::tuple<size_t, int32_t>> {};
INSTANTIATE_TEST_SUITE_P(Shapes, DeltaRingOfMany,
                         ::testing::Combine(::testing::Values<size_t>(1, 2, 5),
                                            ::testing::Values(35, 70, 150)));

TEST_P(DeltaRingOfMany, DraftsGiveTheBytesOfOne) {
  constexpr int32_t kMost = 3, kSteps = 10;
  const DeltaShape& shape = kShapes[std::get<0>(GetParam())];
  for (const DeviceCase& device : sequence_devices()) {
    const int32_t sequences = device.gpu ? std::get<1>(GetParam()) : 9;
    if (!device.gpu && std::get<1>(GetParam()) != 35) continue;
    Random random(103);
    std::vector<SequencePlan> first;
    std::vector<std::vector<SequencePlan>> plans(kSteps);
    for (int32_t s = 0; s < sequences; ++s) {
      int32_t at = s % 23 == 0 ? 0 : 40 + s % 9;
      first.push_back({at, 1});
      for (int32_t step = 0; step < kSteps; ++step) {
        const int32_t kind = (s + step) % 11;
        const int32_t certain = kind == 3 ? 0 : kind == 5 ? 2 : 1;
        const auto drafts = static_cast<int32_t>(random.between(0, kMost));
        SequencePlan& plan = plans[static_cast<size_t>(step)].emplace_back();
        if (certain > 0)
          plan = {at, certain, s % 2 == 0 ? chain(drafts) : random_tree(drafts, random)};
        at += certain;
      }
    }
    const TestBatch like(
        std::vector<SequencePlan>(static_cast<size_t>(sequences), {70, 2, chain(kMost)}), random);
    Delta delta(device, shape, like.slots(), random, sequences, kMost);
    delta.stand(TestBatch(first, like), random);
    const std::string what = device.name + ", " + std::to_string(sequences) + " sequences";
    const std::vector<int32_t> looked_at = {0, 1, 4, 8, sequences / 2, sequences - 1};
    std::vector<std::vector<float>> start;
    for (const int32_t s : looked_at) start.push_back(delta.bytes(like.batch().slot[s]));
    std::vector<Rows> inputs;
    std::vector<std::vector<float>> outputs;
    for (const auto& step : plans) {
      const TestBatch batch(step, like);
      inputs.push_back(delta.random_rows(batch.tokens(), random));
      outputs.push_back(delta.run(batch, inputs.back()));
    }
    for (size_t i = 0; i < looked_at.size(); ++i) {
      const int32_t s = looked_at[i];
      const int32_t slot = like.batch().slot[s];
      const std::vector<float> expected = delta.bytes(slot);
      std::copy(start[i].begin(), start[i].end(), delta.layer.slot(slot));
      for (size_t step = 0; step < kSteps; ++step) {
        const TestBatch whole(plans[step], like), own(plans[step][static_cast<size_t>(s)], like, s);
        if (own.tokens() == 0) continue;
        const auto rows = range(whole.batch().first_row[s], own.tokens());
        expect_same(delta.run(own, delta.picked(inputs[step], rows)),
                    pick(outputs[step], shape.value_width(), rows),
                    what + ", sequence " + std::to_string(s) + " step " + std::to_string(step));
      }
      expect_same(delta.bytes(slot), expected, what + ", sequence " + std::to_string(s));
    }
  }
}

}  // namespace
}  // namespace braid
