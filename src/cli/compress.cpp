// compress.cpp -- `braid compress`: which parts of a text a question needs, and how sure that is.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/output_file.h"
#include "cli/bench/ask.h"
#include "cli/bench/kv_rows.h"
#include "cli/bench/needle_case.h"
#include "cli/bench/needle_report.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/load_model.h"
#include "cli/options/compression_flags.h"
#include "cli/options/option_group.h"
#include "cli/sparse_share.h"
#include "cli/terminal.h"
#include "server/compress/prompt_compressor.h"

namespace braid::cli {
namespace {

using server::CompressedPrompt;
using server::PromptCompressor;
using server::PromptPart;

constexpr int kMostNeedleTokens = 1 << 20;
constexpr int kAnswerTokens = 64;
// Context beside a text: parts that are tokenized apart, and the chat template of an answer.
constexpr int kSpareTokens = 64, kTemplateTokens = 192;

struct CompressFlags {
  ModelFlags model;
  std::string file;
  std::string question;
  std::string keep = "auto";
  int rows = TailScoreOptions().rows;
  bool angles = false;
  int layers = 0;
  std::optional<double> sparse_threshold;  // of the model that scores
  bool json = false;
  bool show = false;
  std::vector<int> needle_tokens;
  std::vector<std::string> fillers = {"prose", "code", "logs", "uniform", "multilingual"};
  std::vector<std::string> needles = {"number"};
  int depths = 11;
  std::string heat_map;
  bool answers = false;
  std::string answer_model;

