// expert_fill.cu -- the kernel that brings a step's missing experts from host memory.
//
// Every block reads the table and makes the same choice (expert_policy.h); blocks then share the
// copying. The last block to finish changes the table, when no other reads it. The link is busy
// with a few blocks; more would only wait. The first block calls the host's threads for their share
// (expert_share.h).
#include <algorithm>

#include "ops/cuda/gemm/expert_slots.h"
#include "ops/cuda/launch.h"

namespace braid::cuda {
namespace {

constexpr int kFillThreads = 512;
constexpr int kFillBlocks = 32;
static_assert(kMostRoutedRows * 32 <= kFillThreads);
constexpr int kLoads = 4;  // of 16 bytes, in flight for a thread
constexpr int64_t kPieceBytes = int64_t{kFillThreads} * kLoads * 16;

struct FillStack {
  uint8_t* slots;
  const uint8_t* host;
  int64_t expert_bytes;
  float* scales;
  const float* all_scales;
  int blocks;
  int pieces;  // of an expert
};

struct FillArgs {
  SlotTable table;
  FillStack stack[kStackParts];
  int layer;
  int32_t* ids;
  int64_t ids_stride;
  int rows, used;
  ExpertSlots::Route route;  // of routing kernels
  TraceHeader* trace;        // null: none
  const int32_t* sequence;   // [rows]; null: no row admits
  const int32_t* certain;    // [sequences]
  const int32_t* first_row;  // [sequences]
  ShareView share;
  const Act* x;  // [rows][share.width]; of shares
  int64_t x_stride;
  float* weights;
  int64_t weights_stride;
  float expert_kib;
};

enum class Routing : uint8_t { given, plain, general };

// Padded rows choose nothing. The first row of a sequence admits if it is its only certain one.
__device__ inline bool is_padding(const FillArgs& a, int row) {
  return a.sequence != nullptr && a.sequence[row] < 0;
}
__device__ inline bool admits(const FillArgs& a, int row) {
  if (a.sequence == nullptr) return false;
  const int s = a.sequence[row];
  return a.certain[s] == 1 && row == a.first_row[s];
}

__device__ inline uint4 load_host(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// Piece `number` of the work: of the missing experts, one after the other, all stacks.
struct Piece {
  int part = 0, expert = 0, at = 0;
  uint4 bytes[kLoads];

  __device__ static int64_t place(int at, int load) {
    return at * kPieceBytes + (int64_t{load} * kFillThreads + threadIdx.x) * 16;
  }
  __device__ void load(const FillArgs& a, const ExpertChoice& choice, int number, int pieces) {
    expert = choice.missing_id[number / pieces];
    at = number % pieces;
    part = 0;
    while (at >= a.stack[part].pieces) at -= a.stack[part++].pieces;
    const FillStack& stack = a.stack[part];
    const uint8_t* from = stack.host + expert * stack.expert_bytes;
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      if (place(at, i) < stack.expert_bytes)
        bytes[i] = load_host(reinterpret_cast<const uint4*>(from + place(at, i)));
  }
  __device__ void store(const FillArgs& a, const ExpertChoice& choice) const {
    const FillStack& stack = a.stack[part];
    const int slot = choice.dest[expert];
    uint8_t* to = stack.slots + slot * stack.expert_bytes;
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      if (place(at, i) < stack.expert_bytes)
        *reinterpret_cast<uint4*>(to + place(at, i)) = bytes[i];
    if (at > 0) return;
    for (int i = static_cast<int>(threadIdx.x); i < stack.blocks; i += kFillThreads)
      stack.scales[slot * stack.blocks + i] = stack.all_scales[expert * stack.blocks + i];
  }
};

// Ids of the trace, [rows][used]; null: there is none.
__device__ inline const int32_t* traced_ids(const FillArgs& a) {
  TraceHeader* const trace = a.trace;
  if (trace == nullptr || trace->steps == 0) return nullptr;
  if (blockIdx.x == 0 && threadIdx.x == 0)
    ++trace->done[(a.layer + trace->layers - 1) % trace->layers];
  const int64_t step = trace->done[a.layer] % static_cast<uint32_t>(trace->steps);
  return reinterpret_cast<const int32_t*>(trace + 1) +
         (step * trace->layers + a.layer) * trace->rows * a.used;
}

// Choice i, of row i / used; -1: padding. Of a trace the first block tells the products.
__device__ inline int choice_of(const FillArgs& a, const int32_t* traced, int i) {
  int32_t& told = a.ids[i / a.used * a.ids_stride + i % a.used];
  const int id = traced == nullptr ? told : traced[i % (a.trace->rows * a.used)];
  if (traced != nullptr && blockIdx.x == 0) told = id;
  return is_padding(a, i / a.used) ? -1 : id;
}

// Every block routes, the first one tells.
template <bool kPlain>
__device__ inline void route_rows(const FillArgs& a, int32_t* ids, uint32_t* words, int thread) {
  const int row = thread / 32;
  const int lane = thread % 32;
  if (row >= a.rows) return;
  const Choice choice =
      choose<kPlain>(a.route.rule, a.route.logits + row * a.route.logits_stride,
                     words + row * choice_words(a.table.experts), a.table.experts, a.used, lane);
  if (lane >= a.used) return;
  ids[row * a.used + lane] = choice.id;
  if (blockIdx.x > 0) return;
  a.ids[row * a.ids_stride + lane] = choice.id;
  a.route.weights[row * a.route.weights_stride + lane] = choice.weight;
}

struct FewChoices {
  enum Row : uint8_t { counts_not, admitting, padding };
  int32_t ids[kMostQuickIds];
  Row row[kMostQuickIds];
  uint32_t distinct;
};

// Fills few.ids. True: all have slots, and the table is done.
template <Routing kRouting>
__device__ inline bool hits_alone(const FillArgs& a, FewChoices& few, const int32_t* traced,
                                  uint32_t* words, int thread) {
  const int count = a.rows * a.used;
  if (thread == 0) few.distinct = 0;
  // By another warp than those that route: these loads depend on each other.
  if (const int row = thread - (kFillThreads - 32); row >= 0 && row < a.rows)
    few.row[row] = is_padding(a, row) ? FewChoices::padding
                   : admits(a, row)   ? FewChoices::admitting
                                      : FewChoices::counts_not;
  if (kRouting != Routing::given) route_rows<kRouting == Routing::plain>(a, few.ids, words, thread);
  if (kRouting == Routing::given || traced != nullptr) {
    __syncthreads();
    if (thread < count) few.ids[thread] = choice_of(a, traced, thread);
  }
  __syncthreads();
  const int row = thread < count ? thread / a.used : 0;
  int id = -1;
  if (thread < count && few.row[row] != FewChoices::padding) id = few.ids[thread];
  bool slow = thread == 0 && *a.table.staged != 0;
  slow = slow || (id >= 0 && a.table.place[id] == kNoSlot);
  if (__syncthreads_or(slow ? 1 : 0) != 0) return false;
  if (blockIdx.x > 0 || thread >= 32) return true;
  const uint32_t bits = __ballot_sync(kFullWarp, id >= 0 && few.row[row] == FewChoices::admitting);
  few.ids[thread] = id;
  __syncwarp();
  count_hits(Team{thread, 32, false}, a.table, few.ids, bits, count, &few.distinct);
  return true;
}

__device__ inline ShareTimes times_of(const FillArgs& a) {
  const ShareAnswer::Rates& rates = a.share.state->rates;
  return {rates.read_ns * a.expert_kib, rates.compute_ns[share_row_class(a.rows)] * a.expert_kib,
          rates.ahead_ns};
}

// By one block. The choice has experts for the host.
__device__ inline void call_host(const FillArgs& a, const ExpertChoice& choice, int read) {
  __shared__ uint32_t rows_with[kMostShareRows / 32];
  const int thread = static_cast<int>(threadIdx.x);
  ShareState& state = *a.share.state;
  ShareCall& call = *a.share.host.call;
  if (thread < kMostShareRows / 32) rows_with[thread] = 0;
  __syncthreads();
  for (int i = thread; i < a.rows * a.used; i += kFillThreads) {
    const int row = i / a.used;
    const int at = i % a.used;
    const int id = is_padding(a, row) ? -1 : a.ids[row * a.ids_stride + at];
    const bool own = id >= 0 && has_bit(choice.by_host, id);
    float& weight = a.weights[row * a.weights_stride + at];
    call.ids[i] = own ? id : -1;
    call.weights[i] = own ? weight : 0.0f;
    if (!own) continue;
    weight = 0;
    atomicOr(&rows_with[row / 32], 1u << row % 32);
  }
  for (int i = thread; i < ExpertChoice::kWords; i += kFillThreads)
    call.mine[i] = choice.by_host[i];
  __syncthreads();
  const int pieces = static_cast<int>(a.share.width) / 8;
  const int all = a.rows * pieces;
  for (int first = thread; first < all; first += kLoads * kFillThreads) {
    uint4 v[kLoads];
    const auto wanted = [&](int i) {
      const int at = first + i * kFillThreads;
      return at < all && has_bit(rows_with, at / pieces);
    };
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = first + i * kFillThreads;
      if (wanted(i))
        v[i] = *reinterpret_cast<const uint4*>(a.x + at / pieces * a.x_stride + at % pieces * 8);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      if (wanted(i)) reinterpret_cast<uint4*>(a.share.host.x)[first + i * kFillThreads] = v[i];
  }
  if (thread == 0) {
    call.layer = a.layer;
    call.rows = a.rows;
    call.used = a.used;
  }
  __threadfence_system();
  __syncthreads();
  if (thread != 0) return;
  uint32_t number = state.calls + 1;
  if (number == 0) number = 1;
  state.calls = state.call = number;
  for (int w = 0; w < kMostShareRows / 32; ++w) state.rows_with[w] = rows_with[w];
  state.read_kib = static_cast<float>(read) * a.expert_kib;
  state.called_ns = state.read_ns = gpu_clock_ns();
  __threadfence_system();
  *static_cast<volatile uint32_t*>(&call.number) = number;
}

template <Routing kRouting>
__global__ void __launch_bounds__(kFillThreads) fill_kernel(const __grid_constant__ FillArgs a) {
  extern __shared__ __align__(16) uint32_t words[];
  __shared__ ExpertChoice choice;
  __shared__ FewChoices few;
  __shared__ bool last;
  const int thread = static_cast<int>(threadIdx.x);
  const Team team{thread, kFillThreads};
  clear_choice(team, choice);
  wait_for_previous();
  let_next_start();
  ShareTimes times;
  bool shares = a.share.state != nullptr;
  if (shares) {
    times = times_of(a);
    shares = a.share.state->late == 0;
  }
  if (a.share.state != nullptr && blockIdx.x == 0 && thread == 0) a.share.state->call = 0;
  const int32_t* traced = traced_ids(a);
  const bool quick = a.rows * a.used <= kMostQuickIds;
  if (quick && hits_alone<kRouting>(a, few, traced, words, thread)) return;
  for (int i = thread; i < a.rows * a.used; i += kFillThreads) {
    int id = quick ? few.ids[i] : choice_of(a, traced, i);
    if (quick && few.row[i / a.used] == FewChoices::padding) id = -1;
    if (id >= 0) count_use(team, choice, a.table, id, admits(a, i / a.used));
  }
  const int missing = find_missing(team, choice, a.table);
  if (missing == 0 && blockIdx.x > 0) return;
  int pieces = 0;
#pragma unroll
  for (int part = 0; part < kStackParts; ++part) pieces += a.stack[part].pieces;
  int read = missing;
  const bool helped = shares && host_helps(a.table, missing, times);
  if (helped) {
    score_all(team, choice, a.table);
    read = choose_read(team, choice, a.table, missing, times);
    give_to_host(team, choice, a.table, missing, read);
    if (blockIdx.x == 0 && read < missing) call_host(a, choice, read);
  }
  // The first piece is on its way while slots are chosen.
  int number = static_cast<int>(blockIdx.x);
  Piece piece;
  if (number < read * pieces) piece.load(a, choice, number, pieces);
  if (!helped) score_all(team, choice, a.table);
  if (missing == 0) return publish(team, choice, a.table);
  choose_slots(team, choice, a.table);
#pragma unroll 1
  for (; number < read * pieces; number += static_cast<int>(gridDim.x)) {
    if (number >= static_cast<int>(gridDim.x)) piece.load(a, choice, number, pieces);
    piece.store(a, choice);
  }
  __syncthreads();
  if (thread == 0) {
    __threadfence();
    last = atomicAdd(a.table.arrived, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  if (thread == 0) {
    *a.table.arrived = 0;
    if (shares && read < missing) a.share.state->read_ns = gpu_clock_ns();
  }
  publish(team, choice, a.table);
}

struct SpreadArgs {
  struct {
    float* scales;
    const float* all_scales;
    int blocks;
  } stack[kStackParts];
  const int32_t* slot_of;
};

__global__ void spread_kernel(const SpreadArgs a) {
  const int expert = static_cast<int>(blockIdx.x);
  let_next_start();  // short, see launch.h
  wait_for_previous();
  const int slot = a.slot_of[expert];
  for (const auto& stack : a.stack)
    for (int i = static_cast<int>(threadIdx.x); i < stack.blocks; i += static_cast<int>(blockDim.x))
      stack.scales[slot * stack.blocks + i] = stack.all_scales[expert * stack.blocks + i];
}

}  // namespace

void spread_scales(Context& context, const SlotLayer& layer) {
  SpreadArgs args{};
  for (int part = 0; part < kStackParts; ++part) {
    const ExpertStack& stack = layer.stack[part];
    args.stack[part] = {const_cast<float*>(stack.weight->scales), stack.all_scales,
                        static_cast<int>(stack.weight->blocks)};
  }
  args.slot_of = layer.slot_of;
  launch_early(context, spread_kernel, dim3(static_cast<unsigned>(layer.table.experts)), 64, 0,
               args);
}

void ExpertSlots::fetch(SlotLayer& layer, Tensor ids, const Batch& batch, const Route* route,
                        const Shared* shared) {
  if (ids.rows == 0) return;
  BRAID_CHECK(ids.type == DType::i32);
  if (ids.rows > kStreamRows && !recording) return stream(layer);
  BRAID_CHECK(ids.rows * ids.cols < kAdmits);
  if (!recording) will_fetch();
  layer.slot_of = layer.table.slot_of;
  FillArgs args{};
  layer.table.half_life =
      half_life_of(layer.table.slots, static_cast<int>(ids.cols) * std::max(1, batch.sequences));
  args.table = layer.table;
  args.layer = layer.number;
  for (int part = 0; part < kStackParts; ++part) {
    const ExpertStack& stack = layer.stack[part];
    args.stack[part] = {const_cast<uint8_t*>(stack.weight->data),
                        stack.mapped,
                        stack.expert_bytes,
                        const_cast<float*>(stack.weight->scales),
                        stack.all_scales,
                        static_cast<int>(stack.weight->blocks),
                        static_cast<int>(div_up(stack.expert_bytes, kPieceBytes))};
  }
  args.ids = static_cast<int32_t*>(ids.data);
  args.ids_stride = ids.stride;
  args.rows = static_cast<int>(ids.rows);
  args.used = static_cast<int>(ids.cols);
  args.trace = static_cast<TraceHeader*>(trace_memory_.data());
  args.sequence = batch.sequence;
  args.certain = batch.certain;
  args.first_row = batch.first_row;
  if (shared != nullptr) {
    args.share = share_view_;
    args.x = static_cast<const Act*>(shared->x.data);
    args.x_stride = shared->x.stride;
    args.weights = shared->weights.f32();
    args.weights_stride = shared->weights.stride;
    args.expert_kib = static_cast<float>(layer.expert_bytes()) / 1024;
  }
  const dim3 blocks(static_cast<unsigned>(std::min(kFillBlocks, context_.processors)));
  if (route == nullptr)
    return launch_early(context_, fill_kernel<Routing::given>, blocks, kFillThreads, 0, args);
  BRAID_CHECK(routes(ids.rows, ids.cols));
  args.route = *route;
  const auto words = static_cast<size_t>(args.rows * choice_words(args.table.experts));
  const auto kernel = route->rule.plain(args.table.experts) ? fill_kernel<Routing::plain>
                                                            : fill_kernel<Routing::general>;
  launch_early(context_, kernel, blocks, kFillThreads, words * sizeof(uint32_t), args);
}

}  // namespace braid::cuda
