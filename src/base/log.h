// log.h -- messages on stderr for the user of braid; stdout is for results.
// BRAID_LOG sets the level (trace to critical, or off). The default is warn, for servers info.
#pragma once

#include <spdlog/spdlog.h>

namespace braid {

// Sets up the stderr logger. Call once, from main. An unknown level causes a warning.
void init_log();

// For servers: lines begin with the time, and the default level is info.
void log_as_server();

}  // namespace braid
