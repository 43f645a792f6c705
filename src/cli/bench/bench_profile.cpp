// bench_profile.cpp -- see bench_profile.h.
// Every op is timed in a decode step, with --drafts in a verifying step, and in a prompt step.
// Their sum is printed next to the step's wall time in normal operation, with CUDA graphs.
#include "cli/bench/bench_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "cli/bench/bench_serving.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"

namespace braid::cli {

namespace {

constexpr int kRecordingSteps = 4;
constexpr int kPlainSteps = 20;
constexpr int kProfiledSteps = 8;  // a full cycle: states are written every eighth token

struct Quiet : Sink {
  void token(RequestId, const TokenEvent&) override { ++tokens; }
  void finished(RequestId, const Finished& event) override {
    const bool early = event.reason == FinishReason::length && event.usage.generated_tokens > 0;
    if (event.reason == FinishReason::error || early) ended = event;
  }
  int64_t tokens = 0;
  std::optional<Finished> ended;  // set if a sequence ended early
};

struct StepProfile {
  std::string name;
  const char* unit = "step";  // what a sequence's state traffic is counted per
  std::vector<OpTime> ops;
  double step_ms = 0;  // wall time in normal operation
  double host_ms = 0;  // part of it in which the device has no work
};

// Wrong drafts, since only the step's time matters. A tree is a chain of seven with siblings.
class WrongDrafts : public Drafter {
 public:
  WrongDrafts(int count, bool tree) : count_(count), tree_(tree) {}
  void propose(StepPlan& plan, int32_t budget) override {
    constexpr int kTrunk = 7;
    for (StepItem& item : plan.items) {
      if (!item.wants_next || item.certain != 1 || budget < count_) continue;
      for (int n = 0; n < count_; ++n)
        item.drafts.push_back({n % 100, tree_ && n >= kTrunk ? n % kTrunk - 1 : n - 1});
      budget -= count_;
    }
  }
  void observe(const StepPlan&, std::span<const Verdict>) override {}

 private:
  int count_;
  bool tree_;
};

class ProfileBench {
 public:
  ProfileBench(LoadedModel& loaded, const ProfileFlags& flags)
      : engine_(*loaded.engine), flags_(flags) {}

  Result<StepProfile> decode(bool with_drafts) {
    WrongDrafts drafts(flags_.drafts, flags_.tree);
    for (int i = 0; i < flags_.sequences; ++i)
      BRAID_TRY(submit(flags_.prompt, -1, static_cast<uint64_t>(i)));
    // All prompts are done once every sequence decodes. More steps then capture the CUDA graphs.
    while (!everybody_decodes()) BRAID_TRY(step());
    engine_.set_drafter(with_drafts ? &drafts : nullptr);
    for (int i = 0; i < kRecordingSteps; ++i) BRAID_TRY(step());
    StepProfile profile;
    profile.name =
        fmt::format("decode step, {} sequences of {} tokens", flags_.sequences, flags_.prompt);
    if (with_drafts)
      profile.name += fmt::format(", {} speculative tokens each in a {}", flags_.drafts,
                                  flags_.tree ? "tree" : "chain");
    profile.name += filled_from(flags_.fill, flags_.prompt);
    if (!with_drafts) profile.unit = "token";
    const double begin = now_ms();
    const double host_before_ms = engine_.stats().drafts.host_ms;
    for (int i = 0; i < kPlainSteps; ++i) BRAID_TRY(step());
    profile.step_ms = (now_ms() - begin) / kPlainSteps;
    profile.host_ms = (engine_.stats().drafts.host_ms - host_before_ms) / kPlainSteps;
    BRAID_ASSIGN(profile.ops, profiled([&] { return step(); }));
    engine_.set_drafter(nullptr);
    clear();
    return profile;
  }

  Result<StepProfile> prompt() {
    const int tokens = std::min(flags_.prompt, engine_.ubatch_tokens());
    StepProfile profile;
    profile.name = fmt::format("prompt step, {} tokens", tokens);
    const auto once = [&]() -> Status {
      BRAID_TRY(submit(tokens, 0, 7));
      BRAID_TRY(step());
      clear();
      return {};
    };
    BRAID_TRY(once());
    profile.step_ms = 1e30;
    for (int i = 0; i < kProfiledSteps; ++i) {
      const double begin = now_ms();
      const double host_before_ms = engine_.stats().drafts.host_ms;
      BRAID_TRY(once());
      const double ms = now_ms() - begin;
      if (ms >= profile.step_ms) continue;
      profile.step_ms = ms;
      profile.host_ms = engine_.stats().drafts.host_ms - host_before_ms;
    }
    BRAID_ASSIGN(profile.ops, profiled(once));
    return profile;
  }

