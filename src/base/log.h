// log.h -- messages for the person who runs braid; stdout belongs to the program's results.
//
// Levels: trace, debug, info, warn, error, critical, off. BRAID_LOG in the environment chooses one.
// The default is warn, of servers info.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

#include "base/result.h"

namespace braid {

// Sets up the logger on stderr. Call once, from main. An unknown level causes a warning.
void init_log();

struct LogOptions {
  std::string level;  // empty: that of BRAID_LOG, else info
  std::string file;   // that is appended to; empty: stderr
  bool json = false;  // an object a line: time, level, message; of requests also their fields
};

// For a program that runs on its own: lines begin with the time. Errors: io, an unknown level.
Status log_as_server(const LogOptions& options = {});

// Opens the file again after a rotation has moved it. Without a file it does nothing. Errors: io;
// then the old file stays open.
Status reopen_log();

}  // namespace braid
