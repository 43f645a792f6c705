// attention_test.cpp -- cells and softmax over them, on every device.
//
// Attention is compared on identical cells: one unit in the last place of a stored key would hide everything
// else. What qk_norm_rope_store writes is compared by itself, within the rounding of the format.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "gguf/formats/half.h"
#include "ops/tests/op_test.h"

namespace braid {
namespace {

using namespace test;

// What attention may be off by. Kernels for 16-bit activations also round the weights of the softmax, and
// queries to the type of the cache; `sharp`: the size of the scores.
double outputs(const DeviceCase& device, KvFormat k_format = KvFormat::f16, float sharp = 1.0f) {
  if (device.activation_type == DType::f32) return sharp > 1 ? 5e-5 : 1e-5;
  return (k_format == KvFormat::bf16 ? 8 : 1) * (sharp > 1 ? 4 : 1) * device.tolerance(1e-5, 5);
}

constexpr float kNobody = 30000.0f;  // in cells that no row may read

uint16_t encode_16(KvFormat format, float x) {
  return format == KvFormat::f16 ? f32_to_f16(x) : f32_to_bf16(x);
}

void encode(KvFormat format, std::byte* dst, const std::vector<float>& row) {
  for (size_t i = 0; i < row.size(); ++i) {
    const uint16_t bits = encode_16(format, row[i]);
    if (format == KvFormat::f32) {
      std::memcpy(dst + 4 * i, &row[i], 4);
    } else {
      std::memcpy(dst + 2 * i, &bits, 2);
    }
  }
}

std::vector<float> decode(KvFormat format, const std::byte* src, int64_t count) {
  std::vector<float> row(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    if (format == KvFormat::f32) {
      std::memcpy(&row[i], src + 4 * i, 4);
      continue;
    }
    std::memcpy(&bits, src + 2 * i, 2);
    row[i] = format == KvFormat::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
  }
  return row;
}

struct Shape {
  int32_t heads = 4;
  int32_t kv_heads = 1;
  int32_t head_dim = 64;
  int32_t rope_dims = 32;
  KvFormat k = KvFormat::f16;
  KvFormat v = KvFormat::f16;
  int32_t window = 0;
  AttentionGate gate = kJointSigmoid;
  int32_t first_cell = 0;

  int64_t width() const { return int64_t{heads} * head_dim; }
  int64_t query_width() const { return heads * gate.query_stride(head_dim); }
  int64_t gate_width() const { return gate.columns(heads, head_dim); }
  int64_t kv_width() const { return int64_t{kv_heads} * head_dim; }
  KvShape kv() const { return {kv_heads, head_dim, k, v}; }
  AttentionParams params() const {
    return {.heads = heads,
            .scale = 1.0f / std::sqrt(float(head_dim)),
            .window = window,
            .gate = gate,
            .first_cell = first_cell};
  }
};

// A device with a KV layer whose cells 0 .. written-1 of each sequence hold random values, all others
// kNobody.
struct Cells {
  World world;
  KvLayer kv;

