// linear_impl.h -- the parts of Products that linear.cpp and moe.cpp share.
#pragma once

#include <deque>
#include <vector>

#include "ops/cpu/gemm/linear.h"
#include "ops/cpu/gemm/products.h"
#include "ops/cpu/gemm/repack.h"
#include "ops/cpu/workspace.h"

namespace braid::cpu {

struct ActBuffer {
  ActHead* head = nullptr;
  ActCodes* codes = nullptr;
  ActNibbles* nibbles = nullptr;
  ActWide* wide = nullptr;
  size_t blocks = 0;

  void carve(Carver& carver, size_t count);
  ActView view(const Tensor& x, uint8_t needs) const;
};

// One product of a call: a matrix (with `up` for SiLU pairs), its kernels and factors.
struct GemmPart {
  const PackedWeight* w = nullptr;
  const PackedWeight* up = nullptr;
  const Kernels* kernels = nullptr;
  const Kernels* up_kernels = nullptr;
  float scale = 1;
  float up_scale = 1;
  int64_t expert = 0;
  int64_t n = 0;
  Tail tail = Tail::store;
  Tensor y;
  // Rows of the activations; y_first: first row of the results.
  const int32_t* row = nullptr;
  int64_t first = 0;
  int64_t rows = 0;
  int64_t y_first = 0;

  int64_t groups() const { return w->groups; }
  size_t bytes_per_group() const { return w->group_bytes + (up != nullptr ? up->group_bytes : 0); }
  uint8_t needs() const {
    const bool few = rows <= kFewRows;
    const uint8_t own = few ? kernels->few_needs : kernels->many_needs;
    if (up == nullptr) return own;
    return own | (few ? up_kernels->few_needs : up_kernels->many_needs);
  }
};

// Activations of this many rows stay in L2 while the row groups of a block pass.
inline constexpr int64_t kChunkRows = 128;
// Row groups per kernel call, copied out together, because every line of y is a cache miss.
inline constexpr int64_t kCallGroups = 4;
// Stride of result rows: an odd number of lines spreads the rows of a row group over all L1 sets.
inline constexpr int64_t kOutStride = kCallGroups * kGroupRows + kGroupRows;

struct Products::Impl {
  Impl(ThreadPool& pool_in, Activations activations_in, const ProductTable& table_in)
      : pool(pool_in), activations(activations_in), table(table_in) {}

  struct Worker {
    std::byte* scratch = nullptr;  // of the kernels
    float* out = nullptr;          // [kChunkRows][kOutStride]
    float* up = nullptr;
    ActBuffer act;  // up to kFewRows rows, quantized by this worker
  };

  ThreadPool& pool;
  Activations activations;
  const ProductTable& table;
  std::vector<Mapping> weight_memory;
  std::deque<PackedWeight> weights;
  int64_t ahead_bytes = 0;  // prefetch.h
  Mapping workspace;
  std::vector<Worker> workers;
  ActBuffer act;  // all rows of a step
  int64_t max_tokens = 0;
  Counter counter;

  // Experts: rows sorted by expert ("slots").
  int64_t max_slots = 0;
  int64_t max_experts = 0;
  float* hidden = nullptr;  // [slots + tokens][expert_width]
  int32_t* slot_token = nullptr;
  float* slot_weight = nullptr;
  int32_t* expert_begin = nullptr;  // [experts + 1]
  GemmPart* pieces = nullptr;       // [experts + 1]
  GemmPart* down_pieces = nullptr;
  float* shared_weight = nullptr;  // [tokens]
  int64_t expert_width = 0;

  const Kernels& kernels_of(const PackedWeight& w) const;
  GemmPart make_piece(const Weight& w, const Weight* up, int64_t expert) const;
  void quantize_row(const ActBuffer& buffer, const Tensor& x, int64_t row, uint8_t needs) const;
  // Sums of row groups [g0, g1) for rows [row, row + rows) of the piece, then its tail.
  void run_groups(const GemmPart& piece, const ActView& act_view, int worker, int64_t g0,
                  int64_t g1, int64_t row, int64_t rows) const;
  void run_share(std::span<const GemmPart> pieces_in, const ActView& act_view, int worker) const;
  void run_claimed(std::span<const GemmPart> pieces_in, const ActView& act_view, int worker);
  void reserve_buffers(Carver& carver, const Device::WorkspaceNeeds& needs);
};

}  // namespace braid::cpu
