// metrics.h -- counters and histograms in Prometheus text form, named like vLLM's with the prefix
// braid_. One lock, held for microseconds; never taken by the engine's thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/api/answer_usage.h"
#include "server/api/backend.h"
#include "server/api/grammar_stats.h"
#include "server/http/http.h"
#include "text/answer_parser.h"

namespace braid::server {

class MetricsPage;  // metrics.cpp

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void observe(double value);
  void render(const std::string& name, const std::string& label, std::string& out) const;

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;
  double sum_ = 0;
  uint64_t total_ = 0;
};

struct AnswerReport {
  std::string endpoint;
  std::string reason;  // stop, length, tool_calls, abort, error
  AnswerUsage usage;
  double queue_s = 0, prompt_s = 0, generation_s = 0, whole_s = 0, first_token_s = 0;
  int64_t max_tokens = 0;
  int32_t n = 1;
  int32_t calls = 0;
  AnswerRepairs repairs;
  AnswerLoops loops;
};

// A request on a server that compresses prompts.
struct CompressionReport {
  const char* result = "";  // compressed, skipped, failed
  int64_t read_tokens = 0, dropped_tokens = 0;
  double seconds = 0;
};

// Labels come from closed sets, because a counted series is reported forever.
class Metrics {
 public:
  // The label of paths without a route.
  static constexpr const char* kOther = "other";

  Metrics();
  void answered(const AnswerReport& report);
  void compressed(const CompressionReport& report);
  void rejected(int status);
  void limited(const std::string& limit);
  static constexpr const char* kLimits[] = {"queue_full", "client_requests", "client_queue",
                                            "priority", "model"};
  // `route`: a path of the server, or kOther. Methods unknown to HTTP are counted as "other".
  void http(const std::string& method, const std::string& route, int status);

  std::string render(const BackendStats& stats, const std::string& model,
                     const std::string& version, const HttpLoad& load) const;
  // Expected seconds until a place is free, from recent answer times.
  int retry_after_s(const BackendStats& stats) const;

 private:
  void compression_metrics(const BackendStats& stats, MetricsPage& page) const;  // under the lock
  void vllm_metrics(const BackendStats& stats, MetricsPage& page) const;         // under the lock

  mutable std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, uint64_t> finished_;  // reason, endpoint
  std::map<int, uint64_t> rejected_;
  std::map<std::string, uint64_t> limited_;
  std::map<std::string, uint64_t> http_;  // rendered labels
  std::map<std::string, uint64_t> repairs_;
  uint64_t prompt_tokens_ = 0, cached_tokens_ = 0, generated_tokens_ = 0, reasoning_tokens_ = 0,
           calls_ = 0;
  std::map<std::string, uint64_t> compressions_;
  uint64_t compression_read_tokens_ = 0, compression_dropped_tokens_ = 0;
  double compression_s_ = 0;
  uint64_t looped_thoughts_ = 0, looped_contents_ = 0;
  double prompt_s_ = 0, generation_s_ = 0;
  double last_prompt_rate_ = 0, last_generation_rate_ = 0;
  std::vector<double> recent_s_;
  Histogram first_token_, per_token_, whole_, queue_, prompt_, generation_, inference_,
      prompt_size_, answer_size_, max_tokens_, choices_;
};

// Appended to render() for a model with structured output.
std::string render_grammars(const GrammarStats& stats, const std::string& model);

}  // namespace braid::server
