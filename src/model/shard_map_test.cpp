// shard_map_test.cpp -- the parts of ranks: disjoint, complete, of whole blocks, with true maps of
// heads; and what is refused.
#include "model/shard_map.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "model/test_models_test.h"

namespace braid {
namespace {

using namespace testing_models;

LayerConfig layer_of(const RandomShape& s, int32_t index, bool attends) {
  LayerConfig c;
  c.kind = attends ? LayerKind::attention : LayerKind::delta;
  if (attends) {
    c.attention.heads = s.heads_of(index);
    c.attention.kv_heads = s.kv_heads;
    c.attention.head_dim = s.head_dim;
    if (s.value_heads > 0) c.attention.gate = kJointSigmoid;
    if (s.architecture == "laguna")
      c.attention.gate = {AttentionGate::Act::softplus, AttentionGate::Layout::head};
  } else {
    c.delta = {
        s.key_heads, s.value_heads, s.delta_dim, s.delta_dim, 4, s.architecture == "qwen3next"};
  }
  if (s.has_experts(index)) {
    c.feed_forward.experts = s.experts;
    c.feed_forward.experts_used = s.experts_used;
    c.feed_forward.expert_width = s.expert_width;
    c.feed_forward.shared_width = s.shared_width;
  } else {
    c.feed_forward.width = s.ffn_width;
  }
  return c;
}

ModelConfig config_of(const RandomShape& s) {
  ModelConfig config;
  config.width = s.width;
  config.vocabulary = s.vocabulary;
  for (int32_t i = 0; i < s.layers; ++i) config.layers.push_back(layer_of(s, i, s.attends(i)));
  config.mtp.push_back(layer_of(s, s.layers, true));
  return config;
}

ColumnBlocks blocks_of(const ModelConfig& config, int64_t block) {
  const ColumnBlocks::Layer same{block, block, block, block};
  return {std::vector(config.layers.size(), same), std::vector(config.mtp.size(), same)};
}

Result<ShardMap> even(const ModelConfig& config, int64_t block, int ranks) {
  return ShardMap::make(config, blocks_of(config, block), ranks);
}

std::vector<int64_t> indices(const std::vector<RowRun>& runs) {
  std::vector<int64_t> list;
  for (const RowRun& run : runs)
    for (int64_t i = 0; i < run.count; ++i) list.push_back(run.first + i);
  return list;
}

std::vector<int64_t> joined(std::vector<int64_t> all, const std::vector<int64_t>& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// The elements of `units`, `width` each, from `first` on.
std::vector<int64_t> elements(const std::vector<int64_t>& units, int64_t width, int64_t first = 0) {
  std::vector<int64_t> list;
  for (const int64_t unit : units)
    for (int64_t i = 0; i < width; ++i) list.push_back(first + unit * width + i);
  return list;
}

bool whole_blocks(const std::vector<RowRun>& runs, int64_t block) {
  return std::ranges::all_of(runs, [&](const RowRun& run) {
    return run.count > 0 && run.first % block == 0 && run.count % block == 0;
  });
}

// Collects what ranks have.
class Cover {
 public:
  void add(const std::vector<int64_t>& list) { all_ = joined(std::move(all_), list); }
  bool once(int64_t count) {
    std::ranges::sort(all_);
    std::vector<int64_t> expected(static_cast<size_t>(count));
    std::iota(expected.begin(), expected.end(), 0);
    return all_ == expected;
  }
  bool all_of(int64_t count) const {
    return static_cast<int64_t>(std::set<int64_t>(all_.begin(), all_.end()).size()) == count;
  }

 private:
  std::vector<int64_t> all_;
};

struct RankLayer {
  const LayerConfig& config;
  const LayerShard& shard;
};

void expect_attention(const AttentionConfig& whole, const std::vector<RankLayer>& ranks,
                      int64_t block) {
  Cover queries, keys;
  const int64_t group = whole.heads / whole.kv_heads;
  for (const auto& [config, s] : ranks) {
    const AttentionConfig& local = config.attention;
    ASSERT_GT(local.heads, 0);
    ASSERT_EQ(local.heads % local.kv_heads, 0);
    ASSERT_EQ(s.kv_heads.count, local.kv_heads);
    std::vector<int64_t> heads;
    for (const int64_t column : indices(s.query_columns))
      if (column % whole.head_dim == 0) heads.push_back(column / whole.head_dim);
    ASSERT_EQ(std::ssize(heads), local.heads);
    for (int64_t i = 0; i < local.heads; ++i)
      EXPECT_EQ(heads[static_cast<size_t>(i)] / group,
                s.kv_heads.first + i / (local.heads / local.kv_heads));
    EXPECT_EQ(indices(s.query_columns), elements(heads, whole.head_dim));
    EXPECT_EQ(indices(s.query_rows), elements(heads, whole.gate.query_stride(whole.head_dim)));
    EXPECT_EQ(indices(s.kv_rows), elements(indices({s.kv_heads}), whole.head_dim));
    EXPECT_EQ(indices(s.gate_rows), elements(whole.gate.separate() ? heads : std::vector<int64_t>(),
                                             whole.gate_rows() / whole.heads));
    EXPECT_TRUE(whole_blocks(s.query_columns, block));
    queries.add(heads);
    keys.add(indices({s.kv_heads}));
  }
  EXPECT_TRUE(queries.once(whole.heads));
  EXPECT_TRUE(keys.all_of(whole.kv_heads));
  EXPECT_TRUE(std::ssize(ranks) > whole.kv_heads || keys.once(whole.kv_heads));
}

void expect_delta(const DeltaShape& whole, const std::vector<RankLayer>& ranks, int64_t block) {
  Cover keys, values;
  for (const auto& [config, s] : ranks) {
    const DeltaShape& local = config.delta;
    ASSERT_GT(local.key_heads, 0);
    const std::vector<int64_t> value_heads = indices(s.value_heads);
    ASSERT_EQ(std::ssize(value_heads), local.value_heads);
    std::vector<int64_t> key_heads;
    for (const int64_t v : value_heads)
      key_heads.push_back(whole.key_head(static_cast<int32_t>(v)));
    std::ranges::sort(key_heads);
    key_heads.erase(std::unique(key_heads.begin(), key_heads.end()), key_heads.end());
    ASSERT_EQ(std::ssize(key_heads), local.key_heads);
    for (int32_t i = 0; i < local.value_heads; ++i)
      EXPECT_EQ(key_heads[static_cast<size_t>(local.key_head(i))],
                whole.key_head(static_cast<int32_t>(value_heads[static_cast<size_t>(i)])));
    EXPECT_EQ(indices(s.value_rows), elements(value_heads, whole.value_dim));
    EXPECT_EQ(indices(s.qkv_rows),
              joined(joined(elements(key_heads, whole.key_dim),
                            elements(key_heads, whole.key_dim, whole.key_width())),
                     elements(value_heads, whole.value_dim, 2 * whole.key_width())));
    EXPECT_TRUE(whole_blocks(s.value_rows, block));
    keys.add(key_heads);
    values.add(value_heads);
  }
  EXPECT_TRUE(keys.once(whole.key_heads));
  EXPECT_TRUE(values.once(whole.value_heads));
}

void expect_feed_forward(const FeedForwardConfig& whole, const std::vector<RankLayer>& ranks,
                         int64_t block) {
  constexpr int64_t kPiece = 32;
  Cover columns, cells, shared;
  for (const auto& [config, s] : ranks) {
    const FeedForwardConfig& local = config.feed_forward;
    const std::vector<int64_t> hidden = indices(s.hidden);
    EXPECT_EQ(local.experts, whole.experts);
    EXPECT_TRUE(whole_blocks(s.hidden, std::max<int64_t>(block, kPiece)));
    if (!whole.is_moe()) {
      EXPECT_EQ(local.width, std::ssize(hidden));
      columns.add(hidden);
      continue;
    }
    EXPECT_EQ(local.expert_width, std::ssize(hidden));
    EXPECT_GT(s.experts.count, 0);
    for (const int64_t e : indices({s.experts}))
      for (const RowRun& run : s.hidden)
        cells.add(indices({{(e * whole.expert_width + run.first) / kPiece, run.count / kPiece}}));
    EXPECT_EQ(local.shared_width, std::ssize(indices(s.shared_hidden)));
    EXPECT_TRUE(whole_blocks(s.shared_hidden, block));
    shared.add(indices(s.shared_hidden));
  }
  EXPECT_TRUE(columns.once(whole.width));
  EXPECT_TRUE(cells.once(whole.experts * whole.expert_width / kPiece));
  EXPECT_TRUE(shared.once(whole.shared_width));
}

void expect_layer(const LayerConfig& whole, const std::vector<RankLayer>& ranks, int64_t block) {
  if (whole.kind == LayerKind::attention) {
    expect_attention(whole.attention, ranks, block);
  } else {
    expect_delta(whole.delta, ranks, block);
  }
  expect_feed_forward(whole.feed_forward, ranks, block);
}

void expect_map(const ModelConfig& whole, const ShardMap& map, int64_t block) {
  Cover tokens, joined_columns;
  for (int r = 0; r < map.ranks(); ++r) {
    const std::vector<int64_t> rows = indices({map.vocabulary(r)});
    ASSERT_FALSE(rows.empty());
    EXPECT_EQ(rows[0] % 32, 0);
    EXPECT_EQ(map.config(r).vocabulary, std::ssize(rows));
    tokens.add(rows);
    joined_columns.add(indices(map.mtp(r, 0).joined_columns));
    EXPECT_TRUE(whole_blocks(map.mtp(r, 0).joined_columns, block));
  }
  EXPECT_TRUE(tokens.once(whole.vocabulary));
  EXPECT_TRUE(joined_columns.once(2 * whole.width));
  std::vector<RankLayer> ranks;
  const auto expect = [&](const LayerConfig& layer, const auto& rank_layer) {
    ranks.clear();
    for (int r = 0; r < map.ranks(); ++r) ranks.push_back(rank_layer(r));
    expect_layer(layer, ranks, block);
  };
  // Layers repeat: the kinds of four, where shared experts are on other ranks in each.
  for (size_t i = 0; i < std::min<size_t>(whole.layers.size(), 4); ++i)
    expect(whole.layers[i], [&](int r) {
      return RankLayer{map.config(r).layers[i], map.layer(r, i)};
    });
  expect(whole.mtp[0], [&](int r) { return RankLayer{map.config(r).mtp[0], map.mtp(r, 0)}; });
}

TEST(ShardMap, RanksHaveWholeBlocksOfAllOnce) {
  std::mt19937 random(1);
  for (const RandomShape& shape : random_shapes()) {
    const ModelConfig config = config_of(shape);
    for (const int64_t block : {256, 32, 1}) {
      for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
        std::vector<double> ratio;
        if (ranks % 3 == 2)
          for (int r = 0; r < ranks; ++r) ratio.push_back(1 + static_cast<double>(random() % 90));
        SCOPED_TRACE(fmt::format("{} {} ranks, blocks of {}", shape.name, ranks, block));
        const auto map = ShardMap::make(config, blocks_of(config, block), ranks, ratio);
        // Three query heads of 128 columns share a KV head: only two of these are whole blocks.
        const bool halves = shape.name == "laguna-small" && block == 256;
        ASSERT_EQ(map.ok(), !halves || ranks <= 2) << map.error().message;
        if (!map.ok()) continue;
        expect_map(config, *map, block);
        EXPECT_GE(map->imbalance(), -1e-9);
      }
    }
  }
}

TEST(ShardMap, SmallModelsAreDividedWhereBlocksPermit) {
  for (RandomShape shape : {tiny_dense(), tiny_moe(), tiny_qwen3(), tiny_qwen3next()}) {
    shape.kv_heads = 2;
    shape.expert_width = shape.expert_width == 0 ? 0 : 96;
    const ModelConfig config = config_of(shape);
    for (int ranks = 1; ranks <= 2; ++ranks) {
      SCOPED_TRACE(fmt::format("{} {} ranks", shape.architecture, ranks));
      const auto map = even(config, 32, ranks);
      ASSERT_TRUE(map.ok()) << map.error().message;
      expect_map(config, *map, 32);
    }
    EXPECT_FALSE(even(config, 256, 2).ok());
  }
}

TEST(ShardMap, OneRankIsTheWholeModelInBlocksOfAnyKind) {
  for (const RandomShape& shape : {tiny_dense(), tiny_qwen3next(), tiny_laguna()}) {
    const ModelConfig config = config_of(shape);
    const auto map = even(config, 1, 1);
    ASSERT_TRUE(map.ok()) << map.error().message;
    expect_map(config, *map, 1);
    EXPECT_NEAR(map->imbalance(), 0, 1e-9);
    for (size_t i = 0; i < config.layers.size(); ++i) {
      const LayerShard& s = map->layer(0, i);
      for (const auto* runs : {&s.query_rows, &s.kv_rows, &s.query_columns, &s.qkv_rows,
                               &s.value_rows, &s.value_heads, &s.hidden, &s.shared_hidden})
        EXPECT_LE(runs->size(), 1u);
    }
  }
}

std::string shown(const std::vector<RowRun>& runs) {
  std::string text;
  for (const RowRun& run : runs) text += fmt::format(" {}+{}", run.first, run.count);
  return text;
}

TEST(ShardMap, UnitsOfPublishedModels) {
  const ModelConfig dense = config_of(*find_random_shape("27b"));
  const auto two = even(dense, 256, 2);
  ASSERT_TRUE(two.ok());
  EXPECT_EQ(shown(two->layer(1, 3).query_rows), " 6144+6144");
  EXPECT_EQ(shown(two->layer(1, 3).kv_rows), " 512+512");
  EXPECT_EQ(shown(two->layer(1, 0).value_heads), " 8+8 24+8 40+8");
  EXPECT_EQ(shown(two->layer(1, 0).qkv_rows), " 1024+1024 3072+1024 5120+1024 7168+1024 9216+1024");
  EXPECT_EQ(two->config(1).layers[0].feed_forward.width, 34 * 256);
  EXPECT_NEAR(two->imbalance(), 0, 1e-9);
  EXPECT_NEAR(even(dense, 256, 4)->imbalance(), 0, 1e-9);

  const auto three = even(dense, 256, 3);
  const auto counts = [&](const auto& of) {
    return std::vector<int64_t>{of(three->config(0)), of(three->config(1)), of(three->config(2))};
  };
  using Counts = std::vector<int64_t>;
  EXPECT_EQ(counts([](const ModelConfig& c) { return c.layers[3].attention.kv_heads; }),
            (Counts{2, 1, 1}));
  EXPECT_EQ(counts([](const ModelConfig& c) { return c.layers[0].delta.key_heads; }),
            (Counts{6, 6, 4}));
  EXPECT_EQ(counts([](const ModelConfig& c) { return c.layers[0].feed_forward.width / 256; }),
            (Counts{23, 23, 22}));
  EXPECT_GT(three->imbalance(), 5);
  EXPECT_LT(three->imbalance(), 9);

  // Value heads of a key head are adjacent.
  const ModelConfig next = config_of(*find_random_shape("qwen3next-80b-a3b"));
  EXPECT_EQ(shown(even(next, 256, 4)->layer(1, 0).value_heads), " 8+8");
}

TEST(ShardMap, MoreRanksThanKvHeadsDivideTheirQueryHeads) {
  const ModelConfig config = config_of(*find_random_shape("35b-a3b"));
  const auto four = even(config, 256, 4);
  ASSERT_TRUE(four.ok());
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(four->layer(r, 3).kv_heads.first, r / 2);
    EXPECT_EQ(four->config(r).layers[3].attention.kv_heads, 1);
    EXPECT_EQ(four->config(r).layers[3].attention.heads, 4);
  }
  const auto three = even(config, 256, 3);
  ASSERT_TRUE(three.ok());
  std::multiset<int32_t> heads;
  for (int r = 0; r < 3; ++r) heads.insert(three->config(r).layers[3].attention.heads);
  EXPECT_EQ(heads, (std::multiset<int32_t>{4, 4, 8}));
  EXPECT_GT(three->imbalance(), 15);
  EXPECT_LT(four->imbalance(), 15);
  // The fastest device has a head for itself.
  const double ratio[] = {1, 1, 2};
  const auto unequal = ShardMap::make(config, blocks_of(config, 256), 3, ratio);
  EXPECT_EQ(unequal->config(2).layers[3].attention.heads, 8);
}

TEST(ShardMap, ExpertsAreDividedByColumnsThenById) {
  const ModelConfig config = config_of(*find_random_shape("35b-a3b"));
  const auto part = [&](const ShardMap& map, int rank, size_t layer) {
    const LayerShard& s = map.layer(rank, layer);
    return shown({s.experts}) + " of" + shown(s.hidden) + " shared" + shown(s.shared_hidden);
  };
  const auto two = even(config, 256, 2), three = even(config, 256, 3), four = even(config, 256, 4);
  EXPECT_EQ(part(*two, 1, 0), " 0+256 of 256+256 shared 256+256");
  EXPECT_EQ(part(*three, 2, 0), " 171+85 of 0+512 shared");
  EXPECT_EQ(part(*three, 2, 1), " 171+85 of 0+512 shared 256+256");
  EXPECT_EQ(part(*four, 0, 0), " 0+128 of 0+256 shared 0+256");
  EXPECT_EQ(part(*four, 3, 0), " 128+128 of 256+256 shared");
  EXPECT_EQ(part(*four, 0, 1), " 0+128 of 0+256 shared");
  EXPECT_EQ(part(*four, 3, 1), " 128+128 of 256+256 shared 256+256");
  // 16-bit experts could be cut anywhere, but a GPU computes 256 columns at a time.
  EXPECT_EQ(part(*even(config, 1, 4), 3, 0), part(*four, 3, 0));
}

TEST(ShardMap, UnitsAreDealtInProportion) {
  const ModelConfig config = config_of(*find_random_shape("27b"));
  const double rates[] = {936, 360};
  const auto map = ShardMap::make(config, blocks_of(config, 256), 2, rates);
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(map->config(0).layers[3].attention.kv_heads, 3);
  EXPECT_EQ(map->config(0).layers[0].delta.key_heads, 12);
  EXPECT_EQ(map->config(0).layers[0].feed_forward.width / 256, 49);
  EXPECT_LT(map->imbalance(), 5);
  const double equal[] = {1, 1};
  EXPECT_NEAR(map->imbalance(equal), 46, 3);  // 73 % of the work on one of two
  // Every rank takes part in every layer.
  const double extreme[] = {1e6, 1};
  const auto least = ShardMap::make(config, blocks_of(config, 256), 2, extreme);
  EXPECT_EQ(least->config(1).layers[3].attention.kv_heads, 1);
  EXPECT_EQ(least->config(1).layers[0].feed_forward.width, 256);
}

TEST(ShardMap, ImbalanceIsTheWaitForTheFullestRank) {
  RandomShape shape = tiny_qwen3();
  shape.layers = 1;
  shape.width = 128;
  shape.heads = shape.kv_heads = 3;
  shape.head_dim = 32;
  shape.ffn_width = 5 * 32;
  shape.vocabulary = 32 * 6;
  const ModelConfig config = config_of(shape);
  const auto map = even(config, 32, 2);
  ASSERT_TRUE(map.ok());
  const double attention = 4 * 96, ffn = 3 * 160, head = 192;  // rows and columns of 128
  const double real = attention * 4 / 3 + ffn * 6 / 5 + head;
  EXPECT_NEAR(map->imbalance(), 100 * (real / (attention + ffn + head) - 1), 1e-9);
}

// 8 of 256 experts in 2 groups: the fuller one has 5.09 of 4 on average, by simulation too.
TEST(ShardMap, ImbalanceCountsThatTokensChooseExpertsUnevenly) {
  RandomShape shape = *find_random_shape("35b-a3b");
  shape.shared_width = 0;
  const ModelConfig config = config_of(shape);
  EXPECT_NEAR(even(config, 256, 2)->imbalance(), 0, 1e-9);
  const auto map = even(config, 256, 4);  // two groups
  std::mt19937 random(3);
  std::vector<int> ids(256);
  std::iota(ids.begin(), ids.end(), 0);
  double fuller = 0;
  constexpr int kTimes = 20000;
  for (int i = 0; i < kTimes; ++i) {
    for (int j = 0; j < 8; ++j) std::swap(ids[j], ids[j + static_cast<int>(random() % (256 - j))]);
    const auto low = std::count_if(ids.begin(), ids.begin() + 8, [](int id) { return id < 128; });
    fuller += static_cast<double>(std::max<int64_t>(low, 8 - low)) / kTimes;
  }
  // Rows and columns of 2,048: the attention's keys and values are on two ranks each.
  const double attention = 16 * 768 + 1024, delta = 8192 + 8192 + 64, ffn = 3 * 8 * 512;
  const double whole = 10 * attention + 30 * delta + 40 * ffn + 248320;
  const double real = whole + 10 * 1024 + 40 * ffn * (fuller / 4 - 1);
  EXPECT_NEAR(map->imbalance(), 100 * (real / whole - 1), 0.2);
  EXPECT_NEAR(fuller, 5.1, 0.05);
}

TEST(ShardMap, SlotsOfTheDraftVocabularyAreDealtInTurn) {
  ModelConfig config = config_of(*find_random_shape("27b"));
  config.draft_vocabulary = 41;
  const auto map = even(config, 256, 4);
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(map->config(0).draft_vocabulary, 11);
  EXPECT_EQ(map->config(1).draft_vocabulary, 10);
  config.draft_vocabulary = 0;
  EXPECT_EQ(even(config, 256, 4)->config(3).draft_vocabulary, 0);
}

TEST(ShardMap, SaysWhyAModelCannotBeDivided) {
  const auto message = [](const Result<ShardMap>& map) {
    return map.ok() ? "" : map.error().message;
  };
  const auto expect_says = [&](const Result<ShardMap>& map, const std::string& part) {
    EXPECT_NE(message(map).find(part), std::string::npos) << message(map);
    EXPECT_EQ(map.error().kind, ErrorKind::unsupported);
  };
  const ModelConfig tiny = config_of(tiny_dense());
  expect_says(even(tiny, 32, 3),
              "the 2 key heads of layer 0 with values of 64 columns each make too few parts of "
              "whole blocks of 32");
  expect_says(even(tiny, 256, 2), "make too few parts of whole blocks of 256; use fewer devices");
  const ModelConfig attention = config_of(tiny_qwen3());
  expect_says(even(attention, 32, 3),
              "the 1 KV heads of layer 0 with 2 query heads of 32 columns each");
  RandomShape narrow = tiny_qwen3();
  narrow.ffn_width = 32;
  expect_says(even(config_of(narrow), 32, 2), "the 32 columns of the feed-forward of layer 0");
  RandomShape few = *find_random_shape("35b-a3b");
  few.experts = 3;
  expect_says(even(config_of(few), 256, 8), "the 3 experts of layer 0 with 512 columns each");
  RandomShape tokens = tiny_qwen3();
  tokens.vocabulary = 32;
  expect_says(even(config_of(tokens), 32, 2), "its vocabulary has 32 tokens");
  ModelConfig drafts = config_of(*find_random_shape("27b"));
  drafts.draft_vocabulary = 3;
  expect_says(even(drafts, 256, 2), "a draft vocabulary of 3 tokens");
  ColumnBlocks wide = blocks_of(attention, 32);
  wide.mtp[0].eh_proj = 256;
  expect_says(ShardMap::make(attention, wide, 2), "the 128 columns of eh_proj");
  expect_says(even(attention, 32, 9), "1 to 8 devices, not 9");
  expect_says(even(attention, 32, 0), "1 to 8 devices, not 0");
  for (const std::vector<double>& ratio :
       {std::vector{1.0}, std::vector{1.0, 0.0}, std::vector{1.0, -2.0}, std::vector{1.0, 1e300},
        std::vector{1.0, std::nan("")}})
    EXPECT_EQ(ShardMap::make(attention, blocks_of(attention, 32), 2, ratio).error().kind,
              ErrorKind::invalid_argument);
}

}  // namespace
}  // namespace braid
