// cache.cpp -- see cache.h. Each kind of memory is one stretch, cut into layers.
#include "engine/cache.h"

#include <algorithm>
#include <initializer_list>

#include "base/checked.h"

namespace braid {
namespace {

KvShape kv_shape(const ModelConfig& config, const CacheSizes& sizes) {
  return {config.kv_heads, config.head_dim, sizes.k_format, sizes.v_format};
}

// Sizes of a hostile file times a large option may not fit 64 bits: then far more than any memory.
uint64_t product(std::initializer_list<uint64_t> factors) {
  constexpr uint64_t kTooMuch = UINT64_MAX / 16;
  uint64_t out = 1;
  for (const uint64_t f : factors) out = checked_mul(out, f).value_or(kTooMuch);
  return std::min(out, kTooMuch);
}

}  // namespace

uint64_t CacheSizes::kv_bytes(const ModelConfig& config) const {
  const KvShape shape = kv_shape(config, *this);
  const auto block_bytes = static_cast<uint64_t>(shape.k_block_bytes() + shape.v_block_bytes());
  return block_bytes * static_cast<uint64_t>(blocks) *
         static_cast<uint64_t>(config.count(LayerKind::attention));
}

uint64_t CacheSizes::slot_bytes(const ModelConfig& config) const {
  return product({static_cast<uint64_t>(config.state_bytes()), static_cast<uint64_t>(slots)});
}

uint64_t CacheSizes::journal_bytes(const ModelConfig& config) const {
  return product({static_cast<uint64_t>(DeltaJournal::elements_per_row(config.delta)), sizeof(float),
                  static_cast<uint64_t>(journal_rows),
                  static_cast<uint64_t>(config.count(LayerKind::delta))});
}

Status SequenceCache::allocate(Device& device, const ModelConfig& config, const CacheSizes& sizes) {
  BRAID_ASSIGN(kv_memory_, device.allocate(sizes.kv_bytes(config), "KV blocks"));
  BRAID_ASSIGN(slot_memory_, device.allocate(sizes.slot_bytes(config), "state slots"));
  if (sizes.journal_rows > 0) {
    BRAID_ASSIGN(journal_memory_, device.allocate(sizes.journal_bytes(config), "journals"));
  }

  const KvShape shape = kv_shape(config, sizes);
  auto* kv = static_cast<std::byte*>(kv_memory_.data());
  for (int32_t i = 0; i < config.count(LayerKind::attention); ++i) {
    KvLayer layer{shape, sizes.blocks, kv, kv + sizes.blocks * shape.k_block_bytes()};
    kv += sizes.blocks * (shape.k_block_bytes() + shape.v_block_bytes());
    kv_.push_back(layer);
  }
  const DeltaShape& d = config.delta;
  auto* slots = static_cast<float*>(slot_memory_.data());
  auto* journal = static_cast<float*>(journal_memory_.data());
  for (int32_t i = 0; i < config.count(LayerKind::delta); ++i) {
    delta_.push_back({d, sizes.slots, device.state_tile_columns(d), slots});
    slots += sizes.slots * d.slot_elements();
    if (sizes.journal_rows == 0) continue;
    DeltaJournal j;
    j.rows = sizes.journal_rows;
    j.k = journal;
    j.d = j.k + j.rows * d.key_width();
    j.g = j.d + j.rows * d.value_width();
    j.conv_in = j.g + j.rows * d.value_heads;
    journal = j.conv_in + j.rows * d.channels();
    journals_.push_back(j);
  }
  return {};
}

}  // namespace braid
