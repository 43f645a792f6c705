// exchange.cu -- see exchange.h.
#include "ops/cuda/exchange/exchange.h"

#include <cstdlib>
#include <cstring>
#include <deque>

#include "base/log_line.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/device.h"

namespace braid {

using namespace cuda;

namespace cuda {
namespace {

// Above so many words for all other ranks, pulling is faster: with 2 ranks 16 rows of 5,120, with
// 4 ranks 6 rows. Through the host a pushed word crosses the link twice as often.
constexpr int64_t kMostPushedWords = 96 * 1024;
constexpr int64_t kMostPushedThroughHost = 32 * 1024;

bool is_rehearsed(std::span<const Rank> ranks) { return ranks[0].context->rehearsal != nullptr; }

// Empty: every GPU reaches the memory of the others. Else the reason why not.
std::string why_through_host(std::span<const Rank> ranks) {
  if (is_rehearsed(ranks)) return {};
  const char* wanted = std::getenv("BRAID_PEER");
  if (wanted != nullptr && std::strcmp(wanted, "0") == 0) return "BRAID_PEER=0";
  for (const Rank& from : ranks) {
    for (const Rank& to : ranks) {
      const int gpu = from.context->gpu, peer = to.context->gpu;
      if (gpu == peer) continue;
      const std::string both = "GPU " + std::to_string(gpu) + " and GPU " + std::to_string(peer);
      int reaches = 0, atomics = 0;
      cudaError_t error = cudaDeviceCanAccessPeer(&reaches, gpu, peer);
      if (error == cudaSuccess && reaches != 0)
        error = cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, gpu, peer);
      if (error == cudaSuccess && reaches != 0 && atomics != 0) {
        from.context->make_current();
        error = cudaDeviceEnablePeerAccess(peer, 0);
        if (error == cudaErrorPeerAccessAlreadyEnabled) error = cudaSuccess;
      }
      cudaGetLastError();
      if (error != cudaSuccess) return both + ": " + cudaGetErrorString(error);
      if (reaches == 0) return both + " have no peer access";
      if (atomics == 0) return both + " have peer access without atomics";
    }
  }
  return {};
}

// Kernels that are loaded at their first launch wait for those that run, which may wait for them.
void warn_of_lazy_loading() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result;
  if (cudaGetDriverEntryPointByVersion("cuModuleGetLoadingMode", &function, 12000,
                                       cudaEnableDefault, &result) != cudaSuccess ||
      result != cudaDriverEntryPointSuccess) {
    cudaGetLastError();
    return;
  }
  int mode = 0;
  constexpr int kLazy = 2;  // CU_MODULE_LAZY_LOADING
  if (reinterpret_cast<int (*)(int*)>(function)(&mode) == 0 && mode == kLazy)
    log_warning(
        "CUDA loads kernels at their first use, which can block GPUs that wait for each other; "
        "CUDA_MODULE_LOADING=EAGER avoids it");
}

class GpuExchange final : public Exchange {
 public:
  GpuExchange(std::span<const Rank> all, bool through_host)
      : Exchange(static_cast<int32_t>(all.size()),
                 through_host ? "mailboxes in pinned host memory" : "mailboxes in GPU memory"),
        all_(all.begin(), all.end()),
        through_host_(through_host) {}

  ~GpuExchange() override {
    for (const Rank& rank : all_) {
      Context& context = *rank.context;
      // What was found stays found.
      context.first_error = context.fault();
      std::erase_if(context.watches, [&](const auto& watch) { return watch.owner == this; });
    }
    wait_for_all();
  }

  Status allocate(std::span<const LaneNeeds> lanes, const ExchangeOptions& options) {
    BRAID_ASSIGN(watch_memory_, all_[0].device->allocate_host(sizeof(LetterWatch), "mailboxes"));
    watch_ = new (watch_memory_.data()) LetterWatch();
    host_bytes_ += sizeof(LetterWatch);
    int shares = kMostLetterShares;
    for (const Rank& rank : all_) shares = std::min(shares, rank.context->processors);
    for (const LaneNeeds& needs : lanes) {
      Lane lane;
      lane.form.senders = ranks_;
      lane.form.shares = shares;
      lane.form.watch = watch_;
      lane.form.patience_ms = options.patience_ms;
      const MailboxSizes sizes(needs, ranks_);
      BRAID_TRY(place(lane.form, sizes));
      const int64_t most = through_host_ ? kMostPushedThroughHost / ranks_
                                         : kMostPushedWords / std::max(1, ranks_ - 1);
      lane.most_few_words = std::min(sizes.few_words, most);
      lanes_.push_back(lane);
    }
    for (size_t i = 0; i < all_.size(); ++i) {
      Context& context = *all_[i].context;
      context.watches.push_back({this, [this, i] { return fault_of(i); }});
      if (context.rehearsal != nullptr) continue;
      context.make_current();
      context.op = "loading the exchange";
      prepare_push(context);
      prepare_pull(context);
      prepare_merge(context);
      if (!context.healthy()) return Error{ErrorKind::io, context.fault()};
    }
    return {};
  }

