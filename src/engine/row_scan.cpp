// row_scan.cpp -- see row_scan.h.
//
// Cuts: one pass sums weights in buckets of equal logit width, a second one partitions the bucket
// of the cut like quickselect. Draws compare coarsely with vectorized noise; few tokens remain.

// The order of these lines matters.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/row_scan.cpp"
#include "ops/cpu/simd.h"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include <algorithm>
#include <array>
#include <cmath>

#include "base/threads.h"
#include "engine/noise.h"
#include "engine/row_scan.h"
#include "ops/cpu/simd-inl.h"

#ifndef BRAID_ROW_SCAN_TYPES
#define BRAID_ROW_SCAN_TYPES
namespace braid {

constexpr int32_t kBuckets = 1024;
constexpr int64_t kPart = 1024;  // logits weighed at once
constexpr int64_t kDrawn = 64;   // logits per noise block

// Keeps logits above `least`, or if not `strictly`, equal to it.
struct RowSpan {
  int64_t begin = 0, end = 0;
  float least = 0;
  bool strictly = false;
};

struct RowScale {
  float top = 0;
  float rate = 0;     // -1 / temperature
  float unit = 0;     // of weights
  float buckets = 0;  // per logit
};

inline double exact_weight(float logit, float top, double temperature) {
  return std::exp((static_cast<double>(logit) - top) / temperature);
}

}  // namespace braid
#endif

HWY_BEFORE_NAMESPACE();
namespace braid {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kScanned = 64;  // logits compared at once

HWY_INLINE auto is_kept(Floats x, float least, bool strictly) {
  return strictly ? hn::Gt(x, set(least)) : hn::Ge(x, set(least));
}

int64_t first_kept(const float* x, int64_t begin, int64_t end, float least, bool strictly) {
  int64_t i = begin;
  for (; i + kScanned <= end; i += kScanned) {
    auto any = is_kept(load(x + i), least, strictly);
    for (int64_t j = kLanes; j < kScanned; j += kLanes)
      any = hn::Or(any, is_kept(load(x + i + j), least, strictly));
    if (!hn::AllFalse(FloatTag(), any)) break;
  }
  for (; i < end; ++i)
    if (strictly ? x[i] > least : x[i] >= least) return i;
  return end;
}

float largest_number(const float* x, int64_t count) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  Floats most[4] = {set(kNone), set(kNone), set(kNone), set(kNone)};
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    for (int64_t j = 0; j < 4; ++j) {
      const Floats v = load(x + i + j * kLanes);
      most[j] = hn::IfThenElse(hn::Gt(v, most[j]), v, most[j]);
    }
  }
  const Floats all = hn::Max(hn::Max(most[0], most[1]), hn::Max(most[2], most[3]));
  float largest = hn::GetLane(hn::MaxOfLanes(FloatTag(), all));
  for (; i < count; ++i)
    if (x[i] > largest) largest = x[i];
  return largest;
}

double sum_of_exp(const float* row, int64_t count, float most) { return sum_exp(row, count, most); }

// Whole vectors; overwrites outputs up to the next multiple of 16.
HWY_INLINE void weigh_vectors(const float* x, int64_t count, const RowScale& scale, float least,
                              bool strictly, float* weight, int32_t* bucket) {
  const hn::RebindToSigned<FloatTag> di;
  for (int64_t i = 0; i < count; i += kLanes) {
    const Floats v = load(x + i);
    const Floats below = hn::Sub(set(scale.top), v);
    const Floats w = hn::Mul(exp_negative(hn::Mul(below, set(scale.rate))), set(scale.unit));
    const Floats place = hn::Min(hn::Mul(below, set(scale.buckets)), set(float{kBuckets - 1}));
    store(hn::IfThenElseZero(is_kept(v, least, strictly), hn::Round(w)), weight + i);
    const auto at = hn::ConvertTo(di, place);
    hn::StoreU(hn::Min(hn::Max(at, hn::Zero(di)), hn::Set(di, kBuckets - 1)), di, bucket + i);
  }
}

