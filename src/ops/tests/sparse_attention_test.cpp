// sparse_attention_test.cpp -- block-sparse attention of prompts (sparse_prefill.h), on every
// device.
//
// The keys of a block of 128 share a direction that is orthogonal to those of other blocks. The
// rows of a query block look at the directions of a few blocks, whose masses are then e^4 times
// those of all others. The threshold lies between them, so that rounding changes no choice.
#include <fmt/format.h>

#include <bit>
#include <functional>
#include <set>
#include <string_view>

#include "ops/tests/kv_cold_world_test.h"

namespace braid {
namespace {

using namespace test;

constexpr float kBetween = 0.1f;
constexpr float kTiny = 1e-30f;
constexpr int32_t kCold = kBlockTokens;

// The far blocks that a head's rows in query block m look at.
using Targets = std::function<std::set<int32_t>(int32_t m, int32_t head)>;

std::set<int32_t> usual_targets(int32_t m, int32_t head) {
  const int32_t far = m - kSparseNear - kSparseSinks;
  if (far <= 0) return {};
  return {kSparseSinks + (5 * m + 3 * head) % far, kSparseSinks + (m + head) % far};
}

struct SparseShape {
  int32_t heads = 2;
  int32_t kv_heads = 1;
  int32_t head_dim = 128;
  KvFormat format = KvFormat::f16;
  const KvCodec* codec = nullptr;  // of sealed blocks; null: there are none
  KvTail tail = {};
  int32_t window = 0;
  int32_t first_cell = 0;
  Targets targets = usual_targets;
  float score = 4;  // of a row and the blocks that it looks at
  float noise = 0.5f;

  int32_t group() const { return heads / kv_heads; }
  int64_t width() const { return int64_t{heads} * head_dim; }
  AttentionParams params() const {
    AttentionParams params;
    params.heads = heads;
    params.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    params.window = window;
    params.first_cell = first_cell;
    return params;
  }
  Device::WorkspaceNeeds needs(int32_t tokens) const {
    Device::WorkspaceNeeds needs;
    needs.max_tokens = std::max(tokens, 512);
    needs.max_sequences = 8;
    needs.max_context = 2048;
    needs.max_heads = heads;
    needs.head_dim = head_dim;
    needs.kv_heads = kv_heads;
    needs.max_width = width();
    needs.k_codec = needs.v_codec = codec;
    needs.sparse_prefill = true;
    return needs;
  }
  std::string name() const {
    return fmt::format("heads {}/{} width {} {} tail {} sinks {}", heads, kv_heads, head_dim,
                       codec != nullptr          ? std::string(codec->name)
                       : format == KvFormat::f16 ? "f16"
                                                 : "bf16",
                       tail.tail_blocks, tail.sink_blocks);
  }
  // GPUs have sparse kernels for two widths and f16 queries.
  bool fits(const DeviceCase& device) const {
    return !device.gpu || (head_dim >= 128 && device.activation_type == DType::f16);
  }
};

// A row of a Hadamard matrix.
float direction(int32_t block, int32_t dim) {
  return std::popcount(static_cast<uint32_t>((block + 1) & dim)) % 2 == 0 ? 1.0f : -1.0f;
}

class SparseWorld {
 public:
  SparseWorld(const DeviceCase& device, const SparseShape& shape, const ColdBatch& rows,
              uint64_t seed)
      : world_(device), shape_(shape) {
    world_.prepare({}, shape.needs(rows.tokens()));
    kv_ = world_.kv_layer({shape.kv_heads, shape.head_dim, shape.format, shape.format},
                          rows.hot_blocks());
    if (shape.codec != nullptr) {
      kv_.cold =
          cold_pools(world_, kv_.shape, shape.codec, shape.codec, shape.tail, rows.cold_blocks());
    }
    for (int32_t b = 0; b < kv_.blocks; ++b) poison(b);
    fill(rows.batch(), seed);
  }

  const KvLayer& kv() const { return kv_; }
  SparseCounts counts() { return world_.device().sparse_counts(); }

  // Removes the hot blocks that no row of this batch reads exactly.
  void release(ColdBatch& rows) {
    if (!kv_.cold) return;
    for (const int32_t block : rows.release(shape_.tail)) poison(block);
  }
  // Overwrites the values of a block of 128 with large numbers.
  void spoil_values(const Batch& batch, int32_t s, int32_t n) {
    const std::vector<float> nobody(static_cast<size_t>(shape_.head_dim), kNobody);
    for (int32_t cell = n * kSparseBlock; cell < (n + 1) * kSparseBlock; ++cell)
      for (int32_t h = 0; h < shape_.kv_heads; ++h)
        encode(shape_.format, kv_.v_row(batch.blocks_of(s)[cell / kCold], h, cell % kCold), nobody);
  }

