// op_test.cpp -- the helpers of op_test.h, and the list of devices that op tests run on.
#include "ops/tests/op_test.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include <map>

#include "gguf/block_layouts.h"
#include "gguf/half.h"
#include "ops/tests/mirror_test.h"

namespace braid::test {

uint64_t Random::next() {
  uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

int64_t Random::between(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(next() % static_cast<uint64_t>(high - low + 1));
}

float Random::uniform(float low, float high) {
  return low + (high - low) * (static_cast<float>(next() >> 40) * 0x1p-24f);
}

float Random::normal() {
  float sum = 0;
  for (int i = 0; i < 6; ++i) sum += uniform(-1, 1);
  return sum * 0.70710678f;  // variance 6 / 3 / 2
}

std::vector<float> Random::normals(int64_t count, float scale) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = normal() * scale;
  return values;
}

namespace {

bool cpu_usable() {
  static const bool usable = make_cpu_device({.threads = 1}).ok();
  return usable;
}

// Null, with a reason, if there is none. BRAID_TEST_DEVICES=gpu skips the CPU.
const DeviceCase* gpu_case() {
  static const DeviceCase* found = []() -> const DeviceCase* {
    auto made = make_cuda_device({});
    if (!made.ok()) {
      fmt::print("no GPU is tested: {}\n", made.error().message);
      return nullptr;
    }
    return new DeviceCase{
        .name = "cuda", .gpu = true, .activation_type = (*made)->activation_type()};
  }();
  return found;
}
bool only_gpu() {
  const char* devices = std::getenv("BRAID_TEST_DEVICES");
  return devices != nullptr && std::strcmp(devices, "gpu") == 0;
}

class CountWorlds : public ::testing::Environment {
 public:
  static std::map<std::string, int>& counts() {
    static std::map<std::string, int> map;
    return map;
  }
  void TearDown() override {
    for (const auto& [name, count] : counts()) fmt::print("{} cases ran on {}\n", count, name);
  }
};
[[maybe_unused]] ::testing::Environment* const count_worlds =
    ::testing::AddGlobalTestEnvironment(new CountWorlds);

}  // namespace

DeviceCase reference_device() { return {.name = "reference", .reference = true}; }

DeviceCase reference_for(const DeviceCase& device) {
  DeviceCase reference = reference_device();
  reference.activation_type = device.activation_type;
  return reference;
}

std::vector<DeviceCase> all_devices() {
  std::vector<DeviceCase> devices;
  if (!only_gpu()) devices.push_back(reference_device());
  if (gpu_case() != nullptr) devices.push_back(*gpu_case());
  if (cpu_usable() && !only_gpu()) {
    devices.push_back({.name = "cpu f32", .threads = 2});
    devices.push_back({.name = "cpu i16", .activations = Activations::i16, .threads = 2});
    devices.push_back({.name = "cpu i8", .activations = Activations::i8, .threads = 2});
  }
  return devices;
}

std::vector<DeviceCase> plain_devices() {
  std::vector<DeviceCase> devices;
  if (!only_gpu()) devices.push_back(reference_device());
  if (gpu_case() != nullptr) devices.push_back(*gpu_case());
  if (cpu_usable() && !only_gpu())
    devices.push_back({.name = "cpu", .activations = Activations::i8, .threads = 2});
  return devices;
}

std::vector<DeviceCase> exact_devices() {
  std::vector<DeviceCase> devices = plain_devices();
  for (DeviceCase& device : devices) {
    if (device.gpu) device.name += " with f32 activations";
    device.activation_type = DType::f32;
  }
  return devices;
}

std::vector<DeviceCase> sequence_devices() {
  std::vector<DeviceCase> devices = exact_devices();
  for (const DeviceCase& device : plain_devices()) {
    if (device.gpu) devices.push_back(device);
  }
  return devices;
}

std::vector<DeviceCase> other_thread_counts(const DeviceCase& device) {
  std::vector<DeviceCase> others;
  for (int threads : {1, 2, 5}) {
    if (device.reference || device.gpu || threads == device.threads) continue;
    DeviceCase other = device;
    other.threads = threads;
    other.name += fmt::format(" on {} threads", threads);
    others.push_back(other);
  }
  return others;
}

World::World(const DeviceCase& device) {
  const DeviceOptions options{.threads = device.threads,
                              .activations = device.activations,
                              .max_tokens = 512,
                              .deterministic = device.deterministic,
                              .experts_on_host = device.experts_on_host};
  ++CountWorlds::counts()[device.name];
  if (device.reference) {
    device_ = make_ref_device(options);
    if (device.activation_type != DType::f32)
      device_ = make_mirror(std::move(device_), device.activation_type);
    return;
  }
  if (device.gpu) {
    auto made = make_cuda_device(options);
    BRAID_CHECK(made.ok());
    device_ = make_mirror(std::move(*made), device.activation_type);
    return;
  }
  const char* before = std::getenv("BRAID_CPU");
  const std::string kept = before != nullptr ? before : "";
  if (!device.path.empty()) setenv("BRAID_CPU", device.path.c_str(), 1);
  auto made = make_cpu_device(options);
  if (!device.path.empty())
    before != nullptr ? setenv("BRAID_CPU", kept.c_str(), 1) : unsetenv("BRAID_CPU");
  BRAID_CHECK(made.ok());
  device_ = std::move(*made);
}

void World::prepare(const std::vector<Weight*>& weights, const Device::WorkspaceNeeds& needs) {
  const Status loaded = device_->load_weights(weights, nullptr);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  const auto reserved = device_->reserve_workspaces(needs);
  ASSERT_TRUE(reserved.ok()) << reserved.error().message;
}

Tensor World::tensor(int64_t rows, int64_t cols, DType type) {
  const size_t size = static_cast<size_t>(std::max<int64_t>(rows * cols, 1)) * size_bytes(type);
  auto buffer = device_->allocate(size, "test");
  BRAID_CHECK(buffer.ok());
  buffers_.push_back(std::move(*buffer));
  return Tensor{buffers_.back().data(), type, rows, cols, cols};
}

Tensor World::tensor(int64_t rows, int64_t cols, const std::vector<float>& values) {
  BRAID_CHECK(static_cast<int64_t>(values.size()) == rows * cols);
  const Tensor t = tensor(rows, cols);
  std::copy(values.begin(), values.end(), t.f32());
  return t;
}

float* World::array(int64_t count) { return tensor(1, count).f32(); }
float* World::array(const std::vector<float>& values) {
  return tensor(1, std::ssize(values), values).f32();
}

KvLayer World::kv_layer(const KvShape& shape, int32_t blocks) {
  KvLayer kv;
  kv.shape = shape;
  kv.blocks = blocks;
  kv.k = reinterpret_cast<std::byte*>(array(blocks * shape.k_block_bytes() / 4));
  kv.v = reinterpret_cast<std::byte*>(array(blocks * shape.v_block_bytes() / 4));
  return kv;
}

DeltaLayer World::delta_layer(const DeltaShape& shape, int32_t slots, int32_t uncertain) {
  DeltaLayer layer{shape, device_->delta_ring(uncertain), slots, device_->state_tile_columns(shape),
                   nullptr};
  layer.data = array(slots * layer.slot_elements());
  return layer;
}

std::vector<float> values_of(const Tensor& t) {
  std::vector<float> values;
  for (int64_t row = 0; row < t.rows; ++row)
    values.insert(values.end(), t.f32(row), t.f32(row) + t.cols);
  return values;
}

std::vector<int32_t> chain(int32_t rows) {
  std::vector<int32_t> parents(static_cast<size_t>(rows));
  std::iota(parents.begin(), parents.end(), -1);
  return parents;
}

std::vector<int32_t> random_tree(int32_t rows, Random& random) {
  std::vector<int32_t> parents;
  for (int32_t i = 0; i < rows; ++i)
    parents.push_back(static_cast<int32_t>(random.between(-1, i - 1)));
  return parents;
}

std::vector<SequencePlan> random_plans(Random& random, int32_t sequences, int32_t most_past,
                                       int32_t most_certain, int32_t most_uncertain) {
  std::vector<SequencePlan> plans;
  for (int32_t s = 0; s < sequences; ++s) {
    SequencePlan plan;
    const int64_t kind =
        random.between(0, 5);  // fresh, longer, mixed tree, mixed chain, tree alone, empty
    if (kind != 0) plan.past = static_cast<int32_t>(random.between(1, most_past));
    if (kind <= 3) plan.certain = static_cast<int32_t>(random.between(1, most_certain));
    const auto uncertain = static_cast<int32_t>(random.between(1, most_uncertain));
    if (kind == 2 || kind == 4) plan.parents = random_tree(uncertain, random);
    if (kind == 3) plan.parents = chain(uncertain);
    plans.push_back(plan);
  }
  return plans;
}

TestBatch::TestBatch(const std::vector<SequencePlan>& plans, Random& random) {
  std::vector<int32_t> needed;
  for (const SequencePlan& plan : plans) {
    const auto cells = plan.past + plan.certain + static_cast<int32_t>(plan.parents.size());
    needed.push_back((cells + kBlockTokens - 1) / kBlockTokens);
    blocks_per_sequence_ = std::max(blocks_per_sequence_, needed.back() + 1);
    blocks_ += needed.back();
  }
  blocks_ += 2;
  slots_ = static_cast<int32_t>(plans.size()) + 2;
  std::vector<int32_t> free_blocks(static_cast<size_t>(blocks_));
  std::iota(free_blocks.begin(), free_blocks.end(), 0);
  random.shuffle(free_blocks);
  slot_.resize(static_cast<size_t>(slots_));
  std::iota(slot_.begin(), slot_.end(), 0);
  random.shuffle(slot_);
  slot_.resize(plans.size());
  block_table_.assign(plans.size() * static_cast<size_t>(blocks_per_sequence_), -1);
  for (size_t s = 0; s < plans.size(); ++s) {
    for (int32_t i = 0; i < needed[s]; ++i) {
      block_table_[s * static_cast<size_t>(blocks_per_sequence_) + i] = free_blocks.back();
      free_blocks.pop_back();
    }
  }
  add_rows(plans);
}

TestBatch::TestBatch(const std::vector<SequencePlan>& plans, const TestBatch& like)
    : slot_(like.slot_),
      block_table_(like.block_table_),
      blocks_(like.blocks_),
      slots_(like.slots_),
      blocks_per_sequence_(like.blocks_per_sequence_) {
  BRAID_CHECK(plans.size() == slot_.size());
  add_rows(plans);
}

TestBatch::TestBatch(const SequencePlan& plan, const TestBatch& like, int32_t sequence)
    : slot_{like.slot_[static_cast<size_t>(sequence)]},
      blocks_(like.blocks_),
      slots_(like.slots_),
      blocks_per_sequence_(like.blocks_per_sequence_) {
  const auto first = like.block_table_.begin() + int64_t{sequence} * blocks_per_sequence_;
  block_table_.assign(first, first + blocks_per_sequence_);
  add_rows({plan});
}

void TestBatch::add_rows(const std::vector<SequencePlan>& plans) {
  for (size_t s = 0; s < plans.size(); ++s) {
    const SequencePlan& plan = plans[s];
    const auto first = static_cast<int32_t>(token_.size());
    const auto uncertain = static_cast<int32_t>(plan.parents.size());
    first_row_.push_back(first);
    rows_.push_back(plan.certain + uncertain);
    certain_.push_back(plan.certain);
    context_.push_back(plan.past + plan.certain);
    for (int32_t i = 0; i < plan.certain + uncertain; ++i) {
      const int32_t own = i - plan.certain;  // among the uncertain rows
      const int32_t parent =
          own < 0 || plan.parents[own] < 0 ? -1 : first + plan.certain + plan.parents[own];
      token_.push_back(first + i);
      sequence_.push_back(static_cast<int32_t>(s));
      cell_.push_back(plan.past + i);
      parent_.push_back(parent);
      if (own < 0) {
        position_.push_back(plan.past + i);
      } else {
        position_.push_back(parent < 0 ? context_.back() : position_[parent] + 1);
      }
      output_row_.push_back(first + i);
    }
  }
  finish();
}

void TestBatch::forget_behind(int32_t window) {
  for (size_t s = 0; s < rows_.size(); ++s) {
    const int32_t first_seen = context_[s] - certain_[s] - window + 1;
    for (int32_t i = 0; i < first_seen / kBlockTokens; ++i)
      block_table_[s * static_cast<size_t>(blocks_per_sequence_) + i] = -1;
  }
}

void TestBatch::finish() {
  batch_.tokens = static_cast<int32_t>(token_.size());
  batch_.sequences = static_cast<int32_t>(rows_.size());
  batch_.outputs = static_cast<int32_t>(output_row_.size());
  batch_.most_rows = rows_.empty() ? 0 : std::max(1, *std::max_element(rows_.begin(), rows_.end()));
  for (size_t s = 0; s < rows_.size(); ++s) {
    batch_.most_uncertain = std::max(batch_.most_uncertain, rows_[s] - certain_[s]);
    batch_.most_certain = std::max(batch_.most_certain, certain_[s]);
  }
  batch_.token = token_.data();
  batch_.position = position_.data();
  batch_.cell = cell_.data();
  batch_.sequence = sequence_.data();
  batch_.parent = parent_.data();
  batch_.first_row = first_row_.data();
  batch_.rows = rows_.data();
  batch_.certain = certain_.data();
  batch_.context = context_.data();
  batch_.slot = slot_.data();
  batch_.block_table = block_table_.data();
  batch_.blocks_per_sequence = blocks_per_sequence_;
  batch_.output_row = output_row_.data();
}

void expect_close(const std::vector<float>& actual, const std::vector<float>& expected,
                  double absolute, double relative, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  size_t worst = 0;
  double worst_excess = -1;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double error = std::fabs(double{actual[i]} - expected[i]);
    const double ratio = error / (absolute + relative * std::fabs(double{expected[i]}));
    if (error != 0 && !(ratio <= worst_excess)) {  // NaN counts as worst
      worst = i;
      worst_excess = std::isnan(ratio) ? INFINITY : ratio;
    }
  }
  EXPECT_LE(worst_excess, 1.0) << what << ": at " << worst << " of " << actual.size() << ": "
                               << actual[worst] << " instead of " << expected[worst];
}