// Weights in units, 0 if not kept, and buckets. weight, bucket [kPart + 16].
void weigh_part(const float* x, int64_t count, const RowScale& scale, float least, bool strictly,
                float* weight, int32_t* bucket) {
  const int64_t whole = count / kLanes * kLanes;
  weigh_vectors(x, whole, scale, least, strictly, weight, bucket);
  if (whole == count) return;
  float rest[kLanes];
  for (int64_t i = 0; i < kLanes; ++i)
    rest[i] = whole + i < count ? x[whole + i] : -std::numeric_limits<float>::infinity();
  weigh_vectors(rest, kLanes, scale, least, strictly, weight + whole, bucket + whole);
}

// Writes the indices of nonzero weights in bucket `wanted` to `at`; returns their number.
int64_t pick_part(const float* weight, const int32_t* bucket, int64_t count, int32_t wanted,
                  int32_t* at) {
  const hn::RebindToSigned<FloatTag> di;
  int64_t picked = 0;
  for (int64_t i = 0; i < count; i += kLanes) {
    const auto here = hn::Eq(hn::LoadU(di, bucket + i), hn::Set(di, wanted));
    if (hn::AllFalse(di, here)) continue;
    for (int64_t j = i; j < std::min(i + kLanes, count); ++j) {
      at[picked] = static_cast<int32_t>(j);
      picked += bucket[j] == wanted && weight[j] > 0 ? 1 : 0;
    }
  }
  return picked;
}

// 1 - uniform (noise.h, Philox4x32-10) of ids [first, first + kDrawn). `first` is even.
HWY_INLINE void noise_rest(uint64_t seed, uint32_t position, int64_t first, double* rest) {
  const hn::ScalableTag<uint64_t> d;
  const hn::RebindToFloat<decltype(d)> df;
  constexpr int64_t kBlocks = hn::MaxLanes(hn::ScalableTag<uint64_t>());
  const auto low = hn::Set(d, 0xffffffffu);
  const auto multiply = [&](auto a, uint32_t by) {
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(d, (hn::GetLane(a) & 0xffffffffu) * by);
#else
    const hn::Repartition<uint32_t, decltype(d)> dw;
    return hn::MulEven(hn::BitCast(dw, a), hn::Set(dw, by));
#endif
  };
  const auto number = [&](auto high_word, auto low_word) {
    const auto bits = hn::Or(hn::ShiftLeft<32>(high_word), hn::And(low_word, low));
    const auto mirrored = hn::ShiftRight<12>(hn::Xor(bits, hn::Set(d, ~uint64_t{0})));
    const auto large = hn::BitCast(df, hn::Or(mirrored, hn::Set(d, 0x4330000000000000u)));  // +2^52
    return hn::Mul(hn::Sub(large, hn::Set(df, 0x1p52 - 0.5)), hn::Set(df, 0x1p-52));
  };
  for (int64_t pair = 0; pair < kDrawn / 2; pair += kBlocks) {
    auto c0 = hn::Iota(d, static_cast<uint64_t>(first / 2 + pair));
    auto c1 = hn::Set(d, position);
    auto c2 = hn::Zero(d), c3 = hn::Zero(d);
    auto k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const auto b = multiply(c2, 0xCD9E8D57u);
      const auto a = multiply(c0, 0xD2511F53u);
      c0 = hn::Xor(hn::ShiftRight<32>(b), hn::Xor(c1, hn::Set(d, k0)));
      c1 = b;
      c2 = hn::Xor(hn::ShiftRight<32>(a), hn::Xor(c3, hn::Set(d, k1)));
      c3 = a;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    hn::StoreInterleaved2(number(c1, c0), number(c3, c2), df, rest + 2 * pair);
  }
}

