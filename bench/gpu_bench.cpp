// gpu_bench.cpp -- times GPU products, experts, top-k and pinned memory at real shapes.
//
//   gpu_bench [filter [rows]]     only names with the filter; only this number of rows of x.
//   gpu_bench --rows [filter]     us of the products of a decoding step of 27B and 35B-A3B by rows.
//
// Best of five replays of a recorded step of several calls. Weights rotate over copies of at least
// 256 MB, so they do not come from the L2 cache. GB/s counts packed weights, once; the share is of
// a copy kernel. TFLOP/s counts 2 n k for each row.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "gguf/encode.h"
#include "gguf/half.h"
#include "ops/device.h"
#include "ops/ops.h"

namespace braid {
namespace {

uint64_t next_random() {
  static uint64_t state = 88172645463325252u;
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

double now_us() {
  const auto t = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(t).count();
}

template <typename T>
T must(Result<T> result) {
  if (!result.ok()) {
    fmt::print("{}\n", result.error().message);
    std::exit(1);
  }
  return std::move(*result);
}

class Bench {
 public:
  Bench(std::string filter, int64_t rows)
      : filter_(std::move(filter)), rows_(rows), device_(must(make_cuda_device({}))) {}

  void start() {
    fmt::print("{}\n", device_->description());
    Device::WorkspaceNeeds needs;
    needs.max_tokens = 2048;
    needs.max_width = 17408;
    needs.experts = 256;
    needs.experts_used = 8;
    needs.expert_width = 512;
    needs.model_width = 2048;
    (void)must(device_->reserve_workspaces(needs));
    measure_copy();
  }

  void run() {
    start();
    fmt::print("{:<34} {:>5} {:>10} {:>8} {:>6} {:>8}\n", "product", "rows", "us", "GB/s", "copy",
               "TFLOP/s");
    const std::vector<int64_t> few = {1, 4, 8, 16, 32, 64, 128};
    const std::vector<int64_t> all = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048};
    using enum GgmlType;
    product("27b ffn gate+up q4_K", Q4_K, 17408, 5120, true, all);
    product("27b ffn down q6_K", Q6_K, 5120, 17408, false, all);
    product("27b ffn down q4_K", Q4_K, 5120, 17408, false, all);
    product("27b delta qkv q6_K", Q6_K, 10240, 5120, false, few);
    product("27b delta qkv q4_K", Q4_K, 10240, 5120, false, all);
    product("27b delta out q4_K", Q4_K, 5120, 6144, false, all);
    product("27b alpha q4_K", Q4_K, 48, 5120, false, {1, 128});
    product("27b attn q+gate q4_K", Q4_K, 12288, 5120, false, {1, 8, 128});
    product("27b ffn gate+up q8_0", Q8_0, 17408, 5120, true, all);
    product("27b ffn down bf16", BF16, 5120, 17408, false, {1, 8, 64, 2048});
    product("27b lm_head q6_K", Q6_K, 248320, 5120, false, {1, 8, 32, 128});
    product("35b delta qkv q4_K", Q4_K, 8192, 2048, false, few);
    product("35b out q4_K", Q4_K, 2048, 4096, false, few);
    product("35b router f32", F32, 256, 2048, false, {1, 8, 128, 2048});
    product("35b lm_head q6_K", Q6_K, 248320, 2048, false, {1, 8, 128});
    experts("35b experts q4_K/q6_K", Q4_K, Q6_K, {1, 2, 4, 8, 32, 128, 512, 2048});
    experts("35b experts q4_K/q4_K", Q4_K, Q4_K, {1, 8, 128});
    top_k();
    host_memory();
    const Status health = device_->health();
    if (!health.ok()) fmt::print("{}\n", health.error().message);
  }

  void rows_table() {
    start();
    using enum GgmlType;
    fmt::print("{:<28} {:>3}", "us a launch", "n");
    for (const int64_t rows : kRowCounts) fmt::print(" {:>6}", rows);
    fmt::print("\n");
    step_product("27b in q6_K+q4_K", {{Q6_K, 10240}, {Q4_K, 6144}, {Q4_K, 48}, {Q4_K, 48}}, 5120,
                 Kind::normed, 24);
    step_product("27b in q4_K", {{Q4_K, 10240}, {Q4_K, 6144}, {Q4_K, 48}, {Q4_K, 48}}, 5120,
                 Kind::normed, 24);
    step_product("27b q k v q4_K+q6_K", {{Q4_K, 12288}, {Q4_K, 1024}, {Q6_K, 1024}}, 5120,
                 Kind::normed, 8);
    step_product("27b q k v q4_K", {{Q4_K, 12288}, {Q4_K, 1024}, {Q4_K, 1024}}, 5120, Kind::normed,
                 8);
    step_product("27b out q4_K", {{Q4_K, 5120}}, 6144, Kind::added, 64);
    step_product("27b gate+up q4_K", {{Q4_K, 17408}}, 5120, Kind::gated, 64);
    step_product("27b down q6_K", {{Q6_K, 5120}}, 17408, Kind::added, 32);
    step_product("27b down q4_K", {{Q4_K, 5120}}, 17408, Kind::added, 32);
    step_product("27b output matrix q6_K", {{Q6_K, 248320}}, 5120, Kind::plain, 1);
    show_sums("27b all products");
    step_product("35b in q6_K+q4_K", {{Q6_K, 8192}, {Q4_K, 4096}, {Q4_K, 32}, {Q4_K, 32}}, 2048,
                 Kind::normed, 14);
    step_product("35b in q4_K", {{Q4_K, 8192}, {Q4_K, 4096}, {Q4_K, 32}, {Q4_K, 32}}, 2048,
                 Kind::normed, 16);
    step_product("35b q k v q4_K+q6_K", {{Q4_K, 8192}, {Q4_K, 512}, {Q6_K, 512}}, 2048,
                 Kind::normed, 6);
    step_product("35b q k v q4_K", {{Q4_K, 8192}, {Q4_K, 512}, {Q4_K, 512}}, 2048, Kind::normed, 4);
    step_product("35b out q4_K", {{Q4_K, 2048}}, 4096, Kind::added, 40);
    step_product("35b router f32", {{F32, 256}}, 2048, Kind::normed, 40);
    step_product("35b output matrix q6_K", {{Q6_K, 248320}}, 2048, Kind::plain, 1);
    show_sums("35b without experts");
    step_experts("35b experts down q6_K", Q6_K, 20);
    step_experts("35b experts down q4_K", Q4_K, 20);
    show_sums("35b experts");
    const Status health = device_->health();
    if (!health.ok()) fmt::print("{}\n", health.error().message);
  }

 private:
  static constexpr std::array<int64_t, 15> kRowCounts = {1,  2,  4,  8,  9,   12,  16, 17,
                                                         24, 32, 48, 64, 112, 128, 256};
  enum class Kind : uint8_t { plain, added, normed, gated };  // gated: also normed

  void step_product(const std::string& name, const std::vector<std::pair<GgmlType, int64_t>>& parts,
                    int64_t k, Kind kind, int count) {
    if (!wanted(name)) return;
    std::vector<Weight> one;
    size_t each = 0;
    for (const auto& [type, n] : parts) {
      for (int twin = 0; twin < (kind == Kind::gated ? 2 : 1); ++twin) {
        one.push_back(weight(type, n, k, 1));
        each += device_->weight_bytes(one.back());
      }
    }
    const int copies = static_cast<int>(std::clamp<size_t>((size_t{280} << 20) / each + 1, 2, 32));
    std::vector<Weight> weights;
    for (int i = 0; i < copies; ++i) weights.insert(weights.end(), one.begin(), one.end());
    load(weights);
    std::vector<double> us;
    for (const int64_t rows : kRowCounts) {
      const Tensor x = tensor(rows, k, device_->activation_type(), true);
      const Tensor residual = tensor(rows, k, DType::f32, true);
      const Tensor norm = tensor(1, k, DType::f32, true);
      std::vector<Tensor> ys;
      for (const auto& [type, n] : parts)
        ys.push_back(tensor(
            rows, n,
            kind == Kind::plain || kind == Kind::added ? DType::f32 : device_->activation_type(),
            true));
      us.push_back(time_us(std::max(copies, 12), [&] {
        for (int i = 0; i < std::max(copies, 12); ++i) {
          std::vector<LinearPart> list;
          const Weight* w = &weights[static_cast<size_t>(i % copies) * one.size()];
          for (const Tensor& y : ys) {
            const Weight* first = w++;
            const Weight* up = kind == Kind::gated ? w++ : nullptr;
            list.push_back({first, up, y,
                            up != nullptr         ? Tail::silu_mul
                            : kind == Kind::added ? Tail::add
                                                  : Tail::store});
          }
          if (kind == Kind::normed || kind == Kind::gated) {
            device_->ops().norm_linear(list, x, residual, norm.f32(), 1e-6f);
          } else {
            device_->ops().linear(list, x);
          }
        }
      }));
      buffers_.clear();
    }
    files_.clear();
    show_rows(name, count, us);
  }

  void step_experts(const std::string& name, GgmlType down_type, int count) {
    if (!wanted(name)) return;
    constexpr int64_t kExperts = 256, kUsed = 8, kWidth = 2048, kHidden = 512;
    constexpr int kSets = 12;
    using enum GgmlType;
    std::vector<Weight> weights = {weight(Q4_K, kHidden, kWidth, kExperts),
                                   weight(Q4_K, kHidden, kWidth, kExperts),
                                   weight(down_type, kWidth, kHidden, kExperts),
                                   weight(Q4_K, kHidden, kWidth, 1),
                                   weight(Q4_K, kHidden, kWidth, 1),
                                   weight(down_type, kWidth, kHidden, 1)};
    load(weights);
    const Tensor scale = tensor(1, kWidth, DType::f32, true);
    const MoeWeights w{&weights[0], &weights[1], &weights[2], &weights[3],
                       &weights[4], &weights[5], scale.f32()};
    RouteParams params;
    params.experts = kExperts;
    params.used = kUsed;
    std::vector<double> us;
    for (const int64_t rows : kRowCounts) {
      std::vector<Tensor> logits;
      for (int set = 0; set < kSets; ++set)
        logits.push_back(tensor(rows, kExperts, DType::f32, true));
      const Tensor x = tensor(rows, kWidth, device_->activation_type(), true);
      const Tensor y = tensor(rows, kWidth, DType::f32, true);
      const Tensor ids = tensor(rows, kUsed, DType::i32, false);
      const Tensor factors = tensor(rows, kUsed, DType::f32, false);
      us.push_back(time_us(kSets, [&] {
        for (const Tensor& own : logits) device_->ops().moe(y, x, ids, factors, own, params, w);
      }));
    }
    buffers_.clear();
    files_.clear();
    show_rows(name, count, us);
  }

  void show_rows(const std::string& name, int count, const std::vector<double>& us) {
    fmt::print("{:<28} {:>3}", name, count);
    for (size_t i = 0; i < us.size(); ++i) {
      fmt::print(" {:>6.1f}", us[i]);
      sums_[i] += us[i] * count;
    }
    fmt::print("\n");
    std::fflush(stdout);
  }
  void show_sums(const std::string& name) {
    fmt::print("{:<28} {:>3}", name + ", ms", "");
    for (const double sum : sums_) fmt::print(" {:>6.2f}", sum * 1e-3);
    fmt::print("\n{:<28} {:>3}", "  times one row", "");
    for (const double sum : sums_) fmt::print(" {:>6.2f}", sum / sums_[0]);
    fmt::print("\n");
    sums_ = {};
  }

  bool wanted(const std::string& name) const { return name.find(filter_) != std::string::npos; }
  bool wanted(int64_t rows) const { return rows_ == 0 || rows == rows_; }

  Tensor tensor(int64_t rows, int64_t cols, DType type, bool random) {
    const size_t bytes = static_cast<size_t>(rows * cols) * size_bytes(type);
    buffers_.push_back(must(device_->allocate(bytes, "bench")));
    if (random) {
      std::vector<uint8_t> values(bytes);
      for (int64_t i = 0; i < rows * cols; ++i) {
        const float x =
            static_cast<float>(static_cast<double>(next_random() >> 11) * 0x1p-52 - 1.0);
        const uint16_t half = f32_to_f16(x);
        if (type == DType::f32) std::memcpy(&values[4 * i], &x, 4);
        if (type == DType::f16) std::memcpy(&values[2 * i], &half, 2);
      }
      device_->to_device(buffers_.back().data(), values.data(), bytes);
      device_->synchronize();
    }
    return Tensor{buffers_.back().data(), type, rows, cols, cols};
  }

  // Random codes with scales of ordinary size; rows repeat after a few thousand.
  Weight weight(GgmlType type, int64_t n, int64_t k, int64_t experts) {
    const size_t row = static_cast<size_t>(k) / block_elems(type) * block_bytes(type);
    const int64_t rows = n * experts;
    const int64_t period = std::min<int64_t>(rows, 509);
    auto& bytes = files_.emplace_back(row * static_cast<size_t>(rows));
    for (size_t i = 0; i + 8 <= row * period; i += 8) {
      const uint64_t r = next_random();
      std::memcpy(&bytes[i], &r, 8);
    }
    const size_t block = block_bytes(type);
    const uint16_t scale = f32_to_f16(0.001f);
    for (size_t i = 0; i < row * period && block > 4; i += block) {
      if (type == GgmlType::Q6_K) {
        std::memcpy(&bytes[i + 208], &scale, 2);
      } else {
        std::memcpy(&bytes[i], &scale, 2);
        if (type == GgmlType::Q4_K) std::memcpy(&bytes[i + 2], &scale, 2);
      }
    }
    if (block <= 4) {  // plain numbers below 2
      for (size_t i = block - 1; i < row * period; i += block) bytes[i] = (bytes[i] & 0x80) | 0x3c;
    }
    for (int64_t r = period; r < rows; r += period) {
      const auto count = static_cast<size_t>(std::min(period, rows - r));
      std::memcpy(&bytes[static_cast<size_t>(r) * row], bytes.data(), count * row);
    }
    Weight w;
    w.name = "bench";
    w.type = type;
    w.n = n;
    w.k = k;
    w.experts = experts;
    w.file = {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()};
    return w;
  }

  void load(std::vector<Weight>& weights) {
    std::vector<Weight*> list;
    size_t bytes = 0;
    for (Weight& w : weights) {
      list.push_back(&w);
      bytes += w.file.size();
    }
    const double start = now_us();
    const Status status = device_->load_weights(list, nullptr);
    if (!status.ok()) {
      fmt::print("{}\n", status.error().message);
      std::exit(1);
    }
    loaded_bytes_ += bytes;
    load_us_ += now_us() - start;
  }

  template <typename F>
  double time_us(int calls, F&& record) {
    record();  // warm-up: first launches are slow
    device_->synchronize();
    const bool recording = device_->begin_record();
    record();
    if (recording) {
      const Status status = device_->end_record(1);
      if (!status.ok()) {
        fmt::print("{}\n", status.error().message);
        std::exit(1);
      }
      device_->replay(1);
    }
    device_->synchronize();
    double best = 1e30;
    for (int round = 0; round < 5; ++round) {
      const double start = now_us();
      for (int i = 0; i < 3; ++i) recording ? device_->replay(1) : record();
      device_->synchronize();
      best = std::min(best, (now_us() - start) / (3 * calls));
    }
    return best;
  }

  void show(const std::string& name, int64_t rows, double us, double bytes, double flops) {
    const double rate = bytes / us * 1e-3;
    fmt::print("{:<34} {:>5} {:>10.2f} {:>8.0f} {:>5.0f}% {:>8.1f}\n", name, rows, us, rate,
               100 * rate / copy_rate_, flops / us * 1e-6);
    std::fflush(stdout);
  }

  void measure_copy() {
    const DevicePeaks peaks = must(device_->measure_peaks());
    copy_rate_ = peaks.copy_bytes_s * 1e-9;
    fmt::print("copy by a kernel {:.0f} GB/s, reads {:.0f} GB/s, products {:.0f} TFLOP/s\n",
               copy_rate_, peaks.read_bytes_s * 1e-9, peaks.product_flops_s * 1e-12);
  }

  void product(const std::string& name, GgmlType type, int64_t n, int64_t k, bool gated,
               const std::vector<int64_t>& row_counts) {
    if (!wanted(name)) return;
    const Weight one = weight(type, n, k, 1);
    const int pieces = gated ? 2 : 1;
    const size_t each = device_->weight_bytes(one) * static_cast<size_t>(pieces);
    const int copies = static_cast<int>(std::clamp<size_t>((size_t{256} << 20) / each + 1, 2, 24));
    std::vector<Weight> weights(static_cast<size_t>(copies * pieces), one);
    load(weights);
    for (int64_t rows : row_counts) {
      if (!wanted(rows)) continue;
      const bool large = static_cast<double>(n) * k * rows > 2e11;
      const int calls = large ? 2 : std::max(copies, 16);
      const Tensor x = tensor(rows, k, device_->activation_type(), true);
      const Tensor y = tensor(rows, n, n > 200000 ? DType::f32 : device_->activation_type(), false);
      const double us = time_us(calls, [&] {
        for (int i = 0; i < calls; ++i) {
          const Weight* w = &weights[static_cast<size_t>(i % copies * pieces)];
          const LinearPart part{w, gated ? w + 1 : nullptr, y,
                                gated ? Tail::silu_mul : Tail::store};
          device_->ops().linear({&part, 1}, x);
        }
      });
      show(name, rows, us, static_cast<double>(each),
           2.0 * static_cast<double>(n * k * rows) * pieces);
      buffers_.clear();
    }
    files_.clear();
  }

  void experts(const std::string& name, GgmlType gate_type, GgmlType down_type,
               const std::vector<int64_t>& row_counts) {
    if (!wanted(name)) return;
    constexpr int64_t kExperts = 256, kUsed = 8, kWidth = 2048, kHidden = 512;
    std::vector<Weight> weights = {
        weight(gate_type, kHidden, kWidth, kExperts), weight(gate_type, kHidden, kWidth, kExperts),
        weight(down_type, kWidth, kHidden, kExperts), weight(gate_type, kHidden, kWidth, 1),
        weight(gate_type, kHidden, kWidth, 1),        weight(down_type, kWidth, kHidden, 1)};
    load(weights);
    const Tensor scale = tensor(1, kWidth, DType::f32, true);
    const MoeWeights w{&weights[0], &weights[1], &weights[2], &weights[3],
                       &weights[4], &weights[5], scale.f32()};
    const double expert_bytes =
        static_cast<double>(weights[0].device_bytes + weights[1].device_bytes +
                            weights[2].device_bytes) /
        kExperts;
    for (int64_t rows : row_counts) {
      if (!wanted(rows)) continue;
      constexpr int kSets = 16;
      std::vector<Tensor> ids;
      double touched = 0;
      for (int set = 0; set < kSets; ++set) {
        std::vector<int32_t> chosen;
        std::vector<bool> used(kExperts, false);
        for (int64_t t = 0; t < rows; ++t) {
          const size_t first = chosen.size();
          while (chosen.size() < first + kUsed) {
            const auto id = static_cast<int32_t>(next_random() >> 20 & 255);
            if (std::find(chosen.begin() + first, chosen.end(), id) != chosen.end()) continue;
            chosen.push_back(id);
            used[id] = true;
          }
        }
        touched += static_cast<double>(std::count(used.begin(), used.end(), true)) + 1;
        ids.push_back(tensor(rows, kUsed, DType::i32, false));
        device_->to_device(ids.back().data, chosen.data(), chosen.size() * 4);
        device_->synchronize();
      }
      const Tensor x = tensor(rows, kWidth, device_->activation_type(), true);
      const Tensor y = tensor(rows, kWidth, DType::f32, false);
      const Tensor factors = tensor(rows, kUsed, DType::f32, true);
      const double us = time_us(kSets, [&] {
        for (const Tensor& chosen : ids) device_->ops().moe_ffn(y, x, chosen, factors, w);
      });
      show(name, rows, us, touched / kSets * expert_bytes,
           2.0 * 3 * static_cast<double>(kWidth * kHidden * rows * (kUsed + 1)));
    }
    buffers_.clear();
    files_.clear();
  }

  void top_k() {
    if (!wanted("top_k")) return;
    for (int64_t rows : {1, 8, 32, 128}) {
      if (!wanted(rows)) continue;
      constexpr int64_t kVocabulary = 248320;
      const Tensor logits = tensor(rows, kVocabulary, DType::f32, true);
      const Tensor values = tensor(rows, 64, DType::f32, false);
      const Tensor ids = tensor(rows, 64, DType::i32, false);
      const Tensor sum = tensor(rows, 1, DType::f32, false);
      const double us = time_us(4, [&] {
        for (int i = 0; i < 4; ++i) device_->ops().top_k(values, ids, sum, logits);
      });
      show("top_k 64 of 248320", rows, us, static_cast<double>(rows * kVocabulary * 4), 0);
      buffers_.clear();
    }
    fmt::print("loading: {:.2f} GB at {:.2f} GB/s\n", loaded_bytes_ * 1e-9,
               loaded_bytes_ / load_us_ * 1e-3);
  }

  void host_memory() {
    if (!wanted("host memory")) return;
    constexpr size_t kBytes = size_t{16} << 30, kCopied = size_t{1} << 30;
    for (int round = 0; round < 2; ++round) {
      const double start = now_us();
      Buffer host = must(device_->allocate_host(kBytes, "bench"));
      const double taken_us = now_us() - start;
      const Buffer memory = must(device_->allocate(kCopied, "bench"));
      auto* const middle = static_cast<std::byte*>(host.data()) + kBytes / 2;
      const auto rate = [&](auto&& copy) {
        copy();
        device_->synchronize();
        const double from = now_us();
        copy();
        device_->synchronize();
        return static_cast<double>(kCopied) / (now_us() - from) * 1e-3;
      };
      const double up = rate([&] { device_->to_device(memory.data(), middle, kCopied); });
      const double down = rate([&] { device_->to_host(middle, memory.data(), kCopied); });
      const double freeing = now_us();
      host = {};
      fmt::print(
          "host memory: {} GiB pinned in {:.2f} s, to the GPU {:.1f} GB/s, back {:.1f}, freed in "
          "{:.2f} s\n",
          kBytes >> 30, taken_us * 1e-6, up, down, (now_us() - freeing) * 1e-6);
    }
  }

  std::string filter_;
  int64_t rows_;  // 0: all
  std::unique_ptr<Device> device_;
  std::deque<Buffer> buffers_;
  std::deque<std::vector<uint8_t>> files_;
  double copy_rate_ = 1;
  double loaded_bytes_ = 0;
  double load_us_ = 0;
  std::array<double, kRowCounts.size()> sums_ = {};
};

}  // namespace
}  // namespace braid

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--rows") == 0) {
    braid::Bench(argc > 2 ? argv[2] : "", 0).rows_table();
    return 0;
  }
  braid::Bench(argc > 1 ? argv[1] : "", argc > 2 ? std::atoll(argv[2]) : 0).run();
}
