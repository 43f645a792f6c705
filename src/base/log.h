// log.h -- messages for the person who runs braid, on stderr; stdout belongs to the program's results.
//
// Levels: debug, info, warn, error; BRAID_LOG=level chooses (default warn for commands).
#pragma once

#include <spdlog/spdlog.h>

namespace braid {

// Sets up the stderr logger. Call once, from main.
void init_log();

}  // namespace braid
