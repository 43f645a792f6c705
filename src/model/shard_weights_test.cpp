// shard_weights_test.cpp -- the weights of ranks: every number of a file is on one of them, and
// blocks of ranks add up to the blocks of the model.
#include "model/shard_weights.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <filesystem>

#include "model/layers.h"
#include "model/model.h"
#include "model/test_models_test.h"
#include "model/weight_parts.h"

namespace braid {
namespace {

using namespace testing_models;

struct SplitCase {
  std::string name;
  RandomShape shape;
  int ranks = 2;
  std::string mix = "F32";
  bool fused = false;
  std::vector<double> ratio = {};
};

// Small models with two of every unit.
std::vector<SplitCase> split_cases() {
  const auto with = [](RandomShape s, const auto& edit) {
    edit(s);
    return s;
  };
  const auto two_heads = [](RandomShape& s) { s.kv_heads = 2; };
  const RandomShape dense = with(tiny_dense(), [](RandomShape& s) {
    s.heads = s.kv_heads = 4;
    s.heads *= 2;
    s.key_heads = 4;
    s.value_heads = 12;
    s.ffn_width = 160;
  });
  const RandomShape moe = with(tiny_moe(), [](RandomShape& s) {
    s.heads = 4;
    s.kv_heads = 2;
    s.expert_width = 64;
  });
  const RandomShape next = with(tiny_qwen3next(), [](RandomShape& s) {
    s.heads = 4;
    s.kv_heads = 2;
    s.key_heads = 3;
    s.value_heads = 6;
    s.experts = 9;
  });
  const RandomShape laguna = with(tiny_laguna(), [](RandomShape& s) {
    s.heads = 2;
    s.kv_heads = 2;
    s.sliding_heads = 4;
    s.shared_width = 32;
  });
  const RandomShape grouped = with(tiny_qwen3(), [](RandomShape& s) {
    s.heads = 8;
    s.ffn_width = 128;
  });
  return {
      {"dense", dense},
      {"dense on 3", dense, 3},
      {"dense on 4, q8_0", dense, 4, "Q8_0"},
      {"unequal", dense, 2, "F32", false, {3, 1}},
      {"experts by columns", moe},
      {"experts by columns, fused", moe, 2, "Q8_0", true},
      {"experts by id", next, 3},
      {"experts by id, fused", next, 3, "F32", true},
      {"both", with(moe, [](RandomShape& s) { s.key_heads = s.value_heads = 4; }), 4},
      {"windows, separate gates", laguna},
      {"windows, q8_0", laguna, 2, "Q8_0"},
      {"one rank", with(tiny_dense(), two_heads), 1},
      {"a KV head on 4", grouped, 4, "F32", true},
      {"a KV head on 3", grouped, 3},
  };
}

struct OpenModel {
  std::vector<std::byte> bytes;
  GgufFile file;
  std::unique_ptr<Model> model;

