// ref_attention.cpp -- storing rotated keys and values, softmax over visible cells: the reference.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "gguf/half.h"
#include "ops/kv/kv_codec.h"
#include "ops/ref_math.h"
#include "ops/ref_ops.h"
#include "ops/sparse_prefill.h"

namespace braid {

namespace {

void store_row(KvFormat format, std::byte* dst, const float* src, int64_t count) {
  if (format == KvFormat::f32) {
    std::memcpy(dst, src, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t bits = format == KvFormat::f16 ? f32_to_f16(src[i]) : f32_to_bf16(src[i]);
    std::memcpy(dst + i * 2, &bits, sizeof bits);
  }
}

void load_row(KvFormat format, float* dst, const std::byte* src, int64_t count) {
  if (format == KvFormat::f32) {
    std::memcpy(dst, src, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, src + i * 2, sizeof bits);
    dst[i] = format == KvFormat::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
  }
}

struct CellAddress {
  int32_t block;
  int32_t in_block;
};

CellAddress address_of(const KvLayer& kv, const Batch& batch, int32_t sequence, int32_t cell) {
  BRAID_CHECK(cell >= 0 && cell / kBlockTokens < batch.blocks_per_sequence);
  const int32_t block = batch.blocks_of(sequence)[cell / kBlockTokens];
  BRAID_CHECK(block >= 0 && block < kv.blocks);
  return {block, cell % kBlockTokens};
}

// out = rope(x / rms(x) * norm); the first `dims` values are rotated in pairs (i, i + dims / 2).
void norm_and_rotate(float* out, const float* x, const float* norm, float eps, int64_t head_dim,
                     const float* rope, int64_t dims) {
  const double inverse = ref::inverse_rms(x, head_dim, eps);
  std::vector<double> y(static_cast<size_t>(head_dim));
  for (int64_t i = 0; i < head_dim; ++i) y[i] = x[i] * inverse * norm[i];
  for (int64_t i = 0; i < dims / 2; ++i) {
    const double cosine = rope[2 * i];
    const double sine = rope[2 * i + 1];
    const double a = y[i];
    const double b = y[i + dims / 2];
    y[i] = a * cosine - b * sine;
    y[i + dims / 2] = a * sine + b * cosine;
  }
  for (int64_t i = 0; i < head_dim; ++i) out[i] = static_cast<float>(y[i]);
}

struct Visible {
  int32_t cell;
  int32_t position;
};

std::vector<Visible> visible_cells(const Batch& batch, int32_t t, const AttentionParams& params) {
  const int32_t s = batch.sequence[t];
  const int32_t own = batch.position[t];
  const bool certain = t - batch.first_row[s] < batch.certain[s];
  std::vector<Visible> seen;
  const int32_t committed = certain ? own + 1 : batch.context[s];
  for (int32_t cell = 0; cell < committed; ++cell) seen.push_back({cell, cell});
  if (!certain) {
    std::vector<Visible> path;
    for (int32_t row = t; row >= 0; row = batch.parent[row])
      path.push_back({batch.cell[row], batch.position[row]});
    seen.insert(seen.end(), path.rbegin(), path.rend());
  }
  std::erase_if(seen, [&](const Visible& v) { return v.position < params.lowest_position(own); });
  return seen;
}

struct HeadRows {
  std::vector<float> k;
  std::vector<float> v;
  HeadRows() = default;
  HeadRows(int32_t cells, int64_t head_dim) : k(static_cast<size_t>(cells * head_dim), NAN), v(k) {}
};

// The rows that a sequence reads: cells from `first` on as written, and decoded units.
class HeadCache {
 public:
  HeadCache(const KvLayer& kv, const Batch& batch, int32_t sequence, int32_t head, int32_t first,
            int32_t cells)
      : kv_(kv), head_(head), exact_(cells, kv.shape.head_dim) {
    int32_t exact_from = first, sealed_end = 0;
    if (kv.cold) {
      exact_from = cells;
      sealed_ = HeadRows(cells, kv.shape.head_dim);
      const int32_t begin = batch.first_row[sequence];
      for (int32_t t = begin; t < begin + batch.rows[sequence]; ++t) {
        const int32_t from = kv.cold.tail.exact_from(batch.position[t]);
        // No row reads a block from a unit before it is certain.
        BRAID_CHECK(from <= std::max(batch.context[sequence], kv.cold.tail.sealed_from()));
        exact_from = std::min(exact_from, from);
        sealed_end = std::max(sealed_end, from);
      }
    }
    for (int32_t cell = first; cell < cells; ++cell) {
      // Blocks without exact readers may have been freed.
      if (cell < exact_from && cell >= kv.cold.tail.sealed_from()) continue;
      const CellAddress at = address_of(kv, batch, sequence, cell);
      const int64_t to = cell * kv.shape.head_dim;
      load_row(kv.shape.k_format, exact_.k.data() + to, kv.k_row(at.block, head, at.in_block),
               kv.shape.head_dim);
      load_row(kv.shape.v_format, exact_.v.data() + to, kv.v_row(at.block, head, at.in_block),
               kv.shape.head_dim);
    }
    const int32_t from = std::max(kv.cold.tail.sealed_from(), first / kBlockTokens * kBlockTokens);
    for (int32_t cell = from; cell < sealed_end; cell += kBlockTokens)
      load_units(batch.cold_blocks_of(sequence)[cell / kBlockTokens], cell);
  }

  const float* k(int32_t cell, int32_t position) const {
    return rows(cell, position).k.data() + offset(cell);
  }
  const float* v(int32_t cell, int32_t position) const {
    return rows(cell, position).v.data() + offset(cell);
  }

 private:
  const HeadRows& rows(int32_t cell, int32_t position) const {
    return kv_.cold && !kv_.cold.tail.reads_exact(position, cell) ? sealed_ : exact_;
  }
  int64_t offset(int32_t cell) const { return int64_t{cell} * kv_.shape.head_dim; }

  void load_units(int32_t block, int32_t cell) {
    BRAID_CHECK(block >= 0 && block < kv_.cold.blocks);
    load_unit(*kv_.cold.k_codec, KvSide::k, kv_.k_unit(block, head_),
              sealed_.k.data() + offset(cell));
    load_unit(*kv_.cold.v_codec, KvSide::v, kv_.v_unit(block, head_),
              sealed_.v.data() + offset(cell));
  }
  void load_unit(const KvCodec& codec, KvSide side, const std::byte* unit, float* out) const {
    const int32_t head_dim = kv_.shape.head_dim;
    codec.decode(reinterpret_cast<const uint8_t*>(unit), head_dim, side, out);
    for (int64_t t = 0; t < kBlockTokens; ++t) kv_unrotate(codec, out + t * head_dim, head_dim);
  }

  const KvLayer& kv_;
  int32_t head_;
  HeadRows exact_;
  HeadRows sealed_;
};

void attend(float* o, const float* q, int32_t own, const std::vector<Visible>& seen,
            const HeadCache& cache, double scale, int64_t head_dim) {
  std::vector<double> score(seen.size());
  double largest = -INFINITY;
  for (size_t i = 0; i < seen.size(); ++i) {
    score[i] = scale * ref::dot(q, cache.k(seen[i].cell, own), head_dim);
    largest = std::max(largest, score[i]);
  }
  std::vector<double> sum(static_cast<size_t>(head_dim), 0.0);
  double total = 0;
  for (size_t i = 0; i < seen.size(); ++i) {
    const double weight = std::exp(score[i] - largest);
    const float* v = cache.v(seen[i].cell, own);
    total += weight;
    for (int64_t j = 0; j < head_dim; ++j) sum[j] += weight * v[j];
  }
  for (int64_t j = 0; j < head_dim; ++j) o[j] = static_cast<float>(sum[j] / total);
}

// The sums of a query head over its rows begin .. end-1, which share a query block, for each of
// `means`. They are divided by a common factor, which keeps them finite.
std::vector<double> block_masses(Tensor q, int32_t begin, int32_t end, int32_t head,
                                 const std::vector<std::vector<double>>& means, double scale) {
  std::vector<std::vector<double>> scores(means.size());
  double largest = -INFINITY;
  for (size_t n = 0; n < means.size(); ++n) {
    const size_t head_dim = means[n].size();
    for (int32_t t = begin; t < end; ++t) {
      double sum = 0;
      for (size_t i = 0; i < head_dim; ++i) sum += q.f32(t)[head * head_dim + i] * means[n][i];
      scores[n].push_back(scale * sum);
      largest = std::max(largest, scale * sum);
    }
  }
  std::vector<double> masses(means.size());
  for (size_t n = 0; n < means.size(); ++n)
    for (const double score : scores[n]) masses[n] += std::exp(score - largest);
  return masses;
}

// The key blocks that query blocks read (sparse_prefill.h).
class BlockChoice {
 public:
  BlockChoice(Tensor q, const AttentionParams& params, const KvLayer& kv, const Batch& batch,
              int32_t sequence, int32_t kv_head, const HeadCache& cache) {
    if (params.window > 0 || params.first_cell > 0 || !sparse_sequence(batch, sequence)) return;
    const int32_t begin = batch.first_row[sequence], end = begin + batch.rows[sequence];
    const int32_t last = batch.position[end - 1], group = params.heads / kv.shape.kv_heads;
    std::vector<std::vector<double>> means;
    for (int32_t n = 0; n < last / kSparseBlock; ++n) {
      std::vector<double>& mean = means.emplace_back(static_cast<size_t>(kv.shape.head_dim), 0.0);
      for (int32_t cell = n * kSparseBlock; cell < (n + 1) * kSparseBlock; ++cell)
        for (size_t i = 0; i < mean.size(); ++i) mean[i] += cache.k(cell, last)[i] / kSparseBlock;
    }
    for (int32_t t = begin, next; t < end; t = next) {
      const int32_t m = batch.position[t] / kSparseBlock;
      for (next = t; next < end && batch.position[next] / kSparseBlock == m;) ++next;
      const int32_t start = sparse_window_start(m, kv.cold ? &kv.cold.tail : nullptr);
      std::vector<bool>& reads = reads_[m];
      for (int32_t n = 0; n <= m; ++n) reads.push_back(n < kSparseSinks || n >= start);
      for (int32_t h = kv_head * group; m > 0 && h < (kv_head + 1) * group; ++h) {
        const std::vector<double> masses =
            block_masses(q, t, next, h, {means.begin(), means.begin() + m}, params.scale);
        const double least =
            batch.sparse_threshold * *std::max_element(masses.begin(), masses.end());
        for (int32_t n = 0; n < m; ++n)
          if (masses[static_cast<size_t>(n)] >= least) reads[static_cast<size_t>(n)] = true;
      }
    }
  }

  bool reads(int32_t position, int32_t cell) const {
    const auto found = reads_.find(position / kSparseBlock);
    return found == reads_.end() || found->second[static_cast<size_t>(cell / kSparseBlock)];
  }
  void add_to(SparseCounts& counts) const {
    for (const auto& [block, reads] : reads_) {
      counts.read += static_cast<uint64_t>(std::count(reads.begin(), reads.end(), true));
      counts.all += reads.size();
    }
  }

 private:
  std::map<int32_t, std::vector<bool>> reads_;  // of a query block; absent: takes no part
};

// The vector whose norm_and_rotate() with this table gave x.
std::vector<double> unrotated(const float* x, int64_t head_dim, const float* rope, int64_t dims,
                              double magnitude) {
  std::vector<double> y(x, x + head_dim);
  const double factor = 1 / (magnitude * magnitude);
  for (int64_t i = 0; i < dims / 2; ++i) {
    const double cosine = rope[2 * i], sine = rope[2 * i + 1];
    const double a = x[i], b = x[i + dims / 2];
    y[i] = factor * (a * cosine + b * sine);
    y[i + dims / 2] = factor * (b * cosine - a * sine);
  }
  return y;
}

// A NaN gives zeros.
void seal_unit(const KvCodec& codec, KvSide side, const std::byte* rows, int32_t head_dim,
               std::byte* unit) {
  const auto* halves = reinterpret_cast<const uint16_t*>(rows);
  if (!kv_encode(codec, head_dim, side, halves, head_dim, nullptr,
                 reinterpret_cast<uint8_t*>(unit)))
    std::memset(unit, 0, static_cast<size_t>(codec.unit_bytes(head_dim, side)));
}

void seal_block(const KvLayer& kv, const KvSeal& seal) {
  BRAID_CHECK(kv.shape.k_format == KvFormat::f16 && kv.shape.v_format == KvFormat::f16);
  BRAID_CHECK(seal.hot >= 0 && seal.hot < kv.blocks && seal.cold >= 0 &&
              seal.cold < kv.cold.blocks);
  for (int32_t h = 0; h < kv.shape.kv_heads; ++h) {
    seal_unit(*kv.cold.k_codec, KvSide::k, kv.k_row(seal.hot, h, 0), kv.shape.head_dim,
              kv.k_unit(seal.cold, h));
    seal_unit(*kv.cold.v_codec, KvSide::v, kv.v_row(seal.hot, h, 0), kv.shape.head_dim,
              kv.v_unit(seal.cold, h));
  }
}

}  // namespace

void RefOps::qk_norm_rope_store(Tensor q, Tensor qg, Tensor k, Tensor v, Tensor rope_table,
                                const AttentionWeights& w, const AttentionParams& params,
                                const KvLayer& kv, const Batch& batch) {
  const int64_t head_dim = kv.shape.head_dim;
  const int64_t query_stride = params.gate.query_stride(head_dim);
  BRAID_CHECK(q.cols == params.heads * head_dim && qg.cols == params.heads * query_stride);
  BRAID_CHECK(k.cols == kv.shape.kv_heads * head_dim && v.cols == k.cols &&
              rope_table.cols <= head_dim);
  std::vector<float> row(static_cast<size_t>(head_dim));
  for (int32_t t = 0; t < batch.tokens; ++t) {
    const float* rope = rope_table.f32(t);
    for (int32_t h = 0; h < params.heads; ++h) {
      norm_and_rotate(q.f32(t) + h * head_dim, qg.f32(t) + h * query_stride, w.q_norm, w.eps,
                      head_dim, rope, rope_table.cols);
    }
    const CellAddress at = address_of(kv, batch, batch.sequence[t], batch.cell[t]);
    for (int32_t h = 0; h < kv.shape.kv_heads; ++h) {
      norm_and_rotate(row.data(), k.f32(t) + h * head_dim, w.k_norm, w.eps, head_dim, rope,
                      rope_table.cols);
      store_row(kv.shape.k_format, kv.k_row(at.block, h, at.in_block), row.data(), head_dim);
      store_row(kv.shape.v_format, kv.v_row(at.block, h, at.in_block), v.f32(t) + h * head_dim,
                head_dim);
    }
  }
  for (int32_t s = 0; kv.cold && s < batch.sequences; ++s) {
    const Batch::Filled filled = batch.filled_blocks(s);
    for (int32_t b = filled.begin; b < filled.end; ++b)
      seal_block(kv, {batch.blocks_of(s)[b], batch.cold_blocks_of(s)[b]});
  }
}

void RefOps::attention(Tensor o, Tensor q, Tensor gates, const AttentionParams& params,
                       const KvLayer& kv, const Batch& batch) {
  const int64_t head_dim = kv.shape.head_dim;
  BRAID_CHECK(q.cols == params.heads * head_dim && o.cols == q.cols &&
              params.heads % kv.shape.kv_heads == 0);
  const AttentionGate gate = params.gate;
  if (gate.act != AttentionGate::Act::none)
    BRAID_CHECK(gates.cols == gate.columns(params.heads, head_dim));
  const int32_t group = params.heads / kv.shape.kv_heads;
  for (int32_t s = 0; s < batch.sequences; ++s) {
    int32_t cells = 0;
    const int32_t end = batch.first_row[s] + batch.rows[s];
    int32_t lowest = batch.context[s];  // lowest cell that a row sees
    for (int32_t t = batch.first_row[s]; t < end; ++t) {
      cells = std::max(cells, batch.cell[t] + 1);
      lowest = std::min(lowest, params.lowest_position(batch.position[t]));
    }
    for (int32_t kv_head = 0; kv_head < kv.shape.kv_heads && cells > 0; ++kv_head) {
      const HeadCache cache(kv, batch, s, kv_head, lowest, cells);
      const BlockChoice choice(q, params, kv, batch, s, kv_head, cache);
      choice.add_to(sparse_counts);
      for (int32_t t = batch.first_row[s]; t < end; ++t) {
        std::vector<Visible> seen = visible_cells(batch, t, params);
        std::erase_if(
            seen, [&](const Visible& v) { return !choice.reads(batch.position[t], v.position); });
        for (int32_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
          float* out = o.f32(t) + h * head_dim;
          attend(out, q.f32(t) + h * head_dim, batch.position[t], seen, cache, params.scale,
                 head_dim);
          if (gate.act == AttentionGate::Act::none) continue;
          const bool per_head = gate.layout == AttentionGate::Layout::head;
          const float* values = gates.f32(t) + (per_head ? h : h * gate.query_stride(head_dim));
          if (gate.joint()) values += head_dim;
          for (int64_t i = 0; i < head_dim; ++i)
            out[i] = static_cast<float>(out[i] * ref::gate(gate.act, values[per_head ? 0 : i]));
        }
      }
    }
  }
}

void RefOps::tail_scores(Tensor scores, Tensor q, Tensor rope, Tensor rope_of_position,
                         float magnitude, const AttentionParams& params, const KvLayer& kv,
                         const Batch& batch) {
  const int64_t head_dim = kv.shape.head_dim;
  const int32_t group = params.heads / kv.shape.kv_heads;
  const auto rows = static_cast<int32_t>(q.rows);
  const int32_t first = batch.first_row[0] + batch.rows[0] - rows;
  const int32_t cells = batch.position[first + rows - 1] + 1;
  BRAID_CHECK(q.cols == params.heads * head_dim && rows <= kMostTailRows);
  BRAID_CHECK(rows <= batch.certain[0] && batch.certain[0] == batch.rows[0]);
  BRAID_CHECK(scores.rows == rows && scores.cols >= cells);
  const int64_t dims = rope_of_position.cols;
  if (rope_of_position) BRAID_CHECK(rope_of_position.rows >= cells && rope.cols == dims);
  const auto plain = [&](const float* x, const Tensor& table, int32_t row) {
    if (!rope_of_position) return std::vector<double>(x, x + head_dim);
    return unrotated(x, head_dim, table.f32(row), dims, magnitude);
  };
  for (int32_t h = 0; h < params.heads; ++h) {
    const HeadCache cache(kv, batch, 0, h / group, 0, cells);
    for (int32_t i = 0; i < rows; ++i) {
      const int32_t own = batch.position[first + i];
      const int32_t lowest = params.without_window().lowest_position(own);
      const std::vector<double> query = plain(q.f32(i) + h * head_dim, rope, first + i);
      std::vector<double> score;
      double largest = -INFINITY, total = 0;
      for (int32_t j = lowest; j <= own; ++j) {
        const std::vector<double> key = plain(cache.k(j, own), rope_of_position, j);
        double sum = 0;
        for (int64_t d = 0; d < head_dim; ++d) sum += query[d] * key[d];
        score.push_back(params.scale * sum);
        largest = std::max(largest, score.back());
      }
      for (double& x : score) total += x = std::exp(x - largest);
      for (int32_t j = lowest; j <= own; ++j) {
        float& to = scores.f32(i)[j];
        to = std::max(to, static_cast<float>(score[j - lowest] / total));
      }
    }
  }
}

void RefOps::kv_seal(const KvLayer& kv, std::span<const KvSeal> blocks) {
  BRAID_CHECK(kv.cold);
  for (const KvSeal& seal : blocks) seal_block(kv, seal);
}

void RefOps::kv_move(const KvLayer& kv, std::span<const CellMove> moves, const Batch& batch) {
  for (const CellMove& move : moves) {
    BRAID_CHECK(move.from > move.to);
    const CellAddress from = address_of(kv, batch, move.sequence, move.from);
    const CellAddress to = address_of(kv, batch, move.sequence, move.to);
    const size_t k_bytes = static_cast<size_t>(kv_row_bytes(kv.shape.k_format, kv.shape.head_dim));
    const size_t v_bytes = static_cast<size_t>(kv_row_bytes(kv.shape.v_format, kv.shape.head_dim));
    for (int32_t h = 0; h < kv.shape.kv_heads; ++h) {
      std::memcpy(kv.k_row(to.block, h, to.in_block), kv.k_row(from.block, h, from.in_block),
                  k_bytes);
      std::memcpy(kv.v_row(to.block, h, to.in_block), kv.v_row(from.block, h, from.in_block),
                  v_bytes);
    }
  }
}

void RefOps::block_copy(const KvLayer& kv, int32_t dst, int32_t src) {
  BRAID_CHECK(dst >= 0 && dst < kv.blocks && src >= 0 && src < kv.blocks);
  if (dst == src) return;
  const int64_t k_bytes = kv.shape.k_block_bytes();
  const int64_t v_bytes = kv.shape.v_block_bytes();
  std::memcpy(kv.k + dst * k_bytes, kv.k + src * k_bytes, static_cast<size_t>(k_bytes));
  std::memcpy(kv.v + dst * v_bytes, kv.v + src * v_bytes, static_cast<size_t>(v_bytes));
}

}  // namespace braid
