// placement.cpp -- `braid placement`: what a profile of experts says about slots for them.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/output_file.h"
#include "cli/bench/routing_trace.h"
#include "cli/bench/slot_simulation.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/load_model.h"
#include "cli/options/option_group.h"
#include "cli/placement_table.h"
#include "cli/terminal.h"
#include "model/random_model.h"

namespace braid::cli {

namespace {

using Json = nlohmann::ordered_json;

struct PlacementCommandFlags {
  std::string profile;
  std::string shape;
  int experts = 0;  // of each layer; 0: by the file or the shape
  std::string export_to;
  bool json = false;
  std::vector<int> slots;
  std::vector<int> simulated_slots;
  int tokens = 1000;
  int locality = 61;  // percent
  int used = 0;       // experts of a token; 0: the shape's, or kUsualExperts
};

constexpr int kUsualExperts = 8;
constexpr int kUncountedTokens = 64;  // slots are warm after about as many
constexpr int kBarColumns = 24;
constexpr double kShownShares[] = {0.125, 0.25, 0.37, 0.5, 0.66};
constexpr double kShareOfBar = 0.25;

Error wrong_flag(std::string message) { return {ErrorKind::invalid_argument, std::move(message)}; }

struct SimulatedRow {
  int slots = 0;
  bool local = false;
  SlotCounts counts;  // of all layers and counted tokens
};

class Placement {
 public:
  explicit Placement(const PlacementCommandFlags& flags) : flags_(flags) {}

  Status run() {
    BRAID_TRY(find_shape());
    if (!flags_.profile.empty()) {
      BRAID_TRY(read_profile());
    } else if (shape_ == nullptr || flags_.simulated_slots.empty() || !flags_.slots.empty() ||
               !flags_.export_to.empty()) {
      return wrong_flag("a profile comes first; only --shape NAME --simulate N needs none");
    }
    BRAID_TRY(check_slots("--slots", flags_.slots));
    BRAID_TRY(check_slots("--simulate", flags_.simulated_slots));
    BRAID_TRY(simulate());
    if (!flags_.export_to.empty())
      BRAID_TRY(write_output_file(flags_.export_to,
                                  format_expert_profile(table_.scores, table_.layers())));
    if (flags_.json) {
      print_result("{}\n", json().dump(2, ' ', false, Json::error_handler_t::replace));
      return {};
    }
    if (!uses_.empty()) print_uses();
    if (!simulated_.empty()) print_simulated();
    if (!flags_.export_to.empty()) print_note(fmt::format("{} is written", flags_.export_to));
    return {};
  }

 private:
  Status find_shape() {
    if (flags_.shape.empty()) return {};
    shape_ = find_random_shape(flags_.shape);
    if (shape_ == nullptr)
      return wrong_flag(
          fmt::format("--shape {} is not one of {}", flags_.shape, random_shape_names()));
    if (shape_->experts == 0)
      return wrong_flag(fmt::format("--shape {} has no experts", flags_.shape));
    if (flags_.experts > 0)
      return wrong_flag(fmt::format("--experts is not needed: --shape {} has {} in each layer",
                                    flags_.shape, shape_->experts));
    experts_ = shape_->experts;
    layers_ = shape_->layers - shape_->dense_layers;
    return {};
  }

  Status read_profile() {
    BRAID_ASSIGN(const std::string text, read_text(flags_.profile, kMostPlacementBytes));
    auto table = parse_placement(text, shape_ != nullptr ? experts_ : flags_.experts);
    if (!table.ok())
      return Error{table.error().kind,
                   fmt::format("{}: {}", flags_.profile, table.error().message)};
    table_ = std::move(*table);
    const auto layers = static_cast<int32_t>(table_.numbers.size());
    if (shape_ != nullptr && layers != layers_)
      return wrong_flag(fmt::format("{}: has experts of {} layers, --shape {} of {}",
                                    flags_.profile, layers, flags_.shape, layers_));
    experts_ = table_.experts;
    layers_ = layers;
    uses_ = layer_uses(table_);
    return {};
  }

  Status check_slots(const char* option, const std::vector<int>& list) const {
    for (const int slots : list)
      if (slots > experts_)
        return wrong_flag(fmt::format("{} {}: a layer has {} experts", option, slots, experts_));
    return {};
  }

  int used() const {
    if (flags_.used > 0) return flags_.used;
    return shape_ != nullptr ? shape_->experts_used : kUsualExperts;
  }

