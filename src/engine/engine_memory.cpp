// engine_memory.cpp -- see engine_memory.h.
#include "engine/engine_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "engine/draft/dflash_drafter.h"
#include "engine/draft/model_drafter.h"
#include "engine/draft/ngram_drafter.h"
#include "engine/schedule/step_outputs.h"

namespace braid {
namespace {

constexpr int32_t kSmallestContext = 512;
constexpr int32_t kInterleavedTokens = 512;  // larger interleaved steps gain nothing
// Unless each reads experts from host memory.
constexpr int32_t kInterleavedWithSlots = 2048;

// The number of rows of a step that gains most of what more rows gain on a CPU.
constexpr int32_t kSmallUbatch = 512;

uint64_t expected_workspaces(const Device& device, const Device::WorkspaceNeeds& needs) {
  if (const size_t known = device.workspace_bytes(needs); known > 0) return known;
  const auto rows = static_cast<uint64_t>(needs.max_tokens);
  const auto row_elements =
      static_cast<uint64_t>(2 * needs.max_width + 2 * needs.delta.channels() +
                            needs.experts_used * (2 * needs.expert_width + needs.model_width));
  return rows * row_elements * sizeof(float) + (static_cast<uint64_t>(device.threads()) << 20);
}

int64_t usual_images(const EngineOptions& options) {
  return std::max(16, 4 * options.max_sequences);
}

uint64_t spare_host_bytes(const MemoryPlan& plan) {
  if (!plan.pools[0].own_memory) return plan.spare_bytes();
  const uint64_t available = available_memory_bytes();
  return (available - std::min(available, plan.predicted_bytes_of(MemoryUse::expert_copies))) / 2;
}

Status codec_fits(const KvCodec& codec, const ModelConfig& config) {
  for (const LayerConfig& l : config.layers)
    if (l.kind == LayerKind::attention) BRAID_TRY(kv_codec_accepts(codec, l.attention.head_dim));
  return {};
}

std::vector<MemoryPlan::KvFormatBytes> kv_formats_of(const ModelConfig& config, CacheSizes sizes) {
  std::vector<MemoryPlan::KvFormatBytes> formats;
  for (const KvCodec* codec : kv_codecs()) {
    if (!codec_fits(*codec, config).ok()) continue;
    sizes.k_codec = sizes.v_codec = codec;
    formats.push_back({codec->name, sizes.block_bytes(config, 0) / kBlockTokens});
  }
  return formats;
}

constexpr int32_t kMostSlots = 8;

// BRAID_STEPS limits the steps that run at a time, to measure what they gain.
int32_t slots_of(const Devices& devices) {
  if (devices.ranks() > 1) return 1;  // ranks wait for each other, so a step has all of them
  // Groups of sequences would each read the CPU's layers, which take most of a step.
  if (devices.mixed()) return 1;
  const char* const most = std::getenv("BRAID_STEPS");
  return std::min(devices.stages(), most == nullptr ? kMostSlots : std::max(1, std::atoi(most)));
}

}  // namespace

// Automatic choices, the widest first. Narrower formats are chosen by the user
// (docs/design/kv-cache.md).
constexpr const char* kChosenFormats[] = {"f16", "q8_0"};

Status EngineMemory::make_plan(EngineOptions& options, Model& model, Devices& devices) {
  if (!options.kv_auto) return plan_with(options, model, devices);
  EngineOptions chosen = options;
  for (const std::string_view name : kChosenFormats) {
    EngineOptions tried = options;
    tried.k_format = tried.v_format = KvFormat::f16;
    tried.k_codec = tried.v_codec = name == "f16" ? nullptr : *find_kv_codec(name);
    const Status status = plan_with(tried, model, devices);
    if (!status.ok() && status.error().kind == ErrorKind::unsupported)
      continue;  // unsupported by the model or the device
    chosen = tried;
    if (status.ok() && all_contexts_fit && plan.check_fits().ok()) break;
  }
  options = chosen;
  return plan_with(options, model, devices);
}

Status EngineMemory::plan_with(const EngineOptions& options, Model& model, Devices& devices) {
  const ModelConfig& config = model.config();
  sizes = {};
  plan = {};
  host_images = {};
  interleaved_tokens = 0;
  slots = slots_of(devices);
  const int32_t per_sequence = 1 + options.max_drafts;
  max_rows = most_rows(options);
  if ((options.max_sequences > 1 || options.beside_another) && options.gap_limit > 0)
    interleaved_tokens =
        std::min(options.ubatch_tokens,
                 options.keeps_all_experts() ? kInterleavedTokens : kInterleavedWithSlots);
  decoding_rows = options.max_sequences * per_sequence;
  logit_rows =
      StepOutputs::rows_for(options.max_sequences, decoding_rows, max_rows, config.vocabulary);
  if (dflash != nullptr)  // its blocks run together
    logit_rows = std::max(logit_rows, std::min(decoding_rows, dflash_sizes(options).block_rows));

  sizes.slots = options.max_sequences;
  sizes.stages.clear();
  for (int32_t stage = 0; stage < devices.stages(); ++stage) {
    DeltaRing& ring = sizes.stages.emplace_back().ring;
    ring = devices.at(devices.index(stage, 0)).delta_ring(options.max_drafts);
    // Paths of a tree are shorter than its number of rows.
    ring.lag = std::min(ring.lag, options.draft_depth);
  }
  sizes.k_format = options.k_format;
  sizes.v_format = options.v_format;
  BRAID_TRY(plan_sealing(options, config));
  if (config.drafts()) sizes.hidden_cells = options.max_drafts + 1;
  // Files have no KV groups, so with a cache directory all layers keep all blocks.
  if (sizes.slot_bytes(config) == 0 && options.cache_dir.empty() && !sizes.seals())
    sizes.window = config.largest_window();
  // Batches of a drafter of its own file have no sparse threshold, whatever its heads are.
  Device::WorkspaceNeeds with_drafter = workspace_needs(options, model);
  with_drafter.sparse_prefill = false;
  for (const Device* each : devices.all()) {
    BRAID_TRY(each->accepts(model_needs(options, model)));
    BRAID_TRY(each->accepts(with_drafter));
  }
  rows_alone = devices.traits().rows_alone;
  plan.max_sequences = options.max_sequences;
  if (options.prefix_cache && options.state_memory_bytes != 0 && sizes.state_bytes(config) > 0)
    for (int32_t stage = 0; stage < devices.stages(); ++stage)
      sizes.stages[static_cast<size_t>(stage)].snapshots =
          devices.at(devices.index(stage, 0)).traits().own_memory;
  BRAID_TRY(make_pools(options, devices));
  for (int32_t rank = 0; rank < model.ranks(); ++rank)  // of an earlier plan
    model.weights_of(rank).set_expert_slots(ModelWeights::kAllStages, 0);
  BRAID_TRY(cut(options, model, devices));
  BRAID_TRY(place_experts(options, model, devices));
  plan_rows(options, model, devices);
  plan_books(options, config);
  if (options.state_memory_bytes != 0 && options.prefix_cache)
    plan.rows.push_back({MemoryUse::checkpoints, 0, 0, true});
  if (options.swap_memory_bytes != 0) plan.rows.push_back({MemoryUse::swap, 0, 0, true});
  plan.context_tokens = longest_context(options, model, devices);
  plan_workspaces(options, model, devices);
  BRAID_TRY(plan_blocks(options, config));
  plan_workspaces(options, model, devices);
  plan_books(options, config);
  plan_host_images(options, config);
  return plan_disk(options, config);
}

uint64_t EngineMemory::host_bytes(const EngineOptions& options) {
  return options.host_memory_bytes > 0 ? options.host_memory_bytes
         : options.planned_gpus        ? UINT64_MAX
                                       : available_memory_bytes();
}

// Devices that share memory have one pool.
Status EngineMemory::make_pools(const EngineOptions& options, const Devices& devices) {
  const auto count = static_cast<size_t>(devices.count());
  const std::vector<uint64_t>& limits = options.gpu_memory_bytes;
  plan.pools.clear();
  pool_of.clear();
  std::vector<int> numbers;
  for (size_t stage = 0; stage < count; ++stage) {
    const Device& device = devices.at(static_cast<int32_t>(stage));
    const int number = device.memory_number();
    const auto known = std::find(numbers.begin(), numbers.end(), number);
    pool_of.push_back(static_cast<int32_t>(known - numbers.begin()));
    if (known != numbers.end()) continue;
    numbers.push_back(number);
    MemoryPool& pool = plan.pools.emplace_back();
    pool.name = number < 0 ? "memory" : fmt::format("cuda:{}", number);
    pool.own_memory = device.traits().own_memory;
    if (!pool.own_memory) {
      pool.available_bytes = host_bytes(options);
      continue;
    }
    pool.available_bytes = device.free_bytes();
    const size_t place = limits.size() == 1 ? 0 : static_cast<size_t>(number);
    if (!limits.empty() && place >= limits.size())
      return Error{ErrorKind::invalid_argument,
                   fmt::format("{} limits of memory, but none for cuda:{}", limits.size(), number)};
    const uint64_t limit = limits.empty() ? 0 : limits[place];
    if (limit > 0) pool.available_bytes = std::min(pool.available_bytes, limit);
  }
  return {};
}

void EngineMemory::add_row(MemoryUse use, int32_t pool, uint64_t bytes) {
  for (MemoryRow& row : plan.rows)
    if (row.use == use && row.pool == pool) {
      row.predicted_bytes += bytes;
      return;
    }
  MemoryRow& row = plan.rows.emplace_back();
  row.use = use;
  row.pool = pool;
  row.predicted_bytes = bytes;
}

// Those that do not depend on the number of blocks.
void EngineMemory::plan_rows(const EngineOptions& options, Model& model, const Devices& devices) {
  const ModelConfig& config = model.config();
  plan.rows.clear();
  for (MemoryPool& pool : plan.pools) pool.layers.clear();
  uint64_t expert_copies = 0;
  for (int32_t index = 0; index < devices.count(); ++index) {
    const ModelWeights::WeightBytes bytes_of = [&devices, index](const Weight& weight) {
      return devices.at(index).weight_bytes(weight);
    };
    const int32_t stage = stage_of(static_cast<size_t>(index));
    const int32_t rank = rank_of(static_cast<size_t>(index));
    const bool last = index == devices.last_index();
    const int32_t pool = pool_of[static_cast<size_t>(index)];
    const ModelConfig& own = *ranks_[static_cast<size_t>(rank)];
    const CacheSizes own_sizes = sizes.of_rank(rank);
    uint64_t weights = model.weights_of(rank).planned_bytes(stage, bytes_of);
    weights += model.weights_of(rank).expert_staging_bytes(stage, devices.at(index));
    expert_copies += model.weights_of(rank).expert_copy_bytes(stage, devices.at(index));
    if (last && dflash != nullptr) weights += dflash->weights().planned_bytes(bytes_of);
    add_row(MemoryUse::weights, pool, weights);
    add_row(MemoryUse::kv_blocks, pool, 0);
    add_row(MemoryUse::state_slots, pool,
            own_sizes.slot_bytes(own, stage) + own_sizes.snapshot_bytes(own, stage));
    add_row(MemoryUse::activations, pool, activation_bytes(index, options, model, devices));
    if (last) add_row(MemoryUse::logits, pool, StepOutputs::bytes(logit_rows, config.vocabulary));
    add_row(MemoryUse::workspaces, pool, planned_workspaces(options, model, devices.at(index)));
    if (ranks_.size() > 1) add_row(MemoryUse::exchange, pool, model.exchange_bytes(step_sizes()));
  }
  const bool runs_drafters =
      options.spec_type.has(SpecType::dflash) || options.spec_type.has(SpecType::mtp);
  if (runs_drafters) add_row(MemoryUse::drafts, last_pool(), 0);
  plan.rows.push_back({MemoryUse::block_books, 0, 0, true});
  if (options.spec_type.has(SpecType::ngram))
    plan.rows.push_back({MemoryUse::ngram_tables, 0, 0, true});
  if (devices.traits().own_memory) plan.rows.push_back({MemoryUse::fetched_logits, 0, 0, true});
  if (expert_copies > 0) plan.rows.push_back({MemoryUse::expert_copies, expert_copies, 0, true});
  for (size_t index = 0; index < pool_of.size(); ++index) {
    std::string& layers = plan.pools[static_cast<size_t>(pool_of[index])].layers;
    const int32_t stage = stage_of(index);
    const int32_t first = config.first_layer(stage), last = config.first_layer(stage + 1) - 1;
    layers += fmt::format("{}{}", layers.empty() ? "" : ",", first);
    if (last > first) layers += fmt::format("-{}", last);
    if (ranks_.size() > 1) layers += fmt::format(" {}/{}", rank_of(index) + 1, ranks_.size());
  }
}

// Once the context is known.
void EngineMemory::plan_workspaces(const EngineOptions& options, const Model& model,
                                   const Devices& devices) {
  std::vector<uint64_t> of_pool(plan.pools.size());
  for (int32_t index = 0; index < devices.count(); ++index)
    of_pool[static_cast<size_t>(pool_of[static_cast<size_t>(index)])] +=
        planned_workspaces(options, model, devices.at(index));
  for (size_t pool = 0; pool < of_pool.size(); ++pool)
    plan.set_predicted(MemoryUse::workspaces, of_pool[pool], static_cast<int32_t>(pool));
  plan.set_predicted(MemoryUse::drafts, draft_bytes(options), last_pool());
}

// The asked context, or the longest of which one fits beside the workspaces that it needs itself.
int32_t EngineMemory::longest_context(const EngineOptions& options, const Model& model,
                                      const Devices& devices) {
  if (options.context_tokens > 0) return options.context_tokens;
  const auto fits = [&](int32_t tokens) {
    plan.context_tokens = tokens;
    plan_workspaces(options, model, devices);
    set_blocks(options, blocks_for(int64_t{tokens} + options.max_drafts));
    return blocks_fit(options);
  };
  const int32_t most = model.config().context_length;
  if (fits(most)) return most;
  int32_t holds = std::min(kSmallestContext, most);  // check_fits() may refuse it
  for (int32_t above = most; above - holds > kBlockTokens;) {
    const int32_t tried = holds + (above - holds) / 2;
    (fits(tried) ? holds : above) = tried;
  }
  return holds;
}

bool EngineMemory::blocks_fit(const EngineOptions& options) const {
  if (options.kv_memory_bytes > 0) return kv_bytes() <= options.kv_memory_bytes;
  for (int32_t pool = 0; pool < std::ssize(plan.pools); ++pool)
    if (kv_bytes_of_pool(pool) > plan.spare_bytes(pool)) return false;
  return true;
}

int64_t EngineMemory::wanted_blocks(const EngineOptions& options, int32_t context) {
  return std::min<int64_t>(
      blocks_for(int64_t{context} + options.max_drafts) * options.max_sequences, INT32_MAX);
}

ModelConfig EngineMemory::trunk_of(ModelConfig config) {
  config.mtp.clear();
  config.drafter.clear();
  return config;
}

uint64_t EngineMemory::kv_bytes_of_pool(int32_t pool) const {
  uint64_t bytes = 0;
  for (size_t i = 0; i < pool_of.size(); ++i)
    if (pool_of[i] == pool)
      bytes += sizes.kv_bytes(*ranks_[static_cast<size_t>(rank_of(i))], stage_of(i));
  return bytes;
}

uint64_t EngineMemory::kv_bytes() const {
  uint64_t bytes = 0;
  for (const ModelConfig* rank : ranks_) bytes += sizes.kv_bytes(*rank);
  return bytes;
}

uint64_t EngineMemory::block_bytes(int32_t group) const {
  uint64_t bytes = 0;
  for (const ModelConfig* rank : ranks_) bytes += sizes.block_bytes(*rank, group);
  return bytes;
}

uint64_t EngineMemory::state_bytes() const {
  uint64_t bytes = 0;
  for (size_t rank = 0; rank < ranks_.size(); ++rank)
    bytes += sizes.of_rank(static_cast<int32_t>(rank)).state_bytes(*ranks_[rank]);
  return bytes;
}

Status EngineMemory::plan_sealing(const EngineOptions& options, const ModelConfig& config) {
  if (options.k_codec == nullptr) return {};
  BRAID_CHECK(options.v_codec != nullptr);
  sizes.k_format = sizes.v_format = KvFormat::f16;
  sizes.k_codec = options.k_codec;
  sizes.v_codec = options.v_codec;
  sizes.tail = options.kv_tail;
  for (const KvCodec* codec : {options.k_codec, options.v_codec})
    BRAID_TRY(codec_fits(*codec, config));
  if (sizes.tail.tail_blocks < 0 || sizes.tail.sink_blocks < 0 ||
      int64_t{sizes.tail.most_exact_blocks()} * kBlockTokens > config.context_length)
    return Error{
        ErrorKind::invalid_argument,
        fmt::format("{} blocks of tail and {} of sinks are not within a context of {} tokens",
                    sizes.tail.tail_blocks, sizes.tail.sink_blocks, config.context_length)};
  if (const int32_t deepest = options.draft_depth; !sizes.tail.holds_drafts(deepest))
    return Error{ErrorKind::invalid_argument,
                 fmt::format("drafts {} deep need a KV tail of {} blocks at least; it has {}; "
                             "--spec-type none drafts nothing",
                             deepest, blocks_for(deepest), sizes.tail.tail_blocks)};
  return {};
}

// Host memory gains nothing from more rows. A GPU reads its weights once per step: dense models
// gain up to about 1,000 rows, mixtures up to several thousand (docs/benchmarks.md). A step's rows
// take at most 1/48 of the device's memory, or 1/12 with experts in host memory.
int32_t EngineMemory::choose_ubatch(const EngineOptions& options, const Model& model,
                                    const Devices& devices) {
  if (!devices.first().traits().own_memory) return kSmallUbatch;
  // Steps with more rows hide the time in which experts come from host memory.
  const uint64_t share = options.keeps_all_experts() ? 48 : 12;
  const Device& device = devices.last();
  const auto& layers = model.config().layers;
  const bool mixture = std::any_of(layers.begin(), layers.end(),
                                   [](const LayerConfig& l) { return l.feed_forward.is_moe(); });
  const int32_t context =
      options.context_tokens > 0 ? options.context_tokens : model.config().context_length;
  uint64_t memory = device.free_bytes();
  for (const uint64_t limit : options.gpu_memory_bytes)
    if (limit > 0) memory = std::min(memory, limit);
  // Each step of a block-sparse prompt reads all keys once, for their means. Beside other sequences
  // long steps would make them wait.
  const bool sparse_alone = options.sparse_threshold > 0 && options.max_sequences == 1;
  int32_t tokens = mixture || sparse_alone ? 8192 : 2048;
  for (; tokens > kSmallUbatch; tokens /= 2) {
    Device::WorkspaceNeeds needs = model.workspace_needs(tokens);
    needs.max_sequences = options.max_sequences;
    needs.sparse_prefill = options.sparse_threshold > 0;
    const uint64_t bytes =
        model.activation_bytes(0, 0, {tokens, tokens, 0}, device.activation_type()) +
        expected_workspaces(device, needs);
    if (tokens / 2 < context && bytes <= memory / share) break;
  }
  return tokens;
}

int32_t EngineMemory::most_rows(const EngineOptions& options) {
  const int32_t others = options.max_sequences - 1;
  return std::max(options.ubatch_tokens + others * (1 + options.max_drafts),
                  options.max_batch_tokens + others * options.max_drafts) +
         options.max_drafts;
}

Dflash::Sizes EngineMemory::dflash_sizes(const EngineOptions& options) const {
  return {step_sizes(), DflashDrafter::most_rows(*dflash, options.max_sequences)};
}

size_t EngineMemory::activation_bytes(int32_t device, const EngineOptions& options,
                                      const Model& model, const Devices& devices) const {
  const DType type = devices.at(device).activation_type();
  const int32_t stage = stage_of(static_cast<size_t>(device));
  const int32_t rank = rank_of(static_cast<size_t>(device));
  const size_t bytes = model.activation_bytes(stage, rank, step_sizes(), type);
  if (dflash == nullptr || rank > 0) return bytes;
  return bytes + dflash->activation_bytes(stage, model.config(), dflash_sizes(options), type);
}

// An upper bound, once the context is known: beside other drafters the head's depth is smaller.
size_t EngineMemory::draft_bytes(const EngineOptions& options) const {
  DrafterOptions drafter;
  drafter.sequences = options.max_sequences;
  drafter.depth = options.draft_depth;
  drafter.block_table =
      static_cast<int32_t>(blocks_for(int64_t{plan.context_tokens} + options.max_drafts));
  size_t bytes = 0;
  if (options.spec_type.has(SpecType::dflash)) bytes += DflashDrafter::bytes(*dflash, drafter);
  if (options.spec_type.has(SpecType::mtp)) bytes += ModelDrafter::bytes(drafter);
  return bytes;
}

Device::WorkspaceNeeds EngineMemory::model_needs(const EngineOptions& options,
                                                 const Model& model) const {
  Device::WorkspaceNeeds needs = model.workspace_needs(max_rows);
  int32_t context = plan.context_tokens > 0 ? plan.context_tokens : options.context_tokens;
  if (context == 0) context = model.config().context_length;
  needs.max_sequences = options.max_sequences;
  needs.max_context = context + options.max_drafts;
  needs.max_drafts = options.max_drafts;
  needs.k_codec = sizes.k_codec;
  needs.v_codec = sizes.v_codec;
  needs.sparse_prefill = options.sparse_threshold > 0;
  return needs;
}

Device::WorkspaceNeeds EngineMemory::workspace_needs(const EngineOptions& options,
                                                     const Model& model) const {
  Device::WorkspaceNeeds needs = model_needs(options, model);
  if (dflash != nullptr) dflash->add_needs(needs, dflash_sizes(options));
  return needs;
}

uint64_t EngineMemory::planned_workspaces(const EngineOptions& options, const Model& model,
                                          const Device& device) const {
  return expected_workspaces(device, workspace_needs(options, model));
}

// Layers with windows need each sequence's window, the rows of steps, and windows of prefixes to
// reuse, at most a quarter of the full layers' blocks. Sealing layers need exact rows and the rows
// of steps.
void EngineMemory::set_blocks(const EngineOptions& options, int64_t blocks) {
  sizes.blocks[0] = static_cast<int32_t>(blocks);
  const int64_t steps = blocks_for(max_rows) + blocks_for(interleaved_tokens);
  if (sizes.seals()) {
    // With drafts and one spare (scheduler_admit.cpp).
    const int64_t exact = sizes.tail.most_exact_blocks() + blocks_for(options.max_drafts) + 2;
    sizes.blocks[1] = static_cast<int32_t>(std::min(blocks, options.max_sequences * exact + steps));
    return;
  }
  if (sizes.window == 0) return;
  // Partial blocks at both ends, and one spare (scheduler_admit.cpp).
  const int64_t tail = blocks_for(int64_t{sizes.window} + options.max_drafts) + 3;
  const int64_t prefixes = options.prefix_cache ? usual_images(options) * tail : 0;
  sizes.blocks[1] = static_cast<int32_t>(
      std::min(blocks, options.max_sequences * tail + steps + std::min(prefixes, blocks / 4)));
}

// Blocks for all contexts if they fit, at least for one; sequences share them (scheduler.h).
Status EngineMemory::plan_blocks(const EngineOptions& options, const ModelConfig& config) {
  const auto blocks_of = [&](int32_t tokens) {
    return blocks_for(int64_t{tokens} + options.max_drafts);
  };
  const auto bytes_of = [&](int64_t count) {
    set_blocks(options, count);
    return kv_bytes();
  };
  const int32_t context = plan.context_tokens;  // longest_context()
  const auto fits = [&](int64_t count) {
    set_blocks(options, count);
    return blocks_fit(options);
  };
  const int64_t wanted = wanted_blocks(options, context);
  int64_t blocks = 0;
  for (int64_t step = std::bit_floor(static_cast<uint64_t>(wanted)); step > 0; step /= 2)
    if (blocks + step <= wanted && fits(blocks + step)) blocks += step;
  all_contexts_fit =
      blocks == wanted && (options.context_tokens > 0 || context == config.context_length);
  if (options.context_tokens > 0) {
    if (options.kv_memory_bytes > 0 && blocks < blocks_of(context))
      return Error{ErrorKind::exhausted,
                   fmt::format("a context of {} tokens needs {} of KV blocks; --kv-memory gives {}",
                               context, format_bytes(bytes_of(blocks_of(context))),
                               format_bytes(options.kv_memory_bytes))};
    blocks = std::max(blocks, blocks_of(context));  // check_fits() may still refuse
    plan.context_tokens = context;
  } else {
    blocks = std::max(blocks, blocks_of(std::min(kSmallestContext, context)));
    const int64_t holds = blocks * kBlockTokens - options.max_drafts;
    plan.context_tokens = static_cast<int32_t>(std::min<int64_t>(holds, context));
  }
  if (blocks > INT32_MAX)
    return Error{ErrorKind::invalid_argument,
                 fmt::format("{} contexts of {} tokens are too many", options.max_sequences,
                             plan.context_tokens)};
  set_blocks(options, blocks);
  for (int32_t pool = 0; pool < std::ssize(plan.pools); ++pool)
    plan.set_predicted(MemoryUse::kv_blocks, kv_bytes_of_pool(pool), pool);
  plan.window_tokens = config.largest_window();
  plan.exact_tokens = sizes.seals() ? (sizes.tail.tail_blocks + 1) * kBlockTokens : 0;
  plan.kv_old_token_bytes = block_bytes(0) / kBlockTokens;
  plan.kv_token_bytes = plan.kv_old_token_bytes + block_bytes(1) / kBlockTokens;
  plan.kv_formats = kv_formats_of(config, sizes);
  plan.k_type = sizes.seals() ? sizes.k_codec->name : kv_format_name(sizes.k_format);
  plan.v_type = sizes.seals() ? sizes.v_codec->name : kv_format_name(sizes.v_format);
  plan.kv_window_bytes = static_cast<uint64_t>(sizes.blocks[1]) * block_bytes(1);
  for (size_t i = 0; i < pool_of.size(); ++i) {
    MemoryPool& pool = plan.pools[static_cast<size_t>(pool_of[i])];
    const auto bytes = [&](int32_t group) {
      return sizes.block_bytes(*ranks_[static_cast<size_t>(rank_of(i))], group, stage_of(i));
    };
    pool.kv_token_bytes += (bytes(0) + bytes(1)) / kBlockTokens;
    pool.kv_window_bytes += static_cast<uint64_t>(sizes.blocks[1]) * bytes(1);
  }
  return {};
}

// Without a known context: for the longest one, without blocks.
void EngineMemory::plan_books(const EngineOptions& options, const ModelConfig& config) {
  const int32_t longest =
      options.context_tokens > 0 ? options.context_tokens : config.context_length;
  const int32_t context = plan.context_tokens > 0 ? plan.context_tokens : longest;
  plan.set_predicted(MemoryUse::block_books,
                     BlockPool::bytes(sizes.blocks[0]) + BlockPool::bytes(sizes.blocks[1]));
  plan.set_predicted(MemoryUse::ngram_tables, NgramDrafter::bytes(options.max_sequences, context));
  plan.set_predicted(MemoryUse::fetched_logits,
                     StepOutputs::host_bytes(std::max(logit_rows, decoding_rows), config.vocabulary,
                                             config.width, slots));
}

void EngineMemory::plan_host_images(const EngineOptions& options, const ModelConfig& config) {
  const uint64_t image_bytes = state_bytes() == 0 ? 0 : state_bytes() + block_bytes(0);
  const auto count = [&](int64_t asked, uint64_t each, uint64_t chosen) {
    const uint64_t most =
        asked < 0 ? spare_host_bytes(plan) / 4 / each : static_cast<uint64_t>(asked) / each;
    return static_cast<int32_t>(std::min<uint64_t>({most, asked < 0 ? chosen : most, 1 << 20}));
  };
  if (options.prefix_cache && image_bytes > 0 && options.state_memory_bytes != 0) {
    const int64_t most =
        options.max_checkpoints > 0 ? options.max_checkpoints : usual_images(options);
    host_images.checkpoint_count =
        count(options.state_memory_bytes, image_bytes, static_cast<uint64_t>(most));
    plan.set_predicted(MemoryUse::checkpoints,
                       static_cast<uint64_t>(host_images.checkpoint_count) * image_bytes);
  }
  if (options.swap_memory_bytes == 0) return;
  // A quarter of the blocks, or the requested size in the same proportion.
  const uint64_t all_bytes = std::max<uint64_t>(kv_bytes(), 1);
  const uint64_t spare = spare_host_bytes(plan) / 4;
  const uint64_t chosen = options.max_sequences > 1 ? std::min(all_bytes / 4, spare) : 0;
  const uint64_t swap_bytes =
      options.swap_memory_bytes < 0 ? chosen : static_cast<uint64_t>(options.swap_memory_bytes);
  uint64_t taken = 0;
  for (int32_t g = 0; g < kKvGroups; ++g) {
    const double images = static_cast<double>(sizes.blocks[g]) * static_cast<double>(swap_bytes) /
                          static_cast<double>(all_bytes);
    host_images.swap[g].count = static_cast<int32_t>(std::min<double>(images, 1 << 20));
    taken += static_cast<uint64_t>(host_images.swap[g].count) * block_bytes(g);
  }
  plan.set_predicted(MemoryUse::swap, taken);
}

DiskKind EngineMemory::disk_kind(const ModelConfig& config, const PrefixHash& fingerprint,
                                 uint64_t guess_kind) const {
  const uint64_t block = block_bytes(0);
  const uint64_t guesses = sizes.block_bytes(*ranks_[0], 0) -
                           sizes.block_bytes(trunk_of(*ranks_[0]), 0);  // of drafters, on rank 0
  return {fingerprint, state_bytes(), block, static_cast<uint32_t>(guesses), guess_kind};
}

Status EngineMemory::plan_disk(const EngineOptions& options, const ModelConfig& config) {
  if (options.cache_dir.empty()) return {};
  const DiskKind kind = disk_kind(config, {}, 0);
  if (kind.block_bytes == 0)
    return Error{ErrorKind::unsupported, "a cache directory needs a model with attention layers"};
  if (!options.prefix_cache || (kind.state_bytes > 0 && host_images.checkpoint_count == 0))
    return Error{
        ErrorKind::invalid_argument,
        "a cache directory needs the prefix cache and memory for checkpoints (--state-memory)"};
  const int32_t interval = scheduler_limits(options, config).checkpoint_interval;
  const uint64_t good = DiskStaging::write_bytes(
      kind, std::min(interval > 0 ? interval + options.ubatch_tokens : 8192, plan.context_tokens));
  disk_write_bytes = std::min(good, std::max(spare_host_bytes(plan) / 8, 2 * kind.block_bytes));
  plan.rows.push_back(
      {MemoryUse::disk_staging, disk_write_bytes + DiskStaging::read_bytes(kind), 0, true});
  return {};
}

SchedulerLimits EngineMemory::scheduler_limits(const EngineOptions& options,
                                               const ModelConfig& config) const {
  SchedulerLimits limits;
  limits.context_tokens = plan.context_tokens;
  limits.ubatch_tokens = options.ubatch_tokens;
  limits.step_tokens = options.max_batch_tokens;
  limits.max_drafts = options.max_drafts;
  limits.gap_limit = options.gap_limit;
  limits.prefix_cache = options.prefix_cache;
  limits.recurrent = sizes.slot_bytes(config) > 0 || sizes.seals();
  limits.window = sizes.window;
  limits.seals = sizes.seals();
  limits.tail = sizes.tail;
  limits.preemption = options.preemption;
  if (options.sparse_threshold > 0) limits.exact_tokens = kSparseExactTokens;
  // Many rows use another form of attention than one, so recomputation may change results. Where it
  // must not, blocks are copied if there is room. In host memory a copy is always cheaper.
  limits.answers_by_rows = options.deterministic || rows_alone;
  if (limits.answers_by_rows && limits.preemption == Preemption::cheaper)
    limits.preemption = Preemption::swap;
  // In tokens with the KV size of one state or window. Draft memory is not counted, as checkpoints
  // and later hits must not depend on the drafter.
  const ModelConfig trunk = trunk_of(config);
  CacheSizes plain = sizes;
  plain.slots = 1;
  for (CacheSizes::OfStage& stage : plain.stages) stage.ring = {stage.ring.every, 0, 0};
  plain.hidden_cells = 0;
  const auto token_bytes = [&](int32_t group) {
    return static_cast<int64_t>(plain.block_bytes(trunk, group)) / kBlockTokens;
  };
  const auto state_bytes = static_cast<int64_t>(plain.slot_bytes(trunk) + sizes.exact_bytes(trunk));
  const int64_t kept_bytes = state_bytes + sizes.window * token_bytes(1);
  const auto state_tokens = static_cast<int32_t>(
      std::min<int64_t>(kept_bytes / std::max<int64_t>(1, token_bytes(0)), 1 << 20));
  const auto rounded = [](int32_t tokens) {
    return (tokens + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
  };
  limits.checkpoint_interval = options.checkpoint_interval >= 0
                                   ? options.checkpoint_interval
                                   : std::clamp(rounded(2 * state_tokens), 1024, 8192);
  limits.checkpoint_spacing = options.checkpoint_spacing >= 0
                                  ? options.checkpoint_spacing
                                  : std::clamp(rounded(state_tokens / 8), 64, 512);
  return limits;
}

Status EngineMemory::take(const EngineOptions& options, Model& model, Devices& devices) {
  const ModelConfig& config = model.config();
  BRAID_TRY(model.load(devices.all(), step_sizes(), options.progress));
  std::vector<Device*> stages;  // rank 0, which the drafter works with
  for (int32_t stage = 0; stage < devices.stages(); ++stage)
    stages.push_back(&devices.at(devices.index(stage, 0)));
  if (dflash != nullptr)
    BRAID_TRY(dflash->load(stages, config, model.weights(), dflash_sizes(options)));
  BRAID_TRY(cache.allocate(devices, ranks_, sizes));
  for (int32_t index = 0; index < devices.count(); ++index) {
    const int32_t stage = stage_of(static_cast<size_t>(index));
    const int32_t rank = rank_of(static_cast<size_t>(index));
    const int32_t pool = pool_of[static_cast<size_t>(index)];
    const auto add = [&](MemoryUse use, uint64_t bytes) {
      for (MemoryRow& row : plan.rows)
        if (row.use == use && row.pool == pool) row.actual_bytes += bytes;
    };
    add(MemoryUse::weights,
        model.weights_of(rank).loaded_bytes(stage) +
            model.weights_of(rank).expert_staging_bytes(stage, devices.at(index)));
    plan.set_actual(MemoryUse::expert_copies, plan.predicted_bytes_of(MemoryUse::expert_copies));
    if (index == devices.last_index() && dflash != nullptr)
      add(MemoryUse::weights, dflash->weights().loaded_bytes());
    add(MemoryUse::kv_blocks, cache.kv_bytes(index));
    add(MemoryUse::state_slots, cache.slot_bytes(index));
    add(MemoryUse::activations, activation_bytes(index, options, model, devices));
    BRAID_ASSIGN(const size_t workspace_bytes,
                 devices.at(index).reserve_workspaces(workspace_needs(options, model)));
    add(MemoryUse::workspaces, workspace_bytes);
    add(MemoryUse::exchange, model.taken_exchange_bytes(stage, rank));
  }
  return take_host_images(options, config, devices.last());
}

Status EngineMemory::take_host_images(const EngineOptions& options, const ModelConfig& config,
                                      Device& device) {
  const size_t checkpoint_bytes =
      static_cast<size_t>(host_images.checkpoint_count) *
      Scheduler::checkpoint_bytes(cache, scheduler_limits(options, config));
  size_t swap_bytes = 0;
  for (int32_t g = 0; g < kKvGroups; ++g)
    swap_bytes += static_cast<size_t>(host_images.swap[g].count) * cache.block_bytes(g);
  const auto taking = [&](size_t before) -> BytesDone {
    if (!options.host_progress) return nullptr;
    return [&, before](uint64_t done) {
      options.host_progress(before + done, checkpoint_bytes + swap_bytes);
    };
  };
  if (checkpoint_bytes > 0) {
    BRAID_ASSIGN(checkpoint_memory,
                 device.allocate_host(checkpoint_bytes, "checkpoints", taking(0)));
  }
  if (swap_bytes > 0) {
    BRAID_ASSIGN(swap_memory, device.allocate_host(swap_bytes, "swap", taking(checkpoint_bytes)));
  }
  host_images.checkpoints = static_cast<std::byte*>(checkpoint_memory.data());
  auto* swap = static_cast<std::byte*>(swap_memory.data());
  for (int32_t g = 0; g < kKvGroups; ++g) {
    host_images.swap[g].memory = swap;
    swap += static_cast<size_t>(host_images.swap[g].count) * cache.block_bytes(g);
  }
  plan.set_actual(MemoryUse::checkpoints, checkpoint_bytes);
  plan.set_actual(MemoryUse::swap, swap_bytes);
  return {};
}

Status EngineMemory::take_disk_staging(DiskTier& disk, const DiskKind& kind, Device& device) {
  BRAID_CHECK(cache.block_bytes(0) == kind.block_bytes && cache.guess_bytes() == kind.guess_bytes);
  const size_t bytes = disk_write_bytes + DiskStaging::read_bytes(kind);
  BRAID_ASSIGN(disk_memory, device.allocate_host(bytes, "disk staging"));
  const std::span<std::byte> memory(static_cast<std::byte*>(disk_memory.data()), bytes);
  disk.set_staging({memory.first(disk_write_bytes), memory.subspan(disk_write_bytes)},
                   cache.state_form());
  plan.set_actual(MemoryUse::disk_staging, bytes);
  return {};
}

}  // namespace braid
