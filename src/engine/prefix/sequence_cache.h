// sequence_cache.h -- the bytes of all sequences on a device, KV pools and state slots, and their copies in
// host memory.
//
// Taken once at start. Who holds which block or slot is bookkeeping of block_pool.h and state_slots.h; which
// copies are worth keeping, of checkpoints.h.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/model.h"
#include "ops/device.h"
#include "ops/kv/kv_codec.h"
#include "ops/ops.h"

namespace braid {

class StateForm;

struct CacheSizes {
  int32_t blocks[kKvGroups] = {};  // of kBlockTokens cells, in every attention layer of a group
  int32_t window = 0;              // > 0: layers with windows, none larger, are group 1; 0: all are group 0
  int32_t slots = 0;               // recurrent states
  DeltaRing ring;                  // what each of them remembers beside the state
  int32_t hidden_cells = 0;        // and hidden rows, for a head that drafts; 0: there is none
  uint64_t snapshot_bytes = 0;     // of a checkpoint, beside a device with its own memory; 0: there are none
  KvFormat k_format = KvFormat::f16;
  KvFormat v_format = KvFormat::f16;
  // Of sealed blocks (ops/state.h), in all attention layers of the model itself; null: there are none. Then
  // group 0 has the units, and what the layers of drafters keep; group 1 the rows that are read exact.
  const KvCodec* k_codec = nullptr;
  const KvCodec* v_codec = nullptr;
  KvTail tail;

  bool seals() const { return k_codec != nullptr; }
  // Of one block over all layers of the group.
  uint64_t block_bytes(const ModelConfig& config, int32_t group) const;
  uint64_t kv_bytes(const ModelConfig& config) const;
  // Of all slots; 0 where a sequence is nothing but its blocks.
  uint64_t slot_bytes(const ModelConfig& config) const;
};

// What the bookkeeping needs done to the bytes. Blocks are those of a KV group (ops/state.h): their images have
// all its layers. The bookkeeping is tested with one that only remembers what was copied where.
//
// Copies on the device are queued behind the steps before them and ahead of those after them. Copies to and from
// the host run beside the steps, one after the other (Device::copy_beside): they begin behind what is queued
// already, and what is queued later does not wait for them. So
//   whoever is given a block or a slot claims it: steps then wait for the copies that others have of it queued;
//   whoever has something loaded takes no part in steps until copies_done() has come to the load's number, or
//   order_after() makes steps wait for it;
//   an image may be read by the host when copies_done() has come to its number.
class CacheBytes {
 public:
  virtual ~CacheBytes() = default;
  virtual size_t state_bytes() const = 0;               // of the image of one slot; 0: there are none
  virtual size_t block_bytes(int32_t group) const = 0;  // of the image of one block

  // A slot and blocks of a sequence of `position` tokens as they are now, though it goes on writing them: the slot's
  // image at `image`, and a block's so many bytes behind.
  struct BlockImage {
    int32_t group = 0;
    int32_t block = 0;
    size_t at_byte = 0;
  };
  virtual void save_resume(int32_t slot, int32_t position, std::span<const BlockImage> blocks,
                           std::byte* image) = 0;
  virtual void load_state(int32_t slot, const std::byte* image) = 0;
  // Blocks that nobody writes before they are claimed; their images follow each other. Below 0: left out.
  virtual void save_blocks(int32_t group, std::span<const int32_t> blocks, std::byte* images) = 0;
  virtual void load_blocks(int32_t group, std::span<const int32_t> blocks, const std::byte* images) = 0;
  // The number of the copies that were queued last, and of the last of those that are done.
  virtual uint64_t last_copies() const = 0;
  virtual uint64_t copies_done() = 0;
  virtual void order_after(uint64_t copies) = 0;
  virtual void claim_block(int32_t group, int32_t block) = 0;
  virtual void claim_slot(int32_t slot) = 0;

