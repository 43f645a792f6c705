// device.h -- memory and time of one device; arithmetic is ops.h.
//
// A device allocates all memory at start, loads the weights into its own layout, and then only runs
// ops. One thread (the engine's) calls it. Work is queued in call order until synchronize(). The
// CPU and the reference run each call at once.
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
#include "ops/letter.h"
#include "ops/sparse_prefill.h"
#include "ops/state.h"
#include "ops/tensor.h"

namespace braid {

class Ops;
class ThreadPool;

// Device memory with one owner, freed with the object. At least 64-byte aligned, zero-filled.
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

// Activations for quantized weights on a CPU. i8 and i16 are rounded per 32 values
// (docs/design/numerics.md). Float weights always use f32.
enum class Activations : uint8_t { i8, i16, f32 };

struct DeviceOptions {
  int threads = 0;  // 0: one per physical core of the affinity mask, at most the cgroup quota
  Activations activations = Activations::i8;
  int32_t max_tokens = 512;          // largest batch the workspaces are sized for
  int gpu = 0;                       // index in the driver's order
  std::shared_ptr<ThreadPool> pool;  // of other CPU devices; null: its own
  // A row's bytes depend on its sequence alone, not on the rows of a step or the cuts of a prompt.
  // Always true on the CPU and the reference; slower on a GPU (docs/design/numerics.md).
  bool deterministic = false;
  // Devices of this process that exchange letters (letter.h). Above 1, all kernels of a GPU are
  // loaded at start, as a kernel that waits for another rank would block the loading.
  int ranks = 1;
  int devices_on_gpu = 1;  // of this process: each chooses kernels for its share of multiprocessors
  // Of a GPU: `threads` of the host compute some of the experts that are missing in a step
  // (cuda/gemm/expert_share.h). Not if `deterministic`, as they round otherwise.
  bool experts_on_host = false;
};

struct OpTime {
  std::string op;    // "linear"
  std::string what;  // "ffn_gate ffn_up q4_K 5120 x 17408"
  int64_t calls = 0;
  uint64_t launches = 0;  // kernels
  double ms = 0;
  double bytes = 0;  // least traffic: weights, states, cells once; activations in and out
  double flops = 0;
  // Bytes of the recurrent states of the calls' sequences, and the reads and writes they require.
  double state_bytes = 0, state_read = 0, state_written = 0;
};
// What callers may rely on, fixed when the device is made. The defaults are those of a CPU.
struct DeviceTraits {
  bool host_visible = true;   // the host may read and write allocate()d memory directly
  bool asynchronous = false;  // ops run after their call has returned, until synchronize()
  // A row's bytes never depend on the other rows of its step, even without
  // DeviceOptions::deterministic.
  bool rows_alone = true;
  bool own_memory = false;    // allocate()d memory is not the host's
  bool records = false;       // begin_record() works
  bool expert_slots = false;  // load_weights() takes Weight::slots
};

// What a layer with expert slots did so far. Sums over steps; an expert that several rows of a step
// chose counts once.
struct ExpertCounts {
  uint64_t steps = 0;
  uint64_t chosen = 0;     // experts of steps
  uint64_t admitted = 0;   // of them read from host memory, and kept
  uint64_t passed_by = 0;  // of them read from host memory for the step alone
  uint64_t computed = 0;   // of them computed by threads of the host
  uint64_t streamed = 0;   // experts read for large prompt steps, chosen or not
  uint64_t read_bytes = 0;
  uint64_t waited_ns = 0;  // time in which the GPU had nothing to do but wait for these threads
};
struct ExpertLayer {
  int32_t experts = 0;
  int32_t slots = 0;
  uint64_t expert_bytes = 0;  // gate, up and down of one
  ExpertCounts counts;
  // Measured while steps used both: bytes of missing experts that the GPU reads in a second, and
  // that threads of the host compute. 0: not known.
  double read_bytes_s = 0;
  double computed_bytes_s = 0;
};

// Measured: a plain copy (bytes read and written), plain reads, 16-bit products of matrix units.
struct DevicePeaks {
  double copy_bytes_s = 0;
  double read_bytes_s = 0;
  double product_flops_s = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  // For display, such as "cpu (avx2, 2 threads)".
  virtual std::string description() const = 0;
  // Devices with equal strings compute equal bytes, given the same model and options.
  virtual std::string numerics() const { return description(); }
  virtual int threads() const { return 1; }
  // The threads of the ops, free for the caller between ops; null: the device has none.
  virtual ThreadPool* pool() { return nullptr; }

  // Bytes that ops read in a second, from the card's data sheet; 0: unknown.
  virtual double read_bytes_s() const { return 0; }
  // Devices with equal numbers share their memory.
  virtual int memory_number() const { return -1; }

