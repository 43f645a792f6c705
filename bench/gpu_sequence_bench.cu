// gpu_sequence_bench.cu -- times the GPU ops on per-sequence data (delta, attention, norms).
//   gpu_sequence_bench [part of a row's name]
// Median of graph replays. A graph has one call per layer, over at least 320 MB of state or cells,
// so each call misses the L2 cache, as in a step.
// Bytes and flops are counted, not measured. `copy` counts bytes read and written. 790 TFLOP/s is
// the measured bf16 product rate.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/cuda/cuda_device.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/delta/delta_forms.h"
#include "ops/device.h"
#include "ops/kv/kv_codec.h"

namespace braid {
namespace {

using cuda::Context;

constexpr double kPeakFlops = 790e12;
double copy_rate = 0;  // bytes per second
const char* only = "";

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

__device__ uint32_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<uint32_t>(z >> 32);
}
template <typename T>
__global__ void fill_kernel(T* data, int64_t count, float scale, uint64_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const uint32_t a = mix(i * 0x9E3779B97F4A7C15u + seed),
                   b = mix(i * 0x9E3779B97F4A7C15u + seed + 77);
    data[i] = static_cast<T>(scale * ((a >> 8) * 0x1p-23f - 1.0f + (b >> 8) * 0x1p-23f - 1.0f));
  }
}

class Arena {
 public:
  ~Arena() {
    for (void* p : blocks_) cudaFree(p);
  }
  template <typename T>
  T* take(int64_t count) {
    void* p = nullptr;
    check(cudaMalloc(&p, std::max<int64_t>(count, 64) * sizeof(T)), "allocate");
    check(cudaMemset(p, 0, std::max<int64_t>(count, 64) * sizeof(T)), "clear");
    blocks_.push_back(p);
    return static_cast<T*>(p);
  }
  template <typename T>
  T* random(int64_t count, float scale) {
    T* p = take<T>(count);
    fill_kernel<<<1024, 256>>>(p, count, scale, ++seed_);
    return p;
  }
  const int32_t* list(const std::vector<int32_t>& values) {
    int32_t* p = take<int32_t>(std::ssize(values));
    check(cudaMemcpy(p, values.data(), values.size() * 4, cudaMemcpyHostToDevice), "upload");
    return p;
  }
  Tensor act(int64_t rows, int64_t cols, float scale = 1.0f) {
    return {random<__half>(rows * cols, scale), DType::f16, rows, cols, cols};
  }
  Tensor wide(int64_t rows, int64_t cols, float scale = 1.0f) {
    return {random<float>(rows * cols, scale), DType::f32, rows, cols, cols};
  }

 private:
  std::vector<void*> blocks_;
  uint64_t seed_ = 0;
};

// Seconds per call: the median replay of a graph of calls 0 .. calls-1, divided by `calls`.
double seconds_per_call(Context& context, int calls, const std::function<void(int)>& call) {
  call(0);
  check(cudaStreamSynchronize(context.stream), "warm up");
  if (!context.healthy()) {
    std::fprintf(stderr, "%s\n", context.first_error.c_str());
    std::exit(1);
  }
  check(cudaStreamBeginCapture(context.stream, cudaStreamCaptureModeThreadLocal), "record");
  for (int i = 0; i < calls; ++i) call(i);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check(cudaStreamEndCapture(context.stream, &graph), "record");
  check(cudaGraphInstantiate(&exec, graph, 0), "record");
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < 12; ++i) {
    check(cudaEventRecord(begin, context.stream), "event");
    check(cudaGraphLaunch(exec, context.stream), "replay");
    check(cudaEventRecord(end, context.stream), "event");
    check(cudaEventSynchronize(end), "replay");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "event");
    if (i >= 2) times.push_back(ms);
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] * 1e-3 / calls;
}

void print_row(const std::string& name, double seconds, double bytes, double flops) {
  std::printf("%-44s %9.2f us %8.0f GB/s %5.1f %% of copy", name.c_str(), seconds * 1e6,
              bytes / seconds * 1e-9, 100 * bytes / seconds / copy_rate);
  if (flops > 0)
    std::printf(" %7.1f TFLOP/s %5.1f %% of bf16", flops / seconds * 1e-12,
                100 * flops / seconds / kPeakFlops);
  std::printf("\n");
  std::fflush(stdout);
}
bool wanted(const std::string& name) { return name.find(only) != std::string::npos; }

