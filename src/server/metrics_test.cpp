// metrics_test.cpp -- the contents of /metrics, and its Prometheus text form.
#include "server/metrics.h"

#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>
#include <sstream>

namespace braid::server {
namespace {

// Series -> value. Checks each line's form, and that its family was announced.
std::map<std::string, double> samples(const std::string& text) {
  std::map<std::string, double> out;
  std::set<std::string> families;
  const std::regex sample(
      R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)*)\} ([^ ]+))re");
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# HELP ") || line.starts_with("# TYPE ")) {
      const std::string name = line.substr(7, line.find(' ', 7) - 7);
      if (line[2] == 'T') {
        EXPECT_TRUE(families.insert(name).second) << name << " is announced twice";
      }
      continue;
    }
    std::smatch parts;
    if (!std::regex_match(line, parts, sample)) {
      ADD_FAILURE() << "no sample: " << line;
      continue;
    }
    std::string family = parts[1];
    for (const char* suffix : {"_bucket", "_sum", "_count"}) {
      const std::string base = family.ends_with(suffix)
                                   ? family.substr(0, family.size() - std::string(suffix).size())
                                   : "";
      if (!families.contains(family) && families.contains(base)) family = base;
    }
    EXPECT_TRUE(families.contains(family)) << line;
    const std::string labels = std::regex_replace(
        std::string(parts[2]), std::regex(R"re(model_name="(?:[^"\\]|\\.)*",?)re"), "");
    EXPECT_TRUE(out.emplace(std::string(parts[1]) + (labels.empty() ? "" : "{" + labels + "}"),
                            std::stod(parts[3]))
                    .second)
        << line;
  }
  return out;
}

// One series for each device, also of the same use.
TEST(Metrics, MemoryByUseAndPlace) {
  Metrics metrics;
  BackendStats stats;
  stats.memory_bytes = {{"weights", "host", 10}, {"weights", "cuda:0", 30}, {"swap", "host", 5}};
  const auto seen = samples(metrics.render(stats, "m", "1", {}));
  const std::string name = "braid_engine_memory_bytes";
  EXPECT_EQ(seen.at(name + "{use=\"weights\",place=\"host\"}"), 10);
  EXPECT_EQ(seen.at(name + "{use=\"weights\",place=\"cuda:0\"}"), 30);
  EXPECT_EQ(seen.at(name + "{use=\"swap\",place=\"host\"}"), 5);
}

TEST(Metrics, ExpertsByLayerAndPath) {
  Metrics metrics;
  BackendStats stats;
  EXPECT_EQ(samples(metrics.render(stats, "m", "1", {})).count("braid_expert_slots{layer=\"0\"}"),
            0u);
  stats.expert_layers = {{256, 113, 10, {5, 40, 3, 1, 2, 7, 110, 1500000000}}, {256, 113, 20, {}}};
  const auto seen = samples(metrics.render(stats, "m", "1", {}));
  EXPECT_EQ(seen.at("braid_expert_slots{layer=\"1\"}"), 113);
  EXPECT_EQ(seen.at("braid_expert_uses_total{layer=\"0\"}"), 40);
  EXPECT_EQ(seen.at("braid_expert_reads_total{layer=\"0\",path=\"admitted\"}"), 3);
  EXPECT_EQ(seen.at("braid_expert_reads_total{layer=\"0\",path=\"passed_by\"}"), 1);
  EXPECT_EQ(seen.at("braid_expert_reads_total{layer=\"0\",path=\"streamed\"}"), 7);
  EXPECT_EQ(seen.at("braid_expert_read_bytes_total{layer=\"0\"}"), 110);
  EXPECT_EQ(seen.at("braid_expert_cpu_total{layer=\"0\"}"), 2);
  EXPECT_EQ(seen.at("braid_expert_cpu_wait_seconds_total{layer=\"0\"}"), 1.5);
}

TEST(Metrics, DraftsBySourceAndDepth) {
  Metrics metrics;
  BackendStats stats;
  auto idle = samples(metrics.render(stats, "m", "1", {}));
  EXPECT_EQ(idle.at("braid_spec_decode_num_drafts_total"), 0);
  EXPECT_EQ(idle.count("braid_spec_decode_num_draft_tokens_total{source=\"mtp\"}"), 0u);
  stats.drafts.rounds = 5;
  DraftCounts& mtp = stats.drafts.by_source[static_cast<size_t>(DraftSource::mtp)];
  mtp.rounds = {4, 3};
  mtp.drafted = {6, 3};
  mtp.accepted = {2, 1};
  stats.drafts.by_source[static_cast<size_t>(DraftSource::ngram)].rounds[2] = 1;
  stats.drafts.by_source[static_cast<size_t>(DraftSource::ngram)].drafted[2] = 7;
  stats.drafts.draft_ms = 1500;
  stats.drafts.verify_ms = 2500;
  stats.drafts.plain_ms = 3500;
  stats.drafts.host_ms = 500;
  stats.drafts.pays = true;
  stats.drafts.lost_ms = -250;
  auto busy = samples(metrics.render(stats, "m", "1", {}));
  const std::string name = "braid_spec_decode_";
  EXPECT_EQ(busy.at(name + "num_drafts_total"), 5);
  EXPECT_EQ(busy.at(name + "num_draft_tokens_total{source=\"mtp\"}"), 9);
  EXPECT_EQ(busy.at(name + "num_accepted_tokens_total{source=\"mtp\"}"), 3);
  EXPECT_EQ(busy.at(name + "num_drafts_per_pos_total{source=\"mtp\",position=\"1\"}"), 3);
  EXPECT_EQ(busy.at(name + "num_draft_tokens_per_pos_total{source=\"mtp\",position=\"0\"}"), 6);
  EXPECT_EQ(busy.at(name + "num_accepted_tokens_per_pos_total{source=\"mtp\",position=\"1\"}"), 1);
  EXPECT_EQ(busy.count(name + "num_drafts_per_pos_total{source=\"mtp\",position=\"2\"}"), 0u);
  EXPECT_EQ(busy.at(name + "num_draft_tokens_per_pos_total{source=\"ngram\",position=\"2\"}"), 7);
  EXPECT_EQ(busy.at(name + "draft_seconds_total"), 1.5);
  EXPECT_EQ(busy.at(name + "verify_seconds_total"), 2.5);
  EXPECT_EQ(busy.at("braid_plain_steps_seconds_total"), 3.5);
  EXPECT_EQ(busy.at("braid_host_seconds_total"), 0.5);
  EXPECT_EQ(busy.at(name + "enabled"), 1);
  EXPECT_EQ(busy.at(name + "lost_seconds"), -0.25);
}

TEST(Metrics, TheCacheInFiles) {
  Metrics metrics;
  BackendStats stats;
  for (const auto& [name, value] : samples(metrics.render(stats, "m", "1", {}))) {
    EXPECT_EQ(name.find("braid_disk_cache"), std::string::npos) << "there is none";
  }
  stats.has_disk = true;
  stats.disk = {.files = 1,
                .stored = 2,
                .stored_bytes = 3,
                .dropped = 4,
                .write_errors = 5,
                .evicted = 6,
                .loads = 7,
                .loaded_bytes = 8,
                .failed_loads = 9,
                .read_errors = 12,
                .removed = 10,
                .foreign = 11};
  const auto seen = samples(metrics.render(stats, "m", "1", {}));
  const std::map<std::string, double> kWanted = {
      {"braid_disk_cache_files", 1},
      {"braid_disk_cache_writes_total", 2},
      {"braid_disk_cache_written_bytes_total", 3},
      {"braid_disk_cache_dropped_total", 4},
      {"braid_disk_cache_write_errors_total", 5},
      {"braid_disk_cache_removed_total{reason=\"limit\"}", 6},
      {"braid_disk_cache_hits_total", 7},
      {"braid_disk_cache_read_bytes_total", 8},
      {"braid_disk_cache_failed_reads_total", 9},
      {"braid_disk_cache_read_errors_total", 12},
      {"braid_disk_cache_removed_total{reason=\"unusable\"}", 10}};
  size_t count = 0;
  for (const auto& [name, value] : seen) count += name.starts_with("braid_disk_cache");
  EXPECT_EQ(count, kWanted.size());
  for (const auto& [name, value] : kWanted) {
    ASSERT_TRUE(seen.contains(name)) << name;
    EXPECT_EQ(seen.at(name), value) << name;
  }
}

TEST(Metrics, WhatTheEngineSaysAndTheNamesOfOthers) {
  Metrics metrics;
  BackendStats stats;
  stats.running = 3;
  stats.waiting = 5;
  stats.prefilling = 1;
  stats.kv_blocks = 200;
  stats.kv_blocks_used = 50;
  stats.state_slots = 8;
  stats.state_slots_used = 2;
  stats.preempted = 12;
  stats.evicted_blocks = 13;
  stats.evicted_checkpoints = 14;
  const auto seen = samples(metrics.render(stats, "a \"model\" \\ of\nlines", "1", {9, 4096}));
  EXPECT_EQ(seen.at("braid_num_requests_running"), 3);
  EXPECT_EQ(seen.at("vllm:num_requests_running"), 3);
  EXPECT_EQ(seen.at("llamacpp:requests_processing"), 3);
  EXPECT_EQ(seen.at("braid_num_requests_waiting"), 5);
  EXPECT_EQ(seen.at("vllm:num_requests_waiting"), 5);
  EXPECT_EQ(seen.at("llamacpp:requests_deferred"), 5);
  EXPECT_EQ(seen.at("braid_num_requests_prefill"), 1);
  EXPECT_EQ(seen.at("braid_kv_cache_usage_perc"), 0.25);
  EXPECT_EQ(seen.at("vllm:kv_cache_usage_perc"), 0.25);
  EXPECT_EQ(seen.at("braid_state_slots_used"), 2);
  EXPECT_EQ(seen.at("braid_state_slots_total"), 8);
  EXPECT_EQ(seen.at("braid_num_preemptions_total"), 12);
  EXPECT_EQ(seen.at("braid_prefix_cache_evictions_total{tier=\"blocks\"}"), 13);
  EXPECT_EQ(seen.at("braid_prefix_cache_evictions_total{tier=\"checkpoints\"}"), 14);
  EXPECT_EQ(seen.at("braid_http_open_connections"), 9);
  EXPECT_EQ(seen.at("braid_http_request_bytes"), 4096);
}

// As read by llm-d's endpoint picker, vLLM's router and KEDA, also before the first request.
TEST(Metrics, GatewaysFindEveryFamilyThatTheyReadByName) {
  Metrics metrics;
  BackendStats stats;
  stats.prefix_blocks = 8192;
  stats.block_tokens = 32;
  stats.kv_blocks = 8192;
  stats.kv_blocks_used = 4096;
  AnswerReport report;
  report.endpoint = "/v1/messages";
  report.reason = "stop";
  report.usage = {
      .prompt_tokens = 100, .cached_tokens = 60, .generated_tokens = 21, .reasoning_tokens = 0};
  for (const bool used : {false, true}) {
    if (used) metrics.answered(report);
    const std::string text = metrics.render(stats, "m", "1", {});
    const auto first = [&text](const std::string& name) {
      const size_t at = ("\n" + text).find("\n" + name + "{");
      EXPECT_NE(at, std::string::npos) << name;
      const size_t end = text.find('\n', at);
      return at == std::string::npos ? std::string() : text.substr(at, end - at);
    };
    const auto value = [&](const std::string& name) {
      const std::string line = first(name);
      return std::stod("0" + line.substr(line.rfind(' ') + 1));
    };
    const auto label = [&](const std::string& name, const std::string& which) {
      std::smatch found;
      const std::string line = first(name);
      EXPECT_TRUE(std::regex_search(line, found, std::regex("[{,]" + which + "=\"([^\"]*)\"")))
          << line;
      return found.size() > 1 ? found[1].str() : "missing";
    };
    for (const char* gauge : {"vllm:num_requests_waiting", "vllm:num_requests_running"})
      EXPECT_EQ(value(gauge), 0) << gauge;
    for (const char* share : {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"})
      EXPECT_EQ(value(share), 0.5) << share;
    EXPECT_EQ(value("vllm:cache_config_info"), 1);
    EXPECT_EQ(label("vllm:cache_config_info", "block_size"), "32");
    EXPECT_EQ(label("vllm:cache_config_info", "num_gpu_blocks"), "8192");
    EXPECT_GT(value("vllm:lora_requests_info"), 1'600'000'000);
    EXPECT_EQ(label("vllm:lora_requests_info", "max_lora"), "0");
    EXPECT_EQ(label("vllm:lora_requests_info", "running_lora_adapters"), "");
    EXPECT_EQ(label("vllm:lora_requests_info", "waiting_lora_adapters"), "");
    for (const char* name : {"vllm:gpu_prefix_cache_hits_total", "vllm:prefix_cache_hits_total"})
      EXPECT_EQ(value(name), used ? 60 : 0) << name;
    for (const char* name :
         {"vllm:gpu_prefix_cache_queries_total", "vllm:prefix_cache_queries_total"})
      EXPECT_EQ(value(name), used ? 100 : 0) << name;
    for (const char* name :
         {"time_to_first_token_seconds", "e2e_request_latency_seconds",
          "inter_token_latency_seconds", "request_time_per_output_token_seconds",
          "request_queue_time_seconds", "request_prefill_time_seconds",
          "request_decode_time_seconds", "request_prompt_tokens", "request_generation_tokens"})
      EXPECT_EQ(value("vllm:" + std::string(name) + "_count"), used ? 1 : 0) << name;
    EXPECT_EQ(value("vllm:num_preemptions_total"), 0);
    if (used) {
      EXPECT_EQ(value("vllm:request_success_total"), 1);
    }
  }
}

TEST(Metrics, FormsAreCounted) {
  GrammarStats stats;
  stats.hits = 7;
  stats.compiled = 3;
  stats.refused = 1;
  stats.compile_s = 0.5;
  stats.mask_jobs = 4;
  stats.bytes = 1000;
  stats.remembered_bytes = 2000;
  stats.entries = 2;
  const auto seen = samples(render_grammars(stats, "m"));
  EXPECT_EQ(seen.at("braid_grammar_requests_total{source=\"cache\"}"), 7);
  EXPECT_EQ(seen.at("braid_grammar_requests_total{source=\"compiled\"}"), 3);
  EXPECT_EQ(seen.at("braid_grammar_refused_total"), 1);
  EXPECT_EQ(seen.at("braid_grammar_compile_seconds_total"), 0.5);
  EXPECT_EQ(seen.at("braid_grammar_mask_jobs_total"), 4);
  EXPECT_EQ(seen.at("braid_grammar_cache_entries"), 2);
  EXPECT_EQ(seen.at("braid_grammar_cache_bytes"), 1000);
  EXPECT_EQ(seen.at("braid_grammar_remembered_bytes"), 2000);
}

TEST(Metrics, AnswersAreCounted) {
  Metrics metrics;
  AnswerReport report;
  report.endpoint = "/v1/messages";
  report.reason = "tool_calls";
  report.usage = {
      .prompt_tokens = 100, .cached_tokens = 60, .generated_tokens = 21, .reasoning_tokens = 8};
  report.queue_s = 0.25;
  report.prompt_s = 0.5;
  report.generation_s = 2;
  report.whole_s = 2.75;
  report.first_token_s = 0.75;
  report.max_tokens = 300;
  report.n = 2;
  report.calls = 1;
  metrics.answered(report);
  report.reason = "abort";
  metrics.answered(report);
  metrics.rejected(429);
  metrics.http("POST", "/messages", 200);
  const auto seen = samples(metrics.render({}, "m", "1", {}));
  EXPECT_EQ(
      seen.at(
          "braid_request_success_total{finished_reason=\"tool_calls\",endpoint=\"/v1/messages\"}"),
      1);
  EXPECT_EQ(
      seen.at("braid_request_success_total{finished_reason=\"abort\",endpoint=\"/v1/messages\"}"),
      1);
  EXPECT_EQ(seen.at("braid_request_rejected_total{status=\"429\"}"), 1);
  EXPECT_EQ(seen.at("braid_http_requests_total{method=\"POST\",path=\"/messages\",status=\"200\"}"),
            1);
  EXPECT_EQ(seen.at("braid_prompt_tokens_total{source=\"computed\"}"), 80);
  EXPECT_EQ(seen.at("braid_prompt_tokens_total{source=\"cached\"}"), 120);
  EXPECT_EQ(seen.at("vllm:prompt_tokens_total"), 200);
  EXPECT_EQ(seen.at("braid_generation_tokens_total{kind=\"content\"}"), 26);
  EXPECT_EQ(seen.at("braid_generation_tokens_total{kind=\"reasoning\"}"), 16);
  EXPECT_EQ(seen.at("llamacpp:tokens_predicted_total"), 42);
  EXPECT_EQ(seen.at("braid_tool_calls_total"), 2);
  // Times count only answers that ended.
  EXPECT_EQ(seen.at("braid_time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(seen.at("braid_time_to_first_token_seconds_bucket{le=\"0.5\"}"), 0);
  EXPECT_EQ(seen.at("braid_time_to_first_token_seconds_bucket{le=\"0.75\"}"), 1);
  EXPECT_EQ(seen.at("braid_time_to_first_token_seconds_bucket{le=\"+Inf\"}"), 1);
  EXPECT_EQ(seen.at("braid_e2e_request_latency_seconds_sum"), 2.75);
  EXPECT_EQ(seen.at("braid_request_inference_time_seconds_sum"), 2.5);
  EXPECT_EQ(seen.at("braid_time_per_output_token_seconds_sum"), 0.1);
  EXPECT_EQ(seen.at("braid_request_params_n_sum"), 2);
  EXPECT_EQ(seen.at("braid_predicted_tokens_seconds"), 10.5);
}

}  // namespace
}  // namespace braid::server
