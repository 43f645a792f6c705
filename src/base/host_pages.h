// host_pages.h -- large runs of system memory whose pages are already resident.
// First touches of tens of gigabytes take seconds, so several threads request pieces, in huge pages
// where possible. A run is zero-filled, starts at a multiple of 2 MiB, is not inherited by forks,
// and spreads over the NUMA nodes of the CPUs that the process may use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/result.h"

namespace braid {

// Progress in bytes; called by the thread that waits for take_pages().
using BytesDone = std::function<void(uint64_t done_bytes)>;

// size_bytes > 0. Error: exhausted.
Result<std::byte*> take_pages(size_t size_bytes, int threads, const BytesDone& done = nullptr);
void give_pages_back(void* data, size_t size_bytes);
// size_bytes rounded up to whole pages.
size_t pages_bytes(size_t size_bytes);

}  // namespace braid
