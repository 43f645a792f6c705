// thought_end.h -- who ended the thought of an answer. Its mask knows, on the engine's thread, and the answer
// says so to its client.
#pragma once

#include <atomic>
#include <cstdint>

namespace braid::server {

enum class ThoughtEnd : uint8_t { none, model, budget, loop };

// One for each choice. Set before the token that closes the thought is given out.
using ThoughtEndCell = std::atomic<ThoughtEnd>;

}  // namespace braid::server
