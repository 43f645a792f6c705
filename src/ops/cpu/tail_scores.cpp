// tail_scores.cpp -- how much attention the last rows of a prompt pay to every position.
//
// Two passes over K, with the kernels of many rows (attention.h): lanes are queries (row x head) of
// a KV head, 16 of them a panel. A block of K is expanded once for all panels.
// 1. Task = (segment of 512 positions, KV head): maximum and sum of e^(score - maximum) of each
//    query. They are merged in the order of segments.
// 2. Task = 128 positions: probabilities, and their maximum over all heads.
// So a score depends neither on the number of threads nor on the order of tasks. Only the results
// of pass 1 are kept, two numbers for a query and a segment.

// The order of these lines matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/tail_scores.cpp"
#include "ops/cpu/simd.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <cmath>

#include "ops/cpu/attention.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/simd-inl.h"
#include "ops/cpu/unit_side.h"

HWY_BEFORE_NAMESPACE();
namespace braid {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kTailVectors = cpu::kPanelRows / kLanes;

// Takes the angles of a table's row out of x; `factor` is 1 / magnitude^2.
void tail_unrotate(float* x, const float* rope, int64_t dims, float factor) {
  const int64_t half = dims / 2;
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    Floats cosine, sine;
    hn::LoadInterleaved2(FloatTag(), rope + 2 * i, cosine, sine);
    const Floats a = load(x + i), b = load(x + i + half);
    store(hn::Mul(hn::MulAdd(b, sine, hn::Mul(a, cosine)), set(factor)), x + i);
    store(hn::Mul(hn::NegMulAdd(a, sine, hn::Mul(b, cosine)), set(factor)), x + i + half);
  }
  for (; i < half; i++) {
    const float a = x[i], b = x[i + half], cosine = rope[2 * i], sine = rope[2 * i + 1];
    x[i] = std::fma(b, sine, a * cosine) * factor;
    x[i + half] = std::fma(-a, sine, b * cosine) * factor;
  }
}

// Adds scores [32][16] to the maxima and sums of lanes, which see cells first .. last-1. While a
// lane has seen none, its maximum is kNoScore and its sum any number: the first score makes that 0.
void tail_sums(float* scores, const int32_t* first_cell, const int32_t* last_cell, float* max,
               float* sum) {
  const FloatTag d;
  const hn::RebindToSigned<FloatTag> di;
  for (int64_t r = 0; r < kTailVectors; r++) {
    float* column = scores + r * kLanes;
    const auto first = hn::LoadU(di, first_cell + r * kLanes);
    const auto last = hn::LoadU(di, last_cell + r * kLanes);
    const Floats before = load(max + r * kLanes);
    Floats top = before;
    for (int32_t p = 0; p < kBlockTokens; p++) {
      const auto here = hn::Set(di, p);
      const auto seen = hn::AndNot(hn::Gt(first, here), hn::Gt(last, here));
      const Floats s = hn::IfThenElse(hn::RebindMask(d, seen), load(column + p * cpu::kPanelRows),
                                      set(cpu::kNoScore));
      store(s, column + p * cpu::kPanelRows);
      top = hn::Max(top, s);
    }
    Floats total = hn::Mul(load(sum + r * kLanes), exp_negative(hn::Sub(before, top)));
    for (int32_t p = 0; p < kBlockTokens; p++)
      total = hn::Add(total, exp_negative(hn::Sub(load(column + p * cpu::kPanelRows), top)));
    store(top, max + r * kLanes);
    store(total, sum + r * kLanes);
  }
}

