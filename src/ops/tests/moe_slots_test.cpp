// moe_slots_test.cpp -- experts that a GPU has in part: those in host memory are read by the step,
// or computed by threads of the host.
#include <algorithm>
#include <cmath>

#include "ops/tests/moe_world_test.h"

namespace braid {
namespace {

using namespace test;
using namespace test_moe;

// Rows of a step: each is a sequence's only row, or a draft after one.
struct SlotStep {
  std::vector<int32_t> sequence, certain, first_row, rows;
  Batch batch;

  SlotStep(int32_t count, int32_t drafts) {
    for (int32_t row = 0; row < count; ++row) {
      if (row % (1 + drafts) == 0) {
        first_row.push_back(row);
        certain.push_back(1);
        rows.push_back(0);
      }
      sequence.push_back(static_cast<int32_t>(rows.size()) - 1);
      ++rows.back();
    }
    batch.tokens = count;
    batch.sequences = static_cast<int32_t>(rows.size());
    batch.sequence = sequence.data();
    batch.certain = certain.data();
    batch.first_row = first_row.data();
    batch.rows = rows.data();
  }
};

std::vector<float> moe_of(Experts& experts, const Shape& shape, int32_t rows,
                          const std::vector<float>& input, const std::vector<float>& scores,
                          const Batch& batch) {
  World& world = experts.world;
  const Tensor y = world.tensor(rows, shape.width);
  world.ops().moe(y, world.tensor(rows, shape.width, input),
                  world.tensor(rows, shape.used, DType::i32), world.tensor(rows, shape.used),
                  world.tensor(rows, shape.experts, scores), experts.route, experts.w, batch);
  world.device().synchronize();
  return values_of(y);
}

// Experts in host memory give the bytes of resident ones, whatever is resident: in steps of a few
// rows, of many, and of so many that all experts are streamed. (The last are exact if the device is
// deterministic: else the order in which rows come decides which tiles are cut along k.)
TEST(MoeSlots, GiveTheBytesOfResidentExperts) {
  std::vector<DeviceCase> devices;
  for (DeviceCase device : plain_devices()) {
    if (!World(device).device().traits().expert_slots) continue;
    devices.push_back(device);
    device.deterministic = true;
    device.name += " deterministic";
    devices.push_back(device);
  }
  if (devices.empty()) GTEST_SKIP() << "no GPU";
  for (const DeviceCase& device : devices) {
    const Shape shapes[] = {
        {GgmlType::Q4_K, GgmlType::Q6_K, 16, 4, 512, 256, 256},
        {GgmlType::Q8_0, GgmlType::Q8_0, 40, 8, 256, 96, 0},
        {GgmlType::F16, GgmlType::F32, 8, 2, 64, 40, 32},
        {GgmlType::IQ4_NL, GgmlType::Q5_K, 64, 8, 256, 256, 256, true},
        {GgmlType::MXFP4, GgmlType::Q4_K, 24, 3, 256, 512, 256, false, 1.0f, false, true},
        {GgmlType::Q8_0, GgmlType::Q8_0, 8, 1, 256, 64, 0},
        {GgmlType::Q8_0, GgmlType::Q8_0, 600, 4, 64, 32, 0},
    };
    uint64_t seed = 1;
    for (const Shape& shape : shapes) {
      Random random(++seed);
      const Model model = random_model(shape, random);
      for (const int32_t slots : {1, shape.used, shape.experts / 2, shape.experts - 1}) {
        Experts resident(device, shape, model);
        Experts some(device, shape, model, {}, slots);
        std::vector<float> liked = random.normals(shape.experts, 2.0f);
        const int32_t all_rows[] = {1, 1,   1,  2,   4,   1, 8, 33, 1, 300,
                                    1, 128, 20, 300, 300, 2, 5, 1,  1};
        for (const int32_t rows : all_rows) {
          // Few experts are liked, and they change slowly.
          liked[static_cast<size_t>(random.between(0, shape.experts - 1))] += 2;
          std::vector<float> scores = random.normals(int64_t{rows} * shape.experts);
          for (size_t i = 0; i < scores.size(); ++i) scores[i] += liked[i % liked.size()];
          const std::vector<float> input = random.normals(rows * shape.width);
          std::vector<float> results[2];  // of all resident, and of some
          SlotStep step(rows, static_cast<int32_t>(random.between(0, 3)));
          results[0] = moe_of(resident, shape, rows, input, scores, step.batch);
          results[1] = moe_of(some, shape, rows, input, scores, step.batch);
          const std::string what = device.name + " " + std::to_string(slots) + " of " +
                                   std::to_string(shape.experts) + ", " + std::to_string(rows) +
                                   " rows";
          if (rows > 33 && !device.deterministic) {
            expect_close(results[1], results[0], 2e-3, 2e-3, what);
          } else {
            expect_same(results[1], results[0], what);
          }
        }
        const std::vector<ExpertLayer> layers = some.world.device().expert_layers();
        ASSERT_EQ(layers.size(), 1u);
        EXPECT_EQ(layers[0].slots, slots);
        EXPECT_LE(layers[0].counts.steps, 16u);  // told with a delay
        EXPECT_GE(layers[0].counts.steps, 1u);
        EXPECT_EQ(layers[0].counts.streamed, 3 * static_cast<uint64_t>(shape.experts - slots));
        EXPECT_GE(layers[0].counts.chosen, layers[0].counts.steps);
        EXPECT_LE(layers[0].counts.admitted + layers[0].counts.passed_by, layers[0].counts.chosen);
      }
    }
  }
}

// Which experts the host gets depends on measured times, and nothing may depend on that but
// rounding: steps of few rows and of many, with drafts, in every format of an expert.
TEST(MoeShare, IsCloseToResidentExperts) {
  std::vector<DeviceCase> devices;
  for (DeviceCase device : plain_devices()) {
    device.experts_on_host = true;
    device.threads = 4;
    if (World(device).device().traits().expert_slots) devices.push_back(device);
  }
  if (devices.empty()) GTEST_SKIP() << "no GPU";
  const Shape shapes[] = {
      {GgmlType::Q4_K, GgmlType::Q6_K, 64, 8, 512, 256, 256},
      {GgmlType::Q8_0, GgmlType::Q8_0, 40, 8, 256, 96, 0},
      {GgmlType::IQ4_NL, GgmlType::Q5_K, 64, 8, 256, 256, 256, true},
      {GgmlType::MXFP4, GgmlType::Q4_K, 24, 3, 256, 512, 256, false, 1.0f, false, true},
      {GgmlType::Q8_0, GgmlType::Q8_0, 600, 4, 64, 32, 0},
      {GgmlType::F16, GgmlType::Q4_K, 16, 4, 256, 256, 0},  // a format that is always read
  };
  uint64_t seed = 1;
  for (const DeviceCase& device : devices)
    for (const Shape& shape : shapes) {
      Random random(++seed);
      const Model model = random_model(shape, random);
      Experts resident(device, shape, model);
      Experts some(device, shape, model, {}, shape.experts / 4);
      uint64_t steps = 0;
      for (int again = 0; again < 6; ++again)
        for (const int32_t rows : {1, 2, 1, 3, 8, 1, 33, 64, 65, 20, 300, 5}) {
          const std::vector<float> scores = random.normals(int64_t{rows} * shape.experts);
          const std::vector<float> input = random.normals(rows * shape.width);
          SlotStep step(rows, static_cast<int32_t>(random.between(0, 3)));
          const auto want = moe_of(resident, shape, rows, input, scores, step.batch);
          const auto got = moe_of(some, shape, rows, input, scores, step.batch);
          expect_close(got, want, 4e-3, 4e-3, device.name + " " + std::to_string(rows) + " rows");
          ++steps;
        }
      const ExpertCounts counts = some.world.device().expert_layers().at(0).counts;
      EXPECT_GT(counts.chosen, counts.computed);
      if (shape.gate == GgmlType::F16) {
        EXPECT_EQ(counts.computed, 0u);
      } else {
        EXPECT_GT(counts.computed, 0u);
      }
      EXPECT_TRUE(some.world.device().health().ok());
    }
}

TEST(MoeShare, IsNotThereIfRowsMustBeReproducible) {
  for (DeviceCase device : plain_devices()) {
    device.experts_on_host = device.deterministic = true;
    device.threads = 4;
    if (!World(device).device().traits().expert_slots) continue;
    const Shape shape{GgmlType::Q4_K, GgmlType::Q6_K, 16, 4, 512, 256, 256};
    Random random(3);
    const Model model = random_model(shape, random);
    Experts some(device, shape, model, {}, 4);
    for (int i = 0; i < 20; ++i) {
      SlotStep step(4, 0);
      moe_of(some, shape, 4, random.normals(4 * shape.width), random.normals(4 * shape.experts),
             step.batch);
    }
    const ExpertCounts counts = some.world.device().expert_layers().at(0).counts;
    EXPECT_EQ(counts.computed, 0u);
    EXPECT_GT(counts.passed_by + counts.admitted, 0u);
  }
}

}  // namespace
}  // namespace braid
