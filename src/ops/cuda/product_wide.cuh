// product_wide.cuh -- y = x W^T for many rows of x on sm_90a: packed weights through registers into wgmma.
//
// The same products as product_kernel.cuh, from the same units. A warp decodes 32 rows x 128 k in registers
// as before, but four warps multiply together: the instruction reads x once for 64 rows instead of once for
// 16, and the matrix units run half as fast again. CTA: 256 rows x 32, 64 or 128 columns, two warpgroups
// (f16: one).
//
// Flops 2 n k per row of x; 27B, 2048 rows: 105 TFLOP a pass, floor 133 ms at 790 TFLOP/s. Decoding costs 17
// issue slots per k16 and warp, the instruction N / 2 = 64 clocks at 128 columns, two warpgroups a scheduler:
// 34 of 128. L2: per 128 k a CTA reads 19 KB of weights (q4k) and 32 KB of x for 8.4 MFLOP: 4.8 TB/s at 790
// TFLOP/s, so 128 columns are the least that can come near it.
//
// x is first copied to an image of what shared memory holds (order_rows in products.cu): 128 k of a tile of
// rows are one run of bytes, in the order of k that units have and with the exchange of 16-byte pieces that
// the instruction wants. So a stage is 17 bulk copies: each warp asks for its own weights, warp 0 for x, and
// a barrier in shared memory counts the bytes. Warps meet nowhere else in the main loop; warp 0 waits for the
// others' last reads before it overwrites x. Fragments are double-buffered: codes of two steps are decoded
// while the two before are multiplied.
//
// Reached on one H200: 443 (q4_K) to 487 (q6_K) TFLOP/s at 2048 rows, 423 at 512, 300 at 128, 240 at 64,
// where the ends of shared tiles cost a third. Next: a warpgroup that stores while the other multiplies; 256
// columns. Tried: cp.async with a fence for the matrix unit and a CTA barrier per 128 k, 317 TFLOP/s at 2048
// rows: the fence waits for copies under way, and all warps decode at the same time.
#pragma once

#include "ops/cuda/product_pipeline.cuh"
#include "ops/cuda/wgmma.cuh"

namespace braid::cuda {

template <class Format, int kColumns>
struct WideShape {
  static constexpr int kWarps = Format::kWarps;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRows = kWarps * 32;
  static constexpr int kHalf = half_bytes(Format::kPack) + shared_bytes(Format::kPack);
  static constexpr int kX = kColumns * 256;
  static constexpr int kRound = 16;  // tokens stored at once
  static constexpr int kOutStride = kRows + 4;
  static constexpr int kOut = kRound * kOutStride * 4;
  static constexpr int kRoom = 225 * 1024 - kOut;
  static constexpr int kFit = kRoom / (kWarps * kHalf + kX);
  static constexpr int kStages = kFit > 5 ? 5 : kFit;
  static constexpr int kAhead = kStages - 2;
  static constexpr int kShared = kStages * (kWarps * kHalf + kX) + kOut + 1024;
  static constexpr int kTileFloats = kColumns * kRows;
  static_assert(kStages >= 3 && kTileFloats <= kMostTileFloats);
};

template <class Format, int kColumns>
__global__ void __launch_bounds__(WideShape<Format, kColumns>::kThreads, 1)
    wide_kernel(const __grid_constant__ ProductArgs a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = WideShape<Format, kColumns>;
  constexpr int kUnit = unit_bytes(Format::kPack);
  constexpr int kStages = Shape::kStages;
  constexpr int kGroups = kColumns / 8;
  extern __shared__ __align__(1024) uint8_t dynamic[];
  __shared__ __align__(8) uint64_t barriers[2 * kStages];
  uint8_t* xs = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
  uint8_t* weights = xs + kStages * Shape::kX;
  float* out = reinterpret_cast<float*>(weights + kStages * Shape::kWarps * Shape::kHalf);
  const auto full = [&](int stage) { return shared_address(barriers + stage); };
  const auto empty = [&](int stage) { return shared_address(barriers + kStages + stage); };

  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  if (thread == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      init_barrier(full(stage), Shape::kWarps);
      init_barrier(empty(stage), Shape::kWarps);
    }
    publish_barriers();
  }
  __syncthreads();
  wait_for_previous();
  const int steps = 2 * a.units;
  const int row_tiles = div_up(a.blocks, Shape::kWarps);
  const int token_tiles = div_up(a.tokens, kColumns);
  const int tiles = row_tiles * (a.tiles != nullptr ? *a.tile_count : token_tiles);
  const int64_t total = static_cast<int64_t>(tiles) * steps;
  const int64_t grid = ctas_for(tiles, steps);
  if (blockIdx.x >= grid) return;
  const int64_t begin = total * blockIdx.x / grid;
  const int64_t end = total * (blockIdx.x + 1) / grid;
  const int count = static_cast<int>(end - begin);

