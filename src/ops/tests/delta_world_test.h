// delta_world_test.h -- one gated-delta layer with random states, for tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "ops/tests/op_test.h"

namespace braid::test {

constexpr float kUntouched = -7777.0f;
constexpr double kTolerance = 1e-5;
inline double outputs(const DeviceCase& device) { return device.tolerance(kTolerance); }

inline const DeltaShape kShapes[] = {
    {.key_heads = 1, .value_heads = 1, .key_dim = 128, .value_dim = 128, .conv_width = 4},
    {.key_heads = 2, .value_heads = 4, .key_dim = 128, .value_dim = 128, .conv_width = 4},
    {.key_heads = 2, .value_heads = 6, .key_dim = 64, .value_dim = 128, .conv_width = 4},
    {.key_heads = 4, .value_heads = 4, .key_dim = 32, .value_dim = 64, .conv_width = 4},
    {.key_heads = 1, .value_heads = 2, .key_dim = 32, .value_dim = 32, .conv_width = 3},
    {.key_heads = 2,
     .value_heads = 4,
     .key_dim = 128,
     .value_dim = 128,
     .conv_width = 4,
     .grouped = true},
    {.key_heads = 2,
     .value_heads = 6,
     .key_dim = 32,
     .value_dim = 32,
     .conv_width = 4,
     .grouped = true},
};
inline const DeltaShape kSmall = {
    .key_heads = 1, .value_heads = 2, .key_dim = 32, .value_dim = 32, .conv_width = 4};

struct Rows {
  std::vector<float> qkv, z, alpha, beta;
};
inline std::vector<float> pick(const std::vector<float>& all, int64_t width,
                               const std::vector<int32_t>& rows) {
  std::vector<float> some(rows.size() * static_cast<size_t>(width));
  for (size_t i = 0; i < rows.size(); ++i)
    std::copy_n(all.begin() + rows[i] * width, width,
                some.begin() + static_cast<int64_t>(i) * width);
  return some;
}
inline std::vector<int32_t> range(int32_t first, int32_t count) {
  std::vector<int32_t> rows;
  for (int32_t i = 0; i < count; ++i) rows.push_back(first + i);
  return rows;
}

struct Delta {
  DeltaShape shape;
  World world;
  DeltaLayer layer;
  DeltaWeights weights;
  bool decays;  // random decays; a GPU's are 1

