// bench_speculation.cpp -- see bench_speculation.h.
// Plain decoding has one engine, each way to speculate another. Runs alternate between the two and
// medians are compared, so other load affects both. A run sends all prompts of a set, --batch at a
// time. Its time begins when all of these have their first token.
#include "cli/bench/bench_speculation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/output_file.h"
#include "cli/bench/bench_serving.h"
#include "cli/bench/forced_acceptance.h"
#include "cli/bench/prompt_sets.h"
#include "cli/bench/speculation_plot.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"

namespace braid::cli {

namespace {

constexpr std::array<std::string_view, 5> kSources = {"none", "ngram", "mtp", "dflash", "auto"};

struct Way {
  std::string sources, name;
  int tree = 0;  // 0: chains
};
// Parses "ngram+mtp" or "dflash/22".
Way parse_way(const std::string& text) {
  const auto slash = text.find('/');
  Way way{text.substr(0, slash), text.substr(0, slash), 0};
  if (slash == text.npos) return way;
  way.tree = std::atoi(text.c_str() + slash + 1);
  way.name += " tree";
  return way;
}

struct Answers : Sink {
  void token(RequestId id, const TokenEvent& event) override { events[id].push_back(event); }
  void finished(RequestId id, const Finished& event) override { ends[id] = event; }
  int64_t tokens() const {
    int64_t sum = 0;
    for (const auto& [id, list] : events) sum += std::ssize(list);
    return sum;
  }
  std::map<RequestId, std::vector<TokenEvent>> events;
  std::map<RequestId, Finished> ends;
};

struct Run {
  double ms = 0;
  int64_t tokens = 0;
  DraftStats drafts;                          // within `ms`
  std::vector<std::vector<int32_t>> answers;  // one per prompt

  double tok_s() const { return ms > 0 ? 1e3 * static_cast<double>(tokens) / ms : 0; }
};

class Machine {
 public:
  static Result<Machine> load(const ModelFlags& flags, bool has_texts, int generate) {
    Machine machine;
    BRAID_ASSIGN(LoadedModel loaded,
                 load_model(flags, [](EngineOptions& options) { options.gap_limit = 0; }));
    machine.loaded_ = std::make_unique<LoadedModel>(std::move(loaded));
    machine.ends_ = has_texts;
    machine.generate_ = generate;
    return machine;
  }

  Engine& engine() { return *loaded_->engine; }
  const std::string& name() const { return loaded_->name; }

  // Runs all prompts, `batch` at a time. The first ones repeat to fill the last batch.
  Result<Run> ask(const PromptSet& set, int batch) {
    Run run;
    run.answers.resize(set.prompts.size());
    for (size_t first = 0; first < set.prompts.size(); first += static_cast<size_t>(batch))
      BRAID_TRY(ask_together(set, first, batch, run));
    return run;
  }

  // Log probability of the best token minus that of the second, at index `token` of the answer.
  Result<float> margin(const std::vector<int32_t>& prompt, size_t token) {
    Answers answers;
    Request request = request_of(prompt);
    request.max_tokens = static_cast<int32_t>(token) + 1;
    request.top_logprobs = 2;
    BRAID_ASSIGN(const RequestId id, engine().submit(std::move(request), answers));
    engine().run_until_idle();
    const auto& events = answers.events[id];
    if (events.size() <= token || events[token].top.size() < 2)
      return Error{ErrorKind::io, "the answer ended before the first differing token"};
    return events[token].top[0].second - events[token].top[1].second;
  }

 private:
  Request request_of(const std::vector<int32_t>& prompt) const {
    Request request;
    request.prompt = prompt;
    request.max_tokens = generate_;
    request.sampling.temperature = 0;
    if (ends_) request.stop_ids = loaded_->tokenizer->end_ids();
    request.use_cache = ends_;  // texts are asked repeatedly
    return request;
  }