  virtual void copy_state(int32_t dst_slot, int32_t src_slot) = 0;
  virtual void copy_block(int32_t group, int32_t dst_block, int32_t src_block) = 0;
  // Blocks of group 1, whose rows are all certain, to units of group 0.
  virtual void seal_blocks(std::span<const KvSeal> blocks) = 0;
  // Zeros in all their cells.
  virtual void clear_blocks(int32_t group, std::span<const int32_t> blocks) = 0;
  // Waits for all that was queued.
  virtual void synchronize() = 0;
};

class SequenceCache final : public CacheBytes {
 public:
  // Errors: exhausted.
  Status allocate(Device& device, const ModelConfig& config, const CacheSizes& sizes);

  SequenceMemory memory() { return {kv_, delta_, hidden_}; }
  uint64_t kv_bytes() const { return kv_memory_.size_bytes(); }
  // Of slots and the snapshot.
  uint64_t slot_bytes() const { return slot_memory_.size_bytes() + snapshot_.size_bytes(); }

  size_t state_bytes() const override;
  size_t block_bytes(int32_t group) const override;
  void save_resume(int32_t slot, int32_t position, std::span<const BlockImage> blocks,
                   std::byte* image) override;
  void load_state(int32_t slot, const std::byte* image) override;
  void save_blocks(int32_t group, std::span<const int32_t> blocks, std::byte* images) override;
  void load_blocks(int32_t group, std::span<const int32_t> blocks, const std::byte* images) override;
  uint64_t last_copies() const override { return last_copies_; }
  uint64_t copies_done() override { return device_->copies_done(); }
  void order_after(uint64_t copies) override;
  void claim_block(int32_t group, int32_t block) override;
  void claim_slot(int32_t slot) override;
  void copy_state(int32_t dst_slot, int32_t src_slot) override;
  void copy_block(int32_t group, int32_t dst_block, int32_t src_block) override;
  void seal_blocks(std::span<const KvSeal> blocks) override;
  void clear_blocks(int32_t group, std::span<const int32_t> blocks) override;
  void synchronize() override;

  // What is in a file of a slot's image (disk/state_form.h). Thread-safe.
  std::unique_ptr<StateForm> state_form() const;
  // Of a block's image, at its end: what drafters keep.
  size_t guess_bytes() const;

  // The whole image of a block, units too.
  void copy_image(int32_t group, int32_t dst_block, int32_t src_block);
  // A slot's states before position `from`, where all certain rows are folded, become those before `to`. Its
  // rings get rows of the positions before `from` where those before `to` are looked for.
  void move_state(int32_t slot, int32_t from, int32_t to);
  // Zeros in the block's cells of the layers from `first_layer` on, which seal nothing, in host memory.
  void clear_layers(size_t first_layer, int32_t block);
  // In the slot's hidden rows.
  void clear_hidden(int32_t slot);

  // Fills a block or slot that nobody may read with values that spoil any sum they enter (tests).
  void poison_block(int32_t group, int32_t block);
  void poison_slot(int32_t slot);

 private:
  template <typename Act>
  void for_each_part(int32_t group, int32_t block, const Act& act) const;
  template <typename Act>
  void for_each_part(int32_t slot, const Act& act) const;
  template <typename Add>
  void for_each_run(int32_t group, std::span<const int32_t> blocks, const Add& add);
  uint64_t copy();
  void copy_on_device(std::byte* to, const void* from, size_t bytes);

  Device* device_ = nullptr;
  std::vector<KvLayer> kv_;
  size_t trunk_layers_ = 0;  // of kv_: those of the model itself come first
  std::vector<DeltaLayer> delta_;
  int64_t width_ = 0;  // of a hidden row
  HiddenRing hidden_;
  Buffer kv_memory_;
  Buffer slot_memory_;
  // Where a checkpoint waits for its copy to the host, where that is not done at once.
  Buffer snapshot_;
  uint64_t snapshot_copies_ = 0;

  std::vector<Device::Copy> copies_;  // to be queued
  uint64_t last_copies_ = 0;
  uint64_t last_load_ = 0;
  uint64_t ordered_after_ = 0;
  // The last copies of a block or slot.
  std::vector<uint64_t> block_copies_[kKvGroups];
  std::vector<uint64_t> slot_copies_;
};

}  // namespace braid