  int load_tile = static_cast<int>(begin / steps);
  int load_step = static_cast<int>(begin % steps);
  Tile loading = locate(a, load_tile, row_tiles, token_tiles, kColumns);
  const uint8_t* load_units =
      units_of<kUnit>(a, a.parts, loading.expert, loading.row_tile * Shape::kWarps + warp);
  const auto load = [&](int n) {  // what step n of this CTA needs
    if (n >= count) return;
    const int stage = n % kStages;
    const int use = n / kStages;
    if (lane == 0) {
      const int own = load_units != nullptr ? Shape::kHalf : 0;
      const int bytes = own + (warp == 0 ? Shape::kX : 0);
      const uint32_t barrier = full(stage);
      if (warp == 0 && use > 0) wait_barrier(empty(stage), (use - 1) & 1);
      if (bytes > 0) {
        arrive_expecting(barrier, bytes);
      } else {
        arrive(barrier);
      }
      if (own > 0) {
        const uint8_t* unit = load_units + static_cast<int64_t>(load_step / 2) * kUnit;
        const uint32_t to = shared_address(weights + (stage * Shape::kWarps + warp) * Shape::kHalf);
        constexpr int kPart = half_bytes(Format::kPack);
        constexpr int kRest = shared_bytes(Format::kPack);
        copy_bulk(to, unit + load_step % 2 * kPart, kPart, barrier);
        if (kRest > 0) copy_bulk(to + kPart, unit + 2 * kPart, kRest, barrier);
      }
      if (warp == 0) {
        const int half = load_step < 2 * a.x_units ? load_step : load_step - 2 * a.x_units;
        const auto* image = reinterpret_cast<const uint8_t*>(a.x);
        copy_bulk(shared_address(xs + stage * Shape::kX),
                  image + (static_cast<int64_t>(loading.x_tile) * 2 * a.x_units + half) * Shape::kX,
                  Shape::kX, barrier);
      }
    }
    if (++load_step == steps && n + 1 < count) {
      load_step = 0;
      loading = locate(a, ++load_tile, row_tiles, token_tiles, kColumns);
      load_units = units_of<kUnit>(a, a.parts, loading.expert, loading.row_tile * Shape::kWarps + warp);
    }
  };
  for (int n = 0; n <= Shape::kAhead; ++n) load(n);