  // The units of a block of 128 get other keys than its rows: twice a direction.
  void disguise(const Batch& batch, int32_t s, int32_t n, int32_t as) {
    std::vector<float> key(static_cast<size_t>(shape_.head_dim));
    for (int32_t i = 0; i < shape_.head_dim; ++i)
      key[static_cast<size_t>(i)] = 2 * direction(as, i);
    for (int32_t b = n * 4; b < (n + 1) * 4; ++b) {
      const KvSeal seal{batch.blocks_of(s)[b], batch.cold_blocks_of(s)[b]};
      std::byte* rows = kv_.k_row(seal.hot, 0, 0);
      const std::vector<std::byte> kept(rows, rows + kv_.shape.k_block_bytes());
      for (int32_t h = 0; h < shape_.kv_heads; ++h)
        for (int32_t c = 0; c < kCold; ++c) encode(shape_.format, kv_.k_row(seal.hot, h, c), key);
      world_.ops().kv_seal(kv_, {&seal, 1});
      world_.device().synchronize();
      std::copy(kept.begin(), kept.end(), rows);
    }
  }

  std::vector<float> attend(Batch batch, float threshold, uint64_t seed) {
    batch.sparse_threshold = threshold;
    const std::vector<float> q = queries(batch, seed);
    const Tensor o = world_.tensor(batch.tokens, shape_.width(), std::vector<float>(q.size(), NAN));
    world_.ops().attention(o, world_.tensor(batch.tokens, shape_.width(), q), {}, shape_.params(),
                           kv_, batch);
    world_.device().synchronize();
    return values_of(o);
  }

 private:
  void poison(int32_t hot_block) {
    for (std::byte* at : {kv_.k_row(hot_block, 0, 0), kv_.v_row(hot_block, 0, 0)})
      std::memset(at, 0x7b, static_cast<size_t>(kv_.shape.k_block_bytes()));
  }
  // The values of a block share a vector, too, so that each block that is read shows.
  void fill(const Batch& batch, uint64_t seed) {
    Random random(seed);
    const auto dims = static_cast<size_t>(shape_.head_dim);
    std::vector<float> common;
    std::vector<KvSeal> full;
    for (int32_t s = 0; s < batch.sequences; ++s) {
      for (int32_t cell = 0; cell < batch.cell_end(s); ++cell) {
        const int32_t block = batch.blocks_of(s)[cell / kCold];
        if (cell % kSparseBlock == 0) common = random.normals(shape_.head_dim, 3.0f);
        for (int32_t h = 0; h < shape_.kv_heads; ++h) {
          std::vector<float> key = random.normals(shape_.head_dim, shape_.noise);
          std::vector<float> value = random.normals(shape_.head_dim, 0.5f);
          for (size_t i = 0; i < dims; ++i) {
            key[i] += direction(cell / kSparseBlock, static_cast<int32_t>(i));
            value[i] += common[(i + static_cast<size_t>(h)) % dims];
          }
          encode(shape_.format, kv_.k_row(block, h, cell % kCold), key);
          encode(shape_.format, kv_.v_row(block, h, cell % kCold), value);
        }
      }
      for (int32_t b = 0; kv_.cold && b < batch.context[s] / kCold; ++b)
        full.push_back({batch.blocks_of(s)[b], batch.cold_blocks_of(s)[b]});
    }
    if (!full.empty()) world_.ops().kv_seal(kv_, full);
    world_.device().synchronize();
  }
  // Row by row, from the positions alone.
  std::vector<float> queries(const Batch& batch, uint64_t seed) const {
    std::vector<float> all;
    const float weight = shape_.score / std::sqrt(static_cast<float>(shape_.head_dim));
    for (int32_t t = 0; t < batch.tokens; ++t) {
      Random random(seed + 1 + static_cast<uint64_t>(batch.position[t]));
      for (int32_t h = 0; h < shape_.heads; ++h) {
        std::vector<float> q = random.normals(shape_.head_dim, 0.3f);
        for (const int32_t n : shape_.targets(batch.position[t] / kSparseBlock, h))
          for (int32_t i = 0; i < shape_.head_dim; ++i)
            q[static_cast<size_t>(i)] += weight * direction(n, i);
        all.insert(all.end(), q.begin(), q.end());
      }
    }
    return all;
  }

