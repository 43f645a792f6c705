// kv_cold_world_test.h -- a KV layer that seals blocks, and a plain computation of attention: units
// encoded and decoded here, softmax in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <tuple>
#include <vector>

#include "gguf/half.h"
#include "ops/kv/kv_codec.h"
#include "ops/kv/kv_rows_test.h"
#include "ops/tests/cells_world_test.h"

namespace braid::test {

struct ColdShape {
  int32_t heads = 4;
  int32_t kv_heads = 2;
  int32_t head_dim = 64;
  const KvCodec* k = nullptr;
  const KvCodec* v = nullptr;
  KvTail tail = {1, 0};
  int32_t window = 0;

  int64_t width() const { return int64_t{heads} * head_dim; }
  int64_t kv_width() const { return int64_t{kv_heads} * head_dim; }
  AttentionParams params() const {
    AttentionParams params;
    params.heads = heads;
    params.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    params.window = window;
    return params;
  }
  Device::WorkspaceNeeds needs() const {
    Device::WorkspaceNeeds needs;
    needs.max_sequences = 64;
    needs.max_context = 2048;
    needs.max_heads = heads;
    needs.head_dim = head_dim;
    needs.kv_heads = kv_heads;
    needs.max_width = width();
    needs.k_codec = k;
    needs.v_codec = v;
    return needs;
  }
};

inline const KvCodec* codec_of(const char* name) {
  const auto found = find_kv_codec(name);
  BRAID_CHECK(found.ok());
  return *found;
}

struct SealingDevices {
  std::vector<DeviceCase> all;
  std::string refusing;
};
inline SealingDevices sealing_devices() {
  SealingDevices devices;
  const ColdShape shape{.k = codec_of("q8_0"), .v = codec_of("q8_0")};
  for (const DeviceCase& device : sequence_devices()) {
    if (World(device).device().accepts(shape.needs()).ok()) {
      devices.all.push_back(device);
    } else {
      devices.refusing += (devices.refusing.empty() ? "" : ", ") + device.name;
    }
  }
  return devices;
}

// A TestBatch with tables of hot blocks, some removable, and of cold ones for certain rows.
class ColdBatch {
 public:
  ColdBatch(const std::vector<SequencePlan>& plans, Random& random) : rows_(plans, random) {
    const Batch& b = rows_.batch();
    hot_.assign(b.block_table, b.block_table + b.sequences * b.blocks_per_sequence);
    cold_.assign(hot_.size(), -1);
    for (int32_t s = 0; s < b.sequences; ++s) cold_blocks_ += b.context[s] / kBlockTokens;
    cold_blocks_ += 1;  // an unused block
    std::vector<int32_t> free(static_cast<size_t>(cold_blocks_));
    std::iota(free.begin(), free.end(), 0);
    random.shuffle(free);
    for (int32_t s = 0; s < b.sequences; ++s) {
      for (int32_t i = 0; i < b.context[s] / kBlockTokens; ++i) {
        cold_[static_cast<size_t>(s * b.blocks_per_sequence + i)] = free.back();
        free.pop_back();
      }
    }
  }
  ColdBatch(const std::vector<SequencePlan>& plans, const ColdBatch& like)
      : rows_(plans, like.rows_),
        hot_(like.hot_),
        cold_(like.cold_),
        cold_blocks_(like.cold_blocks_) {}

  Batch batch() const {
    Batch b = rows_.batch();
    b.block_table = hot_.data();
    b.cold_table = cold_.data();
    return b;
  }
  int32_t tokens() const { return rows_.tokens(); }
  int32_t hot_blocks() const { return rows_.blocks(); }
  int32_t cold_blocks() const { return cold_blocks_; }

  // Removes the hot blocks that no row of this batch reads exactly; returns them.
  std::vector<int32_t> release(const KvTail& tail) {
    std::vector<int32_t> gone;
    const Batch b = batch();
    for (int32_t s = 0; s < b.sequences; ++s) {
      const int32_t first_position = b.context[s] - b.certain[s];
      for (int32_t i = tail.sink_blocks; i < first_position / kBlockTokens - tail.tail_blocks;
           ++i) {
        int32_t& entry = hot_[static_cast<size_t>(s * b.blocks_per_sequence + i)];
        if (entry >= 0) gone.push_back(entry);
        entry = -1;
      }
    }
    return gone;
  }

