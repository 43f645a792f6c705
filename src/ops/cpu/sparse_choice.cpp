// sparse_choice.cpp -- see sparse_choice.h.
//
// A head's masses are sums of e^(z - max), where max is the largest z so far. A tile of scores with
// a larger one scales the sums before it is added, so each product is made once.

// The order of these lines matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/sparse_choice.cpp"
#include "ops/cpu/simd.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <bit>
#include <cmath>

#include "ops/cpu/attention.h"
#include "ops/cpu/simd-inl.h"
#include "ops/cpu/sparse_choice.h"

HWY_BEFORE_NAMESPACE();
namespace braid {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kMassRows = cpu::kPanelRows;
constexpr int64_t kMassVectors = kMassRows / kLanes;

// Adds scores [32][16] of `rows` lanes and `count` key blocks to masses [first, first + count) of
// those from `masses` on. `max` is that of all scores so far.
void add_masses(float* masses, int32_t first, int32_t count, const float* scores, int32_t rows,
                float* max) {
  const FloatTag d;
  Floats top[kMassVectors];
  for (int64_t r = 0; r < kMassVectors; r++) {
    top[r] = set(*max);
    for (int32_t n = 0; n < count; n++)
      top[r] = hn::Max(top[r], load(scores + n * kMassRows + r * kLanes));
  }
  // Lanes beyond `rows` repeat an existing row.
  for (int64_t r = 1; r < kMassVectors; r++) top[0] = hn::Max(top[0], top[r]);
  const float largest = hn::GetLane(hn::MaxOfLanes(d, top[0]));
  if (largest > *max) {
    scale(masses, hn::GetLane(exp_negative(set(*max - largest))), first + count);
    *max = largest;
  }
  for (int32_t n = 0; n < count; n++) {
    Floats sum = hn::Zero(d);
    for (int64_t r = 0; r < kMassVectors; r++) {
      const int64_t lanes = std::clamp<int64_t>(rows - r * kLanes, 0, kLanes);
      const Floats e =
          exp_negative(hn::Sub(load(scores + n * kMassRows + r * kLanes), set(largest)));
      sum = hn::Add(sum, hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(lanes)), e));
    }
    masses[first + n] += fold(sum);
  }
}