  bool answered() const { return answers || !answer_model.empty(); }
};

bool stop_or_show(ProgressLine& line, size_t done, size_t all) {
  line.update(done, all);
  return interrupted();
}

// The original, with what is dropped in gray; without colors as "[... N bytes ...]".
void show_parts(const CompressedPrompt& prompt) {
  const bool colour = use_colour() && stdout_is_terminal();
  const std::string_view text = prompt.original;
  size_t at = 0;
  const auto dropped = [&](size_t end) {
    if (end <= at) return;
    if (colour) {
      print_result("\033[2m{}\033[0m", text.substr(at, end - at));
    } else {
      print_result("[... {} bytes ...]", end - at);
    }
  };
  for (const KeptPart& part : prompt.kept.parts) {
    dropped(part.source.begin);
    write_result(text.substr(part.source.begin, part.source.end - part.source.begin));
    at = part.source.end;
  }
  dropped(text.size());
  write_result("\n");
}

void print_json(const CompressedPrompt& prompt) {
  nlohmann::ordered_json parts = nlohmann::ordered_json::array();
  for (const KeptPart& part : prompt.kept.parts)
    parts.push_back({part.source.begin, part.source.end});
  const nlohmann::ordered_json out = {{"tokens", prompt.kept.total_tokens},
                                      {"kept_tokens", prompt.kept.kept_tokens},
                                      {"ratio", prompt.kept.ratio()},
                                      {"windows", prompt.windows},
                                      {"scoring_ms", prompt.scoring_ms},
                                      {"selecting_ms", prompt.selecting_ms},
                                      {"parts", parts},
                                      {"text", prompt.kept.text}};
  print_result("{}\n", out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

// Later members refer to earlier ones, so this stays where it is.
struct Loaded {
  LoadedModel model;  // its engine is the scorer's
  std::unique_ptr<PromptScorer> scorer;
  std::unique_ptr<PromptCompressor> compressor;
};

Status load(const CompressFlags& flags, Loaded& out) {
  BRAID_ASSIGN(const KeepCurve keep, KeepCurve::parse(flags.keep));
  std::optional<float> given;
  if (flags.sparse_threshold) given = static_cast<float>(*flags.sparse_threshold);
  BRAID_ASSIGN(out.model, server::create_sparse(given, [&](float threshold) {
                 return load_model(flags.model, [&](EngineOptions& options) {
                   options = PromptScorer::engine_options(options);
                   options.sparse_threshold = threshold;
                 });
               }));
  const TailScoreOptions scores{flags.rows, flags.angles, flags.layers};
  BRAID_ASSIGN(out.scorer, PromptScorer::create(std::move(out.model.engine), scores));
  out.compressor = std::make_unique<PromptCompressor>(*out.scorer, *out.model.tokenizer, keep);
  return {};
}

void print_sparse_share(const CompressFlags& flags, Loaded& loaded) {
  const SparseCounts counts = loaded.scorer->sparse_counts();
  const bool asked = flags.sparse_threshold.value_or(0) > 0;
  if (asked || counts.all > 0) print_status("{}\n", sparse_share(counts));
}

Status compress_file(CompressFlags& flags) {
  BRAID_ASSIGN(const std::string text, read_text(flags.file));
  Loaded loaded;
  BRAID_TRY(load(flags, loaded));
  const std::string question = flags.question.empty() ? "" : "\n\n" + flags.question;
  const PromptPart parts[] = {{text}, {question, KeptBecause::last_user_turn}};
  ProgressLine line("reading");
  auto compressed = loaded.compressor->compress(
      parts, [&](size_t done, size_t all) { return stop_or_show(line, done, all); });
  line.clear();
  if (!compressed.ok()) return compressed.error();
  const CompressedPrompt& prompt = *compressed;
  if (flags.json) {
    print_json(prompt);
  } else if (flags.show) {
    show_parts(prompt);
  } else {
    print_result("{}\n", prompt.kept.text);
  }
  const std::string windows =
      prompt.windows == 1 ? "" : fmt::format(", {} windows", prompt.windows);
  print_status("kept {} of {} tokens ({:.0f} %); scored in {:.2f} s{}, chosen in {:.0f} ms\n",
               prompt.kept.kept_tokens, prompt.kept.total_tokens, 100 * prompt.kept.ratio(),
               prompt.scoring_ms / 1000, windows, prompt.selecting_ms);
  print_sparse_share(flags, loaded);
  return result_status();
}

Result<std::vector<NeedleShape>> shapes_of(const CompressFlags& flags) {
  std::vector<NeedleShape> shapes;
  for (const std::string& filler : flags.fillers)
    for (const std::string& needle : flags.needles)
      for (const int tokens : flags.needle_tokens)
        for (int i = 0; i < flags.depths; ++i) {
          NeedleShape shape;
          shape.seed = static_cast<uint64_t>(i) + 1;
          shape.tokens = tokens;
          shape.depth = flags.depths == 1 ? 0.5 : static_cast<double>(i) / (flags.depths - 1);
          BRAID_ASSIGN(shape.filler, parse_filler(filler));
          BRAID_ASSIGN(shape.needle, parse_needle(needle));
          shapes.push_back(shape);
        }
  return shapes;
}

// So many tokens of context, or all that the model has.
Result<int> context_for(const std::string& model, int64_t wanted) {
  BRAID_ASSIGN(const GgufFile file, open_model_file(model));
  BRAID_ASSIGN(const ModelConfig config, read_model_config(file));
  return static_cast<int>(std::min<int64_t>(wanted, config.context_length));
}

// The model that answers the questions of made texts.
class AnswerModel {
 public:
  // --answer-model, else the model that scores. Its tokens of a text may be twice as many as those
  // of the model that scores.
  static Result<AnswerModel> load(const CompressFlags& flags, int longest, Loaded& scoring) {
    AnswerModel out;
    out.scoring_ = &scoring;
    if (flags.answer_model.empty()) return out;
    ModelFlags model = flags.model;
    model.model = flags.answer_model;
    const int64_t wanted = 2 * int64_t{longest} + kSpareTokens + kTemplateTokens + kAnswerTokens;
    BRAID_ASSIGN(model.context, context_for(model.model, wanted));
    BRAID_ASSIGN(LoadedModel own, load_model(model, [](EngineOptions& options) {
                   options.prefix_cache = false;
                   options.max_sequences = 1;
                 }));
    out.own_ = std::make_unique<LoadedModel>(std::move(own));
    return out;
  }

  // None, if the model's context has no room for an answer behind the text.
  Result<std::optional<std::string>> answer(const std::string& text,
                                            const std::function<void()>& stepped) {
    const LoadedModel& model = own_ != nullptr ? *own_ : scoring_->model;
    Engine& engine = own_ != nullptr ? *own_->engine : scoring_->scorer->lend();
    BRAID_ASSIGN(std::vector<int32_t> prompt, question_tokens(text, *model.file, *model.tokenizer));
    if (std::ssize(prompt) >= engine.most_tokens()) return std::optional<std::string>();
    BRAID_ASSIGN(
        const std::vector<int32_t> tokens,
        greedy_answer(engine, *model.tokenizer, std::move(prompt), kAnswerTokens, stepped));
    if (interrupted()) return Error{ErrorKind::cancelled, "interrupted"};
    return std::optional(model.tokenizer->decode(tokens));
  }

 private:
  std::unique_ptr<LoadedModel> own_;  // of --answer-model; null: the model that scores answers
  Loaded* scoring_ = nullptr;
};

// Compresses made texts, and has their questions answered before and after that.
class NeedleRun {
 public:
  NeedleRun(Loaded& loaded, AnswerModel* answer_model, size_t cases)
      : loaded_(loaded),
        answer_model_(answer_model),
        steps_(cases * (answer_model == nullptr ? 1 : 3)) {}

  Result<NeedleResult> run(const NeedleShape& shape) {
    BRAID_ASSIGN(const NeedleCase needle, make_needle_case(shape, [this](std::string_view text) {
                   show();
                   return loaded_.model.tokenizer->encode(
                       text, {.add_special = false, .parse_special = false});
                 }));
    const std::string question = "\n\n" + needle.question;
    const PromptPart parts[] = {{needle.context}, {question, KeptBecause::last_user_turn}};
    BRAID_ASSIGN(const CompressedPrompt prompt,
                 loaded_.compressor->compress(parts, [this](size_t done, size_t all) {
                   return stop_or_show(line_, done_ * all + done, steps_ * all);
                 }));
    ++done_;
    NeedleResult result{shape,
                        static_cast<int64_t>(prompt.kept.total_tokens),
                        contains_needles(prompt.kept.text, needle),
                        static_cast<int64_t>(prompt.kept.kept_tokens),
                        (prompt.scoring_ms + prompt.selecting_ms) / 1000,
                        {},
                        static_cast<int64_t>(prompt.windows)};
    if (answer_model_ == nullptr) return result;
    NeedleAnswers& answers = result.answers.emplace();
    BRAID_ASSIGN(answers.whole, answer(needle_prompt(needle)));
    BRAID_ASSIGN(answers.kept, answer(prompt.kept.text));
    answers.whole_is_right = answers.whole && contains_answers(*answers.whole, needle);
    answers.kept_is_right = answers.kept && contains_answers(*answers.kept, needle);
    return result;
  }

 private:
  void show() { line_.update(done_, steps_); }

  Result<std::optional<std::string>> answer(const std::string& text) {
    auto said = answer_model_->answer(text, [this] { show(); });
    ++done_;
    return said;
  }

  Loaded& loaded_;
  AnswerModel* answer_model_;  // null: nothing is answered
  size_t done_ = 0, steps_ = 0;
  ProgressLine line_{"needles"};
};

// What the tables do not say.
void print_needle_notes(const CompressFlags& flags, std::span<const NeedleResult> results,
                        Loaded& loaded) {
  int64_t windows = 0, unanswered = 0;
  for (const NeedleResult& result : results) {
    windows = std::max(windows, result.windows);
    if (!result.answers) continue;
    unanswered += result.answers->whole ? 0 : 1;
    unanswered += result.answers->kept ? 0 : 1;
  }
  if (windows > 1)
    print_status("texts longer than the context of {} tokens were read in up to {} windows\n",
                 loaded.scorer->engine().context_tokens(), windows);
  if (unanswered > 0)
    print_status("{} texts were too long for the model that answers, and count as wrong answers\n",
                 unanswered);
  print_sparse_share(flags, loaded);
}

Status run_needles(CompressFlags& flags) {
  BRAID_ASSIGN(const std::vector<NeedleShape> shapes, shapes_of(flags));
  const int most = *std::max_element(flags.needle_tokens.begin(), flags.needle_tokens.end());
  if (flags.model.context == 0) {
    const bool answers = flags.answered() && flags.answer_model.empty();
    const int64_t wanted =
        int64_t{most} + kSpareTokens + (answers ? kTemplateTokens + kAnswerTokens : 0);
    BRAID_ASSIGN(flags.model.context, context_for(flags.model.model, wanted));
  }
  Loaded loaded;
  BRAID_TRY(load(flags, loaded));
  AnswerModel answer_model;
  if (flags.answered()) {
    BRAID_ASSIGN(answer_model, AnswerModel::load(flags, most, loaded));
  }
  std::vector<NeedleResult> results;
  {
    NeedleRun run(loaded, flags.answered() ? &answer_model : nullptr, shapes.size());
    for (const NeedleShape& shape : shapes) {
      BRAID_ASSIGN(NeedleResult result, run.run(shape));
      results.push_back(std::move(result));
    }
  }
  write_result(flags.json ? needle_json_lines(results) : needle_tables(results));
  print_needle_notes(flags, results, loaded);
  if (!flags.heat_map.empty())
    BRAID_TRY(write_output_file(flags.heat_map,
                                needle_heat_map("Facts that survive compression", results)));
  return result_status();
}

template <typename List, typename Name>
std::string names_of(const List& list, Name name) {
  std::string names;
  for (const auto kind : list) {
    if (!names.empty()) names += ", ";
    names += name(kind);
  }
  return names;
}

int run_compress(CompressFlags flags) {
  if (flags.file.empty() == flags.needle_tokens.empty())
    return fail(
        {ErrorKind::invalid_argument,
         "compress takes a text (-f FILE) or lengths of made texts (--needles 4096,16384)"});
  if (flags.answered() && flags.needle_tokens.empty())
    return fail({ErrorKind::invalid_argument,
                 "--answers and --answer-model are for made texts (--needles 4096,16384)"});
  if (flags.model.prefill_sparse > 0 && flags.answer_model.empty())
    return fail({ErrorKind::invalid_argument,
                 "--prefill-sparse is for the model of --answer-model; the one that scores has "
                 "--prefill-drafter-sparse"});
  const InterruptScope interrupt;
  const Status status = flags.file.empty() ? run_needles(flags) : compress_file(flags);
  return status.ok() ? 0 : fail(status.error());
}

void add_needle_options(CLI::App& command, CompressFlags& flags) {
  command
      .add_option("--needles", flags.needle_tokens,
                  "instead of -f: hide a fact in made texts of these numbers of tokens, and "
                  "count how often it is kept")
      ->group("Needles")
      ->delimiter(',')
      ->check(CLI::Range(256, kMostNeedleTokens))
      ->type_name("LENGTHS");
  command
      .add_option("--fillers", flags.fillers,
                  "texts around the fact: " + names_of(kGeneratedFillers, filler_name))
      ->group("Needles")
      ->delimiter(',')
      ->capture_default_str();
  command
      .add_option("--kinds", flags.needles, "kinds of facts: " + names_of(kAllNeedles, needle_name))
      ->group("Needles")
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--depths", flags.depths, "places of the fact, from the first to the last")
      ->group("Needles")
      ->check(CLI::Range(1, 101))
      ->capture_default_str();
  command.add_option("--heat-map", flags.heat_map, "also write an SVG by length and depth")
      ->group("Needles")
      ->type_name("FILE");
  command
      .add_flag("--answers", flags.answers,
                "the model also answers each question, about the whole text and about what is "
                "kept of it")
      ->group("Needles");
  command
      .add_option("--answer-model", flags.answer_model,
                  "model that answers (default: the one that scores); implies --answers")
      ->group("Needles")
      ->type_name("FILE");
}

}  // namespace

void add_compress(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<CompressFlags>();
  auto* command = app.add_subcommand(
      "compress", "Show which parts of a long text a question needs, by a small model");
  flags->model.spec_type = "none";
  add_model_options(*command, flags->model, kModelPart | kCachePart);
  command->add_option("-f,--file", flags->file, "text to compress; - for stdin")
      ->group("Input")
      ->type_name("FILE");
  command->add_option("-q,--question", flags->question, "what the text is needed for; it is kept")
      ->group("Input")
      ->type_name("TEXT");
  command
      ->add_option("--keep", flags->keep,
                   "share of the tokens to keep: auto (a tenth of prose, three tenths of code), "
                   "0.05, or by length, as in \"10000:0.5 40000:0.2\"")
      ->group("Compression")
      ->capture_default_str()
      ->type_name("SHARE");
  command
      ->add_option("--score-rows", flags->rows,
                   "last tokens whose attention is the score of each token")
      ->group("Compression")
      ->check(CLI::Range(1, kMostTailRows))
      ->capture_default_str();
  command->add_option("--score-layers", flags->layers, "last attention layers that score; 0: all")
      ->group("Compression")
      ->check(CLI::Range(0, 1 << 16))
      ->capture_default_str();
  command
      ->add_flag("--score-angles", flags->angles,
                 "score with rotated queries and keys: far tokens count less")
      ->group("Compression");
  OptionGroup compression(*command, "Compression");
  add_drafter_sparse_option(compression, flags->sparse_threshold);
  command->add_flag("--show", flags->show, "print the whole text, with what is dropped in gray")
      ->group("Output");
  command->add_flag("--json", flags->json, "print JSON")->group("Output");
  add_needle_options(*command, *flags);
  command->callback([flags, exit_code] { *exit_code = run_compress(*flags); });
}

}  // namespace braid::cli
