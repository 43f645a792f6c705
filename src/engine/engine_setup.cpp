// engine_setup.cpp -- from a file and options to an engine that can run: sizes, the memory plan, loading.
#include <fmt/format.h>

#include <algorithm>

#include "engine/engine.h"

namespace braid {
namespace {

constexpr int32_t kSmallestContext = 512;
constexpr uint64_t kLogitsBytes = uint64_t{16} << 20;  // rows scored at once; a few rows are always possible

const char* const kWeights = "weights";
const char* const kKvBlocks = "KV blocks";
const char* const kStateSlots = "state slots";
const char* const kJournals = "journals";
const char* const kActivations = "activations";
const char* const kLogits = "logits";
const char* const kWorkspaces = "workspaces";

Status check_options(const EngineOptions& o, const ModelConfig& config) {
  const auto bad = [](const std::string& message) { return Error{ErrorKind::invalid_argument, message}; };
  if (o.context_tokens < 0) return bad(fmt::format("a context of {} tokens is impossible", o.context_tokens));
  if (o.context_tokens > config.context_length)
    return bad(fmt::format("a context of {} tokens is more than the {} that this model was made for",
                           o.context_tokens, config.context_length));
  if (o.max_sequences < 1 || o.max_sequences > 4096)
    return bad(fmt::format("{} sequences at a time is not between 1 and 4096", o.max_sequences));
  if (o.ubatch_tokens < 1 || o.ubatch_tokens > 65536)
    return bad(fmt::format("a batch of {} tokens is not between 1 and 65536", o.ubatch_tokens));
  if (o.max_drafts < 0 || o.max_drafts > 1024)
    return bad(fmt::format("{} drafted tokens is not between 0 and 1024", o.max_drafts));
  return {};
}

// What the ops keep between a product's input and its kernel, and beside the recurrence: a rough upper bound;
// the device says the truth when it has taken it.
uint64_t expected_workspaces(const Device::WorkspaceNeeds& needs, int threads) {
  const auto rows = static_cast<uint64_t>(needs.max_tokens);
  const auto row_elements =
      static_cast<uint64_t>(2 * needs.max_width + 2 * needs.delta.channels() +
                            needs.experts_used * (2 * needs.expert_width + needs.model_width));
  return rows * row_elements * sizeof(float) + (static_cast<uint64_t>(threads) << 20);
}

Result<std::unique_ptr<Device>> make_device(const EngineOptions& options, int32_t max_rows) {
  DeviceOptions device;
  device.threads = options.threads;
  device.activations = options.activations;
  device.max_tokens = max_rows;
  if (options.device == "ref") return make_ref_device(device);
  if (options.device == "cpu") return make_cpu_device(device);
  return Error{ErrorKind::invalid_argument,
               fmt::format("unknown device {}; there are cpu and ref", options.device)};
}

}  // namespace

Status Engine::open(const GgufFile& file, const EngineOptions& options) {
  options_ = options;
  ModelOptions model_options;
  model_options.with_mtp = options.with_mtp;
  BRAID_ASSIGN(model_, Model::open(file, model_options));
  const ModelConfig& config = model_->config();
  BRAID_TRY(check_options(options, config));

  const int32_t per_sequence = 1 + options.max_drafts;
  max_rows_ = options.ubatch_tokens + (options.max_sequences - 1) * per_sequence + options.max_drafts;
  BRAID_ASSIGN(device_, make_device(options, max_rows_));

  const auto vocabulary = static_cast<uint64_t>(config.vocabulary);
  const auto affordable =
      static_cast<int32_t>(std::min<uint64_t>(kLogitsBytes / (vocabulary * sizeof(float)), 1 << 20));
  const int32_t logit_rows = std::max(options.max_sequences * per_sequence, std::min(max_rows_, affordable));
  logits_ = Tensor{nullptr, DType::f32, logit_rows, config.vocabulary, config.vocabulary};

  sizes_.slots = options.max_sequences;
  sizes_.journal_rows = options.max_drafts > 0 ? max_rows_ : 0;
  sizes_.k_format = options.k_format;
  sizes_.v_format = options.v_format;
  const uint64_t logits_bytes = static_cast<uint64_t>(logit_rows) * vocabulary * sizeof(float);
  plan_.available_bytes =
      options.memory_limit_bytes != 0 ? options.memory_limit_bytes : available_memory_bytes();
  plan_.max_sequences = options.max_sequences;
  plan_.rows = {{kWeights, model_->weights().planned_bytes(*device_)},
                {kKvBlocks},
                {kStateSlots, sizes_.slot_bytes(config)},
                {kActivations, model_->activation_bytes(max_rows_, max_rows_)},
                {kLogits, logits_bytes},
                {kWorkspaces, expected_workspaces(model_->workspace_needs(max_rows_), device_->threads())}};
  if (sizes_.journal_rows > 0) plan_.rows.push_back({kJournals, sizes_.journal_bytes(config)});

  // The KV cache takes what the context asks for; an open context what is left, up to the model's own.
  const auto blocks_of_context = [&](int32_t tokens) {
    return blocks_for(int64_t{tokens} + options.max_drafts) * options.max_sequences;
  };
  plan_.context_tokens = options.context_tokens;
  if (options.context_tokens == 0) {
    const uint64_t fixed = plan_.predicted_bytes();
    // Half of the rest stays free: for the page cache, for other programs, for what text and clients need.
    const uint64_t left = plan_.available_bytes > fixed ? (plan_.available_bytes - fixed) / 2 : 0;
    const uint64_t per_token =
        static_cast<uint64_t>(config.kv_bytes_per_token(options.k_format, options.v_format)) *
        static_cast<uint64_t>(options.max_sequences);
    const auto fitting = static_cast<int64_t>(std::min<uint64_t>(left / per_token, 1u << 30));
    const int64_t wanted = std::max<int64_t>(fitting / kBlockTokens * kBlockTokens, kSmallestContext);
    plan_.context_tokens = static_cast<int32_t>(std::min<int64_t>(wanted, config.context_length));
  }
  const int64_t blocks = blocks_of_context(plan_.context_tokens);
  if (blocks > INT32_MAX)
    return Error{ErrorKind::invalid_argument, fmt::format("{} contexts of {} tokens are too many",
                                                          options.max_sequences, plan_.context_tokens)};
  sizes_.blocks = static_cast<int32_t>(blocks);
  plan_.rows[1].predicted_bytes = sizes_.kv_bytes(config);
  return {};
}

Status Engine::load() {
  const ModelConfig& config = model_->config();
  BRAID_TRY(model_->load(*device_, max_rows_, max_rows_, options_.progress));
  BRAID_TRY(cache_.allocate(*device_, config, sizes_));
  const uint64_t logits_bytes =
      static_cast<uint64_t>(logits_.rows) * static_cast<uint64_t>(logits_.cols) * sizeof(float);
  BRAID_ASSIGN(logits_memory_, device_->allocate(logits_bytes, "logits"));
  logits_.data = logits_memory_.data();

  Device::WorkspaceNeeds needs = model_->workspace_needs(max_rows_);
  needs.max_sequences = options_.max_sequences;
  needs.max_context = plan_.context_tokens + options_.max_drafts;
  BRAID_ASSIGN(const size_t workspace_bytes, device_->reserve_workspaces(needs));

  plan_.set_actual(kWeights, model_->weights().loaded_bytes());
  plan_.set_actual(kKvBlocks, cache_.kv_bytes());
  plan_.set_actual(kStateSlots, cache_.slot_bytes());
  plan_.set_actual(kJournals, cache_.journal_bytes());
  plan_.set_actual(kActivations, model_->activation_bytes(max_rows_, max_rows_));
  plan_.set_actual(kLogits, logits_bytes);
  plan_.set_actual(kWorkspaces, workspace_bytes);

  SchedulerLimits limits;
  limits.context_tokens = plan_.context_tokens;
  limits.prompt_budget = options_.ubatch_tokens;
  limits.max_drafts = options_.max_drafts;
  scheduler_ = std::make_unique<Scheduler>(limits, sizes_.blocks, sizes_.slots);
  const auto blocks_per_sequence =
      static_cast<int32_t>(blocks_for(int64_t{plan_.context_tokens} + options_.max_drafts));
  batch_ = std::make_unique<StepBatch>(max_rows_, options_.max_sequences, blocks_per_sequence);
  return {};
}

Result<std::unique_ptr<Engine>> Engine::create(const GgufFile& file, const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine);
  BRAID_TRY(engine->open(file, options));
  BRAID_TRY(engine->plan_.check_fits());
  BRAID_TRY(engine->load());
  return engine;
}

Result<MemoryPlan> Engine::plan_memory(const GgufFile& file, const EngineOptions& options) {
  Engine engine;
  BRAID_TRY(engine.open(file, options));
  return engine.plan_;
}

Engine::~Engine() = default;

}  // namespace braid
