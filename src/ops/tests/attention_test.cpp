// attention_test.cpp -- softmax over cells, on every device.
// All devices get identical cells, because one ulp in a stored key would hide other errors.
#include "ops/tests/cells_world_test.h"

namespace braid {
namespace {

using namespace test;

TEST(Attention, AgreesWithTheReferenceOnRandomBatches) {
  for (const DeviceCase& device : sequence_devices()) {
    uint64_t seed = 100;
    for (const Shape& shape : kCellShapes) {
      for (int round = 0; round < 6; ++round) {
        Random random(++seed);
        const auto plans =
            random_plans(random, static_cast<int32_t>(random.between(1, 6)), 150, 40, 24);
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
        expect_close(
            attended(device, shape, cases[i], 300 + i),
            attended(reference_for(device), shape, cases[i], 300 + i), outputs(device),
            outputs(device),
            device.name + " case " + std::to_string(i) + " window " + std::to_string(window));
      }
    }
  }
}

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

// Several tiles of queries and cells, runs that end inside a tile, groups of one to sixteen.
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
    for (const Shape& shape : kCellShapes) {
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

// Other sequences change nothing; other cuts of a prompt change only rounding.
TEST(Attention, DependsOnTheSequenceAlone) {
  const Shape shape = kCellShapes[0];
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
    auto rows_of = [&](int64_t first, int64_t rows) {
      return part_of(expected, first, rows, shape.width());
    };
    expect_same(attend({{0, 130}, {}, {}, {}}, 0), rows_of(0, 130), device.name + " prompt");
    expect_same(attend({{}, {70, 1}, {}, {}}, 130), rows_of(130, 1), device.name + " decode");
    expect_same(attend({{}, {}, {600, 1}, {}}, 131), rows_of(131, 1), device.name + " decode");
    expect_same(attend({{}, {}, {}, {90, 1, {-1, 0, 0}}}, 132), rows_of(132, 4),
                device.name + " tree");
    int32_t past = 0;
    for (int32_t rows : {1, 31, 3, 1, 64, 30}) {
      expect_close(attend({{past, rows}, {}, {}, {}}, past), rows_of(past, rows), outputs(device),
                   outputs(device), device.name + " cut");
      past += rows;
    }
  }
}

TEST(Attention, TreeRowsSeeTheirPathAlone) {
  for (Shape shape : {kCellShapes[0], kCellShapes[3], kCellShapes[5]}) {
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
            shape, linear.batch(),
            {q.begin() + row * shape.width(), q.begin() + (row + 1) * shape.width()},
            {qg.begin() + row * shape.query_width(), qg.begin() + (row + 1) * shape.query_width()});
        expect_close(
            {expected.begin() + row * shape.width(), expected.begin() + (row + 1) * shape.width()},
            alone, outputs(device, shape.k), outputs(device, shape.k),
            device.name + " node " + std::to_string(node));
      }
    }
  }
}

TEST(Attention, OneCellGivesItsValue) {
  for (const DeviceCase& device : sequence_devices()) {
    Shape shape = kCellShapes[2];
    Random random(31);
    const TestBatch rows({{0, 1}}, random);
    Cells cells(device, shape, rows, 1, random);
    const std::vector<float> q = random.normals(shape.width(), 4.0f);
    const std::vector<float> o = cells.attend(shape, rows.batch(), q, q);
    std::vector<float> values;
    for (int32_t h = 0; h < shape.kv_heads; ++h) {
      for (float v : decode(shape.v, cells.v_row(rows.batch(), 0, 0, h), shape.head_dim))
        values.push_back(v);
    }
    expect_close(o, values, 1e-7, device.tolerance(1e-6), device.name);
  }
}

