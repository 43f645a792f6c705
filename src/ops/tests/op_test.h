// op_test.h -- runs one case of an op test on every device of the build.
// A case is a pure function of its seed: it builds inputs, runs ops on a device and returns what
// they wrote. Answers of the reference and a device, or of one device with other thread counts or
// cuts, are compared. Unreadable cells and slots hold large finite values, to expose reads.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/device.h"
#include "ops/ops.h"

namespace braid::test {

// splitmix64: the same numbers everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  uint64_t next();
  int64_t between(int64_t low, int64_t high);  // both included
  float uniform(float low, float high);
  float normal();
  std::vector<float> normals(int64_t count, float scale = 1.0f);
  template <typename T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i)
      std::swap(items[i - 1], items[between(0, int64_t(i) - 1)]);
  }

 private:
  uint64_t state_;
};

struct DeviceCase {
  std::string name;
  bool reference = false;
  Activations activations = Activations::f32;
  int threads = 1;
  std::string path = {};  // BRAID_CPU while the device is made; empty: unchanged
  bool gpu = false;
  DType activation_type = DType::f32;  // inputs of ops are rounded to this
  bool deterministic = false;
  bool experts_on_host = false;

  // Relative error of one activation.
  double rounding() const {
    return activation_type == DType::f16 ? 0x1p-11 : activation_type == DType::bf16 ? 0x1p-8 : 0.0;
  }
  // A limit for f32 activations, widened by `roundings` of them.
  double tolerance(double f32_limit, double roundings = 2) const {
    return f32_limit + roundings * rounding();
  }
};
DeviceCase reference_device();
// The reference, with inputs rounded as on `device`.
DeviceCase reference_for(const DeviceCase& device);
// With each activation format.
std::vector<DeviceCase> all_devices();
// Each device once, for ops that activation formats do not affect.
std::vector<DeviceCase> plain_devices();
// plain_devices() with the GPU twice, with its own activations and with f32; and f32 alone.
std::vector<DeviceCase> sequence_devices();
std::vector<DeviceCase> exact_devices();
// The same device with other thread counts; empty for the reference.
std::vector<DeviceCase> other_thread_counts(const DeviceCase& device);

class World {
 public:
  explicit World(const DeviceCase& device);
  Device& device() { return *device_; }
  Ops& ops() { return device_->ops(); }

  // Before the first op.
  void prepare(const std::vector<Weight*>& weights, const Device::WorkspaceNeeds& needs);

  Tensor tensor(int64_t rows, int64_t cols, DType type = DType::f32);  // zeros
  Tensor tensor(int64_t rows, int64_t cols, const std::vector<float>& values);
  float* array(int64_t count);  // zeros
  float* array(const std::vector<float>& values);

  KvLayer kv_layer(const KvShape& shape, int32_t blocks);
  DeltaLayer delta_layer(const DeltaShape& shape, int32_t slots, int32_t uncertain);

 private:
  std::unique_ptr<Device> device_;
  std::deque<Buffer> buffers_;
};

std::vector<float> values_of(const Tensor& t);  // rows * cols

// `parents` has one entry per uncertain row, relative to the first; -1: a root.
struct SequencePlan {
  int32_t past = 0;  // positions held before this batch
  int32_t certain = 0;
  std::vector<int32_t> parents = {};
};
std::vector<int32_t> chain(int32_t rows);                        // -1 0 1 2 ...
std::vector<int32_t> random_tree(int32_t rows, Random& random);  // a forest
std::vector<SequencePlan> random_plans(Random& random, int32_t sequences, int32_t most_past,
                                       int32_t most_certain, int32_t most_uncertain);

// Shuffled block tables and slots. Unused entries of the block table are -1.
class TestBatch {
 public:
  TestBatch(const std::vector<SequencePlan>& plans, Random& random);
  // The same sequences, blocks and slots at another cut.
  TestBatch(const std::vector<SequencePlan>& plans, const TestBatch& like);
  TestBatch(const SequencePlan& plan, const TestBatch& like, int32_t sequence);

  // Sets table entries of blocks below the window of all rows to -1.
  void forget_behind(int32_t window);

  const Batch& batch() const { return batch_; }
  int32_t blocks() const { return blocks_; }
  int32_t slots() const { return slots_; }
  int32_t tokens() const { return batch_.tokens; }

 private:
  void add_rows(const std::vector<SequencePlan>& plans);
  void finish();
  std::vector<int32_t> token_, position_, cell_, sequence_, parent_;
  std::vector<int32_t> first_row_, rows_, certain_, context_, slot_, block_table_, output_row_;
  int32_t blocks_ = 0;
  int32_t slots_ = 0;
  int32_t blocks_per_sequence_ = 0;
  Batch batch_;
};

// Checks |actual - expected| <= absolute + relative |expected|; reports the worst place.
void expect_close(const std::vector<float>& actual, const std::vector<float>& expected,
                  double absolute, double relative, const std::string& what);
void expect_same(const std::vector<float>& actual, const std::vector<float>& expected,
                 const std::string& what);

struct TestWeight {
  Weight weight;
  std::vector<std::byte> bytes;
  std::vector<float> scales;
  std::vector<float> values;  // decoded [experts][n][k]
};
std::unique_ptr<TestWeight> random_weight(Random& random, GgmlType type, int64_t n, int64_t k,
                                          int64_t experts = 1, bool with_scales = false);

}  // namespace braid::test
