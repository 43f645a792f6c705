// app_options.h -- what the operator decides about the endpoints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "server/access/access.h"
#include "server/api/generation.h"
#include "server/models/served_model.h"

namespace braid::server {

// Which requests have a line in the log: all, all but probes and scrapes that went well, or none.
enum class AccessLog { all, work, off };

struct AppOptions : AccessOptions {
  std::string version = "0";
  bool share_cache = false;  // prefixes are shared between keys
  bool public_metrics = false, public_models = false;
  bool strict_model = false;        // unknown model names are errors
  int64_t model_wait_ms = 120'000;  // that a request waits for a model that is not loaded
  int max_queue = 256;
  int slots = 1;
  int workers = 4;  // threads, three at least
  int64_t heartbeat_ms = 10'000;
  int64_t request_limit_ms = 0;
  int64_t late_head_ms = 0;  // RunningAnswer::Hooks
  int64_t watchdog_ms = 60'000;
  ApiLimits limits;
  AnswerPolicy policy;
  std::string page;              // of GET /; empty: one line of text
  std::string page_policy;       // its Content-Security-Policy
  std::optional<uint64_t> seed;  // of requests that name none; empty: random
  AccessLog access_log = AccessLog::work;
};

}  // namespace braid::server