  Status ask_together(const PromptSet& set, size_t first, int batch, Run& run) {
    Answers answers;
    std::vector<std::pair<RequestId, size_t>> asked;
    for (size_t i = first; i < first + static_cast<size_t>(batch); ++i) {
      const size_t which = i % set.prompts.size();
      BRAID_ASSIGN(const RequestId id, engine().submit(request_of(set.prompts[which]), answers));
      asked.emplace_back(id, which);
    }
    const auto all = [&](auto&& has) {
      return std::all_of(asked.begin(), asked.end(),
                         [&](const auto& one) { return has(one.first); });
    };
    BRAID_TRY(run_until([&] {
      return all(
          [&](RequestId id) { return answers.events.contains(id) || answers.ends.contains(id); });
    }));
    const int64_t before_tokens = answers.tokens();
    const DraftStats before = engine().stats().drafts;
    const double begin = now_ms();
    const auto all_ended = [&] { return answers.ends.size() == asked.size(); };
    // Random prompts stand for steady load, so time counts only while all sequences run.
    BRAID_TRY(run_until([&] { return ends_ ? all_ended() : !answers.ends.empty(); }));
    run.ms += now_ms() - begin;
    run.tokens += answers.tokens() - before_tokens;
    run.drafts = engine().stats().drafts.since(before.since(run.drafts));
    BRAID_TRY(run_until(all_ended));
    for (const auto& [id, which] : asked) {
      const Finished& end = answers.ends[id];
      const bool cut = end.reason == FinishReason::length && end.usage.generated_tokens < generate_;
      if (end.reason == FinishReason::error || cut) return early_end(end, engine());
      std::vector<int32_t>& answer = run.answers[which];
      answer.clear();
      for (const TokenEvent& event : answers.events[id]) answer.push_back(event.id);
    }
    return {};
  }

  template <typename Until>
  Status run_until(Until until) {
    while (!until()) {
      if (interrupted()) return Error{ErrorKind::cancelled, "interrupted"};
      engine().step();
      BRAID_TRY(engine().health());
    }
    return {};
  }

  std::unique_ptr<LoadedModel> loaded_;
  bool ends_ = false;  // prompts are texts, and end tokens end answers
  int generate_ = 0;
};

const Run& median(std::vector<Run>& runs) {
  std::sort(runs.begin(), runs.end(),
            [](const Run& a, const Run& b) { return a.tok_s() < b.tok_s(); });
  return runs[runs.size() / 2];
}

void describe_drafts(const DraftStats& drafts, double ms, SpeculationRow& row) {
  row.draft_share = drafts.draft_ms / ms;
  row.verify_share = drafts.verify_ms / ms;
  row.plain_share = drafts.plain_ms / ms;
  row.host_share = 1 - row.draft_share - row.verify_share - row.plain_share;
  row.tokens_per_round = drafts.tokens_per_round();
  row.survival = drafts.survival();
  if (drafts.rounds > 0)
    row.drafts_per_round =
        static_cast<double>(drafts.drafted()) / static_cast<double>(drafts.rounds);
}

class SpeculationBench {
 public:
  SpeculationBench(const ModelFlags& model, const SpeculationFlags& flags)
      : model_(model), flags_(flags) {}

  Status run() {
    std::vector<std::optional<ForcedAcceptance>> accepts;
    for (const std::string& text : flags_.accept) {
      BRAID_ASSIGN(ForcedAcceptance accept, ForcedAcceptance::parse(text));
      accepts.emplace_back(std::move(accept));
    }
    if (accepts.empty()) accepts.emplace_back();
    BRAID_TRY(read_prompts());
    BRAID_ASSIGN(plain_,
                 Machine::load(flags_of("none", 0, 0), !flags_.prompts.empty(), flags_.generate));
    if (!flags_.json) print_head();
    for (const std::string& text : flags_.specs) {
      const Way way = parse_way(text);
      const std::string& spec = way.name;
      for (const int budget : way.tree > 0 ? std::vector{way.tree} : flags_.budgets) {
        BRAID_ASSIGN(Machine machine,
                     Machine::load(flags_of(way.sources, way.tree > 0 ? 0 : budget, way.tree),
                                   !flags_.prompts.empty(), flags_.generate));
        for (std::optional<ForcedAcceptance>& accept : accepts) {
          machine.engine().set_oracle(accept ? &*accept : nullptr);
          for (const int batch : flags_.batches)
            for (const PromptSet& set : sets_)
              BRAID_TRY(compare(machine, set, spec, budget, batch, accept ? accept->text() : ""));
        }
      }
    }
    return finish();
  }

 private:
  Status read_prompts() {
    BRAID_ASSIGN(const GgufFile file, open_model_file(model_.model));
    BRAID_ASSIGN(const Tokenizer tokenizer, make_tokenizer(file));
    const int most = *std::max_element(flags_.batches.begin(), flags_.batches.end());
    if (flags_.prompts.empty()) {
      sets_.push_back(random_prompts(most, std::max(1, flags_.prompt_tokens), tokenizer.size()));
    } else {
      BRAID_ASSIGN(sets_, read_prompt_sets(flags_.prompts, file, tokenizer));
    }
    size_t longest = 0;
    for (const PromptSet& set : sets_)
      for (const auto& prompt : set.prompts) longest = std::max(longest, prompt.size());
    context_ = batch_context(most, static_cast<int>(longest), flags_.generate + 64, model_.ubatch);
    parallel_ = most;
    return {};
  }

