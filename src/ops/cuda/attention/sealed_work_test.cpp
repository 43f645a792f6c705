// sealed_work_test.cpp -- sealing, and attention over the image band by band, on the host.
#include "ops/cuda/attention/sealed_work.h"

#include <fmt/format.h>

#include <cstring>
#include <memory>

#include "ops/cuda/attention/host_block_test.h"
#include "ops/tests/kv_cold_world_test.h"

namespace braid::cuda {
namespace {

using namespace test;

UnitKinds kinds_of(const ColdShape& shape) {
  return {unit_kind(shape.k->name), unit_kind(shape.v->name)};
}
BandRows rows_of(const Batch& b) {
  return {b.position, b.sequence, b.first_row, b.rows, b.certain, b.context, b.tokens, b.sequences};
}

// Filled blocks get the units that kv_seal gives them; all others are unchanged.
TEST(SealedWork, SealsWhatRowsFill) {
  for (const char* name : {"q8_0", "c4", "tbq4_0", "q4_1", "c5", "f16"}) {
    const ColdShape shape{
        .heads = 2, .kv_heads = 2, .head_dim = 128, .k = codec_of(name), .v = codec_of(name)};
    Random random(3);
    const ColdBatch rows(
        {{31, 1}, {40, 23, chain(3)}, {0, 100}, {64, 1}, {30, 1, chain(4)}, {0, 32}}, random);
    const Batch batch = rows.batch();
    ColdWorld expected(reference_device(), shape, rows), own(reference_device(), shape, rows);
    Random same(4), again(4);
    expected.fill(batch, same);
    own.fill(batch, again);
    std::vector<KvSeal> filled;
    for (int32_t s = 0; s < batch.sequences; ++s)
      for (int32_t b = batch.filled_blocks(s).begin; b < batch.filled_blocks(s).end; ++b)
        filled.push_back({batch.blocks_of(s)[b], batch.cold_blocks_of(s)[b]});
    expected.world().ops().kv_seal(expected.kv(), filled);

    SealArgs args{.kv = own.kv(), .kinds = kinds_of(shape)};
    args.certain = batch.certain;
    args.context = batch.context;
    args.hot_table = batch.block_table;
    args.cold_table = batch.cold_table;
    args.stride = batch.blocks_per_sequence;
    args.sequences = batch.sequences;
    auto scratch = std::make_unique<UnitScratch>();
    const int items = (batch.sequences + batch.tokens / kBlockTokens) * shape.kv_heads;
    EXPECT_GE(items, std::ssize(filled) * shape.kv_heads);
    for (int item = 0; item < items; ++item) {
      for (const bool value : {false, true}) {
        HostBlock<kUnitThreads> block(item % 3);
        seal_item(block, *scratch, args, item, value);
      }
    }
    for (int32_t s = 0; s < batch.sequences; ++s) {
      const int32_t blocks = batch.context[s] / kBlockTokens;
      EXPECT_EQ(own.units(batch, s, blocks), expected.units(batch, s, blocks))
          << name << " sequence " << s;
    }
  }
}

class Image {
 public:
  Image(const KvLayer& kv, const ColdShape& shape, const Batch& b, int order)
      : layer_(kv), batch_(b), bands_(most_bands(b.tokens, b.sequences, 0, 0, kMost)) {
    const int32_t stride = b.blocks_per_sequence;
    layer_.blocks = b.sequences * stride + most_extra_blocks(b.tokens, b.sequences);
    layer_.cold = {};
    for (auto* v :
         {&first_row_, &rows_, &certain_, &context_, &form_rows_, &exact_from_, &of_sequence_})
      v->resize(static_cast<size_t>(bands_));
    of_row_.resize(static_cast<size_t>(b.tokens));
    sealed_.resize(static_cast<size_t>(b.sequences) + 1);
    table_.assign(static_cast<size_t>(bands_ * (stride + 1)), -1);
    for (auto* pool : {&k_, &v_})
      pool->assign(static_cast<size_t>(layer_.blocks * layer_.shape.k_block_bytes()),
                   std::byte{0x7e});
    layer_.k = k_.data();
    layer_.v = v_.data();
    ImageArgs args{.kv = kv, .kinds = kinds_of(shape), .tail = shape.tail, .rows = rows_of(b)};
    args.bands = {first_row_.data(),   rows_.data(),
                  certain_.data(),     context_.data(),
                  form_rows_.data(),   exact_from_.data(),
                  of_sequence_.data(), of_row_.data(),
                  sealed_.data(),      bands_};
    args.hot_table = b.block_table;
    args.cold_table = b.cold_table;
    args.stride = stride;
    args.window = shape.window;
    args.k = layer_.k;
    args.v = layer_.v;
    args.table = table_.data();
    std::vector<SequenceBorders> borders(static_cast<size_t>(b.sequences));
    std::vector<int32_t> counts(static_cast<size_t>(3 * b.sequences));
    HostBlock<kBandThreads> planner(order);
    plan_bands(planner, args.rows, args.tail, stride, borders.data(), counts.data(), args.bands);
    auto scratch = std::make_unique<UnitRows>();
    constexpr int kBlocks = 3;
    for (int first = 0; first < kBlocks; ++first) {
      for (const bool value : {false, true}) {
        HostBlock<kUnitThreads> block(order);
        make_image(block, scratch.get(), args, first, kBlocks, value);
      }
    }
  }

