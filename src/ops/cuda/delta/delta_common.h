// delta_common.h -- arguments and gates of the gated delta rule. Gates use the same instructions in
// all forms, so the contents of a slot do not depend on the form.
//
// State of a value head: [Dv][Dk] f32 (tile_columns = 1). A new sequence's decay is 1.
#pragma once

#include "ops/cuda/context.h"
#include "ops/cuda/device_math.h"
#include "ops/cuda/workspace.h"

namespace braid::cuda {

// The most certain rows of a sequence that takes the step form. Depends on the sequence alone.
inline constexpr int kStepRows = 48;
inline constexpr int kMaxNodes = 64;  // uncertain rows per sequence
inline constexpr int kMaxTaps = 4;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define BRAID_CLUSTERS 1
#else
#define BRAID_CLUSTERS 0
#endif

inline constexpr int kMostSharing = 8;  // value heads per key head
inline bool chunk_form_fits(const DeltaShape& shape) {
  return shape.key_dim == 128 && shape.value_dim == 128 && shape.conv_width == 4 &&
         shape.heads_per_key() <= kMostSharing;
}

struct DeltaView {
  int key_heads, value_heads, key_dim, value_dim, taps;
  int channels;
  // key_head() without division: with q = h * inverse / 2^16, it is h - q * key_heads (tiled) or q
  // (grouped).
  int inverse, times_head, times_quotient;
  int first_step;                          // the first value head of key head k is k * first_step
  int conv_rows, entries;                  // sizes of the rings
  unsigned conv_inverse, entries_inverse;  // for ring_place()
  int every, lag;                          // see DeltaRing
  // Offsets in a slot.
  int64_t slot_elements, decay_at, folded_at, conv_at, keys_at, deltas_at, gates_at;
  float* data;

  __device__ float* slot(int s) const { return data + s * slot_elements; }
  __device__ float* state(int s, int head) const {
    return slot(s) + static_cast<int64_t>(head) * key_dim * value_dim;
  }
  __device__ float* decay(int s) const { return slot(s) + decay_at; }
  __device__ int* folded(int s) const { return reinterpret_cast<int*>(slot(s) + folded_at); }
  // cell % size for cell >= 0. With `inverse` = 2^32 / size, rounded up, the quotient may be 1 too
  // large.
  __device__ static int ring_place(int cell, int size, unsigned inverse) {
    const int place =
        cell - static_cast<int>(__umulhi(static_cast<unsigned>(cell), inverse)) * size;
    return place < 0 ? place + size : place;
  }
  __device__ int conv_place(int cell) const { return ring_place(cell, conv_rows, conv_inverse); }
  __device__ int entry_place(int cell) const { return ring_place(cell, entries, entries_inverse); }
  __device__ float* conv_row(int s, int cell) const {
    return slot(s) + conv_at + static_cast<int64_t>(conv_place(cell)) * channels;
  }
  __device__ float* key(int s, int cell, int of_key_head) const {
    return slot(s) + keys_at +
           (static_cast<int64_t>(entry_place(cell)) * key_heads + of_key_head) * key_dim;
  }
  __device__ float* delta(int s, int cell, int head) const {
    return slot(s) + deltas_at +
           (static_cast<int64_t>(entry_place(cell)) * value_heads + head) * value_dim;
  }
  __device__ float* gate(int s, int cell) const {
    return slot(s) + gates_at + static_cast<int64_t>(entry_place(cell)) * value_heads;
  }
  // F of a row at `position` (state.h), ignoring entries that are folded already.
  __device__ int fold_position(int position) const {
    return position < lag ? 0 : (position - lag) / every * every;
  }
  __device__ int key_head(int head) const {
    return head * times_head + (head * inverse >> 16) * times_quotient;
  }
  __device__ int value_head(int of_key_head, int i) const {
    return of_key_head * first_step + (times_head == 0 ? i : i * key_heads);
  }
  // The first of the value heads that share a key head does the shared work.
  __device__ bool owns_key(int head, int of_key_head) const {
    return head == of_key_head * first_step;
  }

