// op_test.h -- the small world in which op tests run one case on every device of the build.
//
// A case is a pure function of its seed: it builds inputs, runs ops on the given device and returns what they
// wrote. Running it on the reference and on a device gives two answers to compare; running it on one device
// with other thread counts or cuts gives bytes to compare. Devices under test share the host's memory. Cells
// and slots that no row may read hold large finite values, so that reading one shows.
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
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[between(0, int64_t(i) - 1)]);
  }

 private:
  uint64_t state_;
};

struct DeviceCase {
  std::string name;
  bool reference = false;
  Activations activations = Activations::f32;
  int threads = 1;
  std::string path = {};  // BRAID_CPU while the device is made; empty: as the environment says
  bool gpu = false;
  DType activation_type = DType::f32;  // what goes into ops is rounded to this
  bool deterministic = false;          // DeviceOptions::deterministic

  // What one activation rounded to nearest may be off by, relative to itself.
  double rounding() const {
    return activation_type == DType::f16 ? 0x1p-11 : activation_type == DType::bf16 ? 0x1p-8 : 0.0;
  }
  // A limit that holds for f32 activations, widened by `roundings` of them.
  double tolerance(double f32_limit, double roundings = 2) const {
    return f32_limit + roundings * rounding();
  }
};
DeviceCase reference_device();
// The reference with its inputs rounded as those of `device`.
DeviceCase reference_for(const DeviceCase& device);
// The reference, and every other device with each activation format; the GPU if there is one.
std::vector<DeviceCase> all_devices();
// The reference and each other device once, for ops that activation formats do not touch.
std::vector<DeviceCase> plain_devices();
// For ops on what sequences own, which take activations of either type: plain_devices() with the GPU twice,
// with its own activations and with f32; and with f32 alone, where results are compared to closed forms.
std::vector<DeviceCase> sequence_devices();
std::vector<DeviceCase> exact_devices();
// The same device with other thread counts (itself excluded); empty for the reference.
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

// One sequence of a batch. `parents` has one entry per uncertain row, relative to the first of them; -1 is a
// root.
struct SequencePlan {
  int32_t past = 0;  // positions held before this batch
  int32_t certain = 0;
  std::vector<int32_t> parents = {};
};
std::vector<int32_t> chain(int32_t rows);                        // -1 0 1 2 ...
std::vector<int32_t> random_tree(int32_t rows, Random& random);  // a forest
// Sequences of every kind: certain only, mixed, uncertain only, trees and chains, empty.
std::vector<SequencePlan> random_plans(Random& random, int32_t sequences, int32_t most_past,
                                       int32_t most_certain, int32_t most_uncertain);

// A Batch with shuffled block tables and slots. Entries of the block table that nobody needs are -1.
class TestBatch {
 public:
  TestBatch(const std::vector<SequencePlan>& plans, Random& random);
  // The same sequences, blocks and slots at a later or earlier cut.
  TestBatch(const std::vector<SequencePlan>& plans, const TestBatch& like);
  // One of these sequences without the others.
  TestBatch(const SequencePlan& plan, const TestBatch& like, int32_t sequence);

  // Blocks that no row of a layer with this window sees are taken away: their entries become -1.
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

// Fails unless |actual - expected| <= absolute + relative |expected| everywhere; names the worst place.
void expect_close(const std::vector<float>& actual, const std::vector<float>& expected, double absolute,
                  double relative, const std::string& what);
void expect_same(const std::vector<float>& actual, const std::vector<float>& expected,
                 const std::string& what);

// A weight with the file bytes it needs to live.
struct TestWeight {
  Weight weight;
  std::vector<std::byte> bytes;
  std::vector<float> scales;
  std::vector<float> values;  // decoded [experts][n][k]
};
// Random weights of any type: encoded from normal values where there is an encoder, else random codes.
std::unique_ptr<TestWeight> random_weight(Random& random, GgmlType type, int64_t n, int64_t k,
                                          int64_t experts = 1, bool with_scales = false);

}  // namespace braid::test
