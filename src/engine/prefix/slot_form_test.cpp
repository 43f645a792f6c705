// slot_form_test.cpp -- slots survive the file form with any ring sizes on both sides.
#include "engine/prefix/slot_form.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

namespace braid {
namespace {

constexpr int64_t kWidth = 20;

DeltaShape shape() { return {2, 4, 16, 8, 4, true}; }

struct Image {
  Image(const DeltaRing& ring, int32_t columns, int32_t hidden_cells) {
    for (int i = 0; i < 2; ++i) layers.push_back({shape(), ring, 1, columns, nullptr});
    hidden.width = kWidth;
    hidden.cells = hidden_cells;
    hidden.slots = 1;
    size_t floats = static_cast<size_t>(2 * layers[0].slot_elements());
    if (hidden_cells > 0) hidden.data = reinterpret_cast<float*>(1);  // present
    floats += static_cast<size_t>(hidden_cells * kWidth);
    numbers.assign(floats, 777);
    for (size_t i = 0; i < 2; ++i)
      layers[i].data = numbers.data() + static_cast<int64_t>(i) * layers[0].slot_elements();
    if (hidden_cells > 0) hidden.data = numbers.data() + 2 * layers[0].slot_elements();
  }
  SlotForm form() const { return SlotForm(layers, hidden); }
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(numbers)); }

  std::vector<DeltaLayer> layers;
  HiddenRing hidden;
  std::vector<float> numbers;
};

void fill(Image& image, int32_t position, int32_t pending) {
  for (const DeltaLayer& layer : image.layers) {
    std::mt19937 random(5);
    const auto any = [&] {
      return static_cast<float>(static_cast<int>(random() % 2000) - 1000) / 1000;
    };
    for (int32_t h = 0; h < layer.shape.value_heads; ++h) {
      for (int32_t k = 0; k < layer.shape.key_dim; ++k)
        for (int32_t v = 0; v < layer.shape.value_dim; ++v)
          layer.state(0,
                      h)[(v / layer.tile_columns * layer.shape.key_dim + k) * layer.tile_columns +
                         v % layer.tile_columns] = any();
      layer.decay(0)[h] = 0.5f;
      layer.folded(0)[h] = position - pending;
    }
    for (int64_t cell = position - layer.shape.conv_width + 1; cell < position; ++cell)
      for (int64_t c = 0; cell >= 0 && c < layer.shape.channels(); ++c)
        layer.conv_row(0, cell)[c] = static_cast<float>(cell * 1000 + c);
    for (int64_t cell = position - pending; cell < position; ++cell) {
      std::mt19937 of_cell(static_cast<uint32_t>(cell));
      const auto number = [&] {
        return static_cast<float>(static_cast<int>(of_cell() % 2000) - 1000) / 1000;
      };
      for (int64_t i = 0; i < layer.shape.key_width(); ++i) layer.key(0, cell, 0)[i] = number();
      for (int64_t i = 0; i < layer.shape.value_width(); ++i) layer.delta(0, cell, 0)[i] = number();
      for (int32_t h = 0; h < layer.shape.value_heads; ++h)
        layer.gate(0, cell)[h] = -std::abs(number());
    }
  }
  for (int64_t i = 0; image.hidden && i < kWidth; ++i)
    image.hidden.row(0, position - 1)[i] = static_cast<float>(position * 100 + i);
}

double state_at(const DeltaLayer& layer, int32_t head, int32_t key, int32_t value,
                int32_t position) {
  double s = layer.at(0, head, key, value);
  for (int32_t cell = layer.folded(0)[head]; cell < position; ++cell)
    s = std::exp(double{layer.gate(0, cell)[head]}) * s +
        double{layer.key(0, cell, layer.shape.key_head(head))[key]} *
            double{layer.delta(0, cell, head)[value]};
  return s;
}

std::vector<std::byte> file_of(Image& image, int32_t position) {
  const SlotForm form = image.form();
  const auto shape = form.shape_of(image.bytes(), position);
  EXPECT_TRUE(shape);
  std::vector<float> more;
  std::vector<std::byte> out;
  for (const auto part : form.parts(image.bytes(), *shape, more))
    out.insert(out.end(), part.begin(), part.end());
  EXPECT_TRUE(more.empty());
  EXPECT_EQ(form.file_bytes(*shape), out.size());
  return out;
}

