// host_experts.cpp -- see host_experts.h.
//
// Pairs of row and expert are sorted by expert into slots. One region: codes of x; hidden numbers
// of slots, by blocks of gate and up; codes of them; y, each block by one worker for all experts,
// so that sums have the order of experts.
#include "ops/cuda/gemm/host_experts.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "ops/cuda/gemm/host_product.h"

namespace braid::cuda {
namespace {

int64_t host_blocks(int64_t n) { return (n + kUnitRows - 1) / kUnitRows; }
int64_t host_units(int64_t k) { return (k + kUnitWidth - 1) / kUnitWidth; }

// Items that workers claim: blocks, and at the end halves of them, rows of one r16, so that workers
// finish together. There are about as many blocks in halves as there are workers.
class BlockItems {
 public:
  struct Item {
    int64_t block;
    int first16, end16;
  };
  BlockItems(int64_t blocks, int workers)
      : whole_(std::max<int64_t>(0, blocks - workers)), count_(2 * blocks - whole_) {}
  int64_t count() const { return count_; }
  Item item(int64_t i) const {
    if (i < whole_) return {i, 0, 2};
    const auto part = static_cast<int>((i - whole_) % 2);
    return {whole_ + (i - whole_) / 2, part, part + 1};
  }

 private:
  int64_t whole_, count_;
};

// A worker's sums of one block.
struct BlockSums {
  alignas(64) float gate[HostProduct::kMostRows][kUnitRows];
  alignas(64) float up[HostProduct::kMostRows][kUnitRows];
};

HostProduct block_product(const HostMatrix& m, int64_t expert, int64_t block) {
  HostProduct p;
  const int64_t at = expert * host_blocks(m.n) + block;
  p.pack = m.pack;
  p.count = host_units(m.k);
  p.units = m.units + at * p.count * unit_bytes(m.pack);
  p.factor = m.scales[at];
  return p;
}

}  // namespace

struct HostExperts::Impl {
  struct Slot {
    int64_t row;
    float weight;
  };
  struct Chosen {
    int64_t expert, first, end;  // slots
  };

  Impl(ThreadPool& pool, const Limits& limits)
      : pool(pool),
        limits(limits),
        x_units(host_units(limits.width)),
        hidden_units(host_units(limits.hidden)),
        hidden_stride(host_blocks(limits.hidden) * kUnitRows) {
    const auto size = [](int64_t count) { return static_cast<size_t>(count); };
    const int64_t most_slots = limits.rows * limits.used;
    for (auto& x : codes) x.resize(size(limits.rows * x_units));
    hidden_codes.resize(size(most_slots * hidden_units));
    hidden.resize(size(most_slots * hidden_stride));
    slots.resize(size(most_slots));
    chosen.resize(size(std::min(limits.experts, most_slots)));
    begin.resize(size(limits.experts + 1));
  }

  void sort(const Job& job);
  void put_x(const Job& job, int worker);
  void fill_hidden(const Job& job, const BlockItems& items);
  void fill_hidden_block(const HostLayer& layer, const Chosen& of, int64_t block, int first16,
                         int end16);
  void put_hidden(const HostLayer& layer, int worker);
  void fill_y(const Job& job, const BlockItems& items);
  void fill_y_block(const Job& job, int64_t block, int first16, int end16);

