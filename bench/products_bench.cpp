// products_bench.cpp -- speed of the product kernels by layout, rows and threads.
//   products_bench [types] [rows] [set MiB] [threads]   lists, with commas
// GOP/s counts 2 N K M. GB/s counts weight bytes in memory. Figures: best pass over the set of
// matrices (N x K = 3584 x 1024).

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/threads.h"
#include "bench_tools.h"
#include "gguf/block_layouts.h"
#include "ops/cpu/gemm/linear.h"
#include "ops/cpu/peaks.h"

namespace {

using braid::Activations;
using braid::GgmlType;
using braid::Weight;
using braid::bench::now_s;
using braid::bench::split;

struct Set {
  static constexpr int64_t kN = 1024, kK = 1024;
  std::vector<std::byte> file;
  std::vector<Weight> weights;

  Set(GgmlType type, size_t set_bytes) {
    std::vector<float> row(kK);
    const size_t row_bytes = *braid::row_bytes(type, kK);
    file.resize(row_bytes * kN);
    for (size_t i = 0; i < row.size(); i++)
      row[i] = static_cast<float>((i * 2654435761u >> 7 & 1023)) / 512 - 1;
    braid::encode_row(type, row.data(), file.data(), kK);
    for (int64_t r = 1; r < kN; r++) {
      std::copy_n(file.begin(), row_bytes, file.begin() + r * static_cast<int64_t>(row_bytes));
    }
    const size_t count = std::max<size_t>(1, set_bytes / file.size());
    weights.resize(count);
    for (Weight& w : weights) {
      w.type = type;
      w.n = kN;
      w.k = kK;
      w.file = file;
    }
  }
};

void measure(GgmlType type, const std::vector<std::string>& rows_list, size_t set_mib,
             int threads) {
  braid::ThreadPool pool(threads);
  const char* act = std::getenv("BENCH_ACT");
  const std::string mode = act != nullptr ? act : "i8";
  auto made = braid::cpu::Products::make(pool, mode == "f32"   ? Activations::f32
                                               : mode == "i16" ? Activations::i16
                                                               : Activations::i8);
  if (!made) {
    fmt::print("{}\n", made.error().message);
    return;
  }
  braid::cpu::Products& products = **made;
  Set set(type, set_mib << 20);
  std::vector<Weight*> pointers;
  for (Weight& w : set.weights) pointers.push_back(&w);
  if (const auto status = products.load_weights(pointers, {}); !status) {
    fmt::print("{}\n", status.error().message);
    return;
  }
  braid::Device::WorkspaceNeeds needs;
  needs.max_tokens = 512;
  needs.max_width = Set::kK;
  if (!products.reserve(needs).ok()) return;
  std::vector<float> x(512 * Set::kK), y(512 * Set::kN);
  for (size_t i = 0; i < x.size(); i++) x[i] = static_cast<float>(i * 40503 % 2048) / 1024 - 1;
  double bytes = 0;
  for (const Weight& w : set.weights) bytes += static_cast<double>(w.device_bytes);
  for (const std::string& rows_text : rows_list) {
    const int64_t rows = std::atoi(rows_text.c_str());
    const double operations = 2.0 * Set::kN * Set::kK * static_cast<double>(rows);
    std::vector<double> best(set.weights.size(), 1e9);
    const double until = now_s() + 0.4;
    for (int pass = 0; pass < 3 || now_s() < until; pass++) {
      for (size_t i = 0; i < best.size(); i++) {
        const double start = now_s();
        const braid::LinearPart part{
            &set.weights[i], nullptr, {y.data(), braid::DType::f32, rows, Set::kN, Set::kN}};
        products.linear(std::span(&part, 1), {x.data(), braid::DType::f32, rows, Set::kK, Set::kK});
        best[i] = std::min(best[i], now_s() - start);
        if (rows >= 16 && i == 3) break;  // bound by arithmetic: a few matrices suffice
      }
    }
    double total = 0, timed = 0;
    for (const double b : best) {
      if (b > 1e8) continue;
      total += b;
      timed++;
    }
    fmt::print("{:8} {} threads  set {:4} MiB  M {:4}  {:7.1f} GOP/s  {:6.1f} GB/s\n",
               type_name(type), threads, set_mib, rows, operations * timed / total * 1e-9,
               bytes / static_cast<double>(set.weights.size()) * timed / total * 1e-9);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, const char* preset) {
    return split(argc > i ? argv[i] : preset);
  };
  const auto types = argument(1, "q8_0,q4_K,q5_K,q6_K,bf16");
  const auto rows = argument(2, "1,2,4,16,512");
  const auto sets = argument(3, "24,400");
  const auto threads = argument(4, "1,2");
  {
    braid::ThreadPool pool(braid::usable_cores());
    const double start = now_s();
    const braid::cpu::Peaks c = braid::cpu::measure_peaks(pool);
    fmt::print(
        "clock {:.2f} GHz; FMA {:.0f} / {:.0f} GFLOP/s; {} {:.0f} / {:.0f} GOP/s; barrier {:.2f} "
        "us, region "
        "{:.2f} us",
        c.clock_ghz, c.fma_gflops.one_thread, c.fma_gflops.all_threads, c.dot_name,
        c.dot_gops.one_thread, c.dot_gops.all_threads, c.barrier_us, c.region_us);
    for (const auto& r : c.reads) {
      fmt::print("; {} MiB {:.0f} / {:.0f} GB/s", r.size_bytes >> 20, r.gb_per_s.one_thread,
                 r.gb_per_s.all_threads);
    }
    fmt::print("  (1 / {} threads; {:.1f} s)\n", pool.size(), now_s() - start);
  }
  for (const auto& type : types) {
    const braid::GgmlTypeInfo* info = braid::find_ggml_type(type);
    if (info == nullptr) continue;
    for (const auto& set : sets) {
      for (const auto& t : threads)
        measure(info->type, rows, static_cast<size_t>(std::atoi(set.c_str())),
                std::atoi(t.c_str()));
    }
  }
  return 0;
}
