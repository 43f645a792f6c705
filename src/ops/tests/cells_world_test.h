// cells_world_test.h -- a KV layer with known cells on any device, and attention over it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "gguf/half.h"
#include "ops/tests/op_test.h"

namespace braid::test {

// 16-bit kernels also round softmax weights and queries. `sharp`: size of the scores.
inline double outputs(const DeviceCase& device, KvFormat k_format = KvFormat::f16,
                      float sharp = 1.0f) {
  if (device.activation_type == DType::f32) return sharp > 1 ? 5e-5 : 1e-5;
  return (k_format == KvFormat::bf16 ? 8 : 1) * (sharp > 1 ? 4 : 1) * device.tolerance(1e-5, 5);
}

inline constexpr float kNobody = 30000.0f;  // in cells that no row may read

inline uint16_t encode_16(KvFormat format, float x) {
  return format == KvFormat::f16 ? f32_to_f16(x) : f32_to_bf16(x);
}

inline void encode(KvFormat format, std::byte* dst, const std::vector<float>& row) {
  for (size_t i = 0; i < row.size(); ++i) {
    const uint16_t bits = encode_16(format, row[i]);
    if (format == KvFormat::f32) {
      std::memcpy(dst + 4 * i, &row[i], 4);
    } else {
      std::memcpy(dst + 2 * i, &bits, 2);
    }
  }
}

inline std::vector<float> decode(KvFormat format, const std::byte* src, int64_t count) {
  std::vector<float> row(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    if (format == KvFormat::f32) {
      std::memcpy(&row[i], src + 4 * i, 4);
      continue;
    }
    std::memcpy(&bits, src + 2 * i, 2);
    row[i] = format == KvFormat::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
  }
  return row;
}

struct Shape {
  int32_t heads = 4;
  int32_t kv_heads = 1;
  int32_t head_dim = 64;
  int32_t rope_dims = 32;
  KvFormat k = KvFormat::f16;
  KvFormat v = KvFormat::f16;
  int32_t window = 0;
  AttentionGate gate = kJointSigmoid;
  int32_t first_cell = 0;

  int64_t width() const { return int64_t{heads} * head_dim; }
  int64_t query_width() const { return heads * gate.query_stride(head_dim); }
  int64_t gate_width() const { return gate.columns(heads, head_dim); }
  int64_t kv_width() const { return int64_t{kv_heads} * head_dim; }
  KvShape kv() const { return {kv_heads, head_dim, k, v}; }
  AttentionParams params() const {
    return {.heads = heads,
            .scale = 1.0f / std::sqrt(float(head_dim)),
            .window = window,
            .gate = gate,
            .first_cell = first_cell};
  }
};

// Cells 0 .. written-1 of each sequence hold random values, all others kNobody.
struct Cells {
  World world;
  KvLayer kv;

  Cells(const DeviceCase& device, const Shape& shape, const TestBatch& rows, int32_t written,
        Random& random)
      : world(device) {
    Device::WorkspaceNeeds needs;
    needs.max_sequences = 16;
    needs.max_context = 8192;
    needs.max_heads = shape.heads;
    needs.head_dim = shape.head_dim;
    needs.max_width = shape.query_width();
    world.prepare({}, needs);
    kv = world.kv_layer(shape.kv(), rows.blocks());
    const std::vector<float> nobody(static_cast<size_t>(shape.head_dim), kNobody);
    for (int32_t b = 0; b < kv.blocks; ++b) {
      for (int32_t h = 0; h < shape.kv_heads; ++h) {
        for (int32_t c = 0; c < kBlockTokens; ++c) {
          encode(shape.k, kv.k_row(b, h, c), nobody);
          encode(shape.v, kv.v_row(b, h, c), nobody);
        }
      }
    }
    const Batch& batch = rows.batch();
    for (int32_t s = 0; s < batch.sequences; ++s) {
      const int32_t end = std::min(written, batch.context[s] - batch.certain[s] + batch.rows[s]);
      for (int32_t cell = 0; cell < end; ++cell) {
        for (int32_t h = 0; h < shape.kv_heads; ++h) {
          encode(shape.k, k_row(batch, s, cell, h), random.normals(shape.head_dim));
          encode(shape.v, v_row(batch, s, cell, h), random.normals(shape.head_dim));
        }
      }
    }
  }
  std::byte* k_row(const Batch& batch, int32_t s, int32_t cell, int32_t head) const {
    return kv.k_row(batch.blocks_of(s)[cell / kBlockTokens], head, cell % kBlockTokens);
  }
  std::byte* v_row(const Batch& batch, int32_t s, int32_t cell, int32_t head) const {
    return kv.v_row(batch.blocks_of(s)[cell / kBlockTokens], head, cell % kBlockTokens);
  }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all(kv.k, kv.k + kv.blocks * kv.shape.k_block_bytes());
    all.insert(all.end(), kv.v, kv.v + kv.blocks * kv.shape.v_block_bytes());
    return all;
  }
  std::vector<float> attend(const Shape& shape, const Batch& batch, const std::vector<float>& q,
                            const std::vector<float>& gates) {
    const Tensor o = world.tensor(batch.tokens, shape.width(), std::vector<float>(q.size(), NAN));
    Tensor g;
    if (shape.gate_width() > 0) g = world.tensor(batch.tokens, shape.gate_width(), gates);
    world.ops().attention(o, world.tensor(batch.tokens, shape.width(), q), g, shape.params(), kv,
                          batch);
    world.device().synchronize();
    return values_of(o);
  }
};

