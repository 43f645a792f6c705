// engine_setup.cpp -- builds a running engine from a file and options. Memory: engine_memory.cpp.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/log_line.h"
#include "engine/draft/dflash_drafter.h"
#include "engine/draft/joint_drafter.h"
#include "engine/draft/model_drafter.h"
#include "engine/draft/ngram_drafter.h"
#include "engine/engine.h"
#include "engine/expert_profile.h"
#include "engine/open_devices.h"
#include "engine/prefix/model_hash.h"
#include "ops/kv/kv_codec.h"

namespace braid {
namespace {

Status check_sparse_prefill(const EngineOptions& o) {
  if (o.sparse_threshold == 0) return {};
  std::string message;
  if (!(o.sparse_threshold > 0 && o.sparse_threshold <= 1)) {
    message = fmt::format(
        "a threshold of {} for block-sparse prompts is not between 0 and 1; 0 means full attention",
        o.sparse_threshold);
  } else if (o.attention_window > 0) {
    message = "block-sparse prompts take layers that see everything, and --fa-window leaves none";
  } else if (o.deterministic) {
    message =
        "block-sparse prompts are not deterministic: a token's result depends on how its prompt is "
        "cut into steps";
  } else if (o.k_codec == nullptr && (o.k_format != o.v_format || o.k_format == KvFormat::f32)) {
    message =
        "block-sparse prompts need keys and values of f16, of bf16 or of formats below 16 bits "
        "(-ctk, -ctv)";
  } else if (o.ubatch_tokens > 0 && std::max(o.ubatch_tokens, o.max_batch_tokens) < kSparseRows) {
    message = fmt::format(
        "block-sparse prompts need steps of at least {} tokens (-ub); a step of {} attends to "
        "everything",
        kSparseRows, std::max(o.ubatch_tokens, o.max_batch_tokens));
  }
  if (message.empty()) return {};
  return Error{ErrorKind::invalid_argument, message};
}

Status check_options(const EngineOptions& o, const ModelConfig& config) {
  const auto bad = [](const std::string& message) {
    return Error{ErrorKind::invalid_argument, message};
  };
  if (o.context_tokens < 0)
    return bad(fmt::format("a context of {} tokens is impossible", o.context_tokens));
  if (o.context_tokens > config.context_length)
    return bad(
        fmt::format("a context of {} tokens is more than the {} that this model was made for",
                    o.context_tokens, config.context_length));
  if (o.max_sequences < 1 || o.max_sequences > 4096)
    return bad(fmt::format("{} sequences at a time is not between 1 and 4096", o.max_sequences));
  if (o.ubatch_tokens < 0 || o.ubatch_tokens > 65536)
    return bad(fmt::format("a batch of {} tokens is not between 0 and 65536", o.ubatch_tokens));
  if (o.max_batch_tokens < 0 || o.max_batch_tokens > 65536)
    return bad(fmt::format("a step of {} tokens is not between 0 and 65536", o.max_batch_tokens));
  if (o.max_drafts < 0 || o.max_drafts > 1024)
    return bad(fmt::format("{} drafted tokens is not between 0 and 1024", o.max_drafts));
  if (o.draft_depth < 0 || o.draft_depth > 1024)
    return bad(fmt::format("drafts {} deep are not between 0 and 1024", o.draft_depth));
  if (!(o.draft_p_min >= 0 && o.draft_p_min <= 1))
    return bad(fmt::format("a draft probability of {} is not between 0 and 1", o.draft_p_min));
  if (o.draft_vocabulary < ModelOptions::kDraftTokensByModel ||
      (o.draft_vocabulary > 0 && o.draft_vocabulary < kGuessCandidates))
    return bad(fmt::format("a draft vocabulary of {} tokens is too small; 0 means all",
                           o.draft_vocabulary));
  if (o.spec_type.has(SpecType::dflash) && o.draft_model.empty())
    return bad("a DFlash drafter needs its file: -md");
  if (!o.spec_type.has(SpecType::dflash) && !o.draft_model.empty())
    return bad(fmt::format("{} is not used: only a DFlash drafter has a file", o.draft_model));
  return check_sparse_prefill(o);
}

constexpr int32_t kLeastWindow = 32;

Status check_window(int32_t tokens) {
  if (tokens == 0 || tokens >= kLeastWindow) return {};
  return Error{
      ErrorKind::invalid_argument,
      fmt::format(
          "attention over the newest {} positions is not possible: the minimum is {}, and 0 "
          "means all",
          tokens, kLeastWindow)};
}

// GPUs that hold less, without an asked context, leave layers to the CPU.
constexpr int32_t kLeastContext = 4096;
constexpr int32_t kNgramDepth = 7;
constexpr int32_t kHeadDepth = 3;
constexpr int32_t kFewSequences = 8;
constexpr int32_t kMostDrafts = 64;

// Everything that cached prefixes depend on: model, formats, arithmetic and state layout; not the
// drafter. Without a cache directory the model is left out.
PrefixHash fingerprint_of(const GgufFile& file, const EngineOptions& options,
                          const Devices& devices, const ModelConfig& config,
                          const CacheSizes& sizes, const PrefixSecret& secret) {
  std::string text;
  if (!options.cache_dir.empty()) {
    const ByteHash h = model_hash(file, options.cache_dir, options.progress);
    text.append(reinterpret_cast<const char*>(&h), sizeof h);
  }
  const int32_t columns = devices.last().state_tile_columns(config.largest_delta());
  text += fmt::format("|{} {} {} {} {} {} {}", devices.numerics(), columns,
                      sizes.stages.back().ring.every, kv_format_name(options.k_format),
                      kv_format_name(options.v_format), static_cast<int>(options.activations),
                      kBlockTokens);
  if (options.k_codec != nullptr)
    text += fmt::format("|sealed {} {} {} {}", options.k_codec->name, options.v_codec->name,
                        options.kv_tail.tail_blocks, options.kv_tail.sink_blocks);
  // Deeper layers depend on what earlier layers attended to.
  if (options.attention_window > 0) text += fmt::format(" window {}", options.attention_window);
  // Blocks that were not read change all later rows.
  if (options.sparse_threshold > 0) text += fmt::format(" sparse {}", options.sparse_threshold);
  // Other kernels would compute other bytes.
  if (options.deterministic && !devices.traits().rows_alone) text += " deterministic";
  // Other layers on the CPU compute other bytes, and their states have another form.
  if (devices.mixed()) text += fmt::format("|on the CPU {}", config.first_layer(1));
  // Sums over ranks round otherwise, and images have each rank's heads together.
  if (devices.ranks() > 1)
    text += fmt::format("|ranks {} {}", devices.ranks(), fmt::join(options.split_ratio, " "));
  return seed_hash(text, secret);
}

// Drafters that keep cells beside the model's. The head is part of the model's file.
uint64_t guess_kind_of(Dflash* drafter, const EngineOptions& options, const PrefixSecret& secret) {
  std::string text = options.spec_type.has(SpecType::mtp) ? "mtp" : "";
  if (drafter != nullptr) {
    const DflashConfig& c = drafter->config();
    text += fmt::format("|dflash {} {} {}", fmt::join(c.taps, " "), c.rope.freq_base, c.eps);
    for (const Weight* w : drafter->weights().matrices()) {
      text += fmt::format(" {} {} {} {}", w->name, static_cast<int>(w->type), w->n, w->k);
      const ByteHash h = hash_of_all(w->file, {});
      text.append(reinterpret_cast<const char*>(&h), sizeof h);
    }
  }
  return seed_hash(text, secret).words[0];
}

}  // namespace

Status Engine::open(const GgufFile& file, const EngineOptions& options,
                    std::shared_ptr<Devices> devices) {
  options_ = options;
  SpecTypes& types = options_.spec_type;
  const bool automatic = types.has(SpecType::automatic);
  if (automatic) {
    types.remove(SpecType::automatic);
    if (!options.draft_model.empty()) {
      types.add(SpecType::dflash);
    } else if (!options.deterministic) {
      types.add(SpecType::mtp);
    }
    // Their deep drafts add entries to every slot, which is costly with many sequences.
    if (!options.deterministic && options.max_sequences <= kFewSequences)
      types.add(SpecType::ngram);
  }
  ModelOptions model_options;
  model_options.with_mtp = types.has(SpecType::mtp);
  BRAID_TRY(check_window(options.attention_window));
  model_options.draft_vocabulary = options.draft_vocabulary;
  model_options.attention_window = options.attention_window;
  BRAID_ASSIGN(model_, Model::open(file, model_options));
  if (types.has(SpecType::mtp) && !model_->config().drafts()) {
    if (!automatic)
      return Error{ErrorKind::unsupported,
                   fmt::format("{}: has no head that drafts (nextn tensors)", file.name())};
    types.remove(SpecType::mtp);
    types.add(SpecType::ngram);
  }
  if (types.none() && automatic) options_.max_drafts = options_.draft_depth = 0;
  BRAID_TRY(check_options(options_, model_->config()));
  if (types.has(SpecType::dflash)) {
    BRAID_ASSIGN(dflash_, Dflash::open(options.draft_model, model_->config()));
    model_->attach(*dflash_, dflash_->kv_layers());
    memory_.dflash = dflash_.get();
  }
  choose_drafts();
  if (!options_.expert_profile.empty()) {
    BRAID_ASSIGN(options_.expert_profile,
                 expert_profile_path(options_.expert_profile, file.name()));
  }
  return devices != nullptr ? plan(std::move(devices)) : choose_devices();
}

// The named devices; if the model does not fit, more GPUs, then the CPU for its first layers, then
// the CPU alone. GPUs that hold a short context are kept if nothing else fits.
Status Engine::choose_devices() {
  EngineOptions asked = options_;
  const int32_t most_rows = EngineMemory::most_rows(asked);
  const int32_t trained = model_->config().context_length;
  BRAID_TRY(place_gpu_layers(asked));
  // GPUs of an earlier try are given back first.
  const auto plan_on = [&](const EngineOptions& tried) -> Status {
    devices_ = nullptr;
    options_ = tried;
    BRAID_ASSIGN(std::shared_ptr<Devices> devices, open_devices(tried, most_rows));
    return plan(std::move(devices));
  };
  const auto fits = [&](const Status& planned) {
    return planned.ok() && memory_.plan.check_fits().ok();
  };
  const auto holds = [&](bool all_contexts, int32_t least) {
    const bool context = asked.context_tokens > 0
                             ? memory_.all_contexts_fit || !all_contexts
                             : memory_.plan.context_tokens >= std::min(trained, least);
    return fits({}) && (context || asked.kv_memory_bytes > 0);
  };
  const bool may_leave_gpus = asked.device == "auto";
  BRAID_TRY(plan_on(asked));
  const bool only_gpus = devices_->first().traits().own_memory;
  if (may_use_more_devices(asked, *devices_) && !holds(true, EngineMemory::kUsefulContext)) {
    EngineOptions all = asked;
    all.device = all_gpus(asked);
    // A GPU that cannot be used is no reason to use none.
    if (plan_on(all).ok()) {
      asked = std::move(all);
    } else {
      BRAID_TRY(plan_on(asked));
    }
  }
  // A mixture keeps all layers on its GPUs, and the experts that do not fit in host memory.
  const bool all_layers =
      asked.gpu_layers < 0 || asked.gpu_layers >= std::ssize(model_->config().layers);
  if (asked.expert_slots == EngineOptions::kAutomaticExperts && all_layers &&
      devices_->traits().expert_slots && devices_->ranks() == 1 && memory_.plan.experts > 0 &&
      !devices_->mixed() && !holds(false, EngineMemory::kUsefulContext)) {
    EngineOptions slots = asked;
    slots.expert_slots = EngineOptions::kFittingExperts;
    if (fits(plan_on(slots))) return {};
    BRAID_TRY(plan_on(asked));
  }
  if (asked.gpu_layers >= 0 || asked.expert_slots != EngineOptions::kAutomaticExperts ||
      !asked.split_ratio.empty() || !only_gpus || asked.split == Split::tensor ||
      holds(false, kLeastContext))
    return {};
  const bool gpus_fit = fits({});
  EngineOptions with = asked;
  BRAID_ASSIGN(with.device, with_cpu(asked));
  if (fits(plan_on(with))) return {};
  with.device = "cpu";
  if (!gpus_fit && may_leave_gpus && fits(plan_on(with))) return {};
  return plan_on(asked);
}

// What --gpu-layers means for the devices.
Status Engine::place_gpu_layers(EngineOptions& asked) const {
  const auto layers = static_cast<int32_t>(model_->config().layers.size());
  const int32_t on_gpus = asked.gpu_layers;
  if (on_gpus < 0) return {};
  BRAID_ASSIGN(const std::string both, with_cpu(asked));
  const bool named = both.starts_with("cpu,cuda");
  if (both == asked.device && !named) return {};  // no GPU
  if (both == asked.device && (on_gpus == 0 || on_gpus >= layers))
    return Error{ErrorKind::invalid_argument,
                 fmt::format("--gpu-layers {} of {} leaves one side of {} without a layer", on_gpus,
                             layers, asked.device)};
  if (on_gpus > 0 && on_gpus < layers && !asked.split_ratio.empty())
    return Error{ErrorKind::invalid_argument,
                 "a number of layers on GPUs and a split ratio: give one of the two"};
  if (on_gpus < layers) asked.device = on_gpus == 0 ? "cpu" : both;
  return {};
}

Status Engine::plan(std::shared_ptr<Devices> devices) {
  devices_ = std::move(devices);
  late_events_ = options_.hooks.late_events || devices_->traits().asynchronous;
  EngineOptions chosen = options_;
  if (chosen.ubatch_tokens == 0)
    chosen.ubatch_tokens = EngineMemory::choose_ubatch(chosen, *model_, *devices_);
  BRAID_TRY(memory_.make_plan(chosen, *model_, *devices_));
  options_ = std::move(chosen);
  return {};
}

// Chains need only the deepest drafter's number of drafts: a sequence with a promising draft skips
// the next drafter (JointDrafter).
void Engine::choose_drafts() {
  int32_t& most = options_.max_drafts;
  int32_t& depth = options_.draft_depth;
  const SpecTypes& types = options_.spec_type;
  if (types.none()) {  // for set_drafter()
    depth = depth > 0 ? std::min(depth, most) : most;
    return;
  }
  const int32_t asked = depth > 0 ? depth : options_.draft_trees ? 0 : most;
  int32_t deepest = 0;
  const auto add = [&](int32_t own, int32_t limit) {
    const int32_t chosen = std::min(asked > 0 ? asked : own, limit);
    deepest = std::max(deepest, chosen);
    return chosen;
  };
  if (types.has(SpecType::ngram)) add(kNgramDepth, kMostDrafts);
  if (types.has(SpecType::mtp)) head_depth_ = add(kHeadDepth, kMostDrafts);
  if (types.has(SpecType::dflash)) add(dflash_->config().guesses(), dflash_->config().guesses());
  if (most == 0 || !options_.draft_trees) most = deepest;
  depth = std::min(deepest, most);
}

Status Engine::load() {
  const ModelConfig& config = model_->config();
  BRAID_TRY(memory_.take(options_, *model_, *devices_));
  if (!options_.expert_profile.empty()) {
    const Status read = load_expert_profile(options_.expert_profile, *devices_);
    if (!read.ok())
      log_warning(fmt::format("the expert profile is not used: {}", read.error().message));
  }
  BRAID_TRY(outputs_.allocate(devices_->last(), *model_, memory_.logit_rows, memory_.decoding_rows,
                              memory_.slots));
  memory_.plan.set_actual(MemoryUse::logits,
                          StepOutputs::bytes(memory_.logit_rows, config.vocabulary),
                          memory_.last_pool());
  memory_.plan.set_actual(
      MemoryUse::fetched_logits,
      StepOutputs::host_bytes(std::max(memory_.logit_rows, memory_.decoding_rows),
                              config.vocabulary, config.width, memory_.slots));
  if (disk_)
    BRAID_TRY(memory_.take_disk_staging(*disk_, memory_.disk_kind(config, fingerprint_, 0),
                                        devices_->last()));
  scheduler_ =
      std::make_unique<Scheduler>(memory_.scheduler_limits(options_, config), memory_.sizes.blocks,
                                  memory_.sizes.slots, memory_.cache, memory_.host_images);
  uint64_t book_bytes = 0;
  for (int32_t g = 0; g < kKvGroups; ++g)
    book_bytes += BlockPool::bytes(scheduler_->blocks(g).total());
  memory_.plan.set_actual(MemoryUse::block_books, book_bytes);
  scheduler_->set_disk(disk_.get());
  install_hooks();
  judge_ =
      std::make_unique<Judge>(outputs_, config.vocabulary, most_tokens(), devices_->first().pool());
  for (int32_t stage = 0; stage < devices_->stages(); ++stage)
    records_.emplace_back(devices_->of_stage(stage));
  if (devices_->ranks() > 1) records_.emplace_back(devices_->last());  // of drafters
  runner_ = std::make_unique<StepRunner>(*devices_, *model_, memory_.cache, outputs_, records_);
  StepRunner::Sizes sizes;
  sizes.rows = memory_.max_rows;
  sizes.sequences = options_.max_sequences;
  sizes.decoding_rows = 1 + options_.max_drafts;
  sizes.block_table =
      static_cast<int32_t>(blocks_for(int64_t{context_tokens()} + options_.max_drafts));
  sizes.kv_groups = scheduler_->groups();
  sizes.interleaved_tokens = memory_.interleaved_tokens;
  sizes.slots = memory_.slots;
  sizes.sparse_threshold = options_.sparse_threshold;
  BRAID_TRY(runner_->allocate(sizes));
  return make_drafter(sizes.block_table);
}

Status Engine::make_drafter(int32_t block_table) {
  DrafterOptions options;
  options.sequences = options_.max_sequences;
  options.depth = options_.draft_depth;
  options.trees = options_.draft_trees;
  options.p_min = options_.draft_p_min;
  options.block_table = block_table;
  options.logits = outputs_.memory();
  options.wait = [this] { events_.deliver(); };
  std::vector<std::unique_ptr<Drafter>> drafters;
  size_t bytes = 0;
  const auto add = [&](auto drafter) -> Status {
    BRAID_TRY(drafter->allocate(options));
    drafters.push_back(std::move(drafter));
    return {};
  };
  const SpecTypes& types = options_.spec_type;
  if (types.has(SpecType::ngram)) {
    drafters.push_back(std::make_unique<NgramDrafter>(options_.max_sequences, context_tokens()));
    memory_.plan.set_actual(MemoryUse::ngram_tables,
                            NgramDrafter::bytes(options_.max_sequences, context_tokens()));
  }
  if (types.has(SpecType::dflash)) {
    BRAID_TRY(add(std::make_unique<DflashDrafter>(devices_->last(), *dflash_, memory_.cache,
                                                  *scheduler_, records_.back())));
    bytes += DflashDrafter::bytes(*dflash_, options);
  }
  if (types.has(SpecType::mtp)) {
    options.depth = std::min(head_depth_, options_.draft_depth);
    BRAID_TRY(add(std::make_unique<ModelDrafter>(devices_->last(), *model_, memory_.cache,
                                                 *scheduler_, records_.back())));
    bytes += ModelDrafter::bytes(options);
  }
  memory_.plan.set_actual(MemoryUse::drafts, bytes, memory_.last_pool());
  if (drafters.size() == 1) own_drafter_ = std::move(drafters[0]);
  JointDrafter* joint = nullptr;
  if (drafters.size() > 1) {
    auto all = std::make_unique<JointDrafter>(std::move(drafters));
    joint = all.get();
    own_drafter_ = std::move(all);
  }
  drafter_ = own_drafter_.get();
  // A deterministic GPU engine must not choose rows by time.
  const bool fixed = options_.deterministic && !devices_->traits().rows_alone;
  if (drafter_ != nullptr && !fixed && !options_.spec_always)
    budget_ = std::make_unique<DraftBudget>(
        options_.draft_depth, types.has(SpecType::ngram),
        [this](int32_t rows) { return devices_->last().padded_rows(rows); });
  if (joint != nullptr && budget_)
    joint->set_survives(
        [this](const Draft& draft, int32_t depth) { return budget_->survival(draft, depth); });
  stats_.drafts.pays = drafter_ != nullptr && !budget_;  // else the budget decides
  // Steps may skip the drafter's cells; those must then be zeros and not another sequence's data.
  const auto trunk = static_cast<size_t>(model_->config().count(LayerKind::attention));
  if (budget_ && memory_.cache.memory().kv.size() > trunk && devices_->traits().host_visible &&
      !options_.hooks.poison_unused) {
    scheduler_->blocks(0).on_unused(
        [this, trunk](int32_t b) { memory_.cache.clear_layers(trunk, b); });
    scheduler_->slots().on_unused([this](int32_t slot) { memory_.cache.clear_hidden(slot); });
  }
  return {};
}

void Engine::install_hooks() {
  const TestHooks& hooks = options_.hooks;
  if (hooks.shuffle_blocks != 0) {
    uint64_t n = 0;
    for (int32_t g = 0; g < kKvGroups; ++g)
      scheduler_->blocks(g).shuffle_free([&] {
        return (n = n * 6364136223846793005u + 1442695040888963407u) >> 32 ^ hooks.shuffle_blocks;
      });
  }
  if (hooks.poison_unused) {
    for (int32_t g = 0; g < kKvGroups; ++g)
      scheduler_->blocks(g).on_unused(
          [this, g](int32_t block) { memory_.cache.poison_block(g, block); });
    scheduler_->slots().on_unused([this](int32_t slot) { memory_.cache.poison_slot(slot); });
  }
}

Result<std::unique_ptr<Engine>> Engine::create(const GgufFile& file, const EngineOptions& options) {
  return create(file, options, nullptr);
}

Result<std::unique_ptr<Engine>> Engine::create(const GgufFile& file, const EngineOptions& options,
                                               std::shared_ptr<Devices> devices) {
  std::unique_ptr<Engine> engine(new Engine);
  BRAID_TRY(engine->open(file, options, std::move(devices)));
  BRAID_TRY(engine->memory_.plan.check_fits());
  if (options.cache_dir.empty()) {
    engine->secret_ = random_secret();
  } else {  // refuse before reading a model
    BRAID_ASSIGN(const DiskDirectory directory, DiskDirectory::open(options.cache_dir));
    BRAID_ASSIGN(engine->secret_, directory.secret());
  }
  engine->fingerprint_ =
      fingerprint_of(file, engine->options_, *engine->devices_, engine->model_->config(),
                     engine->memory_.sizes, engine->secret_);
  if (!options.cache_dir.empty()) {
    DiskOptions disk;
    disk.directory = options.cache_dir;
    disk.limit_bytes = options.cache_dir_bytes;
    // Before loading: it may refuse, and its threads must not inherit this thread's CPU affinity.
    const uint64_t guess_kind =
        guess_kind_of(engine->dflash_.get(), engine->options_, engine->secret_);
    BRAID_ASSIGN(engine->disk_,
                 DiskTier::open(disk, engine->memory_.disk_kind(engine->model_->config(),
                                                                engine->fingerprint_, guess_kind)));
  }
  BRAID_TRY(engine->load());
  return engine;
}

Result<MemoryPlan> Engine::plan_memory(const GgufFile& file, const EngineOptions& options) {
  Engine engine;
  BRAID_TRY(engine.open(file, options, nullptr));
  return engine.memory_.plan;
}

std::string Engine::slow_kv_formats() const {
  int32_t head_dim = 0;
  for (const LayerConfig& layer : config().layers)
    if (layer.kind == LayerKind::attention) head_dim = std::max(head_dim, layer.attention.head_dim);
  std::string names;
  for (const std::string_view name : {memory().k_type, memory().v_type}) {
    const auto codec = find_kv_codec(name);
    if (name == names || !codec.ok() || !devices_->first().expands(**codec, head_dim)) continue;
    names += (names.empty() ? "" : " and ") + std::string(name);
  }
  return names;
}

SparseCounts Engine::sparse_counts() {
  SparseCounts sum;
  if (options_.sparse_threshold == 0) return sum;
  for (Device* device : devices_->all()) {
    const SparseCounts counts = device->sparse_counts();
    sum.read += counts.read;
    sum.all += counts.all;
  }
  return sum;
}

std::string Engine::note_on_layers() const {
  if (devices_->mixed())
    return fmt::format(
        "the first {} of {} layers are on the CPU; --gpu-layers and a smaller context change how "
        "many",
        config().first_layer(1), config().layers.size());
  for (const MemoryPool& pool : memory_.plan.pools)
    if (pool.expert_slots > 0)
      return fmt::format(
          "{} of {} experts of each layer lie on the GPU, which reads the others from host memory; "
          "--expert-slots and a smaller context change how many",
          pool.expert_slots, memory_.plan.experts);
  if (options_.gpu_layers > 0 && !devices_->traits().own_memory)
    return "--gpu-layers does nothing: braid uses no GPU here";
  if (options_.expert_slots > 0 && memory_.plan.experts == 0)
    return "--expert-slots does nothing: this model has no experts";
  if (options_.expert_slots > 0 && !devices_->traits().own_memory)
    return "--expert-slots does nothing: braid uses no GPU here";
  return "";
}

void Engine::keep_expert_profile() {
  if (options_.expert_profile.empty() || scheduler_ == nullptr || !devices_->health().ok()) return;
  if (const Status kept = save_expert_profile(options_.expert_profile, *devices_); !kept.ok())
    log_warning(fmt::format("the expert profile was not written: {}", kept.error().message));
}

Engine::~Engine() {
  if (devices_ != nullptr) keep_expert_profile();
  if (!disk_) return;
  // Queued stores must still be written, unless the device has failed.
  devices_->synchronize();
  if (scheduler_ && devices_->health().ok()) scheduler_->all_queued_is_done();
  disk_.reset();
}

}  // namespace braid
