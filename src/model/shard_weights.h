// shard_weights.h -- a rank's part of a model's weights (shard_map.h), as ModelWeights of its own.
// They have the shapes of ShardMap::config(rank), and load on one device like those of a whole
// model. A rank's products with parts of columns are terms of a sum over the ranks.
#pragma once

#include "model/shard_map.h"
#include "model/weights.h"

namespace braid {

// Of matrices that are absent: 1.
ColumnBlocks column_blocks(const ModelWeights& weights);

// Describes a rank's weights in `out`, which is empty. `whole` is described, not loaded, must
// outlive `out`, and `map` was made from its configuration and column_blocks().
// - Stacks have LayerShard::experts, from MoeBlock::first_expert on; the router's ids are of all.
// - Vectors are copied: conv, a and dt in local order, the others whole.
// - The token table and the output matrix begin at ShardMap::vocabulary(rank). Row i of the draft
//   matrix is slot i * ranks + rank.
// - Parameters are counted as in `whole`.
void shard(const ModelWeights& whole, const ShardMap& map, int rank, ModelWeights& out);

// The same with the layers of the trunk alone shared: rank 0 has the output matrix and MTP heads
// whole, the others lack them, and every rank has the whole token table.
void shard_trunk(const ModelWeights& whole, const ShardMap& map, int rank, ModelWeights& out);

}  // namespace braid