struct ModelShape {
  const char* name;
  DeltaShape delta;
  int32_t heads, kv_heads, head_dim;
  int64_t width;
};
const ModelShape kShapes[] = {
    {"27B", {16, 48, 128, 128, 4}, 24, 4, 256, 5120},
    {"35B-A3B", {16, 32, 128, 128, 4}, 16, 2, 256, 2048},
};

// Parents of uncertain rows, -1 for roots: a chain of up to eight, then siblings of its members.
int32_t parent_of(int32_t node) { return node < 8 ? node - 1 : node - 9; }

// Rows of sequences at position `past`: `certain` certain rows each, and `nodes` uncertain rows for
// the first `drafting` sequences.
struct Rows {
  Batch batch;
  int32_t blocks = 0;
  Rows(Arena& arena, int32_t sequences, int32_t past, int32_t certain, int32_t nodes,
       int32_t drafting = 1 << 30) {
    const int32_t per_sequence = (past + certain + nodes + kBlockTokens - 1) / kBlockTokens;
    blocks = per_sequence * sequences;
    std::vector<int32_t> position, cell, sequence, parent, first, count, sure, context, slot, table;
    for (int32_t s = 0; s < sequences; ++s) {
      const int32_t rows = certain + (s < drafting ? nodes : 0), first_row = batch.tokens;
      first.push_back(first_row);
      count.push_back(rows);
      sure.push_back(certain);
      context.push_back(past + certain);
      slot.push_back(s);
      for (int32_t i = 0; i < rows; ++i) {
        position.push_back(past + i);
        cell.push_back(past + i);
        sequence.push_back(s);
        const int32_t up = i < certain ? -1 : parent_of(i - certain);
        parent.push_back(up < 0 ? -1 : first_row + certain + up);
      }
      batch.tokens += rows;
      for (int32_t b = 0; b < per_sequence; ++b) table.push_back(b * sequences + s);  // scattered
    }
    batch.sequences = sequences;
    batch.most_rows = certain + nodes;
    batch.most_certain = certain;
    batch.most_uncertain = nodes;
    batch.token = batch.position = arena.list(position);
    batch.cell = arena.list(cell);
    batch.sequence = arena.list(sequence);
    batch.parent = arena.list(parent);
    batch.first_row = arena.list(first);
    batch.rows = arena.list(count);
    batch.certain = arena.list(sure);
    batch.context = arena.list(context);
    batch.slot = arena.list(slot);
    batch.block_table = arena.list(table);
    batch.blocks_per_sequence = per_sequence;
  }
};

struct Gpu {
  Context context;
  std::unique_ptr<Device> device;
};

Device::WorkspaceNeeds needs_of(const ModelShape& m, int32_t tokens, int32_t sequences,
                                int32_t drafts = 1) {
  Device::WorkspaceNeeds needs;
  needs.max_drafts = drafts;
  needs.max_tokens = tokens;
  needs.max_sequences = sequences;
  needs.max_heads = m.heads;
  needs.head_dim = m.head_dim;
  needs.kv_heads = m.kv_heads;
  needs.delta = m.delta;
  return needs;
}

CudaOps ops_of(Gpu& gpu, const ModelShape& m, int32_t tokens, int32_t sequences,
               int32_t drafts = 1) {
  CudaOps ops(gpu.context);
  if (const auto bytes = ops.reserve(*gpu.device, needs_of(m, tokens, sequences, drafts));
      !bytes.ok()) {
    std::fprintf(stderr, "%s\n", bytes.error().message.c_str());
    std::exit(1);
  }
  return ops;
}

__global__ void stand_at(cuda::DeltaView layer, int64_t layer_elements, int folded) {
  layer.data += blockIdx.y * layer_elements;
  if (threadIdx.x >= layer.value_heads) return;
  layer.decay(blockIdx.x)[threadIdx.x] = 1.0f;
  layer.folded(blockIdx.x)[threadIdx.x] = folded;
}