  OpenModel(const SplitCase& c, bool mtp, const ModelOptions& options = {})
      : bytes(bytes_of(c.shape, c.mix, mtp, c.fused)), file(parsed(bytes)) {
    open(options);
  }
  explicit OpenModel(GgufFile golden) : file(std::move(golden)) { open({.with_mtp = false}); }
  void open(const ModelOptions& options) {
    auto opened = Model::open(file, options);
    EXPECT_TRUE(opened.ok()) << opened.error().message;
    model = std::move(*opened);
  }
  ModelWeights& weights() { return model->weights(); }
  ShardMap map(const SplitCase& c) {
    auto made = ShardMap::make(model->config(), column_blocks(weights()), c.ranks, c.ratio);
    EXPECT_TRUE(made.ok()) << made.error().message;
    return std::move(*made);
  }
};

std::vector<float> decoded(const Weight& w) {
  std::vector<float> values(static_cast<size_t>(w.experts * w.n * w.k));
  for (int64_t row = 0; row < w.experts * w.n; ++row)
    decode_weight_row(w, row / w.n, row % w.n, values.data() + row * w.k);
  return values;
}

std::vector<float> sorted(std::vector<float> values) {
  std::ranges::sort(values);
  return values;
}

std::vector<float> values_of(const ModelWeights& weights, const float* const& user) {
  const auto values = weights.vector_values(user);
  return {values.begin(), values.end()};
}

struct Ranks {
  std::deque<ModelWeights> weights;
  Ranks(OpenModel& model, const ShardMap& map) {
    for (int r = 0; r < map.ranks(); ++r)
      shard(model.weights(), map, r, weights.emplace_back(model.file));
  }
};

TEST(ShardWeights, EveryNumberOfAMatrixIsOnOneRank) {
  for (const SplitCase& c : split_cases()) {
    SCOPED_TRACE(c.name);
    OpenModel whole(c, true);
    Ranks ranks(whole, whole.map(c));
    const auto expect_once = [&](const Weight& matrix, const auto& part_of) {
      std::vector<float> all;
      for (ModelWeights& rank : ranks.weights) {
        const std::vector<float> part = decoded(part_of(rank));
        all.insert(all.end(), part.begin(), part.end());
      }
      EXPECT_EQ(sorted(std::move(all)), sorted(decoded(matrix))) << matrix.name;
    };
    const auto expect_layer = [&](LayerWeights& layer, const auto& layer_of) {
      for (size_t m = 0; m < layer.matrices().size(); ++m) {
        const Weight& matrix = *layer.matrices()[m];
        if (&matrix == &layer.moe.router) {
          for (ModelWeights& rank : ranks.weights)
            EXPECT_EQ(decoded(layer_of(rank).moe.router), decoded(matrix));
          continue;
        }
        const bool shared_head = c.ranks > c.shape.kv_heads;
        if (shared_head && (&matrix == &layer.attention.k || &matrix == &layer.attention.v))
          continue;
        expect_once(matrix, [&](ModelWeights& rank) { return *layer_of(rank).matrices()[m]; });
      }
    };
    ModelWeights& w = whole.weights();
    for (size_t i = 0; i < w.layers.size(); ++i)
      expect_layer(w.layers[i],
                   [&](ModelWeights& rank) -> LayerWeights& { return rank.layers[i]; });
    expect_layer(w.mtp[0].layer,
                 [&](ModelWeights& rank) -> LayerWeights& { return rank.mtp[0].layer; });
    expect_once(w.mtp[0].eh_proj, [](ModelWeights& rank) { return rank.mtp[0].eh_proj; });
    expect_once(w.embedding, [](ModelWeights& rank) { return rank.embedding; });
    expect_once(w.own_head, [](ModelWeights& rank) { return rank.own_head; });
    for (ModelWeights& rank : ranks.weights) {
      EXPECT_EQ(&rank.head() == &rank.embedding, &w.head() == &w.embedding);
      EXPECT_EQ(rank.mtp[0].head, &rank.head());
      EXPECT_EQ(rank.mtp[0].embedding, &rank.embedding);
    }
  }
}

TEST(ShardWeights, NormsAreOnEveryRankAndHeadsTakeTheirNumbers) {
  const SplitCase c = split_cases()[0];
  OpenModel whole(c, true);
  const ShardMap map = whole.map(c);
  Ranks ranks(whole, map);
  const ModelWeights& w = whole.weights();
  const DeltaBlock& delta = w.layers[0].delta;
  const std::vector<float> a = values_of(w, delta.small.a);
  for (int r = 0; r < map.ranks(); ++r) {
    const ModelWeights& rank = ranks.weights[static_cast<size_t>(r)];
    EXPECT_EQ(values_of(rank, rank.output_norm), values_of(w, w.output_norm));
    EXPECT_EQ(values_of(rank, rank.layers[3].attention.norms.q_norm),
              values_of(w, w.layers[3].attention.norms.q_norm));
    EXPECT_EQ(values_of(rank, rank.layers[0].delta.small.norm), values_of(w, delta.small.norm));
    EXPECT_EQ(values_of(rank, rank.mtp[0].hidden_norm), values_of(w, w.mtp[0].hidden_norm));
    EXPECT_EQ(rank.layers[0].delta.small.eps, delta.small.eps);
    // Tiled: of 4 key heads, a rank has two, with value heads 4 j + these.
    std::vector<float> expected;
    for (size_t j = 0; j < 3; ++j)
      for (size_t key : {0, 1}) expected.push_back(a[j * 4 + static_cast<size_t>(r) * 2 + key]);
    EXPECT_EQ(values_of(rank, rank.layers[0].delta.small.a), expected);
    const std::vector<float> conv = values_of(rank, rank.layers[0].delta.small.conv);
    EXPECT_EQ(std::ssize(conv), map.config(r).layers[0].delta.channels() * 4);
    const auto k_row = static_cast<size_t>((4 + r * 2) * 32 * 4);  // of the first key head
    const std::vector<float> all = values_of(w, delta.small.conv);
    EXPECT_TRUE(std::equal(conv.begin() + 2 * 32 * 4, conv.begin() + 4 * 32 * 4,
                           all.begin() + static_cast<std::ptrdiff_t>(k_row)));
  }
}

TEST(ShardWeights, SlotsOfTheDraftMatrixAreDealtInTurn) {
  const SplitCase c = split_cases()[0];
  ModelOptions options;
  options.draft_vocabulary = 7;
  OpenModel whole(c, true, options);
  const ShardMap map = whole.map(c);
  Ranks ranks(whole, map);
  const Weight& drafts = ranks.weights[1].mtp[0].draft_rows;
  ASSERT_EQ(drafts.n, 3);
  EXPECT_EQ(map.config(1).draft_vocabulary, 3);
  ASSERT_EQ(drafts.runs.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(drafts.runs[i].first, 2 * static_cast<int64_t>(i) + 1);
  EXPECT_TRUE(drafts.is_product);
  EXPECT_FALSE(drafts.is_table);
}

// Runs the layers of all ranks one after the other and adds up what they add to the residual.
class SplitRun {
 public:
  SplitRun(OpenModel& whole, const ShardMap& map, int32_t tokens)
      : map_(map), device_(make_ref_device({})), ops_(device_->ops()), rows_(tokens) {
    for (int r = 0; r < map.ranks(); ++r) {
      Rank& rank = ranks_.emplace_back(whole.file);
      shard(whole.weights(), map, r, rank.weights);
      Device* const one[] = {device_.get()};
      EXPECT_TRUE(rank.weights.load(one, false, nullptr).ok());
      for (const LayerConfig& l : map.config(r).layers) {
        if (l.kind == LayerKind::attention) {
          KvLayer& kv = rank.kv.emplace_back();
          kv.shape = {l.attention.kv_heads, l.attention.head_dim, KvFormat::f32, KvFormat::f32};
          kv.blocks = 1;
          kv.k = bytes(kv.shape.k_block_bytes());
          kv.v = bytes(kv.shape.v_block_bytes());
        } else {
          const DeltaRing ring = device_->delta_ring(1);
          rank.delta.push_back({l.delta, ring, 1, device_->state_tile_columns(l.delta),
                                reinterpret_cast<float*>(bytes(l.delta.slot_elements(ring) * 4))});
        }
      }
    }
  }

  // Returns the logits of all rows.
  std::vector<float> run(const Batch& batch) {
    const ModelConfig& config = map_.config(0);
    const Tensor x = tensor(config.width), normed = tensor(config.width);
    for (int32_t t = 0; t < batch.tokens; ++t) {
      for (int r = 0; r < map_.ranks(); ++r) {
        const int64_t row = batch.token[t] - map_.vocabulary(r).first;
        if (row >= 0 && row < map_.vocabulary(r).count)
          decode_weight_row(ranks_[r].weights.embedding, 0, row, x.f32(t));
      }
    }
    std::vector<Tensor> ropes;
    for (const RopeParams& rope : config.ropes) {
      ropes.push_back(tensor(rope.dims));
      ops_.rope_table(ropes.back(), rope, batch);
    }
    size_t attention = 0, delta = 0;
    for (size_t i = 0; i < config.layers.size(); ++i) {
      const bool attends = config.layers[i].kind == LayerKind::attention;
      add_parts(x, [&](int r, Tensor y) {
        Rank& rank = ranks_[r];
        const LayerConfig& c = map_.config(r).layers[i];
        const LayerWeights& w = rank.weights.layers[i];
        const BlockNorm norm{w.mixer_norm, config.eps};
        if (attends) {
          run_attention(y, normed, norm, ropes[c.attention.rope], w.attention, c.attention,
                        rank.kv[attention], batch);
        } else {
          const DeltaShape& d = c.delta;
          const DeltaScratch scratch{tensor(d.channels()), tensor(d.value_width()),
                                     tensor(d.value_heads), tensor(d.value_heads),
                                     tensor(d.value_width())};
          delta_block(ops_, y, normed, norm, w.delta, rank.delta[delta], scratch, batch, {y});
        }
      });
      (attends ? attention : delta) += 1;
      add_parts(x, [&](int r, Tensor y) {
        const LayerWeights& w = ranks_[r].weights.layers[i];
        const FeedForwardConfig& c = map_.config(r).layers[i].feed_forward;
        const BlockNorm norm{w.ffn_norm, config.eps};
        if (c.is_moe()) {
          run_experts(y, normed, norm, w.moe, c);
        } else {
          mlp_block(ops_, y, normed, norm, w.mlp, {tensor(c.width)}, {y});
        }
      });
    }
    std::vector<float> all(static_cast<size_t>(rows_ * vocabulary()));
    for (int r = 0; r < map_.ranks(); ++r) {
      const ModelWeights& w = ranks_[r].weights;
      ops_.add_norm(normed, x, {}, w.output_norm, config.eps);
      const Tensor part = tensor(map_.vocabulary(r).count);
      ops_.logits(part, w.head(), normed);
      for (int64_t t = 0; t < rows_; ++t)
        std::copy_n(part.f32(t), part.cols,
                    all.begin() + t * vocabulary() + map_.vocabulary(r).first);
    }
    return all;
  }

 private:
  struct Rank {
    explicit Rank(const GgufFile& file) : weights(file) {}
    ModelWeights weights;
    std::vector<KvLayer> kv;
    std::vector<DeltaLayer> delta;
  };

  int64_t vocabulary() const {
    const RowRun last = map_.vocabulary(map_.ranks() - 1);
    return last.first + last.count;
  }
  std::byte* bytes(int64_t size) {
    auto made = device_->allocate(static_cast<size_t>(size), "test");
    EXPECT_TRUE(made.ok());
    buffers_.push_back(std::move(*made));
    return static_cast<std::byte*>(buffers_.back().data());
  }
  Tensor tensor(int64_t cols, DType type = DType::f32) {
    return {bytes(rows_ * cols * 4), type, rows_, cols, cols};
  }

  void add_parts(Tensor x, const auto& part) {
    std::vector<double> sum(static_cast<size_t>(x.rows * x.cols), 0.0);
    for (int r = 0; r < map_.ranks(); ++r) {
      const Tensor y = tensor(x.cols);
      std::copy_n(x.f32(), sum.size(), y.f32());
      part(r, y);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += double{y.f32()[i]} - x.f32()[i];
    }
    for (size_t i = 0; i < sum.size(); ++i) x.f32()[i] = static_cast<float>(x.f32()[i] + sum[i]);
  }

  void run_attention(Tensor y, Tensor normed, const BlockNorm& norm, Tensor rope,
                     const AttentionBlock& w, const AttentionConfig& c, const KvLayer& kv,
                     const Batch& batch) {
    AttentionScratch scratch;
    scratch.qg = tensor(c.query_rows());
    scratch.k = tensor(c.kv_width());
    scratch.v = tensor(c.kv_width());
    if (c.gate.separate()) scratch.gates = tensor(c.gate_rows());
    scratch.q = tensor(c.query_width());
    scratch.attended = tensor(c.query_width());
    attention_in(ops_, y, normed, norm, rope, w, c.params(), kv, scratch, batch, true);
    attention_out(ops_, {y}, w, scratch);
  }

  void run_experts(Tensor y, Tensor normed, const BlockNorm& norm, const MoeBlock& w,
                   const FeedForwardConfig& c) {
    const Tensor logits = tensor(c.experts), weights = tensor(c.experts_used);
    const Tensor ids = tensor(c.experts_used, DType::i32);
    const LinearPart router[] = {{&w.router, nullptr, logits}};
    ops_.norm_linear(router, normed, y, norm.weight, norm.eps);
    ops_.moe_route(ids, weights, logits,
                   {c.experts, c.experts_used, c.score, w.route_bias, c.scale});
    ops_.moe_ffn(y, normed, ids, weights, w.view());
  }

  const ShardMap& map_;
  std::unique_ptr<Device> device_;
  Ops& ops_;
  int64_t rows_;
  std::deque<Rank> ranks_;
  std::deque<Buffer> buffers_;
};

// A prompt of one sequence.
struct Prompt {
  std::vector<int32_t> token, position, zeros, none, outputs;
  int32_t zero = 0, count;
  Batch batch;

  explicit Prompt(std::vector<int32_t> tokens) : token(std::move(tokens)) {
    count = static_cast<int32_t>(token.size());
    for (int32_t i = 0; i < count; ++i) position.push_back(i);
    outputs = position;
    zeros.assign(token.size(), 0);
    none.assign(token.size(), -1);
    batch.tokens = batch.most_rows = batch.most_certain = batch.outputs = count;
    batch.sequences = batch.blocks_per_sequence = 1;
    batch.token = token.data();
    batch.position = batch.cell = position.data();
    batch.sequence = zeros.data();
    batch.parent = none.data();
    batch.first_row = batch.slot = batch.block_table = &zero;
    batch.rows = batch.certain = batch.context = &count;
    batch.output_row = outputs.data();
  }
};

std::vector<float> whole_logits(OpenModel whole, const Prompt& prompt) {
  const auto device = make_ref_device({});
  const StepSizes sizes{prompt.count, prompt.count, 0};
  EXPECT_TRUE(whole.model->load(*device, sizes).ok());
  const ModelConfig& config = whole.model->config();
  std::deque<std::vector<float>> memory;
  const auto floats = [&](int64_t count) {
    return memory.emplace_back(static_cast<size_t>(count)).data();
  };
  std::vector<KvLayer> kv;
  std::vector<DeltaLayer> delta;
  for (const LayerConfig& l : config.layers) {
    if (l.kind == LayerKind::attention) {
      KvLayer& layer = kv.emplace_back();
      layer.shape = {l.attention.kv_heads, l.attention.head_dim, KvFormat::f32, KvFormat::f32};
      layer.blocks = 1;
      layer.k = reinterpret_cast<std::byte*>(floats(layer.shape.k_block_bytes() / 4));
      layer.v = reinterpret_cast<std::byte*>(floats(layer.shape.v_block_bytes() / 4));
    } else {
      const DeltaRing ring = device->delta_ring(1);
      delta.push_back({l.delta, ring, 1, device->state_tile_columns(l.delta),
                       floats(l.delta.slot_elements(ring))});
    }
  }
  whole.model->forward(prompt.batch, {kv, delta, {}});
  std::vector<float> logits(static_cast<size_t>(prompt.count * config.vocabulary));
  whole.model->logits(
      {logits.data(), DType::f32, prompt.count, config.vocabulary, config.vocabulary}, 0,
      prompt.count);
  return logits;
}

void expect_logits(const std::vector<float>& logits, const std::vector<float>& expected,
                   const std::string& what) {
  ASSERT_EQ(logits.size(), expected.size());
  double error = 0, size = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    error = std::max(error, std::fabs(double{logits[i]} - expected[i]));
    size = std::max(size, std::fabs(double{expected[i]}));
  }
  EXPECT_LT(error, 1e-5 * size) << what;
}

TEST(ShardWeights, RanksAddUpToTheModel) {
  const Prompt prompt({3, 319, 64, 65, 160, 3, 17, 255, 96});
  for (const SplitCase& c : split_cases()) {
    OpenModel whole(c, false);
    const ShardMap map = whole.map(c);
    expect_logits(SplitRun(whole, map, prompt.count).run(prompt.batch),
                  whole_logits(OpenModel(c, false), prompt), c.name);
  }
}

// Every layout of tensors that converters have written.
TEST(ShardWeights, RanksAddUpToPublishedConvertersModels) {
  const Prompt prompt({3, 31, 64, 65, 16, 3, 17, 25, 9});
  int divided = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(BRAID_SOURCE_DIR "/tests/goldens/tiny")) {
    if (entry.path().extension() != ".gguf") continue;
    const auto open = [&] {
      auto file = GgufFile::open(entry.path().string());
      EXPECT_TRUE(file.ok()) << file.error().message;
      return OpenModel(std::move(*file));
    };
    for (int ranks = 2; ranks <= 4; ++ranks) {
      OpenModel whole = open();
      const auto map = ShardMap::make(whole.model->config(), column_blocks(whole.weights()), ranks);
      if (!map.ok()) fmt::print("{}: {}\n", entry.path().filename().string(), map.error().message);
      if (!map.ok()) break;
      ++divided;
      expect_logits(SplitRun(whole, *map, prompt.count).run(prompt.batch),
                    whole_logits(open(), prompt),
                    fmt::format("{} on {}", entry.path().filename().string(), ranks));
    }
  }
  EXPECT_GT(divided, 8);
}

TEST(ShardWeights, ColumnsOfTheHeadsProjectionAddUp) {
  for (const SplitCase& c : split_cases()) {
    OpenModel whole(c, true);
    const ShardMap map = whole.map(c);
    Ranks ranks(whole, map);
    const Weight& w = whole.weights().mtp[0].eh_proj;
    const std::vector<float> all = decoded(w);
    std::vector<double> x, sum(static_cast<size_t>(w.n)), expected(sum.size());
    for (int64_t i = 0; i < w.k; ++i) x.push_back(std::sin(static_cast<double>(i)));
    for (int64_t row = 0; row < w.n; ++row)
      for (int64_t i = 0; i < w.k; ++i)
        expected[static_cast<size_t>(row)] += all[static_cast<size_t>(row * w.k + i)] * x[i];
    for (int r = 0; r < map.ranks(); ++r) {
      const std::vector<ColumnRun>& columns = map.mtp(r, 0).joined_columns;
      ASSERT_EQ(columns.size(), 1u);
      const Weight& part = ranks.weights[static_cast<size_t>(r)].mtp[0].eh_proj;
      ASSERT_EQ(part.k, columns[0].count);
      const std::vector<float> values = decoded(part);
      for (int64_t row = 0; row < part.n; ++row)
        for (int64_t i = 0; i < part.k; ++i)
          sum[static_cast<size_t>(row)] +=
              values[static_cast<size_t>(row * part.k + i)] * x[columns[0].first + i];
    }
    for (size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], expected[i], 1e-9) << c.name;
  }
}

