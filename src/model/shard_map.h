// shard_map.h -- which rows and columns of a model's matrices each of several devices has when
// every layer is divided among them (tensor split).
//
// A rank is one device's part. It multiplies with some rows of a block's first matrices and with
// the matching columns of its last one; the results of the ranks add up to that of the whole block.
// What is never cut is a unit: the least piece whose columns in the closing product are whole
// blocks of the file's format, and at least 32.
//
//   attention     KV heads with their query heads     rows of q, gate, k, v; columns of output
//   delta layer   key heads with their value heads    rows of qkv, z, alpha, beta, conv, a, dt;
//                                                     columns of output
//   feed-forward  columns of the hidden row           rows of gate, up; columns of down
//   experts       such columns, whole experts, or both: groups of experts, divided by columns
//   both ends     32 rows of the vocabulary           rows of the table and of the output matrix
//   MTP head      columns of [embedding ; hidden]     columns of eh_proj
//
// Every rank has the router, its bias, norms and shared_scale.
//
// - Parts of ranks follow each other. Value heads are in the order of DeltaShape, so that its
//   mapping to key heads holds with local counts.
// - Hidden rows are dealt in pieces of 256 columns. Smaller ones, for experts only if the width is
//   not a multiple of 256, make up for having too few.
// - With more ranks than KV heads, several ranks have the keys and values of a head, and each some
//   of its query heads.
// - A shared expert with fewer pieces than ranks is on other ranks in each layer. Elsewhere its
//   width is 0.
// - Units are dealt in proportion to `ratio`. Every rank gets at least one.
//
// A pure function of its arguments. Any thread may read a map.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "ops/letter.h"
#include "ops/tensor.h"

namespace braid {

// Elements of a block in the formats of matrices that are divided by columns.
struct ColumnBlocks {
  struct Layer {
    int64_t output = 1;   // of the attention or the delta layer
    int64_t down = 1;     // dense, or of the experts
    int64_t shared = 1;   // down of the shared expert
    int64_t eh_proj = 1;  // of an MTP head
  };
  std::vector<Layer> layers;  // as in ModelConfig
  std::vector<Layer> mtp;
};

// Rows and columns of whole matrices that a rank has. Empty: the layer has no such matrix.
struct LayerShard {
  // Attention.
  std::vector<RowRun> query_rows;        // q, with its joint gates
  std::vector<RowRun> gate_rows;         // separate gates
  std::vector<RowRun> kv_rows;           // k, v
  std::vector<ColumnRun> query_columns;  // output
  RowRun kv_heads;                       // of all ranks' KV heads
  // Delta layer.
  std::vector<RowRun> qkv_rows;     // qkv, conv
  std::vector<RowRun> value_rows;   // z; columns of output
  std::vector<RowRun> value_heads;  // alpha, beta, a, dt
  // Feed-forward, dense or of each expert.
  std::vector<RowRun> hidden;  // rows of gate and up, columns of down
  RowRun experts;
  std::vector<RowRun> shared_hidden;  // of the shared expert; empty: not on this rank
  // MTP head.
  std::vector<ColumnRun> joined_columns;  // eh_proj
};

class ShardMap {
 public:
  // `ratio`: a positive number per rank, such as the devices' rates, or empty: even. Errors:
  // unsupported (fewer units than ranks), invalid_argument (ratio).
  static Result<ShardMap> make(const ModelConfig& whole, const ColumnBlocks& blocks, int ranks,
                               std::span<const double> ratio = {});

  int ranks() const { return static_cast<int>(shards_.size()); }
  // The model that a rank computes: heads, widths and vocabulary are its own. Counts of experts
  // are the router's. Layers of an attached drafter are unchanged. Slot i of a draft vocabulary
  // is on rank i % ranks.
  const ModelConfig& config(int rank) const { return at(rank).config; }
  const LayerShard& layer(int rank, size_t index) const { return at(rank).layers[index]; }
  const LayerShard& mtp(int rank, size_t index) const { return at(rank).mtp[index]; }
  RowRun vocabulary(int rank) const { return at(rank).vocabulary; }

  // How much longer a step of one token takes than with weights in exact proportion to `rates`, in
  // percent. Each block waits for the rank with the most weights for its rate; experts are chosen
  // at random. {}: the ratio.
  double imbalance(std::span<const double> rates = {}) const;

 private:
  struct Shard {
    ModelConfig config;
    std::vector<LayerShard> layers;
    std::vector<LayerShard> mtp;
    RowRun vocabulary;
  };
  ShardMap() = default;
  const Shard& at(int rank) const { return shards_[static_cast<size_t>(rank)]; }

  friend class ShardDealer;
  ModelConfig whole_;
  std::vector<double> ratio_;  // [ranks]
  std::vector<Shard> shards_;  // [ranks]
};

}  // namespace braid
