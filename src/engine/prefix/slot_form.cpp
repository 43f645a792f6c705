// slot_form.cpp -- see slot_form.h.
#include "engine/prefix/slot_form.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace braid {
namespace {

constexpr int32_t kMostPending = 1024;  // far above any option

std::span<std::byte> bytes_of(float* numbers, int64_t count) {
  return std::as_writable_bytes(std::span(numbers, static_cast<size_t>(count)));
}

void add_rows(std::vector<std::span<std::byte>>& parts, float* ring, int64_t rows, int64_t width,
              int64_t first, int64_t end) {
  while (first < end) {
    const int64_t at = first % rows, count = std::min(end - first, rows - at);
    parts.push_back(bytes_of(ring + at * width, count * width));
    first += count;
  }
}

int32_t conv_rows_of(const DeltaShape& shape, int32_t position) {
  return std::min(shape.conv_width - 1, position);
}

int32_t room_of(const DeltaRing& ring) {
  return ring.entries() - ring.uncertain - (ring.every == 0 ? 0 : 1);
}

// S = e^g S + k d^T.
void fold_entry(const DeltaLayer& layer, int32_t head, const float* key, const float* delta,
                float gate) {
  const DeltaShape& shape = layer.shape;
  const float forget = std::exp(gate), scale = 1 / layer.decay(0)[head];
  float* state = layer.state(0, head);
  for (int64_t tile = 0; tile < shape.value_dim / layer.tile_columns; ++tile)
    for (int64_t k = 0; k < shape.key_dim; ++k)
      for (int64_t c = 0; c < layer.tile_columns; ++c, ++state)
        *state = forget * *state + key[k] * delta[tile * layer.tile_columns + c] * scale;
}

}  // namespace

SlotForm::SlotForm(std::vector<DeltaLayer> layers, const HiddenRing& hidden)
    : layers_(std::move(layers)), hidden_(hidden) {
  for (const DeltaLayer& layer : layers_)
    image_bytes_ += static_cast<size_t>(layer.slot_elements()) * sizeof(float);
  some_wait_ = std::any_of(layers_.begin(), layers_.end(),
                           [](const DeltaLayer& layer) { return layer.ring.every > 0; });
  if (hidden_) image_bytes_ += static_cast<size_t>(hidden_.slot_elements()) * sizeof(float);
}

template <typename Act>
void SlotForm::for_each_layer(std::span<const std::byte> image, const Act& act) const {
  BRAID_CHECK(image.size() >= image_bytes_);
  auto* numbers = reinterpret_cast<float*>(const_cast<std::byte*>(image.data()));
  for (DeltaLayer layer : layers_) {
    layer.data = numbers;
    numbers += layer.slot_elements();
    act(layer);
  }
}

std::span<std::byte> SlotForm::hidden_row(std::span<std::byte> image, int32_t position) const {
  HiddenRing ring = hidden_;
  const size_t bytes = static_cast<size_t>(ring.slot_elements()) * sizeof(float);
  ring.data = reinterpret_cast<float*>(image.data() + image_bytes_ - bytes);
  ring.slots = 1;
  return bytes_of(ring.row(0, position - 1), ring.width);
}

std::optional<StateForm::Shape> SlotForm::shape_of(std::span<const std::byte> image,
                                                   int32_t position) const {
  Shape shape{position, 0, static_cast<bool>(hidden_)};
  bool sound = position > 0;
  bool first = true;
  for_each_layer(image, [&](const DeltaLayer& layer) {
    const int32_t* folded = layer.folded(0);
    const int64_t pending = int64_t{position} - folded[0];
    const bool always_folded = folds_at_once(layer);
    sound = sound && pending >= 0 && pending <= std::min(position, layer.ring.entries()) &&
            (always_folded ? pending == 0 : first || pending == shape.pending) &&
            std::all_of(folded, folded + layer.shape.value_heads,
                        [&](int32_t f) { return f == folded[0]; });
    if (always_folded) return;
    if (sound) shape.pending = static_cast<int32_t>(pending);
    first = false;
  });
  return sound ? std::optional(shape) : std::nullopt;
}