TEST(Attention, EachHeadReadsItsKvHeadAndItsGate) {
  const Shape shape{
      .heads = 6, .kv_heads = 2, .head_dim = 32, .k = KvFormat::f32, .v = KvFormat::f32};
  for (const DeviceCase& device : sequence_devices()) {
    Random random(33);
    const TestBatch rows({{0, 1}}, random);
    Cells cells(device, shape, rows, 1, random);
    std::vector<float> expected;
    std::vector<float> qg = random.normals(shape.query_width(), 9.0f);
    for (int32_t h = 0; h < 6; ++h) {
      const std::vector<float> value =
          decode(KvFormat::f32, cells.v_row(rows.batch(), 0, 0, h / 3), 32);
      const float gate = static_cast<float>(h) - 2.0f;
      std::fill_n(qg.begin() + (2 * h + 1) * 32, 32, gate);
      for (float v : value) expected.push_back(v / (1 + std::exp(-gate)));
    }
    expect_close(cells.attend(shape, rows.batch(), random.normals(shape.width()), qg), expected,
                 1e-7, device.tolerance(1e-6), device.name);
  }
}

TEST(Attention, ZeroGateHalvesTheOutput) {
  for (const DeviceCase& device : sequence_devices()) {
    Shape gated = kCellShapes[0];
    Shape plain = gated;
    plain.gate = {};
    Random random(37);
    const TestBatch rows({{40, 3}, {10, 1}}, random);
    Cells cells(device, gated, rows, 1 << 30, random);
    const std::vector<float> q = random.normals(rows.tokens() * gated.width());
    const std::vector<float> halves = cells.attend(
        gated, rows.batch(), q, std::vector<float>(rows.tokens() * gated.query_width(), 0.0f));
    std::vector<float> wholes = cells.attend(plain, rows.batch(), q, q);
    for (float& v : wholes) v *= 0.5f;
    expect_close(halves, wholes, device.gpu ? 1e-7 : 0, device.tolerance(1e-6), device.name);
  }
}

TEST(Attention, ZeroSoftplusGateMultipliesByLn2) {
  for (const DeviceCase& device : sequence_devices()) {
    for (const AttentionGate gate : {kSoftplusHead, kSoftplusElement}) {
      Shape gated = kCellShapes[0];
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

TEST(Attention, LargeSoftplusGatesStayFinite) {
  for (const DeviceCase& device : sequence_devices()) {
    Shape shape = kCellShapes[0];
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
      expected[i] *=
          std::max(gates[i / 256], 0.0f) + std::log1p(std::exp(-std::abs(gates[i / 256])));
    expect_close(cells.attend(shape, rows.batch(), q, gates), expected, device.gpu ? 1e-5 : 1e-12,
                 device.tolerance(1e-6), device.name);
  }
}

// A window of w has the row itself and w - 1 cells before it.
TEST(Attention, WindowHidesOlderCells) {
  for (const DeviceCase& device : sequence_devices()) {
    Shape shape = kCellShapes[0];
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
    EXPECT_NE(cells.attend(shape, rows.batch(), q, qg), full)
        << device.name << " hides one cell too many";
  }
}

TEST(Attention, FirstCellHidesThoseBelow) {
  const std::vector<std::vector<SequencePlan>> cases = {{{0, 1}},
                                                        {{1, 1}},
                                                        {{300, 1}},
                                                        {{0, 80}},
                                                        {{70, 40}},
                                                        {{0, 1, {-1, 0, -1}}},
                                                        {{40, 1, {-1, 0, 0}}}};
  for (const DeviceCase& device : sequence_devices()) {
    for (const int32_t first_cell : {1, 3}) {
      Shape shape = kCellShapes[0];
      shape.gate = {};
      shape.first_cell = first_cell;
      for (const std::vector<SequencePlan>& plans : cases) {
        Random random(43);
        const TestBatch rows(plans, random);
        const Batch& batch = rows.batch();
        Cells cells(device, shape, rows, 1 << 30, random);
        const std::vector<float> q = random.normals(rows.tokens() * shape.width());
        std::vector<float> seen = cells.attend(shape, batch, q, {});
        std::vector<float> own;  // result of the rows of the first cells: their values
        for (int32_t t = 0; t < rows.tokens() && batch.position[t] < first_cell; ++t)
          for (int32_t h = 0; h < shape.heads; ++h)
            for (const float v :
                 decode(shape.v, cells.v_row(batch, 0, batch.cell[t], 0), shape.head_dim))
              own.push_back(v);
        expect_close({seen.begin(), seen.begin() + std::ssize(own)}, own, 1e-7,
                     device.tolerance(1e-6), device.name);
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

}  // namespace
}  // namespace braid
