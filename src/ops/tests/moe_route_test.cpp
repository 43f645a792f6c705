// moe_route_test.cpp -- the choice of experts on every device.
#include <algorithm>
#include <cmath>

#include "ops/tests/op_test.h"

namespace braid {
namespace {

using namespace test;

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed route(const DeviceCase& device, const std::vector<float>& logits, RouteParams params,
             const std::vector<float>& bias = {}) {
  const int32_t experts = params.experts;
  const int32_t used = params.used;
  World world(device);
  Device::WorkspaceNeeds needs;
  needs.experts = experts;
  needs.experts_used = used;
  world.prepare({}, needs);
  const int64_t rows = std::ssize(logits) / experts;
  const Tensor ids = world.tensor(rows, used, DType::i32);
  const Tensor weights = world.tensor(rows, used);
  if (!bias.empty()) params.bias = world.array(bias);
  world.ops().moe_route(ids, weights, world.tensor(rows, experts, logits), params);
  world.device().synchronize();
  const auto* data = static_cast<const int32_t*>(ids.data);
  return {{data, data + rows * used}, values_of(weights)};
}

TEST(MoeRoute, AgreesWithTheReference) {
  for (const DeviceCase& device : plain_devices()) {
    for (auto [experts, used] :
         {std::pair{8, 2}, {16, 4}, {256, 8}, {100, 10}, {5, 5}, {1, 1}, {512, 1}, {512, 10}}) {
      for (int rows : {1, 7, 100}) {
        Random random(static_cast<uint64_t>(experts * 1000 + rows));
        const std::vector<float> logits = random.normals(int64_t{rows} * experts, 3.0f);
        const Routed actual = route(device, logits, {experts, used});
        const Routed expected = route(reference_device(), logits, {experts, used});
        EXPECT_EQ(actual.ids, expected.ids) << device.name << " " << experts << " experts";
        expect_close(actual.weights, expected.weights, 1e-12, device.gpu ? 1e-5 : 2e-6,
                     device.name);
        for (const DeviceCase& other : other_thread_counts(device)) {
          const Routed same = route(other, logits, {experts, used});
          EXPECT_EQ(same.ids, actual.ids) << other.name;
          expect_same(same.weights, actual.weights, other.name);
        }
      }
    }
  }
}

TEST(MoeRoute, TiesGoToTheLowestId) {
  for (const DeviceCase& device : plain_devices()) {
    const Routed same = route(device, std::vector<float>(64, 0.25f), {64, 6});
    EXPECT_EQ(same.ids, (std::vector<int32_t>{0, 1, 2, 3, 4, 5})) << device.name;
    for (float w : same.weights) EXPECT_NEAR(w, 1.0 / 6, 1e-7) << device.name;
    std::vector<float> logits(40, -1.0f);
    for (int i : {38, 21, 7, 30}) logits[i] = 2.0f;
    logits[33] = 5.0f;
    EXPECT_EQ(route(device, logits, {40, 4}).ids, (std::vector<int32_t>{33, 7, 21, 30}))
        << device.name;
    EXPECT_EQ(route(device, logits, {40, 6}).ids, (std::vector<int32_t>{33, 7, 21, 30, 38, 0}))
        << device.name;
  }
}

TEST(MoeRoute, WeightsOfEveryRowSumToOne) {
  for (const DeviceCase& device : plain_devices()) {
    Random random(3);
    std::vector<float> logits = random.normals(50 * 32, 40.0f);
    std::fill(logits.begin(), logits.begin() + 32, -1e30f);
    const Routed routed = route(device, logits, {32, 8});
    for (int row = 0; row < 50; ++row) {
      double sum = 0;
      for (int j = 0; j < 8; ++j) sum += routed.weights[row * 8 + j];
      EXPECT_NEAR(sum, 1.0, 1e-6) << device.name << " row " << row;
    }
  }
}

// Laguna's router: sigmoid scores, a bias for the choice only, a factor.
TEST(MoeRoute, OfSigmoidScoresAgreesWithTheReference) {
  for (const DeviceCase& device : plain_devices()) {
    for (auto [experts, used] :
         {std::pair{8, 2}, {256, 8}, {256, 16}, {512, 10}, {100, 10}, {5, 5}, {1, 1}}) {
      for (int rows : {1, 7, 100}) {
        Random random(static_cast<uint64_t>(experts * 1000 + rows));
        const std::vector<float> logits = random.normals(int64_t{rows} * experts, 2.0f);
        const std::vector<float> bias = random.normals(experts, 0.3f);
        const RouteParams params{experts, used, RouteParams::Score::sigmoid, nullptr, 2.5f};
        const Routed actual = route(device, logits, params, bias);
        const Routed expected = route(reference_device(), logits, params, bias);
        EXPECT_EQ(actual.ids, expected.ids) << device.name << " " << experts << " experts";
        expect_close(actual.weights, expected.weights, 1e-12, device.gpu ? 1e-5 : 2e-6,
                     device.name);
        for (const DeviceCase& other : other_thread_counts(device)) {
          const Routed same = route(other, logits, params, bias);
          EXPECT_EQ(same.ids, actual.ids) << other.name;
          expect_same(same.weights, actual.weights, other.name);
        }
      }
    }
  }
}

TEST(MoeRoute, BiasDecidesTheChoiceAndNotTheWeights) {
  for (const DeviceCase& device : plain_devices()) {
    const std::vector<float> logits = {0.0f, 2.0f, -2.0f, 0.0f};
    const RouteParams params{4, 2, RouteParams::Score::sigmoid, nullptr, 2.5f};
    const Routed plain = route(device, logits, params);
    EXPECT_EQ(plain.ids, (std::vector<int32_t>{1, 0})) << device.name;  // a tie: the lowest id
    const Routed biased = route(device, logits, params, {0.0f, -0.9f, 1.0f, 0.1f});
    EXPECT_EQ(biased.ids, (std::vector<int32_t>{2, 3})) << device.name;
    const double low = 1 / (1 + std::exp(2.0));
    EXPECT_NEAR(biased.weights[0], 2.5 * low / (low + 0.5), 1e-6) << device.name;
    EXPECT_NEAR(biased.weights[1], 2.5 * 0.5 / (low + 0.5), 1e-6) << device.name;
    const Routed none = route(device, {-200.0f, -200.0f, -200.0f, -200.0f}, params);
    EXPECT_EQ(none.ids, (std::vector<int32_t>{0, 1})) << device.name;
    for (const float w : none.weights) EXPECT_TRUE(w >= 0 && w < 1e-6f) << device.name << " " << w;
  }
}

}  // namespace
}  // namespace braid
