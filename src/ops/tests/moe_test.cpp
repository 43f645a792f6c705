// moe_test.cpp -- products of the chosen experts on every device, of all experts and of a rank's.
#include <algorithm>
#include <cmath>

#include "ops/tests/moe_world_test.h"

namespace braid {
namespace {

using namespace test;
using namespace test_moe;

struct Inputs {
  int32_t rows = 0;
  std::vector<float> x;
  std::vector<int32_t> ids;
  std::vector<float> weights;
};
Inputs random_inputs(const Shape& shape, int32_t rows, Random& random) {
  Inputs in{rows, random.normals(rows * shape.width, shape.input), {}, {}};
  for (int32_t t = 0; t < rows; ++t) {
    std::vector<int32_t> all(static_cast<size_t>(shape.experts));
    for (int32_t e = 0; e < shape.experts; ++e) all[e] = e;
    random.shuffle(all);
    std::stable_sort(all.begin(), all.begin() + shape.experts / 2);
    for (int32_t j = 0; j < shape.used; ++j) {
      in.ids.push_back(all[j]);
      in.weights.push_back(random.uniform(0.05f, 0.9f));
    }
  }
  return in;
}

constexpr float kStart = 1.0f / 64;

// The start value of y is subtracted.
std::vector<float> added(const DeviceCase& device, const Shape& shape, const Model& model,
                         const Inputs& in, const std::vector<int32_t>& cuts,
                         const Part& part_of_rank = {}) {
  Experts experts(device, shape, model, part_of_rank);
  World& world = experts.world;
  const Tensor x = world.tensor(in.rows, shape.width, in.x);
  const Tensor weights = world.tensor(in.rows, shape.used, in.weights);
  const Tensor ids = world.tensor(in.rows, shape.used, DType::i32);
  std::copy(in.ids.begin(), in.ids.end(), static_cast<int32_t*>(ids.data));
  const Tensor y = world.tensor(
      in.rows, shape.width, std::vector<float>(static_cast<size_t>(in.rows * shape.width), kStart));
  int32_t first = 0;
  for (int32_t rows : cuts) {
    auto part = [&](Tensor t) {
      t.data = static_cast<std::byte*>(t.data) + first * t.stride * 4;
      t.rows = rows;
      return t;
    };
    world.ops().moe_ffn(part(y), part(x), part(ids), part(weights), experts.w);
    first += rows;
  }
  world.device().synchronize();
  std::vector<float> result = values_of(y);
  for (float& v : result) v -= kStart;
  return result;
}

void expect_relative_rms(const std::vector<float>& actual, const std::vector<float>& expected,
                         double limit, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    error += (double{actual[i]} - expected[i]) * (double{actual[i]} - expected[i]);
    size += double{expected[i]} * expected[i];
  }
  EXPECT_LE(std::sqrt(error), limit * std::sqrt(size)) << what;
}

const Shape kShapes[] = {
    {.gate = GgmlType::F32,
     .down = GgmlType::F32,
     .experts = 4,
     .used = 2,
     .width = 64,
     .expert_width = 40},
    {.gate = GgmlType::BF16,
     .down = GgmlType::F16,
     .experts = 6,
     .used = 3,
     .width = 96,
     .expert_width = 50,
     .shared_width = 70},
    {.gate = GgmlType::Q8_0,
     .down = GgmlType::Q8_0,
     .experts = 16,
     .used = 4,
     .width = 128,
     .expert_width = 96,
     .shared_width = 160},
    {.gate = GgmlType::Q4_K, .down = GgmlType::Q6_K, .experts = 8, .used = 2, .shared_width = 512},
    {.gate = GgmlType::Q4_K,
     .down = GgmlType::Q8_0,
     .experts = 8,
     .used = 8,
     .expert_width = 64,
     .shared_width = 64},
    {.gate = GgmlType::NVFP4,
     .down = GgmlType::NVFP4,
     .experts = 5,
     .used = 2,
     .width = 128,
     .expert_width = 64,
     .shared_width = 64,
     .with_scales = true,
     .input = 0.03f},
    {.gate = GgmlType::IQ4_XS,
     .down = GgmlType::Q5_K,
     .experts = 4,
     .used = 1,
     .shared_width = 256},
    {.gate = GgmlType::Q5_K, .down = GgmlType::Q6_K, .experts = 6, .used = 2, .shared_width = 256},
    {.gate = GgmlType::MXFP4,
     .down = GgmlType::MXFP4,
     .experts = 8,
     .used = 3,
     .width = 160,
     .expert_width = 96},
    {.gate = GgmlType::Q4_K,
     .down = GgmlType::Q6_K,
     .experts = 6,
     .used = 3,
     .expert_width = 768,
     .shared_width = 768,
     .shared_gated = false},
    {.gate = GgmlType::Q8_0,
     .down = GgmlType::Q8_0,
     .experts = 8,
     .used = 4,
     .width = 64,
     .expert_width = 32,
     .shared_width = 64,
     .shared_gated = false},
};
const Shape kManyExperts[] = {
    {.gate = GgmlType::Q8_0,
     .down = GgmlType::Q8_0,
     .experts = 512,
     .used = 10,
     .width = 64,
     .expert_width = 32,
     .shared_width = 32},
    {.gate = GgmlType::Q8_0,
     .down = GgmlType::Q8_0,
     .experts = 256,
     .used = 16,
     .width = 64,
     .expert_width = 32,
     .shared_width = 32,
     .shared_gated = false,
     .sigmoid = true},
};

TEST(MoeFfn, AgreesWithTheReferenceInAnyCompanyOnAnyThreads) {
  for (const Shape& shape : kShapes) {
    Random random(5);
    const Model model = random_model(shape, random);
    const Inputs in = random_inputs(shape, 45, random);
    const std::vector<float> expected = added(reference_device(), shape, model, in, {45});
    for (const DeviceCase& device : all_devices()) {
      // A GPU rounds activations, weights and the inner rows to f16.
      const double limit = device.gpu                               ? 2e-3
                           : device.activations == Activations::i8  ? 2e-2
                           : device.activations == Activations::i16 ? 2e-4
                                                                    : 2e-6;
      const std::string what = device.name + " " + std::string(type_name(shape.gate));
      const std::vector<float> actual = added(device, shape, model, in, {45});
      expect_relative_rms(actual, expected, limit, what);
      const std::vector<float> pieces = added(device, shape, model, in, {1, 3, 16, 2, 1, 22});
      if (device.gpu) {
        expect_relative_rms(pieces, actual, 2e-4, what + " in pieces");
      } else {
        expect_same(pieces, actual, what + " in pieces");
      }
      for (const DeviceCase& other : other_thread_counts(device)) {
        expect_same(added(other, shape, model, in, {45}), actual, other.name);
        expect_same(added(other, shape, model, in, {1, 1, 43}), actual, other.name);
      }
    }
  }
}

TEST(MoeFfn, ManyExpertsWithFewRowsEach) {
  const Shape shapes[] = {{.gate = GgmlType::Q4_K,
                           .down = GgmlType::Q6_K,
                           .experts = 24,
                           .used = 2,
                           .width = 1024,
                           .shared_width = 256,
                           .input = 0.5f},
                          {.gate = GgmlType::Q4_K,
                           .down = GgmlType::Q4_K,
                           .experts = 12,
                           .used = 1,
                           .width = 2048,
                           .expert_width = 512,
                           .shared_width = 512,
                           .input = 0.5f},
                          {.gate = GgmlType::Q5_K,
                           .down = GgmlType::Q5_K,
                           .experts = 12,
                           .used = 1,
                           .width = 2048,
                           .expert_width = 512,
                           .shared_width = 512,
                           .input = 0.5f},
                          {.gate = GgmlType::MXFP4,
                           .down = GgmlType::IQ4_XS,
                           .experts = 24,
                           .used = 2,
                           .width = 1024,
                           .shared_width = 256,
                           .input = 0.5f},
                          {.gate = GgmlType::IQ4_XS,
                           .down = GgmlType::MXFP4,
                           .experts = 12,
                           .used = 1,
                           .width = 2048,
                           .expert_width = 512,
                           .input = 0.5f},
                          {.gate = GgmlType::Q8_0,
                           .down = GgmlType::Q8_0,
                           .experts = 12,
                           .used = 1,
                           .width = 1024,
                           .expert_width = 1024,
                           .input = 0.1f},
                          {.gate = GgmlType::Q6_K,
                           .down = GgmlType::Q4_K,
                           .experts = 12,
                           .used = 1,
                           .width = 2048,
                           .shared_width = 256,
                           .input = 0.5f}};
  for (const DeviceCase& device : all_devices()) {
    if (!device.gpu) continue;
    for (const Shape& shape : shapes) {
      Random random(29);
      const Model model = random_model(shape, random);
      const Inputs in = random_inputs(shape, 45, random);
      const std::string what = device.name + " " + std::string(type_name(shape.gate)) + " " +
                               std::to_string(shape.width);
      const std::vector<float> expected = added(reference_device(), shape, model, in, {45});
      const std::vector<float> actual = added(device, shape, model, in, {45});
      expect_relative_rms(actual, expected, 2e-3, what);
      expect_same(added(device, shape, model, in, {45}), actual, what + " again");
      expect_relative_rms(added(device, shape, model, in, {1, 9, 2, 33}), actual, 2e-4,
                          what + " in pieces");
    }
  }
}

TEST(MoeFfn, AddsWeightedExpertsAndTheGatedSharedOne) {
  const Shape shape{.experts = 4,
                    .used = 2,
                    .width = 32,
                    .expert_width = 32,
                    .shared_width = 32,
                    .with_scales = true};
  Random random(17);
  const Model model = random_model(shape, random);
  const Inputs in{1, random.normals(32), {3, 1}, {0.75f, 0.25f}};
  auto product = [&](const TestWeight& w, int64_t e, const std::vector<double>& x) {
    std::vector<double> y(32, 0.0);
    for (int64_t i = 0; i < 32; ++i) {
      for (int64_t j = 0; j < 32; ++j) y[i] += w.scales[e] * w.values[(e * 32 + i) * 32 + j] * x[j];
    }
    return y;
  };
  const std::vector<double> x(in.x.begin(), in.x.end());
  std::vector<float> expected(32, 0.0f);
  auto add = [&](double factor, int first, int64_t e) {
    std::vector<double> inner = product(*model.weights[first], e, x);
    const std::vector<double> up = product(*model.weights[first + 1], e, x);
    for (int i = 0; i < 32; ++i) inner[i] = inner[i] / (1 + std::exp(-inner[i])) * up[i];
    const std::vector<double> y = product(*model.weights[first + 2], e, inner);
    for (int i = 0; i < 32; ++i) expected[i] += static_cast<float>(factor * y[i]);
  };
  add(0.75, 0, 3);
  add(0.25, 0, 1);
  double gate = 0;
  for (int i = 0; i < 32; ++i) gate += x[i] * model.shared_scale[i];
  add(1 / (1 + std::exp(-gate)), 3, 0);
  for (const DeviceCase& device : all_devices()) {
    expect_close(added(device, shape, model, in, {1}), expected, device.gpu ? 1e-5 : 1e-7,
                 device.tolerance(2e-6, 8), device.name);
  }
}

// A device may group rows by expert, but a row's sum must run in ascending id.
TEST(MoeFfn, OrderOfTheChosenExpertsDoesNotMatter) {
  for (const Shape& shape : kShapes) {
    Random random(13);
    const Model model = random_model(shape, random);
    Inputs in = random_inputs(shape, 6, random);
    for (const DeviceCase& device : all_devices()) {
      const std::vector<float> expected = added(device, shape, model, in, {6});
      Inputs turned = in;
      for (int32_t t = 0; t < 6; ++t) {
        std::reverse(turned.ids.begin() + t * shape.used,
                     turned.ids.begin() + (t + 1) * shape.used);
        std::reverse(turned.weights.begin() + t * shape.used,
                     turned.weights.begin() + (t + 1) * shape.used);
      }
      expect_same(added(device, shape, model, turned, {6}), expected, device.name);
    }
  }
}

// Every fourth row, the first too, chooses only experts of the last part, if it has enough.
Inputs inputs_of_parts(const Shape& shape, int32_t rows, Random& random) {
  Inputs in = random_inputs(shape, rows, random);
  for (int32_t t = 0; t < rows && parts_of(shape)[2].count >= shape.used; t += 4)
    for (int32_t j = 0; j < shape.used; ++j) in.ids[t * shape.used + j] = shape.experts - 1 - j;
  return in;
}
Inputs top_rows(const Shape& shape, const Inputs& in, int32_t rows) {
  const auto top = [&](const auto& all, int64_t columns) {
    return std::vector(all.begin(), all.begin() + rows * columns);
  };
  return {rows, top(in.x, shape.width), top(in.ids, shape.used), top(in.weights, shape.used)};
}
// The columns of ids[t] that a part has.
std::vector<int32_t> own_columns(const Shape& shape, const Inputs& in, int32_t t,
                                 const Part& part) {
  std::vector<int32_t> own;
  for (int32_t j = t * shape.used; j < (t + 1) * shape.used; ++j)
    if (in.ids[j] >= part.first && in.ids[j] < part.first + part.count) own.push_back(j);
  return own;
}

// added() of a part by the whole stacks: row by row, with the part's ids alone.
std::vector<float> added_by_own(const DeviceCase& device, const Shape& shape, const Model& model,
                                const Inputs& in, const Part& part) {
  Experts experts(device, shape, model, {0, 0, part.shared});
  World& world = experts.world;
  std::vector<float> result;
  for (int32_t t = 0; t < in.rows; ++t) {
    const auto* row = in.x.data() + t * shape.width;
    const Tensor x = world.tensor(1, shape.width, std::vector<float>(row, row + shape.width));
    const Tensor y =
        world.tensor(1, shape.width, std::vector<float>(static_cast<size_t>(shape.width), kStart));
    Tensor ids = world.tensor(1, shape.used, DType::i32);
    Tensor weights = world.tensor(1, shape.used);
    ids.cols = weights.cols = 0;
    for (const int32_t j : own_columns(shape, in, t, part)) {
      static_cast<int32_t*>(ids.data)[ids.cols++] = in.ids[j];
      weights.f32()[weights.cols++] = in.weights[j];
    }
    world.ops().moe_ffn(y, x, ids, weights, experts.w);
    for (const float v : values_of(y)) result.push_back(v - kStart);
  }
  return result;
}

TEST(MoeParts, AreTheSumsOfTheirOwnExperts) {
  for (const Shape& shape : kShapes) {
    Random random(31);
    const Model model = random_model(shape, random);
    const Inputs in = inputs_of_parts(shape, 21, random);
    for (const DeviceCase& device : all_devices()) {
      if (device.gpu) continue;  // rounds sums by the company of a row
      for (const Part& part : parts_of(shape)) {
        const std::string what = device.name + " from " + std::to_string(part.first);
        const std::vector<float> own = added_by_own(device, shape, model, in, part);
        expect_same(added(device, shape, model, in, {21}, part), own, what);
        expect_same(added(device, shape, model, in, {1, 2, 18}, part), own, what);
      }
    }
  }
}

class MoePartsOf : public ::testing::TestWithParam<size_t> {};
TEST_P(MoePartsOf, AFormAddUpToTheWhole) {
  const Shape& shape = kShapes[GetParam()];
  Random random(37);
  const Model model = random_model(shape, random);
  const Inputs all = inputs_of_parts(shape, 300, random);
  const std::vector<float> whole = added(reference_device(), shape, model, all, {300});
  const std::vector<Part> parts = parts_of(shape);
  std::vector<std::vector<float>> expected;
  for (const Part& part : parts)
    expected.push_back(added(reference_device(), shape, model, all, {300}, part));
  for (const DeviceCase& device : all_devices()) {
    const double limit = device.gpu                               ? 2e-3
                         : device.activations == Activations::i8  ? 2e-2
                         : device.activations == Activations::i16 ? 2e-4
                                                                  : 2e-6;
    for (const int32_t rows : {1, 2, 3, 8, 9, 33, 150, 300}) {
      const Inputs in = top_rows(shape, all, rows);
      const auto end = rows * shape.width;
      std::vector<float> sum(static_cast<size_t>(end));
      for (size_t p = 0; p < parts.size(); ++p) {
        const std::string what = device.name + " " + std::to_string(rows) + " rows from " +
                                 std::to_string(parts[p].first);
        const std::vector<float> own = added(device, shape, model, in, {rows}, parts[p]);
        expect_relative_rms(own, {expected[p].begin(), expected[p].begin() + end}, limit, what);
        for (size_t i = 0; i < own.size(); ++i) sum[i] += own[i];
        const bool shared = parts[p].shared && shape.shared_width > 0;
        for (int32_t t = 0; t < rows && !shared; ++t) {
          if (!own_columns(shape, in, t, parts[p]).empty()) continue;
          const auto row = own.begin() + t * shape.width;
          EXPECT_EQ(std::count(row, row + shape.width, 0.0f), shape.width) << what << ", row " << t;
        }
      }
      expect_relative_rms(sum, {whole.begin(), whole.begin() + end}, limit, device.name);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, MoePartsOf, ::testing::Range<size_t>(0, std::size(kShapes)));

TEST(Moe, IsRouteAndThenFfn) {
  Shape biased = kShapes[3];
  biased.sigmoid = true;
  for (const Shape& shape : {kShapes[3], biased, kManyExperts[0], kManyExperts[1]}) {
    Random random(17);
    const Model model = random_model(shape, random);
    for (const DeviceCase& device : all_devices()) {
      for (const auto& [rows, part] : {std::pair{1, Part{}},
                                       {5, Part{}},
                                       {33, Part{}},
                                       {1, parts_of(shape)[1]},
                                       {5, parts_of(shape)[2]},
                                       {21, parts_of(shape)[0]},
                                       {33, parts_of(shape)[1]}}) {
        const std::vector<float> input = random.normals(int64_t{rows} * shape.width, shape.input);
        const std::vector<float> scores = random.normals(int64_t{rows} * shape.experts, 2.0f);
        std::vector<float> results[2];
        for (const bool at_once : {false, true}) {
          Experts experts(device, shape, model, part);
          World& world = experts.world;
          const Tensor x = world.tensor(rows, shape.width, input);
          const Tensor logits = world.tensor(rows, shape.experts, scores);
          const Tensor ids = world.tensor(rows, shape.used, DType::i32);
          const Tensor weights = world.tensor(rows, shape.used);
          const Tensor y = world.tensor(rows, shape.width);
          if (at_once) {
            world.ops().moe(y, x, ids, weights, logits, experts.route, experts.w, {});
          } else {
            world.ops().moe_route(ids, weights, logits, experts.route);
            world.ops().moe_ffn(y, x, ids, weights, experts.w);
          }
          world.device().synchronize();
          results[at_once] = values_of(y);
          const std::vector<float> chosen = values_of(weights);
          results[at_once].insert(results[at_once].end(), chosen.begin(), chosen.end());
          const auto* id = static_cast<const int32_t*>(ids.data);
          results[at_once].insert(results[at_once].end(), id, id + ids.rows * ids.cols);
        }
        expect_same(results[1], results[0], device.name + " " + std::to_string(rows) + " rows");
      }
    }
  }
}

enum class Crowd { spread, same, apart };  // whether tokens choose the same experts

// What moe() adds to y, whose rows have gaps; then the weights of the choice.
std::vector<float> few_result(const DeviceCase& device, const Shape& shape, const Model& model,
                              int32_t rows, const std::vector<float>& input,
                              const std::vector<float>& scores, const Part& part = {}) {
  constexpr int64_t kApart = 4;
  Experts experts(device, shape, model, part);
  World& world = experts.world;
  const Tensor x = world.tensor(rows, shape.width, input);
  const Tensor logits = world.tensor(rows, shape.experts, scores);
  const Tensor ids = world.tensor(rows, shape.used, DType::i32);
  const Tensor weights = world.tensor(rows, shape.used);
  const Tensor all = world.tensor(rows, shape.width + kApart);
  Tensor y = all;
  y.cols = shape.width;
  world.ops().moe(y, x, ids, weights, logits, experts.route, experts.w, {});
  world.ops().moe(y, x, ids, weights, logits, experts.route, experts.w, {});  // adds once more
  world.device().synchronize();
  std::vector<float> result;
  const std::vector<float> values = values_of(all);
  for (int64_t i = 0; i < std::ssize(values); ++i) {
    if (i % (shape.width + kApart) < shape.width) {
      result.push_back(values[i]);
    } else {
      EXPECT_EQ(values[i], 0.0f) << device.name;
    }
  }
  const std::vector<float> chosen = values_of(weights);
  result.insert(result.end(), chosen.begin(), chosen.end());
  return result;
}

std::vector<float> scores_for(const Shape& shape, int32_t rows, Crowd crowd, Random& random) {
  std::vector<float> scores = random.normals(int64_t{rows} * shape.experts, 2.0f);
  for (int32_t t = 0; t < rows; ++t) {
    float* row = scores.data() + int64_t{t} * shape.experts;
    if (crowd == Crowd::same) std::copy_n(scores.data(), shape.experts, row);
    for (int32_t e = 0; crowd == Crowd::apart && e < shape.experts; ++e)
      if (e / shape.used % rows == t) row[e] += 40.0f;
  }
  return scores;
}

const Shape kFewShapes[] = {
    {.gate = GgmlType::Q4_K,
     .down = GgmlType::Q6_K,
     .experts = 20,
     .used = 8,
     .width = 512,
     .shared_width = 512},
    {.gate = GgmlType::Q4_K, .down = GgmlType::Q4_K, .experts = 6, .used = 4, .expert_width = 512},
    {.gate = GgmlType::Q6_K, .down = GgmlType::Q8_0, .experts = 7, .used = 3, .width = 1280},
    {.gate = GgmlType::Q5_K, .down = GgmlType::Q6_K, .experts = 9, .used = 3, .width = 512},
    {.gate = GgmlType::IQ4_XS,
     .down = GgmlType::MXFP4,
     .experts = 9,
     .used = 3,
     .shared_width = 256},
    {.gate = GgmlType::MXFP4,
     .down = GgmlType::Q5_K,
     .experts = 20,
     .used = 8,
     .width = 512,
     .shared_width = 512},
    {.gate = GgmlType::Q8_0,
     .down = GgmlType::BF16,
     .experts = 300,
     .used = 5,
     .width = 64,
     .expert_width = 32},
    {.gate = GgmlType::F16,
     .down = GgmlType::F32,
     .experts = 6,
     .used = 1,
     .width = 72,
     .expert_width = 50,
     .shared_width = 300},
    {.gate = GgmlType::F32,
     .down = GgmlType::F16,
     .experts = 9,
     .used = 2,
     .width = 264,
     .expert_width = 33},
    {.gate = GgmlType::Q4_K,
     .down = GgmlType::Q6_K,
     .experts = 20,
     .used = 10,
     .width = 512,
     .expert_width = 768,
     .shared_width = 768,
     .shared_gated = false,
     .sigmoid = true},
    kManyExperts[0],
    kManyExperts[1],
};

class MoeFewTokens : public ::testing::TestWithParam<size_t> {};
TEST_P(MoeFewTokens, OfEveryFormAndCrowdAgreeWithTheReference) {
  const Shape& shape = kFewShapes[GetParam()];
  Random random(23);
  const Model model = random_model(shape, random);
  for (const int32_t rows : {1, 2, 3, 5, 8}) {
    for (const Crowd crowd : {Crowd::spread, Crowd::same, Crowd::apart}) {
      const std::vector<float> input = random.normals(int64_t{rows} * shape.width, shape.input);
      const std::vector<float> scores = scores_for(shape, rows, crowd, random);
      const std::vector<float> expected =
          few_result(reference_device(), shape, model, rows, input, scores);
      for (const DeviceCase& device : plain_devices()) {
        const std::string what = device.name + " " + std::string(type_name(shape.gate)) + " " +
                                 std::to_string(rows) + " rows, crowd " +
                                 std::to_string(static_cast<int>(crowd));
        const std::vector<float> actual = few_result(device, shape, model, rows, input, scores);
        const double limit = device.gpu                               ? 2e-3
                             : device.activations == Activations::i8  ? 2e-2
                             : device.activations == Activations::i16 ? 2e-4
                                                                      : 2e-6;
        expect_relative_rms(actual, expected, limit, what);
        expect_same(few_result(device, shape, model, rows, input, scores), actual, what + " again");
        if (crowd != Crowd::spread) continue;
        std::vector<float> sum(actual.size());
        const int64_t values = rows * shape.width;
        for (const Part& part : parts_of(shape)) {
          const std::vector<float> own =
              few_result(device, shape, model, rows, input, scores, part);
          for (int64_t i = 0; i < values; ++i) sum[i] += own[i];
          std::copy(own.begin() + values, own.end(), sum.begin() + values);  // weights, of all
        }
        expect_relative_rms(sum, expected, limit, what + " in parts");
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, MoeFewTokens, ::testing::Range<size_t>(0, std::size(kFewShapes)));

}  // namespace
}  // namespace braid
