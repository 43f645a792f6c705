// linear.h -- products with weight matrices on the CPU: loading, linear, logits, embedding, MoE.
//
// Products owns the repacked weights and the workspaces; the arithmetic is in products.h (a table
// of kernels per instruction set). It does not depend on layers, sequences or other ops.
// - A product's bytes depend on the weight, the activation row and the activation format alone, not
//   on the number of rows, the threads or the instruction set.
// - Nothing allocates after reserve().
// - One thread (the engine's) calls. A call is one or two regions of the pool and waits for them.
// - x and y are f32. Other workers access them only inside the call.
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
  // Error: unsupported (BRAID_CPU names a path that this processor or build lacks).
  static Result<std::unique_ptr<Products>> make(ThreadPool& pool, Activations activations);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  const char* path() const;

  // Bytes load_weights will take for `weight`; 0 for tables that only embed() reads.
  size_t weight_bytes(const Weight& weight) const;

  // Device::load_weights, in parallel.
  Status load_weights(std::span<Weight* const> weights, const Device::WeightDone& done);
  // Reloads rows of a loaded weight from the file and repacks their groups.
  void load_rows(const Weight& weight, std::span<const int32_t> rows);

  // Bytes that reserve() will take; call it before reserve().
  size_t workspace_bytes(const Device::WorkspaceNeeds& needs) const;
  // Sizes the workspaces; once, after load_weights. Returns the bytes taken.
  Result<size_t> reserve(const Device::WorkspaceNeeds& needs);

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