  World world_;
  SparseShape shape_;
  KvLayer kv_;
};

bool takes_part(const SparseShape& shape, const Batch& batch, int32_t s) {
  return shape.window == 0 && shape.first_cell == 0 && batch.rows[s] >= 512 &&
         batch.certain[s] == batch.rows[s];
}

// What a batch adds to the counts with the threshold kBetween.
void add_counts(SparseCounts& counts, const SparseShape& shape, const Batch& batch) {
  for (int32_t s = 0; s < batch.sequences; ++s) {
    if (!takes_part(shape, batch, s)) continue;
    const int32_t past = batch.context[s] - batch.rows[s];
    for (int32_t m = past / 128; m <= (batch.context[s] - 1) / 128; ++m) {
      int32_t start = m - 3;
      if (shape.codec != nullptr)
        start =
            std::min(start, std::max(shape.tail.sink_blocks, 4 * m - shape.tail.tail_blocks) / 4);
      for (int32_t kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
        std::set<int32_t> read;
        for (int32_t n = 0; n <= m; ++n)
          if (n < 2 || n >= start) read.insert(n);
        for (int32_t h = 0; h < shape.group(); ++h)
          read.merge(shape.targets(m, kv_head * shape.group() + h));
        counts.read += read.size();
        counts.all += static_cast<uint64_t>(m + 1);
      }
    }
  }
}

using Steps = std::vector<std::vector<SequencePlan>>;

struct Answer {
  std::vector<float> o;
  SparseCounts counts;
  SparseCounts expected;
};

// The steps run one after the other on the cells of `whole`.
Answer attended(const DeviceCase& device, const SparseShape& shape,
                const std::vector<SequencePlan>& whole, const Steps& steps, float threshold,
                uint64_t seed) {
  Random random(seed);
  ColdBatch rows(whole, random);
  SparseWorld world(device, shape, rows, seed);
  Answer answer;
  for (const std::vector<SequencePlan>& step : steps) {
    rows = ColdBatch(step, rows);
    world.release(rows);
    const std::vector<float> o = world.attend(rows.batch(), threshold, seed);
    answer.o.insert(answer.o.end(), o.begin(), o.end());
    add_counts(answer.expected, shape, rows.batch());
  }
  answer.counts = world.counts();
  return answer;
}
Answer attended(const DeviceCase& device, const SparseShape& shape,
                const std::vector<SequencePlan>& plans, float threshold, uint64_t seed) {
  return attended(device, shape, plans, {plans}, threshold, seed);
}

std::vector<DeviceCase> devices_for(const SparseShape& shape) {
  static const std::vector<DeviceCase> all = sequence_devices();
  static const std::vector<DeviceCase> sealing = sealing_devices().all;
  std::vector<DeviceCase> devices = shape.codec != nullptr ? sealing : all;
  std::erase_if(devices, [&](const DeviceCase& device) { return !shape.fits(device); });
  return devices;
}

double limit_of(const DeviceCase& device, const SparseShape& shape) {
  DeviceCase rounding = device;
  // it makes f16 of units, or of scales times q
  if (device.gpu && shape.codec != nullptr) rounding.activation_type = DType::f16;
  return outputs(rounding, shape.format, 2.0f);
}

double most_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::fabs(double{a[i]} - b[i]));
  return most;
}

void expect_counts(const SparseCounts& counts, const SparseCounts& expected,
                   const std::string& what) {
  EXPECT_EQ(counts.read, expected.read) << what;
  EXPECT_EQ(counts.all, expected.all) << what;
}

void expect_reference(const SparseShape& shape, const std::vector<SequencePlan>& whole,
                      const Steps& steps, uint64_t seed, const std::string& name) {
  std::map<DType, Answer> references;
  for (const DeviceCase& device : devices_for(shape)) {
    const std::string what = device.name + " " + name;
    auto found = references.find(device.activation_type);
    if (found == references.end()) {
      const DeviceCase reference = reference_for(device);
      found = references
                  .emplace(device.activation_type,
                           attended(reference, shape, whole, steps, kBetween, seed))
                  .first;
      expect_counts(found->second.counts, found->second.expected, "reference for " + what);
    }
    if (device.reference) continue;
    const Answer answer = attended(device, shape, whole, steps, kBetween, seed);
    const double limit = limit_of(device, shape);
    expect_close(answer.o, found->second.o, limit, limit, what);
    expect_counts(answer.counts, found->second.counts, what);
  }
}
void expect_reference(const SparseShape& shape, const std::vector<SequencePlan>& plans,
                      uint64_t seed) {
  expect_reference(shape, plans, {plans}, seed, shape.name());
}

