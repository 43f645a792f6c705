// sequence_cache.cpp -- see sequence_cache.h.
#include "engine/prefix/sequence_cache.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

#include <boost/container/small_vector.hpp>

#include "base/check.h"
#include "base/checked.h"
#include "engine/prefix/slot_form.h"

namespace braid {
namespace {

KvShape kv_shape(const AttentionConfig& config, const CacheSizes& sizes) {
  return {config.kv_heads, config.head_dim, sizes.k_format, sizes.v_format};
}

int32_t group_of(const AttentionConfig& config, const CacheSizes& sizes) {
  return sizes.window > 0 && config.window > 0 ? 1 : 0;
}

KvCold cold_layer(const AttentionConfig& config, const CacheSizes& sizes) {
  KvCold cold{sizes.k_codec, sizes.v_codec, sizes.tail, sizes.blocks[0]};
  cold.k_unit_bytes = sizes.k_codec->unit_bytes(config.head_dim, KvSide::k);
  cold.v_unit_bytes = sizes.v_codec->unit_bytes(config.head_dim, KvSide::v);
  return cold;
}

size_t attention_layers(const ModelConfig& config) {
  return static_cast<size_t>(
      std::count_if(config.layers.begin(), config.layers.end(),
                    [](const LayerConfig& l) { return l.kind == LayerKind::attention; }));
}

size_t layers_that_seal(const ModelConfig& config, const CacheSizes& sizes) {
  return sizes.seals() ? attention_layers(config) : 0;
}

// Saturates: sizes of an untrusted file times a large option may overflow 64 bits.
uint64_t product(std::initializer_list<uint64_t> factors) {
  constexpr uint64_t kTooMuch = UINT64_MAX / 16;
  uint64_t out = 1;
  for (const uint64_t f : factors) out = checked_mul(out, f).value_or(kTooMuch);
  return std::min(out, kTooMuch);
}

}  // namespace

uint64_t CacheSizes::block_bytes(const ModelConfig& config, int32_t group, int32_t stage) const {
  uint64_t bytes = 0;
  size_t sealing = layers_that_seal(config, *this);
  for (const auto& [a, of_stage] : config.kv_layers()) {
    const bool seals_it = sealing > 0;
    if (seals_it) --sealing;
    if (stage != kAllStages && stage != of_stage) continue;
    const KvShape shape = kv_shape(*a, *this);
    const auto rows = static_cast<uint64_t>(shape.k_block_bytes() + shape.v_block_bytes());
    if (seals_it) {
      const KvCold cold = cold_layer(*a, *this);
      const uint64_t units =
          static_cast<uint64_t>(a->kv_heads * (cold.k_unit_bytes + cold.v_unit_bytes));
      bytes += group == 0 ? units : rows;
    } else if (group_of(*a, *this) == group) {
      bytes += rows;
    }
  }
  return bytes;
}

uint64_t CacheSizes::kv_bytes(const ModelConfig& config, int32_t stage) const {
  uint64_t bytes = 0;
  for (int32_t group = 0; group < kKvGroups; ++group)
    bytes += product({block_bytes(config, group, stage), static_cast<uint64_t>(blocks[group])});
  return bytes;
}

uint64_t CacheSizes::slot_bytes(const ModelConfig& config, int32_t stage) const {
  const bool has_hidden = stage == kAllStages || stage == config.last_stage();
  const uint64_t hidden = product({static_cast<uint64_t>(config.width), sizeof(float),
                                   static_cast<uint64_t>(has_hidden ? hidden_cells : 0)});
  uint64_t states = 0;
  for (int32_t one = 0; one < config.stages; ++one)
    if (stage == kAllStages || stage == one)
      states += static_cast<uint64_t>(config.state_bytes(of_stage(one).ring, one));
  return product({states + hidden, static_cast<uint64_t>(slots)});
}

uint64_t CacheSizes::exact_bytes(const ModelConfig& config, int32_t stage) const {
  if (!seals()) return 0;
  return static_cast<uint64_t>(tail.most_exact_blocks()) * block_bytes(config, 1, stage);
}

uint64_t CacheSizes::state_bytes(const ModelConfig& config, int32_t stage) const {
  CacheSizes one = *this;
  one.slots = 1;
  return one.slot_bytes(config, stage) + exact_bytes(config, stage);
}

Status SequenceCache::allocate(Devices& devices, std::span<const ModelConfig* const> ranks,
                               const CacheSizes& sizes) {
  const ModelConfig& config = *ranks[0];
  BRAID_CHECK(devices.stages() == config.stages && devices.ranks() == std::ssize(ranks));
  devices_ = &devices;
  places_.resize(static_cast<size_t>(devices.count()));
  copies_.resize(places_.size());
  ranks_.resize(ranks.size());
  width_ = config.width;
  trunk_layers_ = attention_layers(config);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    BRAID_TRY(allocate_kv(static_cast<int32_t>(rank), *ranks[rank], sizes));
    BRAID_TRY(allocate_slots(static_cast<int32_t>(rank), *ranks[rank], sizes));
  }
  for (const Rank& rank : ranks_) memories_.push_back({rank.kv, rank.delta, {}});
  memories_[0].hidden = hidden_;
  if (devices.traits().host_visible) return {};
  for (int32_t g = 0; g < kKvGroups; ++g)
    block_copies_[g].resize(static_cast<size_t>(sizes.blocks[g]));
  slot_copies_.resize(static_cast<size_t>(sizes.slots));
  return {};
}