std::optional<uint64_t> SlotForm::file_bytes(const Shape& shape) const {
  if (shape.position <= 0 || shape.pending < 0 ||
      shape.pending > std::min(shape.position, kMostPending))
    return std::nullopt;
  if (layers_.empty() && shape.pending > 0) return std::nullopt;
  int64_t elements = 0;
  for (const DeltaLayer& layer : layers_)
    elements += layer.shape.state_elements() + layer.shape.value_heads +
                conv_rows_of(layer.shape, shape.position) * layer.shape.channels() +
                pending_of(layer, shape) * layer.shape.entry_elements();
  if (shape.has_row) elements += hidden_.width;
  return static_cast<uint64_t>(elements) * sizeof(float);
}

int32_t SlotForm::pending_of(const DeltaLayer& layer, const Shape& shape) const {
  return folds_at_once(layer) ? 0 : shape.pending;
}

// Pending entries without room in the image: the oldest.
int32_t SlotForm::folded_more(const DeltaLayer& layer, const Shape& shape) const {
  return std::max(0, pending_of(layer, shape) - room_of(layer.ring));
}

std::vector<std::span<std::byte>> SlotForm::parts(std::span<std::byte> image, const Shape& shape,
                                                  std::vector<float>& more) const {
  size_t needed = shape.has_row && !hidden_ ? static_cast<size_t>(hidden_.width) : 0;
  for (const DeltaLayer& layer : layers_)
    needed += static_cast<size_t>(folded_more(layer, shape) * layer.shape.entry_elements());
  more.assign(needed, 0);
  float* next = more.data();
  std::vector<std::span<std::byte>> out;
  const int64_t end = shape.position;
  for_each_layer(image, [&](const DeltaLayer& layer) {
    const DeltaShape& s = layer.shape;
    out.push_back(bytes_of(layer.slot(0), s.state_elements()));
    out.push_back(bytes_of(layer.decay(0), s.value_heads));
    add_rows(out, layer.conv(0), s.conv_rows(layer.ring), s.channels(),
             end - conv_rows_of(s, shape.position), end);
    const int64_t left_out = folded_more(layer, shape), pending = pending_of(layer, shape);
    const auto entries = [&](float* ring, int64_t width) {
      if (left_out > 0)
        out.push_back(bytes_of(std::exchange(next, next + left_out * width), left_out * width));
      if (pending > left_out)
        add_rows(out, ring, layer.ring.entries(), width, end - pending + left_out, end);
    };
    entries(layer.keys(0), s.key_width());
    entries(layer.deltas(0), s.value_width());
    entries(layer.gates(0), s.value_heads);
  });
  if (shape.has_row)
    out.push_back(hidden_ ? hidden_row(image, shape.position) : bytes_of(next, hidden_.width));
  return out;
}

void SlotForm::complete(std::span<std::byte> image, const Shape& shape,
                        std::span<const float> more) const {
  const float* next = more.data();
  for_each_layer(image, [&](const DeltaLayer& layer) {
    const DeltaShape& s = layer.shape;
    const int32_t count = folded_more(layer, shape);
    const float* keys = next;
    const float* deltas = keys + count * s.key_width();
    const float* gates = deltas + count * s.value_width();
    next = gates + count * int64_t{s.value_heads};
    for (int32_t head = 0; head < s.value_heads; ++head) {
      for (int64_t i = 0; i < count; ++i)
        fold_entry(layer, head, keys + i * s.key_width() + int64_t{s.key_head(head)} * s.key_dim,
                   deltas + i * s.value_width() + int64_t{head} * s.value_dim,
                   gates[i * s.value_heads + head]);
      layer.folded(0)[head] = shape.position - pending_of(layer, shape) + count;
    }
  });
  if (hidden_ && !shape.has_row) std::ranges::fill(hidden_row(image, shape.position), std::byte{0});
}

}  // namespace braid
