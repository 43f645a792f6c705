// host_pages.h -- large runs of memory from the system that are there when they are handed out.
//
// A first touch of every page, one thread after the other's page, takes seconds for tens of gigabytes: the
// system clears what it gives. Here several threads ask for pieces of the run, in huge pages where the system
// has them. The run is zero-filled, begins at a multiple of 2 MiB, and does not go to forked processes. Which
// NUMA node a piece comes from is that of the CPU that asked, so a run lies on all nodes whose CPUs the
// process may use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/result.h"

namespace braid {

// How much of something is there by now; called by the thread that waits for it.
using BytesDone = std::function<void(uint64_t done_bytes)>;

// size_bytes > 0. Error: exhausted.
Result<std::byte*> take_pages(size_t size_bytes, int threads, const BytesDone& done = nullptr);
// What take_pages(size_bytes) gave.
void give_pages_back(void* data, size_t size_bytes);
// What a run of so many bytes takes: whole pages.
size_t pages_bytes(size_t size_bytes);

}  // namespace braid
