// sealed_shares.h -- how the sealed blocks that a step reads are dealt out to blocks of threads: in equal shares,
// whatever the sequences' lengths are.
//
// The blocks of a sequence that one KV head reads are a run: kRunPlaces places for what an item costs beside its
// blocks (queries before, sums after), then a place for each block. The runs of all sequences and heads lie one
// behind the other; share i is places [i length, (i + 1) length). What a share has of a run is an item, and leaves
// one split; so a run has as many splits as shares reach into its blocks.
#pragma once

#include "ops/cuda/primitives/both.h"

namespace braid::cuda {

inline constexpr int kRunPlaces = 16;
inline constexpr int kRoundPlaces = 16;
// A share is not shorter: shorter ones cost more splits than they gain.
inline constexpr int kFewestSharePlaces = 16;

BRAID_BOTH constexpr int run_places(int blocks) { return blocks > 0 ? kRunPlaces + blocks : 0; }

// Of a share, so that about `shares` have something, at most `most_shares`, and no run of `longest` blocks has more
// than `most_splits` splits, of which there are two at least. Rather a whole number of rounds of a block's warps.
BRAID_BOTH constexpr int share_length(int places, int shares, int most_shares, int longest, int most_splits) {
  int length = (places + shares - 1) / shares;
  const int rounded = length / kRoundPlaces * kRoundPlaces;
  if (rounded > 0 && (places + rounded - 1) / rounded <= most_shares) length = rounded;
  const int least = (longest + most_splits - 2) / (most_splits - 1);
  if (length < least) length = least;
  return length < kFewestSharePlaces ? kFewestSharePlaces : length;
}

// The splits of a run that begins at place `start`.
struct RunSplits {
  int first_share, count;
};
BRAID_BOTH constexpr RunSplits splits_of_run(int start, int blocks, int length) {
  if (blocks <= 0) return {0, 0};
  const int first = (start + kRunPlaces) / length;
  return {first, (start + kRunPlaces + blocks - 1) / length - first + 1};
}

// The blocks of a run that a share has, none if begin >= end.
struct RunPart {
  int begin, end;
};
BRAID_BOTH constexpr RunPart part_of_run(int start, int blocks, int length, int share) {
  const int begin = share * length - start - kRunPlaces, end = begin + length;
  return {begin < 0 ? 0 : begin, end < blocks ? end : blocks};
}

}  // namespace braid::cuda
