// host_exchange.h -- letters between devices that compute in host memory, which one thread calls.
//
// Every rank writes its rows into its own mailbox, where all read them. The rules of letter.h are
// checked.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "ops/batch.h"
#include "ops/device.h"
#include "ops/letter.h"

namespace braid::host {

// Errors: exhausted; invalid_argument (no rank, or too many).
Result<std::unique_ptr<Exchange>> connect(std::span<Device* const> ranks,
                                          std::span<const LaneNeeds> lanes);

void send(const Letter& letter, Tensor x, const Batch& batch);

// Calls for the own rank once a letter is collected.
void begin_collect(const Letter& letter, const Batch& batch);
// Words of a row as a rank has sent them.
inline const uint32_t* row_of(const Letter& letter, int32_t rank, int64_t row) {
  return static_cast<const uint32_t*>(letter.boxes[rank].many) + letter.half() * letter.words +
         row * letter.pitch();
}

void merge_best(Tensor values, Tensor ids, Tensor log_sum, const Letter& letter,
                const Batch& batch);

}  // namespace braid::host
