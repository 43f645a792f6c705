// row_forms.h -- formats with scales per group of a row: units and rows of blocks.
//
// A unit has codes (code_planes.h), then kFactors planes of factors, a group per block of a row. A
// form:
//   kBits, kGroup (channels), kFactors, kBytes
//   code(block, i), factor(block, plane)
//   put_code(block, i, code), put_factor(block, plane, factor)     into zeros
#pragma once

#include "ops/kv/code_planes.h"
#include "ops/kv/kv_codec.h"

namespace braid::kv {

template <typename Form>
int64_t form_row_bytes(int32_t head_dim) {
  return head_dim / Form::kGroup * Form::kBytes;
}

template <typename Form>
int64_t form_unit_bytes(int32_t head_dim, KvSide) {
  return code_bytes(Form::kBits, head_dim) +
         Form::kFactors * (head_dim / Form::kGroup) * kFactorBytes;
}

template <typename Form, typename Byte>
Byte* factor_at(Byte* unit, int32_t head_dim, int plane, int32_t group, int32_t cell) {
  const int64_t groups = head_dim / Form::kGroup;
  return unit + code_bytes(Form::kBits, head_dim) + (plane * groups + group) * kFactorBytes +
         int64_t{2} * cell;
}

template <typename Form>
void unpack_form(const uint8_t* rows, int32_t head_dim, uint8_t* unit) {
  const int64_t row_bytes = form_row_bytes<Form>(head_dim);
  for (int32_t channel = 0; channel < head_dim; ++channel) {
    const int32_t group = channel / Form::kGroup;
    uint8_t codes[kBlockTokens];
    for (int32_t t = 0; t < kBlockTokens; ++t)
      codes[t] = Form::code(rows + t * row_bytes + group * Form::kBytes, channel % Form::kGroup);
    put_codes<Form::kBits>(unit, head_dim, channel, codes);
  }
  for (int32_t group = 0; group < head_dim / Form::kGroup; ++group) {
    for (int32_t t = 0; t < kBlockTokens; ++t) {
      const uint8_t* block = rows + t * row_bytes + group * Form::kBytes;
      for (int plane = 0; plane < Form::kFactors; ++plane)
        store_u16(factor_at<Form>(unit, head_dim, plane, group, t), Form::factor(block, plane));
    }
  }
}

template <typename Form>
void pack_form(const uint8_t* unit, int32_t head_dim, uint8_t* rows) {
  const int64_t row_bytes = form_row_bytes<Form>(head_dim);
  std::memset(rows, 0, static_cast<size_t>(row_bytes) * kBlockTokens);
  for (int32_t channel = 0; channel < head_dim; ++channel) {
    const int32_t group = channel / Form::kGroup;
    uint8_t codes[kBlockTokens];
    get_codes<Form::kBits>(unit, head_dim, channel, codes);
    for (int32_t t = 0; t < kBlockTokens; ++t)
      Form::put_code(rows + t * row_bytes + group * Form::kBytes, channel % Form::kGroup, codes[t]);
  }
  for (int32_t group = 0; group < head_dim / Form::kGroup; ++group) {
    for (int32_t t = 0; t < kBlockTokens; ++t) {
      uint8_t* block = rows + t * row_bytes + group * Form::kBytes;
      for (int plane = 0; plane < Form::kFactors; ++plane)
        Form::put_factor(block, plane, load_u16(factor_at<Form>(unit, head_dim, plane, group, t)));
    }
  }
}

template <typename Form>
constexpr KvCodec codec_of_form(std::string_view name) {
  KvCodec c;
  c.name = name;
  c.head_dim_unit = Form::kGroup;
  c.unit_bytes = form_unit_bytes<Form>;
  c.row_bytes = form_row_bytes<Form>;
  c.pack_rows = pack_form<Form>;
  c.unpack_rows = unpack_form<Form>;
  return c;
}

}  // namespace braid::kv
