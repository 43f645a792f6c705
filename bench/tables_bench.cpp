// tables_bench.cpp -- host cost of filling a decoding step's arrays for a device with own memory.
//   tables_bench [SEQUENCES] [CONTEXT] [TOKENS]     default 512 of 1,280 tokens, context 262,144
// Prints, for a step in which all sequences decode, and again after one has left: bytes sent ahead
// of the record, copies, and longest and median microseconds of filling.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <vector>

#include "engine/schedule/batch_arrays.h"

namespace {

using namespace braid;
using Clock = std::chrono::steady_clock;

class Counting : public Device {
 public:
  std::string description() const override { return "counting"; }
  Result<Buffer> allocate(size_t size_bytes, const char*) override {
    return Buffer(std::calloc(1, size_bytes), size_bytes, [](void* p, size_t) { std::free(p); });
  }
  Status load_weights(std::span<Weight* const>, const WeightDone&) override { return {}; }
  void copy_rows(const Weight&, const Weight&, std::span<const int32_t>) override {}
  size_t weight_bytes(const Weight&) const override { return 0; }
  Result<size_t> reserve_workspaces(const WorkspaceNeeds&) override { return size_t{0}; }
  void to_device(void*, const void*, size_t size_bytes) override { add(size_bytes); }
  void rows_to_device(const Copy& c) override { add(c.bytes * static_cast<size_t>(c.rows)); }
  void to_host(void*, const void*, size_t) override {}
  DeviceTraits traits() const override { return {.host_visible = false}; }
  void synchronize() override {}
  Ops& ops() override { std::abort(); }

  size_t bytes = 0, copies = 0;

 private:
  void add(size_t size_bytes) {
    bytes += size_bytes;
    ++copies;
  }
};

struct Steps {
  Steps(int32_t sequences, int32_t context, int32_t tokens) : all(static_cast<size_t>(sequences)) {
    const BatchArrays::Sizes most{sequences, sequences, sequences};
    if (!arrays.allocate(device, "bench", most, 1, static_cast<int32_t>(blocks_for(context)), 1)
             .ok())
      std::exit(1);
    for (int32_t i = 0; i < sequences; ++i) {
      Sequence& s = all[static_cast<size_t>(i)];
      s.id = s.entry = static_cast<uint64_t>(i) + 1;
      s.computed_tokens = tokens + i % kBlockTokens;
    }
  }
  double step() {
    device.bytes = device.copies = 0;
    const auto room = static_cast<int32_t>(all.size());
    for (Sequence& s : all) {
      ++s.computed_tokens;
      s.blocks[0].resize(static_cast<size_t>(blocks_for(s.computed_tokens + 1)),
                         static_cast<int32_t>(s.id));
    }
    const auto begin = Clock::now();
    arrays.begin({room, room, room});
    for (int32_t i = 0; i < room; ++i) {
      const Sequence& s = all[static_cast<size_t>(i)];
      arrays.set_blocks(i, s);
      arrays.add_sequence(0, i, 1, s.computed_tokens + 1);
      arrays.add_row(0, {1, s.computed_tokens, s.computed_tokens});
      arrays.add_output(0);
    }
    arrays.finish(0, true);
    arrays.send_tables();
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  }
  Counting device;
  BatchArrays arrays;
  std::vector<Sequence> all;
};

}  // namespace

int main(int argc, char** argv) {
  const auto given = [&](int i, int32_t otherwise) {
    return argc > i ? std::atoi(argv[i]) : otherwise;
  };
  const int32_t sequences = given(1, 512), context = given(2, 262144), tokens = given(3, 1280);
  Steps steps(sequences, context, tokens);
  steps.step();
  std::vector<double> us;
  size_t most = 0, copies = 0;
  for (int i = 0; i < 200; ++i) {
    us.push_back(steps.step());
    most = std::max(most, steps.device.bytes);
    copies = std::max(copies, steps.device.copies);
  }
  std::sort(us.begin(), us.end());
  fmt::print("{} sequences of {} tokens, context {}: all tables {} bytes\n", sequences, tokens,
             context, int64_t{sequences} * blocks_for(context) * 4);
  fmt::print("a step   {:7.1f} us, most {:7.1f}; at most {} bytes in {} copies\n",
             us[us.size() / 2], us.back(), most, copies);
  steps.all.erase(steps.all.begin());
  const double left = steps.step();
  fmt::print("one left {:7.1f} us; {} bytes in {} copies\n", left, steps.device.bytes,
             steps.device.copies);
  return 0;
}
