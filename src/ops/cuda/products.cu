// products.cu -- which kernel multiplies what: linear, logits, and the workspace they share. The kernel
// itself and its mathematics: product_kernel.cuh; the form of the weights: packed.h.
#include <algorithm>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/packed.h"
#include "ops/cuda/products.h"

namespace braid {

using namespace cuda;

namespace cuda {

// Rows that cp.async can read: 16-byte aligned, zeros behind the end.
__global__ void pad_rows(Act* to, int64_t to_stride, const Act* from, int64_t from_stride, int cols) {
  const int64_t row = blockIdx.x;
  for (int i = threadIdx.x; i < to_stride; i += blockDim.x)
    to[row * to_stride + i] = i < cols ? from[row * from_stride + i] : __float2half(0.0f);
}

void launch_products(Context& context, Pack pack, int groups, const ProductArgs& args) {
  switch (pack) {
    case Pack::f16:
      return launch_products_f16(context, groups, args);
    case Pack::q8:
      return launch_products_q8(context, groups, args);
    case Pack::q4k:
      return launch_products_q4k(context, groups, args);
    case Pack::q6k:
      return launch_products_q6k(context, groups, args);
  }
}

namespace {

struct Layout {
  size_t counters = 0;
  size_t partials = 0;
  size_t padded = 0;
  size_t end = 0;
};
Layout layout_of(const Context& context, const Device::WorkspaceNeeds& needs) {
  const auto grid = static_cast<size_t>(context.processors * kMostCtasPerProcessor);
  const auto rounded = [](size_t bytes) { return (bytes + 255) / 256 * 256; };
  Layout at;
  at.partials = rounded(grid * sizeof(unsigned));
  at.padded = at.partials + 2 * grid * kMostTileFloats * sizeof(float);
  at.end = at.padded + rounded(static_cast<size_t>(needs.max_tokens) *
                               static_cast<size_t>((needs.max_width + 7) / 8 * 8) * sizeof(Act));
  return at;
}

}  // namespace

size_t products_bytes(const Context& context, const Device::WorkspaceNeeds& needs) {
  return layout_of(context, needs).end;
}

Products::Products(Context& context, const Device::WorkspaceNeeds& needs, std::byte* work)
    : context_(context), needs_(needs) {
  const Layout at = layout_of(context, needs);
  counters_ = reinterpret_cast<unsigned*>(work + at.counters);
  partials_ = reinterpret_cast<float*>(work + at.partials);
  padded_ = reinterpret_cast<Act*>(work + at.padded);
}

ProductArgs Products::args_for(Tensor x) {
  BRAID_CHECK(x.type == kActType);
  ProductArgs args;
  args.x = static_cast<const Act*>(x.data);
  args.x_stride = x.stride;
  args.k = static_cast<int>(x.cols);
  args.tokens = static_cast<int>(x.rows);
  args.partials = partials_;
  args.counters = counters_;
  const bool readable = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % 8 == 0 && x.cols % 8 == 0;
  if (!readable) {
    const int64_t stride = (x.cols + 7) / 8 * 8;
    BRAID_CHECK(x.rows <= needs_.max_tokens && x.cols <= needs_.max_width);
    pad_rows<<<static_cast<unsigned>(x.rows), 256, 0, context_.stream>>>(padded_, stride, args.x, x.stride,
                                                                         args.k);
    context_.launched("padding");
    args.x = padded_;
    args.x_stride = stride;
    args.k = static_cast<int>(stride);
  }
  return args;
}

ProductPart Products::part_for(const Weight& w, Tensor y, Store store) {
  const PackedWeight& p = packed(w);
  BRAID_CHECK(p.data != nullptr && (y.type == DType::f32 || y.type == kActType) && y.cols == w.n);
  ProductPart part;
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

void Products::add_up(ProductPart& part, const Weight& up) {
  part.up_units = packed(up).data;
  part.up_scales = packed(up).scales;
  part.store = Store::gated;
}

bool Products::same_form(const Weight& a, const Weight& b) {
  return packed(a).pack == packed(b).pack && packed(a).units == packed(b).units;
}

// All parts have the pack and units of `like`.
void Products::launch(const Weight& like, int groups, ProductArgs args, std::span<const ProductPart> parts) {
  args.units = packed(like).units;
  args.x_units = packed(like).x_units;
  for (size_t first = 0; first < parts.size(); first += kMostParts) {
    args.part_count = static_cast<int>(std::min<size_t>(parts.size() - first, kMostParts));
    args.blocks = 0;
    for (int i = 0; i < args.part_count; ++i) {
      args.parts[i] = parts[first + i];
      args.parts[i].first_block = args.blocks;
      args.blocks += args.parts[i].expert_blocks * (args.parts[i].store == Store::gated ? 2 : 1);
    }
    launch_products(context_, packed(like).pack, groups, args);
  }
}

void Products::linear(std::span<const LinearPart> parts, Tensor x) {
  if (x.rows == 0) return;
  const ProductArgs args = args_for(x);
  const int groups = column_groups(x.rows);
  // One entry per product: gated pairs first, so that gate and up blocks stay side by side in a tile.
  struct Entry {
    const Weight* w;
    ProductPart part;
  };
  std::vector<Entry> now;
  std::vector<Entry> later;  // need what `now` stores
  for (const LinearPart& p : parts) {
    BRAID_CHECK(p.w->experts == 1 && p.w->k == x.cols && p.y.rows >= x.rows);
    BRAID_CHECK((p.tail == Tail::silu_mul) == (p.up != nullptr));
    if (p.tail != Tail::silu_mul) {
      now.push_back({p.w, part_for(*p.w, p.y, p.tail == Tail::add ? Store::add : Store::plain)});
    } else if (same_form(*p.w, *p.up)) {
      Entry entry{p.w, part_for(*p.w, p.y, Store::gated)};
      add_up(entry.part, *p.up);
      now.insert(now.begin(), entry);
    } else {
      now.push_back({p.up, part_for(*p.up, p.y, Store::plain)});
      later.push_back({p.w, part_for(*p.w, p.y, Store::gate_old)});
    }
  }
  for (std::vector<Entry>* list : {&now, &later}) {
    while (!list->empty()) {
      const Weight& like = *list->front().w;
      std::vector<ProductPart> same;
      std::vector<Entry> rest;
      for (const Entry& e : *list) {
        if (same_form(*e.w, like)) {
          same.push_back(e.part);
        } else {
          rest.push_back(e);
        }
      }
      launch(like, groups, args, same);
      *list = std::move(rest);
    }
  }
}

}  // namespace cuda

size_t CudaOps::products_workspace_bytes(const Context& context, const Device::WorkspaceNeeds& needs) {
  return products_bytes(context, needs);
}

void CudaOps::linear(std::span<const LinearPart> parts, Tensor x) {
  BRAID_CHECK(products_work_ != nullptr);
  Products(context_, needs_, products_work_).linear(parts, x);
}

void CudaOps::logits(Tensor logits, const Weight& w, Tensor x) {
  const LinearPart part{&w, nullptr, logits, Tail::store};
  linear({&part, 1}, x);
}

}  // namespace braid
