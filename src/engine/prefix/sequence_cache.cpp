// sequence_cache.cpp -- see sequence_cache.h.
#include "engine/prefix/sequence_cache.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

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

uint64_t CacheSizes::block_bytes(const ModelConfig& config, int32_t group) const {
  uint64_t bytes = 0;
  size_t sealing = layers_that_seal(config, *this);
  for (const AttentionConfig* a : config.kv_layers()) {
    const KvShape shape = kv_shape(*a, *this);
    const auto rows = static_cast<uint64_t>(shape.k_block_bytes() + shape.v_block_bytes());
    if (sealing > 0) {
      --sealing;
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

uint64_t CacheSizes::kv_bytes(const ModelConfig& config) const {
  uint64_t bytes = 0;
  for (int32_t group = 0; group < kKvGroups; ++group)
    bytes += product({block_bytes(config, group), static_cast<uint64_t>(blocks[group])});
  return bytes;
}

uint64_t CacheSizes::slot_bytes(const ModelConfig& config) const {
  const uint64_t hidden = product(
      {static_cast<uint64_t>(config.width), sizeof(float), static_cast<uint64_t>(hidden_cells)});
  return product(
      {static_cast<uint64_t>(config.state_bytes(ring)) + hidden, static_cast<uint64_t>(slots)});
}

Status SequenceCache::allocate(Device& device, const ModelConfig& config, const CacheSizes& sizes) {
  device_ = &device;
  BRAID_ASSIGN(kv_memory_, device.allocate(sizes.kv_bytes(config), "KV blocks"));
  BRAID_ASSIGN(slot_memory_, device.allocate(sizes.slot_bytes(config), "state slots"));

  auto* kv = static_cast<std::byte*>(kv_memory_.data());
  const auto cut = [&kv](int64_t bytes) { return std::exchange(kv, kv + bytes); };
  auto* slots = static_cast<float*>(slot_memory_.data());
  const size_t sealing = layers_that_seal(config, sizes);
  trunk_layers_ = attention_layers(config);
  width_ = config.width;
  for (const AttentionConfig* a : config.kv_layers()) {
    KvLayer layer;
    layer.shape = kv_shape(*a, sizes);
    layer.group = kv_.size() < sealing ? 1 : group_of(*a, sizes);
    layer.blocks = sizes.blocks[layer.group];
    layer.k = cut(layer.blocks * layer.shape.k_block_bytes());
    layer.v = cut(layer.blocks * layer.shape.v_block_bytes());
    if (kv_.size() < sealing) {
      layer.cold = cold_layer(*a, sizes);
      layer.cold.k = cut(int64_t{layer.cold.blocks} * a->kv_heads * layer.cold.k_unit_bytes);
      layer.cold.v = cut(int64_t{layer.cold.blocks} * a->kv_heads * layer.cold.v_unit_bytes);
    } else {
      BRAID_CHECK(layer.group == 0 || a->window <= sizes.window);
    }
    kv_.push_back(layer);
  }
  for (const LayerConfig& l : config.layers) {
    if (l.kind != LayerKind::delta) continue;
    const DeltaShape& d = l.delta;
    delta_.push_back({d, sizes.ring, sizes.slots, device.state_tile_columns(d), slots});
    slots += sizes.slots * d.slot_elements(sizes.ring);
  }
  if (sizes.hidden_cells > 0) hidden_ = {config.width, sizes.hidden_cells, sizes.slots, slots};
  if (device.computes_in_host_memory()) return {};
  if (sizes.snapshot_bytes > 0) {
    BRAID_ASSIGN(snapshot_, device.allocate(sizes.snapshot_bytes, "a checkpoint's snapshot"));
  }
  for (int32_t g = 0; g < kKvGroups; ++g)
    block_copies_[g].resize(static_cast<size_t>(sizes.blocks[g]));
  slot_copies_.resize(static_cast<size_t>(sizes.slots));
  return {};
}

template <typename Act>
void SequenceCache::for_each_part(int32_t slot, const Act& act) const {
  for (const DeltaLayer& layer : delta_) act(layer.slot(slot), layer.slot_elements());
  if (hidden_) act(hidden_.slot(slot), hidden_.slot_elements());
}

template <typename Act>
void SequenceCache::for_each_part(int32_t group, int32_t block, const Act& act) const {
  for (const KvLayer& kv : kv_) {
    if (kv.group == group) {
      act(kv.k_row(block, 0, 0), static_cast<size_t>(kv.shape.k_block_bytes()));
      act(kv.v_row(block, 0, 0), static_cast<size_t>(kv.shape.v_block_bytes()));
    } else if (kv.cold) {
      act(kv.k_unit(block, 0), static_cast<size_t>(kv.shape.kv_heads * kv.cold.k_unit_bytes));
      act(kv.v_unit(block, 0), static_cast<size_t>(kv.shape.kv_heads * kv.cold.v_unit_bytes));
    }
  }
}

size_t SequenceCache::state_bytes() const {
  size_t bytes = 0;
  for_each_part(
      0, [&](float*, int64_t count) { bytes += static_cast<size_t>(count) * sizeof(float); });
  return bytes;
}

size_t SequenceCache::block_bytes(int32_t group) const {
  size_t bytes = 0;
  for_each_part(group, 0, [&](const std::byte*, size_t part) { bytes += part; });
  return bytes;
}

uint64_t SequenceCache::copy() {
  last_copies_ = device_->copy_beside(copies_);
  copies_.clear();
  return last_copies_;
}

void SequenceCache::copy_on_device(std::byte* to, const void* from, size_t bytes) {
  device_->ops().state_copy(reinterpret_cast<float*>(to), static_cast<const float*>(from),
                            static_cast<int64_t>(bytes / sizeof(float)));
}

// A device with its own memory copies there first, as the next step changes slot and blocks.
void SequenceCache::save_resume(int32_t slot, int32_t position, std::span<const BlockImage> blocks,
                                std::byte* image) {
  for (const DeltaLayer& layer : delta_) device_->ops().delta_fold(layer, slot, position);
  auto* const snapshot = static_cast<std::byte*>(snapshot_.data());
  size_t end = 0;
  const auto save = [&](const void* from, size_t bytes) {
    if (snapshot == nullptr) {
      copies_.push_back({image + end, from, bytes});
    } else {
      copy_on_device(snapshot + end, from, bytes);
    }
    end += bytes;
  };
  if (snapshot != nullptr) {
    order_after(snapshot_copies_);
    order_after(last_load_);  // may be of this slot
  }
  size_t begin = 0;
  const auto send = [&] {
    if (snapshot != nullptr && end > begin)
      copies_.push_back({image + begin, snapshot + begin, end - begin});
  };
  for_each_part(slot, [&](const float* numbers, int64_t count) {
    save(numbers, static_cast<size_t>(count) * sizeof(float));
  });
  for (const BlockImage& b : blocks) {
    if (b.at_byte != end) {
      send();
      begin = end = b.at_byte;
    }
    for_each_part(b.group, b.block, save);
  }
  send();
  BRAID_CHECK(snapshot == nullptr || end <= snapshot_.size_bytes());
  snapshot_copies_ = copy();
}

void SequenceCache::load_state(int32_t slot, const std::byte* image) {
  for_each_part(slot, [&](float* numbers, int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(float);
    copies_.push_back({numbers, image, bytes});
    image += bytes;
  });
  last_load_ = copy();
  if (!slot_copies_.empty()) slot_copies_[static_cast<size_t>(slot)] = last_load_;
}

// Combines adjacent blocks: add(cells, byte offset in the images, bytes of a block, blocks).
template <typename Add>
void SequenceCache::for_each_run(int32_t group, std::span<const int32_t> blocks, const Add& add) {
  const size_t image_bytes = block_bytes(group);
  for (size_t first = 0; first < blocks.size();) {
    size_t end = first + 1;
    while (end < blocks.size() && blocks[first] >= 0 && blocks[end] == blocks[end - 1] + 1) ++end;
    size_t at = first * image_bytes;
    if (blocks[first] >= 0) {
      for_each_part(group, blocks[first], [&](std::byte* cells, size_t bytes) {
        add(cells, at, bytes, static_cast<int64_t>(end - first));
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
  for_each_run(group, blocks, [&](const std::byte* cells, size_t at, size_t bytes, int64_t count) {
    copies_.push_back({images + at, cells, bytes, count, pitch, bytes});
  });
}

void SequenceCache::load_blocks(int32_t group, std::span<const int32_t> blocks,
                                const std::byte* images) {
  const size_t pitch = block_bytes(group);
  for_each_run(group, blocks, [&](std::byte* cells, size_t at, size_t bytes, int64_t count) {
    copies_.push_back({cells, images + at, bytes, count, bytes, pitch});
  });
  last_load_ = last_copies_;
}

void SequenceCache::order_after(uint64_t copies) {
  if (copies <= ordered_after_) return;
  ordered_after_ = copies;
  device_->order_after_copies(copies);
}

void SequenceCache::claim_block(int32_t group, int32_t block) {
  if (!block_copies_[group].empty()) order_after(block_copies_[group][static_cast<size_t>(block)]);
}

void SequenceCache::claim_slot(int32_t slot) {
  if (!slot_copies_.empty()) order_after(slot_copies_[static_cast<size_t>(slot)]);
}

void SequenceCache::synchronize() {
  device_->wait_for_copies(last_copies_);
  device_->synchronize();
}

std::unique_ptr<StateForm> SequenceCache::state_form() const {
  std::vector<DeltaLayer> layers = delta_;
  for (DeltaLayer& layer : layers) layer.slots = 1;
  HiddenRing hidden = hidden_;
  hidden.width = width_;
  return std::make_unique<SlotForm>(std::move(layers), hidden);
}

size_t SequenceCache::guess_bytes() const {
  size_t bytes = 0;
  for (size_t i = trunk_layers_; i < kv_.size(); ++i)
    if (kv_[i].group == 0)
      bytes += static_cast<size_t>(kv_[i].shape.k_block_bytes() + kv_[i].shape.v_block_bytes());
  return bytes;
}

void SequenceCache::copy_state(int32_t dst_slot, int32_t src_slot) {
  for_each_part(src_slot, [&](float* from, int64_t count) {
    device_->ops().state_copy(from + (int64_t{dst_slot} - src_slot) * count, from, count);
  });
}

// Only partial blocks are copied, so layers that seal have no unit of it yet.
void SequenceCache::copy_block(int32_t group, int32_t dst_block, int32_t src_block) {
  for (const KvLayer& kv : kv_)
    if (kv.group == group) device_->ops().block_copy(kv, dst_block, src_block);
}

void SequenceCache::copy_image(int32_t group, int32_t dst_block, int32_t src_block) {
  // A part's blocks are adjacent and consist of whole f32.
  for_each_part(group, src_block, [&](std::byte* from, size_t bytes) {
    const auto distance = (int64_t{dst_block} - src_block) * static_cast<int64_t>(bytes);
    device_->ops().state_copy(reinterpret_cast<float*>(from + distance),
                              reinterpret_cast<float*>(from),
                              static_cast<int64_t>(bytes / sizeof(float)));
  });
}

void SequenceCache::move_state(int32_t slot, int32_t from, int32_t to) {
  Ops& ops = device_->ops();
  std::vector<int32_t> folded;
  for (const DeltaLayer& layer : delta_)
    folded.resize(std::max(folded.size(), static_cast<size_t>(layer.shape.value_heads)), to);
  for (const DeltaLayer& layer : delta_) {
    device_->to_device(layer.folded(slot), folded.data(),
                       static_cast<size_t>(layer.shape.value_heads) * sizeof(int32_t));
    for (int32_t taps = 1; taps < layer.shape.conv_width && taps <= from; ++taps)
      ops.state_copy(layer.conv_row(slot, to - taps), layer.conv_row(slot, from - taps),
                     layer.shape.channels());
  }
  if (hidden_)
    ops.state_copy(hidden_.row(slot, to - 1), hidden_.row(slot, from - 1), hidden_.width);
  device_->synchronize();  // before `folded` is destroyed
}

void SequenceCache::seal_blocks(std::span<const KvSeal> blocks) {
  for (const KvLayer& kv : kv_)
    if (kv.cold) device_->ops().kv_seal(kv, blocks);
}

void SequenceCache::clear_blocks(int32_t group, std::span<const int32_t> blocks) {
  const std::vector<std::byte> zeros(block_bytes(group));
  for (const int32_t block : blocks)
    for_each_part(group, block, [&](std::byte* cells, size_t bytes) {
      device_->to_device(cells, zeros.data(), bytes);
    });
  device_->synchronize();  // before the zeros are destroyed
}

void SequenceCache::clear_layers(size_t first_layer, int32_t block) {
  BRAID_CHECK(device_->computes_in_host_memory());
  for (size_t i = first_layer; i < kv_.size(); ++i) {
    const KvLayer& kv = kv_[i];
    BRAID_CHECK(!kv.cold);
    std::memset(kv.k_row(block, 0, 0), 0, static_cast<size_t>(kv.shape.k_block_bytes()));
    std::memset(kv.v_row(block, 0, 0), 0, static_cast<size_t>(kv.shape.v_block_bytes()));
  }
}

void SequenceCache::clear_hidden(int32_t slot) {
  BRAID_CHECK(device_->computes_in_host_memory());
  if (hidden_) std::fill_n(hidden_.slot(slot), hidden_.slot_elements(), 0.0f);
}

// Large but finite in every format: vector loads read hidden cells and weight them with zero.
constexpr std::byte kPoison{0x5b};

void SequenceCache::poison_block(int32_t group, int32_t block) {
  claim_block(group, block);
  const std::vector<std::byte> image(block_bytes(group), kPoison);
  for_each_part(group, block, [&](std::byte* cells, size_t bytes) {
    device_->to_device(cells, image.data(), bytes);
  });
  device_->synchronize();
}

void SequenceCache::poison_slot(int32_t slot) {
  claim_slot(slot);
  const std::vector<std::byte> image(state_bytes(), kPoison);
  for_each_part(slot, [&](float* numbers, int64_t count) {
    device_->to_device(numbers, image.data(), static_cast<size_t>(count) * sizeof(float));
  });
  device_->synchronize();
}

}  // namespace braid