// scores [32][16] become probabilities.
void tail_probabilities(float* scores, const float* max, const float* inverse) {
  for (int64_t r = 0; r < kTailVectors; r++) {
    const Floats top = load(max + r * kLanes), factor = load(inverse + r * kLanes);
    for (int32_t p = 0; p < kBlockTokens; p++) {
      float* at = scores + p * cpu::kPanelRows + r * kLanes;
      store(hn::Mul(exp_negative(hn::Sub(load(at), top)), factor), at);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace braid
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace braid {
namespace {
HWY_EXPORT(tail_unrotate);
HWY_EXPORT(tail_sums);
HWY_EXPORT(tail_probabilities);

constexpr int32_t kTailSegment = 512;
constexpr int32_t kTailPiece = 128;

// A panel's lanes see cells first .. last-1 of a block; both are 0 if there are none.
struct TailLanes {
  int32_t first[cpu::kPanelRows];
  int32_t last[cpu::kPanelRows];

  bool none() const {
    return std::all_of(last, last + cpu::kPanelRows, [](int32_t end) { return end == 0; });
  }
};

// The queries of a KV head are numbered row * group + head of the group.
class TailCall {
 public:
  TailCall(Tensor scores, Tensor q, Tensor rope, Tensor rope_of_position, float magnitude,
           const AttentionParams& params, const KvLayer& kv, const Batch& batch)
      : scores_(scores),
        q_(q),
        rope_(rope),
        rope_of_position_(rope_of_position),
        factor_(1 / (magnitude * magnitude)),
        params_(params.without_window()),
        kv_(kv),
        batch_(batch),
        dim_(kv.shape.head_dim),
        group_(params.heads / kv.shape.kv_heads),
        rows_(static_cast<int32_t>(q.rows)) {
    BRAID_CHECK(params.heads % kv.shape.kv_heads == 0 && params.heads <= kMostTailHeads);
    BRAID_CHECK(q.cols == params.heads * dim_ && rows_ > 0 && rows_ <= kMostTailRows);
    BRAID_CHECK(batch.certain[0] == batch.rows[0] && rows_ <= batch.rows[0]);
    first_ = batch.first_row[0] + batch.rows[0] - rows_;
    end_ = position(rows_ - 1) + 1;
    BRAID_CHECK(scores.rows == rows_ && scores.cols >= end_);
    BRAID_CHECK(!rope_of_position ||
                (rope_of_position.rows >= end_ && rope.cols == rope_of_position.cols &&
                 rope.cols <= dim_ && rope.rows >= first_ + rows_));
    if (kv.cold) units_ = cpu::unit_side(*kv.cold.k_codec, KvSide::k, kv.shape.head_dim);
  }

  int32_t end() const { return end_; }
  int32_t queries() const { return rows_ * group_; }
  int32_t all_queries() const { return queries() * kv_.shape.kv_heads; }
  int64_t scratch_floats() const {
    return (kBlockTokens + cpu::kPanelRows) * cpu::padded_dim(dim_) +
           kBlockTokens * cpu::kPanelRows + panels() * panel_floats();
  }

  // partials [queries] of (maximum, sum) over positions begin .. end-1.
  void sum_positions(int32_t begin, int32_t end, int32_t kv_head, float* partials,
                     float* scratch) const {
    const Room room = room_in(scratch);
    fill_panels(kv_head, room);
    for (int32_t i = 0; i < panels(); i++) {
      std::fill_n(panel(room, i).max, cpu::kPanelRows, cpu::kNoScore);
      std::fill_n(panel(room, i).sum, cpu::kPanelRows, 0.0f);
    }
    const auto add = &HWY_DYNAMIC_DISPATCH(tail_sums);
    each_panel(begin, end, kv_head, room, [&](int32_t i, const TailLanes& lanes, int32_t) {
      add(room.scores, lanes.first, lanes.last, panel(room, i).max, panel(room, i).sum);
    });
    for (int32_t at = 0; at < queries(); at++) {
      const cpu::Panel from = panel(room, at / cpu::kPanelRows);
      partials[2 * at] = from.max[at % cpu::kPanelRows];
      partials[2 * at + 1] = from.sum[at % cpu::kPanelRows];
    }
  }

  // totals [KV heads][queries] of (maximum, 1 / sum).
  void score_positions(int32_t begin, int32_t end, const float* totals, float* scratch) const {
    const Room room = room_in(scratch);
    const auto convert = &HWY_DYNAMIC_DISPATCH(tail_probabilities);
    for (int32_t kv_head = 0; kv_head < kv_.shape.kv_heads; kv_head++) {
      fill_panels(kv_head, room);
      const float* own = totals + int64_t{2} * kv_head * queries();
      for (int32_t at = 0; at < panels() * cpu::kPanelRows; at++) {
        const cpu::Panel to = panel(room, at / cpu::kPanelRows);
        const int32_t from = std::min(at, queries() - 1);
        to.max[at % cpu::kPanelRows] = own[2 * from];
        to.sum[at % cpu::kPanelRows] = own[2 * from + 1];
      }
      each_panel(begin, end, kv_head, room, [&](int32_t i, const TailLanes& lanes, int32_t block) {
        convert(room.scores, panel(room, i).max, panel(room, i).sum);
        take_largest(i, lanes, block, room.scores);
      });
    }
  }

 private:
  struct Room {
    float* k;       // [32][padded_dim]
    float* rows;    // [16][padded_dim]: queries without angles
    float* scores;  // [32][16]
    float* panels;  // [panels] of q, max, sum
  };
  Room room_in(float* scratch) const {
    const int64_t width = cpu::padded_dim(dim_);
    float* rows = scratch + kBlockTokens * width;
    float* scores = rows + cpu::kPanelRows * width;
    return {scratch, rows, scores, scores + kBlockTokens * cpu::kPanelRows};
  }
  int32_t panels() const {
    return static_cast<int32_t>((queries() + cpu::kPanelRows - 1) / cpu::kPanelRows);
  }
  int64_t panel_floats() const { return (dim_ + 2) * cpu::kPanelRows; }
  cpu::Panel panel(const Room& room, int32_t i) const {
    cpu::Panel panel;
    panel.q = room.panels + i * panel_floats();
    panel.max = panel.q + dim_ * cpu::kPanelRows;
    panel.sum = panel.max + cpu::kPanelRows;
    return panel;
  }
  int32_t position(int32_t row) const { return batch_.position[first_ + row]; }

  // Lanes without a query repeat the last one.
  void fill_panels(int32_t kv_head, const Room& room) const {
    const auto unrotate = &HWY_DYNAMIC_DISPATCH(tail_unrotate);
    for (int32_t i = 0; i < panels(); i++) {
      const float* rows[cpu::kPanelRows];
      for (int32_t lane = 0; lane < cpu::kPanelRows; lane++) {
        const auto at = std::min<int32_t>(i * int32_t{cpu::kPanelRows} + lane, queries() - 1);
        const int32_t row = at / group_;
        rows[lane] = q_.f32(row) + (int64_t{kv_head} * group_ + at % group_) * dim_;
        if (!rope_of_position_) continue;
        float* plain = room.rows + lane * cpu::padded_dim(dim_);
        std::copy_n(rows[lane], dim_, plain);
        unrotate(plain, rope_.f32(first_ + row), rope_.cols, factor_);
        rows[lane] = plain;
      }
      cpu::panel_set_rows(panel(room, i), rows, params_.scale, dim_);
    }
  }

  // K of the block from `begin` on, as rows that read it exactly, or from a unit, see it.
  void expand(int32_t begin, int32_t kv_head, bool exact, float* k) const {
    BRAID_CHECK(begin / kBlockTokens < batch_.blocks_per_sequence);
    const int32_t count = std::min(kBlockTokens, end_ - begin);
    if (exact) {
      const int32_t block = batch_.blocks_of(0)[begin / kBlockTokens];
      BRAID_CHECK(block >= 0 && block < kv_.blocks);
      cpu::expand_block(k, kv_.k_row(block, kv_head, 0), kv_.shape.k_format, dim_, count);
    } else {
      const int32_t block = batch_.cold_blocks_of(0)[begin / kBlockTokens];
      BRAID_CHECK(block >= 0 && block < kv_.cold.blocks);
      cpu::restore_rows(units_, kv_.k_unit(block, kv_head), k, cpu::padded_dim(dim_));
    }
    const auto unrotate = &HWY_DYNAMIC_DISPATCH(tail_unrotate);
    for (int32_t p = 0; rope_of_position_ && p < count; p++)
      unrotate(k + p * cpu::padded_dim(dim_), rope_of_position_.f32(begin + p), rope_.cols,
               factor_);
  }

  TailLanes lanes_of(int32_t i, int32_t block, bool exact) const {
    TailLanes lanes;
    for (int32_t lane = 0; lane < cpu::kPanelRows; lane++) {
      const auto at = std::min<int32_t>(i * int32_t{cpu::kPanelRows} + lane, queries() - 1);
      const int32_t own = position(at / group_);
      const bool reads = exact == (!kv_.cold || kv_.cold.tail.reads_exact(own, block));
      const int32_t first = std::max(params_.lowest_position(own) - block, 0);
      const int32_t last = std::clamp(own + 1 - block, 0, kBlockTokens);
      lanes.first[lane] = reads && first < last ? first : 0;
      lanes.last[lane] = reads && first < last ? last : 0;
    }
    return lanes;
  }

  // use(panel, lanes, block) for the panels that see cells of a block, whose scores are ready. Rows
  // on both sides of a border may read a block from its unit and exactly.
  template <typename Use>
  void each_panel(int32_t begin, int32_t end, int32_t kv_head, const Room& room,
                  const Use& use) const {
    for (int32_t block = begin; block < end; block += kBlockTokens) {
      for (const bool exact : {false, true}) {
        bool expanded = false;
        for (int32_t i = 0; (exact || kv_.cold) && i < panels(); i++) {
          const TailLanes lanes = lanes_of(i, block, exact);
          if (lanes.none()) continue;
          if (!expanded) expand(block, kv_head, exact, room.k);
          expanded = true;
          cpu::panel_scores(room.scores, panel(room, i).q, room.k, dim_);
          use(i, lanes, block);
        }
      }
    }
  }

  void take_largest(int32_t i, const TailLanes& lanes, int32_t block,
                    const float* probabilities) const {
    for (int32_t lane = 0; lane < cpu::kPanelRows; lane++) {
      const int32_t at = i * static_cast<int32_t>(cpu::kPanelRows) + lane;
      if (at >= queries()) break;
      float* to = scores_.f32(at / group_) + block;
      for (int32_t p = lanes.first[lane]; p < lanes.last[lane]; p++)
        to[p] = std::max(to[p], probabilities[p * cpu::kPanelRows + lane]);
    }
  }

  Tensor scores_;
  Tensor q_;
  Tensor rope_;
  Tensor rope_of_position_;
  float factor_;
  AttentionParams params_;
  const KvLayer& kv_;
  const Batch& batch_;
  int64_t dim_;
  int32_t group_;  // query heads of a KV head
  int32_t rows_;
  int32_t first_;  // batch row of the first row of q
  int32_t end_;    // positions of the last row
  cpu::UnitSide units_;
};

// (maximum, sum) of a query in each segment become (maximum, 1 / sum) of all, at the first.
void merge_segments(float* at, int64_t segments, int64_t stride) {
  float max = at[0];
  for (int64_t s = 1; s < segments; s++) max = std::max(max, at[s * stride]);
  double sum = 0;
  for (int64_t s = 0; s < segments; s++)
    sum += at[s * stride + 1] * std::exp(double{at[s * stride]} - max);
  at[0] = max;
  at[1] = static_cast<float>(1 / sum);
}

}  // namespace

void CpuOps::tail_scores(Tensor scores, Tensor q, Tensor rope, Tensor rope_of_position,
                         float magnitude, const AttentionParams& params, const KvLayer& kv,
                         const Batch& batch) {
  const TailCall call(scores, q, rope, rope_of_position, magnitude, params, kv, batch);
  const int64_t segments = (call.end() + kTailSegment - 1) / kTailSegment;
  const int64_t pieces = (call.end() + kTailPiece - 1) / kTailPiece;
  const int64_t stride = int64_t{2} * call.all_queries();  // of a segment
  BRAID_CHECK(segments * stride <= work_.partial_floats);
  BRAID_CHECK(call.scratch_floats() <= work_.worker_floats);
  const int64_t tasks = segments * kv.shape.kv_heads;
  counter_.reset();
  pool_.run([&](int worker) {
    for (int64_t i; (i = counter_.claim()) < tasks;) {
      const auto segment = static_cast<int32_t>(i / kv.shape.kv_heads);
      const auto kv_head = static_cast<int32_t>(i % kv.shape.kv_heads);
      call.sum_positions(segment * kTailSegment, std::min(call.end(), (segment + 1) * kTailSegment),
                         kv_head,
                         work_.partials + segment * stride + int64_t{2} * kv_head * call.queries(),
                         work_.worker[worker]);
    }
    pool_.barrier(worker);
    if (worker == 0) counter_.reset();
    const auto [begin, end] = pool_.share(call.all_queries(), worker);
    for (int64_t i = begin; i < end; i++) merge_segments(work_.partials + 2 * i, segments, stride);
    pool_.barrier(worker);
    for (int64_t i; (i = counter_.claim()) < pieces;) {
      const auto first = static_cast<int32_t>(i) * kTailPiece;
      call.score_positions(first, std::min(call.end(), first + kTailPiece), work_.partials,
                           work_.worker[worker]);
    }
  });
}

}  // namespace braid
#endif  // HWY_ONCE