// Legacy files of Qwen3-Next, whose matrices are lists of rows before they are divided.
TEST(WeightParts, PartsOfPartsArePartsOfTheFile) {
  std::vector<float> values(6 * 8);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  Weight file;
  file.name = "w";
  file.n = 6;
  file.k = 8;
  file.file = std::as_bytes(std::span(values));
  const Weight rows = rows_of(file, {{4, 2}, {1, 2}}, " (part)");
  EXPECT_EQ(rows.name, "w (part)");
  const Weight fewer = rows_of(rows, {{1, 2}});  // rows 5 and 1 of the file
  EXPECT_EQ(decoded(columns_of(fewer, {{6, 2}, {0, 1}})),
            (std::vector<float>{46, 47, 40, 14, 15, 8}));
  EXPECT_EQ(decoded(columns_of(columns_of(fewer, {{6, 2}, {0, 1}}), {{1, 2}})),
            (std::vector<float>{47, 40, 15, 8}));
  EXPECT_EQ(decoded(rows_of(rows, {{3, 1}})), (std::vector<float>{16, 17, 18, 19, 20, 21, 22, 23}));
  EXPECT_TRUE(columns_of(file, {{0, 8}}).columns.empty());

  // Three experts of two rows, with a factor each.
  Weight stack = file;
  stack.n = 2;
  stack.experts = 3;
  const float scales[] = {1, 2, 3};
  stack.scales = scales;
  const Weight last = experts_of(stack, {1, 2});
  EXPECT_EQ(last.scales.size(), 2u);
  EXPECT_EQ(last.scales[0], 2);
  EXPECT_EQ(decoded(columns_of(rows_of(last, {{1, 1}}), {{2, 2}})),
            (std::vector<float>{26, 27, 42, 43}));
  EXPECT_EQ(decoded(rows_of(columns_of(last, {{2, 2}}), {{1, 1}})),
            (std::vector<float>{26, 27, 42, 43}));
}

}  // namespace
}  // namespace braid