  ModelFlags flags_of(const std::string& spec, int budget, int tree) const {
    ModelFlags flags = model_;
    flags.spec_type = spec;
    std::replace(flags.spec_type.begin(), flags.spec_type.end(), '+', ',');
    flags.spec_draft_n_max = budget;
    flags.ddtree_budget = tree;
    if (spec.find("dflash") == std::string::npos && spec != "auto") flags.draft_model.clear();
    flags.parallel = parallel_;
    flags.context = std::max(flags.context, context_);
    return flags;
  }

  Status compare(Machine& machine, const PromptSet& whole, const std::string& spec, int budget,
                 int batch, const std::string& accept) {
    // Random prompts exist for the largest batch.
    PromptSet set = whole;
    if (flags_.prompts.empty()) set.prompts.resize(static_cast<size_t>(batch));
    std::vector<Run> plain, drafted;
    const int runs = flags_.repetitions + 1;  // the first warms up
    const double lost_before_ms = machine.engine().stats().drafts.lost_ms;
    for (int r = 0; r < runs; ++r) {
      progress_.update(static_cast<uint64_t>(r), static_cast<uint64_t>(runs),
                       fmt::format("{} {}, batch {}", spec, set.name, batch));
      for (const bool first : {true, false}) {
        const bool is_plain = first == (r % 2 == 0);
        BRAID_ASSIGN(Run run, (is_plain ? *plain_ : machine).ask(set, batch));
        if (r > 0) (is_plain ? plain : drafted).push_back(std::move(run));
      }
    }
    progress_.clear();
    SpeculationRow row;
    row.set = set.name;
    row.spec = spec;
    row.accept = accept;
    row.batch = batch;
    row.budget = budget;
    row.answers = static_cast<int>(set.prompts.size());
    if (accept.empty()) BRAID_TRY(compare_answers(set, plain[0], drafted[0], row));
    row.plain_tok_s = median(plain).tok_s();
    const Run& run = median(drafted);
    row.tok_s = run.tok_s();
    describe_drafts(run.drafts, run.ms, row);
    row.lost_ms = machine.engine().stats().drafts.lost_ms - lost_before_ms;
    if (!flags_.json) print_row(row);
    rows_.push_back(std::move(row));
    return {};
  }

