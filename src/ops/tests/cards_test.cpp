// cards_test.cpp -- kernel choices for consumer cards, tested without a GPU.
#include "ops/cuda/card.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#if defined(BRAID_HAS_CUDA)
#include "ops/cuda/rehearsal.h"
#include "ops/kv/kv_codec.h"
#include "ops/ops.h"
#endif

namespace braid {
namespace {

using cuda::Card;

TEST(Cards, CodeForOlderCardsUsesNothingOfANewerGpu) {
  const Card h100 = *cuda::card_of(90);
  const Card ptx80 = cuda::as_used_by(h100, 80, false);
  EXPECT_EQ(ptx80.capability, 80);
  EXPECT_FALSE(ptx80.has_wgmma || ptx80.has_clusters || ptx80.has_bulk_copies ||
               ptx80.has_dependent_launch);
  EXPECT_EQ(ptx80.shared_bytes_per_block, h100.shared_bytes_per_block);
  // PTX for 9.0 has all but wgmma, on this card and on the next.
  Card b200 = h100;
  b200.capability = 100;
  for (const Card& gpu : {h100, b200}) {
    const Card ptx90 = cuda::as_used_by(gpu, 90, false);
    EXPECT_EQ(ptx90.capability, 90);
    EXPECT_FALSE(ptx90.has_wgmma);
    EXPECT_TRUE(ptx90.has_clusters && ptx90.has_bulk_copies && ptx90.has_dependent_launch);
  }
  EXPECT_TRUE(cuda::as_used_by(h100, 90, true).has_wgmma);
  // Code for 8.0 runs unchanged on 8.6.
  EXPECT_EQ(cuda::as_used_by(*cuda::card_of(86), 80, false).capability, 80);
}

TEST(Cards, OneStandsInForThoseWhoseFormsItHas) {
  const Card h100 = *cuda::card_of(90);
  for (const Card& card : cuda::kCards)
    EXPECT_TRUE(cuda::can_stand_in(h100, card)) << card.capability;
  EXPECT_TRUE(cuda::can_stand_in(*cuda::card_of(80), *cuda::card_of(89)));
  EXPECT_FALSE(cuda::can_stand_in(*cuda::card_of(86), h100));
  EXPECT_FALSE(cuda::can_stand_in(*cuda::card_of(120), h100));
  EXPECT_FALSE(cuda::can_stand_in(cuda::as_used_by(h100, 80, false), *cuda::card_of(120)));
}

TEST(Cards, LimitsAreTheSmallerOnes) {
  const Card h100 = *cuda::card_of(90);
  const Card rtx5090 = *cuda::card_of(120);
  const Card both = cuda::limited_to(rtx5090, h100);
  EXPECT_EQ(both.capability, 120);
  EXPECT_EQ(both.processors, h100.processors);
  EXPECT_EQ(both.shared_bytes_per_block, rtx5090.shared_bytes_per_block);
  EXPECT_EQ(both.l2_bytes, h100.l2_bytes);
  EXPECT_FALSE(both.has_wgmma);
  for (const Card& card : cuda::kCards)
    EXPECT_GE(card.shared_bytes_per_block, cuda::kLeastSharedBytes);
}

#if defined(BRAID_HAS_CUDA)

struct Shape {
  const char* name;
  int32_t heads, kv_heads, head_dim;
  int64_t width, hidden;  // of the model, of its (expert's) feed-forward
  int32_t experts, used;
};
constexpr Shape kShapes[] = {
    {"27B", 24, 4, 256, 5120, 17408, 0, 0},
    {"35B-A3B", 16, 2, 256, 2048, 512, 256, 8},
    {"0.8B", 8, 2, 256, 1024, 3584, 0, 0},
    {"heads of 128", 32, 8, 128, 4096, 12288, 0, 0},
};
constexpr int32_t kMostRows = 2048;
constexpr int32_t kContext = 32768;
constexpr GgmlType kTypes[] = {GgmlType::Q4_K,   GgmlType::Q6_K,  GgmlType::Q8_0, GgmlType::Q5_K,
                               GgmlType::IQ4_XS, GgmlType::MXFP4, GgmlType::F16};

class OnCard : public ::testing::TestWithParam<std::tuple<Card, Shape>> {
 protected:
  const Card card = std::get<0>(GetParam());
  const Shape shape = std::get<1>(GetParam());
  std::vector<cuda::KernelLaunch> launches;
  std::unique_ptr<Device> device = cuda::make_rehearsal(card, launches);
  std::vector<std::unique_ptr<Weight>> weights;
  std::vector<Buffer> buffers;

