// draft_block_test.cpp -- ops of draft blocks, on every device.
#include <algorithm>

#include "ops/tests/op_test.h"

namespace braid {
namespace {

using namespace test;

std::vector<SequencePlan> blocks_of(const std::vector<int32_t>& rows) {
  std::vector<SequencePlan> plans;
  for (const int32_t count : rows) plans.push_back({40 + 3 * count, count});
  return plans;
}

struct ConvCase {
  int64_t width;
  int32_t group, taps;
};

// [y | y after adding] per block.
std::vector<float> convolved(const DeviceCase& device, const ConvCase& c,
                             const std::vector<int32_t>& blocks, bool together) {
  Random random(static_cast<uint64_t>(c.width) * 10 + static_cast<uint64_t>(c.taps));
  World world(device);
  world.prepare({}, {.max_tokens = 64, .max_width = c.width, .model_width = c.width});
  const ShortConv conv = {world.array(random.normals(c.taps * c.width)), c.taps, c.group};
  const int64_t mixed = c.taps * c.width / c.group;
  std::vector<std::vector<float>> xs, mixes, residuals;
  for (const int32_t rows : blocks) {
    xs.push_back(random.normals(rows * c.width));
    mixes.push_back(random.normals(rows * mixed));
    residuals.push_back(random.normals(rows * c.width));
  }
  std::vector<float> out, sums;
  const auto run = [&](size_t first, size_t last) {
    const auto joined = [&](const std::vector<std::vector<float>>& parts) {
      std::vector<float> all;
      for (size_t i = first; i < last; ++i) all.insert(all.end(), parts[i].begin(), parts[i].end());
      return all;
    };
    const TestBatch batch(blocks_of({blocks.begin() + static_cast<std::ptrdiff_t>(first),
                                     blocks.begin() + static_cast<std::ptrdiff_t>(last)}),
                          random);
    const int64_t rows = batch.tokens();
    const Tensor x = world.tensor(rows, c.width, joined(xs));
    const Tensor mix = world.tensor(rows, mixed, joined(mixes));
    const Tensor y = world.tensor(rows, c.width);
    const Tensor residual = world.tensor(rows, c.width, joined(residuals));
    world.ops().short_conv(y, x, mix, conv, Tail::store, batch.batch());
    world.ops().short_conv(residual, x, mix, conv, Tail::add, batch.batch());
    world.device().synchronize();
    for (const float v : values_of(y)) out.push_back(v);
    for (const float v : values_of(residual)) sums.push_back(v);
  };
  if (together) {
    run(0, blocks.size());
  } else {
    for (size_t i = 0; i < blocks.size(); ++i) run(i, i + 1);
  }
  out.insert(out.end(), sums.begin(), sums.end());
  return out;
}

const ConvCase kConvCases[] = {{16, 16, 2}, {48, 8, 1}, {96, 3, 4}, {5120, 16, 2}};

TEST(ShortConv, AgreesWithTheReference) {
  for (const ConvCase& c : kConvCases)
    for (const DeviceCase& device : sequence_devices()) {
      const std::vector<int32_t> blocks = {8, 1, 3, 16};
      expect_close(convolved(device, c, blocks, true),
                   convolved(reference_for(device), c, blocks, true), device.tolerance(1e-5),
                   device.tolerance(1e-5), device.name);
    }
}

TEST(ShortConv, NeverCrossesBlocks) {
  for (const ConvCase& c : kConvCases)
    for (const DeviceCase& device : sequence_devices()) {
      const std::vector<int32_t> blocks = {8, 8, 2};
      expect_same(convolved(device, c, blocks, true), convolved(device, c, blocks, false),
                  device.name);
    }
}

TEST(ShortConv, WithNothingMixedARowIsItself) {
  for (const DeviceCase& device : sequence_devices()) {
    Random random(3);
    World world(device);
    world.prepare({}, {.max_width = 64, .model_width = 64});
    const TestBatch batch(blocks_of({8, 4}), random);
    std::vector<float> base(128, 0.0f), values(12 * 64);
    std::fill_n(base.begin(), 64, 1.0f);
    for (float& v : values) v = static_cast<float>(random.between(-64, 64));
    const Tensor y = world.tensor(12, 64);
    world.ops().short_conv(y, world.tensor(12, 64, values), world.tensor(12, 8),
                           {world.array(base), 2, 16}, Tail::store, batch.batch());
    world.device().synchronize();
    expect_same(values_of(y), values, device.name);
  }
}

struct PairCase {
  GgmlType type;
  int64_t candidates, rank;
  bool gated, mapped, judged;
};

std::vector<float> paired(const DeviceCase& device, const PairCase& c) {
  Random random(static_cast<uint64_t>(c.candidates * 1000 + c.rank));
  constexpr int32_t kVocabulary = 300;
  const int32_t ids_end = c.mapped ? 90 : kVocabulary;
  const auto predecessor = random_weight(random, c.type, kVocabulary, c.rank);
  const auto successor = random_weight(random, c.type, ids_end, c.rank);
  std::vector<int32_t> token_of;
  for (int32_t id = 0; id < ids_end; ++id) token_of.push_back(3 * id + 1);
  for (const auto& w : {predecessor.get(), successor.get()}) {
    w->weight.is_table = true;
    w->weight.is_product = false;
  }
  World world(device);
  world.prepare({&predecessor->weight, &successor->weight}, {.max_tokens = 64, .max_width = 512});

  // Blocks of 5, 1, 8 rows; the first row of a longer block has no output.
  const TestBatch rows(blocks_of({5, 1, 8}), random);
  std::vector<int32_t> output_row = {1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13};
  Batch batch = rows.batch();
  batch.outputs = static_cast<int32_t>(output_row.size());
  batch.output_row = output_row.data();
  const int64_t outputs = batch.outputs;
  const int64_t k = c.candidates;

  PairInputs in;
  in.values = world.tensor(outputs, k, random.normals(outputs * k, 5.0f));
  in.ids = world.tensor(outputs, k, DType::i32);
  for (int64_t i = 0; i < outputs; ++i)
    for (int64_t j = 0; j < k; ++j)
      static_cast<int32_t*>(in.ids.data)[i * in.ids.stride + j] =
          static_cast<int32_t>(random.between(0, ids_end - 1));
  const std::vector<float> gates = random.normals(outputs * c.rank);
  if (c.gated) in.gate = world.tensor(outputs, c.rank, gates);
  in.confidence = world.tensor(outputs, 1, random.normals(outputs));
  PairWeights w;
  w.predecessor = &predecessor->weight;
  w.successor = &successor->weight;
  w.token_of = c.mapped ? token_of.data() : nullptr;
  w.scale = 0.75f;
  const std::vector<float> judge = random.normals(c.rank);
  if (c.judged) w.confidence = world.array(judge);
  const Tensor scores = world.tensor(outputs, k * k);
  const Tensor confidence = world.tensor(outputs, k);
  world.ops().pair_scores(scores, confidence, in, w, batch);
  world.device().synchronize();
  std::vector<float> result;
  for (int64_t i = 0; i < outputs; ++i) {
    const bool first = i == 0 || i == 4 || i == 5;
    const int64_t parents = first ? 1 : k;
    result.insert(result.end(), scores.f32(i), scores.f32(i) + parents * k);
    if (c.judged) result.insert(result.end(), confidence.f32(i), confidence.f32(i) + parents);
  }
  return result;
}

TEST(PairScores, AgreeWithTheReference) {
  const PairCase cases[] = {
      {GgmlType::BF16, 16, 256, true, false, false}, {GgmlType::F32, 16, 256, false, true, true},
      {GgmlType::Q8_0, 16, 256, true, true, false},  {GgmlType::F16, 5, 60, true, false, true},
      {GgmlType::Q6_K, 32, 512, true, false, true},  {GgmlType::F16, 1, 8, false, false, false},
  };
  for (const PairCase& c : cases)
    for (const DeviceCase& device : plain_devices()) {
      const std::vector<float> actual = paired(device, c);
      expect_close(actual, paired(reference_device(), c), 1e-4, 1e-5,
                   device.name + " " + std::string(type_name(c.type)));
      for (const DeviceCase& other : other_thread_counts(device))
        expect_same(paired(other, c), actual, other.name);
    }
}

}  // namespace
}  // namespace braid
