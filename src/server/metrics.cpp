// metrics.cpp -- see metrics.h.
#include "server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <iterator>
#include <numeric>

#include "base/check.h"

namespace braid::server {
namespace {

std::vector<double> latency_bounds() {
  return {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
          30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
}

std::vector<double> size_bounds() {  // 1, 2, 5, 10, ...
  std::vector<double> out;
  for (double power = 1; power <= 100'000; power *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) out.push_back(step * power);
  }
  return out;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

class MetricsPage {
 public:
  explicit MetricsPage(const std::string& model)
      : label_(fmt::format("model_name=\"{}\"", escaped(model))) {}

  void family(const std::string& name, const char* type, const char* help) {
    text_ += fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
  }
  void sample(const std::string& name, double value, const std::string& labels = "") {
    text_ +=
        fmt::format("{}{{{}{}{}}} {}\n", name, label_, labels.empty() ? "" : ",", labels, value);
  }
  void one(const std::string& name, const char* type, const char* help, double value) {
    family(name, type, help);
    sample(name, value);
  }
  void histogram(const std::string& name, const char* help, const Histogram& histogram) {
    family(name, "histogram", help);
    histogram.render(name, label_, text_);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string label_, text_;
};

namespace {

// The disk cache (--cache-dir). Absent without one.
void disk_metrics(const BackendStats& stats, MetricsPage& page) {
  if (!stats.has_disk) return;
  const DiskStats& disk = stats.disk;
  const auto number = [](uint64_t value) { return static_cast<double>(value); };
  page.one("braid_disk_cache_files", "gauge", "Usable files of cached prefixes.",
           number(disk.files));
  page.one("braid_disk_cache_hits_total", "counter", "Prefixes loaded from files.",
           number(disk.loads));
  page.one("braid_disk_cache_read_bytes_total", "counter", "Bytes loaded.",
           number(disk.loaded_bytes));
  page.one("braid_disk_cache_failed_reads_total", "counter", "Loads that were given up.",
           number(disk.failed_loads));
  page.one("braid_disk_cache_read_errors_total", "counter",
           "Files that the system could not read; they stay.", number(disk.read_errors));
  page.one("braid_disk_cache_writes_total", "counter", "Files written.", number(disk.stored));
  page.one("braid_disk_cache_written_bytes_total", "counter", "Bytes written.",
           number(disk.stored_bytes));
  page.one("braid_disk_cache_write_errors_total", "counter", "Writes that failed.",
           number(disk.write_errors));
  page.one("braid_disk_cache_dropped_total", "counter", "Prefixes that were not written.",
           number(disk.dropped));
  page.family("braid_disk_cache_removed_total", "counter", "Files removed.");
  page.sample("braid_disk_cache_removed_total", number(disk.evicted), "reason=\"limit\"");
  page.sample("braid_disk_cache_removed_total", number(disk.removed), "reason=\"unusable\"");
}

// Draft tokens by source and depth, without series that are all zero.
void draft_metrics(const BackendStats& stats, MetricsPage& page) {
  const DraftStats& drafts = stats.drafts;
  const auto number = [](uint64_t value) { return static_cast<double>(value); };
  const auto total = [](const auto& counts) {
    return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  };
  using Counts = std::array<uint64_t, DraftCounts::kDepths> DraftCounts::*;
  const auto by_source = [&](const char* name, const char* help, Counts counts) {
    page.family(name, "counter", help);
    for (size_t i = 0; i < kDraftSources; ++i) {
      const uint64_t sum = total(drafts.by_source[i].*counts);
      if (sum > 0)
        page.sample(name, number(sum), fmt::format("source=\"{}\"", kDraftSourceNames[i]));
    }
  };
  const auto by_depth = [&](const char* name, const char* help, Counts counts) {
    page.family(name, "counter", help);
    for (size_t i = 0; i < kDraftSources; ++i) {
      for (size_t d = 0; d < DraftCounts::kDepths; ++d) {
        if (drafts.by_source[i].rounds[d] == 0) continue;
        page.sample(name, number((drafts.by_source[i].*counts)[d]),
                    fmt::format("source=\"{}\",position=\"{}\"", kDraftSourceNames[i], d));
      }
    }
  };
  page.one("braid_spec_decode_num_drafts_total", "counter",
           "Verifications: steps with drafts, for each sequence that has some.",
           number(drafts.rounds));
  by_source("braid_spec_decode_num_draft_tokens_total", "Drafted tokens.", &DraftCounts::drafted);
  by_source("braid_spec_decode_num_accepted_tokens_total", "Drafted tokens that were kept.",
            &DraftCounts::accepted);
  by_depth("braid_spec_decode_num_drafts_per_pos_total",
           "Verifications with drafts so deep; position 0: the next token.", &DraftCounts::rounds);
  by_depth("braid_spec_decode_num_draft_tokens_per_pos_total",
           "Drafted tokens by their depth; the last: it and all deeper.", &DraftCounts::drafted);
  by_depth("braid_spec_decode_num_accepted_tokens_per_pos_total", "Of them, those that were kept.",
           &DraftCounts::accepted);
  page.one("braid_spec_decode_draft_seconds_total", "counter", "Time spent on drafting.",
           drafts.draft_ms / 1e3);
  page.one("braid_spec_decode_verify_seconds_total", "counter",
           "Work of the device on steps with drafts.", drafts.verify_ms / 1e3);
  page.one("braid_plain_steps_seconds_total", "counter",
           "Work of the device on steps without drafts.", drafts.plain_ms / 1e3);
  page.one("braid_host_seconds_total", "counter",
           "Time between steps with nothing queued on the device.", drafts.host_ms / 1e3);
  page.one("braid_spec_decode_enabled", "gauge", "1: drafts are thought to pay now.",
           drafts.pays ? 1 : 0);
  page.one("braid_spec_decode_lost_seconds", "gauge",
           "Time beyond plain steps for the same tokens so far; negative: saved.",
           drafts.lost_ms / 1e3);
}

}  // namespace

void Histogram::observe(double value) {
  if (!std::isfinite(value) || value < 0) return;
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  ++counts_[static_cast<size_t>(at)];
  sum_ += value;
  ++total_;
}

void Histogram::render(const std::string& name, const std::string& label, std::string& out) const {
  uint64_t running = 0;
  for (size_t i = 0; i < bounds_.size(); ++i) {
    running += counts_[i];
    out += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, label, bounds_[i], running);
  }
  out +=
      fmt::format("{0}_bucket{{{1},le=\"+Inf\"}} {2}\n{0}_sum{{{1}}} {3}\n{0}_count{{{1}}} {2}\n",
                  name, label, total_, sum_);
}

Metrics::Metrics()
    : first_token_({.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                    1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560}),
      per_token_({.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3,
                  .4,   .5,    .75,  1,   2.5,  5,   7.5,  10, 20,  40, 80}),
      whole_(latency_bounds()),
      queue_(latency_bounds()),
      prompt_(latency_bounds()),
      generation_(latency_bounds()),
      inference_(latency_bounds()),
      prompt_size_(size_bounds()),
      answer_size_(size_bounds()),
      max_tokens_(size_bounds()),
      choices_({1, 2, 5, 10, 20}) {}

void Metrics::compressed(const CompressionReport& report) {
  const std::lock_guard lock(mutex_);
  ++compressions_[report.result];
  compression_read_tokens_ += static_cast<uint64_t>(report.read_tokens);
  compression_dropped_tokens_ += static_cast<uint64_t>(std::max<int64_t>(0, report.dropped_tokens));
  compression_s_ += report.seconds;
}

void Metrics::answered(const AnswerReport& report) {
  const std::lock_guard lock(mutex_);
  ++finished_[{report.reason, report.endpoint}];
  const AnswerUsage& usage = report.usage;
  prompt_tokens_ += static_cast<uint64_t>(usage.run_tokens() - usage.cached_tokens);
  cached_tokens_ += static_cast<uint64_t>(usage.cached_tokens);
  generated_tokens_ += static_cast<uint64_t>(usage.generated_tokens);
  reasoning_tokens_ += static_cast<uint64_t>(usage.reasoning_tokens);
  calls_ += static_cast<uint64_t>(report.calls);
  repairs_["missing_end"] += static_cast<uint64_t>(report.repairs.missing_end);
  repairs_["call_in_reasoning"] += static_cast<uint64_t>(report.repairs.call_in_reasoning);
  repairs_["bare_function"] += static_cast<uint64_t>(report.repairs.bare_function);
  repairs_["stray_close"] += static_cast<uint64_t>(report.repairs.stray_close);
  repairs_["doubled_tag"] += static_cast<uint64_t>(report.repairs.doubled_tag);
  repairs_["broken_json"] += static_cast<uint64_t>(report.repairs.broken_json);
  looped_thoughts_ += static_cast<uint64_t>(report.loops.thoughts);
  looped_contents_ += static_cast<uint64_t>(report.loops.contents);
  recent_s_.push_back(report.whole_s);
  if (recent_s_.size() > 32) recent_s_.erase(recent_s_.begin());
  if (report.reason == "abort" || report.reason == "error") return;
  prompt_s_ += report.prompt_s;
  generation_s_ += report.generation_s;
  if (report.prompt_s > 0) {
    last_prompt_rate_ =
        static_cast<double>(usage.run_tokens() - usage.cached_tokens) / report.prompt_s;
  }
  if (report.generation_s > 0) {
    last_generation_rate_ = static_cast<double>(usage.generated_tokens) / report.generation_s;
  }
  first_token_.observe(report.first_token_s);
  if (usage.generated_tokens > 1) {
    per_token_.observe(report.generation_s / static_cast<double>(usage.generated_tokens - 1));
  }
  whole_.observe(report.whole_s);
  queue_.observe(report.queue_s);
  prompt_.observe(report.prompt_s);
  generation_.observe(report.generation_s);
  inference_.observe(report.prompt_s + report.generation_s);
  choices_.observe(report.n);
  prompt_size_.observe(static_cast<double>(usage.prompt_tokens));
  answer_size_.observe(static_cast<double>(usage.generated_tokens));
  max_tokens_.observe(static_cast<double>(report.max_tokens));
}

void Metrics::rejected(int status) {
  const std::lock_guard lock(mutex_);
  ++rejected_[status];
}

void Metrics::limited(const std::string& limit) {
  BRAID_CHECK(std::find(std::begin(kLimits), std::end(kLimits), limit) != std::end(kLimits));
  const std::lock_guard lock(mutex_);
  ++limited_[limit];
}

void Metrics::http(const std::string& method, const std::string& route, int status) {
  static constexpr std::array<std::string_view, 9> kMethods = {
      "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"};
  const bool known = std::find(kMethods.begin(), kMethods.end(), method) != kMethods.end();
  const std::lock_guard lock(mutex_);
  ++http_[fmt::format("method=\"{}\",path=\"{}\",status=\"{}\"", known ? method : kOther,
                      escaped(route), status)];
}

int Metrics::retry_after_s(const BackendStats& stats) const {
  const std::lock_guard lock(mutex_);
  const double mean = recent_s_.empty() ? 1
                                        : std::accumulate(recent_s_.begin(), recent_s_.end(), 0.0) /
                                              static_cast<double>(recent_s_.size());
  return static_cast<int>(
      std::clamp(std::ceil(mean * stats.waiting / std::max(1, stats.slots)), 1.0, 60.0));
}

// Layers count from 0, those with expert slots alone.
void add_experts(MetricsPage& page, const std::vector<ExpertLayer>& layers) {
  if (layers.empty()) return;
  const auto number = [](auto value) { return static_cast<double>(value); };
  const auto each = [&](const char* name, const char* kind, const char* help, auto add) {
    page.family(name, kind, help);
    for (size_t i = 0; i < layers.size(); ++i) add(name, layers[i], fmt::format("layer=\"{}\"", i));
  };
  each("braid_expert_slots", "gauge", "Experts of a layer that lie on the GPU.",
       [&](const char* name, const ExpertLayer& layer, const std::string& label) {
         page.sample(name, layer.slots, label);
       });
  each("braid_expert_uses_total", "counter",
       "Experts that steps have chosen, without those of large prompt steps.",
       [&](const char* name, const ExpertLayer& layer, const std::string& label) {
         page.sample(name, number(layer.counts.chosen), label);
       });
  each("braid_expert_reads_total", "counter",
       "Experts read from host memory: to stay, for a step alone, or for a large prompt step.",
       [&](const char* name, const ExpertLayer& layer, const std::string& label) {
         const ExpertCounts& counts = layer.counts;
         page.sample(name, number(counts.admitted), label + ",path=\"admitted\"");
         page.sample(name, number(counts.passed_by), label + ",path=\"passed_by\"");
         page.sample(name, number(counts.streamed), label + ",path=\"streamed\"");
       });
  each("braid_expert_read_bytes_total", "counter", "Bytes of these.",
       [&](const char* name, const ExpertLayer& layer, const std::string& label) {
         page.sample(name, number(layer.counts.read_bytes), label);
       });
  each("braid_expert_cpu_total", "counter",
       "Experts that CPU threads have computed, as they were missing on the GPU.",
       [&](const char* name, const ExpertLayer& layer, const std::string& label) {
         page.sample(name, number(layer.counts.computed), label);
       });
  each("braid_expert_cpu_wait_seconds_total", "counter", "Time in which the GPU waited for these.",
       [&](const char* name, const ExpertLayer& layer, const std::string& label) {
         page.sample(name, number(layer.counts.waited_ns) * 1e-9, label);
       });
}

std::string Metrics::render(const BackendStats& stats, const std::string& model,
                            const std::string& version, const HttpLoad& load) const {
  const std::lock_guard lock(mutex_);
  MetricsPage page(model);
  const auto number = [](auto value) { return static_cast<double>(value); };
  const double kv =
      stats.kv_blocks > 0 ? number(stats.kv_blocks_used) / number(stats.kv_blocks) : 0;
  const double prompt = number(prompt_tokens_ + cached_tokens_);

  page.one("braid_num_requests_running", "gauge", "Sequences in a batch now.", stats.running);
  page.one("braid_num_requests_waiting", "gauge", "Requests that wait for a slot.", stats.waiting);
  page.one("braid_num_requests_prefill", "gauge", "Running sequences still in their prompt.",
           stats.prefilling);
  page.one("braid_kv_cache_usage_perc", "gauge",
           "Used blocks of the KV cache (of its fullest group), 0 to 1.", kv);
  page.one("braid_state_slots_used", "gauge", "Recurrent states in use.", stats.state_slots_used);
  page.one("braid_state_slots_total", "gauge", "Recurrent states there is room for.",
           stats.state_slots);
  page.one("braid_checkpoints_used", "gauge", "Checkpoints of recurrent states in host memory.",
           stats.checkpoints_used);
  page.one("braid_checkpoints_total", "gauge", "Checkpoints there is room for (--state-memory).",
           stats.checkpoints);
  if (!stats.memory_bytes.empty())
    page.family("braid_engine_memory_bytes", "gauge",
                "What the engine has taken at its start. Host memory becomes resident when it is "
                "first used.");
  for (const auto& [use, place, bytes] : stats.memory_bytes)
    page.sample("braid_engine_memory_bytes", number(bytes),
                fmt::format("use=\"{}\",place=\"{}\"", use, place));
  add_experts(page, stats.expert_layers);
  page.one("braid_num_preemptions_total", "counter",
           "Sequences preempted for others, to go on later.", number(stats.preempted));
  page.family("braid_prefix_cache_evictions_total", "counter",
              "What the prefix cache gave up for room.");
  page.sample("braid_prefix_cache_evictions_total", number(stats.evicted_blocks),
              "tier=\"blocks\"");
  page.sample("braid_prefix_cache_evictions_total", number(stats.evicted_checkpoints),
              "tier=\"checkpoints\"");
  page.one("braid_prefix_cache_queries_total", "counter", "Prompt tokens looked up.", prompt);
  page.one("braid_prefix_cache_hits_total", "counter", "Prompt tokens found.",
           number(cached_tokens_));
  page.family("braid_prompt_tokens_total", "counter", "Prompt tokens, by where they came from.");
  page.sample("braid_prompt_tokens_total", number(prompt_tokens_), "source=\"computed\"");
  page.sample("braid_prompt_tokens_total", number(cached_tokens_), "source=\"cached\"");
  page.family("braid_generation_tokens_total", "counter", "Generated tokens.");
  page.sample("braid_generation_tokens_total", number(generated_tokens_ - reasoning_tokens_),
              "kind=\"content\"");
  page.sample("braid_generation_tokens_total", number(reasoning_tokens_), "kind=\"reasoning\"");
  page.family("braid_request_success_total", "counter", "Finished requests.");
  for (const auto& [key, count] : finished_) {
    page.sample("braid_request_success_total", number(count),
                fmt::format("finished_reason=\"{}\",endpoint=\"{}\"", key.first, key.second));
  }
  page.family("braid_request_rejected_total", "counter",
              "Requests answered before they were queued.");
  for (const auto& [status, count] : rejected_) {
    page.sample("braid_request_rejected_total", number(count),
                fmt::format("status=\"{}\"", status));
  }
  page.family("braid_request_limited_total", "counter", "Requests refused by a limit.");
  for (const char* limit : kLimits) {
    const auto found = limited_.find(limit);
    page.sample("braid_request_limited_total", number(found == limited_.end() ? 0 : found->second),
                fmt::format("limit=\"{}\"", limit));
  }
  page.one("braid_prompt_seconds_total", "counter", "Time spent on prompts.", prompt_s_);
  page.one("braid_predicted_seconds_total", "counter", "Time spent on answers.", generation_s_);
  page.one("braid_prompt_tokens_seconds", "gauge", "Prompt tokens per second of the last request.",
           last_prompt_rate_);
  page.one("braid_predicted_tokens_seconds", "gauge",
           "Generated tokens per second of the last request.", last_generation_rate_);
  page.one("braid_engine_prompt_tokens_total", "counter",
           "Prompt tokens run so far, also of open requests.", number(stats.prompt_tokens));
  page.one("braid_engine_generated_tokens_total", "counter",
           "Generated tokens so far, also of open requests.", number(stats.generated_tokens));
  disk_metrics(stats, page);
  page.one("braid_decode_steps_total", "counter", "Steps of the engine.", number(stats.steps));
  draft_metrics(stats, page);
  page.histogram("braid_time_to_first_token_seconds", "From the request to its first token.",
                 first_token_);
  page.histogram("braid_time_per_output_token_seconds", "Between tokens of an answer, on average.",
                 per_token_);
  page.histogram("braid_e2e_request_latency_seconds", "From the request to the end of its answer.",
                 whole_);
  page.histogram("braid_request_queue_time_seconds", "Waiting for a slot.", queue_);
  page.histogram("braid_request_prefill_time_seconds", "Running the prompt.", prompt_);
  page.histogram("braid_request_decode_time_seconds", "Generating.", generation_);
  page.histogram("braid_request_inference_time_seconds", "Prompt and generation.", inference_);
  page.histogram("braid_request_params_n", "Choices asked for.", choices_);
  page.histogram("braid_request_prompt_tokens", "Prompt tokens of a request.", prompt_size_);
  page.histogram("braid_request_generation_tokens", "Generated tokens of a request.", answer_size_);
  page.histogram("braid_request_params_max_tokens", "Limit of a request.", max_tokens_);
  page.family("braid_http_requests_total", "counter", "HTTP requests.");
  for (const auto& [labels, count] : http_)
    page.sample("braid_http_requests_total", number(count), labels);
  page.one("braid_http_open_connections", "gauge", "Open connections.", load.connections);
  page.one("braid_http_request_bytes", "gauge",
           "Memory that requests hold, until their answers have ended.",
           number(load.request_bytes));
  compression_metrics(stats, page);
  page.one("braid_tool_calls_total", "counter", "Tool calls of models.", number(calls_));
  page.family("braid_parser_repairs_total", "counter",
              "How often a model's markup had to be repaired.");
  for (const auto& [kind, count] : repairs_) {
    page.sample("braid_parser_repairs_total", number(count), fmt::format("kind=\"{}\"", kind));
  }
  page.family("braid_loops_total", "counter",
              "Thoughts and visible texts that were ended as they went round.");
  page.sample("braid_loops_total", number(looped_thoughts_), "section=\"thought\"");
  page.sample("braid_loops_total", number(looped_contents_), "section=\"content\"");
  page.family("braid_build_info", "gauge", "Version of this program.");
  page.sample("braid_build_info", 1, fmt::format("version=\"{}\"", escaped(version)));

  vllm_metrics(stats, page);
  page.one("llamacpp:requests_processing", "gauge", "As braid_num_requests_running.",
           stats.running);
  page.one("llamacpp:requests_deferred", "gauge", "As braid_num_requests_waiting.", stats.waiting);
  page.one("llamacpp:prompt_tokens_total", "counter", "Prompt tokens run.", number(prompt_tokens_));
  page.one("llamacpp:tokens_predicted_total", "counter", "Generated tokens.",
           number(generated_tokens_));
  page.one("llamacpp:prompt_tokens_seconds", "gauge", "As braid_prompt_tokens_seconds.",
           last_prompt_rate_);
  page.one("llamacpp:predicted_tokens_seconds", "gauge", "As braid_predicted_tokens_seconds.",
           last_generation_rate_);
  return page.take();
}

void Metrics::compression_metrics(const BackendStats& stats, MetricsPage& page) const {
  const auto number = [](auto value) { return static_cast<double>(value); };
  page.family("braid_compressions_total", "counter",
              "Requests that could be compressed, by what became of them.");
  for (const auto& [result, count] : compressions_)
    page.sample("braid_compressions_total", number(count), fmt::format("result=\"{}\"", result));
  page.one("braid_compression_read_tokens_total", "counter",
           "Tokens of prompts that were compressed, before.", number(compression_read_tokens_));
  page.one("braid_compression_dropped_tokens_total", "counter", "Tokens that compression left out.",
           number(compression_dropped_tokens_));
  page.one("braid_compression_seconds_total", "counter",
           "From a request to the end of its compression.", compression_s_);
  page.one("braid_compressions_running", "gauge",
           "Prompts that the small model reads, or that wait for it.", stats.scoring);
}

// vLLM's names, as gateways poll them 20 times a second. A missing family is an error there.
void Metrics::vllm_metrics(const BackendStats& stats, MetricsPage& page) const {
  const auto number = [](auto value) { return static_cast<double>(value); };
  const double kv =
      stats.kv_blocks > 0 ? number(stats.kv_blocks_used) / number(stats.kv_blocks) : 0;
  const double prompt = number(prompt_tokens_ + cached_tokens_), cached = number(cached_tokens_);
  page.one("vllm:num_requests_running", "gauge", "As braid_num_requests_running.", stats.running);
  page.one("vllm:num_requests_waiting", "gauge", "As braid_num_requests_waiting.", stats.waiting);
  for (const char* name : {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"})
    page.one(name, "gauge", "As braid_kv_cache_usage_perc.", kv);
  page.family("vllm:cache_config_info", "gauge",
              "Tokens of a block, and blocks that hold prefixes.");
  page.sample("vllm:cache_config_info", 1,
              fmt::format("block_size=\"{}\",num_gpu_blocks=\"{}\"", stats.block_tokens,
                          stats.prefix_blocks));
  page.family("vllm:lora_requests_info", "gauge", "There are no adapters; the value is the time.");
  page.sample("vllm:lora_requests_info", number(std::time(nullptr)),
              "max_lora=\"0\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"");
  for (const char* name :
       {"vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"})
    page.one(name, "counter", "As braid_prefix_cache_queries_total.", prompt);
  for (const char* name : {"vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"})
    page.one(name, "counter", "As braid_prefix_cache_hits_total.", cached);
  page.one("vllm:num_preemptions_total", "counter", "As braid_num_preemptions_total.",
           number(stats.preempted));
  page.one("vllm:prompt_tokens_total", "counter", "Prompt tokens.", prompt);
  page.one("vllm:generation_tokens_total", "counter", "Generated tokens.",
           number(generated_tokens_));
  std::map<std::string, uint64_t> by_reason;
  for (const auto& [key, count] : finished_) by_reason[key.first] += count;
  page.family("vllm:request_success_total", "counter", "Finished requests.");
  for (const auto& [reason, count] : by_reason) {
    page.sample("vllm:request_success_total", number(count),
                fmt::format("finished_reason=\"{}\"", reason));
  }
  const std::pair<const char*, const Histogram*> kCopies[] = {
      {"time_to_first_token_seconds", &first_token_},
      {"inter_token_latency_seconds", &per_token_},
      {"request_time_per_output_token_seconds", &per_token_},
      {"e2e_request_latency_seconds", &whole_},
      {"request_queue_time_seconds", &queue_},
      {"request_prefill_time_seconds", &prompt_},
      {"request_decode_time_seconds", &generation_},
      {"request_prompt_tokens", &prompt_size_},
      {"request_generation_tokens", &answer_size_},
  };
  for (const auto& [name, histogram] : kCopies)
    page.histogram(fmt::format("vllm:{}", name), "As the one of braid_.", *histogram);
}

std::string render_grammars(const GrammarStats& stats, const std::string& model) {
  MetricsPage page(model);
  const auto number = [](auto value) { return static_cast<double>(value); };
  page.family("braid_grammar_requests_total", "counter",
              "Answers of a given form, by where it came from.");
  page.sample("braid_grammar_requests_total", number(stats.hits), "source=\"cache\"");
  page.sample("braid_grammar_requests_total", number(stats.compiled), "source=\"compiled\"");
  page.one("braid_grammar_refused_total", "counter", "Forms that could not be compiled.",
           number(stats.refused));
  page.one("braid_grammar_compile_seconds_total", "counter", "Time spent on compiling forms.",
           stats.compile_s);
  page.one("braid_grammar_mask_jobs_total", "counter",
           "Masks that took too long for the engine's thread; their answers waited for another.",
           number(stats.mask_jobs));
  page.one("braid_grammar_cache_entries", "gauge", "Forms and refusals that are kept.",
           number(stats.entries));
  page.one("braid_grammar_cache_bytes", "gauge", "Memory of forms that are kept.",
           number(stats.bytes));
  page.one("braid_grammar_remembered_bytes", "gauge", "Memory of what forms remember of tokens.",
           number(stats.remembered_bytes));
  return page.take();
}

}  // namespace braid::server