  Delta(const DeviceCase& device, const DeltaShape& delta_shape, int32_t slots, Random& random,
        int32_t most_sequences = 16, int32_t uncertain = 64)
      : shape(delta_shape), world(device), decays(!device.gpu) {
    Device::WorkspaceNeeds needs;
    needs.max_sequences = most_sequences;
    needs.delta = shape;
    needs.max_drafts = uncertain;
    needs.max_width = shape.channels();
    world.prepare({}, needs);
    layer = world.delta_layer(shape, slots, uncertain);
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

  void copy_slot(int32_t dst, int32_t src) {
    world.ops().state_copy(layer.slot(dst), layer.slot(src), layer.slot_elements());
  }

  float& stored(int32_t s, int32_t h, int32_t key, int32_t value) const {
    const int64_t tile = value / layer.tile_columns;
    return layer.state(
        s, h)[(tile * shape.key_dim + key) * layer.tile_columns + value % layer.tile_columns];
  }
  void fill(int32_t s, Random& random) {
    for (int32_t h = 0; h < shape.value_heads; ++h) {
      const float random_decay = std::ldexp(1.0f, -static_cast<int>(random.between(0, 15)));
      const float decay = decays ? random_decay : 1.0f;
      layer.decay(s)[h] = decay;
      for (int32_t k = 0; k < shape.key_dim; ++k) {
        for (int32_t v = 0; v < shape.value_dim; ++v)
          stored(s, h, k, v) = random.normal() * 0.3f / decay;
      }
    }
    for (int64_t i = 0; i < shape.conv_rows(layer.ring) * shape.channels(); ++i)
      layer.conv(s)[i] = random.normal();
  }

  // The state is at position - pending, followed by random entries.
  void stand(int32_t s, int32_t position, int32_t pending, Random& random) {
    std::fill_n(layer.folded(s), shape.value_heads, position - pending);
    for (int32_t p = position - pending; p < position; ++p) {
      for (int64_t i = 0; i < shape.key_width(); ++i)
        layer.key(s, p, 0)[i] = random.normal() / std::sqrt(static_cast<float>(shape.key_dim));
      for (int64_t i = 0; i < shape.value_width(); ++i) layer.delta(s, p, 0)[i] = random.normal();
      for (int32_t h = 0; h < shape.value_heads; ++h)
        layer.gate(s, p)[h] = -random.uniform(0.0f, 2.0f);
    }
  }
  void stand(const TestBatch& rows, Random& random) {
    const Batch& b = rows.batch();
    for (int32_t s = 0; s < b.sequences; ++s)
      stand(b.slot[s], b.context[s] - b.certain[s], 0, random);
  }

  Rows random_rows(int32_t count, Random& random) const {
    return {random.normals(count * shape.channels()), random.normals(count * shape.value_width()),
            random.normals(count * shape.value_heads, 2.0f),
            random.normals(count * shape.value_heads)};
  }
  Rows picked(const Rows& all, const std::vector<int32_t>& rows) const {
    return {pick(all.qkv, shape.channels(), rows), pick(all.z, shape.value_width(), rows),
            pick(all.alpha, shape.value_heads, rows), pick(all.beta, shape.value_heads, rows)};
  }
  DeltaInputs upload(const Rows& rows, int32_t count) {
    return {world.tensor(count, shape.channels(), rows.qkv),
            world.tensor(count, shape.value_width(), rows.z),
            world.tensor(count, shape.value_heads, rows.alpha),
            world.tensor(count, shape.value_heads, rows.beta)};
  }
  std::vector<float> run(const TestBatch& rows, const Rows& inputs) {
    const int32_t count = rows.tokens();
    const DeltaInputs in = upload(inputs, count);
    const Tensor o = world.tensor(
        count, shape.value_width(),
        std::vector<float>(static_cast<size_t>(count * shape.value_width()), kUntouched));
    world.ops().delta_rule(o, in, weights, layer, rows.batch());
    world.device().synchronize();
    return values_of(o);
  }

  std::vector<float> bytes(int32_t s) const {
    return {layer.slot(s), layer.slot(s) + layer.slot_elements()};
  }
  // True states before `position`, which the slot has reached.
  std::vector<float> states(int32_t s, int32_t position) const {
    std::vector<float> values;
    for (int32_t h = 0; h < shape.value_heads; ++h) {
      for (int32_t k = 0; k < shape.key_dim; ++k) {
        for (int32_t v = 0; v < shape.value_dim; ++v) {
          double x = layer.at(s, h, k, v);
          for (int32_t p = layer.folded(s)[h]; p < position; ++p)
            x = std::exp(double{layer.gate(s, p)[h]}) * x +
                double{layer.key(s, p, shape.key_head(h))[k]} * layer.delta(s, p, h)[v];
          values.push_back(static_cast<float>(x));
        }
      }
    }
    return values;
  }
  float state(int32_t s, int32_t position, int32_t h, int32_t k, int32_t v) const {
    return states(s, position)[static_cast<size_t>((h * shape.key_dim + k) * shape.value_dim + v)];
  }
  std::vector<float> history(int32_t s, int32_t position) const {
    std::vector<float> values;
    for (int32_t p = std::max(position - shape.conv_width + 1, 0); p < position; ++p) {
      const float* row = layer.conv_row(s, p);
      values.insert(values.end(), row, row + shape.channels());
    }
    return values;
  }
};

inline std::vector<float> row_of(const std::vector<float>& o, int64_t row, int64_t width) {
  return {o.begin() + row * width, o.begin() + (row + 1) * width};
}

}  // namespace braid::test
