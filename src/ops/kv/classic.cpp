// classic.cpp -- the block types of 32 values that GGUF has too: codes and scales along a row.
// Factors of a unit (row_forms.h), per 32 channels: the scales d, then minima m if the type has
// them. Codes of q8_0 are unsigned (value + 128). Rows are those of the block type.
#include <vector>

#include "gguf/block_layouts.h"
#include "ops/kv/formats.h"
#include "ops/kv/row_forms.h"

namespace braid::kv {

namespace {

// A block: d, m, then fifth bits, then 16 or 32 bytes of codes.
template <GgmlType type, int bits, bool has_min>
struct ClassicForm {
  static constexpr GgmlType kType = type;
  static constexpr int kBits = bits;
  static constexpr int32_t kGroup = 32;
  static constexpr int kFactors = has_min ? 2 : 1;
  static constexpr int64_t kHighAt = 2 * kFactors;
  static constexpr int64_t kCodesAt = kHighAt + (bits == 5 ? 4 : 0);
  static constexpr int64_t kBytes = kCodesAt + (bits == 8 ? 32 : 16);

  static uint16_t factor(const uint8_t* b, int plane) { return load_u16(b + 2 * plane); }
  static void put_factor(uint8_t* b, int plane, uint16_t factor) {
    store_u16(b + 2 * plane, factor);
  }
  static uint8_t code(const uint8_t* b, int i) {
    const uint8_t* codes = b + kCodesAt;
    if constexpr (bits == 8) return codes[i] ^ 0x80;
    int code = codes[i % 16] >> (i < 16 ? 0 : 4) & 15;
    if constexpr (bits == 5) code |= (b[kHighAt + i / 8] >> i % 8 & 1) << 4;
    return static_cast<uint8_t>(code);
  }
  static void put_code(uint8_t* b, int i, uint8_t code) {
    uint8_t* codes = b + kCodesAt;
    if constexpr (bits == 8) {
      codes[i] = code ^ 0x80;
      return;
    }
    codes[i % 16] = static_cast<uint8_t>(codes[i % 16] | (code & 15) << (i < 16 ? 0 : 4));
    if constexpr (bits == 5) {
      uint8_t& high = b[kHighAt + i / 8];
      high = static_cast<uint8_t>(high | (code >> 4 & 1) << i % 8);
    }
  }
};

using FormQ8_0 = ClassicForm<GgmlType::Q8_0, 8, false>;
using FormQ5_1 = ClassicForm<GgmlType::Q5_1, 5, true>;
using FormQ5_0 = ClassicForm<GgmlType::Q5_0, 5, false>;
using FormQ4_1 = ClassicForm<GgmlType::Q4_1, 4, true>;
using FormQ4_0 = ClassicForm<GgmlType::Q4_0, 4, false>;

template <typename Form>
void classic_encode(const float* rows, int32_t head_dim, KvSide, uint8_t* unit) {
  const int64_t row_bytes = form_row_bytes<Form>(head_dim);
  std::vector<uint8_t> blocks(static_cast<size_t>(row_bytes) * kBlockTokens);
  for (int32_t t = 0; t < kBlockTokens; ++t) {
    uint8_t* out = blocks.data() + t * row_bytes;
    encode_row(Form::kType, rows + int64_t{t} * head_dim, out, head_dim);
    for (uint8_t* block = out; block < out + row_bytes; block += Form::kBytes) {
      for (int plane = 0; plane < Form::kFactors; ++plane)
        Form::put_factor(block, plane, finite_half(Form::factor(block, plane)));
    }
  }
  unpack_form<Form>(blocks.data(), head_dim, unit);
}

template <typename Form>
void classic_decode(const uint8_t* unit, int32_t head_dim, KvSide, float* rows) {
  const int64_t row_bytes = form_row_bytes<Form>(head_dim);
  std::vector<uint8_t> blocks(static_cast<size_t>(row_bytes) * kBlockTokens);
  pack_form<Form>(unit, head_dim, blocks.data());
  for (int32_t t = 0; t < kBlockTokens; ++t)
    decode_row(Form::kType, blocks.data() + t * row_bytes, rows + int64_t{t} * head_dim, head_dim);
}

template <typename Form>
constexpr KvCodec classic_codec(std::string_view name) {
  KvCodec c = codec_of_form<Form>(name);
  c.encode = classic_encode<Form>;
  c.decode = classic_decode<Form>;
  return c;
}

}  // namespace

const KvCodec kQ8_0 = classic_codec<FormQ8_0>("q8_0");
const KvCodec kQ5_1 = classic_codec<FormQ5_1>("q5_1");
const KvCodec kQ5_0 = classic_codec<FormQ5_0>("q5_0");
const KvCodec kQ4_1 = classic_codec<FormQ4_1>("q4_1");
const KvCodec kQ4_0 = classic_codec<FormQ4_0>("q4_0");

}  // namespace braid::kv
