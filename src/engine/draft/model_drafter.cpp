// model_drafter.cpp -- see model_drafter.h.
#include "engine/draft/model_drafter.h"

#include <algorithm>
#include <cmath>

namespace braid {
namespace {

constexpr int kNumbers = 3;  // of a guess: id, logit, log of the sum

}  // namespace

Status ModelDrafter::allocate(const DrafterOptions& options) {
  options_ = options;
  BRAID_CHECK(options.logits.rows >= options.sequences && options.max_drafts > 0);
  const int64_t guesses = int64_t{options.sequences} * options.max_drafts;
  const int64_t arrays = guesses * kArrays + int64_t{options.sequences} * (1 + options.block_table);
  const auto bytes_of = [](int64_t count) { return static_cast<size_t>(count) * sizeof(int32_t); };
  BRAID_ASSIGN(host_, device_.allocate_host(bytes_of(arrays), "drafts"));
  BRAID_ASSIGN(guesses_, device_.allocate(bytes_of(guesses * kNumbers), "drafts"));
  chains_.reserve(static_cast<size_t>(options.sequences));
  if (device_.computes_in_host_memory()) return {};
  BRAID_ASSIGN(memory_, device_.allocate(bytes_of(arrays), "drafts"));
  BRAID_ASSIGN(guesses_on_host_, device_.allocate_host(bytes_of(guesses * kNumbers), "drafts"));
  return {};
}

void ModelDrafter::propose(StepPlan& plan, int32_t budget) {
  choose(plan, budget);
  if (chains_.empty()) return;
  fill();
  if (!run().ok()) return;  // the step will fail as this did
  if (options_.wait) options_.wait();
  device_.synchronize();
  if (device_.health().ok()) take_guesses();
}

// Who may be drafted for, as far as there are cells.
void ModelDrafter::choose(StepPlan& plan, int32_t budget) {
  chains_.clear();
  for (StepItem& item : plan.items) {
    Sequence& s = *item.sequence;
    const auto known = static_cast<int32_t>(s.tokens.size());
    const int32_t length = std::min({item.draft_depth, budget, scheduler_.most_tokens() - known - 1});
    if (length <= 0 || !scheduler_.grow(s, known + length)) continue;
    budget -= length;
    chains_.push_back({&item, length});
  }
  std::stable_sort(chains_.begin(), chains_.end(),
                   [](const Chain& a, const Chain& b) { return a.length > b.length; });
  length_ = chains_.empty() ? 0 : chains_[0].length;
}

void ModelDrafter::fill() {
  const auto count = static_cast<int32_t>(chains_.size());
  const bool records = memory_.data() != nullptr;
  padded_ = records ? std::min(row_bucket(count), options_.sequences) : count;
  int32_t* tokens = host(length_, position);  // behind the arrays
  int32_t* tables = tokens + padded_;
  for (int32_t i = 0; i < padded_; ++i) {
    const Sequence* s = i < count ? chains_[static_cast<size_t>(i)].item->sequence : nullptr;
    for (int32_t row = 0; row < length_; ++row) {
      const bool there = s != nullptr && row < chains_[static_cast<size_t>(i)].length;
      const int32_t at = there ? s->computed_tokens + row : 0;
      host(row, position)[i] = at;
      host(row, cell)[i] = there ? at : -1;
      host(row, sequence)[i] = there ? i : -1;
      host(row, parent)[i] = -1;
      host(row, first_row)[i] = there ? i : 0;
      host(row, rows)[i] = host(row, certain)[i] = there ? 1 : 0;
      host(row, context)[i] = there ? at + 1 : 0;
      host(row, slot)[i] = there ? s->slot : 0;
    }
    tokens[i] = s != nullptr ? s->tokens.back() : -1;
    int32_t* table = tables + int64_t{i} * options_.block_table;
    if (s == nullptr) {
      std::fill_n(table, options_.block_table, 0);
    } else {
      std::copy(s->blocks[0].begin(), s->blocks[0].end(), table);
    }
  }
}

// Without padding only the chains that are long enough have a row.
Batch ModelDrafter::batch_of(int32_t row) const {
  const bool pads = memory_.data() != nullptr;
  const auto* base = static_cast<const int32_t*>(pads ? memory_.data() : host_.data());
  const auto array = [&](Array a) { return base + (int64_t{row} * kArrays + a) * padded_; };
  const auto long_enough =
      std::count_if(chains_.begin(), chains_.end(), [&](const Chain& chain) { return chain.length > row; });
  const int32_t* tokens = base + int64_t{length_} * kArrays * padded_;
  Batch b;
  b.tokens = b.sequences = pads ? padded_ : static_cast<int32_t>(long_enough);
  b.most_rows = b.most_certain = 1;
  b.token = row == 0 ? tokens
                     : static_cast<const int32_t*>(guesses_.data()) + int64_t{row - 1} * kNumbers * padded_;
  b.position = array(position);
  b.cell = array(cell);
  b.sequence = array(sequence);
  b.parent = array(parent);
  b.first_row = array(first_row);
  b.rows = array(rows);
  b.certain = array(certain);
  b.context = array(context);
  b.slot = array(slot);
  b.block_table = tokens + padded_;
  b.blocks_per_sequence = options_.block_table;
  return b;
}

// From the upload to the guesses: what is recorded.
void ModelDrafter::enqueue() {
  const int64_t used = int64_t{length_} * kArrays * padded_ + int64_t{padded_} * (1 + options_.block_table);
  if (memory_.data() != nullptr)
    device_.to_device(memory_.data(), host_.data(), static_cast<size_t>(used) * sizeof(int32_t));
  for (int32_t row = 0; row < length_; ++row) {
    const Batch batch = batch_of(row);
    const Tensor logits = options_.logits.top(batch.tokens);
    model_.draft(logits, batch, cache_.memory(), row == 0);
    auto* numbers = static_cast<float*>(guesses_.data()) + int64_t{row} * kNumbers * padded_;
    const auto column = [&](int which, DType type) {
      return Tensor{numbers + int64_t{which} * padded_, type, batch.tokens, 1, 1};
    };
    device_.ops().top_k(column(1, DType::f32), column(0, DType::i32), column(2, DType::f32), logits);
  }
  if (memory_.data() != nullptr)
    device_.to_host(guesses_on_host_.data(), guesses_.data(),
                    static_cast<size_t>(int64_t{length_} * kNumbers * padded_) * sizeof(float));
}

// Recorded the second time, as steps are (step/step.h), whose keys leave the highest bit free.
Status ModelDrafter::run() {
  const uint64_t key =
      uint64_t{1} << 63 | static_cast<uint64_t>(length_) << 32 | static_cast<uint64_t>(padded_);
  if (memory_.data() != nullptr && !device_.has_record(key) && !warmed_up_.insert(key).second &&
      device_.begin_record()) {
    enqueue();
    BRAID_TRY(device_.end_record(key));
  }
  if (device_.has_record(key)) {
    device_.replay(key);
  } else {
    enqueue();
  }
  return {};
}

void ModelDrafter::take_guesses() {
  const void* base = memory_.data() != nullptr ? guesses_on_host_.data() : guesses_.data();
  const int64_t vocabulary = options_.logits.cols;
  for (size_t i = 0; i < chains_.size(); ++i) {
    std::vector<Draft>& drafts = chains_[i].item->drafts;
    for (int32_t row = 0; row < chains_[i].length; ++row) {
      const int64_t at = int64_t{row} * kNumbers * padded_ + static_cast<int64_t>(i);
      const int32_t id = static_cast<const int32_t*>(base)[at];
      const auto* numbers = static_cast<const float*>(base) + at;
      const float log_q = numbers[padded_] - numbers[2 * padded_];
      // No numbers come from hidden rows that are none, whose sequence the step will end.
      if (id < 0 || id >= vocabulary || !std::isfinite(log_q) || log_q < std::log(options_.p_min)) break;
      drafts.push_back({id, row - 1, log_q});
    }
  }
}

}  // namespace braid
