// letters.cpp -- letters between ranks on CPUs: sums of rows that lie in other ranks' mailboxes.

#include <algorithm>
#include <cstring>

#include "gguf/half.h"
#include "ops/cpu/cpu_device.h"
#include "ops/host_exchange.h"

namespace braid {
namespace {

constexpr double kNsPerNumber = 0.25;  // of a rank
constexpr int64_t kSummed = 256;       // numbers of a row at a time

// sum = the numbers of a rank, or sum += them.
void take_part(float* sum, const uint32_t* words, DType type, int64_t first, int64_t count,
               bool is_first) {
  if (type == DType::f32) {
    const float* part = reinterpret_cast<const float*>(words) + first;
    if (is_first) {
      std::memcpy(sum, part, static_cast<size_t>(count) * sizeof(float));
    } else {
      for (int64_t i = 0; i < count; ++i) sum[i] += part[i];
    }
    return;
  }
  const uint16_t* part = reinterpret_cast<const uint16_t*>(words) + first;
  for (int64_t i = 0; i < count; ++i) {
    const float x = f16_to_f32(part[i]);
    sum[i] = is_first ? x : sum[i] + x;
  }
}

}  // namespace

void CpuOps::send(const Letter& letter, Tensor x, const Batch& batch) {
  host::send(letter, x, batch);
}

void CpuOps::collect(Tensor y, const Letter& letter, Tail tail, const Batch& batch) {
  BRAID_CHECK(tail != Tail::silu_mul);
  BRAID_CHECK(letter.rows == 0 || (y.cols == letter.width && y.rows >= letter.rows));
  host::begin_collect(letter, batch);
  if (letter.rows == 0) return;
  const double row_ns = kNsPerNumber * static_cast<double>(letter.width * letter.senders);
  split(letter.rows, row_ns, [&](int64_t begin, int64_t end) {
    float sum[kSummed];
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t first = 0; first < letter.width; first += kSummed) {
        const int64_t count = std::min(kSummed, letter.width - first);
        for (int32_t rank = 0; rank < letter.senders; ++rank)
          take_part(sum, host::row_of(letter, rank, t), letter.type, first, count, rank == 0);
        float* out = y.f32(t) + first;
        for (int64_t i = 0; i < count; ++i) out[i] = tail == Tail::add ? out[i] + sum[i] : sum[i];
      }
    }
  });
}

void CpuOps::merge_best(Tensor values, Tensor ids, Tensor log_sum, const Letter& letter,
                        const Batch& batch) {
  host::merge_best(values, ids, log_sum, letter, batch);
}

Result<std::unique_ptr<Exchange>> CpuDevice::connect(std::span<Device* const> ranks,
                                                     std::span<const LaneNeeds> lanes,
                                                     const ExchangeOptions&) {
  return host::connect(ranks, lanes);
}

}  // namespace braid
