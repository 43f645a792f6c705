// exchange.h -- letters between GPUs: mailboxes, and the launches of Ops::send, collect and
// merge_best.
//
// Ranks are GPUs of one host, or devices on the same GPU (own streams). Mailboxes lie in GPU memory
// if every GPU reaches the others' with atomics, as over NVLink. Else, and with BRAID_PEER=0, they
// lie in pinned host memory: reading a peer over PCIe never completes on some hosts.
#pragma once

#include <memory>
#include <span>

#include "base/result.h"
#include "ops/cuda/context.h"
#include "ops/cuda/exchange/protocol.cuh"
#include "ops/letter.h"

namespace braid {
class Device;
}

namespace braid::cuda {

struct Rank {
  Device* device = nullptr;
  Context* context = nullptr;
};
// Errors: exhausted, invalid_argument.
Result<std::unique_ptr<Exchange>> connect(std::span<const Rank> ranks,
                                          std::span<const LaneNeeds> lanes,
                                          const ExchangeOptions& options);

// push.cu: few rows
void send_pairs(Context& context, const Post& post, bool half, Tensor x);
void collect_pairs(Context& context, const CollectArgs& args, bool half);
// pull.cu: many rows, or none
void send_shares(Context& context, const Post& post, bool half, Tensor x);
void collect_shares(Context& context, const CollectArgs& args, bool half);

// Loads the kernels: a first launch would wait for a kernel that waits.
void prepare_push(Context& context);
void prepare_pull(Context& context);
void prepare_merge(Context& context);

// f(std::integral_constant<int, N>) for the least N of 2, 4, 8 that holds the senders.
template <typename F>
void with_most_senders(int senders, F f) {
  if (senders <= 2)
    f(std::integral_constant<int, 2>());
  else if (senders <= 4)
    f(std::integral_constant<int, 4>());
  else
    f(std::integral_constant<int, 8>());
}

}  // namespace braid::cuda
