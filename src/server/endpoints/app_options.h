// app_options.h -- the operator's options for the endpoints.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "server/api/generation.h"
#include "server/endpoints/access.h"
#include "server/served_model.h"

namespace braid::server {

// work: all requests except successful probes and scrapes.
enum class AccessLog { all, work, off };

struct AppOptions : AccessOptions {
  std::string version = "0";
  bool share_cache = false;  // API keys share cached prefixes
  bool public_metrics = false, public_models = false;
  bool strict_model = false;        // unknown model names are errors
  int64_t model_wait_ms = 120'000;  // limit of the wait for a model to load
  int max_queue = 256;
  int slots = 1;
  int workers = 4;  // threads, at least three
  int64_t heartbeat_ms = 10'000;
  int64_t request_limit_ms = 0;
  int64_t late_head_ms = 0;  // RunningAnswer::Hooks
  int64_t watchdog_ms = 60'000;
  ApiLimits limits;
  AnswerPolicy policy;
  std::string page;              // HTML of GET /; empty: one line of text
  std::string page_policy;       // its Content-Security-Policy
  std::optional<uint64_t> seed;  // for requests without one; empty: random
  AccessLog access_log = AccessLog::work;
};

}  // namespace braid::server
