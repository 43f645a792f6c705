// model_drafter.cpp -- see model_drafter.h.
#include "engine/draft/model_drafter.h"

#include <algorithm>

namespace braid {
namespace {

// Rows of new tokens are sent in groups: enough to be worth it, or after a wait.
constexpr int32_t kWorthSending = 16;
constexpr int32_t kMostWaitedRounds = 16;
constexpr int32_t kMostSent = 1024;

}  // namespace

size_t ModelDrafter::bytes(const DrafterOptions& options) {
  return BatchArrays::bytes({options.sequences, options.sequences, 0}, options.depth,
                            options.block_table, 1) +
         bytes_of_numbers(options.depth * row_numbers(options.sequences, kGuessCandidates));
}

Status ModelDrafter::allocate(const DrafterOptions& options) {
  options_ = options;
  logits_ = options.logits.shaped(options.sequences, model_.draft_columns());
  if (model_.config().draft_vocabulary > 0)
    vocabulary_.emplace(static_cast<int32_t>(model_.draft_columns()),
                        static_cast<int32_t>(model_.config().vocabulary));
  reader_.set_options({options.trees, options.p_min, options.logits.cols});
  BRAID_CHECK(options.logits.rows >= options.sequences && options.depth > 0);
  BRAID_TRY(arrays_.allocate(device_, "drafts", {options.sequences, options.sequences, 0},
                             options.depth, options.block_table, 1));
  padded_ = options.sequences;
  width_ = guess_candidates(options.logits.cols);
  const size_t bytes = bytes_of_numbers(options.depth * row_numbers());
  BRAID_ASSIGN(guesses_, device_.allocate(bytes, "drafts"));
  chains_.reserve(static_cast<size_t>(options.sequences));
  batches_.reserve(static_cast<size_t>(options.depth));
  if (device_.traits().host_visible) return {};
  BRAID_ASSIGN(guesses_on_host_, device_.allocate_host(bytes, "drafts"));
  return {};
}

void ModelDrafter::propose(StepPlan& plan, int32_t budget) {
  choose(plan, budget);
  if (chains_.empty()) return;
  if (vocabulary_) follow_texts();
  fill();
  if (run()) take_guesses();
}

void ModelDrafter::choose(StepPlan& plan, int32_t budget) {
  chains_.clear();
  bool drawn = false;
  for (StepItem& item : plan.items) {
    Sequence& s = *item.sequence;
    const auto known = static_cast<int32_t>(s.tokens.size());
    const int32_t depth =
        std::min({item.draft_depth, options_.depth, scheduler_.most_tokens() - known - 1});
    const int32_t most =
        std::min({item.draft_count, budget, options_.trees ? item.draft_count : depth});
    const int32_t rows = std::min(depth, most);
    if (rows <= 0 || !item.may_run_model || !scheduler_.grow(s, known + rows)) continue;
    item.model_ran = true;
    budget -= most;
    chains_.push_back({&item, rows, most});
    drawn = drawn || s.sampler.params().temperature > 0;
  }
  std::stable_sort(chains_.begin(), chains_.end(),
                   [](const Chain& a, const Chain& b) { return a.depth > b.depth; });
  depth_ = chains_.empty() ? 0 : chains_[0].depth;
  mode_ = drawn ? Mode::drawn : options_.trees ? Mode::trees : Mode::chains;
  width_ = mode_ == Mode::chains ? 0 : guess_candidates(logits_.cols);
}

void ModelDrafter::follow_texts() {
  for (const Chain& chain : chains_) {
    Sequence& s = *chain.item->sequence;
    const size_t seen = std::min(static_cast<size_t>(s.seen_tokens), s.tokens.size());
    vocabulary_->see(std::span(s.tokens).subspan(seen));
    s.seen_tokens = static_cast<int32_t>(s.tokens.size());
  }
  ++waited_rounds_;
  if (vocabulary_->changes() == 0) return;
  if (vocabulary_->changes() < kWorthSending && waited_rounds_ < kMostWaitedRounds) return;
  waited_rounds_ = 0;
  model_.change_draft_rows(vocabulary_->take_changes(kMostSent));
}

void ModelDrafter::fill() {
  const auto count = static_cast<int32_t>(chains_.size());
  const bool pads = device_.traits().records;
  padded_ = pads ? std::min(row_bucket(count), options_.sequences) : count;
  arrays_.begin({padded_, padded_, 0}, depth_);
  for (int32_t i = 0; i < count; ++i) {
    const Chain& chain = chains_[static_cast<size_t>(i)];
    const Sequence& s = *chain.item->sequence;
    arrays_.set_blocks(i, s);
    for (int32_t row = 0; row < chain.depth; ++row) {
      const int32_t at = s.computed_tokens + row;
      arrays_.add_sequence(row, s.slot, 1, at + 1);
      arrays_.add_row(row, {row == 0 ? s.tokens.back() : -1, at, at});
    }
  }
  // Without padding only the chains that are deep enough have a row.
  batches_.clear();
  for (int32_t row = 0; row < depth_; ++row) {
    Batch& b = batches_.emplace_back(arrays_.finish(row, pads));
    b.most_rows = b.most_certain = 1;
    if (row > 0 && mode_ != Mode::drawn)
      b.token = reinterpret_cast<const int32_t*>(numbers(row - 1));
  }
}

// False: the device has failed, and so will the step.
bool ModelDrafter::run() {
  arrays_.send_tables();
  const uint64_t shape = static_cast<uint64_t>(mode_) << 56 | static_cast<uint64_t>(depth_) << 32 |
                         static_cast<uint64_t>(padded_);
  if (mode_ != Mode::drawn) return run_recorded(shape, 0, depth_);
  for (int32_t row = 0; row < depth_; ++row) {
    if (!run_recorded(shape | static_cast<uint64_t>(row) << 46, row, row + 1)) return false;
    if (row + 1 < depth_) choose_tokens(row);
  }
  return true;
}

bool ModelDrafter::run_recorded(uint64_t shape, int32_t first, int32_t end) {
  if (!records_.queue(Records::Work::head, shape, [&] { enqueue(first, end); }).ok()) return false;
  if (options_.wait) options_.wait();
  device_.synchronize();
  return device_.health().ok();
}

// Recorded as one CUDA graph.
void ModelDrafter::enqueue(int32_t first, int32_t end) {
  if (first == 0) {
    arrays_.upload();
  } else {
    arrays_.upload_tokens(first);
  }
  for (int32_t row = first; row < end; ++row) enqueue_row(row);
  if (!arrays_.is_sent()) return;
  auto* on_host = static_cast<float*>(guesses_on_host_.data());
  device_.to_host(on_host + first * row_numbers(), numbers(first),
                  bytes_of_numbers((end - first) * row_numbers()));
}

void ModelDrafter::enqueue_row(int32_t row) {
  const Batch& batch = batches_[static_cast<size_t>(row)];
  const Tensor logits = logits_.top(batch.tokens);
  model_.draft(logits, batch, cache_.memory(), row == 0);
  const auto columns = [&](int64_t first, DType type, int32_t width) {
    return Tensor{numbers(row) + first, type, batch.tokens, width, width};
  };
  const Tensor log_sums = columns(2 * padded_, DType::f32, 1);
  if (mode_ != Mode::drawn)  // tokens of the next row
    device_.ops().top_k(columns(padded_, DType::f32, 1), columns(0, DType::i32, 1), log_sums,
                        logits, model_.draft_token_of());
  if (width_ == 0) return;
  const int64_t candidates = int64_t{padded_} * width_;
  device_.ops().top_k(columns(3 * padded_ + candidates, DType::f32, width_),
                      columns(3 * padded_, DType::i32, width_), log_sums, logits,
                      model_.draft_token_of());
}

void ModelDrafter::set_row(size_t i, int32_t row) {
  const auto* base =
      static_cast<const float*>(arrays_.is_sent() ? guesses_on_host_.data() : guesses_.data()) +
      row * row_numbers();
  const bool best_alone = width_ == 0;
  const size_t width = best_alone ? 1 : static_cast<size_t>(width_);
  const float* ids = best_alone ? base + i : base + 3 * padded_ + i * width;
  const float* logits = ids + (best_alone ? int64_t{padded_} : int64_t{padded_} * width_);
  reader_.set_row(row, 0,
                  {.tokens = {reinterpret_cast<const int32_t*>(ids), width},
                   .logits = {logits, width},
                   .log_sum = base + 2 * padded_ + static_cast<int64_t>(i)});
}

void ModelDrafter::choose_tokens(int32_t row) {
  int32_t* next = arrays_.host(row + 1, BatchArrays::token);
  for (size_t i = 0; i < chains_.size() && chains_[i].depth > row + 1; ++i) {
    reader_.begin(*chains_[i].item->sequence, LatticeKind::chain, row + 1, std::max(width_, 1));
    set_row(i, row);
    next[i] = std::max(reader_.choose(row), 0);  // -1: the chain has ended
  }
}

void ModelDrafter::take_guesses() {
  for (size_t i = 0; i < chains_.size(); ++i) {
    const Chain& chain = chains_[i];
    reader_.begin(*chain.item->sequence, LatticeKind::chain, chain.depth, std::max(width_, 1));
    for (int32_t row = 0; row < chain.depth; ++row) {
      set_row(i, row);
      if (reader_.choose(row) < 0) break;
    }
    reader_.read(*chain.item, chain.most);
  }
}

}  // namespace braid