void sum_block_here(float* sum, const float* rows, int64_t head_dim, bool first) {
  const int64_t stride = cpu::padded_dim(head_dim);
  int64_t i = 0;
  for (; i + kLanes <= head_dim; i += kLanes) {
    Floats total = load(rows + i);
    for (int64_t p = 1; p < kBlockTokens; p++) total = hn::Add(total, load(rows + p * stride + i));
    store(first ? total : hn::Add(load(sum + i), total), sum + i);
  }
  for (; i < head_dim; i++) {
    float total = rows[i];
    for (int64_t p = 1; p < kBlockTokens; p++) total += rows[p * stride + i];
    sum[i] = first ? total : sum[i] + total;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace braid
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace braid::cpu {
namespace {
HWY_EXPORT(add_masses);
HWY_EXPORT(sum_block_here);

// Key blocks of a tile of scores.
constexpr int64_t kMeansTile = kBlockTokens;
constexpr int64_t kQueryPanels = kSparseBlock / kPanelRows;

constexpr int64_t whole_tiles(int64_t blocks) {
  return (blocks + kMeansTile - 1) / kMeansTile * kMeansTile;
}
}  // namespace

int64_t sparse_sequences(int64_t max_tokens) { return max_tokens / kSparseRows; }

int64_t sparse_mean_floats(int64_t max_tokens, int64_t max_context, int64_t kv_heads,
                           int64_t head_dim) {
  return sparse_sequences(max_tokens) * kv_heads * whole_tiles(max_context / kSparseBlock) *
         padded_dim(head_dim);
}

int64_t sparse_chosen_words(int64_t max_tokens, int64_t max_context, int64_t kv_heads) {
  // A sequence touches at most two query blocks beyond those that its rows fill.
  const int64_t blocks = max_tokens / kSparseBlock + 2 * sparse_sequences(max_tokens);
  return blocks * kv_heads * sparse_words(static_cast<int32_t>(max_context / kSparseBlock));
}

int64_t sparse_scratch_floats(int64_t max_context, int64_t head_dim) {
  return whole_tiles(max_context / kSparseBlock) + kMeansTile * kPanelRows +
         kSparseBlock * head_dim;
}

SparseChoice::SparseChoice(Tensor q, const AttentionParams& params, const KvLayer& kv,
                           const Batch& batch, SparseRoom& room)
    : q_(q),
      params_(params),
      kv_(kv),
      batch_(batch),
      room_(room),
      kv_heads_(kv.shape.kv_heads),
      head_dim_(kv.shape.head_dim) {
  room_.used = 0;
  if (batch.sparse_threshold <= 0) return;
  BRAID_CHECK(room_.reserved);
  if (params.window > 0 || params.first_cell > 0) return;
  int64_t means = 0, chosen = 0;
  for (int32_t s = 0; s < batch.sequences; s++) {
    if (!sparse_sequence(batch, s)) continue;
    BRAID_CHECK(room_.used < room_.sequences.size());
    const int32_t first = batch.first_row[s];
    SparseSequence& added = room_.sequences[room_.used++];
    added = {s, batch.position[first] / kSparseBlock,
             batch.position[first + batch.rows[s] - 1] / kSparseBlock, means, chosen};
    BRAID_CHECK(added.last_block <= room_.key_blocks);
    means += kv_heads_ * whole_tiles(added.last_block) * padded_dim(head_dim_);
    chosen += int64_t{added.query_blocks()} * kv_heads_ * sparse_words(added.last_block);
  }
  BRAID_CHECK(means <= room_.mean_floats && chosen <= room_.chosen_words);
}

int32_t SparseChoice::find(int32_t sequence) const {
  for (size_t i = 0; i < room_.used; i++)
    if (room_.sequences[i].sequence == sequence) return static_cast<int32_t>(i);
  return -1;
}

const float* SparseChoice::means_of(const SparseSequence& s, int32_t kv_head) const {
  return room_.means + s.means + kv_head * whole_tiles(s.last_block) * padded_dim(head_dim_);
}

uint32_t* SparseChoice::set_of(const SparseSequence& s, int32_t query_block,
                               int32_t kv_head) const {
  const int64_t set = int64_t{query_block - s.first_block} * kv_heads_ + kv_head;
  return room_.chosen + s.chosen + set * sparse_words(s.last_block);
}

const uint32_t* SparseChoice::chosen(int32_t index, int32_t position, int32_t kv_head) const {
  return set_of(room_.sequences[static_cast<size_t>(index)], position / kSparseBlock, kv_head);
}

int64_t SparseChoice::mean_tasks() const {
  int64_t tasks = 0;
  for (const SparseSequence& s : sequences()) tasks += int64_t{s.last_block} * kv_heads_;
  return tasks;
}

SparseChoice::Mean SparseChoice::mean(int64_t task) const {
  const SparseSequence* s = room_.sequences.data();
  for (; task >= int64_t{s->last_block} * kv_heads_; s++)
    task -= int64_t{s->last_block} * kv_heads_;
  Mean mean;
  mean.sequence = s->sequence;
  mean.last_position =
      batch_.position[batch_.first_row[s->sequence] + batch_.rows[s->sequence] - 1];
  mean.key_block = static_cast<int32_t>(task / kv_heads_);
  mean.kv_head = static_cast<int32_t>(task % kv_heads_);
  mean.out =
      const_cast<float*>(means_of(*s, mean.kv_head)) + mean.key_block * padded_dim(head_dim_);
  return mean;
}

int64_t SparseChoice::choice_tasks() const {
  int64_t tasks = 0;
  for (const SparseSequence& s : sequences()) tasks += int64_t{s.query_blocks()} * kv_heads_;
  return tasks;
}

void SparseChoice::choose(int64_t task, float* scratch) const {
  const SparseSequence* s = room_.sequences.data();
  for (; task >= int64_t{s->query_blocks()} * kv_heads_; s++)
    task -= int64_t{s->query_blocks()} * kv_heads_;
  const int32_t m = s->last_block - static_cast<int32_t>(task / kv_heads_);
  const auto kv_head = static_cast<int32_t>(task % kv_heads_);
  const int32_t start = sparse_window_start(m, kv_.cold ? &kv_.cold.tail : nullptr);
  uint32_t* set = set_of(*s, m, kv_head);
  std::fill_n(set, sparse_words(s->last_block), 0u);
  for (int32_t n = 0; n <= m; n++)
    if (n < kSparseSinks || n >= start) set[n / 32] |= 1u << n % 32;
  if (start <= kSparseSinks) return;
  const int32_t group = params_.heads / kv_heads_;
  for (int32_t h = kv_head * group; h < (kv_head + 1) * group; h++)
    add_head(*s, m, h, scratch, set);
}

// Adds the key blocks whose mass reaches the threshold for this head.
void SparseChoice::add_head(const SparseSequence& s, int32_t query_block, int32_t head,
                            float* scratch, uint32_t* set) const {
  const int32_t begin = batch_.first_row[s.sequence];
  const int32_t from = batch_.position[begin];
  const int32_t first = begin + std::max(query_block * kSparseBlock - from, 0);
  const int32_t last =
      begin + std::min((query_block + 1) * kSparseBlock - from, batch_.rows[s.sequence]);
  float* masses = scratch;
  float* scores = masses + whole_tiles(query_block);
  float* panels = scores + kMeansTile * kPanelRows;
  const int32_t count =
      (last - first + static_cast<int32_t>(kPanelRows) - 1) / static_cast<int32_t>(kPanelRows);
  BRAID_CHECK(first < last && count <= kQueryPanels);
  for (int32_t p = 0; p < count; p++) {
    const float* rows[kPanelRows];
    for (int32_t r = 0; r < kPanelRows; r++) {
      const int32_t t = std::min(first + p * static_cast<int32_t>(kPanelRows) + r, last - 1);
      rows[r] = q_.f32(t) + head * head_dim_;
    }
    Panel panel;
    panel.q = panels + p * head_dim_ * kPanelRows;
    panel_set_rows(panel, rows, params_.scale, head_dim_);
  }
  const auto add = &HWY_DYNAMIC_DISPATCH(add_masses);
  const float* means = means_of(s, head / (params_.heads / kv_heads_));
  float max = kNoScore;
  std::fill_n(masses, query_block, 0.0f);
  for (int32_t n = 0; n < query_block; n += static_cast<int32_t>(kMeansTile)) {
    const int32_t blocks = std::min(static_cast<int32_t>(kMeansTile), query_block - n);
    for (int32_t p = 0; p < count; p++) {
      panel_scores(scores, panels + p * head_dim_ * kPanelRows, means + n * padded_dim(head_dim_),
                   head_dim_);
      const int32_t rows = last - first - p * static_cast<int32_t>(kPanelRows);
      add(masses, n, blocks, scores, rows, &max);
    }
  }
  const float least = batch_.sparse_threshold * *std::max_element(masses, masses + query_block);
  for (int32_t n = 0; n < query_block; n++)
    if (masses[n] >= least) set[n / 32] |= 1u << n % 32;
}

void SparseChoice::count() const {
  for (const SparseSequence& s : sequences()) {
    for (int32_t m = s.first_block; m <= s.last_block; m++) {
      const uint32_t* sets = set_of(s, m, 0);
      for (int64_t i = 0; i < kv_heads_ * sparse_words(s.last_block); i++)
        room_.counts.read += static_cast<uint64_t>(std::popcount(sets[i]));
      room_.counts.all += static_cast<uint64_t>(m + 1) * static_cast<uint64_t>(kv_heads_);
    }
  }
}

void sum_block(float* sum, const float* rows, int64_t head_dim, bool first) {
  HWY_DYNAMIC_DISPATCH(sum_block_here)(sum, rows, head_dim, first);
}

}  // namespace braid::cpu
#endif  // HWY_ONCE
