// moe_world_test.h -- random layers of experts, loaded on a device.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "ops/tests/op_test.h"

namespace braid::test_moe {

using namespace test;

struct Shape {
  GgmlType gate = GgmlType::F32;
  GgmlType down = GgmlType::F32;
  int32_t experts = 8;
  int32_t used = 2;
  int64_t width = 256;         // E
  int64_t expert_width = 256;  // Fe
  int64_t shared_width = 0;    // Fs; 0: no shared expert
  bool with_scales = false;
  float input = 1.0f;  // scale of x; the inner rows of f16 are limited to 65504
  bool shared_gated = true;
  bool sigmoid = false;  // scores of the router: with a bias, and weights with a factor
};

struct Model {
  // gate, up, down, then those of the shared expert
  std::vector<std::unique_ptr<TestWeight>> weights;
  std::vector<float> shared_scale;
  std::vector<float> bias;
};

inline Model random_model(const Shape& shape, Random& random) {
  Model model;
  auto add = [&](GgmlType type, int64_t n, int64_t k, int64_t experts) {
    model.weights.push_back(random_weight(random, type, n, k, experts, shape.with_scales));
  };
  add(shape.gate, shape.expert_width, shape.width, shape.experts);
  add(shape.gate, shape.expert_width, shape.width, shape.experts);
  add(shape.down, shape.width, shape.expert_width, shape.experts);
  if (shape.shared_width > 0) {
    add(shape.gate, shape.shared_width, shape.width, 1);
    add(shape.gate, shape.shared_width, shape.width, 1);
    add(shape.down, shape.width, shape.shared_width, 1);
    if (shape.shared_gated) model.shared_scale = random.normals(shape.width, 0.1f);
  }
  if (shape.sigmoid) model.bias = random.normals(shape.experts, 0.3f);
  return model;
}

// What a rank has of a model.
struct Part {
  int32_t first = 0;
  int32_t count = 0;  // experts; 0: all
  bool shared = true;
};
// One expert, about half of the others with the shared one, and the rest.
inline std::vector<Part> parts_of(const Shape& shape) {
  const int32_t half = (shape.experts - 1) / 2;
  return {{0, 1, false}, {1, half, true}, {1 + half, shape.experts - 1 - half, false}};
}

inline Weight part_of(Weight stack, const Part& part) {
  const size_t bytes = stack.file.size() / static_cast<size_t>(stack.experts);
  const auto first = static_cast<size_t>(part.first);
  const auto count = static_cast<size_t>(part.count > 0 ? part.count : stack.experts);
  stack.experts = static_cast<int64_t>(count);
  stack.file = stack.file.subspan(first * bytes, count * bytes);
  if (!stack.scales.empty()) stack.scales = stack.scales.subspan(first, count);
  return stack;
}

struct Experts {
  World world;
  std::vector<Weight> loaded;
  MoeWeights w;
  RouteParams route;

  Experts(const DeviceCase& device, const Shape& shape, const Model& model, const Part& part = {},
          int32_t slots = 0)
      : world(device) {
    for (const auto& weight : model.weights)
      loaded.push_back(part_of(weight->weight, loaded.size() < 3 ? part : Part{}));
    for (size_t i = 0; i < 3; ++i) loaded[i].slots = slots;
    std::vector<Weight*> pointers;
    for (Weight& weight : loaded) pointers.push_back(&weight);
    Device::WorkspaceNeeds needs;
    needs.max_tokens = 300;
    needs.max_width = std::max({shape.width, shape.expert_width, shape.shared_width});
    needs.experts = shape.experts;
    needs.experts_used = shape.used;
    needs.expert_width = std::max(shape.expert_width, shape.shared_width);
    needs.model_width = shape.width;
    world.prepare(pointers, needs);
    w.gate = &loaded[0];
    w.up = &loaded[1];
    w.down = &loaded[2];
    w.first_expert = part.first;
    w.all_experts = shape.experts;
    route = {shape.experts, shape.used};
    if (shape.sigmoid)
      route = {shape.experts, shape.used, RouteParams::Score::sigmoid, world.array(model.bias),
               2.5f};
    if (shape.shared_width == 0 || !part.shared) return;
    w.shared_gate = &loaded[3];
    w.shared_up = &loaded[4];
    w.shared_down = &loaded[5];
    if (shape.shared_gated) w.shared_scale = world.array(model.shared_scale);
  }
};

}  // namespace braid::test_moe
