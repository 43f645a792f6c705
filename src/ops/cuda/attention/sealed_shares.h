// sealed_shares.h -- distributes the sealed blocks of a step over thread blocks in equal shares.
//
// - A run is the blocks that a tile (eight queries of a KV head) reads. Runs lie on a line of
//   places, one per block, by sequence, head and tile. Share i is places [i length, (i + 1)
//   length).
// - A share's part of a run is an item and produces one split.
// - Lanes: if all tile counts are multiples of the smallest, there are that many identical lines,
//   each with every lanes'th tile. Equal blocks are then read at the same time, from memory once.
//
// The layout with the shorter shares is used:
// - whole shares: each run has a number of shares to itself; no share has two items.
// - packed: a share continues with the next run. Before each run are kRunPlaces empty places, the
//   cost of an item's queries and sums in blocks.
#pragma once

#include "ops/cuda/both.h"

namespace braid::cuda {

inline constexpr int kRunPlaces = 16;
// The shortest share: shorter ones cost more in splits than they gain.
inline constexpr int kFewestShareBlocks = 16;

BRAID_BOTH constexpr int packed_places(int blocks) { return blocks > 0 ? kRunPlaces + blocks : 0; }

struct SealedDeal {
  int places;  // of a line
  int length;  // of a share
  int stride;  // whole shares: places of a run; 0: packed
  int lanes = 1;
};
// `runs`: that have blocks; `packed`: their places. No more than `most_splits` (>= 2) splits a run.
BRAID_BOTH constexpr SealedDeal deal_runs(int runs, int longest, int packed, int shares,
                                          int most_splits) {
  const auto up = [](int a, int b) { return (a + b - 1) / b; };
  const auto larger = [](int a, int b) { return a > b ? a : b; };
  int length = larger(up(packed, shares), kFewestShareBlocks);
  length = larger(length, up(longest, most_splits - 1));
  const int of_run =
      shares / larger(runs, 1) < most_splits ? shares / larger(runs, 1) : most_splits;
  if (of_run == 0) return {packed, length, 0};
  const int whole = larger(up(longest, of_run), kFewestShareBlocks);
  if (whole > length) return {packed, length, 0};
  return {runs * of_run * whole, whole, of_run * whole};
}

// The first `lead` places are empty.
struct RunPlaces {
  int places, lead;
};
BRAID_BOTH constexpr RunPlaces places_of_run(const SealedDeal& deal, int blocks) {
  if (deal.stride > 0) return {blocks > 0 ? deal.stride : 0, 0};
  return {packed_places(blocks), kRunPlaces};
}

// `start`: the place of the run's first block.
struct RunSplits {
  int first_share, count;
};
BRAID_BOTH constexpr RunSplits splits_of_run(int start, int blocks, int length) {
  if (blocks <= 0) return {0, 0};
  const int first = start / length;
  return {first, (start + blocks - 1) / length - first + 1};
}

// Empty if begin >= end.
struct RunPart {
  int begin, end;
};
BRAID_BOTH constexpr RunPart part_of_run(int start, int blocks, int length, int share) {
  const int begin = share * length - start, end = begin + length;
  return {begin < 0 ? 0 : begin, end < blocks ? end : blocks};
}

}  // namespace braid::cuda
