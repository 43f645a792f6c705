// slot_form.h -- the file form of a slot (state_form.h); all f32. For each delta layer:
//   states [state_elements], decay [value_heads]
//   the last convolution inputs, at most conv_width - 1, oldest first [.., channels]
//   of layers that wait for a fold, pending keys [.., key_width], deltas [.., value_width],
//   gates [.., value_heads], oldest first
// Then the hidden row of the last token [width], if any.
#pragma once

#include "engine/prefix/state_form.h"
#include "ops/state.h"

namespace braid {

class SlotForm final : public StateForm {
 public:
  // Layers and ring of an image with one slot; their memory is not read.
  SlotForm(std::vector<DeltaLayer> layers, const HiddenRing& hidden);

  size_t image_bytes() const override { return image_bytes_; }
  std::optional<Shape> shape_of(std::span<const std::byte> image, int32_t position) const override;
  std::optional<uint64_t> file_bytes(const Shape& shape) const override;
  std::vector<std::span<std::byte>> parts(std::span<std::byte> image, const Shape& shape,
                                          std::vector<float>& more) const override;
  void complete(std::span<std::byte> image, const Shape& shape,
                std::span<const float> more) const override;

 private:
  template <typename Act>
  void for_each_layer(std::span<const std::byte> image, const Act& act) const;
  // Beside layers whose entries wait for a fold (on a GPU), one without (on the CPU).
  bool folds_at_once(const DeltaLayer& layer) const { return some_wait_ && layer.ring.every == 0; }
  int32_t pending_of(const DeltaLayer& layer, const Shape& shape) const;
  int32_t folded_more(const DeltaLayer& layer, const Shape& shape) const;
  std::span<std::byte> hidden_row(std::span<std::byte> image, int32_t position) const;

  std::vector<DeltaLayer> layers_;
  HiddenRing hidden_;
  size_t image_bytes_ = 0;
  bool some_wait_ = false;
};

}  // namespace braid
