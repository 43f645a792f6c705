// sequence_cache.h -- the bytes of all sequences on a device (KV pools, state slots), taken at
// start, and their host copies. block_pool.h and state_slots.h track holders, checkpoints.h copies.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/model.h"
#include "ops/devices.h"
#include "ops/kv/kv_codec.h"
#include "ops/ops.h"

namespace braid {

class StateForm;

struct CacheSizes {
  int32_t blocks[kKvGroups] = {};  // per group, of kBlockTokens cells
  int32_t window = 0;              // largest window of group 1; 0: no group 1
  int32_t slots = 0;               // recurrent states
  int32_t hidden_cells = 0;        // hidden rows of a draft head; 0: no head
  // What the devices of a stage choose.
  struct OfStage {
    DeltaRing ring;          // of each slot
    bool snapshots = false;  // checkpoints are copied on the device first
  };
  std::vector<OfStage> stages = std::vector<OfStage>(1);  // one: the same in all
  KvFormat k_format = KvFormat::f16;
  KvFormat v_format = KvFormat::f16;
  // Of sealed blocks (ops/state.h) in the model's own attention layers; null: no sealing. With them
  // group 0 has the units and the drafters' layers, group 1 the exact rows.
  const KvCodec* k_codec = nullptr;
  const KvCodec* v_codec = nullptr;
  KvTail tail;

  bool seals() const { return k_codec != nullptr; }
  const OfStage& of_stage(int32_t stage) const {
    return stages[std::min(stages.size() - 1, static_cast<size_t>(stage))];
  }
  // Rank 0 alone has hidden rows.
  CacheSizes of_rank(int32_t rank) const {
    CacheSizes own = *this;
    if (rank > 0) own.hidden_cells = 0;
    return own;
  }
  // Of the layers that a rank has (Model::config_of), all or those of a stage; of the group.
  static constexpr int32_t kAllStages = ModelConfig::kAllStages;
  uint64_t block_bytes(const ModelConfig& config, int32_t group, int32_t stage = kAllStages) const;
  uint64_t kv_bytes(const ModelConfig& config, int32_t stage = kAllStages) const;
  // Of all slots; 0 for models without slots.
  uint64_t slot_bytes(const ModelConfig& config, int32_t stage = kAllStages) const;
  // Of one sequence that continues, beside its last block: its slot, and exact rows if it seals.
  uint64_t state_bytes(const ModelConfig& config, int32_t stage = kAllStages) const;
  uint64_t exact_bytes(const ModelConfig& config, int32_t stage = kAllStages) const;
  // Of the memory for a checkpoint's copy on the device; 0: none.
  uint64_t snapshot_bytes(const ModelConfig& config, int32_t stage) const {
    return of_stage(stage).snapshots ? state_bytes(config, stage) + block_bytes(config, 0, stage)
                                     : 0;
  }
};

// Byte operations of the bookkeeping. A block's image has all layers of its KV group.
//
// Copies to and from the host (Device::copy_beside) run in order beside the steps: they start after
// queued work, and later work does not wait for them. Therefore:
// - A new holder of a block or slot must claim it; later steps then wait for its queued copies.
// - After a load a sequence waits for copies_done() to reach the load's number, or for
//   order_after().
// - The host may read an image when copies_done() has reached its number.
class CacheBytes {
 public:
  virtual ~CacheBytes() = default;
  virtual size_t state_bytes() const = 0;               // of a slot's image; 0: no slots
  virtual size_t block_bytes(int32_t group) const = 0;  // of a block's image

  // A sequence of `position` tokens, which continues. A block's image is at_byte after the slot's.
  struct BlockImage {
    int32_t group = 0;
    int32_t block = 0;
    size_t at_byte = 0;
  };
  virtual void save_resume(int32_t slot, int32_t position, std::span<const BlockImage> blocks,
                           std::byte* image) = 0;
  virtual void load_state(int32_t slot, const std::byte* image) = 0;
  // Blocks must not be written before they are claimed. Negative blocks are skipped.
  virtual void save_blocks(int32_t group, std::span<const int32_t> blocks, std::byte* images) = 0;
  virtual void load_blocks(int32_t group, std::span<const int32_t> blocks,
                           const std::byte* images) = 0;
  // Numbers of the last queued copy and of the last finished one.
  virtual uint64_t last_copies() const = 0;
  virtual uint64_t copies_done() = 0;
  virtual void order_after(uint64_t copies) = 0;
  virtual void claim_block(int32_t group, int32_t block) = 0;
  virtual void claim_slot(int32_t slot) = 0;

  virtual void copy_state(int32_t dst_slot, int32_t src_slot) = 0;
  virtual void copy_block(int32_t group, int32_t dst_block, int32_t src_block) = 0;
  // From group 1, whose rows are all certain, to units of group 0.
  virtual void seal_blocks(std::span<const KvSeal> blocks) = 0;
  virtual void clear_blocks(int32_t group, std::span<const int32_t> blocks) = 0;
  virtual void synchronize() = 0;
};

class SequenceCache final : public CacheBytes {
 public:
  // `ranks`: what each rank has (Model::config_of), of a model with such devices.
  Status allocate(Devices& devices, std::span<const ModelConfig* const> ranks,
                  const CacheSizes& sizes);
  Status allocate(Devices& devices, const ModelConfig& config, const CacheSizes& sizes) {
    const ModelConfig* const one[] = {&config};
    return allocate(devices, one, sizes);
  }

