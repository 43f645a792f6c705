// log.h -- messages for the person who runs braid, on stderr; stdout belongs to the program's results.
//
// Levels: trace, debug, info, warn, error, critical, off; BRAID_LOG=level chooses. Default: warn, of servers info.
#pragma once

#include <spdlog/spdlog.h>

namespace braid {

// Sets up the stderr logger. Call once, from main. An unknown level is a warning, and the default holds.
void init_log();

// For a program that runs on its own: lines begin with the time, and the default level is info.
void log_as_server();

}  // namespace braid