// Averages one layer over a cycle of folds; replays restore states. The ring fits `uncertain` rows.
void delta_row(Gpu& gpu, const ModelShape& m, int32_t sequences, int32_t certain, int32_t nodes,
               int32_t uncertain) {
  const bool run = certain > 1;
  std::string name = std::string("delta ") + m.name +
                     (nodes > 0 ? " verify "
                      : run     ? " prefill "
                                : " step ") +
                     std::to_string(sequences) + " x " + std::to_string(certain + nodes);
  if (uncertain > nodes) name += ", lag " + std::to_string(uncertain);
  if (!wanted(name)) return;
  Context& context = gpu.context;
  Arena arena;
  const DeltaShape& d = m.delta;
  const DeltaRing ring = gpu.device->delta_ring(uncertain);
  const int steps = run ? 1 : ring.every;
  constexpr int32_t kPast = 1000;
  std::vector<std::unique_ptr<Rows>> rows;
  for (int i = 0; i < steps; ++i)
    rows.push_back(std::make_unique<Rows>(arena, sequences, kPast + i, certain, nodes));
  const int64_t slot_bytes = d.slot_elements(ring) * 4;
  const int layers =
      static_cast<int>(std::clamp<int64_t>(320'000'000 / (slot_bytes * sequences) + 1, 2, 48));
  const int64_t layer_elements = sequences * d.slot_elements(ring);
  float* states = arena.random<float>(layers * layer_elements, 0.2f);
  const auto layer = [&](int i) {
    return DeltaLayer{d, ring, sequences, 1, states + i % layers * layer_elements};
  };
  std::vector<float> a(static_cast<size_t>(d.value_heads));
  for (size_t h = 0; h < a.size(); ++h) a[h] = -0.02f * static_cast<float>(h + 1);
  float* a_device = arena.take<float>(std::ssize(a));
  check(cudaMemcpy(a_device, a.data(), a.size() * 4, cudaMemcpyHostToDevice), "a");
  const int64_t t = rows[0]->batch.tokens;
  const DeltaInputs in{arena.act(t, d.channels()), arena.act(t, d.value_width()),
                       arena.wide(t, d.value_heads), arena.wide(t, d.value_heads)};
  const DeltaWeights w{arena.random<float>(d.channels() * d.conv_width, 0.5f), a_device,
                       arena.random<float>(d.value_heads, 1.0f),
                       arena.random<float>(d.value_dim, 1.0f), 1e-6f};
  const Tensor o = arena.act(t, d.value_width());
  const int32_t drafts = std::max({uncertain, nodes, 1});
  CudaOps ops = ops_of(gpu, m, static_cast<int32_t>(t), sequences, drafts);
  const Device::WorkspaceNeeds needs = needs_of(m, static_cast<int32_t>(t), sequences, drafts);
  const auto work =
      cuda::place_sequence_workspace(arena.take<char>(cuda::sequence_bytes(needs)), needs);
  const int32_t stood = run ? kPast : ring.fold_position(kPast - 1);
  const auto timed =
      [&](const std::function<void(const cuda::DeltaArgs&, const DeltaLayer&)>& call) {
        return seconds_per_call(context, layers * steps, [&](int i) {
          if (i == 0) {
            const dim3 grid(static_cast<unsigned>(sequences), static_cast<unsigned>(layers));
            stand_at<<<grid, 128, 0, context.stream>>>(cuda::view_of(layer(0)), layer_elements,
                                                       stood);
          }
          const DeltaLayer own = layer(i);
          call({o, in, w, cuda::view_of(own), rows[static_cast<size_t>(i / layers)]->batch}, own);
        });
      };
  const double seconds = timed([&](const cuda::DeltaArgs& args, const DeltaLayer& own) {
    ops.delta_rule(o, in, w, own, args.batch);
  });
  double entries = 0, folds = run ? 1 : 0;
  for (int32_t i = 0, folded = stood; i < steps && !run; ++i) {
    const int32_t due = std::max(folded, ring.fold_position(kPast + i));
    entries += static_cast<double>(kPast + i - folded + certain + nodes) / steps;
    folds += due > folded ? 1.0 / steps : 0;
    folded = due;
  }
  const double moved =
      sequences * (4.0 * d.state_elements() * (1 + folds) + 4.0 * d.entry_elements() * entries +
                   4.0 * d.channels() * (3 + (run ? 3 : certain + nodes))) +
      t * (2.0 * d.channels() + 4.0 * d.value_width());
  if (!run && nodes == 0) {
    print_row(name + " in one launch", timed([&](const cuda::DeltaArgs& args, const DeltaLayer&) {
                cuda::delta_one_row(context, args);
              }),
              moved, 0);
    const cuda::DecodeRows ready{work.row_keys, work.row_values, work.row_gates, work.row_qk};
    print_row(name + " in two launches", timed([&](const cuda::DeltaArgs& args, const DeltaLayer&) {
                cuda::delta_decode(context, args, ready);
              }),
              moved, 0);
    print_row(name + " as a tree", timed([&](const cuda::DeltaArgs& args, const DeltaLayer&) {
                cuda::delta_tree(context, args, {work.tree_rows, work.tree_row_count});
              }),
              moved, 0);
  }
  if (certain > cuda::kStepRows) {
    const auto chunks = [&](const char* what, int parts) {
      print_row(name + what, timed([&](const cuda::DeltaArgs& args, const DeltaLayer&) {
                  cuda::delta_chunks(context, work, args, parts);
                }),
                0, 0);
    };
    chunks(": intra", cuda::kChunkIntra);
    chunks(": scan", cuda::kChunkScan);
  }
  print_row(name, seconds, moved, certain >= 64 ? 14.2e9 * d.value_heads / 48 * t / 2048 : 0);
}

