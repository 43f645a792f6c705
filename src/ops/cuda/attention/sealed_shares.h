// sealed_shares.h -- how the sealed blocks that a step reads are dealt out to blocks of threads: in equal shares,
// whatever the sequences' lengths are.
//
// Queries of a KV head come in tiles of eight. The blocks that a tile reads are a run. Runs lie one behind the other
// on a line of places, a place a block: sequence by sequence, head by head, tile by tile. Share i is places
// [i length, (i + 1) length). What a share has of a run is an item, and leaves one split; so a run has as many splits
// as shares reach into its blocks. Where all sequences have a multiple of as many tiles as one of them, there are as
// many lanes, lines that are all alike, with every so many'th tile: blocks of threads that read the same of a
// sequence then do so at the same time, and it comes from memory once. There are two ways to lay runs out, of which
// the one with the shorter shares is taken:
//   whole shares  Each run has the same number of shares to itself: no share has two items.
//   packed        A share that ends a run goes on with the next one. In front of each run are kRunPlaces places that
//                 nobody reads, for what a second item costs beside its blocks (queries before, sums after).
#pragma once

#include "ops/cuda/primitives/both.h"

namespace braid::cuda {

inline constexpr int kRunPlaces = 16;
// A share is not shorter: shorter ones cost more splits than they gain.
inline constexpr int kFewestShareBlocks = 16;

BRAID_BOTH constexpr int packed_places(int blocks) { return blocks > 0 ? kRunPlaces + blocks : 0; }

struct SealedDeal {
  int places;  // of a line
  int length;  // of a share
  int stride;  // whole shares: places of a run; 0: packed
  int lanes = 1;
};
// At most `shares`, and no run of `longest` blocks in more than `most_splits` (two at least). `runs`: that have
// blocks. `packed`: places of all, packed.
BRAID_BOTH constexpr SealedDeal deal_runs(int runs, int longest, int packed, int shares, int most_splits) {
  const auto up = [](int a, int b) { return (a + b - 1) / b; };
  const auto larger = [](int a, int b) { return a > b ? a : b; };
  int length = larger(up(packed, shares), kFewestShareBlocks);
  length = larger(length, up(longest, most_splits - 1));
  const int of_run = shares / larger(runs, 1) < most_splits ? shares / larger(runs, 1) : most_splits;
  if (of_run == 0) return {packed, length, 0};
  const int whole = larger(up(longest, of_run), kFewestShareBlocks);
  if (whole > length) return {packed, length, 0};
  return {runs * of_run * whole, whole, of_run * whole};
}

// Places of a run of that many blocks, the first of which is a lead that nobody reads.
struct RunPlaces {
  int places, lead;
};
BRAID_BOTH constexpr RunPlaces places_of_run(const SealedDeal& deal, int blocks) {
  if (deal.stride > 0) return {blocks > 0 ? deal.stride : 0, 0};
  return {packed_places(blocks), kRunPlaces};
}

// The splits of a run whose blocks begin at place `start`.
struct RunSplits {
  int first_share, count;
};
BRAID_BOTH constexpr RunSplits splits_of_run(int start, int blocks, int length) {
  if (blocks <= 0) return {0, 0};
  const int first = start / length;
  return {first, (start + blocks - 1) / length - first + 1};
}

// The blocks of a run that a share has, none if begin >= end.
struct RunPart {
  int begin, end;
};
BRAID_BOTH constexpr RunPart part_of_run(int start, int blocks, int length, int share) {
  const int begin = share * length - start, end = begin + length;
  return {begin < 0 ? 0 : begin, end < blocks ? end : blocks};
}

}  // namespace braid::cuda