const SparseShape kShapes[] = {
    {.heads = 2, .kv_heads = 2, .head_dim = 128},
    {.heads = 4, .kv_heads = 2, .head_dim = 128, .format = KvFormat::bf16},
    {.heads = 6, .kv_heads = 1, .head_dim = 128},
    {.heads = 8, .kv_heads = 1, .head_dim = 128},
    {.heads = 1, .kv_heads = 1, .head_dim = 256, .format = KvFormat::bf16},
    {.heads = 2, .kv_heads = 1, .head_dim = 256},
    {.heads = 12, .kv_heads = 2, .head_dim = 256},
    {.heads = 8, .kv_heads = 1, .head_dim = 256, .format = KvFormat::bf16},
    {.heads = 4, .kv_heads = 2, .head_dim = 64},
};

std::vector<SparseShape> sealed_shapes() {
  std::vector<SparseShape> shapes;
  for (const char* codec : {"q8_0", "q4_0", "c4"}) {
    for (const int32_t tail : {3, 12, 21}) {
      for (const int32_t sinks : {0, 2}) {
        if (std::string_view(codec) == "c4" && (tail == 21 || sinks == 0)) continue;
        SparseShape shape{.heads = 4, .kv_heads = 2, .codec = codec_of(codec)};
        shape.tail = {tail, sinks};
        if (tail == 12) {
          shape.heads = 6;
          shape.kv_heads = 1;
          shape.head_dim = 256;
        }
        if (tail == 3 && sinks == 0) shape.heads = 16;
        shapes.push_back(shape);
      }
    }
  }
  return shapes;
}

TEST(SparseAttention, AgreesWithTheReference) {
  uint64_t seed = 1000;
  for (const SparseShape& shape : kShapes) expect_reference(shape, {{700, 601}}, ++seed);
}

TEST(SparseAttention, AgreesWithTheReferenceOnSealedBlocks) {
  uint64_t seed = 1100;
  for (const SparseShape& shape : sealed_shapes()) expect_reference(shape, {{710, 530}}, ++seed);
}

TEST(SparseAttention, AgreesWithTheReferenceAtTheStartOfAPrompt) {
  for (const int32_t rows : {512, 640, 1100}) {
    expect_reference({.heads = 4, .kv_heads = 2}, {{0, rows}}, 1200);
    expect_reference({.heads = 4, .kv_heads = 2, .codec = codec_of("q8_0"), .tail = {3, 2}},
                     {{0, rows}}, 1201);
  }
}

// The second step begins and the third ends inside a block.
TEST(SparseAttention, AgreesWithTheReferenceOnPromptsInSteps) {
  for (const char* codec : {"", "q8_0", "q4_0"}) {
    SparseShape shape{.heads = 8, .kv_heads = 2};
    if (*codec != 0) shape.codec = codec_of(codec);
    expect_reference(shape, {{0, 1897}}, {{{0, 715}}, {{715, 517}}, {{1232, 665}}}, 1300,
                     shape.name() + " in steps");
  }
}

TEST(SparseAttention, AgreesWithTheReferenceOnSequencesTogether) {
  const std::vector<SequencePlan> plans = {{850, 520}, {1100, 511}, {900, 512}, {300, 1}};
  SparseShape shape{.heads = 6, .kv_heads = 1};
  expect_reference(shape, plans, 1400);
  expect_reference(shape, {plans[3], plans[1], plans[0]}, 1401);
  shape.codec = codec_of("q8_0");
  expect_reference(shape, {plans[0], plans[1], plans[3]}, 1402);
}

