// attention_bench.cpp -- times CPU attention of one row and of a chunk, and block sealing.
//   attention_bench [formats] [cells] [heads/kv_heads/width] [threads]   lists, with commas
// Enough layers alternate that no cache holds their cells. Figures: best pass, us per layer.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "bench_tools.h"
#include "ops/device.h"
#include "ops/kv/kv_codec.h"
#include "ops/ops.h"

namespace {

using namespace braid;
using bench::now_s;
using bench::split;

constexpr int64_t kSetBytes = int64_t{256} << 20;  // of f16 cells
constexpr int32_t kChunk = 256;

struct Heads {
  int32_t heads = 8, kv_heads = 2, width = 256;
};

// A sequence of `cells` cells; its last `rows` are the certain rows of the batch.
struct Sequence {
  std::vector<int32_t> position, sequence, parent, blocks;
  int32_t first = 0, rows, context, slot = 0;
  Batch batch;

  Sequence(int32_t rows, int32_t cells)
      : sequence(rows, 0), parent(rows, -1), rows(rows), context(cells) {
    for (int32_t t = 0; t < rows; ++t) position.push_back(cells - rows + t);
    blocks.resize(static_cast<size_t>(cells / kBlockTokens + 1));
    std::iota(blocks.begin(), blocks.end(), 0);
    batch.tokens = rows;
    batch.sequences = 1;
    batch.position = batch.cell = position.data();
    batch.sequence = sequence.data();
    batch.parent = parent.data();
    batch.first_row = &first;
    batch.rows = batch.certain = &this->rows;
    batch.context = &context;
    batch.slot = &slot;
    batch.block_table = batch.cold_table = blocks.data();
    batch.blocks_per_sequence = static_cast<int32_t>(blocks.size());
  }
};

class Layers {
 public:
  Layers(Device& device, const Heads& heads, const KvCodec& codec, int32_t cells)
      : device_(device) {
    KvLayer kv;
    kv.shape = {heads.kv_heads, heads.width, KvFormat::f16, KvFormat::f16};
    kv.blocks = cells / kBlockTokens + 1;
    const int64_t row_bytes = kv.blocks * kv.shape.k_block_bytes();
    if (codec.name != "f16") {
      kv.cold = {&codec, &codec, {}, kv.blocks};
      kv.cold.k_unit_bytes = codec.unit_bytes(heads.width, KvSide::k);
      kv.cold.v_unit_bytes = codec.unit_bytes(heads.width, KvSide::v);
    }
    std::vector<KvSeal> all;
    for (int32_t b = 0; b < kv.blocks; ++b) all.push_back({b, b});
    const int64_t count = std::max<int64_t>(1, kSetBytes / (2 * row_bytes));
    for (int64_t i = 0; i < count; ++i) {
      kv.k = halves(row_bytes);
      kv.v = halves(row_bytes);
      if (kv.cold) {
        kv.cold.k = take(kv.blocks * heads.kv_heads * kv.cold.k_unit_bytes);
        kv.cold.v = take(kv.blocks * heads.kv_heads * kv.cold.v_unit_bytes);
        const double start = now_s();
        device.ops().kv_seal(kv, all);
        seal_us_ = std::min(seal_us_, (now_s() - start) * 1e6 / kv.blocks);
      }
      layers_.push_back(kv);
    }
  }
  const std::vector<KvLayer>& all() const { return layers_; }
  double seal_us() const { return seal_us_; }  // per block

 private:
  std::byte* take(int64_t size_bytes) {
    auto made = device_.allocate(static_cast<size_t>(size_bytes), "cells");
    BRAID_CHECK(made.ok());
    memory_.push_back(std::move(*made));
    return static_cast<std::byte*>(memory_.back().data());
  }
  std::byte* halves(int64_t size_bytes) {
    std::byte* at = take(size_bytes);
    uint32_t x = 1;
    for (int64_t i = 0; i < size_bytes / 2; ++i) {
      x = x * 1664525u + 1013904223u;
      const auto bits = static_cast<uint16_t>((x >> 16 & 0x83ff) | ((x >> 26) % 3 + 13) << 10);
      std::memcpy(at + 2 * i, &bits, sizeof bits);
    }
    return at;
  }

  Device& device_;
  std::vector<Buffer> memory_;
  std::vector<KvLayer> layers_;
  double seal_us_ = 1e9;
};

// us per layer, best pass.
double measure(Device& device, const Layers& layers, const Heads& heads, int32_t rows,
               int32_t cells) {
  const Sequence sequence(rows, cells);
  const int64_t width = int64_t{heads.heads} * heads.width;
  std::vector<float> q(static_cast<size_t>(rows * width)), o(q.size());
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i * 40503 % 2048) / 1024 - 1;
  AttentionParams params;
  params.heads = heads.heads;
  params.scale = 0.06f;
  std::vector<double> best(layers.all().size(), 1e9);
  const double until = now_s() + 1.0;
  for (int pass = 0; pass < 3 || now_s() < until; ++pass) {
    for (size_t i = 0; i < best.size(); ++i) {
      const double start = now_s();
      device.ops().attention({o.data(), DType::f32, rows, width, width},
                             {q.data(), DType::f32, rows, width, width}, {}, params,
                             layers.all()[i], sequence.batch);
      best[i] = std::min(best[i], now_s() - start);
      if (rows > 1 && i == 1) break;  // bound by arithmetic: a few layers suffice
    }
  }
  const auto end = rows > 1 ? best.begin() + std::min<int64_t>(2, std::ssize(best)) : best.end();
  return std::accumulate(best.begin(), end, 0.0) * 1e6 / static_cast<double>(end - best.begin());
}

void run(const std::string& format, int32_t cells, const Heads& heads, int threads) {
  auto device = make_cpu_device({.threads = threads});
  const auto codec = find_kv_codec(format);
  if (!device || !codec) {
    fmt::print("{}\n", !device ? device.error().message : codec.error().message);
    return;
  }
  Device::WorkspaceNeeds needs;
  needs.max_context = cells;
  needs.max_heads = heads.heads;
  needs.head_dim = heads.width;
  needs.k_codec = needs.v_codec = *codec;
  if (const Status can = kv_codec_accepts(**codec, heads.width); !can) {
    fmt::print("{}\n", can.error().message);
    return;
  }
  BRAID_CHECK((*device)->reserve_workspaces(needs).ok());
  const Layers layers(**device, heads, **codec, cells);
  const double one = measure(**device, layers, heads, 1, cells);
  const double many = measure(**device, layers, heads, kChunk, cells);
  fmt::print("{:8} {} threads  {:6} cells  1 row {:8.1f} us  {} rows {:9.1f} us", format, threads,
             cells, one, kChunk, many);
  if (format != "f16") fmt::print("  sealing a block {:6.1f} us", layers.seal_us());
  fmt::print("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, const char* preset) {
    return split(argc > i ? argv[i] : preset);
  };
  for (const std::string& shape : argument(3, "8/2/256")) {
    Heads heads;
    if (std::sscanf(shape.c_str(), "%d/%d/%d", &heads.heads, &heads.kv_heads, &heads.width) != 3)
      return 2;
    fmt::print("{} heads, {} KV heads of {}\n", heads.heads, heads.kv_heads, heads.width);
    for (const std::string& threads : argument(4, "1,2")) {
      for (const std::string& cells : argument(2, "4096,32768")) {
        for (const std::string& format : argument(1, "f16,q8_0,c4"))
          run(format, std::atoi(cells.c_str()), heads, std::atoi(threads.c_str()));
      }
    }
  }
}
