// device.h -- memory and time of one device; arithmetic is ops.h.
//
// A device is made once, gives out all memory at start, loads the weights into its own layout, and then only
// runs ops. One thread (the engine's) calls it. Work is queued in call order; synchronize() waits for it (the
// CPU and the reference run at once).
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/host_pages.h"
#include "base/result.h"
#include "ops/state.h"
#include "ops/tensor.h"

namespace braid {

class Ops;
class ThreadPool;

// Device memory with one owner; freed with the object. 64-byte aligned at least, zero-filled.
class Buffer {
 public:
  Buffer() = default;
  Buffer(void* data, size_t size_bytes, void (*release)(void*, size_t))
      : data_(data), size_bytes_(size_bytes), release_(release) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) release_(data_, size_bytes_);
  }
  void* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    std::swap(release_, other.release_);
  }
  void* data_ = nullptr;
  size_t size_bytes_ = 0;
  void (*release_)(void*, size_t) = nullptr;
};

// How quantized weights meet activations on a CPU. f32 is exact up to f32 rounding; i8 and i16 round
// activations per 32 values (docs/design/numerics.md has the measured errors). Float weights always use f32
// activations.
enum class Activations : uint8_t { i8, i16, f32 };

struct DeviceOptions {
  int threads = 0;  // 0: one per physical core of the affinity mask, at most the cgroup quota
  Activations activations = Activations::i8;
  int32_t max_tokens = 512;  // largest batch the workspaces are sized for
  int gpu = 0;               // which one, as the driver counts
  // A row's bytes depend on its sequence alone: not on how many rows a step has, nor on how a prompt was cut
  // into steps. The CPU and the reference always keep that; a GPU is slower by it (docs/design/numerics.md).
  bool deterministic = false;
};

// What calls of one op took, one shape of it.
struct OpTime {
  std::string op;    // "linear"
  std::string what;  // "ffn_gate ffn_up q4_K 5120 x 17408"
  int64_t calls = 0;
  uint64_t launches = 0;  // kernels
  double ms = 0;
  double bytes = 0;  // that had to move: weights, states and cells once, activations in and out
  double flops = 0;
  // Of the recurrent states of the sequences it was called for: their bytes, and what of them it had to move.
  double state_bytes = 0, state_read = 0, state_written = 0;
};
// What the device reaches at best, measured: a plain copy (bytes read and written), plain reads, and the
// products of its matrix units on 16-bit numbers.
struct DevicePeaks {
  double copy_bytes_s = 0;
  double read_bytes_s = 0;
  double product_flops_s = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  // "cpu (avx2, 2 threads)", for people.
  virtual std::string description() const = 0;
  // What decides the bytes of results, beside the model and its options: devices of the same words compute the same.
  virtual std::string numerics() const { return description(); }
  virtual int threads() const { return 1; }
  // The threads that its ops run on, for what its caller does between ops; null: it has none.
  virtual ThreadPool* pool() { return nullptr; }

  // Memory that allocate() can still give, on devices with their own.
  virtual uint64_t free_bytes() const { return UINT64_MAX; }
  // Zero-filled memory. Error: exhausted.
  virtual Result<Buffer> allocate(size_t size_bytes, const char* label) = 0;

  // Brings weights into the device's layout: sets device_data and device_bytes of each. After a weight is
  // copied, `done` is called with its file bytes (not for tables that are read from the file), so that the
  // caller can release the pages and show progress. Errors: unsupported (a type this device cannot use),
  // exhausted.
  using WeightDone = std::function<void(const Weight&)>;
  virtual Status load_weights(std::span<Weight* const> weights, const WeightDone& done) = 0;

  // Rows of `to` anew, a product whose runs are a row each and have changed; `from`: all rows of the same
  // tensor, a product, too. Both are loaded. Queued behind the ops before it.
  virtual void copy_rows(const Weight& to, const Weight& from, std::span<const int32_t> rows) = 0;

  // Bytes load_weights will take for `weight` (memory plan).
  virtual size_t weight_bytes(const Weight& weight) const = 0;

  // Products of `rows` rows are computed as those of so many: up to there a step's cost hardly rises.
  virtual int32_t padded_rows(int32_t rows) const { return rows; }

  // Tile width of recurrent states on this device (state.h).
  virtual int32_t state_tile_columns(const DeltaShape& shape) const { return shape.value_dim; }

  // What slots remember beside their states (state.h), where no sequence has more uncertain rows in a step.
  virtual DeltaRing delta_ring(int32_t uncertain) const { return {0, 0, uncertain}; }

  // Sizes the workspaces of the ops. Called once, after load_weights and before the first op, with the
  // largest step the engine will make. Returns the bytes taken. Errors: exhausted.
  struct WorkspaceNeeds {
    int32_t max_tokens = 512;
    int32_t max_sequences = 1;
    int32_t max_context = 4096;  // cells of one sequence
    int32_t max_drafts = 0;      // uncertain rows of one sequence
    int64_t max_width = 0;       // widest activation row that goes into a product
    int32_t max_heads = 0;       // query heads
    int32_t head_dim = 0;
    int32_t kv_heads = 0;              // most of a layer
    const KvCodec* k_codec = nullptr;  // of sealed blocks (state.h); null: there are none
    const KvCodec* v_codec = nullptr;
    DeltaShape delta = {};  // the widest, or zeros
    int32_t experts = 0;
    int32_t experts_used = 0;
    int64_t expert_width = 0;  // widest of routed and shared expert
    int64_t model_width = 0;
  };
  // Whether its kernels take a model of such sizes; asked before anything is loaded. Error: unsupported.
  virtual Status accepts(const WorkspaceNeeds& needs) const { return {}; }
  // What it will take, if that is known before; 0: not.
  virtual size_t workspace_bytes(const WorkspaceNeeds& needs) const { return 0; }
  virtual Result<size_t> reserve_workspaces(const WorkspaceNeeds& needs) = 0;