  float acc[2][kGroups][4];
#pragma unroll
  for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
#pragma unroll
      for (int q = 0; q < 4; ++q) acc[r16][j][q] = 0;
  int tile_index = static_cast<int>(begin / steps);
  int step = static_cast<int>(begin % steps);
  for (int n = 0; n < count; ++n) {
    const int stage = n % kStages;
    wait_barrier(full(stage), n / kStages & 1);
    const uint8_t* part = weights + (stage * Shape::kWarps + warp) * Shape::kHalf;
    const uint32_t x = shared_address(xs + stage * Shape::kX);
    typename Format::Codes codes[2];
    typename Format::Scales scales[2];
#pragma unroll
    for (int r16 = 0; r16 < 2; ++r16) {
      Format::load(codes[r16], part, lane, r16);
      Format::scales(scales[r16], part, part + half_bytes(Format::kPack), lane, r16);
    }
    Fragments f[2][2];  // [buffer][r16]
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= 2) wait_wide<1>();
#pragma unroll
      for (int r16 = 0; r16 < 2; ++r16) f[i % 2][r16] = Format::fragments(codes[r16], scales[r16], i);
      fence_wide();
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const int s = 2 * i + p;
        const uint64_t b = wide_operand(x + s / 4 * (kColumns * 128) + s % 4 * 32);
        multiply_wide<kColumns>(acc[0], f[i % 2][0].a[p], b);
        multiply_wide<kColumns>(acc[1], f[i % 2][1].a[p], b);
      }
      commit_wide();
    }
    wait_wide<0>();
    __syncwarp();
    if (lane == 0) arrive(empty(stage));
    // Before the end of a tile holds the warp up; the stage was given back a step ago.
    load(n + 1 + Shape::kAhead);
    if (n + 1 + Shape::kAhead >= count) let_next_start();
    ++step;
    if (step < steps && n + 1 < count) continue;

    const Tile tile = locate(a, tile_index, row_tiles, token_tiles, kColumns);
    const Sharing sharing = sharing_of(tile_index, steps, total, grid);
    const RowTarget target = target_of(a, a.parts, tile.expert, tile.row_tile * Shape::kWarps + warp, lane);
    float* mine = a.partials + sharing.slot(blockIdx.x) * Shape::kTileFloats;
#pragma unroll
    for (int first = 0; first < kColumns; first += Shape::kRound) {
      if (first < tile.count) {
#pragma unroll
        for (int j = 0; j < Shape::kRound / 8; ++j)
#pragma unroll
          for (int r16 = 0; r16 < 2; ++r16) {
            float* to = out + (8 * j + 2 * (lane % 4)) * Shape::kOutStride + warp * 32 + r16 * 16 + lane / 4;
            const float(&v)[4] = acc[r16][first / 8 + j];
            to[0] = v[0];
            to[Shape::kOutStride] = v[1];
            to[8] = v[2];
            to[Shape::kOutStride + 8] = v[3];
          }
        meet<Shape::kThreads>();
        const int tokens = min(Shape::kRound, tile.count - first);
        if (sharing.shared()) {
#pragma unroll 4
          for (int t = 0; t < tokens; ++t)
            __stcg(mine + (first + t) * Shape::kRows + thread, out[t * Shape::kOutStride + thread]);
        } else if (target.part != nullptr) {
          const bool gated = target.part->store == Store::gated;
#pragma unroll 2
          for (int t = 0; t < tokens; ++t)
            store_sum(target, tile.first + first + t, out[t * Shape::kOutStride + thread],
                      gated ? out[t * Shape::kOutStride + thread + 32] : 0.0f);
        }
        meet<Shape::kThreads>();
      }
    }
    if (sharing.shared())
      finish_shared<Shape::kThreads>(a, sharing, tile, steps, n + 1 == count, Shape::kWarps,
                                     Shape::kTileFloats);
#pragma unroll
    for (int r16 = 0; r16 < 2; ++r16)
#pragma unroll
      for (int j = 0; j < kGroups; ++j)
#pragma unroll
        for (int q = 0; q < 4; ++q) acc[r16][j][q] = 0;
    ++tile_index;
    step = 0;
  }
#endif
}

template <class Format, int kColumns>
void launch_wide_kernel(Context& context, const ProductArgs& args) {
  using Shape = WideShape<Format, kColumns>;
  auto* kernel = wide_kernel<Format, kColumns>;
  launch_early(context, kernel, dim3(static_cast<unsigned>(context.processors)), Shape::kThreads,
               Shape::kShared, args);
}

template <class Format>
void launch_wide(Context& context, int columns, const ProductArgs& args) {
  switch (columns) {
    case 32:
      return launch_wide_kernel<Format, 32>(context, args);
    case 64:
      return launch_wide_kernel<Format, 64>(context, args);
    default:
      return launch_wide_kernel<Format, 128>(context, args);
  }
}

}  // namespace braid::cuda
