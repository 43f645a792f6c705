// log.h -- messages for the person who runs braid; stdout belongs to the program's results.
//
// Levels: trace, debug, info, warn, error, critical, off. The environment's BRAID_LOG chooses one of them. Without it: warn, of
// servers info.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

#include "base/result.h"

namespace braid {

// Sets up the logger on stderr. Call once, from main. An unknown level is a warning, and the default holds.
void init_log();

struct LogOptions {
  std::string level;  // empty: that of BRAID_LOG, else info
  std::string file;   // that is appended to; empty: stderr
  bool json = false;  // an object a line: time, level, message; of requests also their fields
};

// For a program that runs on its own: lines begin with the time. Errors: io, an unknown level.
Status log_as_server(const LogOptions& options = {});

// Opens the file again, after a rotation has moved it. Without a file: nothing. Error: io; the old file stays.
Status reopen_log();

}  // namespace braid