  Status compare_answers(const PromptSet& set, const Run& plain, const Run& drafted,
                         SpeculationRow& row) {
    for (size_t i = 0; i < plain.answers.size(); ++i) {
      const std::vector<int32_t>&a = plain.answers[i], &b = drafted.answers[i];
      if (a == b) continue;
      ++row.differing;
      const auto token = static_cast<size_t>(
          std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
      BRAID_ASSIGN(const float margin, plain_->margin(set.prompts[i], token));
      differences_.push_back(
          fmt::format("{}, batch {}, {}: answer {} differs from token {} on; the two best "
                      "tokens there are {:.4f} nats apart",
                      row.name(), row.batch, set.name, i + 1, token + 1, margin));
    }
    return {};
  }

  void print_head() {
    print_result("{} on {}: greedy, up to {} tokens, medians of {} runs\n\n", plain_->name(),
                 plain_->engine().devices().description(), flags_.generate, flags_.repetitions);
    print_result(
        "| set | batch | spec | drafts | plain tok/s | tok/s | speed-up | tokens a step | drafts "
        "a step | accepted by depth | draft | verify | plain | host | lost ms | differing |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  }

  static void print_row(const SpeculationRow& row) {
    constexpr size_t kMostName = 40;  // --accept by rank is long
    std::string name = row.name();
    if (name.size() > kMostName) name = name.substr(0, kMostName) + "...";
    std::string survival;
    for (const double s : row.survival)
      survival += fmt::format("{}{:.2f}", survival.empty() ? "" : " ", s);
    print_result(
        "| {} | {} | {} | {} | {:.1f} | {:.1f} | {:.2f}x | {:.2f} | {:.1f} | {} | {:.0f} % | "
        "{:.0f} % | {:.0f} % | {:.0f} % | {:.1f} | {} |\n",
        row.set, row.batch, name, row.budget > 0 ? std::to_string(row.budget) : "", row.plain_tok_s,
        row.tok_s, row.speed_up(), row.tokens_per_round, row.drafts_per_round, survival,
        100 * row.draft_share, 100 * row.verify_share, 100 * row.plain_share, 100 * row.host_share,
        row.lost_ms, row.accept.empty() ? fmt::format("{} of {}", row.differing, row.answers) : "");
  }

  Status finish() {
    if (flags_.json) {
      auto json = nlohmann::ordered_json::array();
      for (const SpeculationRow& row : rows_) json.push_back(to_json(row));
      print_result("{}\n", json.dump(2));
    } else {
      int differing = 0, answers = 0;
      for (const SpeculationRow& row : rows_) {
        if (!row.accept.empty()) continue;
        differing += row.differing;
        answers += row.answers;
      }
      if (answers > 0)
        print_result("\n{} of {} answers differ from those of plain decoding\n", differing,
                     answers);
      for (const std::string& line : differences_) print_result("{}\n", line);
    }
    if (flags_.svg.empty()) return {};
    return write_output_file(
        flags_.svg, speculation_plot(
                        plain_->name() + " on " + plain_->engine().devices().description(), rows_));
  }

  nlohmann::ordered_json to_json(const SpeculationRow& row) const {
    return {{"model", plain_->name()},
            {"set", row.set},
            {"batch", row.batch},
            {"spec", row.spec},
            {"accept", row.accept},
            {"draft_max", row.budget},
            {"plain_tok_s", row.plain_tok_s},
            {"tok_s", row.tok_s},
            {"speed_up", row.speed_up()},
            {"tokens_per_round", row.tokens_per_round},
            {"drafts_per_round", row.drafts_per_round},
            {"accepted_by_depth", row.survival},
            {"draft_share", row.draft_share},
            {"verify_share", row.verify_share},
            {"plain_share", row.plain_share},
            {"host_share", row.host_share},
            {"lost_ms", row.lost_ms},
            {"answers", row.answers},
            {"differing", row.differing}};
  }

  const ModelFlags& model_;
  const SpeculationFlags& flags_;
  std::vector<PromptSet> sets_;
  int context_ = 0, parallel_ = 1;
  std::optional<Machine> plain_;
  std::vector<SpeculationRow> rows_;
  std::vector<std::string> differences_;
  ProgressLine progress_{"bench"};
};

}  // namespace

CLI::Option* add_speculation_bench_options(CLI::App& command, SpeculationFlags& flags) {
  constexpr const char* kGroup = "Speculation benchmark";
  auto* spec = command.add_option(
      "--spec", flags.specs,
      "compare these values of --spec-type, comma-separated, with plain decoding. ngram+mtp: both "
      "together; dflash/22: trees of 22 tokens. --batch sequences generate -n tokens each");
  spec->group(kGroup)->type_name("TYPES")->delimiter(',')->check(
      [](const std::string& ways) -> std::string {
        std::istringstream list(ways);
        for (std::string text; std::getline(list, text, ',');) {
          const Way way = parse_way(text);
          if (text.find('/') != text.npos && (way.tree < 1 || way.tree > 64))
            return text + ": a tree has 1 to 64 speculative tokens";
          std::istringstream sources(way.sources);
          for (std::string source; std::getline(sources, source, '+');)
            if (std::find(kSources.begin(), kSources.end(), source) == kSources.end())
              return fmt::format("{} is not one of {}", source, fmt::join(kSources, ", "));
        }
        return {};
      });
  command
      .add_option("--prompts", flags.prompts,
                  "with --spec: prompts, one JSON object a line, such as bench/prompts.jsonl "
                  "(default: random tokens, timed until the first sequence of a batch ends)")
      ->group(kGroup)
      ->type_name("FILE")
      ->needs(spec);
  command
      .add_option("--draft-max", flags.budgets,
                  "with --spec: values of --spec-draft-n-max, comma-separated (default: the "
                  "drafter's)")
      ->group(kGroup)
      ->delimiter(',')
      ->check(CLI::Range(1, 64))
      ->needs(spec);
  command
      .add_option("--accept", flags.accept,
                  "with --spec: acceptance rates in place of the model's decisions. By depth: "
                  "0.85,0.7,0.55; with second and third choices: 0.8:0.1:0.05,... May be repeated")
      ->group(kGroup)
      ->type_name("RATES")
      ->allow_extra_args(false)
      ->needs(spec);
  command
      .add_option("--svg", flags.svg,
                  "with --spec: plot tok/s over speculative tokens and over the batch into this "
                  "file")
      ->group(kGroup)
      ->type_name("FILE")
      ->needs(spec);
  return spec;
}

int run_speculation_bench(const ModelFlags& model, const SpeculationFlags& flags) {
  const InterruptScope interrupt;
  const Status status = SpeculationBench(model, flags).run();
  if (status.ok()) return 0;
  print_error(status.error().message);
  return status.error().kind == ErrorKind::cancelled ? 130 : 2;
}

}  // namespace braid::cli