  // Memory that allocate() can still give, on devices with their own memory.
  virtual uint64_t free_bytes() const { return UINT64_MAX; }
  // Zero-filled memory. Error: exhausted.
  virtual Result<Buffer> allocate(size_t size_bytes, const char* label) = 0;

  // Sets device_data and device_bytes of each weight. `done` follows each copied weight, so that
  // the caller can release its file pages and show progress (not for tables that stay in the file).
  // Errors: unsupported (a type this device cannot use), exhausted.
  using WeightDone = std::function<void(const Weight&)>;
  virtual Status load_weights(std::span<Weight* const> weights, const WeightDone& done) = 0;

  // Copies the changed `rows` of `to` again from `from`, after the ops queued so far. Both are
  // loaded products of the same tensor: the runs of `to` are one row each, `from` has all rows.
  virtual void copy_rows(const Weight& to, const Weight& from, std::span<const int32_t> rows) = 0;

  virtual size_t weight_bytes(const Weight& weight) const = 0;
  // For weights with slots: the host copy of one, and what all of a device share beside the slots.
  virtual size_t expert_copy_bytes(const Weight& weight) const { return 0; }
  virtual size_t expert_staging_bytes(std::span<Weight* const> weights) const { return 0; }
  // The layers with slots, in the order of loading; counts of steps that have ended. By any thread
  // after loading.
  virtual std::vector<ExpertLayer> expert_layers() const { return {}; }
  // How much each expert of these layers [experts] was used of late; waits for the queued ops.
  virtual std::vector<float> expert_scores() { return {}; }
  // After loading: those with the highest scores get the slots. Error: invalid_argument (sizes).
  virtual Status prefer_experts(std::span<const float> scores) { return {}; }
  // For measurements: experts are chosen by `trace` [steps][layers with slots][rows][used], again
  // from the start at its end; empty: by logits. The first call comes before the first step.
  struct RouteTrace {
    std::span<const int32_t> ids;
    int32_t steps = 0, rows = 0, used = 0;
  };
  virtual Status route_by(const RouteTrace& trace) {
    return Error{ErrorKind::unsupported, description() + " has no expert slots"};
  }

  // The number of rows that kernels compute for a product of `rows` rows.
  virtual int32_t padded_rows(int32_t rows) const { return rows; }

  // Tile width of recurrent states on this device (state.h).
  virtual int32_t state_tile_columns(const DeltaShape& shape) const { return shape.value_dim; }

  // What slots hold beside states (state.h), for at most `uncertain` rows per sequence and step.
  virtual DeltaRing delta_ring(int32_t uncertain) const { return {0, 0, uncertain}; }

  // Sizes the workspaces of the ops for the engine's largest step. Called once, after load_weights.
  // Returns the bytes taken. Errors: exhausted.
  struct WorkspaceNeeds {
    int32_t max_tokens = 512;
    int32_t max_sequences = 1;
    int32_t max_context = 4096;  // cells of one sequence
    int32_t max_drafts = 0;      // uncertain rows of one sequence
    int64_t max_width = 0;       // widest activation row that goes into a product
    int32_t max_heads = 0;
    int32_t head_dim = 0;
    int32_t kv_heads = 0;              // maximum over the layers
    const KvCodec* k_codec = nullptr;  // of sealed blocks (state.h); null: no sealed blocks
    const KvCodec* v_codec = nullptr;
    DeltaShape delta = {};  // the widest, or zeros
    int32_t experts = 0;
    int32_t experts_used = 0;
    int64_t expert_width = 0;
    int64_t model_width = 0;
    bool sparse_prefill = false;  // batches may have Batch::sparse_threshold
  };
  // Whether the kernels support such a model; asked before loading. Error: unsupported.
  virtual Status accepts(const WorkspaceNeeds& needs) const { return {}; }
  // Bytes that reserve_workspaces will take; 0 if not known in advance.
  virtual size_t workspace_bytes(const WorkspaceNeeds& needs) const { return 0; }
  virtual Result<size_t> reserve_workspaces(const WorkspaceNeeds& needs) = 0;

  // Values clamped to the activation type so far, in builds with BRAID_COUNT_CLAMPS.
  virtual uint64_t clamped() const { return 0; }

  // Of all batches with a threshold since reserve_workspaces(). Waits for the queue.
  virtual SparseCounts sparse_counts() { return {}; }

