// card.h -- the features of a GPU by which kernels are chosen.
//
// A Card describes this machine's GPU as far as the running code can use it, or one of the GPUs
// whose limits BRAID_GPU imposes (cuda_device.cu). No CUDA header: tests include it on machines
// without CUDA.
#pragma once

#include <algorithm>
#include <cstddef>

namespace braid::cuda {

struct Card {
  int capability = 0;                 // 90 for 9.0; for messages, and for choosing a card
  int processors = 0;                 // streaming multiprocessors
  size_t shared_bytes_per_block = 0;  // dynamic limit of a block
  size_t l2_bytes = 0;
  bool has_wgmma = false;             // warpgroup products and other features of 9.0a code
  bool has_clusters = false;          // blocks access each other's shared memory
  bool has_bulk_copies = false;       // bulk copies to shared memory, counted by a barrier
  bool has_dependent_launch = false;  // a kernel may begin while the preceding one ends
};

// One for each compute capability with code of its own.
inline constexpr Card kCards[] = {
    {80, 108, 163 * 1024, size_t{40} << 20, false, false, false, false},  // A100
    {86, 82, 99 * 1024, size_t{6} << 20, false, false, false, false},     // RTX 3090
    {89, 128, 99 * 1024, size_t{72} << 20, false, false, false, false},   // RTX 4090
    {90, 132, 227 * 1024, size_t{50} << 20, true, true, true, true},      // H100
    {120, 170, 99 * 1024, size_t{96} << 20, false, true, true, true},     // RTX 5090
};

// The smallest of the limits above.
inline constexpr size_t kLeastSharedBytes = 99 * 1024;

inline const Card* card_of(int capability) {
  for (const Card& card : kCards)
    if (card.capability == capability) return &card;
  return nullptr;
}

// The features that code for compute capability `code` uses; `wgmma`: it is for 9.0a.
inline Card as_used_by(Card gpu, int code, bool wgmma) {
  gpu.capability = std::min(gpu.capability, code);
  gpu.has_wgmma = wgmma;
  gpu.has_clusters = gpu.has_bulk_copies = gpu.has_dependent_launch = gpu.capability >= 90;
  return gpu;
}

// Whether everything chosen for `card` runs on `gpu`.
inline bool can_stand_in(const Card& gpu, const Card& card) {
  return card.has_wgmma <= gpu.has_wgmma && card.has_clusters <= gpu.has_clusters &&
         card.has_bulk_copies <= gpu.has_bulk_copies &&
         card.has_dependent_launch <= gpu.has_dependent_launch;
}

// `gpu` with no more of anything than `card` has.
inline Card limited_to(const Card& card, const Card& gpu) {
  Card out = card;
  out.processors = std::min(card.processors, gpu.processors);
  out.shared_bytes_per_block = std::min(card.shared_bytes_per_block, gpu.shared_bytes_per_block);
  out.l2_bytes = std::min(card.l2_bytes, gpu.l2_bytes);
  return out;
}

// The requirements of a launch, beside the kernel's static shared memory.
struct KernelLaunch {
  const char* op = "";
  size_t shared_bytes = 0;
  unsigned threads = 0;
  unsigned cluster = 1;
};

}  // namespace braid::cuda