// Larger than the rounding errors of weights and noise, so these never decide a draw.
constexpr float kMargin = 1.001f;

HWY_INLINE void draw_block(const float* x, int64_t id, int64_t count, const RowScale& scale,
                           float least, bool strictly, uint64_t seed, uint32_t position,
                           double temperature, Draw& draw) {
  const hn::ScalableTag<double> dd;
  const hn::Rebind<float, decltype(dd)> half;
  constexpr int64_t kDoubles = hn::MaxLanes(hn::ScalableTag<double>());
  double rest[kDrawn];
  float weight[kDrawn];
  noise_rest(seed, position, id, rest);
  for (int64_t i = 0; i < kDrawn; i += kLanes) {
    const Floats v = load(x + i);
    const Floats w = exp_negative(hn::Mul(hn::Sub(set(scale.top), v), set(scale.rate)));
    store(hn::IfThenElse(is_kept(v, least, strictly), hn::Mul(w, set(kMargin)), set(-1.0f)),
          weight + i);
  }
  for (int64_t i = 0; i < kDrawn; i += kDoubles) {
    const auto bound = hn::Mul(hn::LoadU(dd, rest + i), hn::Set(dd, draw.most()));
    const auto w = hn::PromoteTo(dd, hn::LoadU(half, weight + i));
    if (hn::AllFalse(dd, hn::Ge(w, bound))) continue;
    for (int64_t j = i; j < std::min(i + kDoubles, count); ++j)
      if (weight[j] >= 0)
        draw.add(static_cast<int32_t>(id + j), exact_weight(x[j], scale.top, temperature));
  }
}