  Cells(const DeviceCase& device, const Shape& shape, const TestBatch& rows, int32_t written, Random& random)
      : world(device) {
    Device::WorkspaceNeeds needs;
    needs.max_sequences = 16;
    needs.max_context = 8192;
    needs.max_heads = shape.heads;
    needs.head_dim = shape.head_dim;
    needs.max_width = shape.query_width();
    world.prepare({}, needs);
    kv = world.kv_layer(shape.kv(), rows.blocks());
    const std::vector<float> nobody(static_cast<size_t>(shape.head_dim), kNobody);
    for (int32_t b = 0; b < kv.blocks; ++b) {
      for (int32_t h = 0; h < shape.kv_heads; ++h) {
        for (int32_t c = 0; c < kBlockTokens; ++c) {
          encode(shape.k, kv.k_row(b, h, c), nobody);
          encode(shape.v, kv.v_row(b, h, c), nobody);
        }
      }
    }
    const Batch& batch = rows.batch();
    for (int32_t s = 0; s < batch.sequences; ++s) {
      const int32_t end = std::min(written, batch.context[s] - batch.certain[s] + batch.rows[s]);
      for (int32_t cell = 0; cell < end; ++cell) {
        for (int32_t h = 0; h < shape.kv_heads; ++h) {
          encode(shape.k, k_row(batch, s, cell, h), random.normals(shape.head_dim));
          encode(shape.v, v_row(batch, s, cell, h), random.normals(shape.head_dim));
        }
      }
    }
  }
  std::byte* k_row(const Batch& batch, int32_t s, int32_t cell, int32_t head) const {
    return kv.k_row(batch.blocks_of(s)[cell / kBlockTokens], head, cell % kBlockTokens);
  }
  std::byte* v_row(const Batch& batch, int32_t s, int32_t cell, int32_t head) const {
    return kv.v_row(batch.blocks_of(s)[cell / kBlockTokens], head, cell % kBlockTokens);
  }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all(kv.k, kv.k + kv.blocks * kv.shape.k_block_bytes());
    all.insert(all.end(), kv.v, kv.v + kv.blocks * kv.shape.v_block_bytes());
    return all;
  }
  std::vector<float> attend(const Shape& shape, const Batch& batch, const std::vector<float>& q,
                            const std::vector<float>& gates) {
    const Tensor o = world.tensor(batch.tokens, shape.width(), std::vector<float>(q.size(), NAN));
    Tensor g;
    if (shape.gate_width() > 0) g = world.tensor(batch.tokens, shape.gate_width(), gates);
    world.ops().attention(o, world.tensor(batch.tokens, shape.width(), q), g, shape.params(), kv, batch);
    world.device().synchronize();
    return values_of(o);
  }
};

// o of one case. `sharp` multiplies the queries, for softmax with few winners. Blocks behind the window are
// taken away.
std::vector<float> attended(const DeviceCase& device, const Shape& shape,
                            const std::vector<SequencePlan>& plans, uint64_t seed, float sharp = 1.0f) {
  Random random(seed);
  TestBatch rows(plans, random);
  Cells cells(device, shape, rows, 1 << 30, random);
  if (shape.window > 0) rows.forget_behind(shape.window);
  const std::vector<float> q = random.normals(rows.tokens() * shape.width(), sharp);
  return cells.attend(shape, rows.batch(), q, random.normals(rows.tokens() * shape.gate_width(), 3.0f));
}

constexpr AttentionGate kSoftplusHead{AttentionGate::Act::softplus, AttentionGate::Layout::head};
constexpr AttentionGate kSoftplusElement{AttentionGate::Act::softplus, AttentionGate::Layout::element};
constexpr AttentionGate kSigmoidHead{AttentionGate::Act::sigmoid, AttentionGate::Layout::head};
constexpr AttentionGate kSigmoidElement{AttentionGate::Act::sigmoid, AttentionGate::Layout::element};

const Shape kShapes[] = {
    {.heads = 4, .kv_heads = 1, .head_dim = 256, .rope_dims = 64},
    {.heads = 8, .kv_heads = 2, .head_dim = 128, .rope_dims = 128, .k = KvFormat::bf16, .v = KvFormat::bf16},
    {.heads = 3,
     .kv_heads = 3,
     .head_dim = 64,
     .rope_dims = 16,
     .k = KvFormat::f32,
     .v = KvFormat::f32,
     .gate = {}},
    {.heads = 6,
     .kv_heads = 1,
     .head_dim = 96,
     .rope_dims = 32,
     .k = KvFormat::bf16,
     .v = KvFormat::f16,
     .window = 7},
    {.heads = 16,
     .kv_heads = 2,
     .head_dim = 32,
     .rope_dims = 32,
     .k = KvFormat::f16,
     .v = KvFormat::f32,
     .window = 40},
    {.heads = 2, .kv_heads = 2, .head_dim = 64, .rope_dims = 64, .k = KvFormat::f32, .v = KvFormat::bf16},
    {.heads = 6, .kv_heads = 1, .head_dim = 32, .gate = kSoftplusHead},
    {.heads = 4, .kv_heads = 2, .head_dim = 32, .gate = kSoftplusElement},
    {.heads = 4, .kv_heads = 2, .head_dim = 128, .rope_dims = 128, .window = 64, .gate = kSigmoidElement},
    {.heads = 9, .kv_heads = 1, .head_dim = 64, .k = KvFormat::f32, .v = KvFormat::f32, .gate = kSigmoidHead},
    {.heads = 4, .kv_heads = 1, .head_dim = 256, .first_cell = 1},
    {.heads = 8, .kv_heads = 2, .head_dim = 128, .window = 20, .gate = {}, .first_cell = 1},
    {.heads = 4, .kv_heads = 2, .head_dim = 128, .first_cell = 45},
};

TEST(Attention, AgreesWithTheReferenceOnRandomBatches) {
  for (const DeviceCase& device : sequence_devices()) {
    uint64_t seed = 100;
    for (const Shape& shape : kShapes) {
      for (int round = 0; round < 6; ++round) {
        Random random(++seed);
        const auto plans = random_plans(random, static_cast<int32_t>(random.between(1, 6)), 150, 40, 24);
        const float sharp = round % 3 == 2 ? 5.0f : 1.0f;
        const double limit = outputs(device, shape.k, sharp);
        expect_close(attended(device, shape, plans, seed, sharp),
                     attended(reference_for(device), shape, plans, seed, sharp), limit, limit,
                     device.name + " seed " + std::to_string(seed));
      }
    }
  }
}

TEST(Attention, AgreesWithTheReferenceAtEveryLength) {
  Shape shape{.heads = 4, .kv_heads = 1, .head_dim = 64, .rope_dims = 32};
  std::vector<std::vector<SequencePlan>> cases;
  for (int32_t past : {0, 1, 30, 31, 32, 33, 63, 64, 127, 511, 512, 513, 1023, 1500, 4095, 4096}) {
    cases.push_back({{past, 1}});
  }
  cases.push_back({{0, 300}});
  cases.push_back({{511, 70}, {1020, 17, chain(16)}});
  cases.push_back({{4090, 3, {-1, 0, 0, 1, -1}}, {7, 1}, {2000, 1}, {0, 1}});
  for (const DeviceCase& device : sequence_devices()) {
    for (int32_t window : {0, 512}) {
      shape.window = window;
      for (size_t i = 0; i < cases.size(); ++i) {
        expect_close(attended(device, shape, cases[i], 300 + i),
                     attended(reference_for(device), shape, cases[i], 300 + i), outputs(device),
                     outputs(device),
                     device.name + " case " + std::to_string(i) + " window " + std::to_string(window));
      }
    }
  }
}

// Heads of the published models and long contexts: tiles, splits and their borders, trees over long contexts.
TEST(Attention, AgreesWithTheReferenceOnPublishedHeads) {
  const Shape shapes[] = {{.heads = 12, .kv_heads = 2, .head_dim = 256},
                          {.heads = 16, .kv_heads = 2, .head_dim = 256},
                          {.heads = 8, .kv_heads = 1, .head_dim = 128},
                          {.heads = 10, .kv_heads = 1, .head_dim = 128},
                          {.heads = 4, .kv_heads = 2, .head_dim = 128, .gate = {}},
                          {.heads = 12, .kv_heads = 2, .head_dim = 128, .gate = kSoftplusHead},
                          {.heads = 16, .kv_heads = 2, .head_dim = 128, .gate = kSoftplusHead},
                          {.heads = 18, .kv_heads = 2, .head_dim = 128, .gate = kSoftplusElement},
                          {.heads = 16, .kv_heads = 8, .head_dim = 128, .gate = {}},
                          {.heads = 32,
                           .kv_heads = 2,
                           .head_dim = 128,
                           .k = KvFormat::bf16,
                           .v = KvFormat::bf16,
                           .gate = kSigmoidElement},
                          {.heads = 72, .kv_heads = 8, .head_dim = 128, .gate = kSoftplusHead}};
  const std::vector<std::vector<SequencePlan>> cases = {
      {{0, 1}, {127, 1}, {128, 1}, {2100, 1}, {15, 1}},
      {{5000, 1}, {900, 1, {-1}}, {31, 2}, {0, 0}},
      {{0, 200}, {64, 43}, {700, 1, {-1, 0, 0, 1, 3, -1}}},
      {{2500, 0, chain(22)}, {255, 3}, {300, 1}},
  };
  for (const DeviceCase& device : sequence_devices()) {
    for (Shape shape : shapes) {
      for (size_t i = 0; i < cases.size(); ++i) {
        for (int32_t window : {0, 300}) {
          if (window > 0 && shape.heads != 12 && shape.heads != 18 && shape.heads != 72) continue;
          shape.window = window;
          const double limit = outputs(device, shape.k);
          expect_close(attended(device, shape, cases[i], 900 + i),
                       attended(reference_for(device), shape, cases[i], 900 + i), limit, limit,
                       device.name + " heads " + std::to_string(shape.heads) + " window " +
                           std::to_string(window) + " case " + std::to_string(i));
        }
      }
    }
  }
}

// Several tiles of queries and of cells, pieces that begin and end inside one, groups of one to sixteen.
TEST(Attention, AgreesWithTheReferenceOnLongPrompts) {
  const Shape shapes[] = {
      {.heads = 12, .kv_heads = 2, .head_dim = 256, .k = KvFormat::bf16, .v = KvFormat::bf16},
      {.heads = 12, .kv_heads = 2, .head_dim = 256, .window = 100, .gate = {}},
      {.heads = 2, .kv_heads = 2, .head_dim = 256},
      {.heads = 4, .kv_heads = 1, .head_dim = 128, .window = 70},
      {.heads = 2, .kv_heads = 2, .head_dim = 128, .k = KvFormat::bf16, .v = KvFormat::bf16},
      {.heads = 8, .kv_heads = 1, .head_dim = 128, .gate = {}},
      {.heads = 6, .kv_heads = 1, .head_dim = 128, .gate = kSoftplusHead},
      {.heads = 9, .kv_heads = 1, .head_dim = 128, .window = 64, .gate = kSoftplusElement},
      {.heads = 9, .kv_heads = 1, .head_dim = 128, .window = 512, .gate = kSoftplusHead},
      {.heads = 16, .kv_heads = 1, .head_dim = 128, .gate = kSigmoidHead},
  };
  const std::vector<std::vector<SequencePlan>> cases = {
      {{37, 170}},
      {{0, 129}, {0, 0}, {450, 64}, {90, 70, chain(20)}, {300, 1}},
      {{1000, 30}, {0, 2}, {63, 65}},
  };
  for (const DeviceCase& device : sequence_devices()) {
    for (const Shape& shape : shapes) {
      for (size_t i = 0; i < cases.size(); ++i) {
        const float sharp = i == 1 ? 5.0f : 1.0f;
        const double limit = outputs(device, shape.k, sharp);
        expect_close(attended(device, shape, cases[i], 950 + i, sharp),
                     attended(reference_for(device), shape, cases[i], 950 + i, sharp), limit, limit,
                     device.name + " heads " + std::to_string(shape.heads) + " dim " +
                         std::to_string(shape.head_dim) + " case " + std::to_string(i));
      }
    }
  }
}

TEST(Attention, DoesNotDependOnThreads) {
  for (const DeviceCase& device : sequence_devices()) {
    for (const Shape& shape : kShapes) {
      Random random(17);
      auto plans = random_plans(random, 4, 100, 30, 10);
      plans.push_back({1200, 1});
      const std::vector<float> expected = attended(device, shape, plans, 18);
      for (const DeviceCase& other : other_thread_counts(device)) {
        expect_same(attended(other, shape, plans, 18), expected, other.name);
      }
    }
  }
}

// Other sequences in the batch change nothing; cutting a prompt elsewhere changes no more than rounding.
TEST(Attention, DependsOnTheSequenceAlone) {
  const Shape shape = kShapes[0];
  for (const DeviceCase& device : sequence_devices()) {
    Random random(19);
    const TestBatch whole({{0, 130}, {70, 1}, {600, 1}, {90, 1, {-1, 0, 0}}}, random);
    Cells cells(device, shape, whole, 1 << 30, random);
    const std::vector<float> q = random.normals(whole.tokens() * shape.width());
    const std::vector<float> qg = random.normals(whole.tokens() * shape.query_width());
    const std::vector<float> expected = cells.attend(shape, whole.batch(), q, qg);
    auto part_of = [](const std::vector<float>& all, int64_t first, int64_t rows, int64_t width) {
      return std::vector<float>(all.begin() + first * width, all.begin() + (first + rows) * width);
    };
    auto attend = [&](const std::vector<SequencePlan>& plans, int64_t first) {
      const TestBatch part(plans, whole);
      return cells.attend(shape, part.batch(), part_of(q, first, part.tokens(), shape.width()),
                          part_of(qg, first, part.tokens(), shape.query_width()));
    };
    auto rows_of = [&](int64_t first, int64_t rows) { return part_of(expected, first, rows, shape.width()); };
    expect_same(attend({{0, 130}, {}, {}, {}}, 0), rows_of(0, 130), device.name + " prompt");
    expect_same(attend({{}, {70, 1}, {}, {}}, 130), rows_of(130, 1), device.name + " decode");
    expect_same(attend({{}, {}, {600, 1}, {}}, 131), rows_of(131, 1), device.name + " decode");
    expect_same(attend({{}, {}, {}, {90, 1, {-1, 0, 0}}}, 132), rows_of(132, 4), device.name + " tree");
    int32_t past = 0;
    for (int32_t rows : {1, 31, 3, 1, 64, 30}) {
      expect_close(attend({{past, rows}, {}, {}, {}}, past), rows_of(past, rows), outputs(device),
                   outputs(device), device.name + " cut");
      past += rows;
    }
  }
}

// A row of a tree sees what it would see had its ancestors been the only continuation.
TEST(Attention, TreeRowsSeeTheirPathAlone) {
  for (Shape shape : {kShapes[0], kShapes[3], kShapes[5]}) {
    for (const DeviceCase& device : sequence_devices()) {
      Random random(29);
      const int32_t context = 45;
      const std::vector<int32_t> parents = {-1, 0, 1, 1, 0, -1, 5, 3, 7, 2, 9, 4};
      const SequencePlan tree{context - 2, 2, parents};
      const TestBatch rows({tree, {context, 20}}, random);
      Cells cells(device, shape, rows, 1 << 30, random);
      const TestBatch only_tree({tree, {}}, rows);
      const std::vector<float> q = random.normals(only_tree.tokens() * shape.width());
      const std::vector<float> qg = random.normals(only_tree.tokens() * shape.query_width());
      const std::vector<float> expected = cells.attend(shape, only_tree.batch(), q, qg);
      auto copy_cell = [&](int32_t from, int32_t to) {
        for (int32_t h = 0; h < shape.kv_heads; ++h) {
          std::memcpy(cells.k_row(rows.batch(), 1, to, h), cells.k_row(rows.batch(), 0, from, h),
                      kv_row_bytes(shape.k, shape.head_dim));
          std::memcpy(cells.v_row(rows.batch(), 1, to, h), cells.v_row(rows.batch(), 0, from, h),
                      kv_row_bytes(shape.v, shape.head_dim));
        }
      };
      for (int32_t cell = 0; cell < context; ++cell) copy_cell(cell, cell);
      for (int32_t node = 0; node < std::ssize(parents); ++node) {
        std::vector<int32_t> path;
        for (int32_t at = node; at >= 0; at = parents[at]) path.insert(path.begin(), at);
        for (size_t i = 0; i < path.size(); ++i)
          copy_cell(context + path[i], context + static_cast<int32_t>(i));
        const TestBatch linear({{}, {context + static_cast<int32_t>(path.size()) - 1, 1}}, rows);
        const int64_t row = 2 + node;
        const std::vector<float> alone = cells.attend(
            shape, linear.batch(), {q.begin() + row * shape.width(), q.begin() + (row + 1) * shape.width()},
            {qg.begin() + row * shape.query_width(), qg.begin() + (row + 1) * shape.query_width()});
        expect_close({expected.begin() + row * shape.width(), expected.begin() + (row + 1) * shape.width()},
                     alone, outputs(device, shape.k), outputs(device, shape.k),
                     device.name + " node " + std::to_string(node));
      }
    }
  }
}

TEST(Attention, OneCellGivesItsValue) {
  for (const DeviceCase& device : sequence_devices()) {
    Shape shape = kShapes[2];
    Random random(31);
    const TestBatch rows({{0, 1}}, random);
    Cells cells(device, shape, rows, 1, random);
    const std::vector<float> q = random.normals(shape.width(), 4.0f);
    const std::vector<float> o = cells.attend(shape, rows.batch(), q, q);
    std::vector<float> values;
    for (int32_t h = 0; h < shape.kv_heads; ++h) {
      for (float v : decode(shape.v, cells.v_row(rows.batch(), 0, 0, h), shape.head_dim)) values.push_back(v);
    }
    expect_close(o, values, 1e-7, device.tolerance(1e-6), device.name);
  }
}

// Head h reads KV head h / G and is scaled by its own gate, which stands behind its query.
TEST(Attention, EachHeadReadsItsKvHeadAndItsGate) {
  const Shape shape{.heads = 6, .kv_heads = 2, .head_dim = 32, .k = KvFormat::f32, .v = KvFormat::f32};
  for (const DeviceCase& device : sequence_devices()) {
    Random random(33);
    const TestBatch rows({{0, 1}}, random);
    Cells cells(device, shape, rows, 1, random);
    std::vector<float> expected;
    std::vector<float> qg = random.normals(shape.query_width(), 9.0f);
    for (int32_t h = 0; h < 6; ++h) {
      const std::vector<float> value = decode(KvFormat::f32, cells.v_row(rows.batch(), 0, 0, h / 3), 32);
      const float gate = static_cast<float>(h) - 2.0f;
      std::fill_n(qg.begin() + (2 * h + 1) * 32, 32, gate);
      for (float v : value) expected.push_back(v / (1 + std::exp(-gate)));
    }
    expect_close(cells.attend(shape, rows.batch(), random.normals(shape.width()), qg), expected, 1e-7,
                 device.tolerance(1e-6), device.name);
  }
}

TEST(Attention, ZeroGateHalvesTheOutput) {
  for (const DeviceCase& device : sequence_devices()) {
    Shape gated = kShapes[0];
    Shape plain = gated;
    plain.gate = {};
    Random random(37);
    const TestBatch rows({{40, 3}, {10, 1}}, random);
    Cells cells(device, gated, rows, 1 << 30, random);
    const std::vector<float> q = random.normals(rows.tokens() * gated.width());
    const std::vector<float> halves =
        cells.attend(gated, rows.batch(), q, std::vector<float>(rows.tokens() * gated.query_width(), 0.0f));
    std::vector<float> wholes = cells.attend(plain, rows.batch(), q, q);
    for (float& v : wholes) v *= 0.5f;
    expect_close(halves, wholes, device.gpu ? 1e-7 : 0, device.tolerance(1e-6), device.name);
  }
}

// Gates of zero: softplus multiplies by ln 2.
TEST(Attention, ZeroSoftplusGateMultipliesByLn2) {
  for (const DeviceCase& device : sequence_devices()) {
    for (const AttentionGate gate : {kSoftplusHead, kSoftplusElement}) {
      Shape gated = kShapes[0];
      gated.gate = gate;
      Shape plain = gated;
      plain.gate = {};
      Random random(38);
      const TestBatch rows({{40, 3}, {10, 1}, {0, 90}}, random);
      Cells cells(device, gated, rows, 1 << 30, random);
      const std::vector<float> q = random.normals(rows.tokens() * gated.width());
      const std::vector<float> zeros(static_cast<size_t>(rows.tokens() * gated.gate_width()), 0.0f);
      std::vector<float> wholes = cells.attend(plain, rows.batch(), q, {});
      for (float& v : wholes) v *= 0.693147181f;
      expect_close(cells.attend(gated, rows.batch(), q, zeros), wholes, device.gpu ? 1e-7 : 0,
                   device.tolerance(1e-6), device.name);
    }
  }
}

// Gates far from zero: softplus is the gate itself, or next to nothing; never infinite.
TEST(Attention, LargeSoftplusGatesStayFinite) {
  for (const DeviceCase& device : sequence_devices()) {
    Shape shape = kShapes[0];
    shape.gate = kSoftplusHead;
    Random random(39);
    const TestBatch rows({{40, 1}}, random);
    Cells cells(device, shape, rows, 1 << 30, random);
    const std::vector<float> q = random.normals(shape.width());
    Shape plain = shape;
    plain.gate = {};
    std::vector<float> expected = cells.attend(plain, rows.batch(), q, {});
    const std::vector<float> gates = {100.0f, 30.0f, -30.0f, -200.0f};
    for (size_t i = 0; i < expected.size(); ++i)
      expected[i] *= std::max(gates[i / 256], 0.0f) + std::log1p(std::exp(-std::abs(gates[i / 256])));
    expect_close(cells.attend(shape, rows.batch(), q, gates), expected, device.gpu ? 1e-5 : 1e-12,
                 device.tolerance(1e-6), device.name);
  }
}

// A window of w keeps the row itself and w - 1 cells before it: the others may hold anything.
TEST(Attention, WindowHidesOlderCells) {
  for (const DeviceCase& device : sequence_devices()) {
    Shape shape = kShapes[0];
    shape.window = 33;
    Random random(41);
    const TestBatch rows({{99, 1}}, random);
    Cells cells(device, shape, rows, 1 << 30, random);
    const std::vector<float> q = random.normals(shape.width());
    const std::vector<float> before =
        cells.attend(shape, rows.batch(), q, random.normals(shape.query_width()));
    const std::vector<float> qg(static_cast<size_t>(shape.query_width()), 0.5f);
    const std::vector<float> full = cells.attend(shape, rows.batch(), q, qg);
    const std::vector<float> nobody(static_cast<size_t>(shape.head_dim), kNobody);
    for (int32_t cell = 0; cell <= 99 - 33; ++cell) {
      encode(shape.k, cells.k_row(rows.batch(), 0, cell, 0), nobody);
      encode(shape.v, cells.v_row(rows.batch(), 0, cell, 0), nobody);
    }
    expect_same(cells.attend(shape, rows.batch(), q, qg), full, device.name);
    encode(shape.v, cells.v_row(rows.batch(), 0, 99 - 32, 0), nobody);
    EXPECT_NE(cells.attend(shape, rows.batch(), q, qg), full) << device.name << " hides one cell too many";
  }
}

// The first cells are seen by their own rows alone: others see the same whatever is there.
TEST(Attention, FirstCellHidesThoseBelow) {
  const std::vector<std::vector<SequencePlan>> cases = {
      {{0, 1}}, {{1, 1}}, {{300, 1}}, {{0, 80}}, {{70, 40}}, {{0, 1, {-1, 0, -1}}}, {{40, 1, {-1, 0, 0}}}};
  for (const DeviceCase& device : sequence_devices()) {
    for (const int32_t first_cell : {1, 3}) {
      Shape shape = kShapes[0];
      shape.gate = {};
      shape.first_cell = first_cell;
      for (const std::vector<SequencePlan>& plans : cases) {
        Random random(43);
        const TestBatch rows(plans, random);
        const Batch& batch = rows.batch();
        Cells cells(device, shape, rows, 1 << 30, random);
        const std::vector<float> q = random.normals(rows.tokens() * shape.width());
        std::vector<float> seen = cells.attend(shape, batch, q, {});
        std::vector<float> own;  // what rows of the first cells give: their values
        for (int32_t t = 0; t < rows.tokens() && batch.position[t] < first_cell; ++t)
          for (int32_t h = 0; h < shape.heads; ++h)
            for (const float v : decode(shape.v, cells.v_row(batch, 0, batch.cell[t], 0), shape.head_dim))
              own.push_back(v);
        expect_close({seen.begin(), seen.begin() + std::ssize(own)}, own, 1e-7, device.tolerance(1e-6),
                     device.name);
        const std::vector<float> nobody(static_cast<size_t>(shape.head_dim), kNobody);
        for (int32_t cell = 0; cell < std::min(first_cell, batch.context[0]); ++cell) {
          encode(shape.k, cells.k_row(batch, 0, cell, 0), nobody);
          encode(shape.v, cells.v_row(batch, 0, cell, 0), nobody);
        }
        std::vector<float> after = cells.attend(shape, batch, q, {});
        seen.erase(seen.begin(), seen.begin() + std::ssize(own));
        after.erase(after.begin(), after.begin() + std::ssize(own));
        expect_same(after, seen, device.name);
      }
    }
  }
}

struct Stored {
  std::vector<float> q;
  std::vector<float> k;  // every row of the pool, decoded
  std::vector<float> v;
};

Stored stored(const DeviceCase& device, const Shape& shape, const std::vector<SequencePlan>& plans,
              uint64_t seed) {
  Random random(seed);
  const TestBatch rows(plans, random);
  Cells cells(device, shape, rows, 0, random);
  World& world = cells.world;
  const int32_t tokens = rows.tokens();
  const Tensor q = world.tensor(tokens, shape.width());
  const Tensor qg =
      world.tensor(tokens, shape.query_width(), random.normals(tokens * shape.query_width(), 2.0f));
  const Tensor k = world.tensor(tokens, shape.kv_width(), random.normals(tokens * shape.kv_width(), 0.3f));
  const Tensor v = world.tensor(tokens, shape.kv_width(), random.normals(tokens * shape.kv_width()));
  const Tensor table = world.tensor(tokens, shape.rope_dims);
  world.ops().rope_table(table, {shape.rope_dims, 1e6}, rows.batch());
  const AttentionWeights w{world.array(random.normals(shape.head_dim)),
                           world.array(random.normals(shape.head_dim)), 1e-6f};
  world.ops().qk_norm_rope_store(q, qg, k, v, table, w, shape.params(), cells.kv, rows.batch());
  world.device().synchronize();
  Stored result{values_of(q), {}, {}};
  for (int32_t b = 0; b < cells.kv.blocks; ++b) {
    for (int32_t h = 0; h < shape.kv_heads; ++h) {
      for (int32_t c = 0; c < kBlockTokens; ++c) {
        for (float x : decode(shape.k, cells.kv.k_row(b, h, c), shape.head_dim)) result.k.push_back(x);
        for (float x : decode(shape.v, cells.kv.v_row(b, h, c), shape.head_dim)) result.v.push_back(x);
      }
    }
  }
  return result;
}

// Every cell that no row owns keeps its bytes: the decoded pools are compared whole.
TEST(QkNormRopeStore, AgreesWithTheReference) {
  for (const DeviceCase& device : sequence_devices()) {
    uint64_t seed = 500;
    for (const Shape& shape : kShapes) {
      Random random(++seed);
      const auto plans = random_plans(random, 4, 100, 40, 10);
      const Stored actual = stored(device, shape, plans, seed);
      const Stored expected = stored(reference_for(device), shape, plans, seed);
      const double ulp = shape.k == KvFormat::f32 ? 2e-6 : shape.k == KvFormat::f16 ? 0x1p-10 : 0x1p-7;
      expect_close(actual.q, expected.q, 2e-6, device.tolerance(2e-6), device.name + " q");
      expect_close(actual.k, expected.k, 2e-6, ulp, device.name + " k");
      expect_same(actual.v, expected.v, device.name + " v");
      size_t different = 0;
      for (size_t i = 0; i < actual.k.size(); ++i) different += actual.k[i] != expected.k[i];
      if (shape.k != KvFormat::f32) {
        EXPECT_LE(different, actual.k.size() / 50) << device.name << " keys are not rounded to nearest";
      }
      for (const DeviceCase& other : other_thread_counts(device)) {
        const Stored same = stored(other, shape, plans, seed);
        expect_same(same.q, actual.q, other.name);
        expect_same(same.k, actual.k, other.name);
        expect_same(same.v, actual.v, other.name);
      }
    }
  }
}

TEST(QkNormRopeStore, PositionZeroIsNotRotated) {
  for (const DeviceCase& device : exact_devices()) {
    World world(device);
    Device::WorkspaceNeeds needs;
    needs.max_heads = 1;
    needs.head_dim = 64;
    world.prepare({}, needs);
    Random random(3);
    const TestBatch rows({{0, 1}}, random);
    const Shape shape{.heads = 1, .kv_heads = 1, .k = KvFormat::f32, .v = KvFormat::f32, .gate = {}};
    const KvLayer kv = world.kv_layer(shape.kv(), rows.blocks());
    const Tensor table = world.tensor(1, 64);
    world.ops().rope_table(table, {64, 1e4}, rows.batch());
    const Tensor q = world.tensor(1, 64);
    const Tensor x = world.tensor(1, 64, random.normals(64));
    const float* ones = world.array(std::vector<float>(64, 1.0f));
    world.ops().qk_norm_rope_store(q, x, x, x, table, {ones, ones, 0.0f}, shape.params(), kv, rows.batch());
    world.device().synchronize();
    double square = 0;
    for (float v : values_of(x)) square += double{v} * v;
    std::vector<float> expected = values_of(x);
    for (float& v : expected) v = static_cast<float>(v / std::sqrt(square / 64));
    expect_close(values_of(q), expected, 0, 1e-6, device.name);
    expect_same(decode(KvFormat::f32, kv.k_row(rows.batch().block_table[0], 0, 0), 64), values_of(q),
                device.name);
  }
}

// Pairs are (i, i + dims / 2); values beyond dims pass through.
TEST(QkNormRopeStore, RotatesHalvesOfTheFirstDims) {
  for (const DeviceCase& device : exact_devices()) {
    Random random(5);
    const Shape shape{
        .heads = 2, .kv_heads = 1, .head_dim = 64, .rope_dims = 32, .k = KvFormat::f32, .v = KvFormat::f32};
    const TestBatch rows({{1000, 1}}, random);
    Cells cells(device, shape, rows, 0, random);
    World& world = cells.world;
    const Tensor table = world.tensor(1, 32);
    world.ops().rope_table(table, {32, 1e4}, rows.batch());
    const Tensor q = world.tensor(1, 128);
    const Tensor qg = world.tensor(1, 256, random.normals(256));
    const Tensor k = world.tensor(1, 64, random.normals(64));
    const std::vector<float> norm = random.normals(64);
    const float* weight = world.array(norm);
    world.ops().qk_norm_rope_store(q, qg, k, k, table, {weight, weight, 1e-6f}, shape.params(), cells.kv,
                                   rows.batch());
    world.device().synchronize();
    auto expected = [&](const float* x) {
      double square = 0;
      for (int i = 0; i < 64; ++i) square += double{x[i]} * x[i];
      std::vector<double> y;
      for (int i = 0; i < 64; ++i) y.push_back(x[i] / std::sqrt(square / 64 + 1e-6) * norm[i]);
      std::vector<float> out(y.begin(), y.end());
      for (int i = 0; i < 16; ++i) {
        const double angle = 1000 * std::pow(1e4, -2.0 * i / 32);
        out[i] = static_cast<float>(y[i] * std::cos(angle) - y[i + 16] * std::sin(angle));
        out[i + 16] = static_cast<float>(y[i] * std::sin(angle) + y[i + 16] * std::cos(angle));
      }
      return out;
    };
    const std::vector<float> actual = values_of(q);
    expect_close({actual.begin(), actual.begin() + 64}, expected(qg.f32()), 1e-6, 1e-6, device.name);
    expect_close({actual.begin() + 64, actual.end()}, expected(qg.f32() + 128), 1e-6, 1e-6, device.name);
    const std::vector<float> key = decode(KvFormat::f32, cells.k_row(rows.batch(), 0, 1000, 0), 64);
    expect_close(key, expected(k.f32()), 1e-6, 1e-6, device.name);
  }
}

// What both ops leave, as one op or as two: outputs, then the bytes of the pools.
struct Attended {
  std::vector<float> o;
  std::vector<std::byte> cells;
};
Attended attended_with_store(const DeviceCase& device, const Shape& shape,
                             const std::vector<SequencePlan>& plans, uint64_t seed, bool together) {
  Random random(seed);
  TestBatch rows(plans, random);
  Cells cells(device, shape, rows, 1 << 30, random);
  if (shape.window > 0) rows.forget_behind(shape.window);
  World& world = cells.world;
  const int32_t tokens = rows.tokens();
  const auto inputs = [&](int64_t width, float scale) {
    return world.tensor(tokens, width, random.normals(tokens * width, scale));
  };
  const Tensor o =
      world.tensor(tokens, shape.width(), std::vector<float>(size_t(tokens * shape.width()), NAN));
  const Tensor q = world.tensor(tokens, shape.width());
  const Tensor qg = inputs(shape.query_width(), 2.0f);
  const Tensor k = inputs(shape.kv_width(), 0.3f);
  const Tensor v = inputs(shape.kv_width(), 1.0f);
  Tensor gates = qg;
  if (!shape.gate.joint()) gates = shape.gate_width() > 0 ? inputs(shape.gate_width(), 2.0f) : Tensor{};
  const Tensor table = world.tensor(tokens, shape.rope_dims);
  world.ops().rope_table(table, {shape.rope_dims, 1e6}, rows.batch());
  const AttentionWeights w{world.array(random.normals(shape.head_dim)),
                           world.array(random.normals(shape.head_dim)), 1e-6f};
  // Twice, as two steps would: nothing of the first may stay behind.
  for (int step = 0; step < 2; ++step) {
    if (together) {
      world.ops().store_attend(o, q, qg, k, v, gates, table, w, shape.params(), cells.kv, rows.batch());
    } else {
      world.ops().qk_norm_rope_store(q, qg, k, v, table, w, shape.params(), cells.kv, rows.batch());
      world.ops().attention(o, q, gates, shape.params(), cells.kv, rows.batch());
    }
    world.device().synchronize();
  }
  return {values_of(o), cells.bytes()};
}

TEST(StoreAttend, GivesTheBytesOfTheTwoOps) {
  const Shape shapes[] = {
      {.heads = 12, .kv_heads = 2, .head_dim = 256, .rope_dims = 64},
      {.heads = 16,
       .kv_heads = 2,
       .head_dim = 256,
       .rope_dims = 64,
       .k = KvFormat::bf16,
       .v = KvFormat::bf16},
      {.heads = 10, .kv_heads = 1, .head_dim = 128, .rope_dims = 128, .gate = {}},
      {.heads = 12, .kv_heads = 2, .head_dim = 256, .rope_dims = 64, .window = 300},
      {.heads = 4, .kv_heads = 2, .head_dim = 64, .k = KvFormat::f32, .v = KvFormat::f32},
      {.heads = 12, .kv_heads = 2, .head_dim = 128, .rope_dims = 64, .gate = kSoftplusHead},
      {.heads = 18,
       .kv_heads = 2,
       .head_dim = 128,
       .rope_dims = 128,
       .window = 300,
       .gate = kSoftplusElement},
      {.heads = 72, .kv_heads = 8, .head_dim = 128, .rope_dims = 128, .window = 512, .gate = kSoftplusHead},
  };
  const std::vector<std::vector<SequencePlan>> cases = {
      {{149, 1}},
      {{0, 1},
       {1, 1},
       {15, 1},
       {16, 1},
       {31, 1},
       {32, 1},
       {0, 0},
       {127, 1},
       {128, 1},
       {149, 1},
       {255, 1},
       {256, 1}},
      {{2100, 1}, {70, 0, {-1}}, {600, 1}, {0, 1}, {5000, 1}},
      {{3, 1}, {40, 7}, {300, 1, {-1, 0}}, {513, 1}},
  };
  for (const DeviceCase& device : sequence_devices()) {
    for (const Shape& shape : shapes) {
      for (size_t i = 0; i < cases.size(); ++i) {
        const Attended one = attended_with_store(device, shape, cases[i], 700 + i, true);
        const Attended two = attended_with_store(device, shape, cases[i], 700 + i, false);
        const std::string name = device.name + " heads " + std::to_string(shape.heads) + " window " +
                                 std::to_string(shape.window) + " case " + std::to_string(i);
        expect_same(one.o, two.o, name);
        EXPECT_TRUE(one.cells == two.cells) << name;
        for (float x : one.o) ASSERT_TRUE(std::isfinite(x)) << name;
      }
    }
  }
}

TEST(KvMove, CopiesTheCellsOfAcceptedRows) {
  for (const Shape& shape : kShapes) {
    for (const DeviceCase& device : sequence_devices()) {
      Random random(43);
      const TestBatch rows({{50, 2, random_tree(30, random)}, {3, 1, chain(5)}}, random);
      Cells cells(device, shape, rows, 1 << 30, random);
      Cells expected(reference_device(), shape, rows, 0, random);
      std::memcpy(expected.kv.k, cells.kv.k, cells.kv.blocks * cells.kv.shape.k_block_bytes());
      std::memcpy(expected.kv.v, cells.kv.v, cells.kv.blocks * cells.kv.shape.v_block_bytes());
      // Sources may be targets of later moves only: each source is above every target so far.
      const CellMove moves[] = {{0, 54, 52}, {0, 60, 53}, {0, 61, 54}, {0, 81, 55}, {1, 6, 5}, {1, 8, 6}};
      for (const CellMove& move : moves) {
        for (int32_t h = 0; h < shape.kv_heads; ++h) {
          std::memcpy(expected.k_row(rows.batch(), move.sequence, move.to, h),
                      expected.k_row(rows.batch(), move.sequence, move.from, h),
                      kv_row_bytes(shape.k, shape.head_dim));
          std::memcpy(expected.v_row(rows.batch(), move.sequence, move.to, h),
                      expected.v_row(rows.batch(), move.sequence, move.from, h),
                      kv_row_bytes(shape.v, shape.head_dim));
        }
      }
      cells.world.ops().kv_move(cells.kv, moves, rows.batch());
      cells.world.device().synchronize();
      EXPECT_TRUE(cells.bytes() == expected.bytes()) << device.name;
    }
  }
}

TEST(BlockCopy, CopiesOneBlockOfKeysAndValues) {
  for (const Shape& shape : kShapes) {
    for (const DeviceCase& device : sequence_devices()) {
      Random random(47);
      const TestBatch rows({{90, 1}}, random);
      Cells cells(device, shape, rows, 1 << 30, random);
      const int32_t src = rows.batch().block_table[1];
      const int32_t dst = rows.batch().block_table[2];
      std::vector<std::byte> expected = cells.bytes();
      const int64_t k_bytes = cells.kv.shape.k_block_bytes();
      const int64_t v_bytes = cells.kv.shape.v_block_bytes();
      std::memcpy(expected.data() + dst * k_bytes, cells.kv.k + src * k_bytes, k_bytes);
      std::memcpy(expected.data() + cells.kv.blocks * k_bytes + dst * v_bytes, cells.kv.v + src * v_bytes,
                  v_bytes);
      cells.world.ops().block_copy(cells.kv, dst, src);
      cells.world.device().synchronize();
      EXPECT_TRUE(cells.bytes() == expected) << device.name;
    }
  }
}

}  // namespace
}  // namespace braid