Status SequenceCache::allocate_kv(int32_t rank, const ModelConfig& config,
                                  const CacheSizes& sizes) {
  std::vector<std::byte*> next;
  for (int32_t stage = 0; stage < config.stages; ++stage) {
    const int32_t device = devices_->index(stage, rank);
    Place& own = places_[static_cast<size_t>(device)];
    BRAID_ASSIGN(own.kv, devices_->at(device).allocate(sizes.kv_bytes(config, stage), "KV blocks"));
    next.push_back(static_cast<std::byte*>(own.kv.data()));
  }
  const size_t sealing = layers_that_seal(config, sizes);
  std::vector<KvLayer>& layers = ranks_[static_cast<size_t>(rank)].kv;
  for (const auto& [a, stage] : config.kv_layers()) {
    std::byte*& at = next[static_cast<size_t>(stage)];
    const auto cut = [&at](int64_t bytes) { return std::exchange(at, at + bytes); };
    KvLayer layer;
    layer.device = devices_->index(stage, rank);
    layer.shape = kv_shape(*a, sizes);
    layer.group = layers.size() < sealing ? 1 : group_of(*a, sizes);
    layer.blocks = sizes.blocks[layer.group];
    layer.k = cut(layer.blocks * layer.shape.k_block_bytes());
    layer.v = cut(layer.blocks * layer.shape.v_block_bytes());
    if (layers.size() < sealing) {
      layer.cold = cold_layer(*a, sizes);
      layer.cold.k = cut(int64_t{layer.cold.blocks} * a->kv_heads * layer.cold.k_unit_bytes);
      layer.cold.v = cut(int64_t{layer.cold.blocks} * a->kv_heads * layer.cold.v_unit_bytes);
    } else {
      BRAID_CHECK(layer.group == 0 || a->window <= sizes.window);
    }
    layers.push_back(layer);
  }
  return {};
}

Status SequenceCache::allocate_slots(int32_t rank, const ModelConfig& config,
                                     const CacheSizes& sizes) {
  std::vector<float*> next;
  const bool has_hidden = rank == 0;
  for (int32_t stage = 0; stage < config.stages; ++stage) {
    const int32_t number = devices_->index(stage, rank);
    Place& own = places_[static_cast<size_t>(number)];
    Device& device = devices_->at(number);
    const CacheSizes part = sizes.of_rank(rank);
    BRAID_ASSIGN(own.slots, device.allocate(part.slot_bytes(config, stage), "state slots"));
    next.push_back(static_cast<float*>(own.slots.data()));
    if (!sizes.of_stage(stage).snapshots) continue;
    has_snapshots_ = true;
    BRAID_ASSIGN(own.snapshot,
                 device.allocate(part.snapshot_bytes(config, stage), "a checkpoint's snapshot"));
  }
  for (const LayerConfig& l : config.layers) {
    if (l.kind != LayerKind::delta) continue;
    const DeltaShape& d = l.delta;
    const int32_t device = devices_->index(l.stage, rank);
    const DeltaRing& ring = sizes.of_stage(l.stage).ring;
    float*& at = next[static_cast<size_t>(l.stage)];
    ranks_[static_cast<size_t>(rank)].delta.push_back(
        {d, ring, sizes.slots, devices_->at(device).state_tile_columns(d), at, device});
    at += sizes.slots * d.slot_elements(ring);
  }
  if (has_hidden && sizes.hidden_cells > 0)
    hidden_ = {config.width, sizes.hidden_cells, sizes.slots, next.back()};
  return {};
}