struct FreshRows {
  Tensor k, v, table;
  AttentionWeights w;
  FreshRows(Arena& arena, const ModelShape& m, int64_t rows)
      : k(arena.act(rows, int64_t{m.kv_heads} * m.head_dim)),
        v(arena.act(rows, int64_t{m.kv_heads} * m.head_dim)),
        table(arena.wide(rows, 64)),
        w{arena.random<float>(m.head_dim, 1.0f), arena.random<float>(m.head_dim, 1.0f), 1e-6f} {}
};

std::string rows_name(const std::string& what, const ModelShape& m, int32_t sequences, int32_t past,
                      int32_t rows, int32_t drafting) {
  const std::string name = what + " " + m.name + " " + std::to_string(sequences) + " x " +
                           std::to_string(rows) + " after " + std::to_string(past);
  return drafting < sequences ? name + ", " + std::to_string(drafting) + " drafts" : name;
}

void attention_row(Gpu& gpu, const ModelShape& m, int32_t sequences, int32_t past, int32_t certain,
                   int32_t nodes, int32_t drafting = 1 << 30) {
  const std::string name = rows_name("attention", m, sequences, past, certain + nodes, drafting);
  if (!wanted(name)) return;
  Context& context = gpu.context;
  Arena arena;
  const Rows rows(arena, sequences, past, certain, nodes, drafting);
  KvLayer kv;
  kv.shape = {m.kv_heads, m.head_dim, KvFormat::f16, KvFormat::f16};
  kv.blocks = rows.blocks;
  const int64_t pool = kv.shape.k_block_bytes() * rows.blocks;
  const int layers = static_cast<int>(std::clamp<int64_t>(320'000'000 / (2 * pool) + 1, 2, 40));
  auto* cells = arena.random<__half>(layers * pool, 1.0f);
  const int64_t t = rows.batch.tokens;
  const Tensor q = arena.act(t, int64_t{m.heads} * m.head_dim);
  const Tensor qg = arena.act(t, int64_t{2} * m.heads * m.head_dim);
  const Tensor o = arena.act(t, int64_t{m.heads} * m.head_dim);
  CudaOps ops = ops_of(gpu, m, static_cast<int32_t>(t), sequences);
  const AttentionParams params{m.heads, 1.0f / 16, 0, kJointSigmoid};
  const double seconds = seconds_per_call(context, layers, [&](int i) {
    KvLayer layer = kv;
    layer.k = reinterpret_cast<std::byte*>(cells + int64_t{i} * pool);
    layer.v = layer.k + pool;
    ops.attention(o, q, qg, params, layer, rows.batch);
  });
  double seen = 0;  // (row, cell) pairs per sequence
  for (int32_t i = 0; i < certain + nodes; ++i) seen += past + i + 1;
  const double flops = 4.0 * m.head_dim * m.heads * seen * sequences;
  const double bytes = 4.0 * m.head_dim * m.kv_heads * (past + certain + nodes) * sequences +
                       8.0 * t * m.heads * m.head_dim;
  print_row(name, seconds, bytes, certain + nodes > 1 ? flops : 0);
  if (certain != 1) return;
  const FreshRows fresh(arena, m, t);
  const double whole = seconds_per_call(context, layers, [&](int i) {
    KvLayer layer = kv;
    layer.k = reinterpret_cast<std::byte*>(cells + int64_t{i} * pool);
    layer.v = layer.k + pool;
    ops.store_attend(o, q, qg, fresh.k, fresh.v, qg, fresh.table, fresh.w, params, layer,
                     rows.batch);
  });
  print_row(name + " with store", whole, bytes, 0);
}

