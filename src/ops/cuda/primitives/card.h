// card.h -- what kernels are chosen by: what a GPU has, and not what it is called.
//
// A Card describes this machine's GPU as far as the code that runs on it can use it, or one of the GPUs that
// people own, whose limits BRAID_GPU puts on another (cuda_device.cu). No CUDA header: tests read it on
// machines that have none.
#pragma once

#include <algorithm>
#include <cstddef>

namespace braid::cuda {

struct Card {
  int capability = 0;                 // 90 for 9.0; for people, and for choosing a card
  int processors = 0;                 // streaming multiprocessors
  size_t shared_bytes_per_block = 0;  // what a block may ask for
  size_t l2_bytes = 0;
  bool has_wgmma = false;             // products of warpgroups, and what else only code for 9.0a has
  bool has_clusters = false;          // blocks that reach each other's shared memory
  bool has_bulk_copies = false;       // whole pieces to shared memory, counted by a barrier
  bool has_dependent_launch = false;  // a kernel may begin while the one before it ends
};

// One for each compute capability that has code of its own.
inline constexpr Card kCards[] = {
    {80, 108, 163 * 1024, size_t{40} << 20, false, false, false, false},  // A100
    {86, 82, 99 * 1024, size_t{6} << 20, false, false, false, false},     // RTX 3090
    {89, 128, 99 * 1024, size_t{72} << 20, false, false, false, false},   // RTX 4090
    {90, 132, 227 * 1024, size_t{50} << 20, true, true, true, true},      // H100
    {120, 170, 99 * 1024, size_t{96} << 20, false, true, true, true},     // RTX 5090
};

// What a block may ask for on any of them.
inline constexpr size_t kLeastSharedBytes = 99 * 1024;

inline const Card* card_of(int capability) {
  for (const Card& card : kCards)
    if (card.capability == capability) return &card;
  return nullptr;
}

// What code for compute capability `code` uses of a GPU; `wgmma`: it is code for 9.0a.
inline Card as_used_by(Card gpu, int code, bool wgmma) {
  gpu.capability = std::min(gpu.capability, code);
  gpu.has_wgmma = wgmma;
  gpu.has_clusters = gpu.has_bulk_copies = gpu.has_dependent_launch = gpu.capability >= 90;
  return gpu;
}

// Whether all that is chosen for `card` runs on `gpu`.
inline bool can_stand_in(const Card& gpu, const Card& card) {
  return card.has_wgmma <= gpu.has_wgmma && card.has_clusters <= gpu.has_clusters &&
         card.has_bulk_copies <= gpu.has_bulk_copies && card.has_dependent_launch <= gpu.has_dependent_launch;
}

// `gpu` with no more of anything than `card` has.
inline Card limited_to(const Card& card, const Card& gpu) {
  Card out = card;
  out.processors = std::min(card.processors, gpu.processors);
  out.shared_bytes_per_block = std::min(card.shared_bytes_per_block, gpu.shared_bytes_per_block);
  out.l2_bytes = std::min(card.l2_bytes, gpu.l2_bytes);
  return out;
}

// What a launch asks of a card, beside the shared memory that its kernel always has.
struct KernelLaunch {
  const char* op = "";
  size_t shared_bytes = 0;
  unsigned threads = 0;
  unsigned cluster = 1;  // blocks
};

}  // namespace braid::cuda