  void SetUp() override {
    Device::WorkspaceNeeds needs;
    needs.max_tokens = kMostRows;
    needs.max_sequences = 4;
    needs.max_context = kContext;
    needs.max_width = std::max<int64_t>(shape.hidden, int64_t{shape.heads} * shape.head_dim);
    needs.max_width = std::max(needs.max_width, shape.width);
    needs.max_heads = shape.heads;
    needs.head_dim = shape.head_dim;
    needs.experts = shape.experts;
    needs.experts_used = shape.used;
    needs.expert_width = shape.experts > 0 ? shape.hidden : 0;
    needs.model_width = shape.width;
    ASSERT_TRUE(device->accepts(needs).ok());
    ASSERT_TRUE(device->reserve_workspaces(needs).ok());
  }
  const Weight* weight(GgmlType type, int64_t n, int64_t k, int64_t experts = 1) {
    weights.push_back(std::make_unique<Weight>());
    Weight* w = weights.back().get();
    w->type = type;
    w->n = n;
    w->k = k;
    w->experts = experts;
    EXPECT_TRUE(device->load_weights(std::span(&w, 1), nullptr).ok());
    return w;
  }
  Tensor tensor(int64_t rows, int64_t cols, DType type = DType::f16) {
    auto buffer = device->allocate(static_cast<size_t>(rows * cols) * size_bytes(type), "a tensor");
    EXPECT_TRUE(buffer.ok());
    buffers.push_back(std::move(buffer).value());
    return {buffers.back().data(), type, rows, cols, cols};
  }
  struct AttentionRows {
    Tensor qg, q, o, k, v, rope;
    AttentionWeights weights;
  };
  AttentionRows attention_rows(int64_t rows) {
    const int64_t width = int64_t{shape.heads} * shape.head_dim;
    const int64_t kv_width = int64_t{shape.kv_heads} * shape.head_dim;
    const float* norm = tensor(1, shape.head_dim, DType::f32).f32();
    return {tensor(rows, 2 * width), tensor(rows, width),    tensor(rows, width),
            tensor(rows, kv_width),  tensor(rows, kv_width), tensor(rows, 64, DType::f32),
            {norm, norm, 1e-6f}};
  }
  // Checks the launches since the last call. Returns the most shared memory of a launch.
  size_t check(const std::string& what) {
    EXPECT_FALSE(launches.empty()) << what;
    size_t most = 0;
    for (const cuda::KernelLaunch& launch : launches) {
      EXPECT_LE(launch.shared_bytes, card.shared_bytes_per_block) << what << ", " << launch.op;
      EXPECT_LE(launch.threads, 1024u) << what << ", " << launch.op;
      EXPECT_TRUE(launch.cluster == 1 || card.has_clusters) << what << ", " << launch.op;
      most = std::max(most, launch.shared_bytes);
    }
    launches.clear();
    const Status health = device->health();
    EXPECT_TRUE(health.ok()) << what << ": " << (health.ok() ? "" : health.error().message);
    return most;
  }
};

TEST_P(OnCard, ProductsFit) {
  for (const GgmlType type : kTypes) {
    const Weight* w = weight(type, shape.hidden, shape.width);
    const Weight* up = weight(type, shape.hidden, shape.width);
    for (const int64_t rows : {1, 2, 8, 9, 16, 17, 40, 64, 100, 2048}) {
      const std::string what = std::string(type_name(type)) + ", " + std::to_string(rows) + " rows";
      const Tensor x = tensor(rows, shape.width);
      const std::array<LinearPart, 1> plain = {{{w, nullptr, tensor(rows, shape.hidden)}}};
      device->ops().linear(plain, x);
      check(what);
      const std::array<LinearPart, 1> gated = {
          {{w, up, tensor(rows, shape.hidden), Tail::silu_mul}}};
      device->ops().norm_linear(gated, x, tensor(rows, shape.width, DType::f32),
                                tensor(1, shape.width, DType::f32).f32(), 1e-6f);
      check(what + ", gated");
    }
  }
}

// Decoding, a tree, a prompt.
TEST_P(OnCard, AttentionHasItsFastForms) {
  struct Step {
    const char* name;
    int32_t sequences, rows;
  };
  for (const KvFormat format : {KvFormat::f16, KvFormat::bf16}) {
    KvLayer kv;
    kv.shape = {shape.kv_heads, shape.head_dim, format, format};
    kv.blocks = 64;
    kv.k = kv.v = static_cast<std::byte*>(tensor(1, 1024).data);
    for (const Step& step : {Step{"one row", 1, 1}, Step{"four", 4, 1}, Step{"a tree", 1, 22},
                             Step{"a prompt", 1, kMostRows}}) {
      Batch batch;
      batch.sequences = step.sequences;
      batch.tokens = step.sequences * step.rows;
      batch.most_rows = step.rows;
      batch.blocks_per_sequence = kContext / kBlockTokens;
      const AttentionRows r = attention_rows(batch.tokens);
      const AttentionParams params{shape.heads, 0.0625f, 0, kJointSigmoid};
      device->ops().attention(r.o, r.q, r.qg, params, kv, batch);
      EXPECT_GT(check(step.name), size_t{48} * 1024) << step.name;
      device->ops().store_attend(r.o, r.q, r.qg, r.k, r.v, r.qg, r.rope, r.weights, params, kv,
                                 batch);
      EXPECT_GT(check(step.name), size_t{48} * 1024) << step.name;
    }
  }
}

KvLayer sealing_layer(const Shape& shape, const KvCodec& codec, std::byte* pool) {
  KvLayer kv;
  kv.shape = {shape.kv_heads, shape.head_dim, KvFormat::f16, KvFormat::f16};
  kv.blocks = kv.cold.blocks = 64;
  kv.k = kv.v = kv.cold.k = kv.cold.v = pool;
  kv.cold.k_codec = kv.cold.v_codec = &codec;
  kv.cold.k_unit_bytes = codec.unit_bytes(shape.head_dim, KvSide::k);
  kv.cold.v_unit_bytes = codec.unit_bytes(shape.head_dim, KvSide::v);
  return kv;
}

// Few rows read units in place (sealed cells, exact ones, seal). More rows get bands and an image,
// then the kernels of f16. The formats: the widest unit, tables of channels, tables of levels.
TEST_P(OnCard, SealedBlocksHaveFastForms) {
  struct Step {
    const char* name;
    int32_t sequences, certain, uncertain;
    bool in_place;
  };
  for (const char* format : {"q8_0", "c5", "tbq4_0"}) {
    const auto codec = find_kv_codec(format);
    ASSERT_TRUE(codec.ok());
    Device::WorkspaceNeeds needs;
    needs.max_tokens = kMostRows;
    needs.max_sequences = 4;
    needs.max_context = kContext;
    needs.max_heads = shape.heads;
    needs.head_dim = shape.head_dim;
    needs.kv_heads = shape.kv_heads;
    needs.k_codec = needs.v_codec = *codec;
    device = cuda::make_rehearsal(card, launches);
    ASSERT_TRUE(device->reserve_workspaces(needs).ok());
    const KvLayer kv = sealing_layer(shape, **codec, static_cast<std::byte*>(tensor(1, 1024).data));
    for (const Step& step : {Step{"one row", 1, 1, 0, true}, Step{"four", 4, 1, 0, true},
                             Step{"drafts", 4, 1, 7, true}, Step{"a tree", 1, 1, 21, false},
                             Step{"a prompt", 1, kMostRows, 0, false}}) {
      const std::string what = std::string(format) + ", " + step.name;
      Batch batch;
      batch.sequences = step.sequences;
      batch.most_rows = step.certain + step.uncertain;
      batch.most_certain = step.certain;
      batch.most_uncertain = step.uncertain;
      batch.tokens = step.sequences * batch.most_rows;
      batch.blocks_per_sequence = kContext / kBlockTokens;
      batch.certain = static_cast<const int32_t*>(tensor(1, 64).data);
      const AttentionRows r = attention_rows(batch.tokens);
      const AttentionParams params{shape.heads, 0.0625f, 0, kJointSigmoid};
      device->ops().store_attend(r.o, r.q, r.qg, r.k, r.v, r.qg, r.rope, r.weights, params, kv,
                                 batch);
      // With wide heads, the smallest cards lack room for several rows that are stored on the way.
      const bool room =
          card.shared_bytes_per_block > cuda::kLeastSharedBytes || shape.head_dim <= 128;
      const bool fresh = room || batch.most_rows == 1;
      if (step.in_place) {
        EXPECT_EQ(launches.size(), fresh ? 3u : 4u) << what;
      } else {
        EXPECT_GE(launches.size(), 5u) << what;  // store, seal, bands, image, attention
      }
      EXPECT_GT(check(what), size_t{48} * 1024) << what;
      const KvSeal seals[] = {{1, 2}, {3, 4}};
      device->ops().kv_seal(kv, seals);
      check("kv_seal");
    }
  }
}

class ExpertsOnCard : public OnCard {};

TEST_P(ExpertsOnCard, Fit) {
  std::vector<std::pair<GgmlType, int32_t>> kinds;
  for (const GgmlType type : kTypes)
    for (const int32_t experts : {shape.experts, shape.experts / 2})
      kinds.emplace_back(type, experts);
  for (const auto& [type, experts] : kinds) {
    MoeWeights w;
    w.gate = weight(type, shape.hidden, shape.width, experts);
    w.up = weight(type, shape.hidden, shape.width, experts);
    w.down = weight(type, shape.width, shape.hidden, experts);
    w.first_expert = shape.experts - experts;
    w.all_experts = shape.experts;
    w.shared_gate = weight(type, shape.hidden, shape.width);
    w.shared_up = weight(type, shape.hidden, shape.width);
    w.shared_down = weight(type, shape.width, shape.hidden);
    for (const int64_t rows : {1, 2, 3, 5, 8, 32, 128, 2048}) {
      RouteParams route;
      route.experts = shape.experts;
      route.used = shape.used;
      device->ops().moe(tensor(rows, shape.width, DType::f32), tensor(rows, shape.width),
                        tensor(rows, shape.used, DType::i32), tensor(rows, shape.used, DType::f32),
                        tensor(rows, shape.experts, DType::f32), route, w, {});
      check(std::string(type_name(type)) + ", " + std::to_string(experts) + " experts, " +
            std::to_string(rows) + " rows");
    }
  }
}

TEST_P(OnCard, LogitsAndTheirLargestFit) {
  constexpr int64_t kVocabulary = 248320;
  const Weight* w = weight(GgmlType::Q6_K, kVocabulary, shape.width);
  for (const int64_t rows : {1, 8, 32}) {
    const Tensor logits = tensor(rows, kVocabulary, DType::f32);
    device->ops().logits(logits, *w, tensor(rows, shape.width));
    check("logits");
    device->ops().top_k(tensor(rows, 64, DType::f32), tensor(rows, 64, DType::i32),
                        tensor(rows, 1, DType::f32), logits);
    check("top k");
  }
}

// Letters of one row, of the most that are pushed, and of a prompt.
TEST_P(OnCard, LettersBetweenRanksFit) {
  std::unique_ptr<Device> other = cuda::make_rehearsal(card, launches);
  Device* const ranks[] = {device.get(), other.get()};
  const LaneNeeds lane{kMostRows, shape.width};
  auto exchange = device->connect(ranks, {&lane, 1});
  ASSERT_TRUE(exchange.ok());
  EXPECT_GT((*exchange)->bytes(1), size_t{2} * 4 * kMostRows * static_cast<size_t>(shape.width));
  Batch batch;
  batch.turn = static_cast<const int32_t*>(tensor(1, 64).data);
  for (const int64_t rows : {0, 1, 16, 17, 2048}) {
    for (const DType type : {DType::f32, DType::f16}) {
      const Letter letter = (*exchange)->letter(0, 1, 0, rows, shape.width, type);
      const Tensor x = tensor(rows, shape.width, DType::f32);
      EXPECT_EQ(letter.few, rows == 1 || rows == 16 || (rows == 17 && type == DType::f16)) << rows;
      device->ops().send(letter, x, batch);
      check("send");
      device->ops().collect(x, letter, Tail::add, batch);
      check("collect");
    }
  }
  for (const int64_t k : {1, 64, 128}) {
    const int64_t rows = 32;
    const Letter letter = (*exchange)->letter(0, 1, 1, rows, BestRows::width(k));
    device->ops().merge_best(tensor(rows, k, DType::f32), tensor(rows, k, DType::i32),
                             tensor(rows, 1, DType::f32), letter, batch);
    check("merge_best");
  }
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<Card, Shape>>& info) {
  const auto& [card, shape] = info.param;
  std::string name = "sm" + std::to_string(card.capability) + "_" + shape.name;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}
INSTANTIATE_TEST_SUITE_P(All, OnCard,
                         ::testing::Combine(::testing::ValuesIn(cuda::kCards),
                                            ::testing::ValuesIn(kShapes)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(All, ExpertsOnCard,
                         ::testing::Combine(::testing::ValuesIn(cuda::kCards),
                                            ::testing::Values(kShapes[1])),
                         name_of);

#endif

}  // namespace
}  // namespace braid