  // Layers are alike, so each has a trace of its own and memory does not grow with them.
  Status simulate() {
    if (flags_.simulated_slots.empty()) return {};
    if (2 * used() > experts_)
      return wrong_flag(
          fmt::format("--used {}: a trace uses at most half of the {} experts for a "
                      "token",
                      used(), experts_));
    const InterruptScope interrupt;
    ProgressLine progress("simulating");
    for (const int slots : flags_.simulated_slots)
      for (const bool local : {true, false}) simulated_.push_back({slots, local, {}});
    const RoutingShape trace{
        1, experts_, used(), 1, kUncountedTokens + flags_.tokens, flags_.locality / 100.0};
    for (int32_t layer = 0; layer < layers_; ++layer) {
      const auto seed = static_cast<uint64_t>(layer) + 1;
      const std::vector<int32_t> local = local_routing(trace, seed);
      const std::vector<int32_t> uniform = uniform_routing(trace, seed);
      for (SimulatedRow& row : simulated_) {
        if (interrupted()) return Error{ErrorKind::cancelled, "interrupted"};
        const SlotCounts counts = simulate_slots(row.local ? local : uniform, used(), experts_,
                                                 row.slots, kUncountedTokens);
        row.counts.chosen += counts.chosen;
        row.counts.kept += counts.kept;
        row.counts.passed_by += counts.passed_by;
      }
      progress.update(static_cast<uint64_t>(layer) + 1, static_cast<uint64_t>(layers_));
    }
    return {};
  }

  // Whether layers have other numbers in the file than in a profile of braid.
  bool renumbered() const { return uses_.back().number + 1 != layers_; }

  void print_uses() const {
    int64_t never = 0;
    for (const LayerUse& layer : uses_) never += layer.never_used;
    print_result("{} layers with {} experts each, {} of {} were never used\n", layers_, experts_,
                 never, int64_t{layers_} * experts_);
    if (renumbered())
      print_result(
          "The file numbers these layers {} to {}; in a profile of braid they are 0 to {}\n",
          uses_.front().number, uses_.back().number, layers_ - 1);
    print_result("\nShare of all use that the most used experts of a layer have, in %:\n\n{:>6}",
                 "layer");
    for (const double share : kShownShares)
      print_result(" {:>8}", fmt::format("{:g} %", 100 * share));
    for (const int slots : flags_.slots) print_result(" {:>10}", fmt::format("{} slots", slots));
    const bool bars = stdout_is_terminal();
    print_result(" {:>10}{}\n", "never used",
                 bars ? fmt::format("  by the first {:g} %", 100 * kShareOfBar) : "");
    const auto row = [&](const std::string& name, const auto& share_of,
                         const std::string& never_used) {
      std::string line = fmt::format("{:>6}", name);
      for (const double share : kShownShares)
        line += fmt::format(" {:>8.1f}", 100 * share_of(experts_of_share(share, experts_)));
      for (const int slots : flags_.slots) line += fmt::format(" {:>10.1f}", 100 * share_of(slots));
      line += fmt::format(" {:>10}", never_used);
      if (bars) {
        const double served = share_of(experts_of_share(kShareOfBar, experts_));
        const auto filled = static_cast<size_t>(served * kBarColumns + 0.5);
        line += "  " + std::string(filled, '#') + std::string(kBarColumns - filled, '.');
      }
      print_result("{}\n", line);
    };
    for (const LayerUse& layer : uses_)
      row(
          std::to_string(layer.number),
          [&](int32_t n) { return layer.served[static_cast<size_t>(n)]; },
          std::to_string(layer.never_used));
    row(
        "all", [&](int32_t n) { return served_of_all_use(uses_, n); }, std::to_string(never));
    row(
        "mean", [&](int32_t n) { return mean_served(uses_, n); },
        fmt::format("{:.1f}", static_cast<double>(never) / layers_));
  }

  void print_simulated() const {
    print_result(
        "{}Synthetic routing, not that of a text: {} layers with {} experts, {} for a token, {} "
        "tokens after\n{} that fill the slots. local: {} % of the choices are drawn from the {:g} "
        "% most recently used\nexperts. uniform: all experts are chosen alike. All missing experts "
        "are read, as with\n--no-cpu-experts.\n\n",
        uses_.empty() ? "" : "\n", layers_, experts_, used(), flags_.tokens, kUncountedTokens,
        flags_.locality, 100 * kLocalShare);
    print_result("{:>6} {:<8} {:>7} {:>12} {:>15} {:>15}\n", "slots", "routing", "hits",
                 "hits a token", "read and kept", "read in passing");
    for (const SimulatedRow& row : simulated_)
      print_result("{:>6} {:<8} {:>5.1f} % {:>12.1f} {:>15.1f} {:>15.1f}\n", row.slots,
                   row.local ? "local" : "uniform", 100 * share(row), a_token(row.counts.hits()),
                   a_token(row.counts.kept), a_token(row.counts.passed_by));
  }

  static double share(const SimulatedRow& row) {
    return static_cast<double>(row.counts.hits()) / static_cast<double>(row.counts.chosen);
  }
  double a_token(int64_t count) const { return static_cast<double>(count) / flags_.tokens; }