// Attention over sealed blocks (K and V of one format), and sealing. Bytes are of sealed units.
void sealed_row(Gpu& gpu, const ModelShape& m, const char* format, int32_t sequences, int32_t past,
                int32_t certain, int32_t nodes, int32_t drafting = 1 << 30) {
  const std::string name =
      rows_name(std::string("sealed ") + format, m, sequences, past, certain + nodes, drafting);
  if (!wanted(name)) return;
  const auto found = find_kv_codec(format);
  if (!found.ok()) {
    std::fprintf(stderr, "%s\n", found.error().message.c_str());
    std::exit(1);
  }
  Context& context = gpu.context;
  Arena arena;
  Rows rows(arena, sequences, past, certain, nodes, drafting);
  rows.batch.cold_table = rows.batch.block_table;
  KvLayer kv;
  kv.shape = {m.kv_heads, m.head_dim, KvFormat::f16, KvFormat::f16};
  kv.blocks = rows.blocks;
  const int64_t pool = kv.shape.k_block_bytes() * rows.blocks;
  kv.k = reinterpret_cast<std::byte*>(arena.random<__half>(pool, 1.0f));
  kv.v = kv.k + pool;
  kv.cold.k_codec = kv.cold.v_codec = *found;
  kv.cold.blocks = rows.blocks;
  kv.cold.k_unit_bytes = (*found)->unit_bytes(m.head_dim, KvSide::k);
  kv.cold.v_unit_bytes = (*found)->unit_bytes(m.head_dim, KvSide::v);
  const int64_t units = int64_t{rows.blocks} * m.kv_heads;
  kv.cold.k = reinterpret_cast<std::byte*>(arena.take<char>(units * kv.cold.k_unit_bytes));
  kv.cold.v = reinterpret_cast<std::byte*>(arena.take<char>(units * kv.cold.v_unit_bytes));

  const int64_t t = rows.batch.tokens;
  Device::WorkspaceNeeds needs = needs_of(m, static_cast<int32_t>(t), sequences);
  needs.delta = {};
  needs.k_codec = needs.v_codec = *found;
  needs.max_context = rows.batch.blocks_per_sequence * kBlockTokens;
  CudaOps ops(context);
  if (const auto bytes = ops.reserve(*gpu.device, needs); !bytes.ok()) {
    std::fprintf(stderr, "%s\n", bytes.error().message.c_str());
    return;
  }
  std::vector<KvSeal> blocks;
  for (int32_t b = 0; b < rows.blocks; ++b) blocks.push_back({b, b});
  const double unit_bytes =
      static_cast<double>(units * (kv.cold.k_unit_bytes + kv.cold.v_unit_bytes));
  const double seal = seconds_per_call(context, 1, [&](int) { ops.kv_seal(kv, blocks); });
  print_row(name + ": seal all", seal, unit_bytes + 2.0 * static_cast<double>(pool), 0);
  const Tensor q = arena.act(t, int64_t{m.heads} * m.head_dim);
  const Tensor qg = arena.act(t, int64_t{2} * m.heads * m.head_dim);
  const Tensor o = arena.act(t, int64_t{m.heads} * m.head_dim);
  const AttentionParams params{m.heads, 1.0f / 16, 0, kJointSigmoid};
  const double seconds =
      seconds_per_call(context, 2, [&](int) { ops.attention(o, q, qg, params, kv, rows.batch); });
  const double seen = certain * (past + (certain + 1) / 2.0);  // (row, cell) pairs per sequence
  print_row(name, seconds, unit_bytes,
            certain > 1 ? 4.0 * m.head_dim * m.heads * seen * sequences : 0);
  if (certain != 1) return;
  const FreshRows fresh(arena, m, t);
  const double whole = seconds_per_call(context, 2, [&](int) {
    ops.store_attend(o, q, qg, fresh.k, fresh.v, qg, fresh.table, fresh.w, params, kv, rows.batch);
  });
  print_row(name + " with store", whole, unit_bytes, 0);
}

