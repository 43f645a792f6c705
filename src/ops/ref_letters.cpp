// ref_letters.cpp -- letters between ranks: the reference.
#include "gguf/half.h"
#include "ops/host_exchange.h"
#include "ops/ref_ops.h"

namespace braid {

void RefOps::send(const Letter& letter, Tensor x, const Batch& batch) {
  host::send(letter, x, batch);
}

void RefOps::collect(Tensor y, const Letter& letter, Tail tail, const Batch& batch) {
  BRAID_CHECK(tail != Tail::silu_mul);
  BRAID_CHECK(letter.rows == 0 || (y.cols == letter.width && y.rows >= letter.rows));
  host::begin_collect(letter, batch);
  for (int64_t t = 0; t < letter.rows; ++t) {
    for (int64_t i = 0; i < letter.width; ++i) {
      const auto sent = [&](int32_t rank) {
        const uint32_t* words = host::row_of(letter, rank, t);
        return letter.type == DType::f16 ? f16_to_f32(reinterpret_cast<const uint16_t*>(words)[i])
                                         : reinterpret_cast<const float*>(words)[i];
      };
      float sum = sent(0);
      for (int32_t rank = 1; rank < letter.senders; ++rank) sum += sent(rank);
      float& out = y.f32(t)[i];
      out = tail == Tail::add ? out + sum : sum;
    }
  }
}

void RefOps::merge_best(Tensor values, Tensor ids, Tensor log_sum, const Letter& letter,
                        const Batch& batch) {
  host::merge_best(values, ids, log_sum, letter, batch);
}

Result<std::unique_ptr<Exchange>> RefDevice::connect(std::span<Device* const> ranks,
                                                     std::span<const LaneNeeds> lanes,
                                                     const ExchangeOptions&) {
  return host::connect(ranks, lanes);
}

}  // namespace braid
