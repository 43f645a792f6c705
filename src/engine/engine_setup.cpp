// engine_setup.cpp -- from a file and options to an engine that can run: sizes, the memory plan, loading.
#include <fmt/format.h>

#include <algorithm>

#include "engine/engine.h"

namespace braid {
namespace {

constexpr int32_t kSmallestContext = 512;
constexpr int32_t kPiecedTokens = 512;  // of a chunk that is run in pieces: larger ones gain nothing
constexpr int32_t kBestLogits = 64;     // of a row, found by the device: enough for nearly every sampler
constexpr uint64_t kLogitsBytes = uint64_t{16} << 20;  // rows scored at once; a few rows are always possible

const char* const kWeights = "weights";
const char* const kKvBlocks = "KV blocks";
const char* const kStateSlots = "state slots";
const char* const kJournals = "journals";
const char* const kActivations = "activations";
const char* const kLogits = "logits";
const char* const kWorkspaces = "workspaces";
const char* const kCheckpoints = "checkpoints";
const char* const kSwap = "swap";
const char* const kDiskStaging = "disk staging";

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
  if (o.max_batch_tokens < 0 || o.max_batch_tokens > 65536)
    return bad(fmt::format("a step of {} tokens is not between 0 and 65536", o.max_batch_tokens));
  if (o.max_drafts < 0 || o.max_drafts > 1024)
    return bad(fmt::format("{} drafted tokens is not between 0 and 1024", o.max_drafts));
  return {};
}

// What the ops keep beside their operands: the device's word, or a rough upper bound for one that does not
// know.
uint64_t expected_workspaces(const Device& device, const Device::WorkspaceNeeds& needs) {
  if (const size_t known = device.workspace_bytes(needs); known > 0) return known;
  const auto rows = static_cast<uint64_t>(needs.max_tokens);
  const auto row_elements =
      static_cast<uint64_t>(2 * needs.max_width + 2 * needs.delta.channels() +
                            needs.experts_used * (2 * needs.expert_width + needs.model_width));
  return rows * row_elements * sizeof(float) + (static_cast<uint64_t>(device.threads()) << 20);
}

Result<std::unique_ptr<Device>> make_device(const EngineOptions& options, int32_t max_rows) {
  DeviceOptions device;
  device.threads = options.threads;
  device.activations = options.activations;
  device.max_tokens = max_rows;
  device.deterministic = options.deterministic;
  if (options.device == "ref") return make_ref_device(device);
  if (options.device == "cuda") return make_cuda_device(device);
  if (options.device == "auto") {
    if (auto gpu = make_cuda_device(device); gpu.ok()) return gpu;
  }
  if (options.device == "cpu" || options.device == "auto") return make_cpu_device(device);
  return Error{ErrorKind::invalid_argument,
               fmt::format("unknown device {}; there are auto, cuda, cpu and ref", options.device)};
}

// What the fixed parts leave for KV blocks. Of host memory half stays free: for the page cache, for other
// programs, for what text and clients need; of a device's own a twentieth.
uint64_t spare_bytes(const MemoryPlan& plan) {
  const uint64_t taken = plan.predicted_bytes();
  const uint64_t left = plan.available_bytes > taken ? plan.available_bytes - taken : 0;
  return plan.own_memory ? left / 20 * 19 : left / 2;
}

// What host memory has to spare for copies.
uint64_t spare_host_bytes(const MemoryPlan& plan) {
  return plan.own_memory ? available_memory_bytes() / 2 : spare_bytes(plan);
}

// Everything a cached prefix depends on, apart from its tokens: weights (sampled: all of each small tensor,
// and both ends of the others), formats, and how the device lays out its states.
PrefixHash fingerprint_of(const GgufFile& file, const EngineOptions& options, const Device& device,
                          int32_t tile_columns) {
  constexpr size_t kSampleBytes = 4096;
  std::string text;
  const auto add = [&](std::span<const std::byte> bytes) {
    const PrefixHash h = hash_bytes(bytes.data(), bytes.size());
    text.append(reinterpret_cast<const char*>(&h), sizeof h);
  };
  for (const GgufEntry& e : file.entries()) {
    text.append(e.key);
    add(e.value.bytes);
  }
  for (const GgufTensor& t : file.tensors()) {
    text.append(fmt::format("{} {} {} {} {} {}", t.name, static_cast<int>(t.type), t.ne[0], t.ne[1], t.ne[2],
                            t.ne[3]));
    add(t.data.first(std::min(t.data.size(), kSampleBytes)));
    add(t.data.last(std::min(t.data.size(), kSampleBytes)));
  }
  // The first word names the device that was taken, which "auto" does not.
  const std::string name = device.description();
  text += fmt::format("|{} {} {} {} {} {}", name.substr(0, name.find(' ')), tile_columns,
                      kv_format_name(options.k_format), kv_format_name(options.v_format),
                      static_cast<int>(options.activations), kBlockTokens);
  // Prefixes computed by other forms would bring other bytes in.
  if (options.deterministic && !device.computes_in_host_memory()) text += " deterministic";
  return seed_hash(text);
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
  max_rows_ = std::max(options.ubatch_tokens + (options.max_sequences - 1) * per_sequence,
                       options.max_batch_tokens + (options.max_sequences - 1) * options.max_drafts) +
              options.max_drafts;
  if (options.max_sequences > 1 && options.gap_limit > 0)
    pieced_tokens_ = std::min(options.ubatch_tokens, kPiecedTokens);
  BRAID_ASSIGN(device_, make_device(options, max_rows_));
  late_news_ = options.late_news || !device_->computes_in_host_memory();

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
  plan_.own_memory = !device_->computes_in_host_memory();
  plan_.available_bytes = plan_.own_memory ? device_->free_bytes() : available_memory_bytes();
  if (options.memory_limit_bytes != 0) plan_.available_bytes = options.memory_limit_bytes;
  plan_.max_sequences = options.max_sequences;
  plan_.rows = {{kWeights, model_->weights().planned_bytes(*device_)},
                {kKvBlocks},
                {kStateSlots, sizes_.slot_bytes(config)},
                {kActivations, model_->activation_bytes(step_sizes(), device_->activation_type())},
                {kLogits, logits_bytes},
                {kWorkspaces, expected_workspaces(*device_, workspace_needs())}};
  if (sizes_.journal_rows > 0) plan_.rows.push_back({kJournals, sizes_.journal_bytes(config)});

  if (options.state_memory_bytes != 0 && options.prefix_cache)
    plan_.rows.push_back({kCheckpoints, 0, 0, true});
  if (options.swap_memory_bytes != 0) plan_.rows.push_back({kSwap, 0, 0, true});
  BRAID_TRY(plan_blocks(options));
  plan_.set_predicted(kWorkspaces, expected_workspaces(*device_, workspace_needs()));
  plan_host_images(options);
  return plan_disk(options);
}

StepSizes Engine::step_sizes() const { return {max_rows_, max_rows_, pieced_tokens_}; }

// For the largest step; before the context is known, for the model's own.
Device::WorkspaceNeeds Engine::workspace_needs() const {
  Device::WorkspaceNeeds needs = model_->workspace_needs(max_rows_);
  const int32_t context = plan_.context_tokens > 0 ? plan_.context_tokens : model_->config().context_length;
  needs.max_sequences = options_.max_sequences;
  needs.max_context = context + options_.max_drafts;
  return needs;
}

// The KV cache takes what the contexts of all sequences ask for, as far as memory goes, and at least one
// context: sequences that grow at the same time share what there is (scheduler.h).
Status Engine::plan_blocks(const EngineOptions& options) {
  const ModelConfig& config = model_->config();
  CacheSizes one = sizes_;
  one.blocks = 1;
  const uint64_t block_bytes = std::max<uint64_t>(one.kv_bytes(config), 1);
  const auto blocks_of = [&](int32_t tokens) { return blocks_for(int64_t{tokens} + options.max_drafts); };

  const int32_t context = options.context_tokens > 0 ? options.context_tokens : config.context_length;
  const uint64_t budget = options.kv_memory_bytes > 0 ? options.kv_memory_bytes : spare_bytes(plan_);
  int64_t blocks =
      std::min<int64_t>(blocks_of(context) * options.max_sequences,
                        static_cast<int64_t>(std::min<uint64_t>(budget / block_bytes, INT32_MAX)));
  if (options.context_tokens > 0) {
    if (options.kv_memory_bytes > 0 && blocks < blocks_of(context))
      return Error{ErrorKind::exhausted,
                   fmt::format("a context of {} tokens needs {} of KV blocks; --kv-memory gives {}", context,
                               format_bytes(static_cast<uint64_t>(blocks_of(context)) * block_bytes),
                               format_bytes(options.kv_memory_bytes))};
    blocks = std::max(blocks, blocks_of(context));  // check_fits() has the last word
    plan_.context_tokens = context;
  } else {
    blocks = std::max(blocks, blocks_of(std::min(kSmallestContext, context)));
    const int64_t holds = blocks * kBlockTokens - options.max_drafts;
    plan_.context_tokens = static_cast<int32_t>(std::min<int64_t>(holds, context));
  }
  if (blocks > INT32_MAX)
    return Error{ErrorKind::invalid_argument, fmt::format("{} contexts of {} tokens are too many",
                                                          options.max_sequences, plan_.context_tokens)};
  sizes_.blocks = static_cast<int32_t>(blocks);
  plan_.set_predicted(kKvBlocks, sizes_.kv_bytes(config));
  return {};
}

// Host memory beside the device's: checkpoints of recurrent states, blocks of sequences that made room.
void Engine::plan_host_images(const EngineOptions& options) {
  const ModelConfig& config = model_->config();
  CacheSizes one = sizes_;
  one.blocks = one.slots = 1;
  const uint64_t block_bytes = one.kv_bytes(config);
  const uint64_t image_bytes = one.slot_bytes(config) + block_bytes;
  const auto count = [&](int64_t asked, uint64_t each, uint64_t chosen) {
    const uint64_t most =
        asked < 0 ? spare_host_bytes(plan_) / 4 / each : static_cast<uint64_t>(asked) / each;
    return static_cast<int32_t>(std::min<uint64_t>({most, asked < 0 ? chosen : most, 1 << 20}));
  };
  if (options.prefix_cache && one.slot_bytes(config) > 0 && options.state_memory_bytes != 0) {
    // A handful for each who runs: the turns of a conversation.
    host_images_.checkpoint_count =
        count(options.state_memory_bytes, image_bytes, std::max(16, 4 * options.max_sequences));
    plan_.set_predicted(kCheckpoints, static_cast<uint64_t>(host_images_.checkpoint_count) * image_bytes);
  }
  if (options.swap_memory_bytes != 0 && block_bytes > 0) {
    const auto quarter = static_cast<uint64_t>(options.max_sequences > 1 ? sizes_.blocks / 4 : 0);
    host_images_.swap_count = count(options.swap_memory_bytes, block_bytes, quarter);
    plan_.set_predicted(kSwap, static_cast<uint64_t>(host_images_.swap_count) * block_bytes);
  }
}

DiskKind Engine::disk_kind() const {
  CacheSizes one = sizes_;
  one.blocks = one.slots = 1;
  return {fingerprint_, one.slot_bytes(model_->config()), one.kv_bytes(model_->config())};
}

// Host memory through which prefixes go to the disk and come back.
Status Engine::plan_disk(const EngineOptions& options) {
  if (options.cache_dir.empty()) return {};
  const DiskKind kind = disk_kind();
  if (kind.state_bytes == 0 || kind.block_bytes == 0)
    return Error{ErrorKind::unsupported,
                 "a cache directory needs a model with recurrent and attention layers"};
  if (!options.prefix_cache || host_images_.checkpoint_count == 0)
    return Error{ErrorKind::invalid_argument,
                 "a cache directory needs the prefix cache and memory for checkpoints (--state-memory)"};
  const int32_t interval = scheduler_limits().checkpoint_interval;
  const uint64_t good = DiskStaging::write_bytes(
      kind, std::min(interval > 0 ? interval + options.ubatch_tokens : 8192, plan_.context_tokens));
  disk_write_bytes_ =
      std::min(good, std::max(spare_host_bytes(plan_) / 8, 2 * (kind.state_bytes + kind.block_bytes)));
  plan_.rows.push_back({kDiskStaging, disk_write_bytes_ + DiskStaging::read_bytes(kind), 0, true});
  return {};
}

SchedulerLimits Engine::scheduler_limits() const {
  const ModelConfig& config = model_->config();
  SchedulerLimits limits;
  limits.context_tokens = plan_.context_tokens;
  limits.ubatch_tokens = options_.ubatch_tokens;
  limits.step_tokens = options_.max_batch_tokens;
  limits.max_drafts = options_.max_drafts;
  limits.gap_limit = options_.gap_limit;
  limits.prefix_cache = options_.prefix_cache;
  limits.recurrent = config.count(LayerKind::delta) > 0;
  limits.preemption = options_.preemption;
  // What is computed again runs many rows at a time, which is another form of attention.
  if (options_.deterministic && limits.preemption == Preemption::cheaper)
    limits.preemption = Preemption::swap;
  // In tokens whose keys and values take the room of one state: copies shall not outgrow what they belong to.
  const int64_t per_token =
      std::max<int64_t>(1, config.kv_bytes_per_token(options_.k_format, options_.v_format));
  const auto state_tokens =
      static_cast<int32_t>(std::min<int64_t>(config.state_bytes() / per_token, 1 << 20));
  const auto rounded = [](int32_t tokens) {
    return (tokens + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
  };
  limits.checkpoint_interval = options_.checkpoint_interval >= 0
                                   ? options_.checkpoint_interval
                                   : std::clamp(rounded(2 * state_tokens), 1024, 8192);
  limits.checkpoint_spacing = options_.checkpoint_spacing >= 0
                                  ? options_.checkpoint_spacing
                                  : std::clamp(rounded(state_tokens / 8), 64, 512);
  return limits;
}

Status Engine::load() {
  const ModelConfig& config = model_->config();
  BRAID_TRY(model_->load(*device_, step_sizes(), options_.progress));
  BRAID_TRY(cache_.allocate(*device_, config, sizes_));
  const uint64_t logits_bytes =
      static_cast<uint64_t>(logits_.rows) * static_cast<uint64_t>(logits_.cols) * sizeof(float);
  BRAID_ASSIGN(logits_memory_, device_->allocate(logits_bytes, "logits"));
  logits_.data = logits_memory_.data();

  BRAID_ASSIGN(const size_t workspace_bytes, device_->reserve_workspaces(workspace_needs()));

  const size_t block_bytes = cache_.block_bytes();
  const size_t checkpoint_bytes =
      static_cast<size_t>(host_images_.checkpoint_count) * (cache_.state_bytes() + block_bytes);
  const size_t swap_bytes = static_cast<size_t>(host_images_.swap_count) * block_bytes;
  const auto taking = [&](size_t before) -> BytesDone {
    if (!options_.host_progress) return nullptr;
    return
        [&, before](uint64_t done) { options_.host_progress(before + done, checkpoint_bytes + swap_bytes); };
  };
  if (checkpoint_bytes > 0) {
    BRAID_ASSIGN(checkpoint_memory_, device_->allocate_host(checkpoint_bytes, "checkpoints", taking(0)));
  }
  if (swap_bytes > 0) {
    BRAID_ASSIGN(swap_memory_, device_->allocate_host(swap_bytes, "swap", taking(checkpoint_bytes)));
  }

  if (disk_) {
    BRAID_CHECK(cache_.state_bytes() == disk_kind().state_bytes && block_bytes == disk_kind().block_bytes);
    const size_t bytes = disk_write_bytes_ + DiskStaging::read_bytes(disk_kind());
    BRAID_ASSIGN(disk_memory_, device_->allocate_host(bytes, kDiskStaging));
    const std::span<std::byte> memory(static_cast<std::byte*>(disk_memory_.data()), bytes);
    disk_->set_staging({memory.first(disk_write_bytes_), memory.subspan(disk_write_bytes_)});
    plan_.set_actual(kDiskStaging, bytes);
  }

  plan_.set_actual(kWeights, model_->weights().loaded_bytes());
  plan_.set_actual(kKvBlocks, cache_.kv_bytes());
  plan_.set_actual(kStateSlots, cache_.slot_bytes());
  plan_.set_actual(kJournals, cache_.journal_bytes());
  plan_.set_actual(kActivations, model_->activation_bytes(step_sizes(), device_->activation_type()));
  plan_.set_actual(kLogits, logits_bytes);
  plan_.set_actual(kWorkspaces, workspace_bytes);
  plan_.set_actual(kCheckpoints, checkpoint_bytes);
  plan_.set_actual(kSwap, swap_bytes);

  if (!device_->computes_in_host_memory()) BRAID_TRY(allocate_best());
  host_images_.checkpoints = static_cast<std::byte*>(checkpoint_memory_.data());
  host_images_.swap = static_cast<std::byte*>(swap_memory_.data());
  scheduler_ =
      std::make_unique<Scheduler>(scheduler_limits(), sizes_.blocks, sizes_.slots, cache_, host_images_);
  scheduler_->set_disk(disk_.get());
  if (options_.shuffle_blocks != 0) {
    uint64_t n = 0;
    scheduler_->blocks().shuffle_free(
        [&] { return hash_bytes(&n, sizeof n).low ^ ++n * options_.shuffle_blocks; });
  }
  if (options_.poison_unused) {
    scheduler_->blocks().on_unused([this](int32_t block) { cache_.poison_block(block); });
    scheduler_->slots().on_unused([this](int32_t slot) { cache_.poison_slot(slot); });
  }
  mask_bits_.resize(static_cast<size_t>((config.vocabulary + 63) / 64));
  open_bits_.assign(mask_bits_.size(), ~uint64_t{0});
  masked_logits_.resize(static_cast<size_t>(config.vocabulary));
  const auto blocks_per_sequence =
      static_cast<int32_t>(blocks_for(int64_t{plan_.context_tokens} + options_.max_drafts));
  if (pieced_tokens_ > 0) {
    piece_batch_ = std::make_unique<StepBatch>();
    BRAID_TRY(piece_batch_->allocate(*device_, pieced_tokens_, 2, blocks_per_sequence));
  }
  batch_ = std::make_unique<StepBatch>();
  return batch_->allocate(*device_, max_rows_, options_.max_sequences, blocks_per_sequence);
}

// Where a device with its own memory leaves the best logits of each row, and the host's copies.
Status Engine::allocate_best() {
  const int64_t rows = logits_.rows;
  best_count_ = static_cast<int32_t>(std::min<int64_t>(kBestLogits, logits_.cols));
  const int64_t values = rows * best_count_;
  const size_t bytes = static_cast<size_t>(2 * values + rows) * sizeof(float);
  BRAID_ASSIGN(best_memory_, device_->allocate(bytes, "best logits"));
  BRAID_ASSIGN(best_on_host_, device_->allocate_host(bytes, "best logits"));
  const auto row_numbers = static_cast<size_t>(std::max(logits_.cols, model_->config().width));
  BRAID_ASSIGN(row_on_host_, device_->allocate_host(row_numbers * sizeof(float), "logits"));
  auto* base = static_cast<float*>(best_memory_.data());
  best_values_ = Tensor{base, DType::f32, rows, best_count_, best_count_};
  best_ids_ = Tensor{base + values, DType::i32, rows, best_count_, best_count_};
  best_sums_ = Tensor{base + 2 * values, DType::f32, rows, 1, 1};
  return {};
}

Result<std::unique_ptr<Engine>> Engine::create(const GgufFile& file, const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine);
  BRAID_TRY(engine->open(file, options));
  BRAID_TRY(engine->plan_.check_fits());
  engine->fingerprint_ = fingerprint_of(file, options, *engine->device_,
                                        engine->device_->state_tile_columns(engine->model_->config().delta));
  if (!options.cache_dir.empty()) {
    DiskOptions disk;
    disk.directory = options.cache_dir;
    disk.limit_bytes = options.cache_dir_bytes;
    // Before loading: it may refuse, and its threads shall not inherit the CPU that this one is pinned to.
    BRAID_ASSIGN(engine->disk_, DiskTier::open(disk, engine->disk_kind()));
  }
  BRAID_TRY(engine->load());
  return engine;
}

Result<MemoryPlan> Engine::plan_memory(const GgufFile& file, const EngineOptions& options) {
  Engine engine;
  BRAID_TRY(engine.open(file, options));
  return engine.plan_;
}

Engine::~Engine() {
  if (!disk_) return;
  // What was kept last is still to be written; a device that failed has nothing worth it.
  device_->synchronize();
  if (device_->health().ok()) disk_->all_synchronized();
  disk_.reset();
}

}  // namespace braid
