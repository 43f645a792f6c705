// step_outputs.cpp -- see step_outputs.h.
#include "engine/schedule/step_outputs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace braid {
namespace {

constexpr int32_t kBestLogits = 64;                    // per row, enough for nearly every sampler
constexpr int32_t kRowsOnHost = 8;                     // whole rows at once
constexpr uint64_t kLogitsBytes = uint64_t{16} << 20;  // rows scored at once, but always a few
// For decoding rows; kAlwaysTogether rows share one read of the output matrix.
constexpr uint64_t kMostLogitsBytes = uint64_t{256} << 20;
constexpr int32_t kAlwaysTogether = 256;
// Rows of long drafts computed at once; more would take longer than reading the matrix.
constexpr int32_t kFewAtOnce = 8;

// Counts infinity and NaN.
bool all_finite(const void* values, DType type, int64_t count) {
  int64_t bad = 0;
  if (type == DType::f32) {
    const auto* bits = static_cast<const uint32_t*>(values);
    for (int64_t i = 0; i < count; ++i) bad += (bits[i] & 0x7f800000u) == 0x7f800000u ? 1 : 0;
  } else {
    const uint16_t exponent = type == DType::f16 ? 0x7c00 : 0x7f80;
    const auto* bits = static_cast<const uint16_t*>(values);
    for (int64_t i = 0; i < count; ++i) bad += (bits[i] & exponent) == exponent ? 1 : 0;
  }
  return bad == 0;
}

}  // namespace

int32_t StepOutputs::rows_for(int32_t sequences, int32_t decoding_rows, int32_t max_rows,
                              int64_t vocabulary) {
  const auto holds = [&](uint64_t bytes) {
    return static_cast<int32_t>(
        std::min<uint64_t>(bytes / (static_cast<uint64_t>(vocabulary) * sizeof(float)), 1 << 20));
  };
  const int32_t together = std::max(kAlwaysTogether, holds(kMostLogitsBytes));
  return std::max(
      {sequences, std::min(decoding_rows, together), std::min(max_rows, holds(kLogitsBytes))});
}

uint64_t StepOutputs::bytes(int32_t rows, int64_t vocabulary) {
  return static_cast<uint64_t>(rows) * static_cast<uint64_t>(vocabulary) * sizeof(float);
}

Status StepOutputs::allocate(Device& device, Model& model, int32_t rows, int32_t best_rows,
                             int32_t slots) {
  slots_.resize(static_cast<size_t>(slots));
  device_ = &device;
  model_ = &model;
  const int64_t vocabulary = model.config().vocabulary;
  BRAID_ASSIGN(logits_memory_, device.allocate(bytes(rows, vocabulary), "logits"));
  logits_ = Tensor{logits_memory_.data(), DType::f32, rows, vocabulary, vocabulary};
  return device.traits().host_visible ? Status() : allocate_best(std::max(rows, best_rows));
}

Status StepOutputs::allocate_best(int64_t rows) {
  most_best_rows_ = static_cast<int32_t>(rows);
  best_count_ = static_cast<int32_t>(std::min<int64_t>(kBestLogits, logits_.cols));
  const int64_t values = rows * best_count_;
  const size_t bytes = static_cast<size_t>(2 * values + rows) * sizeof(float);
  const auto width = static_cast<size_t>(model_->config().width);
  for (Slot& slot : slots_) {
    BRAID_ASSIGN(slot.best_memory, device_->allocate(bytes, "best logits"));
    BRAID_ASSIGN(slot.best_on_host, device_->allocate_host(bytes, "best logits"));
    BRAID_ASSIGN(slot.hidden_on_host,
                 device_->allocate_host(kRowsOnHost * width * sizeof(float), "hidden rows"));
  }
  const auto row_numbers = static_cast<size_t>(std::max(logits_.cols, model_->config().width));
  BRAID_ASSIGN(rows_on_host_,
               device_->allocate_host(kRowsOnHost * row_numbers * sizeof(float), "logits"));
  fetched_.reserve(kRowsOnHost);
  return {};
}

void StepOutputs::begin(const StepPlan& plan, int32_t outputs, int32_t slot) {
  select(slot);
  Slot& step = now();
  step.outputs = outputs;
  step.hidden_rows = 0;
  logits_slot_ = slot;
  logits_count_ = 0;
  release_wanted();
  step.few_at_once = device_->traits().host_visible &&
                     std::any_of(plan.items.begin(), plan.items.end(), [](const StepItem& item) {
                       return std::ssize(item.drafts) >= kFewAtOnce;
                     });
  const bool wanted = std::any_of(plan.items.begin(), plan.items.end(), [](const StepItem& item) {
    return item.wants_next || item.sequence->request.score;
  });
  step.best_rows = wanted && outputs <= most_best_rows_ ? outputs : 0;
  if (step.best_rows == 0 || outputs > most_rows()) return;
  logits_first_ = 0;
  logits_count_ = outputs;
}