template <typename Layer, typename Act>
void SequenceCache::for_each_layer(std::vector<Layer> Rank::*layers, const Act& act) const {
  const size_t count = (ranks_[0].*layers).size();  // rank 0 has all
  for (size_t i = 0; i < count; ++i)
    for (const Rank& rank : ranks_)
      if (i < (rank.*layers).size()) act((rank.*layers)[i]);
}

template <typename Act>
void SequenceCache::for_each_part(int32_t slot, const Act& act) const {
  for_each_layer(&Rank::delta, [&](const DeltaLayer& layer) {
    act(layer.slot(slot), layer.slot_elements(), layer.device);
  });
  if (hidden_) act(hidden_.slot(slot), hidden_.slot_elements(), hidden_device());
}

template <typename Act>
void SequenceCache::for_each_part(int32_t group, int32_t block, const Act& act) const {
  for_each_layer(&Rank::kv, [&](const KvLayer& kv) {
    if (kv.group == group) {
      act(kv.k_row(block, 0, 0), static_cast<size_t>(kv.shape.k_block_bytes()), kv.device);
      act(kv.v_row(block, 0, 0), static_cast<size_t>(kv.shape.v_block_bytes()), kv.device);
    } else if (kv.cold) {
      act(kv.k_unit(block, 0), static_cast<size_t>(kv.shape.kv_heads * kv.cold.k_unit_bytes),
          kv.device);
      act(kv.v_unit(block, 0), static_cast<size_t>(kv.shape.kv_heads * kv.cold.v_unit_bytes),
          kv.device);
    }
  });
}

size_t SequenceCache::state_bytes() const {
  size_t bytes = 0;
  for_each_part(0, [&](float*, int64_t count, int32_t) {
    bytes += static_cast<size_t>(count) * sizeof(float);
  });
  return bytes;
}

size_t SequenceCache::block_bytes(int32_t group) const {
  size_t bytes = 0;
  for_each_part(group, 0, [&](const std::byte*, size_t part, int32_t) { bytes += part; });
  return bytes;
}

uint64_t SequenceCache::copy() {
  last_copies_ = devices_->copy_beside(copies_);
  return last_copies_;
}

void SequenceCache::copy_on_device(int32_t device, void* to, const void* from, size_t bytes) {
  ops(device).state_copy(static_cast<float*>(to), static_cast<const float*>(from),
                         static_cast<int64_t>(bytes / sizeof(float)));
}

// A device with its own memory copies there first, as the next step changes slot and blocks. A run
// of parts of one device that are adjacent in the image is sent to the host in one copy.
void SequenceCache::save_resume(int32_t slot, int32_t position, std::span<const BlockImage> blocks,
                                std::byte* image) {
  for_each_layer(&Rank::delta, [&](const DeltaLayer& layer) {
    ops(layer.device).delta_fold(layer, slot, position);
  });
  struct Run {
    std::byte* from = nullptr;
    size_t bytes = 0;
    size_t at_byte = 0;  // of the image
    int32_t device = 0;
  } run;
  boost::container::small_vector<std::byte*, 8> next;  // free part of each device's snapshot
  for (const Place& own : places_) next.push_back(static_cast<std::byte*>(own.snapshot.data()));
  size_t end = 0;
  const auto send = [&] {
    if (run.bytes > 0) add_copy(run.device, {image + run.at_byte, run.from, run.bytes});
    run.bytes = 0;
  };
  const auto save = [&](const void* from, size_t bytes, int32_t device) {
    if (place(device).snapshot.data() == nullptr) {
      send();
      add_copy(device, {image + end, from, bytes});
      end += bytes;
      return;
    }
    std::byte*& to = next[static_cast<size_t>(device)];
    copy_on_device(device, to, from, bytes);
    if (run.bytes == 0 || run.device != device || run.at_byte + run.bytes != end) {
      send();
      run = {to, 0, end, device};
    }
    run.bytes += bytes;
    to += bytes;
    end += bytes;
  };
  if (has_snapshots_) {
    order_after(snapshot_copies_);
    order_after(last_load_);  // may be of this slot
  }
  for_each_part(slot, [&](const float* numbers, int64_t count, int32_t device) {
    save(numbers, static_cast<size_t>(count) * sizeof(float), device);
  });
  for (const BlockImage& b : blocks) {
    end = b.at_byte;
    for_each_part(b.group, b.block, save);
  }
  send();
  for (size_t i = 0; i < places_.size(); ++i) {
    const Buffer& snapshot = places_[i].snapshot;
    BRAID_CHECK(next[i] <= static_cast<std::byte*>(snapshot.data()) + snapshot.size_bytes());
  }
  snapshot_copies_ = copy();
}