  void stop() override { *static_cast<volatile uint32_t*>(&watch_->stop) = 1; }

 private:
  Status place(Letter& form, const MailboxSizes& sizes) {
    std::vector<std::byte*> memory;
    if (through_host_) {
      const size_t bytes = sizes.in_host(ranks_);
      BRAID_ASSIGN(Buffer area, all_[0].device->allocate_host(bytes, "mailboxes"));
      memory.push_back(static_cast<std::byte*>(area.data()));
      host_bytes_ += bytes;
      in_host_.push_back(std::move(area));
    } else {
      for (int32_t rank = 0; rank < ranks_; ++rank) {
        const Rank& of = all_[static_cast<size_t>(rank)];
        BRAID_ASSIGN(Buffer box, of.device->allocate(sizes.of_rank(), "mailboxes"));
        memory.push_back(static_cast<std::byte*>(box.data()));
        bytes_[static_cast<size_t>(rank)] += sizes.of_rank();
        on_gpu_.push_back({of.context, std::move(box)});
      }
    }
    place_mailboxes(form, sizes, memory);
    return {};
  }

  void wait_for_all() {
    if (is_rehearsed(all_)) return;
    for (const Rank& rank : all_) {
      rank.context->make_current();
      rank.context->note(cudaStreamSynchronize(rank.context->stream), "waiting for all ranks");
    }
  }

  void clear() override {
    wait_for_all();
    for (const Buffer& area : in_host_) std::memset(area.data(), 0, area.size_bytes());
    if (is_rehearsed(all_)) return;
    for (const auto& [context, box] : on_gpu_) {
      context->make_current();
      context->note(cudaMemsetAsync(box.data(), 0, box.size_bytes(), context->stream),
                    "emptying mailboxes");
    }
    wait_for_all();
  }

  static std::string name_of(const Context& context) { return "the GPU (" + context.name + ")"; }
  std::string fault_of(size_t rank) const {
    const uint32_t missed = *static_cast<const volatile uint32_t*>(&watch_->missed[rank]);
    if (missed == 0) return {};
    const std::string own = name_of(*all_[rank].context);
    if (missed % 16 == LetterWatch::kStopped)
      return own + " stopped waiting for the others, as one of them has failed";
    const size_t other = missed % 16 - 1;
    return own + " waited " + std::to_string(lanes_[0].form.patience_ms) + " ms for rows of rank " +
           std::to_string(other) + ", " + name_of(*all_[other].context) + ", which did not come";
  }

  std::vector<Rank> all_;
  bool through_host_;
  struct Box {
    Context* context;
    Buffer memory;
  };
  std::deque<Box> on_gpu_;
  std::deque<Buffer> in_host_;
  Buffer watch_memory_;
  LetterWatch* watch_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<Exchange>> connect(std::span<const Rank> ranks,
                                          std::span<const LaneNeeds> lanes,
                                          const ExchangeOptions& options) {
  if (ranks.empty() || ranks.size() > kMostRanks)
    return Error{ErrorKind::invalid_argument,
                 std::to_string(ranks.size()) + " GPUs cannot share a model by its tensors (1 to " +
                     std::to_string(kMostRanks) + " can)"};
  const std::string why = why_through_host(ranks);
  if (!why.empty()) log_info("GPUs exchange rows through host memory: " + why);
  if (ranks.size() > 1 && !is_rehearsed(ranks)) warn_of_lazy_loading();
  auto exchange = std::make_unique<GpuExchange>(ranks, !why.empty());
  BRAID_TRY(exchange->allocate(lanes, options));
  return std::unique_ptr<Exchange>(std::move(exchange));
}

}  // namespace cuda

// Looking for rows in host memory slows the peers' writes there. On a shared GPU, what starts early
// may take the place of the rank that is waited for.
bool CudaOps::collects_late(const Letter& letter) const {
  return context_.devices_on_gpu > 1 || (letter.in_host_memory && letter.senders > 2);
}

void CudaOps::send(const Letter& letter, Tensor x, const Batch& batch) {
  BRAID_CHECK(batch.turn != nullptr);
  BRAID_CHECK(letter.rows == 0 ||
              (x.type == DType::f32 && x.rows >= letter.rows && x.cols == letter.width));
  const bool half = letter.type == DType::f16;
  const Post post = post_of(letter, batch.turn);
  letter.few ? send_pairs(context_, post, half, x) : send_shares(context_, post, half, x);
  sent_at_ = context_.launches;
}

void CudaOps::collect(Tensor y, const Letter& letter, Tail tail, const Batch& batch) {
  BRAID_CHECK(tail != Tail::silu_mul && batch.turn != nullptr);
  BRAID_CHECK(letter.rows == 0 ||
              (y.type == DType::f32 && y.rows >= letter.rows && y.cols == letter.width));
  const bool half = letter.type == DType::f16;
  const CollectArgs args{post_of(letter, batch.turn), y, tail == Tail::add, collects_late(letter),
                         sent_at_ == context_.launches};
  letter.few ? collect_pairs(context_, args, half) : collect_shares(context_, args, half);
}

}  // namespace braid