void StepOutputs::queue() {
  if (rows_on_host_.data() == nullptr) return;
  Slot& step = now();
  const int32_t rows = step.laid_out;
  if (!finds_best()) {
    if (rows == 0 || rows > kRowsOnHost) return;
    const Tensor hidden = model_->output_hidden(slot_);
    device_->to_host(step.hidden_on_host.data(), hidden.data,
                     static_cast<size_t>(rows * hidden.cols) * size_bytes(hidden.type));
    step.hidden_rows = rows;
    return;
  }
  const int64_t values = int64_t{rows} * best_count_;
  auto* const base = static_cast<float*>(step.best_memory.data());
  const Tensor best{base, DType::f32, rows, best_count_, best_count_};
  const Tensor ids{base + values, DType::i32, rows, best_count_, best_count_};
  const Tensor sums{base + 2 * values, DType::f32, rows, 1, 1};
  for (int32_t first = 0; first < rows; first += most_rows()) {
    const int32_t count = std::min(most_rows(), rows - first);
    model_->logits(logits_, first, count, slot_);
    device_->ops().top_k(best.middle(first, count), ids.middle(first, count),
                         sums.middle(first, count), logits_.top(count));
  }
  device_->to_host(step.best_on_host.data(), step.best_memory.data(),
                   static_cast<size_t>(2 * values + rows) * sizeof(float));
}

std::optional<Scores> StepOutputs::best_of(int32_t output) const {
  const Slot& step = now();
  if (output >= step.best_rows) return std::nullopt;
  const auto* base = static_cast<const float*>(step.best_on_host.data());
  const int64_t values = int64_t{step.laid_out} * best_count_;
  const auto count = static_cast<size_t>(best_count_);
  Scores top;
  top.values = {base + int64_t{output} * best_count_, count};
  top.ids = {reinterpret_cast<const int32_t*>(base + values) + int64_t{output} * best_count_,
             count};
  top.log_sum = base[2 * values + output];
  return top;
}

bool StepOutputs::holds(int32_t first, int32_t count) const {
  return slot_ == logits_slot_ && first >= logits_first_ &&
         first + count <= logits_first_ + logits_count_;
}

void StepOutputs::compute(int32_t output, int32_t together) {
  const Slot& step = now();
  BRAID_CHECK(together <= logits_.rows && output + together <= step.outputs);
  if (holds(output, together)) return;
  const int32_t most = step.few_at_once ? std::min(most_rows(), kFewAtOnce) : most_rows();
  logits_slot_ = slot_;
  logits_first_ = output;
  logits_count_ = std::min(most, step.outputs - output);
  model_->logits(logits_, logits_first_, logits_count_, slot_);
  device_->synchronize();
}

bool StepOutputs::want(int32_t output, int32_t first, int32_t count) {
  const bool on_host = rows_on_host_.data() == nullptr;
  if (on_host && wanted_ && !holds(output, 1)) return false;
  if (!on_host && std::ssize(fetched_) == kRowsOnHost) return false;
  if (!holds(output, 1) && !now().few_at_once && count <= most_rows()) compute(first, count);
  compute(output, 1);
  wanted_ = true;
  if (on_host) return true;
  const size_t bytes = static_cast<size_t>(logits_.cols) * sizeof(float);
  auto* to = static_cast<std::byte*>(rows_on_host_.data()) + fetched_.size() * bytes;
  device_->to_host(
      to,
      static_cast<const float*>(logits_.data) + int64_t{output - logits_first_} * logits_.stride,
      bytes);
  fetched_.push_back(output);
  fetching_ = true;
  return true;
}

void StepOutputs::wait_wanted() {
  if (std::exchange(fetching_, false)) device_->synchronize();
}

std::span<const float> StepOutputs::wanted(int32_t output) const {
  const auto width = static_cast<size_t>(logits_.cols);
  if (rows_on_host_.data() == nullptr) {
    BRAID_CHECK(holds(output, 1));
    return {
        static_cast<const float*>(logits_.data) + int64_t{output - logits_first_} * logits_.stride,
        width};
  }
  const auto at = std::find(fetched_.begin(), fetched_.end(), output) - fetched_.begin();
  BRAID_CHECK(at < std::ssize(fetched_) && !fetching_);
  return {static_cast<const float*>(rows_on_host_.data()) + static_cast<size_t>(at) * width, width};
}

void StepOutputs::release_wanted() {
  wait_wanted();  // copies into it must be done
  wanted_ = false;
  fetched_.clear();
}

std::span<const float> StepOutputs::row(int32_t output) {
  release_wanted();
  want(output, output, 1);
  wait_wanted();
  return wanted(output);
}

bool StepOutputs::is_sound(int32_t output) {
  if (const auto best = best_of(output)) return std::isfinite(best->values[0]);
  const Tensor row = model_->output_hidden(slot_).middle(output, 1);
  const void* values = row.data;
  if (output < now().hidden_rows) {
    values = static_cast<const std::byte*>(now().hidden_on_host.data()) +
             static_cast<size_t>(output * row.cols) * size_bytes(row.type);
  } else if (rows_on_host_.data() != nullptr) {
    release_wanted();
    device_->to_host(rows_on_host_.data(), row.data,
                     static_cast<size_t>(row.cols) * size_bytes(row.type));
    device_->synchronize();
    values = rows_on_host_.data();
  }
  return all_finite(values, row.type, row.cols);
}

uint64_t StepOutputs::host_bytes(int32_t rows, int64_t vocabulary, int64_t width, int32_t slots) {
  const int64_t best = rows * (2 * std::min<int64_t>(kBestLogits, vocabulary) + 1);
  return static_cast<uint64_t>(slots * (best + kRowsOnHost * width) +
                               kRowsOnHost * std::max(vocabulary, width)) *
         sizeof(float);
}

}  // namespace braid
