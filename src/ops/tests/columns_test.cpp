// columns_test.cpp -- weights that are some rows and columns of a file's matrix: they compute the
// bytes of a weight whose file has these alone.
#include <algorithm>

#include "gguf/block_layouts.h"
#include "ops/tests/op_test.h"

namespace braid {
namespace {

using namespace test;

// Some of [0, count) in runs of `unit`, with gaps, not in order. Never empty.
std::vector<RowRun> some_runs(Random& random, int64_t count, int64_t unit) {
  std::vector<RowRun> runs;
  for (int64_t at = 0; at < count;) {
    const int64_t length = std::min(count - at, unit * random.between(1, 3));
    if (random.between(0, 2) > 0) runs.push_back({at, length});
    at += length;
  }
  if (runs.empty()) runs.push_back({count - unit, unit});
  random.shuffle(runs);
  return runs;
}

std::vector<int64_t> indices(const std::vector<RowRun>& runs) {
  std::vector<int64_t> list;
  for (const RowRun& run : runs)
    for (int64_t i = 0; i < run.count; ++i) list.push_back(run.first + i);
  return list;
}

struct Part {
  Weight weight;  // of the whole's file
  TestWeight alone;
};

std::unique_ptr<Part> part_of(const TestWeight& whole, const std::vector<RowRun>& rows,
                              const std::vector<ColumnRun>& columns) {
  const Weight& w = whole.weight;
  auto part = std::make_unique<Part>();
  Weight& p = part->weight = w;
  p.runs = rows;
  p.columns = columns;
  p.file_k = w.k;
  p.n = std::ssize(indices(rows));
  p.k = std::ssize(indices(columns));
  // The rows of experts are one run.
  if (w.experts > 1) {
    BRAID_CHECK(rows.size() == 1);
    p.runs.clear();
    p.file = w.file.subspan(static_cast<size_t>(rows[0].first) * w.file_row_bytes());
    p.expert_stride_bytes = static_cast<size_t>(w.n) * w.file_row_bytes();
  }
  TestWeight& alone = part->alone;
  for (int64_t expert = 0; expert < w.experts; ++expert) {
    for (const int64_t row : indices(rows)) {
      const std::byte* bytes = w.file_rows(expert, row, 1).data;
      const float* values = whole.values.data() + (expert * w.n + row) * w.k;
      for (const ColumnRun& run : columns) {
        alone.bytes.insert(alone.bytes.end(), bytes + w.bytes_of(run.first),
                           bytes + w.bytes_of(run.first + run.count));
        alone.values.insert(alone.values.end(), values + run.first, values + run.first + run.count);
      }
    }
  }
  alone.weight = w;
  alone.weight.n = p.n;
  alone.weight.k = p.k;
  alone.weight.file = alone.bytes;
  return part;
}

class ColumnsOfType : public ::testing::TestWithParam<GgmlType> {};
INSTANTIATE_TEST_SUITE_P(Types, ColumnsOfType, ::testing::ValuesIn([] {
                           std::vector<GgmlType> types;
                           for (const GgmlTypeInfo& info : ggml_types()) {
                             const GgmlType none[] = {GgmlType::I8,  GgmlType::I16, GgmlType::I32,
                                                      GgmlType::I64, GgmlType::F64, GgmlType::Q8_1,
                                                      GgmlType::Q8_K};
                             if (std::ranges::find(none, info.type) == std::end(none))
                               types.push_back(info.type);
                           }
                           return types;
                         }()),
                         [](const auto& info) { return std::string(type_name(info.param)); });

// Rows and columns of a random matrix of the type.
std::unique_ptr<Part> random_part(Random& random, const TestWeight& whole) {
  return part_of(whole, some_runs(random, whole.weight.n, 7),
                 some_runs(random, whole.weight.k, std::max(32u, block_elems(whole.weight.type))));
}

TEST_P(ColumnsOfType, AreReadAsInTheWholeRow) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Random random(seed);
    const auto whole = random_weight(random, GetParam(), 40, 1280);
    const auto part = random_part(random, *whole);
    const Weight& w = part->weight;
    ASSERT_EQ(w.file_row_bytes() * static_cast<size_t>(w.n), part->alone.bytes.size());
    EXPECT_EQ(w.file_pitch_bytes(), whole->weight.file_row_bytes());
    std::vector<std::byte> bytes(part->alone.bytes.size());
    std::vector<float> values(part->alone.values.size());
    for (int64_t row = 0; row < w.n; ++row) {
      w.copy_row(0, row, bytes.data() + static_cast<size_t>(row) * w.file_row_bytes());
      decode_weight_row(w, 0, row, values.data() + row * w.k);
    }
    EXPECT_EQ(bytes, part->alone.bytes);
    expect_same(values, part->alone.values, "decoded");
  }
}

