// linear.cpp -- loading weights and multiplying with them (linear.h).
// Up to kFewRows rows, every worker quantizes them for itself, which costs less than a barrier, and
// multiplies its static share of the row groups. More rows are quantized once, split over the
// workers. From kClaimRows on, row groups are claimed in blocks.

#include "ops/cpu/gemm/linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "base/log_line.h"
#include "gguf/block_layouts.h"
#include "ops/cpu/gemm/linear_impl.h"
#include "ops/cpu/prefetch.h"

namespace braid::cpu {
namespace {

constexpr int64_t kClaimRows = 64;  // from here on row groups are claimed
constexpr int kMaxParts = 16;

const PackedWeight& packed(const Weight& w) {
  BRAID_CHECK(w.device_data != nullptr);
  return *static_cast<const PackedWeight*>(w.device_data);
}

bool multipliable(GgmlType type) {
  switch (type) {
    case GgmlType::I8:
    case GgmlType::I16:
    case GgmlType::I32:
    case GgmlType::I64:
    case GgmlType::F64:
    case GgmlType::Q8_1:
    case GgmlType::Q8_K:
      return false;
    default:
      return true;
  }
}

// Floats that may be rounded are kept as Q8_0: products of several rows take a third of the time.
GgmlType kept_type(const Weight& w, Activations activations) {
  const bool is_float =
      w.type == GgmlType::F32 || w.type == GgmlType::F16 || w.type == GgmlType::BF16;
  const bool rounds = w.may_round && is_float && activations != Activations::f32;
  return rounds && w.k % block_elems(GgmlType::Q8_0) == 0 ? GgmlType::Q8_0 : w.type;
}

size_t tiles_bytes(const Weight& w, GgmlType kept) {
  const int64_t groups = (w.n + kGroupRows - 1) / kGroupRows;
  return static_cast<size_t>(w.experts * groups) * group_bytes(layout_of(kept), kept, w.k);
}

// Rows of the file as `kept`. Returns the number of rows with NaN or infinity, which become zeros.
int64_t round_rows(const Weight& w, GgmlType kept, std::span<const std::byte> file, int rows,
                   std::vector<std::byte>& out) {
  const size_t kept_bytes = static_cast<size_t>(w.k) / block_elems(kept) * block_bytes(kept);
  std::vector<float> row(static_cast<size_t>(w.k));
  int64_t zeros = 0;
  out.resize(static_cast<size_t>(rows) * kept_bytes);
  for (int r = 0; r < rows; r++) {
    std::byte* to = out.data() + static_cast<size_t>(r) * kept_bytes;
    decode_row(w.type, file.data() + static_cast<size_t>(r) * w.file_row_bytes(), row.data(), w.k);
    bool holds_numbers = all_finite(row.data(), w.k);
    if (holds_numbers) {
      encode_row(kept, row.data(), to, w.k);
      holds_numbers = !find_invalid_block(kept, to, w.k);
    }
    if (holds_numbers) continue;
    std::memset(to, 0, kept_bytes);
    ++zeros;
  }
  return zeros;
}

// Rows in the file's format, file_row_bytes() apart: in the file, or else joined in `gathered`.
const std::byte* group_rows(const Weight& w, int64_t expert, int64_t first, int rows,
                            std::vector<std::byte>& gathered) {
  if (w.columns.empty()) {
    const Weight::FileRows file = w.file_rows(expert, first, rows);
    if (file.count == rows) return file.data;
  }
  const size_t row_bytes = w.file_row_bytes();
  gathered.resize(static_cast<size_t>(rows) * row_bytes);
  for (int r = 0; r < rows; ++r)
    w.copy_row(expert, first + r, gathered.data() + static_cast<size_t>(r) * row_bytes);
  return gathered.data();
}

int64_t repack_share(const Weight& w, const PackedWeight& packed_weight, std::byte* tiles,
                     int64_t begin, int64_t end) {
  int64_t zeros = 0;
  const size_t row_bytes = w.file_row_bytes();
  std::vector<std::byte> gathered;  // a group that is not contiguous in the file
  std::vector<std::byte> rounded;
  for (int64_t i = begin; i < end; i++) {
    const int64_t expert = i / packed_weight.groups, first = i % packed_weight.groups * kGroupRows;
    const auto rows = static_cast<int>(std::min<int64_t>(kGroupRows, w.n - first));
    const std::byte* const file = group_rows(w, expert, first, rows, gathered);
    std::byte* const to = tiles + static_cast<size_t>(i) * packed_weight.group_bytes;
    if (packed_weight.type == w.type) {
      repack_group(packed_weight.layout, w.type, file, row_bytes, rows, w.k, to);
    } else {
      zeros += round_rows(w, packed_weight.type, {file, static_cast<size_t>(rows) * row_bytes},
                          rows, rounded);
      repack_group(packed_weight.layout, packed_weight.type, rounded.data(),
                   rounded.size() / static_cast<size_t>(rows), rows, w.k, to);
    }
  }
  return zeros;
}

}  // namespace

void ActBuffer::carve(Carver& carver, size_t count) {
  blocks = count;
  head = carver.take<ActHead>(count);
  codes = carver.take<ActCodes>(count);
  nibbles = carver.take<ActNibbles>(count);
  wide = carver.take<ActWide>(count);
}

ActView ActBuffer::view(const Tensor& x, uint8_t needs) const {
  ActView v;
  v.rows = x.rows;
  v.head = head;
  if (needs & kNeedsCodes) v.codes = codes;
  if (needs & kNeedsNibbles) v.nibbles = nibbles;
  if (needs & kNeedsWide) v.wide = wide;
  v.x = x.f32();
  v.x_stride = x.stride;
  return v;
}

Products::Products(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Products::~Products() = default;

Result<std::unique_ptr<Products>> Products::make(ThreadPool& pool, Activations activations) {
  const char* forced = std::getenv("BRAID_CPU");
  const ProductTable* table = choose_products(forced);
  if (table == nullptr) {
    return Error{
        ErrorKind::unsupported,
        fmt::format("BRAID_CPU={}: this processor or this build has no such path", forced)};
  }
  return std::unique_ptr<Products>(new Products(std::make_unique<Impl>(pool, activations, *table)));
}

const char* Products::path() const { return impl_->table.name; }

size_t Products::weight_bytes(const Weight& weight) const {
  return weight.is_product ? tiles_bytes(weight, kept_type(weight, impl_->activations)) : 0;
}

Status Products::load_weights(std::span<Weight* const> weights, const Device::WeightDone& done) {
  size_t total_bytes = 0;
  for (const Weight* w : weights) {
    if (!w->is_product) continue;
    if (!multipliable(w->type)) {
      return Error{ErrorKind::unsupported,
                   fmt::format("{}: the CPU cannot multiply with elements of type {}", w->name,
                               type_name(w->type))};
    }
    total_bytes += weight_bytes(*w);
  }
  // Room for one more tile: kernels prefetch beyond the end.
  BRAID_ASSIGN(Mapping memory, Mapping::make(total_bytes + 8192));
  std::byte* at = memory.data();
  for (Weight* w : weights) {
    if (!w->is_product) continue;
    PackedWeight& p = impl_->weights.emplace_back();
    p.type = kept_type(*w, impl_->activations);
    p.layout = layout_of(p.type);
    p.n = w->n;
    p.k = w->k;
    p.experts = w->experts;
    p.groups = (w->n + kGroupRows - 1) / kGroupRows;
    p.group_bytes = group_bytes(p.layout, p.type, p.k);
    p.tiles = at;
    std::atomic<int64_t> zeros = 0;
    impl_->pool.run([&](int worker) {
      const auto [begin, end] = impl_->pool.share(p.experts * p.groups, worker);
      zeros += repack_share(*w, p, at, begin, end);
    });
    if (zeros > 0)
      log_warning(
          fmt::format("{}: {} of {} rows hold more than numbers and count as zeros: guesses get "
                      "worse, answers do not",
                      w->name, zeros.load(), w->experts * w->n));
    w->device_data = &p;
    w->device_bytes = weight_bytes(*w);
    at += w->device_bytes;
    if (done) done(*w);
  }
  impl_->weight_memory.push_back(std::move(memory));
  size_t loaded_bytes = 0;
  for (const Mapping& m : impl_->weight_memory) loaded_bytes += m.size_bytes();
  impl_->ahead_bytes =
      prefetch_distance(loaded_bytes, last_level_cache_bytes("/sys/devices/system/cpu"));
  return {};
}

void Products::load_rows(const Weight& weight, std::span<const int32_t> rows) {
  const auto& p = *static_cast<const PackedWeight*>(weight.device_data);
  std::vector<int64_t> groups;
  for (const int32_t row : rows) groups.push_back(row / kGroupRows);
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  impl_->pool.run([&](int worker) {
    const auto [begin, end] = impl_->pool.share(std::ssize(groups), worker);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t group = groups[static_cast<size_t>(i)];
      repack_share(weight, p, const_cast<std::byte*>(p.tiles), group, group + 1);
    }
  });
}

void Products::Impl::reserve_buffers(Carver& carver, const Device::WorkspaceNeeds& needs) {
  const auto blocks_of = [](int64_t k) { return static_cast<size_t>((k + kBlockK - 1) / kBlockK); };
  max_tokens = needs.max_tokens;
  expert_width = needs.expert_width;
  max_experts = needs.experts;
  max_slots = int64_t{needs.max_tokens} * needs.experts_used;
  const int64_t widest = std::max({needs.max_width, needs.expert_width, needs.model_width});
  const auto tokens = static_cast<size_t>(max_tokens);
  const size_t hidden_rows = needs.experts > 0 ? static_cast<size_t>(max_slots + max_tokens) : 0;
  act.carve(carver, std::max(tokens * blocks_of(widest), hidden_rows * blocks_of(expert_width)));
  hidden = carver.take<float>(hidden_rows * static_cast<size_t>(expert_width));
  slot_token = carver.take<int32_t>(static_cast<size_t>(max_slots));
  slot_weight = carver.take<float>(static_cast<size_t>(max_slots));
  const auto experts = static_cast<size_t>(max_experts) + 1;
  expert_begin = carver.take<int32_t>(experts + 1);
  pieces = carver.take<GemmPart>(experts);
  down_pieces = carver.take<GemmPart>(experts);
  shared_weight = carver.take<float>(tokens);
  workers.resize(static_cast<size_t>(pool.size()));
  for (Worker& w : workers) {
    w.scratch = carver.take<std::byte>(kScratchBytes);
    w.out = carver.take<float>(kChunkRows * kOutStride);
    w.up = carver.take<float>(kChunkRows * kOutStride);
    w.act.carve(carver, kFewRows * blocks_of(widest));
    carver.take<std::byte>(4096 + 256);  // puts the scratch of workers on different cache sets
  }
}

size_t Products::workspace_bytes(const Device::WorkspaceNeeds& needs) const {
  BRAID_CHECK(impl_->workspace.data() == nullptr);
  Carver count(nullptr);
  impl_->reserve_buffers(count, needs);
  return Mapping::size_of(count.used_bytes());
}

Result<size_t> Products::reserve(const Device::WorkspaceNeeds& needs) {
  BRAID_CHECK(needs.max_tokens >= 1);
  impl_->workspace = Mapping();
  BRAID_ASSIGN(impl_->workspace, Mapping::make(workspace_bytes(needs)));
  Carver carver(impl_->workspace.data());
  impl_->reserve_buffers(carver, needs);
  return impl_->workspace.size_bytes();
}

const Kernels& Products::Impl::kernels_of(const PackedWeight& w) const {
  const auto i = static_cast<size_t>(w.layout);
  switch (activations) {
    case Activations::i8:
      return table.i8[i];
    case Activations::i16:
      return table.i16[i];
    case Activations::f32:
      break;
  }
  return table.f32[i];
}

GemmPart Products::Impl::make_piece(const Weight& w, const Weight* up, int64_t expert) const {
  const auto scale_of = [&](const Weight& weight) {
    if (weight.scales.empty()) return 1.0f;
    return weight.scales[weight.scales.size() == 1 ? 0 : static_cast<size_t>(expert)];
  };
  GemmPart piece;
  piece.w = &packed(w);
  piece.kernels = &kernels_of(*piece.w);
  piece.scale = scale_of(w);
  piece.expert = expert;
  piece.n = w.n;
  if (up != nullptr) {
    piece.up = &packed(*up);
    piece.up_kernels = &kernels_of(*piece.up);
    piece.up_scale = scale_of(*up);
    BRAID_CHECK(up->n == w.n && up->k == w.k);
  }
  return piece;
}

void Products::Impl::quantize_row(const ActBuffer& buffer, const Tensor& x, int64_t row,
                                  uint8_t needs) const {
  BRAID_CHECK(static_cast<size_t>(x.rows * ((x.cols + kBlockK - 1) / kBlockK)) <= buffer.blocks);
  QuantizeJob job;
  job.x = x.f32(row);
  job.k = x.cols;
  job.row = row;
  job.rows = x.rows;
  job.needs = needs;
  job.wide_codes = activations == Activations::i16;
  job.head = buffer.head;
  job.codes = buffer.codes;
  job.nibbles = buffer.nibbles;
  job.wide = buffer.wide;
  table.quantize(job);
}

namespace {

void scale_all(float* p, int64_t count, float scale) {
  if (scale == 1.0f) return;
  for (int64_t i = 0; i < count; i++) p[i] *= scale;
}

}  // namespace

void Products::Impl::run_groups(const GemmPart& piece, const ActView& act_view, int worker,
                                int64_t g0, int64_t g1, int64_t row, int64_t rows) const {
  const Worker& mine = workers[static_cast<size_t>(worker)];
  const bool few = piece.rows <= kFewRows;
  for (int64_t g = g0; g < g1; g += kCallGroups) {
    Job job;
    job.groups = std::min(kCallGroups, g1 - g);
    job.k = piece.w->k;
    job.act = act_view;
    job.row = piece.row != nullptr ? piece.row + row : nullptr;
    job.first = piece.first + row;
    job.rows = rows;
    job.out_stride = kOutStride;
    job.ahead_bytes = ahead_bytes;
    job.scratch = mine.scratch;
    const int64_t width = job.groups * kGroupRows;
    const auto multiply = [&](const PackedWeight& w, const Kernels& kernels, float scale,
                              float* out) {
      job.tiles = w.group(piece.expert, g);
      job.group_bytes = w.group_bytes;
      job.raw_type = static_cast<uint32_t>(w.type);
      job.out = out;
      (few ? kernels.few : kernels.many)(job);
      for (int64_t m = 0; scale != 1.0f && m < rows; m++)
        scale_all(out + m * kOutStride, width, scale);
    };
    multiply(*piece.w, *piece.kernels, piece.scale, mine.out);
    if (piece.up != nullptr) {
      multiply(*piece.up, *piece.up_kernels, piece.up_scale, mine.up);
      for (int64_t m = 0; m < rows; m++) {
        float* const gate = mine.out + m * kOutStride;
        table.silu_mul(gate, gate, mine.up + m * kOutStride, width);
      }
    }
    const int64_t columns = std::min(width, piece.n - g * kGroupRows);
    for (int64_t m = 0; m < rows; m++) {
      const float* from = mine.out + m * kOutStride;
      float* to = piece.y.f32(piece.y_first + row + m) + g * kGroupRows;
      if (piece.tail == Tail::add) {
        for (int64_t i = 0; i < columns; i++) to[i] += from[i];
      } else if (columns == kCallGroups * kGroupRows) {
        std::memcpy(to, from, kCallGroups * kGroupRows * sizeof(float));  // constant size: no call
      } else {
        std::memcpy(to, from, static_cast<size_t>(columns) * sizeof(float));
      }
    }
  }
}

void Products::Impl::run_share(std::span<const GemmPart> pieces_in, const ActView& act_view,
                               int worker) const {
  size_t total = 0;
  for (const GemmPart& p : pieces_in)
    total += static_cast<size_t>(p.groups()) * p.bytes_per_group();
  const auto threads = static_cast<size_t>(pool.size());
  const auto begin = total / threads * static_cast<size_t>(worker);
  const auto end =
      worker + 1 == pool.size() ? total : total / threads * static_cast<size_t>(worker + 1);
  size_t offset = 0;
  for (const GemmPart& p : pieces_in) {
    const size_t bytes = p.bytes_per_group(), size = static_cast<size_t>(p.groups()) * bytes;
    // A group belongs to the worker whose share has its first byte.
    const auto first_from = [&](size_t at) {
      return at <= offset
                 ? 0
                 : std::min(p.groups(), static_cast<int64_t>((at - offset + bytes - 1) / bytes));
    };
    const int64_t g0 = first_from(begin), g1 = first_from(end);
    for (int64_t row = 0; g0 < g1 && row < p.rows; row += kChunkRows) {
      run_groups(p, act_view, worker, g0, g1, row, std::min(kChunkRows, p.rows - row));
    }
    offset += size;
  }
}

void Products::Impl::run_claimed(std::span<const GemmPart> pieces_in, const ActView& act_view,
                                 int worker) {
  int64_t groups = 0;
  for (const GemmPart& p : pieces_in) groups += p.groups();
  const int64_t span = std::clamp<int64_t>(groups / (pool.size() * int64_t{8}), 1, 8);
  int64_t next = counter.claim(), first = 0;
  for (const GemmPart& p : pieces_in) {
    const int64_t blocks = (p.groups() + span - 1) / span;
    const int64_t chunks = (p.rows + kChunkRows - 1) / kChunkRows;
    for (; next < first + blocks * chunks; next = counter.claim()) {
      const int64_t g0 = (next - first) / chunks * span, row = (next - first) % chunks * kChunkRows;
      run_groups(p, act_view, worker, g0, std::min(g0 + span, p.groups()), row,
                 std::min(kChunkRows, p.rows - row));
    }
    first += blocks * chunks;
  }
}

void Products::linear(std::span<const LinearPart> parts, Tensor x) {
  Impl& impl = *impl_;
  BRAID_CHECK(!parts.empty() && parts.size() <= kMaxParts && x.rows >= 1);
  GemmPart pieces[kMaxParts];
  uint8_t needs = 0;
  for (size_t i = 0; i < parts.size(); i++) {
    const LinearPart& part = parts[i];
    BRAID_CHECK(part.w->k == x.cols && part.y.rows >= x.rows && part.y.cols == part.w->n);
    BRAID_CHECK((part.tail == Tail::silu_mul) == (part.up != nullptr));
    pieces[i] = impl.make_piece(*part.w, part.up, 0);
    pieces[i].tail = part.tail;
    pieces[i].y = part.y;
    pieces[i].rows = x.rows;
    needs |= pieces[i].needs();
  }
  const std::span<const GemmPart> list(pieces, parts.size());
  const bool quantized = (needs & ~kNeedsFloat) != 0;
  if (x.rows <= kFewRows) {
    impl.pool.run([&](int worker) {
      const ActBuffer& mine = impl.workers[static_cast<size_t>(worker)].act;
      for (int64_t m = 0; quantized && m < x.rows; m++) impl.quantize_row(mine, x, m, needs);
      impl.run_share(list, mine.view(x, needs), worker);
    });
    return;
  }
  BRAID_CHECK(x.rows <= impl.max_tokens);
  impl.counter.reset();
  impl.pool.run([&](int worker) {
    if (quantized) {
      const auto [begin, end] = impl.pool.share(x.rows, worker);
      for (int64_t m = begin; m < end; m++) impl.quantize_row(impl.act, x, m, needs);
      impl.pool.barrier(worker);
    }
    const ActView view = impl.act.view(x, needs);
    if (x.rows < kClaimRows) {
      impl.run_share(list, view, worker);
    } else {
      impl.run_claimed(list, view, worker);
    }
  });
}

void Products::logits(Tensor logits, const Weight& w, Tensor x) {
  const LinearPart part{&w, nullptr, logits, Tail::store};
  linear(std::span(&part, 1), x);
}

void Products::embed(Tensor y, const Weight& table, const Batch& batch) {
  const float scale = table.scales.empty() ? 1.0f : table.scales[0];
  BRAID_CHECK(y.rows >= batch.tokens && y.cols == table.k);
  const auto copy = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; t++) {
      const int32_t token = batch.token[t];
      BRAID_CHECK(token >= 0 && token < table.n);
      decode_weight_row(table, 0, token, y.f32(t));
      scale_all(y.f32(t), table.k, scale);
    }
  };
  if (batch.tokens == 1) {
    const FlushDenormals flush;
    copy(0, 1);
    return;
  }
  impl_->pool.run([&](int worker) {
    const auto [begin, end] = impl_->pool.share(batch.tokens, worker);
    copy(begin, end);
  });
}

}  // namespace braid::cpu