void draw_span(const float* x, const RowSpan& span, const RowScale& scale, uint64_t seed,
               uint32_t position, double temperature, Draw& draw) {
  int64_t i = span.begin;
  while (true) {
    i = first_kept(x, i, span.end, span.least, span.strictly) & ~int64_t{1};
    if (i >= span.end) return;
    // Ids before the span belong to the other span; adding them again is harmless.
    const int64_t count = std::min(kDrawn, span.end - i);
    if (count == kDrawn) {
      draw_block(x + i, i, count, scale, span.least, span.strictly, seed, position, temperature,
                 draw);
    } else {
      float last[kDrawn];
      for (int64_t j = 0; j < kDrawn; ++j)
        last[j] = j < count ? x[i + j] : -std::numeric_limits<float>::infinity();
      draw_block(last, i, count, scale, span.least, span.strictly, seed, position, temperature,
                 draw);
    }
    i += kDrawn;
    if (i >= span.end) return;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace braid
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace braid {
namespace {

HWY_EXPORT(first_kept);
HWY_EXPORT(largest_number);
HWY_EXPORT(sum_of_exp);
HWY_EXPORT(weigh_part);
HWY_EXPORT(pick_part);
HWY_EXPORT(draw_span);

constexpr float kUnits = 0x1p40f;
// Temperatures below the top where a weight is under one unit; for equal weights, bucketed width.
constexpr float kRange = 28;
// Up to this many best tokens are kept in a heap; more are cut first and then sorted.
constexpr int32_t kFewBest = 1024;

std::array<RowSpan, 2> spans_of(const Cut& cut, int64_t count) {
  const int64_t equal = std::min<int64_t>(count, int64_t{cut.id} + 1);
  return {RowSpan{0, equal, cut.value, false}, RowSpan{equal, count, cut.value, true}};
}

bool is_ahead(const Scored& a, const Scored& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

template <typename F>
void weigh_row_parts(std::span<const float> row, const Cut& cut, const RowScale& scale, F&& f) {
  alignas(64) float weight[kPart + 16];
  alignas(64) int32_t bucket[kPart + 16];
  const auto weigh = &HWY_DYNAMIC_DISPATCH(weigh_part);
  for (const RowSpan& span : spans_of(cut, std::ssize(row)))
    for (int64_t i = span.begin; i < span.end; i += kPart) {
      const int64_t count = std::min(kPart, span.end - i);
      weigh(row.data() + i, count, scale, span.least, span.strictly, weight, bucket);
      f(i, count, weight, bucket);
    }
}

}  // namespace

int32_t largest_of_row(std::span<const float> row) {
  const FlushDenormals flush;
  const float most = HWY_DYNAMIC_DISPATCH(largest_number)(row.data(), std::ssize(row));
  if (!(most > -std::numeric_limits<float>::infinity())) return -1;
  return static_cast<int32_t>(
      HWY_DYNAMIC_DISPATCH(first_kept)(row.data(), 0, std::ssize(row), most, false));
}

double log_sum_of_row(std::span<const float> row, int32_t largest) {
  if (largest < 0) return std::numeric_limits<double>::quiet_NaN();
  const FlushDenormals flush;
  const float most = row[static_cast<size_t>(largest)];
  const double sum = HWY_DYNAMIC_DISPATCH(sum_of_exp)(row.data(), std::ssize(row), most);
  return most + std::log(sum);
}

int32_t draw_of_row(std::span<const float> row, const Cut& cut, float temperature, int32_t largest,
                    uint64_t seed, int32_t position) {
  const FlushDenormals flush;
  const float top = row[static_cast<size_t>(largest)];
  Draw draw(seed, position);
  draw.add(largest, 1);
  const RowScale scale{top, -1 / temperature, 1, 0};
  for (const RowSpan& span : spans_of(cut, std::ssize(row))) HWY_DYNAMIC_DISPATCH(draw_span)
  (row.data(), span, scale, seed, static_cast<uint32_t>(position), temperature, draw);
  return draw.winner();
}

Cut RowScan::best(std::span<const float> row, int32_t count) {
  const FlushDenormals flush;
  const int32_t largest = largest_of_row(row);
  if (largest < 0 || count >= std::ssize(row)) return {};
  const RowScale scale{row[static_cast<size_t>(largest)], 0, 1, kBuckets / kRange};
  return fewest_that_hold(row, {}, scale, 0, static_cast<uint64_t>(count));
}

Cut RowScan::heaviest(std::span<const float> row, const Cut& within, float top, float temperature,
                      double share) {
  const FlushDenormals flush;
  const float rate = -1 / temperature;
  const RowScale scale{top, rate, kUnits, -rate * (kBuckets / kRange)};
  return fewest_that_hold(row, within, scale, share, 1);
}

// The fewest tokens that hold `share` of the weight and at least `least` units.
Cut RowScan::fewest_that_hold(std::span<const float> row, const Cut& within, const RowScale& scale,
                              double share, uint64_t least) {
  // Two histograms, since neighbors often hit the same bucket.
  std::array<std::array<uint64_t, kBuckets>, 2> sums{};
  weigh_row_parts(row, within, scale,
                  [&](int64_t, int64_t count, const float* weight, const int32_t* bucket) {
                    int64_t i = 0;
                    for (; i + 2 <= count; i += 2) {
                      sums[0][static_cast<size_t>(bucket[i])] +=
                          static_cast<uint64_t>(static_cast<int64_t>(weight[i]));
                      sums[1][static_cast<size_t>(bucket[i + 1])] +=
                          static_cast<uint64_t>(static_cast<int64_t>(weight[i + 1]));
                    }
                    if (i < count)
                      sums[0][static_cast<size_t>(bucket[i])] +=
                          static_cast<uint64_t>(static_cast<int64_t>(weight[i]));
                  });
  uint64_t total = 0;
  for (size_t b = 0; b < kBuckets; ++b) total += sums[0][b] += sums[1][b];
  const auto wanted =
      std::max(least, static_cast<uint64_t>(std::ceil(share * static_cast<double>(total))));
  if (wanted >= total && share == 0) return within;  // the row has fewer
  uint64_t before = 0;
  size_t b = 0;
  while (b + 1 < kBuckets && before + sums[0][b] < wanted) before += sums[0][b++];
  part_.clear();
  weigh_row_parts(row, within, scale,
                  [&](int64_t first, int64_t count, const float* weight, const int32_t* bucket) {
                    int32_t at[kPart + 16];
                    const int64_t picked = HWY_DYNAMIC_DISPATCH(pick_part)(
                        weight, bucket, count, static_cast<int32_t>(b), at);
                    for (int64_t i = 0; i < picked; ++i)
                      part_.push_back({row[static_cast<size_t>(first + at[i])], weight[at[i]]});
                  });
  return part_.empty() ? within : cut_inside(row, wanted - before);
}

// part_ holds all tokens of one bucket; cuts after the first that hold `wanted`.
Cut RowScan::cut_inside(std::span<const float> row, uint64_t wanted) {
  auto begin = part_.begin(), end = part_.end();
  const auto weight_of = [](auto from, auto to) {
    uint64_t sum = 0;
    for (; from != to; ++from) sum += static_cast<uint64_t>(from->weight);
    return sum;
  };
  while (true) {
    const auto size = end - begin;
    std::array<float, 3> three = {begin->logit, begin[size / 2].logit, end[-1].logit};
    std::sort(three.begin(), three.end());
    const float pivot = three[1];
    const auto equal =
        std::partition(begin, end, [&](const Weighed& w) { return w.logit > pivot; });
    const auto below =
        std::partition(equal, end, [&](const Weighed& w) { return w.logit == pivot; });
    const uint64_t above = weight_of(begin, equal);
    if (above >= wanted) {
      end = equal;
      continue;
    }
    wanted -= above;
    const uint64_t at_pivot = weight_of(equal, below);
    if (at_pivot < wanted && below != end) {
      wanted -= at_pivot;
      begin = below;
      continue;
    }
    // Of logits equal to the pivot, the lowest ids.
    const auto each = static_cast<uint64_t>(equal->weight);
    auto left =
        std::min<uint64_t>((wanted + each - 1) / each, static_cast<uint64_t>(below - equal));
    int64_t id = -1;
    for (; left > 0; --left) {
      id = HWY_DYNAMIC_DISPATCH(first_kept)(row.data(), id + 1, std::ssize(row), pivot, false);
      while (row[static_cast<size_t>(id)] != pivot) ++id;
    }
    return {pivot, static_cast<int32_t>(id)};
  }
}

void RowScan::list_best(std::span<const float> row, int32_t count, std::vector<Scored>& out) {
  const FlushDenormals flush;
  out.clear();
  if (count <= 0) return;
  const auto scan = &HWY_DYNAMIC_DISPATCH(first_kept);
  const auto limit = static_cast<size_t>(std::min<int64_t>(count, std::ssize(row)));
  if (count > kFewBest) {
    const Cut cut = best(row, count);
    for (const RowSpan& span : spans_of(cut, std::ssize(row)))
      for (int64_t i = span.begin;
           (i = scan(row.data(), i, span.end, span.least, span.strictly)) < span.end; ++i)
        out.push_back({static_cast<int32_t>(i), row[static_cast<size_t>(i)]});
  } else {
    float least = std::numeric_limits<float>::lowest();
    for (int64_t i = 0;
         (i = scan(row.data(), i, std::ssize(row), least, out.size() == limit)) < std::ssize(row);
         ++i) {
      const Scored found{static_cast<int32_t>(i), row[static_cast<size_t>(i)]};
      if (out.size() == limit) {
        std::pop_heap(out.begin(), out.end(), is_ahead);
        out.back() = found;
      } else {
        out.push_back(found);
      }
      std::push_heap(out.begin(), out.end(), is_ahead);
      if (out.size() == limit) least = out.front().logit;
    }
  }
  std::sort(out.begin(), out.end(), is_ahead);
}

}  // namespace braid
#endif  // HWY_ONCE