  // Numbers so far that did not fit an activation, in builds that count them (BRAID_COUNT_CLAMPS).
  virtual uint64_t clamped() const { return 0; }

  // Copies between host and device memory, queued behind the ops before them. The host side of to_device may
  // be reused, and that of to_host read, after synchronize(). On devices that compute in host memory both are
  // memcpy.
  virtual void to_device(void* dst, const void* src, size_t size_bytes) = 0;
  virtual void to_host(void* dst, const void* src, size_t size_bytes) = 0;
  // Host memory that such copies are fast with (pinned, where that means something). Gigabytes take seconds:
  // `done` is told how far it is. Error: exhausted.
  virtual Result<Buffer> allocate_host(size_t size_bytes, const char* label,
                                       const BytesDone& done = nullptr) {
    return allocate(size_bytes, label);
  }
  struct Copy {
    void* to = nullptr;
    const void* from = nullptr;
    size_t bytes = 0;  // of a row
    int64_t rows = 1;
    size_t to_pitch = 0;  // bytes from row to row
    size_t from_pitch = 0;
  };
  // As to_device().
  virtual void rows_to_device(const Copy& copy) {
    for (size_t row = 0; row < static_cast<size_t>(copy.rows); ++row)
      to_device(static_cast<std::byte*>(copy.to) + row * copy.to_pitch,
                static_cast<const std::byte*>(copy.from) + row * copy.from_pitch, copy.bytes);
  }
  // Copies between host and device memory that no step waits for have a queue of their own, beside that of the
  // ops. They begin when the ops queued so far have ended, and run in order. Ops queued later run at the same
  // time: until the copies are done nobody may write what they read, nor touch what they write.
  // Returns the number of these copies: what is done up to it includes all before. 0: they are done already.
  virtual uint64_t copy_beside(std::span<const Copy> copies) {
    for (const Copy& c : copies)
      for (size_t row = 0; row < static_cast<size_t>(c.rows); ++row)
        std::memcpy(static_cast<std::byte*>(c.to) + row * c.to_pitch,
                    static_cast<const std::byte*>(c.from) + row * c.from_pitch, c.bytes);
    return 0;
  }
  // All copies up to this number are done; those that failed never are.
  virtual uint64_t copies_done() { return 0; }
  // Ops queued from now on begin when the copies up to `number` are done.
  virtual void order_after_copies(uint64_t number) {}
  virtual void wait_for_copies(uint64_t number) {}
  // What travels between ops (tensor.h). The residual stream, router and gate rows and logits are f32 always.
  virtual DType activation_type() const { return DType::f32; }
  // The host may read and write allocate()d memory directly.
  virtual bool computes_in_host_memory() const { return true; }

  virtual void synchronize() = 0;
  virtual Ops& ops() = 0;

  // Ok as long as everything asked of the device worked. Ask after synchronize(): an error stays, the work
  // since the last good answer is worthless, and so is the device. Errors: io.
  virtual Status health() const { return {}; }
  // Tests: queues work that fails the way a bad kernel does. Lasting: the GPU refuses everything from this
  // process from then on.
  virtual void fail_on_purpose(bool lasting) {}

  // Steps that are recorded once and replayed. Between begin_record and end_record ops and copies are kept
  // instead of run; replay(key) runs what was recorded under `key`: the same ops on the same memory, with
  // what that memory then holds. Nothing allocates and nobody synchronizes while recording. begin_record is
  // false on devices without recording, and then nothing changes. Where the device has no memory left for a
  // record, end_record succeeds and has_record(key) stays false: the ops are still to be queued.
  virtual bool begin_record() { return false; }
  virtual Status end_record(uint64_t key) { return {}; }
  virtual bool has_record(uint64_t key) const { return false; }
  virtual void replay(uint64_t key) {}
  virtual void forget_record(uint64_t key) {}

  // Between the two every op is timed by itself, on the device; steps are neither recorded nor replayed.
  // False: this device does not do that. Allocates.
  virtual bool start_profile() { return false; }
  virtual std::vector<OpTime> stop_profile() { return {}; }
  virtual Result<DevicePeaks> measure_peaks() {
    return Error{ErrorKind::unsupported, description() + " does not measure its peaks"};
  }
};

// Plain loops with double accumulation: the specification of every op.
std::unique_ptr<Device> make_ref_device(const DeviceOptions& options);
// The CPU of this machine. Errors: unsupported (no path for this processor).
Result<std::unique_ptr<Device>> make_cpu_device(const DeviceOptions& options);
// An NVIDIA GPU. Errors: unsupported (built without CUDA, no GPU, driver or GPU too old), exhausted.
Result<std::unique_ptr<Device>> make_cuda_device(const DeviceOptions& options);

}  // namespace braid
