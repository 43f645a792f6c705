// dflash_drafter.cpp -- see dflash_drafter.h.
#include "engine/draft/dflash_drafter.h"

#include <algorithm>
#include <cmath>

namespace braid {
namespace {

constexpr int32_t kCandidates = 16;  // of a guess: what noise may prefer is among them, nearly always

// What the sampler would not draw if it drew from the drafter's row, whose candidates stand best first.
void truncate(std::span<float> log_q, const SamplingParams& sampling) {
  const double least = log_q[0] + std::log(static_cast<double>(sampling.min_p));
  double sum = 0;
  for (size_t c = 0; c < log_q.size(); ++c) {
    const bool enough =
        sum >= sampling.top_p || (sampling.top_k > 0 && c >= static_cast<size_t>(sampling.top_k));
    sum += std::exp(static_cast<double>(log_q[c]));
    if (c > 0 && (enough || log_q[c] < least)) log_q[c] = -INFINITY;
  }
}

size_t bytes_of(int64_t numbers) { return static_cast<size_t>(numbers) * sizeof(int32_t); }

}  // namespace

Status DflashDrafter::allocate(const DrafterOptions& options) {
  options_ = options;
  block_ = dflash_.config().block;
  guesses_ = std::min(options.max_drafts, block_ - 1);
  width_ = static_cast<int32_t>(std::min<int64_t>(kCandidates, options.logits.cols));
  const int64_t most = std::min(options.sequences, kMostTogether);
  BRAID_CHECK(guesses_ > 0 && options.logits.rows >= most * guesses_);
  for (int a = 0; a < kArrays; ++a) {
    const int64_t each = a < output_row  ? block_
                         : a < first_row ? guesses_
                         : a < table     ? 1
                                         : options.block_table;
    offset_[a + 1] = offset_[a] + most * each;
  }
  const size_t bytes = bytes_of(offset_[kArrays]);
  BRAID_ASSIGN(host_, device_.allocate_host(bytes, "draft blocks"));
  BRAID_ASSIGN(numbers_, device_.allocate(bytes_of(numbers(most * guesses_)), "draft blocks"));
  chains_.reserve(static_cast<size_t>(options.sequences));
  if (device_.computes_in_host_memory()) return {};
  BRAID_ASSIGN(memory_, device_.allocate(bytes, "draft blocks"));
  BRAID_ASSIGN(numbers_on_host_, device_.allocate_host(bytes_of(numbers(most * guesses_)), "draft blocks"));
  return {};
}

const int32_t* DflashDrafter::on_device(Array a) const {
  return static_cast<const int32_t*>(memory_.data() != nullptr ? memory_.data() : host_.data()) + offset_[a];
}

void DflashDrafter::propose(StepPlan& plan, int32_t budget) {
  choose(plan, budget);
  for (std::span<const Chain> left = chains_; !left.empty();) {
    const auto round = left.first(std::min<size_t>(left.size(), kMostTogether));
    if (!run(round)) return;
    left = left.subspan(round.size());
  }
}

// Where a whole block has no cells, nothing is drafted.
void DflashDrafter::choose(StepPlan& plan, int32_t budget) {
  chains_.clear();
  for (StepItem& item : plan.items) {
    Sequence& s = *item.sequence;
    const auto known = static_cast<int32_t>(s.tokens.size());
    const int32_t length =
        std::min({item.draft_depth, guesses_, budget, scheduler_.most_tokens() - known - 1});
    const int32_t cells = s.computed_tokens + block_;
    if (length <= 0 || cells > options_.block_table * kBlockTokens || !scheduler_.grow(s, cells)) continue;
    budget -= length;
    chains_.push_back({&item, length});
  }
}

void DflashDrafter::fill(std::span<const Chain> round) {
  const auto count = static_cast<int32_t>(round.size());
  padded_ =
      memory_.data() == nullptr ? count : std::min({row_bucket(count), options_.sequences, kMostTogether});
  for (int32_t i = 0; i < padded_; ++i) {
    const Sequence* s = i < count ? round[static_cast<size_t>(i)].item->sequence : nullptr;
    const int32_t start = s != nullptr ? s->computed_tokens : 0;
    for (int32_t j = 0; j < block_; ++j) {
      const int32_t row = i * block_ + j;
      host(token)[row] = s == nullptr ? -1 : j == 0 ? s->tokens.back() : dflash_.config().mask_token;
      host(position)[row] = s != nullptr ? start + j : 0;
      host(last_position)[row] = s != nullptr ? start + block_ - 1 : 0;
      host(cell)[row] = s != nullptr ? start + j : -1;
      host(sequence)[row] = s != nullptr ? i : -1;
      host(parent)[row] = -1;
    }
    for (int32_t j = 0; j < guesses_; ++j)
      host(output_row)[i * guesses_ + j] = s != nullptr ? i * block_ + 1 + j : -1;
    host(first_row)[i] = s != nullptr ? i * block_ : 0;
    host(rows)[i] = s != nullptr ? block_ : 0;
    host(context)[i] = s != nullptr ? start + block_ : 0;
    host(slot)[i] = s != nullptr ? s->slot : 0;
    int32_t* blocks = host(table) + int64_t{i} * options_.block_table;
    if (s == nullptr) {
      std::fill_n(blocks, options_.block_table, 0);
    } else {
      std::copy(s->blocks[0].begin(), s->blocks[0].end(), blocks);
    }
  }
}

Batch DflashDrafter::batch() const {
  Batch b;
  b.tokens = padded_ * block_;
  b.sequences = padded_;
  b.outputs = padded_ * guesses_;
  b.most_rows = b.most_certain = block_;
  b.token = on_device(token);
  b.position = on_device(position);
  b.cell = on_device(cell);
  b.sequence = on_device(sequence);
  b.parent = on_device(parent);
  b.first_row = on_device(first_row);
  b.rows = b.certain = on_device(rows);
  b.context = on_device(context);
  b.slot = on_device(slot);
  b.block_table = on_device(table);
  b.blocks_per_sequence = options_.block_table;
  b.output_row = on_device(output_row);
  return b;
}

// From the upload to the guesses: what is recorded.
void DflashDrafter::enqueue() {
  if (memory_.data() != nullptr)
    device_.to_device(memory_.data(), host_.data(),
                      bytes_of(offset_[table] + int64_t{padded_} * options_.block_table));
  const Batch b = batch();
  dflash_.forward(b, on_device(last_position), cache_.memory());
  const Tensor logits = options_.logits.top(b.outputs);
  dflash_.logits(logits, 0, b.outputs);
  auto* base = static_cast<float*>(numbers_.data());
  const int64_t candidates = int64_t{b.outputs} * width_;
  const Tensor ids{base, DType::i32, b.outputs, width_, width_};
  const Tensor values{base + candidates, DType::f32, b.outputs, width_, width_};
  const Tensor log_sums{base + 2 * candidates, DType::f32, b.outputs, 1, 1};
  device_.ops().top_k(values, ids, log_sums, logits);
  if (memory_.data() != nullptr)
    device_.to_host(numbers_on_host_.data(), numbers_.data(), bytes_of(numbers(b.outputs)));
}

// Recorded the second time, as steps are (step/step.h), whose keys are smaller. False: the device has failed,
// and so will the step.
bool DflashDrafter::run(std::span<const Chain> round) {
  fill(round);
  const uint64_t key = uint64_t{1} << 62 | static_cast<uint64_t>(padded_);
  const bool records = memory_.data() != nullptr;
  if (records && !device_.has_record(key) && !warmed_up_.insert(padded_).second && device_.begin_record()) {
    enqueue();
    if (!device_.end_record(key).ok()) return false;
  }
  if (device_.has_record(key)) {
    device_.replay(key);
  } else {
    enqueue();
  }
  if (options_.wait) options_.wait();
  device_.synchronize();
  if (!device_.health().ok()) return false;
  take(round);
  return true;
}

void DflashDrafter::take(std::span<const Chain> round) {
  for (size_t i = 0; i < round.size(); ++i) take_chain(round[i], static_cast<int64_t>(i) * guesses_);
}

// `first`: the chain's first guess. Guesses were made together, so that each row stands for itself.
void DflashDrafter::take_chain(const Chain& chain, int64_t first) {
  const auto* base =
      static_cast<const float*>(memory_.data() != nullptr ? numbers_on_host_.data() : numbers_.data());
  const int64_t candidates = int64_t{padded_} * guesses_ * width_;
  const auto* ids = reinterpret_cast<const int32_t*>(base);
  const Sequence& s = *chain.item->sequence;
  const SamplingParams& sampling = s.sampler.params();
  const bool drawn = sampling.temperature > 0;
  lattice_.reset(LatticeKind::independent, chain.length, width_);
  for (int32_t d = 0; d < chain.length; ++d) {
    const int64_t guess = first + d;
    const float* values = base + candidates + guess * width_;
    // At a temperature, of the candidates alone.
    double log_sum = base[2 * candidates + guess];
    if (drawn) {
      double sum = 0;
      for (int32_t c = 0; c < width_; ++c) sum += std::exp((values[c] - values[0]) / sampling.temperature);
      log_sum = values[0] / sampling.temperature + std::log(sum);
    }
    for (int32_t c = 0; c < width_; ++c) {
      lattice_.token(d, c) = ids[guess * width_ + c];
      const double scaled = drawn ? values[c] / sampling.temperature : values[c];
      lattice_.log_q(d, 0)[static_cast<size_t>(c)] = static_cast<float>(scaled - log_sum);
    }
    if (drawn) truncate(lattice_.log_q(d, 0), sampling);
  }
  if (drawn) lattice_.add_noise(sampling.seed, static_cast<int32_t>(s.tokens.size()));
  for (int32_t d = 0; d < chain.length; ++d) {
    const std::span<const float> row = lattice_.log_q(d, 0);
    const auto best = std::max_element(row.begin(), row.end());
    const int32_t token = lattice_.token(d, static_cast<int32_t>(best - row.begin()));
    // No numbers come from features that are none, whose sequence the step will end.
    if (token < 0 || token >= options_.logits.cols || !std::isfinite(*best) ||
        *best < std::log(options_.p_min))
      break;
    chain.item->drafts.push_back({token, d - 1, *best});
  }
}

}  // namespace braid
