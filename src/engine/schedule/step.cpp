// step.cpp -- see step.h.
#include "engine/schedule/step.h"

#include <algorithm>

#include <boost/container/small_vector.hpp>

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

// Larger steps gain nothing: the device works longer than the host takes to queue them.
constexpr int32_t kMostRecordedRows = 256;

}  // namespace

Status StepRunner::allocate(const Sizes& sizes) {
  sizes_ = sizes;
  // With room for a part of the sequence (StepBatch::part). Without a threshold: which blocks the
  // parts of a chunk choose would depend on where it is paused.
  if (sizes.interleaved_tokens > 0)
    BRAID_TRY(interleaved_.allocate(devices_.all(), sizes.interleaved_tokens, 2, sizes.block_table,
                                    sizes.kv_groups, 0));
  for (int32_t slot = 0; slot < sizes.slots; ++slot)
    BRAID_TRY(whole_.emplace_back().allocate(devices_.all(), sizes.rows, sizes.sequences,
                                             sizes.block_table, sizes.kv_groups,
                                             sizes.sparse_threshold));
  return {};
}

void StepRunner::enqueue(int32_t stage, const Batch& batch, int32_t slot) {
  for (int32_t rank = 0; rank < devices_.ranks(); ++rank)
    whole_[static_cast<size_t>(slot)].upload(devices_.index(stage, rank));
  model_.forward_stage(stage, batch, cache_.memories(), slot);
  if (stage + 1 == devices_.stages()) outputs_.queue();
}

// None: do not record the step.
std::optional<StepBatch::Padding> StepRunner::padding_of(const StepPlan& plan) const {
  const int32_t rows = plan.rows();
  if (!devices_.traits().records || !outputs_.finds_best() || rows > kMostRecordedRows ||
      model_.observed())
    return std::nullopt;
  int32_t most_rows = 1;
  for (const StepItem& item : plan.items) most_rows = std::max(most_rows, item.rows());
  StepBatch::Padding padding;
  padding.sequences =
      std::min(row_bucket(static_cast<int32_t>(plan.items.size())), sizes_.sequences);
  padding.rows = padding.sequences;
  padding.most_rows = 1;
  if (most_rows > 1) {
    padding.rows = std::min(row_bucket(rows), sizes_.rows);
    if (rows <= outputs_.most_rows()) padding.rows = std::min(padding.rows, outputs_.most_rows());
    padding.most_rows = std::min(power_of_two_from(most_rows), sizes_.decoding_rows);
  }
  return padding;
}

Status StepRunner::queue(Step& step) {
  const bool decodes = StepBatch::decodes(step.plan);
  StepBatch& arrays = whole_[static_cast<size_t>(step.slot)];
  if (decodes) outputs_.begin(step.plan, step.plan.rows(), step.slot);
  const auto padding = decodes ? padding_of(step.plan) : std::nullopt;
  Batch& batch = step.batch;
  batch = arrays.fill(step.plan, padding, model_.next_turn());
  step.unpadded = arrays.unpadded(batch);
  if (!decodes) outputs_.begin(step.plan, batch.outputs, step.slot);
  outputs_.lay_out(batch.outputs);
  arrays.send_tables();
  uint64_t shape = 0;
  if (padding) {
    const bool few_cells = batch.most_uncertain > 0 && batch.most_cells > 0;
    shape = static_cast<uint64_t>(padding->sequences) | static_cast<uint64_t>(step.slot) << 16 |
            static_cast<uint64_t>(padding->rows) << 20 |
            static_cast<uint64_t>(padding->most_rows) << 40 |
            static_cast<uint64_t>(few_cells) << 60;
  }
  for (int32_t stage = 0; stage < devices_.stages(); ++stage) {
    const Batch& own = step.batch_for(devices_.at(devices_.index(stage, 0)));
    if (padding) {
      BRAID_TRY(records_[static_cast<size_t>(stage)].queue(
          Records::Work::step, shape, [&] { enqueue(stage, own, step.slot); }));
    } else {
      enqueue(stage, own, step.slot);
    }
    model_.hand_off(stage, batch.tokens, step.unpadded.tokens);
  }
  step.end = devices_.fence();
  return {};
}

// Allows parts while they are expected to fit the slice, and measures them.
class StepRunner::SlicePacing final : public StepPacing {
 public:
  SlicePacing(StepRunner& runner, Step& step, const Slice& slice, Pacer& pacer)
      : runner_(runner), step_(step), slice_(slice), pacer_(pacer) {}

  bool splits_attention() const override { return true; }

  bool may_run(StepPart part) override { return allow(part, step_.batch.tokens); }

  Batch attention_rows(int32_t first_row) override {
    const int32_t left = step_.batch.tokens - first_row;
    const int32_t rows =
        slice_.others_decode
            ? pacer_.attention_rows(position(), slice_.ms - ms_since(slice_.begin), left)
            : left;
    if (!allow(StepPart::attention_rows, rows)) return {};
    boost::container::small_vector<int32_t, 8> devices;
    for (int32_t rank = 0; rank < runner_.devices_.ranks(); ++rank)
      devices.push_back(runner_.devices_.index(step_.at.stage, rank));
    return runner_.interleaved_.part(step_.batch, first_row, rows,
                                     {devices.data(), devices.size()});
  }

  void queued() override {
    slice_.while_working();
    runner_.devices_.synchronize();
    works_ = runner_.devices_.health().ok();
    if (!works_) return;
    pacer_.observe_part(part_, rows_, part_position_, ms_since(slice_.begin) - spent_ms_);
    *slice_.disturbed = true;
  }

 private:
  int32_t position() const { return step_.plan.items[0].sequence->computed_tokens + step_.at.row; }

  bool allow(StepPart part, int32_t rows) {
    if (!works_) return false;
    spent_ms_ = ms_since(slice_.begin);
    if (*slice_.disturbed && spent_ms_ + pacer_.part_ms(part, rows, position()) > slice_.ms)
      return false;
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
  StepPart part_ = StepPart::embedding;
  int32_t rows_ = 0;
  int32_t part_position_ = 0;
  double spent_ms_ = 0;  // before it
};

void StepRunner::begin_interleaved(Step& step) {
  step.batch = step.unpadded = interleaved_.fill(step.plan, {}, model_.next_turn());
  step.at = {};
  interleaved_.send_tables();
  for (int32_t device = 0; device < devices_.count(); ++device) interleaved_.upload(device);
}

bool StepRunner::advance(Step& step, const Slice& slice, Pacer& pacer) {
  SlicePacing pacing(*this, step, slice, pacer);
  if (!model_.forward_interleaved(step.at, step.batch, cache_.memories(), pacing)) return false;
  outputs_.begin(step.plan, step.batch.outputs, Model::kInterleavedSlot);
  outputs_.lay_out(step.batch.outputs);
  outputs_.queue();
  devices_.synchronize();
  return devices_.health().ok();
}

}  // namespace braid