void read(Image& image, const StateForm::Shape& shape, const std::vector<std::byte>& file) {
  const SlotForm form = image.form();
  ASSERT_EQ(form.file_bytes(shape), file.size());
  std::vector<float> more;
  size_t at = 0;
  for (const auto part : form.parts(image.bytes(), shape, more)) {
    ASSERT_LE(at + part.size(), file.size());
    std::memcpy(part.data(), file.data() + at, part.size());
    at += part.size();
  }
  ASSERT_EQ(at, file.size());
  form.complete(image.bytes(), shape, more);
}

TEST(SlotForm, ASlotIsReadIntoAnyRing) {
  const DeltaRing rings[] = {{16, 0, 0}, {16, 3, 3}, {16, 8, 8}, {16, 12, 30}};
  for (const DeltaRing& from : rings)
    for (const DeltaRing& to : rings)
      for (const int32_t columns : {1, 8})
        for (const int32_t position : {1, 2, 9, 40, 1000})
          for (int32_t pending = 0; pending <= std::min(position, from.every + 2 * from.lag);
               ++pending) {
            const bool from_head = from.lag > 0, to_head = to.lag != 8;
            Image a(from, columns, from_head ? from.uncertain + 1 : 0);
            Image b(to, columns, to_head ? to.uncertain + 1 : 0);
            fill(a, position, pending);
            const StateForm::Shape shape{position, pending, from_head};
            read(b, shape, file_of(a, position));
            const auto got = b.form().shape_of(b.bytes(), position);
            ASSERT_TRUE(got);
            ASSERT_EQ(got->pending, std::min(pending, to.every + 2 * to.lag));
            for (size_t l = 0; l < 2; ++l) {
              for (int32_t h = 0; h < 4; ++h)
                for (int32_t k = 0; k < 16; k += 5)
                  for (int32_t v = 0; v < 8; v += 3)
                    ASSERT_NEAR(state_at(b.layers[l], h, k, v, position),
                                state_at(a.layers[l], h, k, v, position),
                                pending <= to.every + 2 * to.lag ? 1e-12 : 1e-5);
              for (int32_t cell = std::max(0, position - 3); cell < position; ++cell)
                ASSERT_EQ(b.layers[l].conv_row(0, cell)[7], a.layers[l].conv_row(0, cell)[7]);
            }
            if (to_head) {
              ASSERT_EQ(b.hidden.row(0, position - 1)[3],
                        from_head ? a.hidden.row(0, position - 1)[3] : 0.0f);
            }
          }
}

TEST(SlotForm, TheSameOptionsBringTheSameBytes) {
  const DeltaRing ring{16, 8, 8};
  Image a(ring, 1, 9), b(ring, 1, 9);
  fill(a, 100, 30);
  const std::vector<std::byte> file = file_of(a, 100);
  read(b, {100, 30, true}, file);
  EXPECT_EQ(file_of(b, 100), file);
}

TEST(SlotForm, WhatIsNoSlotIsRefused) {
  const DeltaRing ring{16, 8, 8};
  Image image(ring, 1, 0);
  fill(image, 100, 30);
  const SlotForm form = image.form();
  EXPECT_FALSE(form.shape_of(image.bytes(), 70 + 42));  // more than the ring has
  EXPECT_FALSE(form.shape_of(image.bytes(), 69));
  EXPECT_FALSE(form.shape_of(image.bytes(), 0));
  EXPECT_FALSE(form.shape_of(image.bytes(), 200));
  image.layers[1].folded(0)[3] = 71;
  EXPECT_FALSE(form.shape_of(image.bytes(), 100));
  image.layers[1].folded(0)[3] = INT32_MIN;
  EXPECT_FALSE(form.shape_of(image.bytes(), 100));
  for (const StateForm::Shape& s :
       {StateForm::Shape{0, 0}, {5, 6}, {5, -1}, {INT32_MAX, 1025}, {-3, 0}})
    EXPECT_FALSE(form.file_bytes(s));
}

}  // namespace
}  // namespace braid