  // Copies in queue order. The host side may be reused (to_device) or read (to_host) after
  // synchronize(). With host-visible memory both are memcpy.
  virtual void to_device(void* dst, const void* src, size_t size_bytes) = 0;
  virtual void to_host(void* dst, const void* src, size_t size_bytes) = 0;
  // Host memory for fast copies (pinned if useful). `done` reports progress. Error: exhausted.
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
  virtual void rows_to_device(const Copy& copy) {
    for (size_t row = 0; row < static_cast<size_t>(copy.rows); ++row)
      to_device(static_cast<std::byte*>(copy.to) + row * copy.to_pitch,
                static_cast<const std::byte*>(copy.from) + row * copy.from_pitch, copy.bytes);
  }
  // Copies on a queue of their own, in order. They start after the ops queued so far and run
  // concurrently with later ops. Until they end, do not write their sources or access their
  // targets. Returns a number for copies_done(); 0: already done.
  virtual uint64_t copy_beside(std::span<const Copy> copies) {
    for (const Copy& c : copies)
      for (size_t row = 0; row < static_cast<size_t>(c.rows); ++row)
        std::memcpy(static_cast<std::byte*>(c.to) + row * c.to_pitch,
                    static_cast<const std::byte*>(c.from) + row * c.from_pitch, c.bytes);
    return 0;
  }
  // `to` on this device = x on `from`, another device of the same kind, or this one. Ops of `from`
  // up to here run before, later ones after the copy. f32 rows of equal shape.
  virtual void receive(Tensor to, Device& from, Tensor x) {
    for (int64_t row = 0; row < x.rows; ++row)
      std::memcpy(to.f32(row), x.f32(row), static_cast<size_t>(x.cols) * sizeof(float));
  }
  // All copies up to this number are done. Failed copies never count as done.
  virtual uint64_t copies_done() { return 0; }
  virtual void order_after_copies(uint64_t number) {}
  virtual void wait_for_copies(uint64_t number) {}
  // Type of tensors between ops. Residual stream, router and gate rows and logits are always f32.
  virtual DType activation_type() const { return DType::f32; }
  virtual DeviceTraits traits() const { return {}; }
  // There is no kernel for such KV blocks, so attention expands them: 15 to 110 times slower.
  virtual bool expands(const KvCodec&, int32_t /*head_dim*/) const { return false; }

  virtual void synchronize() = 0;
  // A number for the ops queued so far, on devices that are asynchronous; wait_for() returns when
  // they have ended. Of the last kFences numbers only.
  static constexpr uint64_t kFences = 16;
  virtual uint64_t fence() { return 0; }
  virtual void wait_for(uint64_t fence) { synchronize(); }
  virtual Ops& ops() = 0;

  // Mailboxes for letters between `ranks`, which are devices of this kind, in this order; this is
  // one of them. Call it at start. The exchange must go before the devices do.
  // Errors: unsupported, exhausted, invalid_argument (too many).
  virtual Result<std::unique_ptr<Exchange>> connect(std::span<Device* const> ranks,
                                                    std::span<const LaneNeeds> lanes,
                                                    const ExchangeOptions& options = {}) {
    return Error{ErrorKind::unsupported, description() + " does not share a model's tensors"};
  }

  // Ok if all work so far succeeded; call it after synchronize() or wait_for(). An error is
  // permanent: the device is unusable, and work since the last ok is invalid. Errors: io.
  virtual Status health() const { return {}; }
  // For tests: fails like a faulty kernel. lasting: the GPU then refuses all work of this process.
  virtual void fail_on_purpose(bool lasting) {}

  // Recorded steps. Between begin_record and end_record, ops and copies are stored under `key`
  // instead of run; nothing may allocate or synchronize. replay(key) runs them on the same memory
  // with its current content. begin_record returns false on devices without recording. If memory is
  // short, end_record succeeds and has_record(key) stays false: the caller must queue the ops.
  virtual bool begin_record() { return false; }
  virtual Status end_record(uint64_t key) { return {}; }
  virtual bool has_record(uint64_t key) const { return false; }
  virtual void replay(uint64_t key) {}
  virtual void forget_record(uint64_t key) {}

  // Between the two, every op is timed separately and steps are neither recorded nor replayed.
  // start_profile allocates; it returns false if the device cannot profile.
  virtual bool start_profile() { return false; }
  virtual std::vector<OpTime> stop_profile() { return {}; }
  virtual Result<DevicePeaks> measure_peaks() {
    return Error{ErrorKind::unsupported, description() + " does not measure its peaks"};
  }
};

// Plain loops with double accumulation: the specification of every op.
std::unique_ptr<Device> make_ref_device(const DeviceOptions& options);
// Errors: unsupported (BRAID_CPU names a path that this processor or build lacks).
Result<std::unique_ptr<Device>> make_cpu_device(const DeviceOptions& options);
// Bytes of a weight on a GPU, whether or not there is one here (Device::weight_bytes and so on).
size_t gpu_weight_bytes(const Weight& weight);
size_t gpu_expert_copy_bytes(const Weight& weight);
size_t gpu_expert_staging_bytes(std::span<Weight* const> weights);
// Errors: unsupported (no CUDA in the build, no GPU, driver or GPU too old), exhausted.
Result<std::unique_ptr<Device>> make_cuda_device(const DeviceOptions& options);
// GPUs that the driver shows; 0 without CUDA.
int cuda_device_count();

}  // namespace braid
