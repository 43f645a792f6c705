// weights.cu -- packs the bytes of a file into units on the GPU (packed.h).
//
// A weight travels in chunks of whole 32-row blocks: threads copy the file's bytes (or decode rare
// types to f32) into pinned memory, the copy engine moves them to the GPU, and one CTA per block
// packs them. Two chunks overlap, so reading the page cache sets the pace. copy_rows copies between
// packed weights.
#include "ops/cuda/weights.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/threads.h"
#include "ops/cuda/raw_rows.cuh"

namespace braid::cuda {
namespace {

constexpr size_t kMostChunkBytes = size_t{32} << 20;
constexpr int kChunks = 3;

GgmlType carried_type(GgmlType type) { return has_raw_rows(type) ? type : GgmlType::F32; }

}  // namespace

PackedWeight shape_of(const Weight& w) {
  const PackShape shape = pack_shape(w);
  PackedWeight p;
  p.pack = shape.pack;
  p.blocks = shape.blocks;
  p.x_units = shape.x_units;
  p.units = shape.units;
  return p;
}

namespace {

size_t table_bytes(const Weight& w) {
  return static_cast<size_t>(w.n * w.experts) * table_row_bytes(w);
}

struct PackJob {
  const uint8_t* raw;  // rows of this chunk
  size_t row_bytes;
  GgmlType type;
  bool split_f32;  // two f16 matrices side by side
  int rows;        // in the chunk; the last block may be short
  int k;
  int units;
  int x_units;
  uint8_t* out;  // first block of the chunk
  float* scales;
  float own_scale;
};

__device__ inline uint32_t pair_of(float a, float b) {
  const __half2 h = __floats2half2_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&h);
}
__device__ inline unsigned short half_bits(float x) {
  return __half_as_ushort(to_act(x));  // saturates: a scale without codes may be any number
}

__device__ inline void read_five_bits(GgmlType type, const uint8_t* row, int k0, Codes& out) {
  read_codes(type, row, k0, out);
  if (type != GgmlType::Q5_0) return;
  for (int8_t& code : out.code) code = static_cast<int8_t>(code + 16);
  out.min = 16 * out.scale[0];
}

__device__ inline float most_level(GgmlType type) {
  return type == GgmlType::Q4_0 ? 8 : type == GgmlType::MXFP4 || type == GgmlType::NVFP4 ? 12 : 127;
}

// The largest magnitude that this group's codes could represent.
__device__ inline float group_range(Pack pack, GgmlType type, const uint8_t* row, int k0, int k) {
  if (pack == Pack::f16) {
    float y[32];
    read_values(type, row, k0, k, y);
    float most = 0;
    for (float v : y) most = fmaxf(most, fabsf(v));
    return most;
  }
  Codes codes;
  if (pack == Pack::q5) {
    read_five_bits(type, row, k0, codes);
  } else {
    read_codes(type, row, k0, codes);
  }
  const float scale = fmaxf(fabsf(codes.scale[0]), fabsf(codes.scale[1]));
  const float most = pack == Pack::q4k   ? 15
                     : pack == Pack::q5  ? 31
                     : pack == Pack::q6k ? 32
                     : pack == Pack::q8  ? 128
                                         : most_level(type);
  return scale * most + fabsf(codes.min);
}

// P = 2^exponent such that range * P is in [2^top, 2^(top + 1)).
__device__ inline int power_for(float range, int top) {
  if (!(range > 0) || isinf(range)) return 0;
  int exponent;
  frexpf(range, &exponent);  // range in [2^(exponent - 1), 2^exponent)
  return min(max(top - (exponent - 1), -100), 100);
}

template <Pack kPack>
__device__ void pack_group(const PackJob& job, uint8_t* unit, const uint8_t* row, int u, int r16,
                           int k128, int half, int lane, float p);

template <>
__device__ void pack_group<Pack::f16>(const PackJob& job, uint8_t* unit, const uint8_t* row, int u,
                                      int r16, int k128, int half, int lane, float p) {
  const int k0 = (u % job.x_units) * kUnitWidth + 128 * k128 + 32 * (lane % 4);
  float y[32];
  for (float& v : y) v = 0;
  if (row != nullptr && k0 < job.k) read_values(job.type, row, k0, job.k, y);
  for (float& v : y) {
    v *= p;
    if (u >= job.x_units) v -= __half2float(to_act(v));
  }
  uint4* out = reinterpret_cast<uint4*>(unit) + ((k128 * 2 + r16) * 2 + half) * 4 * 32 + lane;
  for (int i = 0; i < 4; ++i) {
    out[i * 32] =
        make_uint4(pair_of(y[8 * i], y[8 * i + 1]), pair_of(y[8 * i + 2], y[8 * i + 3]),
                   pair_of(y[8 * i + 4], y[8 * i + 5]), pair_of(y[8 * i + 6], y[8 * i + 7]));
  }
}

template <>
__device__ void pack_group<Pack::q8>(const PackJob& job, uint8_t* unit, const uint8_t* row, int u,
                                     int r16, int k128, int half, int lane, float p) {
  const int k0 = u * kUnitWidth + 128 * k128 + 32 * (lane % 4);
  Codes codes = {};
  if (row != nullptr && k0 < job.k) read_codes(job.type, row, k0, codes);
  const int field = r16 * 2 + half;
  unit += k128 * half_bytes(Pack::q8);
  uint4* out = reinterpret_cast<uint4*>(unit) + field * 2 * 32 + lane;
  for (int i = 0; i < 2; ++i) {
    uint32_t words[4];
    for (int w = 0; w < 4; ++w) {
      const int8_t* c = codes.code + 16 * i + 4 * w;
      words[w] = static_cast<uint32_t>(c[0] + 128) | static_cast<uint32_t>(c[2] + 128) << 8 |
                 static_cast<uint32_t>(c[1] + 128) << 16 | static_cast<uint32_t>(c[3] + 128) << 24;
    }
    out[i * 32] = make_uint4(words[0], words[1], words[2], words[3]);
  }
  reinterpret_cast<unsigned short*>(unit + 4096)[lane * 4 + field] =
      half_bits(codes.scale[0] * p * 0x1p24f);
}

__device__ inline uint4 nibbles(const int8_t* code) {
  uint32_t words[4];
  for (int i = 0; i < 4; ++i) {
    words[i] = 0;
    for (int e = 0; e < 2; ++e)
      for (int p = 0; p < 2; ++p)
        for (int h = 0; h < 2; ++h)
          words[i] |= static_cast<uint32_t>(code[8 * i + 4 * p + 2 * h + e] & 15)
                      << 4 * (4 * e + 2 * p + h);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

template <>
__device__ void pack_group<Pack::q4k>(const PackJob& job, uint8_t* unit, const uint8_t* row, int u,
                                      int r16, int k128, int half, int lane, float p) {
  const int c = lane % 4;
  const int k0 = u * kUnitWidth + 128 * k128 + 32 * c;
  const int field = r16 * 2 + half;
  Codes codes = {};
  int scale = 0;
  int min = 0;
  float d = 0;
  float dmin = 0;
  if (row != nullptr && k0 < job.k) {
    read_codes(job.type, row, k0, codes);
    const uint8_t* b = row + static_cast<size_t>(k0 / 256) * 144;
    scale_min(b + 4, k0 % 256 / 32, scale, min);
    d = half_at(b);
    dmin = half_at(b + 2);
  }
  uint8_t* part = unit + k128 * half_bytes(Pack::q4k);
  reinterpret_cast<uint4*>(part)[field * 32 + lane] = nibbles(codes.code);
  // Several threads write one word, so bits are added to zeroed memory.
  const uint32_t bits = static_cast<uint32_t>(min) << 6 | static_cast<uint32_t>(scale);
  uint32_t* words = reinterpret_cast<uint32_t*>(part + 2048);
  if (r16 == 0) {
    atomicOr(words + lane, bits << (4 + 16 * half));
  } else {
    atomicOr(words + lane, (bits & 15) << 16 * half);
    atomicOr(words + 32 + lane / 2, bits >> 4 << (lane % 2 * 16 + half * 8));
  }
  if (c == 0 && k128 == 0) {
    unsigned short* at =
        reinterpret_cast<unsigned short*>(unit + 4480) + (lane / 4) * 8 + r16 * 4 + half;
    at[0] = half_bits(d * p * 0x1p24f);
    at[2] = half_bits(dmin * p * 0x1p12f);
  }
}

template <>
__device__ void pack_group<Pack::q6k>(const PackJob& job, uint8_t* unit, const uint8_t* row, int u,
                                      int r16, int k128, int half, int lane, float p) {
  const int c = lane % 4;
  const int k0 = u * kUnitWidth + 128 * k128 + 32 * c;
  const int field = r16 * 2 + half;
  Codes codes = {};
  float d = 0;
  const uint8_t* b = nullptr;
  if (row != nullptr && k0 < job.k) {
    read_codes(job.type, row, k0, codes);
    b = row + static_cast<size_t>(k0 / 256) * 210;
    d = half_at(b + 208);
  }
  uint8_t* part = unit + k128 * half_bytes(Pack::q6k);
  uint32_t words[4] = {};
  uint32_t third[2] = {};  // of words 0 and 1, of 2 and 3
  for (int i = 0; i < 4; ++i)
    for (int e = 0; e < 2; ++e) {
      const auto code = [&](int pair, int h) {
        return static_cast<uint32_t>(codes.code[8 * i + 4 * pair + 2 * h + e] + 32);
      };
      const bool even = i % 2 == 0;
      words[i] |= ((code(0, 0) & 15) | code(0, 1) << 4 | code(1, even ? 1 : 0) << 10) << 16 * e;
      third[i / 2] |= (code(0, 0) >> 4 << (even ? 0 : 2) | code(1, even ? 0 : 1) << (even ? 10 : 4))
                      << 16 * e;
    }
  reinterpret_cast<uint4*>(part)[field * 32 + lane] =
      make_uint4(words[0], words[1], words[2], words[3]);
  reinterpret_cast<uint2*>(part + 2048)[(r16 * 32 + lane) * 2 + half] =
      make_uint2(third[0], third[1]);
  for (int s = 0; s < 2; ++s) {
    const int group = k0 % 256 / 16 + s;
    part[3072 + lane * 8 + field * 2 + s] =
        b == nullptr ? 128 : static_cast<uint8_t>(static_cast<int8_t>(b[192 + group]) + 128);
  }
  if (c == 0 && k128 == 0)
    reinterpret_cast<unsigned short*>(unit + 6656)[(lane / 4) * 4 + r16 * 2 + half] =
        half_bits(d * p * 0x1p24f);
}

template <>
__device__ void pack_group<Pack::q5>(const PackJob& job, uint8_t* unit, const uint8_t* row, int u,
                                     int r16, int k128, int half, int lane, float p) {
  const int k0 = u * kUnitWidth + 128 * k128 + 32 * (lane % 4);
  Codes codes = {};
  if (row != nullptr && k0 < job.k) read_five_bits(job.type, row, k0, codes);
  uint8_t* part = unit + k128 * half_bytes(Pack::q5);
  uint32_t words[4] = {};
  uint32_t fifth = 0;
  for (int e = 0; e < 2; ++e) {
    const auto code = [&](int i, int pair, int h) {
      return static_cast<uint32_t>(codes.code[8 * i + 4 * pair + 2 * h + e]);
    };
    const uint32_t last = code(3, 1, 0);
    for (int i = 0; i < 4; ++i)
      words[i] |= (code(i, 0, 0) | code(i, 0, 1) << 5 | code(i, 1, 1) << 10 | (last >> i & 1) << 15)
                  << 16 * e;
    fifth |= (code(0, 1, 0) | code(1, 1, 0) << 5 | code(2, 1, 0) << 10 | last >> 4 << 15) << 16 * e;
  }
  reinterpret_cast<uint4*>(part)[(r16 * 2 + half) * 32 + lane] =
      make_uint4(words[0], words[1], words[2], words[3]);
  reinterpret_cast<uint32_t*>(part + 2048)[(r16 * 32 + lane) * 2 + half] = fifth;
  unsigned short* at =
      reinterpret_cast<unsigned short*>(part + 2560) + ((r16 * 32 + lane) * 2 + half) * 2;
  at[0] = half_bits(codes.scale[0] * p * 0x1p24f);
  at[1] = half_bits(codes.min * p * 0x1p12f);
}

// Scales of each 16; packed codes mean `grows` times the file's codes.
__device__ inline void put_two_scales(uint8_t* to, const Codes& codes, int grows, float p) {
  unsigned short* at = reinterpret_cast<unsigned short*>(to);
  for (int s = 0; s < 2; ++s)
    at[s] = half_bits(codes.scale[s] / static_cast<float>(grows) * p * 0x1p24f);
}

// t4 levels grow by this factor to fill a byte (+-113 to 128); scales shrink by it.
__device__ inline int level_unit(GgmlType type) { return type == GgmlType::Q4_0 ? 16 : 1; }

template <>
__device__ void pack_group<Pack::t4>(const PackJob& job, uint8_t* unit, const uint8_t* row, int u,
                                     int r16, int k128, int half, int lane, float p) {
  const int k0 = u * kUnitWidth + 128 * k128 + 32 * (lane % 4);
  const int grows = level_unit(job.type);
  Codes codes = {};
  if (row != nullptr && k0 < job.k) read_codes(job.type, row, k0, codes, true);
  uint8_t* part = unit + k128 * half_bytes(Pack::t4);
  uint32_t words[4] = {};
  for (int i = 0; i < 4; ++i)
    for (int pair = 0; pair < 2; ++pair)
      for (int e = 0; e < 2; ++e)
        for (int h = 0; h < 2; ++h)
          words[i] |= static_cast<uint32_t>(codes.code[8 * i + 4 * pair + 2 * h + e])
                      << 4 * (4 * pair + 2 * e + h);
  reinterpret_cast<uint4*>(part)[(r16 * 2 + half) * 32 + lane] =
      make_uint4(words[0], words[1], words[2], words[3]);
  put_two_scales(part + 2048 + ((r16 * 32 + lane) * 2 + half) * 4, codes, grows, p);
  if (r16 == 0 && half == 0 && lane < 16)
    part[2560 + lane] = static_cast<uint8_t>(level_of(job.type, lane) * grows + 128);
}

template <>
__device__ void pack_group<Pack::fp4>(const PackJob& job, uint8_t* unit, const uint8_t* row, int u,
                                      int r16, int k128, int half, int lane, float p) {
  const int k0 = u * kUnitWidth + 128 * k128 + 32 * (lane % 4);
  Codes codes = {};
  if (row != nullptr && k0 < job.k) read_codes(job.type, row, k0, codes, true);
  uint8_t* part = unit + k128 * half_bytes(Pack::fp4);
  uint32_t words[4] = {};
  for (int i = 0; i < 4; ++i)
    for (int e = 0; e < 2; ++e) {
      const auto code = [&](int pair, int h) {
        return static_cast<uint32_t>(codes.code[8 * i + 4 * pair + 2 * h + e]);
      };
      const auto put = [&](uint32_t bits, int sign_at, int magnitude_at) {
        words[i] |= ((bits >> 3 & 1) << sign_at | (bits & 7) << magnitude_at) << 16 * e;
      };
      put(code(0, 0), 15, 9);
      put(code(0, 1), 12, 6);
      put(code(1, 0), 14, 3);
      put(code(1, 1), 13, 0);
    }
  reinterpret_cast<uint4*>(part)[(r16 * 2 + half) * 32 + lane] =
      make_uint4(words[0], words[1], words[2], words[3]);
  // Codes mean twice a number, of which f16 has 2^-14, and f16 codes count 2^-24.
  put_two_scales(part + 2048 + ((r16 * 32 + lane) * 2 + half) * 4, codes, 512, p);
}

// P times the largest magnitude of a block is in [2^top, 2^(top + 1)), the limit of scales times
// 2^24 in f16. The largest code is 6144 (fp4), 128 (q8, t4), 32 (q6k), 31 (q5) or 15 (q4k). A
// weight has the relative error of f16, 2^-11 (f16, t4, not fp4), in q4k slightly more; or an
// absolute one of 2^-24. The latter, relative to the largest of the 32 rows, is up to 2^-21 (t4,
// q8), 2^-19 (q5, q6k), 2^-18 (q4k), 2^-27 (fp4) or 2^-37 (f16). Rows far below the largest lose
// accuracy.
__host__ __device__ constexpr int top_of(Pack pack) {
  switch (pack) {
    case Pack::f16:
      return 13;
    case Pack::fp4:
      return 3;
    case Pack::q8:
    case Pack::t4:
      return -3;
    case Pack::q6k:
    case Pack::q5:
      return -5;
    case Pack::q4k:
      return -6;
  }
  return 0;
}

template <Pack kPack>
__global__ void __launch_bounds__(256) pack_kernel(const PackJob job) {
  __shared__ float most[8];
  const int64_t block = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int field = thread / 32;  // (r16, k128, half)
  const int r16 = field / 4;
  const int k128 = field / 2 % 2;
  const int half = field % 2;
  const int64_t row_index = block * kUnitRows + 16 * r16 + 8 * half + lane / 4;
  const uint8_t* row = row_index < job.rows ? job.raw + row_index * job.row_bytes : nullptr;

  float range = 0;
  for (int u = 0; u < job.x_units; ++u) {
    const int k0 = u * kUnitWidth + 128 * k128 + 32 * (lane % 4);
    if (row != nullptr && k0 < job.k)
      range = fmaxf(range, group_range(kPack, job.type, row, k0, job.k));
  }
  range = warp_max(range);
  if (lane == 0) most[field] = range;
  __syncthreads();
  for (int i = 0; i < 8; ++i) range = fmaxf(range, most[i]);
  const int power = power_for(range, top_of(kPack));
  const float p = ldexpf(1.0f, power);
  if (thread == 0) job.scales[block] = ldexpf(job.own_scale, -power);
  for (int u = 0; u < job.units; ++u) {
    uint8_t* unit = job.out + (block * job.units + u) * unit_bytes(kPack);
    pack_group<kPack>(job, unit, row, u, r16, k128, half, lane, p);
  }
}

void pack_chunk(Context& context, Pack pack, const PackJob& job) {
  const auto blocks = static_cast<unsigned>(div_up(job.rows, kUnitRows));
  switch (pack) {
    case Pack::f16:
      pack_kernel<Pack::f16><<<blocks, 256, 0, context.stream>>>(job);
      break;
    case Pack::q8:
      pack_kernel<Pack::q8><<<blocks, 256, 0, context.stream>>>(job);
      break;
    case Pack::q4k:
      pack_kernel<Pack::q4k><<<blocks, 256, 0, context.stream>>>(job);
      break;
    case Pack::q6k:
      pack_kernel<Pack::q6k><<<blocks, 256, 0, context.stream>>>(job);
      break;
    case Pack::q5:
      pack_kernel<Pack::q5><<<blocks, 256, 0, context.stream>>>(job);
      break;
    case Pack::t4:
      pack_kernel<Pack::t4><<<blocks, 256, 0, context.stream>>>(job);
      break;
    case Pack::fp4:
      pack_kernel<Pack::fp4><<<blocks, 256, 0, context.stream>>>(job);
      break;
  }
  context.launched("packing weights");
}

class Loader {
 public:
  // Small weights use small staging and no helpers: a test loads thousands.
  Loader(Device& device, Context& context, ExpertSlots& slots, std::span<Weight* const> weights)
      : device_(device),
        context_(context),
        slots_(slots),
        chunk_bytes_(chunk_for(weights)),
        pool_(threads_for(chunk_bytes_)) {}
  ~Loader() {
    cudaStreamSynchronize(context_.stream);
    for (cudaEvent_t event : free_) cudaEventDestroy(event);
  }

  Status start() {
    BRAID_ASSIGN(pinned_, device_.allocate_host(kChunks * chunk_bytes_, "staging"));
    BRAID_ASSIGN(raw_, device_.allocate(kChunks * chunk_bytes_, "staging"));
    for (int i = 0; i < kChunks; ++i) {
      cudaEvent_t event;
      const cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
      if (error != cudaSuccess) return gpu_error(error, "making an event");
      free_.push_back(event);
    }
    return {};
  }

  Status load(const Weight& w, PackedWeight& p) {
    const size_t row_bytes = table_row_bytes(w);
    if (row_bytes * kUnitRows > chunk_bytes_)
      return Error{ErrorKind::unsupported,
                   "tensor " + w.name + " has rows too long for the GPU loader"};
    p = shape_of(w);
    if (w.slots > 0) {
      BRAID_TRY(slots_.add(w, p));
    } else if (w.is_product) {
      BRAID_ASSIGN(p.memory, device_.allocate(product_bytes(w), w.name.c_str()));
      p.data = static_cast<uint8_t*>(p.memory.data());
      p.scales = reinterpret_cast<const float*>(p.data + w.experts * p.expert_bytes());
    }
    if (w.is_table) {
      BRAID_ASSIGN(p.table_memory, device_.allocate(table_bytes(w) + 16, w.name.c_str()));
      p.table = static_cast<uint8_t*>(p.table_memory.data());
      p.table_type = carried_type(w.type);
      p.table_row_bytes = row_bytes;
    }
    const auto chunk_rows = static_cast<int64_t>(chunk_bytes_ / row_bytes / kUnitRows * kUnitRows);
    for (int64_t expert = 0; expert < w.experts; ++expert) {
      if (w.slots > 0) slots_.clear_scratch(p, expert);
      for (int64_t row = 0; row < w.n; row += chunk_rows) {
        load_rows(w, p, expert, row, std::min(chunk_rows, w.n - row));
        if (!context_.healthy())
          return Error{ErrorKind::io, "loading " + w.name + ": " + context_.first_error};
      }
      if (w.slots > 0) slots_.keep(p, expert);
    }
    return {};
  }

 private:
  static size_t chunk_for(std::span<Weight* const> weights) {
    size_t most = size_t{64} << 10;
    for (const Weight* w : weights) {
      const auto rows = static_cast<size_t>(div_up<int64_t>(w->n, kUnitRows) * kUnitRows);
      most = std::max(most, std::min(rows * table_row_bytes(*w), kMostChunkBytes));
    }
    return most;
  }
  static int threads_for(size_t chunk_bytes) {
    return chunk_bytes < kMostChunkBytes / 4 ? 1 : std::max(1, std::min(8, usable_cores()));
  }

  void load_rows(const Weight& w, const PackedWeight& p, int64_t expert, int64_t row,
                 int64_t rows) {
    const size_t row_bytes = table_row_bytes(w);
    const int slot = next_++ % kChunks;
    auto* host = static_cast<std::byte*>(pinned_.data()) + slot * chunk_bytes_;
    auto* raw = static_cast<uint8_t*>(raw_.data()) + slot * chunk_bytes_;
    if (next_ > kChunks) context_.note(cudaEventSynchronize(free_[slot]), "loading weights");
    pool_.run([&](int worker) {
      const auto [first, last] = pool_.share(rows, worker);
      if (!has_raw_rows(w.type)) {
        for (int64_t r = first; r < last; ++r)
          decode_weight_row(w, expert, row + r, reinterpret_cast<float*>(host + r * row_bytes));
      } else if (!w.columns.empty()) {
        for (int64_t r = first; r < last; ++r) w.copy_row(expert, row + r, host + r * row_bytes);
      } else {
        Weight::FileRows file;
        for (int64_t r = first; r < last; r += file.count) {
          file = w.file_rows(expert, row + r, last - r);
          std::memcpy(host + r * row_bytes, file.data, file.count * row_bytes);
        }
      }
    });
    device_.to_device(raw, host, static_cast<size_t>(rows) * row_bytes);
    if (w.is_table) {
      uint8_t* at =
          const_cast<uint8_t*>(p.table) + static_cast<size_t>(expert * w.n + row) * row_bytes;
      context_.note(cudaMemcpyAsync(at, raw, static_cast<size_t>(rows) * row_bytes,
                                    cudaMemcpyDeviceToDevice, context_.stream),
                    "loading weights");
    }
    if (w.is_product) {
      const int64_t block = row / kUnitRows;
      PackJob job;
      job.raw = raw;
      job.row_bytes = row_bytes;
      job.type = carried_type(w.type);
      job.rows = static_cast<int>(rows);
      job.k = static_cast<int>(w.k);
      job.units = p.units;
      job.x_units = p.x_units;
      job.out = const_cast<uint8_t*>(p.data) + expert * p.expert_bytes() +
                block * p.units * unit_bytes(p.pack);
      job.scales = const_cast<float*>(p.scales) + expert * p.blocks + block;
      job.own_scale = w.scales.empty()       ? 1.0f
                      : w.scales.size() == 1 ? w.scales[0]
                                             : w.scales[static_cast<size_t>(expert)];
      pack_chunk(context_, p.pack, job);
    }
    context_.note(cudaEventRecord(free_[slot], context_.stream), "loading weights");
  }

  Device& device_;
  Context& context_;
  ExpertSlots& slots_;
  size_t chunk_bytes_;
  ThreadPool pool_;
  Buffer pinned_;
  Buffer raw_;
  std::vector<cudaEvent_t> free_;
  int next_ = 0;
};

struct RowPlace {
  int r16;
  int half;
  int lane;  // 4 g + c

  __device__ RowPlace(int row, int c)
      : r16(row / 16 % 2), half(row / 8 % 2), lane(row % 8 * 4 + c) {}
  // Offset of a row in [r16][half][piece][lane][bytes], or [r16][lane][half][bytes].
  __device__ int codes(int pieces, int piece, int bytes = 16) const {
    return (((r16 * 2 + half) * pieces + piece) * 32 + lane) * bytes;
  }
  __device__ int behind_lane(int bytes) const { return ((r16 * 32 + lane) * 2 + half) * bytes; }
};

template <typename T>
__device__ T& part_at(uint8_t* part, int at) {
  return *reinterpret_cast<T*>(part + at);
}
template <typename T>
__device__ void copy_part(uint8_t* to, int to_at, const uint8_t* from, int from_at) {
  part_at<T>(to, to_at) = *reinterpret_cast<const T*>(from + from_at);
}
// f16 numbers that scale with the power of two of a block.
template <int kHalves>
__device__ void scale_part(uint8_t* to, int to_at, const uint8_t* from, int from_at, float factor) {
#pragma unroll
  for (int i = 0; i < kHalves; ++i)
    part_at<__half>(to, to_at + 2 * i) = __float2half(
        __half2float(*reinterpret_cast<const __half*>(from + from_at + 2 * i)) * factor);
}
__device__ inline uint32_t field_of(const uint8_t* words, const RowPlace& at) {
  const uint32_t word = reinterpret_cast<const uint32_t*>(words)[at.lane];
  if (at.r16 == 0) return word >> (4 + 16 * at.half) & 0xfff;
  const uint32_t bytes = reinterpret_cast<const unsigned short*>(words + 128)[at.lane];
  return (word >> 16 * at.half & 15) | (bytes >> 8 * at.half & 255) << 4;
}
__device__ inline void put_bits(uint32_t* word, uint32_t mask, uint32_t bits) {
  atomicAnd(word, ~mask);  // other rows' bits of the word change concurrently
  atomicOr(word, bits);
}
__device__ inline void put_field(uint8_t* at_words, const RowPlace& at, uint32_t bits) {
  auto* words = reinterpret_cast<uint32_t*>(at_words);
  if (at.r16 == 0) {
    const int shift = 4 + 16 * at.half;
    put_bits(words + at.lane, 0xfffu << shift, bits << shift);
  } else {
    const int shift = at.lane % 2 * 16 + at.half * 8;
    put_bits(words + at.lane, 15u << 16 * at.half, (bits & 15) << 16 * at.half);
    put_bits(words + 32 + at.lane / 2, 255u << shift, bits >> 4 << shift);
  }
}

// 32 k of a row. `factor`: of its scales. The levels of t4 are the same in all blocks.
template <Pack kPack>
__device__ void copy_group(uint8_t* to_unit, const RowPlace& to, const uint8_t* from_unit,
                           const RowPlace& from, int k128, float factor) {
  uint8_t* out = to_unit + k128 * half_bytes(kPack);
  const uint8_t* in = from_unit + k128 * half_bytes(kPack);
  constexpr int kPieces = kPack == Pack::f16 ? 4 : kPack == Pack::q8 ? 2 : 1;
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    if constexpr (kPack == Pack::f16) {
      scale_part<8>(out, to.codes(kPieces, piece), in, from.codes(kPieces, piece), factor);
    } else {
      copy_part<uint4>(out, to.codes(kPieces, piece), in, from.codes(kPieces, piece));
    }
  }
  const bool once = k128 == 0 && to.lane % 4 == 0;  // data of both halves of a unit
  if constexpr (kPack == Pack::q8) {
    scale_part<1>(out, 4096 + to.lane * 8 + to.r16 * 4 + to.half * 2, in,
                  4096 + from.lane * 8 + from.r16 * 4 + from.half * 2, factor);
  } else if constexpr (kPack == Pack::q4k) {
    put_field(out + 2048, to, field_of(in + 2048, from));
    const auto at = [](const RowPlace& row, int n) {
      return 4480 + row.lane / 4 * 16 + row.r16 * 8 + n * 4 + row.half * 2;
    };
    for (int n = 0; once && n < 2; ++n)
      scale_part<1>(to_unit, at(to, n), from_unit, at(from, n), factor);
  } else if constexpr (kPack == Pack::q6k) {
    copy_part<uint2>(out, 2048 + to.behind_lane(8), in, 2048 + from.behind_lane(8));
    const auto at = [](const RowPlace& row) {
      return 3072 + row.lane * 8 + row.r16 * 4 + row.half * 2;
    };
    copy_part<unsigned short>(out, at(to), in, at(from));
    const auto rest = [](const RowPlace& row) {
      return 2 * half_bytes(Pack::q6k) + row.lane / 4 * 8 + row.r16 * 4 + row.half * 2;
    };
    if (once) scale_part<1>(to_unit, rest(to), from_unit, rest(from), factor);
  } else if constexpr (kPack == Pack::q5) {
    copy_part<uint32_t>(out, 2048 + to.behind_lane(4), in, 2048 + from.behind_lane(4));
    scale_part<2>(out, 2560 + to.behind_lane(4), in, 2560 + from.behind_lane(4), factor);
  } else if constexpr (kPack == Pack::t4 || kPack == Pack::fp4) {
    scale_part<2>(out, 2048 + to.behind_lane(4), in, 2048 + from.behind_lane(4), factor);
  }
}

inline constexpr int kMostCopiedRows = 64;  // per launch
struct CopyJob {
  uint8_t* out;
  const uint8_t* in;
  const float* out_scales;
  const float* in_scales;
  int units;
  int to[kMostCopiedRows];
  int from[kMostCopiedRows];
};

template <Pack kPack>
__global__ void __launch_bounds__(128) copy_rows_kernel(const CopyJob job) {
  const int to_row = job.to[blockIdx.x], from_row = job.from[blockIdx.x];
  const int64_t to_block = to_row / kUnitRows, from_block = from_row / kUnitRows;
  const float factor = job.in_scales[from_block] / job.out_scales[to_block];
  for (int i = static_cast<int>(threadIdx.x); i < job.units * 8; i += 128) {
    const int unit = i / 8, k128 = i / 4 % 2, c = i % 4;
    copy_group<kPack>(job.out + (to_block * job.units + unit) * unit_bytes(kPack),
                      RowPlace(to_row, c),
                      job.in + (from_block * job.units + unit) * unit_bytes(kPack),
                      RowPlace(from_row, c), k128, factor);
  }
}

// All blocks get the largest scale, so that a row fits every block: scales of rows only shrink.
__global__ void __launch_bounds__(256)
    level_scales(float* out, int out_count, const float* in, int in_count) {
  __shared__ float most[8];
  const int thread = static_cast<int>(threadIdx.x);
  float own = 0;
  for (int i = thread; i < in_count; i += 256) own = fmaxf(own, fabsf(in[i]));
  own = warp_max(own);
  if (thread % 32 == 0) most[thread / 32] = own;
  __syncthreads();
  for (const float m : most) own = fmaxf(own, m);
  if (in[0] < 0) own = -own;
  for (int i = thread; i < out_count; i += 256) out[i] = own;
}

void launch_copy_rows(Context& context, Pack pack, const CopyJob& job, int count) {
  const auto rows = static_cast<unsigned>(count);
  switch (pack) {
    case Pack::f16:
      copy_rows_kernel<Pack::f16><<<rows, 128, 0, context.stream>>>(job);
      break;
    case Pack::q8:
      copy_rows_kernel<Pack::q8><<<rows, 128, 0, context.stream>>>(job);
      break;
    case Pack::q4k:
      copy_rows_kernel<Pack::q4k><<<rows, 128, 0, context.stream>>>(job);
      break;
    case Pack::q6k:
      copy_rows_kernel<Pack::q6k><<<rows, 128, 0, context.stream>>>(job);
      break;
    case Pack::q5:
      copy_rows_kernel<Pack::q5><<<rows, 128, 0, context.stream>>>(job);
      break;
    case Pack::t4:
      copy_rows_kernel<Pack::t4><<<rows, 128, 0, context.stream>>>(job);
      break;
    case Pack::fp4:
      copy_rows_kernel<Pack::fp4><<<rows, 128, 0, context.stream>>>(job);
      break;
  }
  context.launched("copying rows");
}

}  // namespace

void copy_rows(Context& context, const Weight& to, const Weight& from,
               std::span<const int32_t> rows) {
  auto& out = *static_cast<PackedWeight*>(const_cast<void*>(to.device_data));
  const PackedWeight& in = packed(from);
  BRAID_CHECK(out.pack == in.pack && out.units == in.units);
  const auto copy = [&](size_t count, auto row_at) {
    CopyJob job{const_cast<uint8_t*>(out.data), in.data, out.scales, in.scales, out.units, {}, {}};
    for (size_t first = 0; first < count; first += kMostCopiedRows) {
      const size_t last = std::min(count, first + kMostCopiedRows);
      for (size_t i = first; i < last; ++i) {
        const int32_t row = row_at(i);
        job.to[i - first] = row;
        job.from[i - first] = static_cast<int>(to.runs[static_cast<size_t>(row)].first);
      }
      launch_copy_rows(context, out.pack, job, static_cast<int>(last - first));
    }
  };
  if (!out.leveled) {
    level_scales<<<1, 256, 0, context.stream>>>(const_cast<float*>(out.scales),
                                                static_cast<int>(out.blocks), in.scales,
                                                static_cast<int>(in.blocks));
    context.launched("copying rows");
    out.leveled = true;
    copy(static_cast<size_t>(to.n), [](size_t i) { return static_cast<int32_t>(i); });
    return;
  }
  copy(rows.size(), [&](size_t i) { return rows[i]; });
}

Status load_weights(Device& device, Context& context, ExpertSlots& slots,
                    std::span<Weight* const> weights, const Device::WeightDone& done,
                    std::vector<std::unique_ptr<PackedWeight>>& out) {
  if (weights.empty()) return {};
  {
    Loader loader(device, context, slots, weights);
    BRAID_TRY(loader.start());
    BRAID_TRY(slots.prepare(weights));
    for (Weight* w : weights) {
      out.push_back(std::make_unique<PackedWeight>());
      BRAID_TRY(loader.load(*w, *out.back()));
      w->device_data = out.back().get();
      w->device_bytes = planned_bytes(*w);
      if (done) done(*w);
    }
  }
  // Starts a thread, which must not inherit the CPU that the loader's pool gives to this one.
  BRAID_TRY(slots.finish());
  device.synchronize();
  return device.health();
}

}  // namespace braid::cuda
