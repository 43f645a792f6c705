// moe_few.cu -- the experts of 3 to 8 tokens in two launches, of up to kMostFewPairs (token, expert) pairs (5
// tokens with 8 experts each): route + list + gate and up, then down + the sum.
//
// Every block makes the choice and the list itself, a warp for each token (moe_few.cuh): that needs no kernel
// and no border. An expert that several tokens chose is one entry; its weights, decoded once, are multiplied
// with all tokens, which are the 8 columns of an mma.
//
//   moe_few_in   an item is 32 rows of gate and up of an entry; blocks take them in turn, the shared expert's
//                first: their weights are asked for before the choice is there. Its 8 warps share k, by units
//                of 256, which bulk copies fetch whole; sums meet once for each item.
//   moe_few_out  block b makes rows 16 b .. of y, for all tokens. Its warps share out the (entry, 128 k)
//                pieces, weigh each with the tokens' weights and meet once, in warp order. All that needs no
//                hidden row is done and asked for while moe_few_in still runs (launch.h).
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

// What moe_few_in leaves for a block of moe_few_out beside it, if it can; and what both take besides.
constexpr int64_t kFewOutRoom = 80 * 1024;
constexpr int64_t kFewStaticBytes = 20 * 1024;

struct FewLaunch {
  FewInPlan in;
  FewOutPlan out;
  size_t in_shared, out_shared;
};

// A choice of more than kQuickExperts works in memory that is used later.
int64_t choice_bytes(const MoeRoute& route) {
  return route.experts <= kQuickExperts ? 0 : int64_t{route.tokens} * route.experts * 4;
}

template <class Format>
bool plan_few_in(const Context& context, const MoeIn& in, FewLaunch& launch) {
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
  const auto most = static_cast<int64_t>(context.shared_bytes_per_block) - kFewStaticBytes;
  int64_t stages = std::min<int64_t>((most - kFewOutRoom - fixed) / stage_bytes, kInStages);
  if (stages < 2) stages = std::min<int64_t>((most - fixed) / stage_bytes, 2);
  if (stages < 1) return false;
  plan.stages = static_cast<int>(stages);
  launch.in_shared = static_cast<size_t>(fixed + stages * stage_bytes);
  return true;
}

template <class Format>
bool plan_few_out(const Context& context, const MoeOut& out, FewLaunch& launch) {
  FewOutPlan& plan = launch.out;
  const int64_t rows = out.route.entries() + (out.route.shared ? out.route.tokens : 0);
  if (int64_t{out.route.entries()} * 2 * out.units + 2 * out.shared_units > kMostFewPieces) return false;
  // Rows 32 bytes apart in banks.
  plan.row_bytes = std::max(out.x_units, out.shared_x_units) * 512 + 32;
  const int64_t fixed = (rows + 1) * plan.row_bytes;
  if (choice_bytes(out.route) > rows * plan.row_bytes) return false;
  constexpr int64_t kStage = int64_t{kOutWarps} * Slice<Format>::kBytes;
  const auto most = static_cast<int64_t>(context.shared_bytes_per_block) - kFewStaticBytes;
  int64_t stages = (most - static_cast<int64_t>(launch.in_shared) - fixed) / kStage;
  if (stages < 2) stages = (most - fixed) / kStage;
  stages = std::min<int64_t>(stages, kFewStages);
  plan.stages = static_cast<int>(stages);
  launch.out_shared = static_cast<size_t>(fixed + stages * kStage);
  return stages >= 1;
}

}  // namespace

bool launch_moe_few(Context& context, const MoeIn& in, const MoeOut& out, Pack in_pack, Pack out_pack) {
  const MoeRoute& route = in.route;
  if (route.tokens > kFewTokens || route.entries() > kMostFewPairs || route.experts > kMostFewExperts)
    return false;
  FewLaunch launch;
  if (!with_format(in_pack, [&]<class Format>() { return plan_few_in<Format>(context, in, launch); }) ||
      !with_format(out_pack, [&]<class Format>() { return plan_few_out<Format>(context, out, launch); }))
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
                 kOutThreads, launch.out_shared, out, launch.out);
  });
  return true;
}

}  // namespace braid::cuda
