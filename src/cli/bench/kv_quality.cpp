#include "cli/bench/kv_quality.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "gguf/half.h"

namespace braid {

namespace {

// Sixteen partial sums let the compiler vectorize.
float dot(const float* a, const float* b, int64_t n) {
  float partial[16] = {};
  for (int64_t i = 0; i < n; i += 16) {
    for (int64_t j = 0; j < 16; ++j) partial[j] += a[i + j] * b[i + j];
  }
  float sum = 0;
  for (const float p : partial) sum += p;
  return sum;
}

struct HeadRows {
  std::vector<float> exact;    // [positions][head_dim]
  std::vector<float> decoded;  // [full blocks * kBlockTokens][head_dim]
};

std::vector<float> rows_of_head(const LayerRows& rows, const std::vector<float>& all,
                                int32_t head) {
  const int64_t head_dim = rows.config.head_dim;
  std::vector<float> out;
  out.reserve(static_cast<size_t>(rows.positions * head_dim));
  for (int32_t p = 0; p < rows.positions; ++p) {
    const float* row = all.data() + p * rows.config.kv_width() + head * head_dim;
    out.insert(out.end(), row, row + head_dim);
  }
  return out;
}

std::vector<uint16_t> mean_of(const std::vector<float>& rows, int64_t head_dim) {
  std::vector<double> sums(static_cast<size_t>(head_dim));
  for (size_t i = 0; i < rows.size(); ++i) sums[i % sums.size()] += rows[i];
  std::vector<uint16_t> mean;
  for (const double sum : sums) {
    const double count = static_cast<double>(rows.size()) / static_cast<double>(head_dim);
    mean.push_back(f32_to_f16(static_cast<float>(sum / count)));
  }
  return mean;
}

HeadRows through(const KvCodec& codec, KvSide side, std::vector<float> exact, int32_t head_dim,
                 bool subtract_mean) {
  HeadRows head{std::move(exact), {}};
  const size_t unit_values = static_cast<size_t>(kBlockTokens) * static_cast<size_t>(head_dim);
  const size_t units = head.exact.size() / unit_values;
  const std::vector<uint16_t> mean =
      subtract_mean ? mean_of(head.exact, head_dim) : std::vector<uint16_t>{};
  head.decoded.resize(units * unit_values);
  std::vector<uint8_t> unit(static_cast<size_t>(codec.unit_bytes(head_dim, side)));
  std::vector<uint16_t> halves(unit_values);
  for (size_t u = 0; u < units; ++u) {
    for (size_t i = 0; i < unit_values; ++i)
      halves[i] = f32_to_f16(head.exact[u * unit_values + i]);
    BRAID_CHECK(kv_encode(codec, head_dim, side, halves.data(), head_dim,
                          mean.empty() ? nullptr : mean.data(), unit.data()));
    float* rows = head.decoded.data() + u * unit_values;
    codec.decode(unit.data(), head_dim, side, rows);
    for (int32_t t = 0; t < kBlockTokens; ++t)
      kv_unrotate(codec, rows + int64_t{t} * head_dim, head_dim);
    for (size_t i = 0; i < unit_values && !mean.empty(); ++i)
      rows[i] += f16_to_f32(mean[i % static_cast<size_t>(head_dim)]);
  }
  return head;
}

struct Difference {
  double off = 0;
  double all = 0;
  void add(double is, double was) {
    off += (is - was) * (is - was);
    all += was * was;
  }
  double relative() const { return all > 0 ? std::sqrt(off / all) : 0; }
};

void add_error(Difference& d, const HeadRows& head) {
  for (size_t i = 0; i < head.decoded.size(); ++i) d.add(head.decoded[i], head.exact[i]);
}

void log_softmax(std::vector<double>& scores) {
  const double most = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (const double s : scores) sum += std::exp(s - most);
  for (double& s : scores) s -= most + std::log(sum);
}

struct Attended {
  std::vector<double> log_weights;
  std::vector<float> output;
};

struct Sealed {
  int32_t begin = 0;
  int32_t end = 0;
  bool has(int32_t cell) const { return cell >= begin && cell < end; }
};

void attend(Attended& out, const float* q, const HeadRows& k, const HeadRows& v,
            const AttentionConfig& config, int32_t first, int32_t position, const Sealed& sealed) {
  const int64_t head_dim = config.head_dim;
  out.log_weights.clear();
  for (int32_t cell = first; cell <= position; ++cell) {
    const std::vector<float>& rows = sealed.has(cell) ? k.decoded : k.exact;
    out.log_weights.push_back(double{config.scale} *
                              dot(q, rows.data() + cell * head_dim, head_dim));
  }
  log_softmax(out.log_weights);
  out.output.assign(static_cast<size_t>(head_dim), 0.0f);
  for (int32_t cell = first; cell <= position; ++cell) {
    const std::vector<float>& rows = sealed.has(cell) ? v.decoded : v.exact;
    const auto weight =
        static_cast<float>(std::exp(out.log_weights[static_cast<size_t>(cell - first)]));
    const float* row = rows.data() + cell * head_dim;
    for (size_t d = 0; d < out.output.size(); ++d) out.output[d] += weight * row[d];
  }
}

}  // namespace

KvQuality measure_kv_quality(const LayerRows& rows, const KvCodec& k, const KvCodec& v,
                             const KvQualityOptions& options) {
  const AttentionConfig& config = rows.config;
  BRAID_CHECK(rows.positions > options.first_query && config.head_dim % 16 == 0 &&
              options.query_step > 0);
  KvQuality quality;
  Difference k_off;
  Difference v_off;
  Difference o_off;
  double divergence = 0;
  const int32_t full = rows.positions / kBlockTokens * kBlockTokens;
  const int32_t group = config.heads / config.kv_heads;
  for (int32_t kv_head = 0; kv_head < config.kv_heads; ++kv_head) {
    const HeadRows keys = through(k, KvSide::k, rows_of_head(rows, rows.k, kv_head),
                                  config.head_dim, options.subtract_k_mean);
    const HeadRows values =
        through(v, KvSide::v, rows_of_head(rows, rows.v, kv_head), config.head_dim, false);
    add_error(k_off, keys);
    add_error(v_off, values);
    Attended exact;
    Attended stored;
    for (int32_t p = options.first_query; p < rows.positions; p += options.query_step) {
      const int32_t first = config.params().lowest_position(p);
      const auto [begin, end] = options.sealed(p);
      const Sealed sealed{begin, std::min(end, full)};
      for (int32_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
        attend(exact, rows.query(p, h), keys, values, config, first, p, {});
        attend(stored, rows.query(p, h), keys, values, config, first, p, sealed);
        for (size_t i = 0; i < exact.log_weights.size(); ++i)
          divergence +=
              std::exp(exact.log_weights[i]) * (exact.log_weights[i] - stored.log_weights[i]);
        for (size_t d = 0; d < exact.output.size(); ++d)
          o_off.add(stored.output[d], exact.output[d]);
        ++quality.queries;
      }
    }
  }
  quality.k_error = k_off.relative();
  quality.v_error = v_off.relative();
  quality.divergence = divergence / static_cast<double>(quality.queries);
  quality.output_error = o_off.relative();
  return quality;
}

}  // namespace braid