void small_rows(Gpu& gpu, const ModelShape& m, int32_t tokens) {
  const std::string suffix = std::string(m.name) + " " + std::to_string(tokens) + " rows";
  Context& context = gpu.context;
  CudaOps ops(context);  // norms and stores need no workspace
  Arena arena;
  if (wanted("norm " + suffix)) {
    const Tensor residual = arena.wide(tokens, m.width);
    const Tensor x = arena.act(tokens, m.width);
    const Tensor y = arena.act(tokens, m.width);
    const float* weight = arena.random<float>(m.width, 1.0f);
    const double seconds =
        seconds_per_call(context, 32, [&](int) { ops.add_norm(y, residual, x, weight, 1e-6f); });
    print_row("norm " + suffix, seconds, 12.0 * tokens * m.width, 0);
  }
  if (wanted("store " + suffix)) {
    const Rows rows(arena, tokens, 100, 1, 0);
    KvLayer kv;
    kv.shape = {m.kv_heads, m.head_dim, KvFormat::f16, KvFormat::f16};
    kv.blocks = rows.blocks;
    kv.k = reinterpret_cast<std::byte*>(arena.take<char>(kv.shape.k_block_bytes() * rows.blocks));
    kv.v = reinterpret_cast<std::byte*>(arena.take<char>(kv.shape.v_block_bytes() * rows.blocks));
    const int64_t width = int64_t{m.heads} * m.head_dim;
    const Tensor q = arena.act(tokens, width), qg = arena.act(tokens, 2 * width);
    const Tensor k = arena.act(tokens, int64_t{m.kv_heads} * m.head_dim),
                 v = arena.act(tokens, int64_t{m.kv_heads} * m.head_dim);
    const Tensor table = arena.wide(tokens, 64);
    const AttentionWeights w{arena.random<float>(m.head_dim, 1.0f),
                             arena.random<float>(m.head_dim, 1.0f), 1e-6f};
    const AttentionParams params{m.heads, 1.0f / 16, 0, kJointSigmoid};
    const double seconds = seconds_per_call(context, 32, [&](int) {
      ops.qk_norm_rope_store(q, qg, k, v, table, w, params, kv, rows.batch);
    });
    print_row("store " + suffix, seconds, tokens * (4.0 * width + 8.0 * m.kv_heads * m.head_dim),
              0);
  }
}

void measure_peaks(Device& device) {
  const auto peaks = device.measure_peaks();
  if (!peaks.ok()) {
    std::printf("%s\n", peaks.error().message.c_str());
    std::exit(1);
  }
  copy_rate = peaks->copy_bytes_s;
  std::printf("copy by a kernel %.0f GB/s, reads %.0f GB/s\n", copy_rate * 1e-9,
              peaks->read_bytes_s * 1e-9);
}