  std::span<const SequenceMemory> memories() const { return memories_; }  // [ranks]
  // Of rank 0, which has the drafters' layers and hidden rows.
  const SequenceMemory& memory() const { return memories_[0]; }
  uint64_t kv_bytes(int32_t device) const { return place(device).kv.size_bytes(); }
  uint64_t slot_bytes(int32_t device) const {
    return place(device).slots.size_bytes() + place(device).snapshot.size_bytes();
  }

  size_t state_bytes() const override;
  size_t block_bytes(int32_t group) const override;
  void save_resume(int32_t slot, int32_t position, std::span<const BlockImage> blocks,
                   std::byte* image) override;
  void load_state(int32_t slot, const std::byte* image) override;
  void save_blocks(int32_t group, std::span<const int32_t> blocks, std::byte* images) override;
  void load_blocks(int32_t group, std::span<const int32_t> blocks,
                   const std::byte* images) override;
  uint64_t last_copies() const override { return last_copies_; }
  uint64_t copies_done() override { return devices_->copies_done(); }
  void order_after(uint64_t copies) override;
  void claim_block(int32_t group, int32_t block) override;
  void claim_slot(int32_t slot) override;
  void copy_state(int32_t dst_slot, int32_t src_slot) override;
  void copy_block(int32_t group, int32_t dst_block, int32_t src_block) override;
  void seal_blocks(std::span<const KvSeal> blocks) override;
  void clear_blocks(int32_t group, std::span<const int32_t> blocks) override;
  void synchronize() override;

  // The file form of a slot's image. Thread-safe.
  std::unique_ptr<StateForm> state_form() const;
  // The drafters' part, at the end of a block's image.
  size_t guess_bytes() const;

  void copy_image(int32_t group, int32_t dst_block, int32_t src_block);
  // Moves states from position `from`, where all certain rows are folded, to `to`, with their
  // rings.
  void move_state(int32_t slot, int32_t from, int32_t to);
  // Clears the block in layers from `first_layer` on, which must not seal. Host memory only.
  void clear_layers(size_t first_layer, int32_t block);
  void clear_hidden(int32_t slot);

  // Fills unused memory with values that corrupt any sum (tests).
  void poison_block(int32_t group, int32_t block);
  void poison_slot(int32_t slot);

 private:
  // The memory of a device.
  struct Place {
    Buffer kv;
    Buffer slots;
    Buffer snapshot;  // holds a checkpoint until it is copied to the host; may be empty
  };
  struct Rank {
    std::vector<KvLayer> kv;
    std::vector<DeltaLayer> delta;
  };
  const Place& place(int32_t device) const { return places_[static_cast<size_t>(device)]; }
  Status allocate_kv(int32_t rank, const ModelConfig& config, const CacheSizes& sizes);
  Status allocate_slots(int32_t rank, const ModelConfig& config, const CacheSizes& sizes);
  // Calls act(layer) for the layers of all ranks, in the order of an image: layer by layer.
  template <typename Layer, typename Act>
  void for_each_layer(std::vector<Layer> Rank::*layers, const Act& act) const;
  // act(address, bytes, device) in the order of an image.
  template <typename Act>
  void for_each_part(int32_t group, int32_t block, const Act& act) const;
  template <typename Act>
  void for_each_part(int32_t slot, const Act& act) const;
  template <typename Add>
  void for_each_run(int32_t group, std::span<const int32_t> blocks, const Add& add);
  void add_copy(int32_t device, const Device::Copy& copy) {
    copies_[static_cast<size_t>(device)].push_back(copy);
  }
  uint64_t copy();
  Ops& ops(int32_t device) { return devices_->at(device).ops(); }
  void copy_on_device(int32_t device, void* to, const void* from, size_t bytes);
  int32_t hidden_device() const { return devices_->last_index(); }

  Devices* devices_ = nullptr;
  std::vector<Rank> ranks_;
  std::vector<SequenceMemory> memories_;  // [ranks]
  size_t trunk_layers_ = 0;               // with K and V, of the model's own, before the drafters'
  int64_t width_ = 0;                     // of a hidden row
  HiddenRing hidden_;
  std::vector<Place> places_;  // [devices]
  bool has_snapshots_ = false;
  uint64_t snapshot_copies_ = 0;

  std::vector<std::vector<Device::Copy>> copies_;  // [devices], to be queued
  uint64_t last_copies_ = 0;
  uint64_t last_load_ = 0;
  uint64_t ordered_after_ = 0;
  std::vector<uint64_t> block_copies_[kKvGroups];
  std::vector<uint64_t> slot_copies_;
};

}  // namespace braid