 private:
  Status submit(int prompt, int answer, uint64_t seed) {
    Request r;
    std::mt19937_64 random(seed + 1);
    for (int i = 0; i < prompt; ++i)
      r.prompt.push_back(
          static_cast<int32_t>(random() % static_cast<uint64_t>(engine_.config().vocabulary)));
    r.max_tokens = answer;
    r.sampling.temperature = 0;
    r.use_cache = false;
    BRAID_TRY(engine_.submit(std::move(r), sink_));
    return {};
  }
  bool everybody_decodes() const {
    const auto running = engine_.scheduler().running();
    return std::ssize(running) == flags_.sequences &&
           std::all_of(running.begin(), running.end(), [](const auto& s) { return s->decoding(); });
  }
  Status step() {
    if (interrupted()) return Error{ErrorKind::cancelled, "interrupted"};
    engine_.step();
    if (sink_.ended) return early_end(*sink_.ended, engine_);
    return engine_.health();
  }
  void clear() {
    engine_.cancel_all();
    engine_.run_until_idle();
    sink_.tokens = 0;
  }

  // Averages over kProfiledSteps runs. The first run creates the events.
  template <typename Run>
  Result<std::vector<OpTime>> profiled(Run run) {
    Device& device = engine_.devices().first();
    if (!device.start_profile())
      return Error{ErrorKind::unsupported, device.description() + " does not time its ops"};
    const Status warm = run();
    device.stop_profile();
    BRAID_TRY(warm);
    device.start_profile();
    Status status;
    for (int i = 0; i < kProfiledSteps && status.ok(); ++i) status = run();
    std::vector<OpTime> ops = device.stop_profile();
    BRAID_TRY(status);
    for (OpTime& op : ops) {
      op.calls /= kProfiledSteps;
      op.launches /= kProfiledSteps;
      op.ms /= kProfiledSteps;
      op.bytes /= kProfiledSteps;
      op.flops /= kProfiledSteps;
      op.state_bytes /= kProfiledSteps;
      op.state_read /= kProfiledSteps;
      op.state_written /= kProfiledSteps;
    }
    return ops;
  }