int run(int argc, char** argv) {
  if (argc > 1) only = argv[1];
  Gpu gpu;
  Context& context = gpu.context;
  auto device = CudaDevice::make({});
  if (!device.ok()) {
    std::printf("%s\n", device.error().message.c_str());
    return 1;
  }
  static_cast<cuda::Card&>(context) = (*device)->card();
  context.name = (*device)->description();
  check(cudaStreamCreateWithFlags(&context.stream, cudaStreamNonBlocking), "stream");
  std::printf("%s\n", (*device)->description().c_str());
  gpu.device = std::move(device).value();
  measure_peaks(*gpu.device);
  for (const ModelShape& m : kShapes) {
    for (int32_t sequences : {1, 2, 8, 16, 32, 128}) delta_row(gpu, m, sequences, 1, 0, 0);
    delta_row(gpu, m, 1, 1, 0, 7);
    delta_row(gpu, m, 1, 1, 0, 21);
    delta_row(gpu, m, 16, 1, 0, 3);
    delta_row(gpu, m, 128, 1, 0, 7);
    delta_row(gpu, m, 1, 1, 7, 7);
    delta_row(gpu, m, 1, 1, 21, 21);
    for (int32_t sequences : {1, 4, 8, 16, 32}) delta_row(gpu, m, sequences, 1, 3, 3);
    delta_row(gpu, m, 32, 1, 2, 3);
    delta_row(gpu, m, 128, 1, 1, 3);
    delta_row(gpu, m, 1, 1, 63, 63);
    delta_row(gpu, m, 1, 8, 0, 0);
    delta_row(gpu, m, 1, 48, 0, 0);
    delta_row(gpu, m, 16, 8, 0, 0);
    delta_row(gpu, m, 1, 128, 0, 0);
    delta_row(gpu, m, 1, 512, 0, 0);
    delta_row(gpu, m, 1, 2048, 0, 0);
    delta_row(gpu, m, 4, 512, 0, 0);
    for (int32_t sequences : {1, 8, 32, 128}) attention_row(gpu, m, sequences, 149, 1, 0);
    attention_row(gpu, m, 1, 999, 1, 0);
    attention_row(gpu, m, 1, 2047, 1, 0);
    attention_row(gpu, m, 1, 32767, 1, 0);
    attention_row(gpu, m, 8, 8191, 1, 0);
    attention_row(gpu, m, 32, 2047, 1, 0);
    attention_row(gpu, m, 128, 1023, 1, 0);
    for (int32_t past : {149, 2047, 8191}) {
      attention_row(gpu, m, 1, past, 1, 3);
      attention_row(gpu, m, 1, past, 1, 7);
      attention_row(gpu, m, 1, past, 1, 21);
      attention_row(gpu, m, 16, past, 1, 3);
    }
    attention_row(gpu, m, 16, 149, 1, 0);
    attention_row(gpu, m, 16, 2047, 1, 0);
    attention_row(gpu, m, 1, 32768, 0, 22);
    attention_row(gpu, m, 1, 0, 2048, 0);
    attention_row(gpu, m, 1, 6144, 2048, 0);
    attention_row(gpu, m, 1, 0, 8192, 0);
    attention_row(gpu, m, 1, 131071, 1, 0);
    attention_row(gpu, m, 8, 131071, 1, 0);
    attention_row(gpu, m, 32, 32767, 1, 0);
    attention_row(gpu, m, 1, 131071, 1, 3);
    attention_row(gpu, m, 1, 131071, 1, 7);
    attention_row(gpu, m, 8, 32767, 1, 7, 1);
    attention_row(gpu, m, 8, 32767, 1, 7);
    attention_row(gpu, m, 1, 262143, 1, 0);
    attention_row(gpu, m, 1, 131072, 2048, 0);
    for (const char* format : {"q8_0", "c5", "c4", "q5_0", "q4_0", "tbq4_0"}) {
      sealed_row(gpu, m, format, 1, 149, 1, 0);
      sealed_row(gpu, m, format, 1, 2047, 1, 0);
      sealed_row(gpu, m, format, 1, 32767, 1, 0);
      sealed_row(gpu, m, format, 1, 131071, 1, 0);
      sealed_row(gpu, m, format, 8, 131071, 1, 0);
      sealed_row(gpu, m, format, 32, 32767, 1, 0);
      sealed_row(gpu, m, format, 1, 262143, 1, 0);
      sealed_row(gpu, m, format, 1, 32767, 1, 3);
      sealed_row(gpu, m, format, 1, 131071, 1, 3);
      sealed_row(gpu, m, format, 1, 131071, 1, 7);
      sealed_row(gpu, m, format, 8, 32767, 1, 7, 1);
      sealed_row(gpu, m, format, 8, 32767, 1, 7);
      sealed_row(gpu, m, format, 1, 0, 2048, 0);
      sealed_row(gpu, m, format, 1, 131072, 2048, 0);
    }
    for (int32_t tokens : {1, 128, 2048}) small_rows(gpu, m, tokens);
  }
  return 0;
}

}  // namespace
}  // namespace braid

int main(int argc, char** argv) { return braid::run(argc, argv); }