TEST(SparseAttention, TinyThresholdsGiveTheBytesOfFullAttention) {
  std::vector<SparseShape> shapes(std::begin(kShapes), std::end(kShapes));
  for (const SparseShape& shape : sealed_shapes())
    if (shape.tail.tail_blocks != 21) shapes.push_back(shape);
  const std::vector<SequencePlan> cases[] = {{{900, 523}},
                                             {{40, 1}, {0, 700}, {130, 60}, {777, 512}}};
  for (const SparseShape& shape : shapes) {
    for (const DeviceCase& device : devices_for(shape)) {
      if (device.reference) continue;
      for (const std::vector<SequencePlan>& plans : cases) {
        const Answer sparse = attended(device, shape, plans, kTiny, 1500);
        const Answer full = attended(device, shape, plans, 0, 1500);
        const std::string what = device.name + " " + shape.name();
        if (device.gpu && shape.codec != nullptr) {  // full attention cuts bands into splits
          expect_close(sparse.o, full.o, limit_of(device, shape), limit_of(device, shape), what);
        } else {
          expect_same(sparse.o, full.o, what);
        }
        EXPECT_EQ(sparse.counts.read, sparse.counts.all) << device.name;
        EXPECT_EQ(sparse.counts.all, sparse.expected.all) << device.name;
        expect_counts(full.counts, {}, device.name + " without a threshold");
      }
    }
  }
}

// Blocks 3 and 5 are far from all rows and looked at, blocks 2, 4 and 6 are only far.
TEST(SparseAttention, FarBlocksAreReadOnlyIfTheyPromiseMuch) {
  SparseShape shape{.heads = 4, .kv_heads = 2};
  shape.targets = [](int32_t, int32_t head) { return std::set<int32_t>{head < 2 ? 3 : 5}; };
  for (const DeviceCase& device : devices_for(shape)) {
    Random random(1600);
    const ColdBatch rows({{1300, 520}}, random);
    SparseWorld world(device, shape, rows, 1600);
    const std::vector<float> full = world.attend(rows.batch(), 0, 1600);
    const std::vector<float> sparse = world.attend(rows.batch(), kBetween, 1600);
    EXPECT_GT(most_difference(sparse, full), 5 * limit_of(device, shape)) << device.name;
    for (const int32_t n : {2, 4, 6}) world.spoil_values(rows.batch(), 0, n);
    expect_same(world.attend(rows.batch(), kBetween, 1600), sparse, device.name);
    world.spoil_values(rows.batch(), 0, 3);
    EXPECT_GT(most_difference(world.attend(rows.batch(), kBetween, 1600), sparse), 100)
        << device.name << " does not read the block";
  }
}

// Each head looks at a block of its own, and all heads of the KV head read it.
TEST(SparseAttention, HeadsOfAKvHeadReadTheBlocksOfAllOfThem) {
  SparseShape shape{.heads = 16, .kv_heads = 2};
  shape.targets = [](int32_t, int32_t head) { return std::set<int32_t>{2 + head % 5}; };
  expect_reference(shape, {{1290, 520}}, 1700);
  shape.head_dim = 256;
  shape.heads = 6;
  shape.kv_heads = 3;
  expect_reference(shape, {{1290, 520}}, 1701);
}

// The first rows read block 5 exactly, the last one reads units that promise e^4 times what block 3
// does. So no query block chooses block 3.
TEST(SparseAttention, MeansAreOfTheKeysThatTheLastRowReads) {
  constexpr int32_t kLoud = 60;
  SparseShape shape{
      .heads = 2, .kv_heads = 1, .codec = codec_of("q8_0"), .tail = {21, 0}, .noise = 0.2f};
  shape.targets = [](int32_t, int32_t) { return std::set<int32_t>{3, kLoud}; };
  SparseShape chosen = shape;
  chosen.targets = [](int32_t, int32_t) { return std::set<int32_t>{5}; };
  const auto run = [&](const DeviceCase& device) {
    Random random(1750);
    ColdBatch rows({{1300, 520}}, random);
    SparseWorld world(device, shape, rows, 1750);
    world.disguise(rows.batch(), 0, 5, kLoud);
    world.release(rows);
    const std::vector<float> o = world.attend(rows.batch(), kBetween, 1750);
    SparseCounts expected;
    add_counts(expected, chosen, rows.batch());
    expect_counts(world.counts(), expected, device.name);
    return o;
  };
  for (const DeviceCase& device : devices_for(shape)) {
    const double limit = limit_of(device, shape);
    expect_close(run(device), run(reference_for(device)), limit, limit, device.name);
  }
}

// e^150 is no f32. Keys without noise give the cells of a block equal weights.
TEST(SparseAttention, LargeScoresStayFinite) {
  SparseShape shape{.heads = 4, .kv_heads = 2, .score = 150, .noise = 0};
  shape.targets = [](int32_t m, int32_t head) { return std::set<int32_t>{2 + (m + head) % 5}; };
  expect_reference(shape, {{1290, 520}}, 1800);
}

