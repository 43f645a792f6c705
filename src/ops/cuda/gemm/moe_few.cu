// moe_few.cu -- the experts of 3 to 8 tokens in two launches, of up to kMostFewPairs (token,
// expert) pairs. If the stacks have a part of the experts, also of 1 and 2 tokens.
//
// Every block makes the choice and the list itself, a warp per token (moe_few.cuh). An expert that
// several tokens chose is one entry; its weights, decoded once, meet all tokens as the 8 columns of
// an mma. Experts of other ranks are no entries.
//
// - moe_few_in: an item is 32 rows of gate and up of an entry, the shared expert's first, which
//   load before the choice. 8 warps share k, by units of 256. A warp per token stores hidden values
//   of an item during the next product, and counts them.
// - moe_few_out: block b makes rows 16 b .. of y for all tokens. 12 warps divide the (entry, 128 k)
//   pieces and add up once, in warp order. It starts when all blocks of moe_few_in have started,
//   and multiplies an entry once it is stored; a thirteenth warp polls the counts. moe_few_in never
//   waits for it.
//
// A token's sums run over all entries of the step in the order of ids, so their rounding depends on
// the other tokens.
//
// Tried and slower: two blocks of moe_few_in on a multiprocessor; the two kernels in sequence.
// More: docs/design/cuda-kernels.md.
#include <algorithm>

// Before 9.0 the kernels are empty and their functions unused.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#pragma nv_diag_suppress 177
#endif

#include "ops/cuda/gemm/moe_few.h"
#include "ops/cuda/gemm/moe_few_in.cuh"
#include "ops/cuda/gemm/moe_few_out.cuh"

namespace braid::cuda {
namespace {

// Static shared memory of both, with the second block's overhead.
constexpr int64_t kFewStaticBytes = 13 * 1024;

struct FewLaunch {
  FewInPlan in;
  FewOutPlan out;
  size_t in_shared, out_shared;
};

int64_t choice_bytes(const MoeRoute& route) {
  return int64_t{route.tokens} * choice_words(route.experts) * 4;
}

int64_t few_most(const Context& context) {
  return static_cast<int64_t>(context.shared_bytes_per_block) - kFewStaticBytes;
}

// Two stages in the room beside moe_few_in. False: not even one.
template <class Format>
bool plan_few_out(const Context& context, const MoeIn& in, const MoeOut& out, FewLaunch& launch) {
  FewOutPlan& plan = launch.out;
  plan.in_blocks = in.blocks;
  plan.in_shared_blocks = in.shared_blocks;
  if (int64_t{out.route.entries()} * 2 * out.units + 2 * out.shared_units > kMostFewPieces ||
      2 * std::max(out.x_units, out.shared_x_units) > kMostFewHalves)
    return false;
  const int64_t rows = int64_t{kOutWarps} * 2 * out.route.tokens * kFewRowBytes;
  constexpr int64_t kStage = int64_t{kOutWarps} * Slice<Format>::kBytes;
  const int64_t left = few_most(context) - static_cast<int64_t>(launch.in_shared);
  int64_t stages = std::min<int64_t>((left - rows) / kStage, kFewStages);
  if (stages < 2) stages = std::min<int64_t>((few_most(context) - rows) / kStage, 2);
  if (stages < 1) return false;
  plan.stages = static_cast<int>(stages);
  launch.out_shared = static_cast<size_t>(rows + stages * kStage);
  return choice_bytes(out.route) <= static_cast<int64_t>(launch.out_shared);
}

// At most two stages that leave room for `out_shared` on the same multiprocessor, or one.
template <class Format>
bool plan_few_in(const Context& context, const MoeIn& in, int64_t out_shared, FewLaunch& launch) {
  constexpr int kUnit = unit_bytes(Format::kPack);
  FewInPlan& plan = launch.in;
  // `inverse` is exact below.
  if (int64_t{in.route.entries()} * in.blocks * in.blocks >= 1 << 22) return false;
  plan.inverse = div_up(1 << 22, in.blocks);
  plan.sources = std::min(in.units, kInWarps);
  plan.x_bytes = in.route.tokens * in.x_units * 512;
  const int64_t exchange = std::max<int64_t>(
      int64_t{2} * plan.sources * 2 * in.route.tokens * kFewSumStride * 4, choice_bytes(in.route));
  const int64_t fixed = plan.x_bytes + exchange;
  const int64_t stage_bytes = int64_t{plan.sources} * kUnit;
  int64_t stages = std::min<int64_t>((few_most(context) - out_shared - fixed) / stage_bytes, 2);
  if (stages < 1) stages = std::min<int64_t>((few_most(context) - fixed) / stage_bytes, 2);
  if (stages < 1) return false;
  plan.stages = static_cast<int>(stages);
  // Forces one block a multiprocessor: else blocks pile up where the preceding kernel has ended.
  launch.in_shared = std::max(static_cast<size_t>(fixed + stages * stage_bytes),
                              context.shared_bytes_per_block / 2);
  return true;
}

template <class Format>
int64_t least_out_shared(const MoeOut& out) {
  return int64_t{kOutWarps} * 2 * (out.route.tokens * kFewRowBytes + Slice<Format>::kBytes);
}

}  // namespace

bool launch_moe_few(Context& context, const MoeIn& in, const MoeOut& out, Pack in_pack,
                    Pack out_pack) {
  const MoeRoute& route = in.route;
  if (route.tokens > kFewTokens || route.entries() > kMostFewPairs || route.stack > kMostFewExperts)
    return false;
  FewLaunch launch;
  const int64_t out_shared =
      with_format(out_pack, [&]<class Format>() { return least_out_shared<Format>(out); });
  if (!with_format(
          in_pack,
          [&]<class Format>() { return plan_few_in<Format>(context, in, out_shared, launch); }) ||
      !with_format(out_pack,
                   [&]<class Format>() { return plan_few_out<Format>(context, in, out, launch); }))
    return false;
  const bool plain = route.rule.plain(route.experts);
  const int64_t items = int64_t{route.entries()} * in.blocks + in.shared_blocks;
  const auto in_grid = static_cast<unsigned>(std::min<int64_t>(context.processors, items));
  with_format(in_pack, [&]<class Format>() {
    launch_early(context, plain ? moe_few_in<Format, true> : moe_few_in<Format, false>,
                 dim3(in_grid), kInThreads, launch.in_shared, in, launch.in);
  });
  const auto out_grid = static_cast<unsigned>(div_up(out.width, 16));
  with_format(out_pack, [&]<class Format>() {
    launch_early(context, plain ? moe_few_out<Format, true> : moe_few_out<Format, false>,
                 dim3(out_grid), kFewOutThreads, launch.out_shared, out, launch.out);
  });
  return true;
}

}  // namespace braid::cuda