  __device__ int q_channel(int key_head) const { return key_head * key_dim; }
  __device__ int k_channel(int key_head) const { return (key_heads + key_head) * key_dim; }
  __device__ int v_channel(int head) const { return 2 * key_heads * key_dim + head * value_dim; }
};

inline DeltaView view_of(const DeltaLayer& layer) {
  const DeltaShape& s = layer.shape;
  const int divisor = s.grouped ? s.heads_per_key() : s.key_heads;
  // Ensures exact quotients although `inverse` is rounded up.
  BRAID_CHECK(int64_t{s.value_heads} * divisor < 1 << 15);
  DeltaView v;
  v.key_heads = s.key_heads;
  v.value_heads = s.value_heads;
  v.key_dim = s.key_dim;
  v.value_dim = s.value_dim;
  v.taps = s.conv_width;
  v.channels = static_cast<int>(s.channels());
  v.inverse = div_up(1 << 16, divisor);
  v.times_head = s.grouped ? 0 : 1;
  v.times_quotient = s.grouped ? 1 : -s.key_heads;
  v.first_step = s.value_head(1, 0);
  v.conv_rows = static_cast<int>(s.conv_rows(layer.ring));
  v.entries = layer.ring.entries();
  const auto inverse = [](int size) {
    return static_cast<unsigned>(((int64_t{1} << 32) + size - 1) / size);
  };
  BRAID_CHECK(v.conv_rows > 1 && v.entries > 1);
  v.conv_inverse = inverse(v.conv_rows);
  v.entries_inverse = inverse(v.entries);
  v.every = layer.ring.every;
  v.lag = layer.ring.lag;
  v.slot_elements = layer.slot_elements();
  v.decay_at = layer.decay(0) - layer.data;
  v.folded_at = v.decay_at + DeltaShape::rounded(s.value_heads);
  v.conv_at = layer.conv(0) - layer.data;
  v.keys_at = layer.keys(0) - layer.data;
  v.deltas_at = layer.deltas(0) - layer.data;
  v.gates_at = layer.gates(0) - layer.data;
  v.data = layer.data;
  return v;
}

struct DeltaArgs {
  Tensor o;
  DeltaInputs in;
  DeltaWeights w;
  DeltaView layer;
  Batch batch;
};

inline bool takes_delta(const DeltaShape& shape) {
  return (shape.key_dim == 32 || shape.key_dim == 64 || shape.key_dim == 128) &&
         shape.value_dim % 32 == 0 && shape.value_dim <= 128 && shape.conv_width >= 2 &&
         shape.conv_width <= kMaxTaps;
}

inline void check_delta(const Tensor& o, const DeltaInputs& in, const DeltaLayer& layer,
                        const Batch& batch) {
  const DeltaShape& shape = layer.shape;
  BRAID_CHECK(layer.tile_columns == 1 && shape.value_heads % shape.key_heads == 0);
  BRAID_CHECK(layer.ring.every > 0);
  BRAID_CHECK(in.qkv.cols == shape.channels() && in.z.cols == shape.value_width() &&
              o.cols == in.z.cols);
  BRAID_CHECK(in.alpha.cols == shape.value_heads && in.beta.cols == shape.value_heads);
  BRAID_CHECK(o.rows >= batch.tokens && in.qkv.rows >= batch.tokens && in.z.rows >= batch.tokens);
  BRAID_CHECK(takes_delta(shape));
}

__device__ inline float load_at(const Tensor& t, int64_t row, int64_t column) {
  return load_as(t.data, t.type, row * t.stride + column);
}
// Raw bits, converted at first use: a conversion right after the load would stall.
__device__ inline uint32_t load_bits(const Tensor& t, int64_t row, int64_t column) {
  const int64_t at = row * t.stride + column;
  return t.type == DType::f32 ? static_cast<const uint32_t*>(t.data)[at]
                              : static_cast<const uint16_t*>(t.data)[at];
}
__device__ inline float from_bits(DType type, uint32_t bits) {
  return type == DType::f32 ? __uint_as_float(bits)
                            : __half2float(__ushort_as_half(static_cast<uint16_t>(bits)));
}
__device__ inline void store_at(const Tensor& t, int64_t row, int64_t column, float x) {
  store_as(t.data, t.type, row * t.stride + column, x);
}

// A few ulps, since states keep the results, but without the code size of IEEE division and root.
__device__ inline float exact_silu(float x) { return __fdividef(x, 1.0f + expf(-x)); }
__device__ inline float log_decay(float alpha, float dt, float a) {
  const float x = alpha + dt;
  return a * (x > 20.0f ? x : log1pf(expf(x)));
}
__device__ inline float exact_sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }
// Factors of l2 norms; queries are also divided by the root of their width.
__device__ inline float inverse_norm(float squares) { return rsqrtf(__fadd_rn(squares, 1e-6f)); }
__device__ inline float inverse_query_norm(float squares, int width) {
  return __fmul_rn(inverse_norm(squares), rsqrtf(static_cast<float>(width)));
}

}  // namespace braid::cuda
