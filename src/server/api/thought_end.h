// thought_end.h -- what ended a thought: set by the mask on the engine's thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace braid::server {

enum class ThoughtEnd : uint8_t { none, model, budget, loop };

// One per choice. Set before the sink gets the token that closes the thought.
using ThoughtEndCell = std::atomic<ThoughtEnd>;

}  // namespace braid::server