 private:
  TestBatch rows_;
  std::vector<int32_t> hot_, cold_;
  int32_t cold_blocks_ = 0;
};

// Pools of units for `blocks` sealed blocks of a layer of `shape`. They hold large numbers until
// blocks are sealed.
inline KvCold cold_pools(World& world, const KvShape& shape, const KvCodec* k, const KvCodec* v,
                         KvTail tail, int32_t blocks) {
  const auto pool = [&](int64_t unit_bytes) {
    const int64_t size_bytes = blocks * shape.kv_heads * unit_bytes;
    auto* at = reinterpret_cast<std::byte*>(world.array(size_bytes / 4 + 1));
    std::memset(at, 0x7b, static_cast<size_t>(size_bytes));
    return at;
  };
  KvCold cold{k, v, tail, blocks};
  cold.k_unit_bytes = k->unit_bytes(shape.head_dim, KvSide::k);
  cold.v_unit_bytes = v->unit_bytes(shape.head_dim, KvSide::v);
  cold.k = pool(cold.k_unit_bytes);
  cold.v = pool(cold.v_unit_bytes);
  return cold;
}

class ColdWorld {
 public:
  ColdWorld(const DeviceCase& device, const ColdShape& shape, const ColdBatch& rows)
      : world_(device), shape_(shape) {
    world_.prepare({}, shape.needs());
    kv_ = world_.kv_layer({shape.kv_heads, shape.head_dim, KvFormat::f16, KvFormat::f16},
                          rows.hot_blocks());
    kv_.cold = cold_pools(world_, kv_.shape, shape.k, shape.v, shape.tail, rows.cold_blocks());
    for (int32_t b = 0; b < kv_.blocks; ++b) poison(b);
  }

  World& world() { return world_; }
  const KvLayer& kv() const { return kv_; }

  void fill(const Batch& batch, Random& random, float value_scale = 1.0f) {
    constexpr int64_t kTable = 4096;
    std::vector<float> numbers = random.normals(kTable + shape_.head_dim);
    const std::vector<uint16_t> keys = kv_test::halves_of(numbers);
    for (float& x : numbers) x *= value_scale;
    const std::vector<uint16_t> values = kv_test::halves_of(numbers);
    const auto put = [&](std::byte* row, const std::vector<uint16_t>& table) {
      std::memcpy(row, &table[static_cast<size_t>(random.between(0, kTable - 1))],
                  static_cast<size_t>(shape_.head_dim) * sizeof(uint16_t));
    };
    for (int32_t s = 0; s < batch.sequences; ++s) {
      for (int32_t cell = 0; cell < batch.cell_end(s); ++cell) {
        const int32_t block = batch.blocks_of(s)[cell / kBlockTokens];
        for (int32_t h = 0; h < shape_.kv_heads; ++h) {
          put(kv_.k_row(block, h, cell % kBlockTokens), keys);
          put(kv_.v_row(block, h, cell % kBlockTokens), values);
        }
      }
    }
  }
  void seal(const Batch& batch) {
    std::vector<KvSeal> blocks;
    for (int32_t s = 0; s < batch.sequences; ++s) {
      for (int32_t b = 0; b < batch.context[s] / kBlockTokens; ++b)
        blocks.push_back({batch.blocks_of(s)[b], batch.cold_blocks_of(s)[b]});
    }
    world_.ops().kv_seal(kv_, blocks);
    world_.device().synchronize();
  }
  void poison(int32_t hot_block) {
    for (std::byte* at : {kv_.k_row(hot_block, 0, 0), kv_.v_row(hot_block, 0, 0)})
      std::memset(at, 0x7e, static_cast<size_t>(kv_.shape.k_block_bytes()));
  }
  void release(ColdBatch& rows) {
    for (const int32_t block : rows.release(shape_.tail)) poison(block);
  }
  std::vector<float> attend(const Batch& batch, const std::vector<float>& q) {
    const Tensor o = world_.tensor(batch.tokens, shape_.width(), std::vector<float>(q.size(), NAN));
    world_.ops().attention(o, world_.tensor(batch.tokens, shape_.width(), q), {}, shape_.params(),
                           kv_, batch);
    world_.device().synchronize();
    return values_of(o);
  }
  std::vector<float> store_and_attend(const Batch& batch, const std::vector<float>& qg,
                                      const std::vector<float>& k, const std::vector<float>& v) {
    const int64_t rows = batch.tokens;
    const Tensor q = world_.tensor(rows, shape_.width()), o = world_.tensor(rows, shape_.width());
    const Tensor table = world_.tensor(rows, shape_.head_dim);
    world_.ops().rope_table(table, {shape_.head_dim, 1e4}, batch);
    const std::vector<float> ones(static_cast<size_t>(shape_.head_dim), 1.0f);
    const AttentionWeights w{world_.array(ones), world_.array(ones), 1e-6f};
    world_.ops().store_attend(
        o, q, world_.tensor(rows, shape_.width(), qg), world_.tensor(rows, shape_.kv_width(), k),
        world_.tensor(rows, shape_.kv_width(), v), {}, table, w, shape_.params(), kv_, batch);
    world_.device().synchronize();
    return values_of(o);
  }