  // Each band by itself: the rows that it stores.
  std::vector<float> attend(World& world, const ColdShape& shape, const std::vector<float>& q) {
    const Tensor queries = world.tensor(batch_.tokens, shape.width(), q);
    std::vector<float> all(q.size(), NAN);
    for (int32_t band = 0; band < bands_; ++band) {
      const auto i = static_cast<size_t>(band);
      std::vector<int32_t> only(rows_.size(), 0), sequence(of_row_.size(), -1);
      only[i] = rows_[i];
      std::fill_n(sequence.begin() + first_row_[i], rows_[i], band);
      Batch b = batch_;
      b.sequences = bands_;
      b.sequence = sequence.data();
      b.first_row = first_row_.data();
      b.rows = only.data();
      b.certain = certain_.data();
      b.context = context_.data();
      b.block_table = table_.data();
      b.blocks_per_sequence = batch_.blocks_per_sequence + 1;
      b.cold_table = nullptr;
      const Tensor o = world.tensor(batch_.tokens, shape.width());
      world.ops().attention(o, queries, {}, shape.params(), layer_, b);
      for (int32_t t = first_row_[i]; t < first_row_[i] + rows_[i]; ++t)
        if (of_row_[static_cast<size_t>(t)] == band)
          std::copy_n(o.f32(t), shape.width(), all.begin() + t * shape.width());
    }
    return all;
  }

 private:
  static constexpr int32_t kMost = 64;
  KvLayer layer_;
  Batch batch_;
  int32_t bands_;
  std::vector<int32_t> first_row_, rows_, certain_, context_, form_rows_, exact_from_, of_sequence_,
      of_row_;
  std::vector<int32_t> table_;
  std::vector<SealedSequence> sealed_;
  std::vector<std::byte> k_, v_;
};

TEST(SealedWork, AttentionOverTheImageIsThatOverUnits) {
  constexpr const char* kFormats[][2] = {{"q8_0", "q8_0"},  {"c4", "c4"},   {"tbq4_0", "tbq4_0"},
                                         {"f16", "tq3_0"},  {"q4_0", "c5"}, {"c5", "q5_1"},
                                         {"bf16", "tq3_0"}, {"q4_1", "f32"}};
  Random random(11);
  for (int round = 0; round < 48; ++round) {
    const auto& [k, v] = kFormats[round % 8];
    ColdShape shape{.heads = 2, .kv_heads = 2, .head_dim = 128, .k = codec_of(k), .v = codec_of(v)};
    shape.tail = {1 + round % 3, round / 3 % 3};
    shape.window = round % 5 == 4 ? 70 : 0;
    std::vector<SequencePlan> plans = {{63, 2}, {0, 3}, {95, 1, {-1, 0, 0, 1}}};
    for (SequencePlan& plan : random_plans(random, 4, 300, round % 4 == 0 ? 1 : 100, 20))
      plans.push_back(plan);
    ColdBatch rows(plans, random);
    ColdWorld world(reference_device(), shape, rows);
    world.fill(rows.batch(), random);
    world.seal(rows.batch());
    world.release(rows);
    const std::vector<float> q = random.normals(rows.tokens() * shape.width());
    const std::vector<float> expected = world.attend(rows.batch(), q);
    Image image(world.kv(), shape, rows.batch(), round % 3);
    expect_close(image.attend(world.world(), shape, q), expected, 3e-3, 3e-3,
                 fmt::format("round {} {} {} window {}", round, k, v, shape.window));
  }
}

}  // namespace
}  // namespace braid::cuda