void expect_same(const std::vector<float>& actual, const std::vector<float>& expected,
                 const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  size_t different = 0;
  size_t first = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::memcmp(&actual[i], &expected[i], sizeof(float)) == 0) continue;
    if (different++ == 0) first = i;
  }
  EXPECT_EQ(different, 0u) << what << ": first at " << first << " of " << actual.size() << ": "
                           << actual[first] << " instead of " << expected[first];
}

namespace {

// Offsets of the f16 scales in blocks that have no encoder.
std::vector<size_t> scale_offsets(GgmlType type) {
  switch (type) {
    case GgmlType::Q2_K:
      return {80, 82};
    case GgmlType::Q3_K:
      return {108};
    case GgmlType::IQ1_M:
      return {};
    default:
      return {0};
  }
}

// Random codes, sensible scales. iq1_m has its scale in the top nibbles of its last four words.
void random_blocks(Random& random, GgmlType type, std::byte* bytes, int64_t blocks) {
  const size_t size = block_bytes(type);
  for (int64_t b = 0; b < blocks; ++b) {
    std::byte* block = bytes + static_cast<size_t>(b) * size;
    for (size_t i = 0; i < size; ++i) block[i] = static_cast<std::byte>(random.next());
    const uint16_t scale = f32_to_f16(random.uniform(0.001f, 0.02f));
    for (size_t at : scale_offsets(type)) std::memcpy(block + at, &scale, sizeof scale);
    if (type != GgmlType::IQ1_M) continue;
    for (int i = 0; i < 4; ++i) {
      std::byte& top = block[size - 8 + 2 * i + 1];
      top = (top & std::byte{15}) | static_cast<std::byte>((scale >> (4 * i) & 15) << 4);
    }
  }
}

}  // namespace