  std::vector<std::byte> units(const Batch& batch, int32_t s, int32_t blocks) const {
    std::vector<std::byte> all;
    for (int32_t b = 0; b < blocks; ++b) {
      const int32_t at = batch.cold_blocks_of(s)[b];
      const auto add = [&](const std::byte* first, int64_t bytes) {
        all.insert(all.end(), first, first + bytes);
      };
      add(kv_.k_unit(at, 0), kv_.shape.kv_heads * kv_.cold.k_unit_bytes);
      add(kv_.v_unit(at, 0), kv_.shape.kv_heads * kv_.cold.v_unit_bytes);
    }
    return all;
  }

 private:
  World world_;
  ColdShape shape_;
  KvLayer kv_;
};

inline std::vector<uint16_t> hot_rows(const KvLayer& kv, KvSide side, int32_t block, int32_t head) {
  const std::byte* at = side == KvSide::k ? kv.k_row(block, head, 0) : kv.v_row(block, head, 0);
  std::vector<uint16_t> rows(static_cast<size_t>(kBlockTokens * kv.shape.head_dim));
  std::memcpy(rows.data(), at, rows.size() * sizeof(uint16_t));
  return rows;
}

class PlainAttention {
 public:
  PlainAttention(const ColdWorld& world, const ColdShape& shape, const Batch& batch)
      : kv_(world.kv()), shape_(shape), batch_(batch) {}

  std::vector<float> all(const std::vector<float>& q) {
    std::vector<float> o;
    for (int32_t t = 0; t < batch_.tokens; ++t) {
      for (int32_t h = 0; h < shape_.heads; ++h) {
        const std::vector<float> head =
            one(t, h, q.data() + t * shape_.width() + h * shape_.head_dim);
        o.insert(o.end(), head.begin(), head.end());
      }
    }
    return o;
  }

 private:
  std::vector<float> one(int32_t t, int32_t head, const float* q) {
    const int32_t s = batch_.sequence[t], own = batch_.position[t];
    const int32_t kv_head = head / (shape_.heads / shape_.kv_heads);
    std::vector<int32_t> cells;  // by position
    const bool certain = t - batch_.first_row[s] < batch_.certain[s];
    for (int32_t c = 0; c < (certain ? own + 1 : batch_.context[s]); ++c) cells.push_back(c);
    if (!certain) {
      for (int32_t at = t; at >= 0; at = batch_.parent[at])
        cells.insert(cells.begin() + batch_.context[s], batch_.cell[at]);
    }
    const int32_t first = shape_.window > 0 ? std::max(0, own + 1 - shape_.window) : 0;
    std::vector<double> sum(static_cast<size_t>(shape_.head_dim)), scores;
    double largest = -INFINITY, total = 0;
    for (int32_t p = first; p <= own; ++p) {
      const float* k = row(KvSide::k, s, kv_head, cells[static_cast<size_t>(p)], own);
      double score = 0;
      for (int32_t i = 0; i < shape_.head_dim; ++i) score += double{q[i]} * k[i];
      scores.push_back(score * shape_.params().scale);
      largest = std::max(largest, scores.back());
    }
    for (int32_t p = first; p <= own; ++p) {
      const double weight = std::exp(scores[static_cast<size_t>(p - first)] - largest);
      const float* v = row(KvSide::v, s, kv_head, cells[static_cast<size_t>(p)], own);
      for (int32_t i = 0; i < shape_.head_dim; ++i) sum[static_cast<size_t>(i)] += weight * v[i];
      total += weight;
    }
    std::vector<float> o;
    for (const double x : sum) o.push_back(static_cast<float>(x / total));
    return o;
  }

  // Exact in the sinks, the tail and the query's own block.
  const float* row(KvSide side, int32_t s, int32_t head, int32_t cell, int32_t own) {
    const int32_t block = cell / kBlockTokens;
    const bool exact =
        block < shape_.tail.sink_blocks || block + shape_.tail.tail_blocks >= own / kBlockTokens;
    std::vector<float>& rows = blocks_[{side, s, head, block, exact}];
    if (rows.empty()) {
      const std::vector<uint16_t> hot = hot_rows(kv_, side, batch_.blocks_of(s)[block], head);
      const KvCodec& codec = side == KvSide::k ? *shape_.k : *shape_.v;
      rows =
          exact ? kv_test::floats_of(hot) : kv_test::round_trip(codec, shape_.head_dim, side, hot);
    }
    return rows.data() + int64_t{cell % kBlockTokens} * shape_.head_dim;
  }

  const KvLayer& kv_;
  ColdShape shape_;
  Batch batch_;
  std::map<std::tuple<KvSide, int32_t, int32_t, int32_t, bool>, std::vector<float>> blocks_;
};

}  // namespace braid::test
