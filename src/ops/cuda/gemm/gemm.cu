// gemm.cu -- chooses product kernels (listed in README.md): linear, logits, and their workspace.
#include <algorithm>
#include <type_traits>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/gemm/gemm.h"
#include "ops/cuda/gemm/gemm_common.cuh"
#include "ops/cuda/gemm/gemm_router.h"
#include "ops/cuda/gemm/gemm_wide_plan.h"
#include "ops/cuda/gemm/packed.h"
#include "ops/cuda/norm.h"

namespace braid {

using namespace cuda;

namespace cuda {

// 16-byte aligned rows for cp.async, zeros after the end.
__global__ void pad_rows(Act* to, int64_t to_stride, const Act* from, int64_t from_stride,
                         int cols) {
  let_next_start();  // short, see launch.h
  wait_for_previous();
  const int64_t row = blockIdx.x;
  for (int i = threadIdx.x; i < to_stride; i += blockDim.x)
    to[row * to_stride + i] = i < cols ? from[row * from_stride + i] : __float2half(0.0f);
}

// Writes OrderedRows, zeros after the end of k. A thread writes 16 bytes of four pairs that lie 64
// bytes apart; a warp reads and writes the same 512 bytes.
constexpr int kOrderThreads = 256;
__global__ void __launch_bounds__(kOrderThreads)
    order_rows(Act* to, int units, int columns, const Act* from, int64_t from_stride, int cols,
               const ExpertTile* tiles, const int* tile_count, const int* x_row) {
  let_next_start();  // short, see launch.h
  wait_for_previous();
  const int tile = static_cast<int>(blockIdx.x) / columns;
  const int own = static_cast<int>(blockIdx.x) % columns;
  const int piece = static_cast<int>(blockIdx.y) * kOrderThreads + static_cast<int>(threadIdx.x);
  if (piece >= units * 32) return;
  int64_t row = blockIdx.x;
  if (tiles != nullptr) {
    if (tile >= *tile_count || own >= tiles[tile].count) return;
    row = tiles[tile].first + own;
    if (x_row != nullptr) row = x_row[row];
  }
  const Act* source = from + row * from_stride;
  const bool whole = reinterpret_cast<uintptr_t>(source) % 4 == 0;
  const int half = piece / 16;
  const int within = piece % 16;
  const int k = half * 128 + within / 2 * 4 + within % 2 * 2;
  uint32_t words[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const int at = k + 32 * c;
    if (whole && at + 1 < cols) {
      words[c] = *reinterpret_cast<const uint32_t*>(source + at);
    } else {
      const Act zero = __float2half(0.0f);
      const __half2 pair =
          __halves2half2(at < cols ? source[at] : zero, at + 1 < cols ? source[at + 1] : zero);
      words[c] = *reinterpret_cast<const uint32_t*>(&pair);
    }
  }
  const OrderedRows ordered{to, columns, units * kUnitWidth};
  *reinterpret_cast<uint4*>(ordered_at(ordered, static_cast<int>(blockIdx.x), k)) =
      make_uint4(words[0], words[1], words[2], words[3]);
}

Columns columns_for(const Context& context, int64_t rows) {
  // The wgmma forms from 64 columns on have tiles of one height, so they cut k at the same places.
  if (context.deterministic) rows = std::max<int64_t>(rows, 33);
  if (rows <= 8) return {8, false};
  const bool wgmma = context.has_wgmma;
  if (rows <= 16) return {16, wgmma};
  if (!wgmma || rows <= 64) return {rows <= 32 ? 32 : 64, wgmma};
  // 128 columns are fastest per row, but tiles of 96 may leave fewer rows empty.
  const auto padded = [&](int64_t count) { return div_up(rows, count) * count; };
  return {padded(96) * 8 <= padded(128) * 7 ? 96 : 128, true};
}

int32_t padded_rows(const Context& context, int32_t rows) {
  // Fewer rows are bound by reading weights, and padding would only add work per row.
  constexpr int32_t kMostMemoryBound = 64;
  if (rows <= kMostMemoryBound) return rows;
  const int32_t columns = columns_for(context, rows).count;
  return div_up(rows, columns) * columns;
}

GemmLaunch norm_first(Context& context, const GemmLaunch& launch) {
  const SkinnyNorm& norm = launch.norm;
  if (norm.residual == nullptr) return launch;
  const Tensor x{const_cast<Act*>(launch.x), kActType, launch.tokens, launch.k, launch.x_stride};
  const Tensor residual{const_cast<float*>(norm.residual), DType::f32, launch.tokens, launch.k,
                        norm.residual_stride};
  if (norm.writes) add_norm(context, x, residual, {}, norm.weight, norm.eps);
  GemmLaunch normed = launch;
  normed.norm = {};
  normed.beside_previous = false;
  return normed;
}

namespace {

template <class Format>
void launch_one_format(Context& context, Columns columns, const GemmLaunch& launch) {
  if (columns.wgmma) return launch_gemm_wgmma<Format, Format>(context, columns.count, launch);
  if constexpr (std::is_same_v<Format, FormatQ4K>)
    if (columns.wide) {
      const bool launched = launch_gemm_wide<Format, Format>(context, launch);
      BRAID_CHECK(launched);  // plan_wide() has accepted it
      return;
    }
  const bool list = launch.list.tiles != nullptr;
  if (columns.count == 8) {
    if constexpr (!std::is_same_v<Format, FormatF16>)
      if (launch.list.tile_rows == 8 && !context.deterministic &&
          launch_gemm_grouped_persistent<Format>(context, launch))
        return;
    if (list ? launch_gemm_grouped<Format>(context, launch)
             : launch_gemm_skinny<Format, Format>(context, launch))
      return;
  }
  launch_gemm_mma<Format>(context, columns.count, norm_first(context, launch));
}

// First q6k weights, then those of the second format. False: nothing was launched.
template <class Second>
bool launch_two_formats(Context& context, Columns columns, const GemmLaunch& launch) {
  if constexpr (std::is_same_v<Second, FormatQ4K>)
    if (columns.wide) return launch_gemm_wide<FormatQ6K, Second>(context, launch);
  if (!columns.wgmma) return launch_gemm_skinny<FormatQ6K, Second>(context, launch);
  launch_gemm_wgmma<FormatQ6K, Second>(context, columns.count, launch);
  return true;
}

struct Layout {
  size_t counters = 0;
  size_t partials = 0;
  size_t looked = 0;
  size_t padded = 0;
  size_t end = 0;
};
void add_part(GemmLaunch& call, const GemmPart& part) {
  BRAID_CHECK(call.part_count < kMostParts);
  GemmPart& own = call.parts[call.part_count++];
  own = part;
  own.first_block = call.blocks;
  call.blocks += part.expert_blocks * (part.store == Store::gated ? 2 : 1);
}

int64_t whole_units(int64_t width) { return (width + kUnitWidth - 1) / kUnitWidth * kUnitWidth; }

// Copied rows of the model's width, in whole tiles. Announced products follow them.
int64_t model_elements(const Device::WorkspaceNeeds& needs, int64_t rows) {
  return div_up<int64_t>(rows, 128) * 128 * whole_units(needs.model_width);
}

// The largest copies of x: dense rows, or one expert's rows at a time, in whole tiles.
int64_t copied_elements(const Device::WorkspaceNeeds& needs) {
  const int64_t dense =
      div_up<int64_t>(needs.max_tokens, 128) * 128 * whole_units(needs.max_width) +
      model_elements(needs, needs.max_tokens);
  if (needs.experts == 0) return dense;
  const int64_t pairs = int64_t{needs.max_tokens} * (needs.experts_used + 1);
  const int64_t columns = rows_per_expert_tile(pairs, needs.experts);
  const int64_t width = whole_units(std::max(needs.model_width, needs.expert_width));
  return std::max(dense, most_expert_tiles(pairs, needs.experts, columns) * columns * width);
}

Layout layout_of(const Context& context, const Device::WorkspaceNeeds& needs) {
  const auto grid = static_cast<size_t>(context.processors * kMostCtasPerProcessor);
  const auto rounded = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
  Layout at;
  at.partials = rounded((8 * grid + kClaims) * sizeof(unsigned));
  at.looked = at.partials + 2 * grid * kMostTileFloats * sizeof(float);
  const size_t looked = std::max<size_t>(2 * kMostLookedFloats * sizeof(float), kWideBytes);
  at.padded = at.looked + (context.has_wgmma ? grid * looked : 0);
  at.end = at.padded + rounded(static_cast<size_t>(copied_elements(needs)) * sizeof(Act));
  return at;
}

}  // namespace

size_t gemm_bytes(const Context& context, const Device::WorkspaceNeeds& needs) {
  return layout_of(context, needs).end;
}

Gemm::Gemm(Context& context, const Device::WorkspaceNeeds& needs, std::byte* work,
           AnnouncedProduct* announced)
    : context_(context), needs_(needs), announced_(announced) {
  const Layout at = layout_of(context, needs);
  counters_ = reinterpret_cast<unsigned*>(work + at.counters);
  partials_ = reinterpret_cast<float*>(work + at.partials);
  looked_ = reinterpret_cast<float*>(work + at.looked);
  padded_ = reinterpret_cast<Act*>(work + at.padded);
  padded_elements_ = static_cast<int64_t>((at.end - at.padded) / sizeof(Act));
}

AnnouncedProduct Gemm::announce(std::span<const LinearPart> parts, Tensor x) const {
  Columns columns = columns_for(context_, x.rows);
  narrow(columns, parts, x.rows);
  const int64_t first = model_elements(needs_, x.rows);
  const int64_t elements = div_up<int64_t>(x.rows, columns.count) * columns.count * x.cols;
  if (!columns.wgmma || context_.deterministic || small(parts, x.rows) || x.type != kActType ||
      x.cols % kUnitWidth != 0 || first == 0 || first + elements > padded_elements_)
    return {};
  return {x.data, x.rows, {padded_ + first, columns.count, static_cast<int>(x.cols)}};
}

GemmLaunch Gemm::launch_for(Tensor x, Columns columns, const ExpertList& list) {
  BRAID_CHECK(x.type == kActType);
  GemmLaunch call;
  call.x = static_cast<const Act*>(x.data);
  call.x_stride = x.stride;
  call.k = static_cast<int>(x.cols);
  call.tokens = static_cast<int>(x.rows);
  const bool looked = columns.wide || (columns.wgmma && columns.count <= kMostLookedColumns);
  call.partials = looked ? looked_ : partials_;
  call.counters = counters_;
  call.claims = counters_ + 8 * context_.processors * kMostCtasPerProcessor;
  call.list = list;
  const bool readable =
      reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % 8 == 0 && x.cols % 8 == 0;
  BRAID_CHECK(columns.wgmma || ordered_.to == nullptr);
  if (columns.wgmma) {
    const bool listed = list.tiles != nullptr;
    const int64_t tiles = listed ? list.most_tiles : div_up<int64_t>(x.rows, columns.count);
    const int64_t rows = listed ? tiles * columns.count : x.rows;
    const auto units = static_cast<int>(whole_units(x.cols) / kUnitWidth);
    BRAID_CHECK(tiles * columns.count * units * kUnitWidth <= padded_elements_);
    const dim3 blocks(static_cast<unsigned>(rows),
                      static_cast<unsigned>(div_up(units * 32, kOrderThreads)));
    if (ordered_.to == nullptr)
      launch_early(context_, order_rows, blocks, kOrderThreads, 0, padded_, units, columns.count,
                   call.x, x.stride, call.k, list.tiles, list.tile_count, list.x_row);
    BRAID_CHECK(ordered_.to == nullptr || ordered_.columns == columns.count);
    call.x = ordered_.to != nullptr ? static_cast<const Act*>(ordered_.to) : padded_;
    ordered_ = {};
  } else if (!readable) {
    const int64_t stride = (x.cols + 7) / 8 * 8;
    BRAID_CHECK(x.rows * stride <= padded_elements_);
    launch_early(context_, pad_rows, dim3(static_cast<unsigned>(x.rows)), 256, 0, padded_, stride,
                 call.x, x.stride, call.k);
    call.x = padded_;
    call.x_stride = stride;
    call.k = static_cast<int>(stride);
  }
  return call;
}

GemmPart Gemm::part_for(const Weight& w, Tensor y, Store store) {
  const PackedWeight& p = packed(w);
  BRAID_CHECK(p.data != nullptr && (y.type == DType::f32 || y.type == kActType) && y.cols == w.n);
  GemmPart part;
  part.units = p.data;
  part.scales = p.scales;
  part.y = y.data;
  part.y_type = y.type;
  part.y_stride = y.stride;
  part.rows = static_cast<int>(w.n);
  part.expert_blocks = static_cast<int>(p.blocks);
  part.store = store;
  return part;
}

void Gemm::add_up(GemmPart& part, const Weight& up) {
  part.up_units = packed(up).data;
  part.up_scales = packed(up).scales;
  part.store = Store::gated;
}

void Gemm::add_shared(GemmPart& part, const Weight& w, const Weight* up) {
  part.shared_units = packed(w).data;
  part.shared_scales = packed(w).scales;
  if (up == nullptr) return;
  part.shared_up_units = packed(*up).data;
  part.shared_up_scales = packed(*up).scales;
}

bool Gemm::same_form(const Weight& a, const Weight& b) {
  return packed(a).pack == packed(b).pack && packed(a).units == packed(b).units;
}

void Gemm::launch(const Weight& like, Columns columns, GemmLaunch call,
                  std::span<const GemmPart> parts, bool beside) {
  call.units = packed(like).units;
  call.x_units = packed(like).x_units;
  for (size_t first = 0; first < parts.size(); first += kMostParts) {
    call.part_count = 0;
    call.blocks = 0;
    call.beside_previous = beside || first > 0;
    if (first > 0) call.norm.writes = false;
    for (const GemmPart& part :
         parts.subspan(first, std::min<size_t>(parts.size() - first, kMostParts)))
      add_part(call, part);
    call.once = call.list.tiles == nullptr && call.tokens <= columns.count;
    with_format(packed(like).pack,
                [&]<class Format>() { launch_one_format<Format>(context_, columns, call); });
  }
}

bool Gemm::mix(const Weight& a, const Weight& b) {
  const auto goes_with = [](Pack q6k, Pack other) {
    return q6k == Pack::q6k && (other == Pack::q4k || other == Pack::q5);
  };
  const Pack pack = packed(a).pack;
  const Pack other = packed(b).pack;
  return packed(a).units == packed(b).units && (goes_with(pack, other) || goes_with(other, pack));
}

// False: nothing was launched. In wgmma kernels an empty part completes the first format's tile.
bool Gemm::launch_mixed(const Weight& like, Columns columns, GemmLaunch call,
                        std::span<const GemmPart> q6k, std::span<const GemmPart> second,
                        Pack second_pack, bool beside) {
  call.units = packed(like).units;
  call.x_units = packed(like).x_units;
  call.beside_previous = beside;
  for (const GemmPart& part : q6k) add_part(call, part);
  if (columns.wgmma) {
    const int tile = wgmma_warps(Pack::q6k);
    GemmPart empty;
    empty.expert_blocks = div_up(call.blocks, tile) * tile - call.blocks;
    if (empty.expert_blocks > 0) add_part(call, empty);
  }
  call.second_block = call.blocks;
  for (const GemmPart& part : second) add_part(call, part);
  call.once = !columns.wgmma || call.tokens <= columns.count;
  return second_pack == Pack::q5 ? launch_two_formats<FormatQ5>(context_, columns, call)
                                 : launch_two_formats<FormatQ4K>(context_, columns, call);
}

// Orders y if the announced product reads it, after the copies of rows of the model's width.
void Gemm::order_y(GemmPart& part, Tensor y, int64_t x_cols) {
  if (announced_ == nullptr || x_cols > needs_.model_width) return;
  const OrderedRows ordered = announced_->wanted(y);
  if (ordered.to == nullptr) return;
  announced_->written = true;
  part.y = ordered.to;
  part.y_stride = ordered.width;
  part.ordered_columns = static_cast<uint16_t>(ordered.columns);
}

bool Gemm::wide(std::span<const LinearPart> parts, int64_t rows) const {
  if (!context_.has_wgmma || context_.deterministic || rows <= 8 || rows > kMostWideRows ||
      parts.size() > kMostParts)
    return false;
  const bool gated = parts.front().tail == Tail::silu_mul;
  const int units = packed(*parts.front().w).units;
  WideBlocks q4k{0, unit_bytes(Pack::q4k), 2};
  WideBlocks q6k{0, half_bytes(Pack::q6k) + shared_bytes(Pack::q6k), 1};
  for (const LinearPart& p : parts) {
    const PackedWeight& w = packed(*p.w);
    if ((p.tail == Tail::silu_mul) != gated || (gated && !same_form(*p.w, *p.up)) ||
        w.units != units || (w.pack != Pack::q4k && w.pack != Pack::q6k))
      return false;
    (w.pack == Pack::q4k ? q4k : q6k).count += static_cast<int>(w.blocks) * (gated ? 2 : 1);
  }
  const bool mixed = q6k.count > 0;
  if (q4k.count == 0 || (gated && mixed)) return false;
  WideProduct product;
  product.formats[0] = mixed ? q6k : q4k;
  if (mixed) product.formats[1] = q4k;
  product.pair = gated ? 2 : 1;
  product.units = units;
  WidePlan plan;
  return plan_wide(context_, product, plan);
}

// If 128 columns give a CTA only a few steps, tiles of 64 need fewer parts of tiles.
void Gemm::narrow(Columns& columns, std::span<const LinearPart> parts, int64_t rows) const {
  if (wide(parts, rows)) {
    columns = {kMostWideRows, false, true};
    return;
  }
  if (context_.deterministic || !columns.wgmma || columns.count <= 64 || rows > 128) return;
  const PackedWeight& like = packed(*parts.front().w);
  int64_t blocks = 0;
  for (const LinearPart& p : parts)
    blocks += packed(*p.w).blocks + (p.up != nullptr ? packed(*p.up).blocks : 0);
  const int64_t steps = div_up<int64_t>(blocks, wgmma_warps(like.pack)) * 2 * like.units;
  if (steps < 7 * int64_t{context_.processors}) columns.count = 64;
}

bool Gemm::small(std::span<const LinearPart> parts, int64_t rows) const {
  if (context_.deterministic || rows > kMostSmallRows || parts.size() > kMostParts) return false;
  const Weight& like = *parts.front().w;
  int64_t blocks = 0;
  for (const LinearPart& p : parts) {
    if (p.tail == Tail::silu_mul || !same_form(*p.w, like)) return false;
    blocks += packed(*p.w).blocks;
  }
  const PackedWeight& w = packed(like);
  if (w.pack != Pack::f16) return false;
  return rows <= 8 ? router_fits(blocks, w.x_units) : small_fits(context_, blocks, w.units);
}

bool Gemm::linear_small(std::span<const LinearPart> parts, Tensor x, const SkinnyNorm& norm) {
  if (!small(parts, x.rows)) return false;
  const Weight& like = *parts.front().w;
  GemmLaunch call = launch_for(x, {8, false}, {});
  call.units = packed(like).units;
  call.x_units = packed(like).x_units;
  for (const LinearPart& p : parts) {
    BRAID_CHECK(p.w->experts == 1 && p.w->k == x.cols && p.y.rows >= x.rows);
    add_part(call, part_for(*p.w, p.y, p.tail == Tail::add ? Store::add : Store::plain));
  }
  if (x.rows > 8) {
    launch_gemm_small(context_, call);
  } else {
    call.norm = norm;
    launch_gemm_router(context_, call);
  }
  return true;
}

// Reading a few whole f32 rows in every CTA is faster than a separate norm kernel.
bool Gemm::norms_inside(std::span<const LinearPart> parts, Tensor h, Tensor residual,
                        const float* weight) const {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  const Columns columns = columns_for(context_, h.rows);
  const bool few = h.rows <= kMostNormRows || small(parts, h.rows);
  return columns.count == 8 && !columns.wgmma && few && h.cols <= kMostNormWidth &&
         h.cols % 8 == 0 && h.stride % 8 == 0 && residual.stride % 4 == 0 && h.type == kActType &&
         aligned(h.data) && aligned(residual.data) && aligned(weight);
}

void Gemm::norm_for(std::span<const LinearPart> parts, Tensor h, Tensor residual,
                    const float* weight, float eps) {
  OrderedRows ordered;
  Columns columns = columns_for(context_, h.rows);
  narrow(columns, parts, h.rows);
  if (columns.wgmma && !context_.deterministic && !small(parts, h.rows) &&
      div_up<int64_t>(h.rows, columns.count) * columns.count * h.cols <= padded_elements_)
    ordered = {padded_, columns.count, static_cast<int>(h.cols)};
  if (add_norm(context_, h, residual, {}, weight, eps, ordered)) ordered_ = ordered;
}

void Gemm::linear(std::span<const LinearPart> parts, Tensor x, const SkinnyNorm& norm) {
  if (x.rows == 0) return;
  if (announced_ != nullptr && announced_->x == x.data) {
    BRAID_CHECK(announced_->rows == x.rows);
    if (announced_->written) ordered_ = announced_->ordered;
    *announced_ = {};
  }
  BRAID_CHECK(announced_ == nullptr || !announced_->written);  // no product may come between
  if (linear_small(parts, x, norm)) return;
  Columns columns = columns_for(context_, x.rows);
  narrow(columns, parts, x.rows);
  // One tile of rows at a time, so that the cut of k depends on the weights alone.
  if (context_.deterministic && x.rows > columns.count) {
    for (int64_t first = 0; first < x.rows; first += columns.count) {
      const int64_t rows = std::min<int64_t>(columns.count, x.rows - first);
      std::vector<LinearPart> slice(parts.begin(), parts.end());
      for (LinearPart& p : slice) p.y = p.y.middle(first, rows);
      linear(slice, x.middle(first, rows));
    }
    return;
  }
  GemmLaunch call = launch_for(x, columns, {});
  call.norm = norm;
  // Gated pairs come first, so that gate and up blocks stay side by side in a tile.
  struct Entry {
    const Weight* w;
    GemmPart part;
  };
  std::vector<Entry> now;
  std::vector<Entry> later;  // depend on the results of `now`
  for (const LinearPart& p : parts) {
    BRAID_CHECK(p.w->experts == 1 && p.w->k == x.cols && p.y.rows >= x.rows);
    BRAID_CHECK((p.tail == Tail::silu_mul) == (p.up != nullptr));
    if (p.tail != Tail::silu_mul) {
      now.push_back({p.w, part_for(*p.w, p.y, p.tail == Tail::add ? Store::add : Store::plain)});
    } else if (same_form(*p.w, *p.up)) {
      Entry entry{p.w, part_for(*p.w, p.y, Store::gated)};
      add_up(entry.part, *p.up);
      if (columns.wgmma) order_y(entry.part, p.y, x.cols);
      now.insert(now.begin(), entry);
    } else {
      now.push_back({p.up, part_for(*p.up, p.y, Store::plain)});
      later.push_back({p.w, part_for(*p.w, p.y, Store::gate_old)});
    }
  }
  for (std::vector<Entry>* list : {&now, &later}) {
    bool beside = false;
    while (!list->empty()) {
      const Weight& like = *list->front().w;
      const bool gated = list->front().part.store == Store::gated;
      std::vector<GemmPart> same;
      std::vector<GemmPart> other;  // of the second format
      const Weight* other_like = nullptr;
      std::vector<Entry> rest;
      for (const Entry& e : *list) {
        // From 96 columns on a wgmma kernel takes only gated products, of one format, or only
        // others.
        const bool goes = !columns.wgmma || (e.part.store == Store::gated) == gated;
        if (goes && same_form(*e.w, like)) {
          same.push_back(e.part);
        } else if (goes && !(columns.wgmma && gated) &&
                   (columns.wgmma || columns.wide || columns.count == 8) && mix(*e.w, like) &&
                   list->size() < kMostParts &&
                   (other_like == nullptr || same_form(*e.w, *other_like))) {
          other.push_back(e.part);
          other_like = e.w;
        } else {
          rest.push_back(e);
        }
      }
      const bool q6k_first = packed(like).pack == Pack::q6k;
      if (other.empty() ||
          !launch_mixed(like, columns, call, q6k_first ? same : other, q6k_first ? other : same,
                        packed(q6k_first ? *other_like : like).pack, beside)) {
        launch(like, columns, call, same, beside);
        if (!other.empty()) {
          call.norm.writes = false;
          launch(*other_like, columns, call, other, true);
        }
      }
      beside = true;
      call.norm.writes = false;
      *list = std::move(rest);
    }
  }
}

}  // namespace cuda

void CudaOps::linear(std::span<const LinearPart> parts, Tensor x) {
  BRAID_CHECK(gemm_work_ != nullptr);
  Gemm(context_, needs_, gemm_work_, &announced_).linear(parts, x);
}

void CudaOps::announce_product(std::span<const LinearPart> parts, Tensor x) {
  BRAID_CHECK(gemm_work_ != nullptr && !announced_.written);
  announced_ =
      x.rows == 0 ? AnnouncedProduct{} : Gemm(context_, needs_, gemm_work_).announce(parts, x);
}

void CudaOps::norm_linear(std::span<const LinearPart> parts, Tensor h, Tensor residual,
                          const float* weight, float eps) {
  BRAID_CHECK(gemm_work_ != nullptr && residual.cols == h.cols && residual.rows >= h.rows);
  BRAID_CHECK(residual.type == DType::f32);
  Gemm gemm(context_, needs_, gemm_work_, &announced_);
  if (!gemm.norms_inside(parts, h, residual, weight)) {
    gemm.norm_for(parts, h, residual, weight, eps);
    return gemm.linear(parts, h);
  }
  gemm.linear(parts, h, {residual.f32(), residual.stride, weight, eps, true});
}

void CudaOps::logits(Tensor logits, const Weight& w, Tensor x) {
  const LinearPart part{&w, nullptr, logits, Tail::store};
  linear({&part, 1}, x);
}

}  // namespace braid
