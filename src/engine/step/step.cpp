// step.cpp -- see step.h.
#include "engine/step/step.h"

#include <algorithm>

namespace braid {
namespace {

double ms_since(Clock::time_point from) {
  return std::chrono::duration<double, std::milli>(Clock::now() - from).count();
}

int32_t power_of_two_from(int32_t count) {
  int32_t power = 1;
  while (power < count) power *= 2;
  return power;
}

// Steps of more rows gain nothing: the device works longer than the host takes to queue them.
constexpr int32_t kMostRecordedRows = 256;
// A record takes memory of the host and the driver. Whoever drafts has some lengths at some numbers of
// sequences; when there are more, they are made anew.
constexpr size_t kMostRecords = 128;

}  // namespace

Status StepRunner::allocate(const Sizes& sizes) {
  sizes_ = sizes;
  // Beside the one sequence there is room for a part of it (StepBatch::part).
  if (sizes.interleaved_tokens > 0)
    BRAID_TRY(
        interleaved_.allocate(device_, sizes.interleaved_tokens, 2, sizes.block_table, sizes.kv_groups));
  return whole_.allocate(device_, sizes.rows, sizes.sequences, sizes.block_table, sizes.kv_groups);
}

void StepRunner::enqueue(const Batch& batch) {
  whole_.upload(batch);
  model_.forward(batch, cache_.memory());
  if (outputs_.finds_best()) outputs_.queue_best(batch);
}

Status StepRunner::queue(Step& step) {
  Batch& batch = step.batch;
  batch = whole_.fill(step.plan);
  outputs_.begin(step.plan, batch);
  if (!outputs_.finds_best() || !whole_.decodes() || batch.tokens > kMostRecordedRows || model_.observed()) {
    enqueue(batch);
    return {};
  }
  const int32_t sequences = std::min(row_bucket(batch.sequences), sizes_.sequences);
  const bool drafts = batch.most_uncertain > 0;
  const int32_t rows =
      drafts ? std::min({row_bucket(batch.tokens), sizes_.rows, outputs_.most_rows()}) : sequences;
  whole_.pad(batch, sequences, rows,
             drafts ? std::min(power_of_two_from(batch.most_rows), sizes_.decoding_rows) : 1);
  const uint64_t key = static_cast<uint64_t>(sequences) | static_cast<uint64_t>(rows) << 20 |
                       static_cast<uint64_t>(batch.most_rows) << 40 |
                       static_cast<uint64_t>(drafts && batch.most_cells > 0) << 60;
  if (!device_.has_record(key) && !warmed_up_.insert(key).second) {
    if (records_ == kMostRecords) {
      device_.forget_records();
      records_ = 0;
    }
    if (device_.begin_record()) {
      enqueue(batch);
      BRAID_TRY(device_.end_record(key));
      ++records_;
    }
  }
  if (device_.has_record(key)) {
    device_.replay(key);
  } else {
    enqueue(batch);
  }
  return {};
}

// Allows parts of a step as long as they fit the slice by what the pacer knows, and tells it what they took.
class StepRunner::SlicePacing final : public StepPacing {
 public:
  SlicePacing(StepRunner& runner, Step& step, const Slice& slice, Pacer& pacer)
      : runner_(runner), step_(step), slice_(slice), pacer_(pacer) {}

  bool splits_attention() const override { return true; }

  bool may_run(StepPart part) override { return allow(part, step_.batch.tokens); }

  Batch attention_rows(int32_t first_row) override {
    const int32_t left = step_.batch.tokens - first_row;
    const int32_t rows = slice_.others_decode
                             ? pacer_.attention_rows(position(), slice_.ms - ms_since(slice_.begin), left)
                             : left;
    if (!allow(StepPart::attention_rows, rows)) return {};
    return runner_.interleaved_.part(step_.batch, first_row, rows);
  }

  void queued() override {
    slice_.while_working();
    runner_.device_.synchronize();
    works_ = runner_.device_.health().ok();
    if (!works_) return;
    pacer_.observe_part(part_, rows_, part_position_, ms_since(slice_.begin) - spent_ms_);
    *slice_.disturbed = true;
  }

 private:
  int32_t position() const { return step_.plan.items[0].sequence->computed_tokens + step_.at.row; }

  bool allow(StepPart part, int32_t rows) {
    if (!works_) return false;
    spent_ms_ = ms_since(slice_.begin);
    if (*slice_.disturbed && spent_ms_ + pacer_.part_ms(part, rows, position()) > slice_.ms) return false;
    part_ = part;
    rows_ = rows;
    part_position_ = position();
    return true;
  }

  StepRunner& runner_;
  Step& step_;
  const Slice& slice_;
  Pacer& pacer_;
  bool works_ = true;
  // The part that was allowed last.
  StepPart part_ = StepPart::embedding;
  int32_t rows_ = 0;
  int32_t part_position_ = 0;
  double spent_ms_ = 0;  // before it
};

void StepRunner::begin_interleaved(Step& step) {
  step.batch = interleaved_.fill(step.plan);
  step.at = {};
  interleaved_.upload(step.batch);
}

bool StepRunner::advance(Step& step, const Slice& slice, Pacer& pacer) {
  SlicePacing pacing(*this, step, slice, pacer);
  if (!model_.forward_interleaved(step.at, step.batch, cache_.memory(), pacing)) return false;
  outputs_.begin(step.plan, step.batch);
  if (outputs_.finds_best()) outputs_.queue_best(step.batch);
  device_.synchronize();
  return device_.health().ok();
}

}  // namespace braid