// `sharp` multiplies the queries. Blocks below the window are removed.
inline std::vector<float> attended(const DeviceCase& device, const Shape& shape,
                                   const std::vector<SequencePlan>& plans, uint64_t seed,
                                   float sharp = 1.0f) {
  Random random(seed);
  TestBatch rows(plans, random);
  Cells cells(device, shape, rows, 1 << 30, random);
  if (shape.window > 0) rows.forget_behind(shape.window);
  const std::vector<float> q = random.normals(rows.tokens() * shape.width(), sharp);
  return cells.attend(shape, rows.batch(), q,
                      random.normals(rows.tokens() * shape.gate_width(), 3.0f));
}

inline constexpr AttentionGate kSoftplusHead{AttentionGate::Act::softplus,
                                             AttentionGate::Layout::head};
inline constexpr AttentionGate kSoftplusElement{AttentionGate::Act::softplus,
                                                AttentionGate::Layout::element};
inline constexpr AttentionGate kSigmoidHead{AttentionGate::Act::sigmoid,
                                            AttentionGate::Layout::head};
inline constexpr AttentionGate kSigmoidElement{AttentionGate::Act::sigmoid,
                                               AttentionGate::Layout::element};

inline const Shape kCellShapes[] = {
    {.heads = 4, .kv_heads = 1, .head_dim = 256, .rope_dims = 64},
    {.heads = 8,
     .kv_heads = 2,
     .head_dim = 128,
     .rope_dims = 128,
     .k = KvFormat::bf16,
     .v = KvFormat::bf16},
    {.heads = 3,
     .kv_heads = 3,
     .head_dim = 64,
     .rope_dims = 16,
     .k = KvFormat::f32,
     .v = KvFormat::f32,
     .gate = {}},
    {.heads = 6,
     .kv_heads = 1,
     .head_dim = 96,
     .rope_dims = 32,
     .k = KvFormat::bf16,
     .v = KvFormat::f16,
     .window = 7},
    {.heads = 16,
     .kv_heads = 2,
     .head_dim = 32,
     .rope_dims = 32,
     .k = KvFormat::f16,
     .v = KvFormat::f32,
     .window = 40},
    {.heads = 2,
     .kv_heads = 2,
     .head_dim = 64,
     .rope_dims = 64,
     .k = KvFormat::f32,
     .v = KvFormat::bf16},
    {.heads = 6, .kv_heads = 1, .head_dim = 32, .gate = kSoftplusHead},
    {.heads = 4, .kv_heads = 2, .head_dim = 32, .gate = kSoftplusElement},
    {.heads = 4,
     .kv_heads = 2,
     .head_dim = 128,
     .rope_dims = 128,
     .window = 64,
     .gate = kSigmoidElement},
    {.heads = 9,
     .kv_heads = 1,
     .head_dim = 64,
     .k = KvFormat::f32,
     .v = KvFormat::f32,
     .gate = kSigmoidHead},
    {.heads = 4, .kv_heads = 1, .head_dim = 256, .first_cell = 1},
    {.heads = 8, .kv_heads = 2, .head_dim = 128, .window = 20, .gate = {}, .first_cell = 1},
    {.heads = 4, .kv_heads = 2, .head_dim = 128, .first_cell = 45},
};

}  // namespace braid::test