TEST(SparseAttention, OtherRowsAttendToEverything) {
  struct Case {
    std::vector<SequencePlan> plans;
    int32_t window = 0;
    int32_t first_cell = 0;
  };
  const Case cases[] = {{{{1300, 511}}},      {{{1300, 512, {-1}}}}, {{{1300, 510, chain(6)}}},
                        {{{1300, 520}}, 800}, {{{1300, 520}}, 0, 1}, {{{0, 512}}}};
  const SparseShape plain{.heads = 6, .kv_heads = 1};
  for (const DeviceCase& device : devices_for(plain)) {
    for (const Case& other : cases) {
      SparseShape shape = plain;
      shape.window = other.window;
      shape.first_cell = other.first_cell;
      const Answer sparse = attended(device, shape, other.plans, kBetween, 1900);
      const Answer full = attended(device, shape, other.plans, 0, 1900);
      expect_same(sparse.o, full.o, device.name);
      // The rows at the start of a prompt take part, and read all blocks.
      expect_counts(sparse.counts, sparse.expected, device.name);
      EXPECT_EQ(sparse.counts.read, sparse.counts.all) << device.name;
    }
  }
}

// A short sequence has the bytes of full attention.
TEST(SparseAttention, DoesNotDependOnOtherSequences) {
  const SequencePlan longer{850, 520}, shorter{1100, 300};
  for (const SparseShape& shape :
       {SparseShape{.heads = 8, .kv_heads = 2},
        SparseShape{.heads = 8, .kv_heads = 2, .codec = codec_of("q8_0")}}) {
    for (const DeviceCase& device : devices_for(shape)) {
      if (device.reference) continue;
      const auto run = [&](const std::vector<SequencePlan>& plans, float threshold) {
        return attended(device, shape, {longer, shorter}, {plans}, threshold, 2000).o;
      };
      const std::vector<float> both = run({longer, shorter}, kBetween);
      const auto split = both.begin() + longer.certain * shape.width();
      const double limit = device.gpu ? limit_of(device, shape) : 0;
      expect_close(run({longer, {}}, kBetween), {both.begin(), split}, limit, limit, device.name);
      expect_close(run({{}, shorter}, 0), {split, both.end()}, limit, limit, device.name);
    }
    expect_reference(shape, {longer, shorter}, 2001);
    expect_reference(shape, {shorter, longer}, 2002);
  }
}

TEST(SparseAttention, DoesNotDependOnThreads) {
  for (SparseShape shape : {kShapes[2], kShapes[8], sealed_shapes()[0]}) {
    for (const DeviceCase& device : devices_for(shape)) {
      const auto run = [&](const DeviceCase& on) {
        return attended(on, shape, {{850, 520}, {300, 40}, {777, 512}}, kBetween, 2100);
      };
      const std::vector<DeviceCase> others = other_thread_counts(device);
      if (others.empty()) continue;
      const Answer expected = run(device);
      expect_counts(expected.counts, expected.expected, device.name);
      for (const DeviceCase& other : others) {
        const Answer answer = run(other);
        expect_same(answer.o, expected.o, other.name);
        expect_counts(answer.counts, expected.counts, other.name);
      }
    }
  }
}

void attend_without_a_workspace(const DeviceCase& device) {
  const SparseShape shape;
  Random random(2200);
  const ColdBatch rows({{0, 512}}, random);
  World world(device);
  Device::WorkspaceNeeds needs = shape.needs(rows.tokens());
  needs.sparse_prefill = false;
  world.prepare({}, needs);
  const KvLayer kv = world.kv_layer({shape.kv_heads, shape.head_dim, shape.format, shape.format},
                                    rows.hot_blocks());
  Batch batch = rows.batch();
  batch.sparse_threshold = kBetween;
  const Tensor q = world.tensor(batch.tokens, shape.width());
  world.ops().attention(world.tensor(batch.tokens, shape.width()), q, {}, shape.params(), kv,
                        batch);
}

TEST(SparseAttentionDeathTest, ThresholdsNeedAWorkspace) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  for (const DeviceCase& device : plain_devices())
    if (!device.gpu && !device.reference)
      EXPECT_DEATH(attend_without_a_workspace(device), "reserved");
}

}  // namespace
}  // namespace braid
