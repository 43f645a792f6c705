// hidden_test.cpp -- the hidden row of the previous position, for any steps of a sequence.
#include <algorithm>
#include <cmath>

#include "ops/tests/op_test.h"

namespace braid {
namespace {

using namespace test;

constexpr int32_t kUncertain = 5;
constexpr int64_t kWidth = 37;
constexpr float kNothing = -1.0f;  // the first number of the row before position 0

// Every number of a hidden row is a small integer, exact in any type.
struct Hidden {
  World world;
  HiddenRing ring;
  std::vector<std::vector<float>> rows;  // [sequence][position]
  float next = 1;

  Hidden(const DeviceCase& device, int32_t sequences, int32_t slots)
      : world(device), rows(static_cast<size_t>(sequences)) {
    world.prepare({}, {.max_tokens = 256, .max_width = kWidth, .model_width = kWidth});
    ring = {kWidth, kUncertain + 1, slots, nullptr};
    ring.data = world.array(
        std::vector<float>(static_cast<size_t>(slots * ring.slot_elements()), 30000.0f));
  }

  static std::vector<float> row_of(float first) {
    std::vector<float> row(static_cast<size_t>(kWidth), 0.0f);
    if (first == kNothing) return row;
    for (int64_t i = 0; i < kWidth; ++i)
      row[static_cast<size_t>(i)] = first + static_cast<float>(i);
    return row;
  }

  // Runs a step; `accepted` uncertain rows, relative to the first of them, become certain.
  void step(const std::vector<SequencePlan>& plans, const TestBatch& batch_rows,
            const std::vector<std::vector<int32_t>>& accepted, const std::string& what) {
    const Batch& batch = batch_rows.batch();
    std::vector<float> x, expected;
    std::vector<float> first_of(static_cast<size_t>(batch.tokens));
    for (float& first : first_of) {
      first = next;
      next = next > 1900 ? 1 : next + 1;
      const std::vector<float> row = row_of(first);
      x.insert(x.end(), row.begin(), row.end());
    }
    std::vector<CellMove> moves;
    for (int32_t s = 0; s < batch.sequences; ++s) {
      std::vector<float>& held = rows[static_cast<size_t>(s)];
      const SequencePlan& plan = plans[static_cast<size_t>(s)];
      ASSERT_EQ(std::ssize(held), plan.past);
      const auto add = [&](float first) {
        const std::vector<float> row = row_of(first);
        expected.insert(expected.end(), row.begin(), row.end());
      };
      const int32_t first_row = batch.first_row[s];
      for (int32_t i = 0; i < plan.certain; ++i) {
        add(held.empty() ? kNothing : held.back());
        held.push_back(first_of[static_cast<size_t>(first_row + i)]);
      }
      const float last = held.empty() ? kNothing : held.back();
      for (const int32_t parent : plan.parents)
        add(parent < 0 ? last : first_of[static_cast<size_t>(first_row + plan.certain + parent)]);
      int32_t to = batch.context[s];
      for (const int32_t node : accepted[static_cast<size_t>(s)]) {
        if (batch.context[s] + node != to) moves.push_back({s, batch.context[s] + node, to});
        ++to;
        held.push_back(first_of[static_cast<size_t>(first_row + plan.certain + node)]);
      }
    }
    const Tensor y = world.tensor(batch.tokens, kWidth);
    const Tensor hidden = world.tensor(batch.tokens, kWidth, x);
    world.ops().hidden_before(y, hidden, ring, batch);
    world.ops().hidden_keep(ring, hidden, batch);
    world.device().synchronize();
    expect_same(values_of(y), expected, what);
    if (!moves.empty()) world.ops().hidden_move(ring, moves, batch);
    world.device().synchronize();
  }
};

std::vector<int32_t> random_path(const std::vector<int32_t>& parents, Random& random) {
  std::vector<int32_t> path;
  for (int32_t node = 0; node < std::ssize(parents); ++node)
    if (parents[static_cast<size_t>(node)] == (path.empty() ? -1 : path.back()) &&
        random.between(0, 2) > 0)
      path.push_back(node);
  return path;
}

TEST(HiddenRing, GivesThePositionBeforeWhateverTheStepsWere) {
  for (const DeviceCase& device : sequence_devices()) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      Random random(seed);
      constexpr int32_t kSequences = 5;
      const std::vector<SequencePlan> room(kSequences, {0, 400});
      const TestBatch tables(room, random);
      Hidden hidden(device, kSequences, tables.slots());
      for (int32_t step = 0; step < 25; ++step) {
        std::vector<SequencePlan> plans;
        std::vector<std::vector<int32_t>> accepted;
        for (const std::vector<float>& held : hidden.rows) {
          SequencePlan plan{static_cast<int32_t>(held.size()), 0};
          // nothing, chunks, one row, trees after one or none
          const int64_t kind = random.between(0, 5);
          if (kind == 1) plan.certain = static_cast<int32_t>(random.between(2, 20));
          if (kind >= 2) plan.certain = kind == 5 && plan.past > 0 ? 0 : 1;
          if (kind >= 3)
            plan.parents = random_tree(static_cast<int32_t>(random.between(1, kUncertain)), random);
          accepted.push_back(random_path(plan.parents, random));
          plans.push_back(plan);
        }
        const TestBatch rows(plans, tables);
        if (rows.tokens() == 0) continue;
        hidden.step(plans, rows, accepted, device.name + " seed " + std::to_string(seed));
      }
    }
  }
}

// Reads without x, as at the start of a draft head. Slots are copied whole.
TEST(HiddenRing, IsReadWithoutRows) {
  for (const DeviceCase& device : sequence_devices()) {
    Random random(7);
    const TestBatch tables({{0, 60}, {0, 60}}, random);
    Hidden hidden(device, 2, tables.slots());
    const std::vector<SequencePlan> prompts = {{0, 40}, {0, 3}};
    hidden.step(prompts, TestBatch(prompts, tables), {{}, {}}, device.name);
    const TestBatch pending({{40, 1}, {3, 1}}, tables);
    const Tensor y = hidden.world.tensor(2, kWidth);
    hidden.world.ops().hidden_before(y, {}, hidden.ring, pending.batch());
    hidden.world.device().synchronize();
    std::vector<float> expected = Hidden::row_of(hidden.rows[0].back());
    const std::vector<float> second = Hidden::row_of(hidden.rows[1].back());
    expected.insert(expected.end(), second.begin(), second.end());
    expect_same(values_of(y), expected, device.name);

    const int32_t from = tables.batch().slot[0], to = tables.batch().slot[1];
    hidden.world.ops().state_copy(hidden.ring.slot(to), hidden.ring.slot(from),
                                  hidden.ring.slot_elements());
    const TestBatch twin({{}, {40, 1}}, tables);
    hidden.world.ops().hidden_before(y.top(1), {}, hidden.ring, twin.batch());
    hidden.world.device().synchronize();
    expect_same(values_of(y.top(1)), Hidden::row_of(hidden.rows[0].back()),
                device.name + " copied");
  }
}

}  // namespace
}  // namespace braid
