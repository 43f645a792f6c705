// moe_skinny.cu -- the experts of one or two tokens in two launches: route + gate and up, then down
// + the sum.
//
// Every block makes the choice itself (moe_skinny.cuh). Each token's experts are entries of their
// own, so the cut of work is known before the choice.
//
// - moe_in: an item is 32 rows of gate and up of an entry. With a few more items than
//   multiprocessors every block has one; else a block has several, the shared expert's first. 8
//   warps share k, by units of 256.
// - moe_out: block b makes rows 16 b .. of y, for all tokens. Warps divide the (entry, 128 k)
//   pieces and add up once, in warp order. It repeats the choice and loads weights while moe_in
//   runs (launch.h).
//
// The order of sums depends on the tokens' places alone: the same step gives the same bytes.
//
// Latency counts (a warp issues an instruction in about 8 clocks). Tried and slower: 16 warps in
// moe_in; two items in some blocks. A dry run before the wait gains nothing. More:
// docs/design/cuda-kernels.md.
#include <algorithm>

// Before 9.0 the kernels are empty and their functions unused.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#pragma nv_diag_suppress 177
#endif

#include "ops/cuda/gemm/expert_slots.h"
#include "ops/cuda/gemm/gemm.h"
#include "ops/cuda/gemm/moe_few.h"
#include "ops/cuda/gemm/moe_skinny_in.cuh"
#include "ops/cuda/gemm/moe_skinny_out.cuh"

