// moe_few.cu -- the experts of 3 to 8 tokens in two launches, of up to kMostFewPairs (token, expert) pairs:
// route + list + gate and up, then down + the sum.
//
// Every block makes the choice and the list itself, a warp for each token (moe_few.cuh): that needs no kernel
// and no border. An expert that several tokens chose is one entry; its weights, decoded once, are multiplied
// with all tokens, which are the 8 columns of an mma.
//
//   moe_few_in   an item is 32 rows of gate and up of an entry; blocks take them in turn, the shared
//                expert's first: their weights are asked for before the choice is there. Its 8 warps share k,
//                by units of 256, which bulk copies fetch whole. A warp for each token makes hidden values of
//                an item's sums a product later, so that nobody waits, and counts what is stored of each
//                entry.
//   moe_few_out  block b makes rows 16 b .. of y, for all tokens. 12 warps share out the (entry, 128 k)
//                pieces, weigh each with the tokens' weights and meet once, in warp order. It starts when all
//                blocks of moe_few_in have, and multiplies an entry as soon as all of that is stored: a
//                thirteenth warp reads the counts. So both take from memory at the same time, where both have
//                room on a multiprocessor, and no border between them is waited for; nothing in moe_few_in
//                waits for moe_few_out.
//
// Sums of a token run in the order of expert ids over all that the step's tokens chose: they are rounded
// otherwise beside other tokens.
//
// Traffic, 35B: 4 tokens touch 30 experts of 1.9 MB and the shared one, 60 MB, floor 14 us at 4.3 TB/s.
//
// Measured, and what was tried: docs/history/cuda-kernels.md.
#include <algorithm>

// Before 9.0 the kernels are empty, and nobody calls what they are made of.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#pragma nv_diag_suppress 177
#endif

#include "ops/cuda/moe/moe_few.h"
#include "ops/cuda/moe/moe_few_in.cuh"
#include "ops/cuda/moe/moe_few_out.cuh"

namespace braid::cuda {
namespace {

// What both take besides, with what the GPU takes for the second block.
constexpr int64_t kFewStaticBytes = 13 * 1024;

struct FewLaunch {
  FewInPlan in;
  FewOutPlan out;
  size_t in_shared, out_shared;
};

// The choice works in memory that is used later.
int64_t choice_bytes(const MoeRoute& route) {
  return int64_t{route.tokens} * choice_words(route.experts) * 4;
}

int64_t few_most(const Context& context) {
  return static_cast<int64_t>(context.shared_bytes_per_block) - kFewStaticBytes;
}

// Two stages, and what is left beside moe_few_in. False: not one.
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

// As many stages as leave room for `out_shared` on the same multiprocessor, two at most, or one.
template <class Format>
bool plan_few_in(const Context& context, const MoeIn& in, int64_t out_shared, FewLaunch& launch) {
  constexpr int kUnit = unit_bytes(Format::kPack);
  FewInPlan& plan = launch.in;
  // Where `inverse` is exact.
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
  // Too much for two on a multiprocessor: while the kernel before has blocks on some of them, others would
  // get two of this one, and blocks of moe_few_out the rest.
  launch.in_shared =
      std::max(static_cast<size_t>(fixed + stages * stage_bytes), context.shared_bytes_per_block / 2);
  return true;
}

// What moe_few_out wants at least.
template <class Format>
int64_t least_out_shared(const MoeOut& out) {
  return int64_t{kOutWarps} * 2 * (out.route.tokens * kFewRowBytes + Slice<Format>::kBytes);
}

}  // namespace

bool launch_moe_few(Context& context, const MoeIn& in, const MoeOut& out, Pack in_pack, Pack out_pack) {
  const MoeRoute& route = in.route;
  if (route.tokens > kFewTokens || route.entries() > kMostFewPairs || route.experts > kMostFewExperts)
    return false;
  FewLaunch launch;
  const int64_t out_shared =
      with_format(out_pack, [&]<class Format>() { return least_out_shared<Format>(out); });
  if (!with_format(in_pack,
                   [&]<class Format>() { return plan_few_in<Format>(context, in, out_shared, launch); }) ||
      !with_format(out_pack, [&]<class Format>() { return plan_few_out<Format>(context, in, out, launch); }))
    return false;
  const bool plain = route.rule.plain(route.experts);
  const int64_t items = int64_t{route.entries()} * in.blocks + in.shared_blocks;
  const auto in_grid = static_cast<unsigned>(std::min<int64_t>(context.processors, items));
  with_format(in_pack, [&]<class Format>() {
    launch_early(context, plain ? moe_few_in<Format, true> : moe_few_in<Format, false>, dim3(in_grid),
                 kInThreads, launch.in_shared, in, launch.in);
  });
  const auto out_grid = static_cast<unsigned>(div_up(out.width, 16));
  with_format(out_pack, [&]<class Format>() {
    launch_early(context, plain ? moe_few_out<Format, true> : moe_few_out<Format, false>, dim3(out_grid),
                 kFewOutThreads, launch.out_shared, out, launch.out);
  });
  return true;
}

}  // namespace braid::cuda