  Engine& engine_;
  const ProfileFlags& flags_;
  Quiet sink_;
};

// The time that bytes or FLOPs alone would need at peak, whichever is larger, over the time taken.
double share(const OpTime& op, const DevicePeaks& peaks) {
  if (op.ms <= 0) return 0;
  const double least_s = std::max(op.bytes / peaks.copy_bytes_s, op.flops / peaks.product_flops_s);
  return least_s / (1e-3 * op.ms);
}

void print_table(const StepProfile& profile, const DevicePeaks& peaks) {
  OpTime all;
  double least_ms = 0;
  print_result(
      "\n{}\n\n| op | | calls | kernels | us per call | us | % | GB/s | TFLOP/s | of peak |\n"
      "|---|---|---|---|---|---|---|---|---|---|\n",
      profile.name);
  for (const OpTime& op : profile.ops) {
    all.ms += op.ms;
    all.launches += op.launches;
    all.calls += op.calls;
    all.bytes += op.bytes;
    all.flops += op.flops;
    all.state_bytes += op.state_bytes;
    all.state_read += op.state_read;
    all.state_written += op.state_written;
    least_ms += share(op, peaks) * op.ms;
  }
  for (const OpTime& op : profile.ops) {
    print_result("| {} | {} | {} | {} | {:.1f} | {:.0f} | {:.1f} |", op.op, op.what, op.calls,
                 op.launches, 1e3 * op.ms / static_cast<double>(std::max<int64_t>(op.calls, 1)),
                 1e3 * op.ms, 100 * op.ms / all.ms);
    if (op.ms * 1e3 < 0.5)
      print_result(" - | - | - |\n");
    else
      print_result(" {:.0f} | {:.1f} | {:.0f} % |\n", op.bytes / op.ms * 1e-6,
                   op.flops / op.ms * 1e-9, 100 * share(op, peaks));
  }
  print_result("| all | | {} | {} | | {:.0f} | 100 | {:.0f} | {:.1f} | {:.0f} % |\n\n", all.calls,
               all.launches, 1e3 * all.ms, all.bytes / all.ms * 1e-6, all.flops / all.ms * 1e-9,
               100 * least_ms / all.ms);
  print_result(
      "in normal operation: {:.0f} us per step, {:.2f} of the sum; at the peaks {:.0f} us; host "
      "work {:.0f} us\n",
      1e3 * profile.step_ms, profile.step_ms / all.ms, 1e3 * least_ms, 1e3 * profile.host_ms);
  if (all.state_bytes > 0)
    print_result("recurrent states: {:.2f} read and {:.3f} written per {}\n",
                 all.state_read / all.state_bytes, all.state_written / all.state_bytes,
                 profile.unit);
}

nlohmann::ordered_json to_json(const StepProfile& profile, const DevicePeaks& peaks) {
  auto ops = nlohmann::ordered_json::array();
  for (const OpTime& op : profile.ops)
    ops.push_back({{"op", op.op},
                   {"what", op.what},
                   {"calls", op.calls},
                   {"kernels", op.launches},
                   {"us", 1e3 * op.ms},
                   {"gb_s", op.bytes / op.ms * 1e-6},
                   {"tflop_s", op.flops / op.ms * 1e-9},
                   {"share_of_peak", share(op, peaks)},
                   {"state_bytes", op.state_bytes},
                   {"state_read", op.state_read},
                   {"state_written", op.state_written}});
  return {{"step", profile.name},
          {"engine_us", 1e3 * profile.step_ms},
          {"host_us", 1e3 * profile.host_ms},
          {"ops", std::move(ops)}};
}

Status profile_model(const ModelFlags& model, const ProfileFlags& flags) {
  ModelFlags wanted = model;
  wanted.parallel = flags.sequences;
  constexpr int kDecoded = kRecordingSteps + kPlainSteps + 1 + kProfiledSteps;
  wanted.context = std::max(wanted.context,
                            batch_context(flags.sequences, flags.prompt, kDecoded, wanted.ubatch));
  const double loading = now_ms();
  BRAID_ASSIGN(LoadedModel loaded, load_model(wanted, [&](EngineOptions& options) {
                 options.gap_limit = 0;
                 options.max_drafts = flags.drafts;
               }));
  if (loaded.engine->devices().count() > 1)
    return Error{ErrorKind::unsupported, "bench --profile times one device; --split none"};
  loaded.engine->fill_prompts_from(flags.fill);
  const double load_s = 1e-3 * (now_ms() - loading);
  const InterruptScope interrupt;
  BRAID_ASSIGN(const DevicePeaks peaks, loaded.engine->devices().first().measure_peaks());
  const std::string device = loaded.engine->devices().description();
  if (!flags.json)
    print_result("{} on {}: copy {:.0f} GB/s, reads {:.0f} GB/s, products {:.0f} TFLOP/s\n",
                 loaded.name, device, peaks.copy_bytes_s * 1e-9, peaks.read_bytes_s * 1e-9,
                 peaks.product_flops_s * 1e-12);
  const MemoryPlan& plan = loaded.engine->memory();
  double file_bytes = 0;
  for (const GgufTensor& t : loaded.file->tensors())
    file_bytes += static_cast<double>(t.data.size());
  ProfileBench bench(loaded, flags);
  auto steps = nlohmann::ordered_json::array();
  const auto show = [&](const StepProfile& profile) {
    if (!flags.json) print_table(profile, peaks);
    steps.push_back(to_json(profile, peaks));
    return result_status();
  };
  BRAID_ASSIGN(const StepProfile decode, bench.decode(false));
  BRAID_TRY(show(decode));
  if (flags.drafts > 0) {
    BRAID_ASSIGN(const StepProfile verify, bench.decode(true));
    BRAID_TRY(show(verify));
    if (!flags.json)
      print_result("the verify step takes {:.3f} decode steps\n", verify.step_ms / decode.step_ms);
  }
  BRAID_ASSIGN(const StepProfile prompt, bench.prompt());
  BRAID_TRY(show(prompt));
  // Counted by the driver, so kernel code and CUDA graphs are included.
  const auto taken = static_cast<double>(plan.pools[0].available_bytes) -
                     static_cast<double>(loaded.engine->devices().first().free_bytes());
  const auto predicted = static_cast<double>(plan.predicted_bytes());
  if (!flags.json) {
    print_result(
        "\n{}\nGPU memory in use: {:.2f} GiB by the driver ({:+.2f} % against the plan); loaded in "
        "{:.2f} s, {:.2f} GB/s of the file\n",
        plan.table(), taken / 0x1p30, 100 * (taken / predicted - 1), load_s,
        1e-9 * file_bytes / load_s);
    return {};
  }
  const nlohmann::ordered_json all = {{"model", loaded.name},
                                      {"device", device},
                                      {"copy_gb_s", peaks.copy_bytes_s * 1e-9},
                                      {"read_gb_s", peaks.read_bytes_s * 1e-9},
                                      {"product_tflop_s", peaks.product_flops_s * 1e-12},
                                      {"load_s", load_s},
                                      {"load_gb_s", 1e-9 * file_bytes / load_s},
                                      {"predicted_bytes", predicted},
                                      {"counted_bytes", plan.actual_bytes()},
                                      {"taken_bytes", taken},
                                      {"steps", std::move(steps)}};
  print_result("{}\n", all.dump(2));
  return {};
}

}  // namespace

int run_profile_bench(const ModelFlags& model, const ProfileFlags& flags) {
  const Status status = profile_model(model, flags);
  if (status.ok()) return 0;
  print_error(status.error().message);
  return status.error().kind == ErrorKind::cancelled ? 130 : 2;
}

}  // namespace braid::cli
