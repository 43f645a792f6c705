// engine_memory_cut.cpp -- which device gets which layers (stage_cuts.h), or which shards.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "engine/engine_memory.h"
#include "engine/schedule/step_outputs.h"

namespace braid {
namespace {

// Of devices that do not know what they read.
constexpr double kGpuBytesPerSecond = 5e11, kHostBytesPerSecond = 5e10;
constexpr uint64_t kHostReserve = 16;  // share of host memory that copies of experts leave free

// Before a layer has a device: the most that it takes on any.
ModelWeights::WeightBytes most_weight_bytes(const Devices& devices) {
  return [&devices](const Weight& weight) {
    return std::max(devices.first().weight_bytes(weight), devices.last().weight_bytes(weight));
  };
}

}  // namespace

TrunkNeeds EngineMemory::trunk_needs(const EngineOptions& options, Model& model,
                                     const Devices& devices) const {
  const ModelConfig& config = model.config();
  const ModelWeights::WeightBytes bytes_of = most_weight_bytes(devices);
  TrunkNeeds needs;
  // Before a layer has a device: the most that its slots take on any.
  CacheSizes most = sizes;
  const auto slot_elements = [](const CacheSizes::OfStage& stage) {
    return std::pair(stage.ring.entries(), stage.snapshots);
  };
  most.stages = {*std::max_element(
      sizes.stages.begin(), sizes.stages.end(),
      [&](const auto& a, const auto& b) { return slot_elements(a) < slot_elements(b); })};
  for (size_t i = 0; i < config.layers.size(); ++i) {
    // A stage of this layer alone, as sizes count it.
    ModelConfig alone = config;
    alone.layers = {config.layers[i]};
    alone.layers[0].stage = 0;
    alone.mtp.clear();
    alone.drafter.clear();
    alone.stages = 2;
    LayerNeeds& layer = needs.layers.emplace_back();
    const auto bytes = model.weights().layer_bytes(i, config, bytes_of);
    layer.fixed_bytes = bytes.all + most.slot_bytes(alone, 0) + most.snapshot_bytes(alone, 0);
    layer.block_bytes = sizes.block_bytes(alone, 0, 0);
    layer.read_bytes = bytes.read;
  }
  uint64_t in_layers[2] = {0, 0};
  for (size_t i = 0; i < config.layers.size(); ++i)
    if (const int32_t stage = config.layers[i].stage; stage == 0 || stage == config.last_stage())
      in_layers[stage == 0 ? 0 : 1] += model.weights().layer_bytes(i, config, bytes_of).all;
  needs.first.fixed_bytes = model.weights().planned_bytes(0, bytes_of) - in_layers[0];
  needs.last.fixed_bytes =
      model.weights().planned_bytes(config.last_stage(), bytes_of) - in_layers[1];
  needs.last.read_bytes = bytes_of(model.weights().head());
  needs.last.fixed_bytes += StepOutputs::bytes(logit_rows, config.vocabulary);
  if (dflash != nullptr) needs.last.fixed_bytes += dflash->weights().planned_bytes(bytes_of);
  const ModelConfig trunk = trunk_of(config);
  needs.last.block_bytes = sizes.block_bytes(config, 0) - sizes.block_bytes(trunk, 0);
  return needs;
}

std::vector<StageRoom> EngineMemory::stage_rooms(const EngineOptions& options, const Model& model,
                                                 const Devices& devices) const {
  std::vector<StageRoom> rooms;
  for (int32_t stage = 0; stage < devices.count(); ++stage) {
    const Device& device = devices.at(stage);
    const int32_t pool = pool_of[static_cast<size_t>(stage)];
    const MemoryPool& own = plan.pools[static_cast<size_t>(pool)];
    const auto sharing = std::count(pool_of.begin(), pool_of.end(), pool);
    const uint64_t taken = activation_bytes(stage, options, model, devices) +
                           planned_workspaces(options, model, device);
    const uint64_t share = own.available_bytes / static_cast<uint64_t>(sharing);
    const uint64_t left = share - std::min(share, taken);
    StageRoom& room = rooms.emplace_back();
    room.bytes = own.own_memory ? MemoryPlan::without_reserve(left) : left;
    room.rate = device.read_bytes_s() > 0 ? device.read_bytes_s()
                : own.own_memory          ? kGpuBytesPerSecond
                                          : kHostBytesPerSecond;
    if (stage == 0 && devices.mixed() && options.gpu_layers > 0)
      room.layers = static_cast<int32_t>(model.config().layers.size()) - options.gpu_layers;
  }
  return rooms;
}

// Gives each rank its shards, or each device its layers: as asked, else so that all contexts fit,
// else so that most blocks do.
Status EngineMemory::cut(const EngineOptions& options, Model& model, Devices& devices) {
  const ModelConfig& config = model.config();
  const auto count = static_cast<size_t>(devices.count());
  const auto layers = static_cast<int32_t>(config.layers.size());
  if (devices.stages() > layers)
    return Error{ErrorKind::invalid_argument,
                 fmt::format("{} devices cannot share {} layers", count, layers)};
  if (!options.split_ratio.empty() && options.split_ratio.size() != count)
    return Error{ErrorKind::invalid_argument,
                 fmt::format("a split ratio of {} shares for {} device{}",
                             options.split_ratio.size(), count, count == 1 ? "" : "s")};
  if (devices.ranks() > 1 && devices.stages() > 1)
    return Error{ErrorKind::unsupported, "ranks in several stages are not there yet"};
  ModelSplit split;
  split.drafts_embed = dflash != nullptr && dflash->borrows_embedding();
  split.ranks = devices.ranks();
  split.exact_sums = options.deterministic || devices.traits().rows_alone;
  if (split.ranks > 1) split.rank_ratio = options.split_ratio;
  const bool asked = split.ranks == 1 && !options.split_ratio.empty();
  const std::vector<double> even(static_cast<size_t>(devices.stages()), 1.0);
  const auto split_model = [&](std::vector<int32_t> first_layers) -> Status {
    split.first_layers = std::move(first_layers);
    BRAID_TRY(model.split(split));
    ranks_.clear();
    for (int32_t rank = 0; rank < model.ranks(); ++rank) ranks_.push_back(&model.config_of(rank));
    return {};
  };
  BRAID_TRY(split_model(cut_by_shares(layers, asked ? options.split_ratio : even)));
  if (devices.stages() == 1 || asked) return {};
  if (devices.mixed() && devices.stages() > 2 && options.gpu_layers > 0 &&
      options.gpu_layers < devices.stages() - 1)
    return Error{ErrorKind::invalid_argument,
                 fmt::format("--gpu-layers {} leaves one of {} GPUs without a layer",
                             options.gpu_layers, count - 1)};
  const TrunkNeeds needs = trunk_needs(options, model, devices);
  const std::vector<StageRoom> rooms = stage_rooms(options, model, devices);
  const CutFor purpose =
      options.max_sequences >= 2 * devices.count() && slots > 1 ? CutFor::many : CutFor::one;
  // Layers go to the CPU for one useful context, not for all of the longest that the model knows.
  const int32_t longest =
      devices.mixed() ? std::min(config.context_length, kUsefulContext) : config.context_length;
  const int32_t context = options.context_tokens > 0 ? options.context_tokens : longest;
  const int64_t wanted = devices.mixed() ? blocks_for(int64_t{context} + options.max_drafts)
                                         : wanted_blocks(options, context);
  auto found = cut_trunk(needs, rooms, wanted, purpose);
  if (!found) {
    found = cut_trunk(needs, rooms, 0, purpose);
    int64_t blocks = 0;
    for (int64_t step = std::bit_floor(static_cast<uint64_t>(wanted)); found && step > 0; step /= 2)
      if (auto more = cut_trunk(needs, rooms, blocks + step, purpose)) {
        found = std::move(more);
        blocks += step;
      }
  }
  if (found) return split_model(*found);
  // Experts will have slots: layers by memory.
  if (!devices.mixed() && !options.keeps_all_experts()) {
    std::vector<double> memory;
    for (const StageRoom& room : rooms) memory.push_back(static_cast<double>(room.bytes));
    return split_model(cut_by_shares(layers, memory));
  }
  // As asked, or evenly: check_fits() says what is short.
  if (!devices.mixed() || options.gpu_layers <= 0) return {};
  std::vector<double> shares(
      static_cast<size_t>(devices.stages()),
      static_cast<double>(options.gpu_layers) / static_cast<double>(devices.stages() - 1));
  shares[0] = layers - options.gpu_layers;
  return split_model(cut_by_shares(layers, shares));
}

Status EngineMemory::check_host_copies(const EngineOptions& options) const {
  const uint64_t copies = plan.predicted_bytes_of(MemoryUse::expert_copies);
  const uint64_t available = host_bytes(options);
  if (copies <= available - available / kHostReserve) return {};
  return Error{ErrorKind::exhausted,
               fmt::format("the experts take {} of host memory, of which {} are available",
                           format_bytes(copies), format_bytes(available))};
}

// Gives each GPU's layers as many expert slots as asked, or as fit beside a useful context.
Status EngineMemory::place_experts(const EngineOptions& options, Model& model,
                                   const Devices& devices) {
  const ModelConfig& config = model.config();
  const int32_t asked = options.expert_slots;
  for (const LayerConfig& layer : config.layers)
    plan.experts = std::max(plan.experts, layer.feed_forward.experts);
  if (options.keeps_all_experts() || plan.experts == 0 || !devices.traits().own_memory) return {};
  if (devices.ranks() > 1 || !devices.traits().expert_slots)
    return Error{
        ErrorKind::unsupported,
        devices.ranks() > 1
            ? "ranks of a tensor split keep all their experts on their GPUs"
            : fmt::format("{} cannot read experts from host memory", devices.description())};
  int32_t used = 1;
  for (const LayerConfig& layer : config.layers)
    used = std::max(used, layer.feed_forward.experts_used);
  if (asked > 0 && asked < used)
    return Error{
        ErrorKind::invalid_argument,
        fmt::format("{} expert slots are fewer than the {} experts of a token", asked, used)};
  const int32_t context = options.context_tokens > 0
                              ? options.context_tokens
                              : std::min(config.context_length, kUsefulContext);
  for (int32_t stage = 0; stage < devices.stages(); ++stage) {
    if (!devices.at(stage).traits().expert_slots) continue;
    MemoryPool& pool = plan.pools[static_cast<size_t>(pool_of[static_cast<size_t>(stage)])];
    const auto fits = [&](int32_t slots) {
      model.weights().set_expert_slots(stage, slots);
      plan_rows(options, model, devices);
      plan.context_tokens = context;
      plan_workspaces(options, model, devices);
      const int32_t number = pool_of[static_cast<size_t>(stage)];
      set_blocks(options, blocks_for(int64_t{context} + options.max_drafts));
      auto wanted = static_cast<double>(kv_bytes_of_pool(number));
      if (options.kv_memory_bytes > 0) {  // all of it, or what all contexts need
        set_blocks(options, wanted_blocks(options, context));
        const auto all = static_cast<double>(kv_bytes());
        wanted = static_cast<double>(kv_bytes_of_pool(number)) *
                 std::min(1.0, static_cast<double>(options.kv_memory_bytes) / std::max(all, 1.0));
      }
      return wanted <= static_cast<double>(plan.spare_bytes(number));
    };
    int32_t slots = std::min(asked, plan.experts);
    if (asked == EngineOptions::kFittingExperts) {
      slots = fits(plan.experts) ? plan.experts : used;
      for (int32_t above = plan.experts; above - slots > 1;) {
        const int32_t tried = slots + (above - slots) / 2;
        (fits(tried) ? slots : above) = tried;
      }
    }
    if (model.weights().set_expert_slots(stage, slots) > 0 && slots < plan.experts)
      pool.expert_slots = slots;
  }
  plan_rows(options, model, devices);
  plan.context_tokens = 0;
  return check_host_copies(options);
}

}  // namespace braid