  Json json() const {
    Json out;
    if (!uses_.empty()) out["profile"] = flags_.profile;
    if (shape_ != nullptr) out["shape"] = flags_.shape;
    out["layer_count"] = layers_;
    out["experts"] = experts_;
    const auto shares = [&](const auto& share_of) {
      Json row;
      for (const double share : kShownShares)
        row["served"][fmt::format("{:g}", 100 * share)] =
            share_of(experts_of_share(share, experts_));
      for (const int slots : flags_.slots)
        row["served_by_slots"][std::to_string(slots)] = share_of(slots);
      return row;
    };
    for (size_t i = 0; i < uses_.size(); ++i) {
      const LayerUse& layer = uses_[i];
      Json row = {{"layer", i},
                  {"layer_in_file", layer.number},
                  {"use", layer.use},
                  {"never_used", layer.never_used}};
      row.update(shares([&](int32_t n) { return layer.served[static_cast<size_t>(n)]; }));
      out["layers"].push_back(std::move(row));
    }
    if (!uses_.empty()) {
      out["all"] = shares([&](int32_t n) { return served_of_all_use(uses_, n); });
      out["mean"] = shares([&](int32_t n) { return mean_served(uses_, n); });
    }
    for (const SimulatedRow& row : simulated_)
      out["simulated"].push_back({{"synthetic", true},
                                  {"slots", row.slots},
                                  {"routing", row.local ? "local" : "uniform"},
                                  {"locality", row.local ? Json(flags_.locality / 100.0) : Json()},
                                  {"tokens", flags_.tokens},
                                  {"used", used()},
                                  {"hits", share(row)},
                                  {"hits_a_token", a_token(row.counts.hits())},
                                  {"kept_a_token", a_token(row.counts.kept)},
                                  {"passed_by_a_token", a_token(row.counts.passed_by)}});
    return out;
  }

  const PlacementCommandFlags& flags_;
  const RandomShape* shape_ = nullptr;
  int32_t experts_ = 0;  // of each layer
  int32_t layers_ = 0;   // with experts
  PlacementTable table_;
  std::vector<LayerUse> uses_;  // empty without a profile
  std::vector<SimulatedRow> simulated_;
};

int run_placement(const PlacementCommandFlags& flags) {
  const Status status = Placement(flags).run();
  return status.ok() ? 0 : fail(status.error());
}

}  // namespace

void add_placement(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<PlacementCommandFlags>();
  auto* command = app.add_subcommand(
      "placement", "How the use of experts is spread, and what slots for them would serve");
  command->footer(
      "  braid placement model.gguf.experts.csv --slots 64,96    what a profile says\n"
      "  braid placement other.csv --export mine.csv   for --expert-profile\n"
      "  braid placement --shape 35b-a3b --simulate 64,96        synthetic routing");
  command
      ->add_option(
          "profile", flags->profile,
          "CSV file of --expert-profile or of another tool, with columns for layer, expert "
          "and count; - for stdin")
      ->type_name("FILE");
  OptionGroup show(*command, "Profile");
  show.add("--slots", flags->slots,
           "experts of each layer on the GPU, comma-separated: the share of use that they would "
           "serve if they were the most used ones")
      ->delimiter(',')
      ->check(CLI::Range(1, kMostPlacementExperts))
      ->type_name("N");
  show.add("--experts", flags->experts,
           "experts of each layer, if the file does not name the last ones (default: the highest "
           "number and one)")
      ->check(CLI::Range(1, kMostPlacementExperts))
      ->type_name("N");
  show.add("--shape", flags->shape,
           "a published model, whose layers and experts are taken: " + random_shape_names())
      ->type_name("NAME");
  show.add("--export", flags->export_to, "write the profile in the form of --expert-profile")
      ->type_name("FILE");
  show.flag("--json", flags->json, "print everything as JSON");
  constexpr const char* kSimulation = "Simulation";
  auto* simulate =
      command
          ->add_option("--simulate", flags->simulated_slots,
                       "numbers of slots, comma-separated: how many experts would be found in "
                       "them, by braid's own policy over synthetic routing")
          ->group(kSimulation)
          ->delimiter(',')
          ->check(CLI::Range(1, kMostPlacementExperts))
          ->type_name("N");
  command->add_option("--tokens", flags->tokens, "with --simulate: tokens that are counted")
      ->group(kSimulation)
      ->check(CLI::Range(1, 20000))
      ->capture_default_str()
      ->needs(simulate);
  command
      ->add_option(
          "--locality", flags->locality,
          "with --simulate: percent of choices that are drawn from the 12.5 % most recently "
          "used experts; 61 is that of published traces")
      ->group(kSimulation)
      ->check(CLI::Range(13, 75))
      ->capture_default_str()
      ->needs(simulate);
  command
      ->add_option("--used", flags->used,
                   "with --simulate: experts for a token (default: the shape's, else 8)")
      ->group(kSimulation)
      ->check(CLI::Range(1, 64))
      ->needs(simulate);
  command->callback([flags, exit_code] { *exit_code = run_placement(*flags); });
}

}  // namespace braid::cli