  ThreadPool& pool;
  const Limits limits;
  const int64_t x_units, hidden_units, hidden_stride;
  std::vector<HostX> codes[2];      // [rows][x_units], for gate, and for an up of another pack
  std::vector<HostX> hidden_codes;  // [slots][hidden_units]
  std::vector<float> hidden;        // [slots][hidden_stride]
  std::vector<Slot> slots;
  std::vector<Chosen> chosen;
  std::vector<int32_t> begin;  // of an expert's slots, while they are sorted
  int64_t chosen_count = 0;
  int64_t slot_count = 0;
  Counter hidden_items, y_items;
};

void HostExperts::Impl::sort(const Job& job) {
  const auto is_mine = [&](int32_t id) {
    return id >= 0 && id < limits.experts && (job.mine[id / 32] >> (id % 32) & 1) != 0;
  };
  std::fill(begin.begin(), begin.end(), 0);
  const int64_t pairs = job.rows * job.used;
  for (int64_t i = 0; i < pairs; ++i)
    if (is_mine(job.ids[i])) ++begin[static_cast<size_t>(job.ids[i])];
  chosen_count = 0;
  slot_count = 0;
  for (int64_t e = 0; e < limits.experts; ++e) {
    const int32_t count = begin[static_cast<size_t>(e)];
    if (count == 0) continue;
    begin[static_cast<size_t>(e)] = static_cast<int32_t>(slot_count);
    chosen[static_cast<size_t>(chosen_count++)] = {e, slot_count, slot_count + count};
    slot_count += count;
  }
  for (int64_t i = 0; i < pairs; ++i) {
    if (!is_mine(job.ids[i])) continue;
    const int32_t slot = begin[static_cast<size_t>(job.ids[i])]++;
    slots[static_cast<size_t>(slot)] = {i / job.used, job.weights[i]};
  }
}

void HostExperts::Impl::put_x(const Job& job, int worker) {
  const HostMatrix& gate = job.layer->gate;
  const int64_t units = host_units(gate.k);
  const auto [first, end] = pool.share(job.rows * units, worker);
  for (int64_t i = first; i < end; ++i) {
    const int64_t row = i / units, u = i % units;
    const uint16_t* x = job.x + row * job.x_stride + u * kUnitWidth;
    const int64_t count = std::min<int64_t>(kUnitWidth, gate.k - u * kUnitWidth);
    const auto at = static_cast<size_t>(row * x_units + u);
    put_host_x_f16(gate.pack, x, count, &codes[0][at]);
    if (job.layer->up.pack != gate.pack)
      put_host_x_f16(job.layer->up.pack, x, count, &codes[1][at]);
  }
}

void HostExperts::Impl::fill_hidden_block(const HostLayer& layer, const Chosen& of, int64_t block,
                                          int first16, int end16) {
  BlockSums sums;
  HostProduct gate = block_product(layer.gate, of.expert, block);
  HostProduct up = block_product(layer.up, of.expert, block);
  gate.out = sums.gate[0];
  up.out = sums.up[0];
  gate.next = up.units;
  gate.first16 = up.first16 = first16;
  gate.end16 = up.end16 = end16;
  const auto& up_codes = codes[layer.up.pack != layer.gate.pack ? 1 : 0];
  const int columns = kUnitRows / 2 * (end16 - first16);
  for (int64_t first = of.first; first < of.end; first += HostProduct::kMostRows) {
    gate.rows = up.rows =
        static_cast<int>(std::min<int64_t>(HostProduct::kMostRows, of.end - first));
    for (int r = 0; r < gate.rows; ++r) {
      const auto at = static_cast<size_t>(slots[static_cast<size_t>(first + r)].row * x_units);
      gate.x[r] = &codes[0][at];
      up.x[r] = &up_codes[at];
    }
    multiply_units(gate);
    multiply_units(up);
    for (int r = 0; r < gate.rows; ++r) {
      const int column = kUnitRows / 2 * first16;
      float* to = &hidden[static_cast<size_t>((first + r) * hidden_stride + block * kUnitRows)];
      std::copy_n(sums.up[r] + column, columns, to + column);
      silu_times(sums.gate[r] + column, columns, to + column);
    }
  }
}

void HostExperts::Impl::fill_hidden(const Job& job, const BlockItems& items) {
  const int64_t blocks = host_blocks(job.layer->gate.n);
  for (int64_t i = hidden_items.claim(); i < items.count(); i = hidden_items.claim()) {
    const auto [block, first16, end16] = items.item(i);
    fill_hidden_block(*job.layer, chosen[static_cast<size_t>(block / blocks)], block % blocks,
                      first16, end16);
  }
}

void HostExperts::Impl::put_hidden(const HostLayer& layer, int worker) {
  const int64_t units = host_units(layer.down.k);
  const auto [first, end] = pool.share(slot_count * units, worker);
  for (int64_t i = first; i < end; ++i) {
    const int64_t slot = i / units, u = i % units;
    put_host_x(layer.down.pack, &hidden[static_cast<size_t>(slot * hidden_stride + u * kUnitWidth)],
               std::min<int64_t>(kUnitWidth, layer.down.k - u * kUnitWidth),
               &hidden_codes[static_cast<size_t>(slot * hidden_units + u)]);
  }
}

void HostExperts::Impl::fill_y_block(const Job& job, int64_t block, int first16, int end16) {
  const HostMatrix& down = job.layer->down;
  const int64_t from = kUnitRows / 2 * first16;
  const int64_t columns =
      std::min<int64_t>(kUnitRows / 2 * end16, down.n - block * kUnitRows) - from;
  if (columns <= 0) return;
  float* y = job.y + block * kUnitRows + from;
  for (int64_t row = 0; row < job.rows; ++row) std::fill_n(y + row * down.n, columns, 0.0f);
  BlockSums sums;
  for (int64_t c = 0; c < chosen_count; ++c) {
    const Chosen& of = chosen[static_cast<size_t>(c)];
    HostProduct p = block_product(down, of.expert, block);
    p.out = sums.up[0];
    p.first16 = first16;
    p.end16 = end16;
    if (c + 1 < chosen_count)
      p.next = block_product(down, chosen[static_cast<size_t>(c + 1)].expert, block).units;
    for (int64_t first = of.first; first < of.end; first += HostProduct::kMostRows) {
      p.rows = static_cast<int>(std::min<int64_t>(HostProduct::kMostRows, of.end - first));
      for (int r = 0; r < p.rows; ++r)
        p.x[r] = &hidden_codes[static_cast<size_t>((first + r) * hidden_units)];
      multiply_units(p);
      for (int r = 0; r < p.rows; ++r) {
        const Slot& slot = slots[static_cast<size_t>(first + r)];
        float* to = y + slot.row * down.n;
        for (int64_t i = 0; i < columns; ++i) to[i] += slot.weight * sums.up[r][from + i];
      }
    }
  }
}

void HostExperts::Impl::fill_y(const Job& job, const BlockItems& items) {
  for (int64_t i = y_items.claim(); i < items.count(); i = y_items.claim()) {
    const auto [block, first16, end16] = items.item(i);
    fill_y_block(job, block, first16, end16);
  }
}

bool HostExperts::takes(Pack pack) { return pack != Pack::f16 && has_host_products(); }

HostExperts::HostExperts(ThreadPool& pool, const Limits& limits) {
  BRAID_CHECK(limits.rows > 0 && limits.used > 0 && limits.used <= kMostUsed);
  BRAID_CHECK(limits.width > 0 && limits.hidden > 0 && limits.experts > 0);
  impl_ = std::make_unique<Impl>(pool, limits);
}
HostExperts::~HostExperts() = default;

int64_t HostExperts::run(const Job& job) {
  Impl& impl = *impl_;
  const auto& [gate, up, down] = *job.layer;
  BRAID_CHECK(takes(gate.pack) && takes(up.pack) && takes(down.pack));
  BRAID_CHECK(job.rows <= impl.limits.rows && job.used <= impl.limits.used);
  BRAID_CHECK(gate.k <= impl.limits.width && gate.n <= impl.limits.hidden);
  BRAID_CHECK(up.n == gate.n && up.k == gate.k && down.k == gate.n && down.n == gate.k);
  impl.sort(job);
  if (impl.chosen_count == 0) {
    std::fill_n(job.y, job.rows * down.n, 0.0f);
    return 0;
  }
  const BlockItems hidden_items(impl.chosen_count * host_blocks(gate.n), impl.pool.size());
  const BlockItems y_items(host_blocks(down.n), impl.pool.size());
  impl.hidden_items.reset();
  impl.y_items.reset();
  impl.pool.run([&](int worker) {
    impl.put_x(job, worker);
    impl.pool.barrier(worker);
    impl.fill_hidden(job, hidden_items);
    impl.pool.barrier(worker);
    impl.put_hidden(*job.layer, worker);
    impl.pool.barrier(worker);
    impl.fill_y(job, y_items);
  });
  return impl.chosen_count;
}

}  // namespace braid::cuda
