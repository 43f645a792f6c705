// linear.h -- products with weight matrices on the CPU: loading, linear, logits, embedding, experts.
//
// Products owns the repacked weights and the workspaces of the products; the arithmetic is in products.h (one
// table of kernels per instruction set). It does not know about layers, batches of sequences or other ops.
//
// Always true:
//   a product's bytes depend on the weight, the activation row and the activation format alone: not on how
//   many rows are multiplied at once, nor on the number of threads, nor on the instruction set nothing
//   allocates after reserve() one thread (the engine's) calls; every call is one or two regions of the pool
//   and returns when they are done
//
// x and y are f32. Workers other than the caller touch x and y only inside the call.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/result.h"
#include "base/threads.h"
#include "ops/batch.h"
#include "ops/device.h"
#include "ops/ops.h"
#include "ops/tensor.h"

namespace braid::cpu {

class Products {
 public:
  // Error: unsupported (this processor lacks AVX2, FMA and F16C; or BRAID_CPU names an unknown path).
  static Result<std::unique_ptr<Products>> make(ThreadPool& pool, Activations activations);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // The instruction set in use: "avx2", "avx512".
  const char* path() const;

  // Bytes load_weights will take for `weight`; 0 for tables that only embed() reads.
  size_t weight_bytes(const Weight& weight) const;

  // Device::load_weights: repacks all weights in parallel, sets device_data and device_bytes.
  Status load_weights(std::span<Weight* const> weights, const Device::WeightDone& done);
  // Rows of a loaded weight anew, from the file; the groups that they are in are repacked.
  void load_rows(const Weight& weight, std::span<const int32_t> rows);

  // What reserve() will take. Before it only.
  size_t workspace_bytes(const Device::WorkspaceNeeds& needs) const;
  // Sizes the workspaces; once, after load_weights. Returns the bytes taken.
  Result<size_t> reserve(const Device::WorkspaceNeeds& needs);

  // The ops of the same name in ops.h. logits(y, w, x) is linear with one part and Tail::store.
  void linear(std::span<const LinearPart> parts, Tensor x);
  void logits(Tensor logits, const Weight& w, Tensor x);
  void embed(Tensor y, const Weight& table, const Batch& batch);
  void moe_ffn(Tensor y, Tensor x, Tensor ids, Tensor weights, const MoeWeights& w);

  struct Impl;  // linear_impl.h

 private:
  explicit Products(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace braid::cpu