void SequenceCache::load_state(int32_t slot, const std::byte* image) {
  for_each_part(slot, [&](float* numbers, int64_t count, int32_t device) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    add_copy(device, {numbers, image, bytes});
    image += bytes;
  });
  last_load_ = copy();
  if (!slot_copies_.empty()) slot_copies_[static_cast<size_t>(slot)] = last_load_;
}

// Combines adjacent blocks: add(cells, offset in the images, bytes of a block, blocks, device).
template <typename Add>
void SequenceCache::for_each_run(int32_t group, std::span<const int32_t> blocks, const Add& add) {
  const size_t image_bytes = block_bytes(group);
  for (size_t first = 0; first < blocks.size();) {
    size_t end = first + 1;
    while (end < blocks.size() && blocks[first] >= 0 && blocks[end] == blocks[end - 1] + 1) ++end;
    size_t at = first * image_bytes;
    if (blocks[first] >= 0) {
      for_each_part(group, blocks[first], [&](std::byte* cells, size_t bytes, int32_t device) {
        add(cells, at, bytes, static_cast<int64_t>(end - first), device);
        at += bytes;
      });
    }
    first = end;
  }
  const uint64_t number = copy();
  for (const int32_t block : blocks)
    if (block >= 0 && !block_copies_[group].empty())
      block_copies_[group][static_cast<size_t>(block)] = number;
}

void SequenceCache::save_blocks(int32_t group, std::span<const int32_t> blocks, std::byte* images) {
  const size_t pitch = block_bytes(group);
  for_each_run(group, blocks,
               [&](const std::byte* cells, size_t at, size_t bytes, int64_t count, int32_t device) {
                 add_copy(device, {images + at, cells, bytes, count, pitch, bytes});
               });
}

void SequenceCache::load_blocks(int32_t group, std::span<const int32_t> blocks,
                                const std::byte* images) {
  const size_t pitch = block_bytes(group);
  for_each_run(group, blocks,
               [&](std::byte* cells, size_t at, size_t bytes, int64_t count, int32_t device) {
                 add_copy(device, {cells, images + at, bytes, count, bytes, pitch});
               });
  last_load_ = last_copies_;
}

void SequenceCache::order_after(uint64_t copies) {
  if (copies <= ordered_after_) return;
  ordered_after_ = copies;
  devices_->order_after_copies(copies);
}

void SequenceCache::claim_block(int32_t group, int32_t block) {
  if (!block_copies_[group].empty()) order_after(block_copies_[group][static_cast<size_t>(block)]);
}

void SequenceCache::claim_slot(int32_t slot) {
  if (!slot_copies_.empty()) order_after(slot_copies_[static_cast<size_t>(slot)]);
}

void SequenceCache::synchronize() {
  devices_->wait_for_copies(last_copies_);
  devices_->synchronize();
}

std::unique_ptr<StateForm> SequenceCache::state_form() const {
  std::vector<DeltaLayer> layers;
  for_each_layer(&Rank::delta, [&](DeltaLayer layer) {
    layer.slots = 1;
    layers.push_back(layer);
  });
  HiddenRing hidden = hidden_;
  hidden.width = width_;
  return std::make_unique<SlotForm>(std::move(layers), hidden);
}

size_t SequenceCache::guess_bytes() const {
  size_t bytes = 0;
  const std::vector<KvLayer>& kv = ranks_[0].kv;
  for (size_t i = trunk_layers_; i < kv.size(); ++i)
    if (kv[i].group == 0)
      bytes += static_cast<size_t>(kv[i].shape.k_block_bytes() + kv[i].shape.v_block_bytes());
  return bytes;
}

void SequenceCache::copy_state(int32_t dst_slot, int32_t src_slot) {
  for_each_part(src_slot, [&](float* from, int64_t count, int32_t device) {
    ops(device).state_copy(from + (int64_t{dst_slot} - src_slot) * count, from, count);
  });
}