TEST_P(ColumnsOfType, MultiplyLikeAMatrixOfTheirOwn) {
  for (const DeviceCase& device : all_devices()) {
    Random random(3 + static_cast<uint64_t>(GetParam()));
    const auto whole = random_weight(random, GetParam(), 100, 1536, 1, true);
    whole->weight.may_round = random.between(0, 1) == 1;
    const auto part = random_part(random, *whole);
    Weight& w = part->weight;
    Weight& alone = part->alone.weight;
    World world(device);
    world.prepare({&w, &alone}, {.max_tokens = 64, .max_width = w.k});
    EXPECT_EQ(w.device_bytes, alone.device_bytes);
    for (const int64_t rows : {1, 5, 40}) {
      const Tensor x = world.tensor(rows, w.k, random.normals(rows * w.k));
      const Tensor y = world.tensor(rows, w.n), expected = world.tensor(rows, w.n);
      const LinearPart of_part{&w, nullptr, y}, of_alone{&alone, nullptr, expected};
      world.ops().linear({&of_part, 1}, x);
      world.ops().linear({&of_alone, 1}, x);
      world.device().synchronize();
      expect_same(values_of(y), values_of(expected), device.name);
    }
  }
}

TEST_P(ColumnsOfType, AreLookedUp) {
  for (const DeviceCase& device : plain_devices()) {
    Random random(5);
    const auto whole = random_weight(random, GetParam(), 40, 1024);
    const auto part = part_of(*whole, {{0, 40}}, some_runs(random, 1024, 256));
    Weight& w = part->weight;
    w.is_table = true;
    w.is_product = false;
    World world(device);
    world.prepare({&w}, {.max_tokens = 64});
    TestBatch rows({{0, 9}, {5, 1}}, random);
    const Tensor y = world.tensor(rows.tokens(), w.k);
    world.ops().embed(y, w, rows.batch());
    world.device().synchronize();
    std::vector<float> expected;
    for (int32_t t = 0; t < rows.tokens(); ++t) {
      const float* row = part->alone.values.data() + rows.batch().token[t] * w.k;
      expected.insert(expected.end(), row, row + w.k);
    }
    expect_same(values_of(y), expected, device.name);
  }
}

// A device has some columns of each expert's hidden row, or some of the experts.
TEST(ColumnsOfExperts, MultiplyLikeExpertsOfTheirOwn) {
  for (const DeviceCase& device : all_devices()) {
    for (const GgmlType type : {GgmlType::F32, GgmlType::Q8_0, GgmlType::Q4_K, GgmlType::IQ2_S}) {
      constexpr int64_t kWidth = 256, kHidden = 512, kRows = 5;
      constexpr int32_t kExperts = 5, kUsed = 2;
      Random random(11);
      const auto gate = random_weight(random, type, kHidden, kWidth, kExperts, true);
      const auto up = random_weight(random, type, kHidden, kWidth, kExperts);
      const auto down = random_weight(random, type, kWidth, kHidden, kExperts);
      const std::vector<RowRun> hidden = {{256, 256}}, all = {{0, kWidth}};
      std::unique_ptr<Part> parts[] = {part_of(*gate, hidden, all), part_of(*up, hidden, all),
                                       part_of(*down, all, hidden)};
      World world(device);
      std::vector<Weight*> weights;
      for (const auto& part : parts) {
        weights.push_back(&part->weight);
        weights.push_back(&part->alone.weight);
      }
      Device::WorkspaceNeeds needs;
      needs.max_tokens = kRows;
      needs.max_width = needs.model_width = kWidth;
      needs.experts = kExperts;
      needs.experts_used = kUsed;
      needs.expert_width = kHidden;
      world.prepare(weights, needs);
      const Tensor x = world.tensor(kRows, kWidth, random.normals(kRows * kWidth));
      const Tensor ids = world.tensor(kRows, kUsed, DType::i32);
      const Tensor shares = world.tensor(kRows, kUsed);
      world.ops().moe_route(ids, shares,
                            world.tensor(kRows, kExperts, random.normals(kRows * kExperts)),
                            {kExperts, kUsed});
      const Tensor y = world.tensor(kRows, kWidth), expected = world.tensor(kRows, kWidth);
      world.ops().moe_ffn(y, x, ids, shares, {weights[0], weights[2], weights[4]});
      world.ops().moe_ffn(expected, x, ids, shares, {weights[1], weights[3], weights[5]});
      world.device().synchronize();
      expect_same(values_of(y), values_of(expected), device.name);
    }
  }
}

TEST(ColumnsDeathTest, AreNotContiguousRows) {
  Random random(1);
  const auto whole = random_weight(random, GgmlType::Q8_0, 4, 128);
  const auto part = part_of(*whole, {{0, 4}}, {{0, 32}, {96, 32}});
  EXPECT_DEATH(part->weight.file_rows(0, 0, 1), "broken promise");
}

}  // namespace
}  // namespace braid