namespace braid::cuda {
namespace {

struct MoeLaunch {
  unsigned in_grid, out_grid;
  InPlan in;
  OutPlan out;
  size_t in_shared, out_shared;
};

// Room that moe_in leaves for a block of moe_out; static memory of both.
constexpr int64_t kOutRoom = 80 * 1024;
constexpr int64_t kStaticBytes = 22 * 1024;

template <class InFormat>
bool plan_in(const Context& context, const MoeIn& in, MoeLaunch& launch) {
  constexpr int kUnit = unit_bytes(InFormat::kPack);
  InPlan& plan = launch.in;
  const int64_t items = int64_t{in.route.tokens} * in.route.used * in.blocks;
  // `inverse` is exact below.
  if ((items + 2 * context.processors) * in.blocks >= 1 << 22) return false;
  plan.items = static_cast<int>(items);
  plan.inverse = div_up(1 << 22, in.blocks);
  plan.sources = std::min(in.units, kInWarps);
  plan.x_bytes = in.route.tokens * in.x_units * 512 + in.x_units * 2 * kHalfSums<InFormat> * 4;
  // With a few more items than multiprocessors, two blocks share some of these.
  const int64_t all = items + in.shared_blocks;
  const bool spread = all > context.processors && all <= context.processors * 5 / 4;
  launch.in_grid = static_cast<unsigned>(spread ? all : std::min<int64_t>(context.processors, all));
  plan.uneven = static_cast<int>(items % launch.in_grid);
  const int64_t exchange = int64_t{2} * plan.sources * 2 * in.route.tokens * 32 * 4;
  const int64_t fixed = plan.x_bytes + exchange;
  const int64_t stage_bytes = int64_t{plan.sources} * kUnit;
  const auto most = static_cast<int64_t>(context.shared_bytes_per_block) - kStaticBytes;
  const int64_t own_items = spread ? 1
                                   : div_up<int64_t>(items, launch.in_grid) +
                                         div_up<int64_t>(in.shared_blocks, launch.in_grid);
  const int64_t useful =
      std::min<int64_t>(own_items * 2 * div_up(in.units, plan.sources), kInStages);
  int64_t stages = std::min((most - kOutRoom - fixed) / stage_bytes, useful);
  if (stages < 2)
    stages = std::min<int64_t>((most - fixed) / stage_bytes, std::min<int64_t>(useful, 2));
  if (stages < 1) return false;
  plan.stages = static_cast<int>(stages);
  launch.in_shared = static_cast<size_t>(fixed + stages * stage_bytes);
  return true;
}

template <class OutFormat>
bool plan_out(const Context& context, const MoeOut& out, MoeLaunch& launch) {
  const int64_t pairs = int64_t{out.route.tokens} * out.route.used;
  const int x_units = std::max(out.x_units, out.shared_x_units);
  launch.out_grid = static_cast<unsigned>(div_up(out.width, 16));
  launch.out.entry_step = kOutWarps / (2 * out.units);
  launch.out.half_step = kOutWarps % (2 * out.units);
  // Rows are 32 bytes apart in banks.
  launch.out.row_bytes = x_units * 512 + 32;
  launch.out.row_sums = x_units * 2 * kHalfSums<OutFormat>;
  const int64_t fixed =
      kZeroBytes + (pairs + out.route.tokens) * (launch.out.row_bytes + launch.out.row_sums * 4);
  constexpr int64_t kStage = int64_t{kOutWarps} * Slice<OutFormat>::kBytes;
  const auto most = static_cast<int64_t>(context.shared_bytes_per_block) - kStaticBytes;
  const int64_t pieces = pairs * 2 * out.units + 2 * out.shared_units;
  const int64_t useful = std::clamp<int64_t>(div_up<int64_t>(pieces, kOutWarps), 1, kSliceStages);
  int64_t stages = (most - static_cast<int64_t>(launch.in_shared) - fixed) / kStage;
  if (stages < std::min<int64_t>(useful, 2)) stages = std::min<int64_t>((most - fixed) / kStage, 4);
  stages = std::min(stages, useful);
  launch.out.stages = static_cast<int>(stages);
  launch.out_shared = static_cast<size_t>(fixed + stages * kStage);
  return stages >= 1;
}

// False: a matrix has a form that the kernels do not take.
bool fill_matrices(MoeIn& in, MoeOut& out, const MoeWeights& w) {
  if (!Gemm::same_form(*w.gate, *w.up)) return false;
  const PackedWeight& gate = packed(*w.gate);
  const PackedWeight& up = packed(*w.up);
  const PackedWeight& down = packed(*w.down);
  const auto to_eight = [](int64_t width) { return static_cast<int>((width + 7) / 8 * 8); };
  in.matrix[0] = {gate.data, gate.scales, nullptr, nullptr};
  in.matrix[1] = {up.data, up.scales, nullptr, nullptr};
  in.units = gate.units;
  in.x_units = gate.x_units;
  in.blocks = static_cast<int>(gate.blocks);
  in.rows = to_eight(w.gate->n);
  out.matrix = {down.data, down.scales, nullptr, nullptr};
  out.units = down.units;
  out.x_units = down.x_units;
  out.blocks = static_cast<int>(down.blocks);
  if (w.shared_gate != nullptr) {
    const PackedWeight& shared_gate = packed(*w.shared_gate);
    const PackedWeight& shared_up = packed(*w.shared_up);
    const PackedWeight& shared_down = packed(*w.shared_down);
    const bool twice = down.units != down.x_units;  // f32
    if (!Gemm::same_form(*w.gate, *w.shared_gate) || !Gemm::same_form(*w.gate, *w.shared_up) ||
        shared_down.pack != down.pack || (shared_down.units != shared_down.x_units) != twice)
      return false;
    in.matrix[0].shared_units = shared_gate.data;
    in.matrix[0].shared_scales = shared_gate.scales;
    in.matrix[1].shared_units = shared_up.data;
    in.matrix[1].shared_scales = shared_up.scales;
    in.shared_blocks = static_cast<int>(shared_gate.blocks);
    in.shared_rows = to_eight(w.shared_gate->n);
    out.matrix.shared_units = shared_down.data;
    out.matrix.shared_scales = shared_down.scales;
    out.shared_units = shared_down.units;
    out.shared_x_units = shared_down.x_units;
  }
  out.hidden_cols = in.rows;
  out.shared_cols = in.shared_rows;
  return true;
}

}  // namespace

bool moe_skinny(Context& context, const MoeMemory& memory, Tensor y, Tensor x, Tensor ids,
                Tensor weights, const Tensor* logits, const ChoiceRule& rule, const MoeWeights& w) {
  const bool readable =
      reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % 8 == 0 && x.cols % 8 == 0;
  if (!context.has_bulk_copies || x.rows > kFewTokens || ids.cols > kMostUsed || !readable ||
      y.type != DType::f32 || x.type != kActType)
    return false;
  const bool few = x.rows > kSkinnyTokens || !w.whole();
  // Experts in slots take the form of resident ones.
  const SlotLayer* const slots = packed(*w.gate).slots;
  if (!few && (logits != nullptr || slots != nullptr) &&
      !MoeList::takes(static_cast<int>(w.routed()), static_cast<int>(ids.cols)))
    return false;
  BRAID_CHECK(w.first_expert >= 0 && w.first_expert + w.gate->experts <= w.routed());
  BRAID_CHECK(y.cols == w.down->n && x.cols == w.gate->k && w.down->k == w.gate->n &&
              y.rows >= x.rows);
  BRAID_CHECK(ids.type == DType::i32 && ids.rows >= x.rows && weights.rows >= x.rows &&
              weights.cols == ids.cols);
  MoeIn in;
  MoeOut out;
  if (!fill_matrices(in, out, w)) return false;
  MoeRoute& route = in.route;
  if (logits != nullptr) {
    route.logits = logits->f32();
    route.logits_stride = logits->stride;
    route.rule = rule;
  }
  route.ids = static_cast<int32_t*>(ids.data);
  route.ids_stride = ids.stride;
  route.weights = weights.f32();
  route.weights_stride = weights.stride;
  route.tokens = static_cast<int>(x.rows);
  route.used = static_cast<int>(ids.cols);
  route.experts = static_cast<int>(w.routed());
  route.first_expert = w.first_expert;
  route.stack = static_cast<int>(w.gate->experts);
  if (slots != nullptr) route.slot_of = slots->slot_of;
  route.shared = w.shared_gate != nullptr;
  route.stored = memory.stored;
  out.route = route;
  in.x = out.x = static_cast<const Act*>(x.data);
  in.x_stride = out.x_stride = x.stride;
  in.k = out.x_cols = static_cast<int>(x.cols);
  in.hidden = memory.hidden;
  in.hidden_stride = std::max(in.rows, in.shared_rows);
  out.hidden = memory.hidden;
  out.hidden_stride = in.hidden_stride;
  out.y = y.f32();
  out.y_stride = y.stride;
  out.width = static_cast<int>(w.down->n);
  out.shared_scale = w.shared_scale;
  const Pack in_pack = packed(*w.gate).pack;
  const Pack out_pack = packed(*w.down).pack;
  if (few) return launch_moe_few(context, in, out, in_pack, out_pack);
  MoeLaunch launch;
  if (!with_format(in_pack, [&]<class Format>() { return plan_in<Format>(context, in, launch); }) ||
      !with_format(out_pack,
                   [&]<class Format>() { return plan_out<Format>(context, out, launch); }))
    return false;
  const bool plain = route.rule.plain(route.experts);
  with_format(in_pack, [&]<class Format>() {
    launch_early(context, plain ? moe_in<Format, true> : moe_in<Format, false>,
                 dim3(launch.in_grid), kInThreads, launch.in_shared, in, launch.in);
  });
  with_format(out_pack, [&]<class Format>() {
    launch_early(context, plain ? moe_out<Format, true> : moe_out<Format, false>,
                 dim3(launch.out_grid), kOutThreads, launch.out_shared, out, launch.out);
  });
  return true;
}

}  // namespace braid::cuda