// Only partial blocks are copied, so layers that seal have no unit of it yet.
void SequenceCache::copy_block(int32_t group, int32_t dst_block, int32_t src_block) {
  for_each_layer(&Rank::kv, [&](const KvLayer& kv) {
    if (kv.group == group) ops(kv.device).block_copy(kv, dst_block, src_block);
  });
}

void SequenceCache::copy_image(int32_t group, int32_t dst_block, int32_t src_block) {
  // A part's blocks are adjacent and consist of whole f32.
  for_each_part(group, src_block, [&](std::byte* from, size_t bytes, int32_t device) {
    const auto distance = (int64_t{dst_block} - src_block) * static_cast<int64_t>(bytes);
    copy_on_device(device, from + distance, from, bytes);
  });
}

void SequenceCache::move_state(int32_t slot, int32_t from, int32_t to) {
  std::vector<int32_t> folded;
  for_each_layer(&Rank::delta, [&](const DeltaLayer& layer) {
    folded.resize(std::max(folded.size(), static_cast<size_t>(layer.shape.value_heads)), to);
  });
  for_each_layer(&Rank::delta, [&](const DeltaLayer& layer) {
    devices_->at(layer.device)
        .to_device(layer.folded(slot), folded.data(),
                   static_cast<size_t>(layer.shape.value_heads) * sizeof(int32_t));
    for (int32_t taps = 1; taps < layer.shape.conv_width && taps <= from; ++taps)
      ops(layer.device)
          .state_copy(layer.conv_row(slot, to - taps), layer.conv_row(slot, from - taps),
                      layer.shape.channels());
  });
  if (hidden_)
    ops(hidden_device())
        .state_copy(hidden_.row(slot, to - 1), hidden_.row(slot, from - 1), hidden_.width);
  devices_->synchronize();  // before `folded` is destroyed
}

void SequenceCache::seal_blocks(std::span<const KvSeal> blocks) {
  for_each_layer(&Rank::kv, [&](const KvLayer& kv) {
    if (kv.cold) ops(kv.device).kv_seal(kv, blocks);
  });
}

void SequenceCache::clear_blocks(int32_t group, std::span<const int32_t> blocks) {
  const std::vector<std::byte> zeros(block_bytes(group));
  for (const int32_t block : blocks)
    for_each_part(group, block, [&](std::byte* cells, size_t bytes, int32_t device) {
      devices_->at(device).to_device(cells, zeros.data(), bytes);
    });
  devices_->synchronize();  // before the zeros are destroyed
}

void SequenceCache::clear_layers(size_t first_layer, int32_t block) {
  BRAID_CHECK(devices_->traits().host_visible);
  const std::vector<KvLayer>& layers = ranks_[0].kv;
  for (size_t i = first_layer; i < layers.size(); ++i) {
    const KvLayer& kv = layers[i];
    BRAID_CHECK(!kv.cold);
    std::memset(kv.k_row(block, 0, 0), 0, static_cast<size_t>(kv.shape.k_block_bytes()));
    std::memset(kv.v_row(block, 0, 0), 0, static_cast<size_t>(kv.shape.v_block_bytes()));
  }
}

void SequenceCache::clear_hidden(int32_t slot) {
  BRAID_CHECK(devices_->traits().host_visible);
  if (hidden_) std::fill_n(hidden_.slot(slot), hidden_.slot_elements(), 0.0f);
}

// Large but finite in every format: vector loads read hidden cells and weight them with zero.
constexpr std::byte kPoison{0x5b};

void SequenceCache::poison_block(int32_t group, int32_t block) {
  claim_block(group, block);
  const std::vector<std::byte> image(block_bytes(group), kPoison);
  for_each_part(group, block, [&](std::byte* cells, size_t bytes, int32_t device) {
    devices_->at(device).to_device(cells, image.data(), bytes);
  });
  devices_->synchronize();
}

void SequenceCache::poison_slot(int32_t slot) {
  claim_slot(slot);
  const std::vector<std::byte> image(state_bytes(), kPoison);
  for_each_part(slot, [&](float* numbers, int64_t count, int32_t device) {
    devices_->at(device).to_device(numbers, image.data(),
                                   static_cast<size_t>(count) * sizeof(float));
  });
  devices_->synchronize();
}

}  // namespace braid