std::unique_ptr<TestWeight> random_weight(Random& random, GgmlType type, int64_t n, int64_t k,
                                          int64_t experts, bool with_scales) {
  auto made = std::make_unique<TestWeight>();
  const int64_t rows = n * experts;
  const auto bytes = static_cast<size_t>(row_bytes(type, static_cast<uint64_t>(k)).value());
  made->bytes.resize(bytes * static_cast<size_t>(rows));
  made->values.resize(static_cast<size_t>(rows * k));
  for (int64_t row = 0; row < rows; ++row) {
    std::byte* dst = made->bytes.data() + bytes * static_cast<size_t>(row);
    if (can_encode(type)) {
      // nvfp4 scales underflow with small weights, so its tensors have a separate factor.
      encode_row(type, random.normals(k, type == GgmlType::NVFP4 ? 20.0f : 0.05f).data(), dst, k);
    } else {
      random_blocks(random, type, dst, k / block_elems(type));
    }
    decode_row(type, dst, made->values.data() + row * k, k);
  }
  if (with_scales) {
    for (int64_t e = 0; e < experts; ++e) made->scales.push_back(random.uniform(0.25f, 2.0f));
  }
  Weight& w = made->weight;
  w.name = fmt::format("test {} [{}][{}, {}]", type_name(type), experts, n, k);
  w.type = type;
  w.n = n;
  w.k = k;
  w.experts = experts;
  w.file = made->bytes;
  w.scales = made->scales;
  return made;
}

}  // namespace braid::test
