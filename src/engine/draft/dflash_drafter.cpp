// dflash_drafter.cpp -- see dflash_drafter.h.
#include "engine/draft/dflash_drafter.h"

#include <algorithm>
#include <cmath>

namespace braid {
BatchArrays::Sizes DflashDrafter::most(const Dflash& dflash, const DrafterOptions& options) {
  const int32_t sequences = std::min(options.sequences, kMostTogether);
  const int32_t guesses = std::min(options.depth, dflash.config().guesses());
  return {sequences * dflash.config().block, sequences, sequences * guesses};
}

size_t DflashDrafter::bytes(const Dflash& dflash, const DrafterOptions& options) {
  const BatchArrays::Sizes sizes = most(dflash, options);
  const int32_t width = dflash.has_pairs() ? dflash.config().candidates : kGuessCandidates;
  return BatchArrays::bytes(sizes, 1, options.block_table, 1) +
         bytes_of_numbers(numbers(dflash, width, sizes.outputs));
}

Status DflashDrafter::allocate(const DrafterOptions& options) {
  options_ = options;
  reader_.set_options({options.trees, options.p_min, options.logits.cols});
  block_ = dflash_.config().block;
  guesses_ = std::min(options.depth, dflash_.config().guesses());
  width_ =
      dflash_.has_pairs() ? dflash_.config().candidates : guess_candidates(dflash_.head_tokens());
  tokens_.resize(static_cast<size_t>(width_));
  const BatchArrays::Sizes sizes = most(dflash_, options);
  BRAID_CHECK(guesses_ > 0 && options.logits.rows >= sizes.outputs);
  BRAID_TRY(arrays_.allocate(device_, "draft blocks", sizes, 1, options.block_table, 1));
  const size_t number_bytes = bytes_of_numbers(numbers(sizes.outputs));
  BRAID_ASSIGN(numbers_, device_.allocate(number_bytes, "draft blocks"));
  blocks_.reserve(static_cast<size_t>(options.sequences));
  if (device_.traits().host_visible) return {};
  BRAID_ASSIGN(numbers_on_host_, device_.allocate_host(number_bytes, "draft blocks"));
  return {};
}

void DflashDrafter::propose(StepPlan& plan, int32_t budget) {
  choose(plan, budget);
  for (std::span<const Block> left = blocks_; !left.empty();) {
    const auto round = left.first(std::min<size_t>(left.size(), kMostTogether));
    if (!run(round)) return;
    left = left.subspan(round.size());
  }
}

void DflashDrafter::choose(StepPlan& plan, int32_t budget) {
  blocks_.clear();
  for (StepItem& item : plan.items) {
    Sequence& s = *item.sequence;
    const auto known = static_cast<int32_t>(s.tokens.size());
    const int32_t depth =
        std::min({item.draft_depth, guesses_, scheduler_.most_tokens() - known - 1});
    const int32_t most =
        std::min({item.draft_count, budget, options_.trees ? item.draft_count : depth});
    const int32_t cells = s.computed_tokens + block_;
    if (depth <= 0 || most <= 0 || !item.may_run_model ||
        cells > options_.block_table * kBlockTokens || !scheduler_.grow(s, cells))
      continue;
    item.model_ran = true;
    budget -= most;
    blocks_.push_back({&item, depth, most});
  }
}

void DflashDrafter::fill(std::span<const Block> round) {
  const auto count = static_cast<int32_t>(round.size());
  const bool pads = device_.traits().records;
  padded_ = pads ? std::min({row_bucket(count), options_.sequences, kMostTogether}) : count;
  wanted_ = pads ? guesses_ : 0;  // a CUDA graph has one shape
  for (const Block& block : round) wanted_ = std::max(wanted_, block.depth);
  arrays_.begin({padded_ * block_, padded_, padded_ * wanted_});
  const int32_t first = dflash_.config().first_guess();
  for (int32_t i = 0; i < count; ++i) {
    const Sequence& s = *round[static_cast<size_t>(i)].item->sequence;
    const int32_t start = s.computed_tokens;
    arrays_.set_blocks(i, s);
    arrays_.add_sequence(0, s.slot, block_, start + block_);
    for (int32_t j = 0; j < block_; ++j) {
      const int32_t token = j == 0 ? s.tokens.back() : dflash_.config().mask_token;
      arrays_.add_row(0, {token, start + j, start + j, -1, start + block_ - 1});
      if (j >= first && j < first + wanted_) arrays_.add_output(0);
    }
  }
  batch_ = arrays_.finish(0, pads);
  batch_.most_rows = batch_.most_certain = block_;
}

int64_t DflashDrafter::numbers(const Dflash& dflash, int32_t width, int64_t guesses) {
  const int64_t pairs = dflash.has_pairs() ? int64_t{width} * width : 0;
  return guesses * (2 * int64_t{width} + 1 + pairs + (dflash.has_confidence() ? width : 0));
}

Dflash::Guesses DflashDrafter::guesses_at(void* numbers, int64_t guesses) const {
  auto* at = static_cast<float*>(numbers);
  const auto take = [&](int64_t cols, DType type = DType::f32) {
    const Tensor t{at, type, guesses, cols, cols};
    at += guesses * cols;
    return t;
  };
  Dflash::Guesses g;
  g.ids = take(width_, DType::i32);
  g.values = take(width_);
  g.log_sums = take(1);
  if (dflash_.has_pairs()) g.scores = take(int64_t{width_} * width_);
  if (dflash_.has_confidence()) g.confidence = take(width_);
  return g;
}

// Recorded as one CUDA graph.
void DflashDrafter::enqueue() {
  arrays_.upload();
  const Batch& b = batch_;
  dflash_.forward(b, arrays_.on_device(0, BatchArrays::last_position), cache_.memory());
  const Tensor logits = options_.logits.top(b.outputs).columns(0, dflash_.head_tokens());
  dflash_.logits(logits, 0, b.outputs);
  dflash_.guess(guesses_at(numbers_.data(), b.outputs), logits, b);
  if (arrays_.is_sent())
    device_.to_host(numbers_on_host_.data(), numbers_.data(), bytes_of_numbers(numbers(b.outputs)));
}

// False: the device has failed, and so will the step.
bool DflashDrafter::run(std::span<const Block> round) {
  fill(round);
  arrays_.send_tables();
  const auto shape = static_cast<uint64_t>(padded_);
  if (!records_.queue(Records::Work::draft_blocks, shape, [this] { enqueue(); }).ok()) return false;
  if (options_.wait) options_.wait();
  device_.synchronize();
  if (!device_.health().ok()) return false;
  take(round);
  return true;
}

void DflashDrafter::take(std::span<const Block> round) {
  for (size_t i = 0; i < round.size(); ++i) take(round[i], static_cast<int64_t>(i) * wanted_);
}

// `first`: the block's first guess. With pairs a guess has scores per candidate of the one before.
void DflashDrafter::take(const Block& block, int64_t first) {
  const Buffer& numbers = arrays_.is_sent() ? numbers_on_host_ : numbers_;
  const Dflash::Guesses g = guesses_at(numbers.data(), int64_t{padded_} * wanted_);
  const bool pairs = dflash_.has_pairs();
  const auto width = static_cast<size_t>(width_);
  reader_.begin(*block.item->sequence, pairs ? LatticeKind::conditional : LatticeKind::independent,
                block.depth, width_);
  for (int32_t d = 0; d < block.depth; ++d) {
    const int64_t guess = first + d;
    const auto* ids = static_cast<const int32_t*>(g.ids.data) + guess * g.ids.stride;
    for (size_t c = 0; c < width; ++c)
      tokens_[c] = ids[c] >= 0 && ids[c] < dflash_.head_tokens() ? dflash_.token(ids[c]) : -1;
    for (int32_t parent = 0; parent < (pairs && d > 0 ? width_ : 1); ++parent) {
      const float acceptance =
          dflash_.has_confidence() ? dflash_.acceptance(g.confidence.f32(guess)[parent]) : 0;
      LatticeReader::Row row;
      row.tokens = tokens_;
      row.logits = {pairs ? g.scores.f32(guess) + int64_t{parent} * width_ : g.values.f32(guess),
                    width};
      row.log_sum = pairs ? nullptr : g.log_sums.f32(guess);
      row.acceptance = dflash_.has_confidence() ? &acceptance : nullptr;
      reader_.set_row(d, parent, row);
    }
  }
  reader_.read(*block.item, block.most);
}

}  // namespace braid
