// ppl.cpp -- `braid ppl`: perplexity of a text, and what block-sparse prompts add to it.
// Windows of -c tokens run independently. Predictions at positions from c/2 on count, except the
// last, whose successor is outside the window. A model's begin token, if any, replaces the first
// token of each window.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/bench/ask.h"
#include "cli/bench/logit_quality.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/load_model.h"
#include "cli/sparse_share.h"
#include "cli/terminal.h"
#include "engine/sampler.h"

namespace braid::cli {

namespace {

// Rows of logits that are kept for comparison; they are large.
constexpr int64_t kComparedRows = 512;

struct PplFlags {
  ModelFlags model;
  std::string file;
};

struct PplResult {
  int64_t windows = 0;
  int64_t scored = 0;
  double nll = 0;
  double seconds = 0;
  SparseCounts blocks;

  double perplexity() const { return std::exp(nll / static_cast<double>(scored)); }
};

using LogitRow = std::function<void(std::span<const float> logits)>;

// `row` gets evenly spaced logits, at most about kComparedRows; null: nothing.
Result<PplResult> score_windows(LoadedModel& loaded, const std::vector<int32_t>& ids,
                                int32_t window, const LogitRow& row) {
  PplResult result;
  result.windows = std::ssize(ids) / window;
  const int64_t all = result.windows * (window - 1 - window / 2);
  const int64_t step = std::max<int64_t>(1, (all + kComparedRows - 1) / kComparedRows);
  ProgressLine progress("perplexity");
  const double start_ms = now_ms();
  for (int64_t w = 0; w < result.windows; ++w) {
    Request request;
    request.prompt.assign(ids.begin() + w * window, ids.begin() + (w + 1) * window);
    if (loaded.tokenizer->add_bos() && loaded.tokenizer->bos())
      request.prompt[0] = *loaded.tokenizer->bos();
    request.max_tokens = 0;
    request.score_from = window / 2;
    const std::vector<int32_t> prompt = request.prompt;
    request.score = [&](int32_t position, std::span<const float> logits) {
      if (position + 1 >= window) return;
      result.nll -= log_probability(logits, prompt[static_cast<size_t>(position) + 1]);
      if (row && result.scored % step == 0) row(logits);
      ++result.scored;
    };
    BRAID_ASSIGN(const auto answer, run_request(*loaded.engine, std::move(request), [] {}));
    if (interrupted()) return Error{ErrorKind::cancelled, "interrupted"};
    static_cast<void>(answer);  // of no tokens
    progress.update(static_cast<uint64_t>(w) + 1, static_cast<uint64_t>(result.windows),
                    fmt::format("{:.4f}", result.perplexity()));
  }
  progress.clear();
  result.seconds = (now_ms() - start_ms) / 1000.0;
  result.blocks = loaded.engine->sparse_counts();
  print_status("{} windows of {} tokens, {} predictions scored, {:.0f} tok/s\n", result.windows,
               window, result.scored,
               static_cast<double>(result.windows) * window / result.seconds);
  return result;
}

Result<std::vector<int32_t>> tokens_of(const PplFlags& flags, const std::string& text,
                                       const Tokenizer& tokenizer) {
  BRAID_ASSIGN(std::vector<int32_t> ids,
               tokenizer.encode(text, {.add_special = true, .parse_special = true}));
  if (std::ssize(ids) < flags.model.context)
    return Error{ErrorKind::invalid_argument,
                 fmt::format("{}: has {} tokens, fewer than one window of {} (-c)", flags.file,
                             ids.size(), flags.model.context)};
  return ids;
}

Status measure(const PplFlags& flags, const std::string& text) {
  BRAID_ASSIGN(LoadedModel loaded, load_model(flags.model));
  BRAID_ASSIGN(const std::vector<int32_t> ids, tokens_of(flags, text, *loaded.tokenizer));
  const InterruptScope interrupt;
  BRAID_ASSIGN(const PplResult result, score_windows(loaded, ids, flags.model.context, nullptr));
  print_result("ppl {:.4f}\n", result.perplexity());
  return result_status();
}

// The same windows with the threshold, which an engine may refuse, then with full attention.
Status compare(const PplFlags& flags, const std::string& text) {
  std::vector<std::vector<float>> rows;
  const auto score = [&](double threshold, const LogitRow& row) -> Result<PplResult> {
    ModelFlags model = flags.model;
    model.prefill_sparse = threshold;
    BRAID_ASSIGN(LoadedModel loaded, load_model(model));
    BRAID_ASSIGN(const std::vector<int32_t> ids, tokens_of(flags, text, *loaded.tokenizer));
    print_status("{}\n", threshold > 0 ? fmt::format("threshold {}", threshold) : "full attention");
    const InterruptScope interrupt;
    return score_windows(loaded, ids, model.context, row);
  };
  const double threshold = flags.model.prefill_sparse;
  BRAID_ASSIGN(const PplResult sparse, score(threshold, [&](std::span<const float> logits) {
                 rows.emplace_back(logits.begin(), logits.end());
               }));
  LogitQuality quality;
  size_t at = 0;
  BRAID_ASSIGN(const PplResult full,
               score(0, [&](std::span<const float> logits) { quality.add(logits, rows[at++]); }));
  const LogitSummary change = quality.summary();
  print_result("full attention: ppl {:.4f}\n", full.perplexity());
  print_result("threshold {}: ppl {:.4f} ({:+.2f} %)\n", threshold, sparse.perplexity(),
               100 * (sparse.perplexity() / full.perplexity() - 1));
  print_result(
      "KL divergence of {} predictions: mean {:.3g} nats, 99th percentile {:.3g}, most {:.3g}; "
      "{:.2f} % of the best tokens changed\n",
      change.rows, change.mean, change.p99, change.most, 100 * change.flips);
  print_result("{}\n", sparse_share(sparse.blocks));
  return result_status();
}

int run_ppl(PplFlags flags) {
  if (flags.model.context == 0) flags.model.context = 2048;
  const bool compares = flags.model.prefill_sparse > 0;
  const int32_t least = compares ? kSparseRows + kSparseExactTokens : 4;
  if (flags.model.context < least)
    return fail({ErrorKind::invalid_argument,
                 fmt::format("-c must be at least {} to measure {}", least,
                             compares ? "--prefill-sparse: shorter prompts attend to everything"
                                      : "perplexity")});
  auto text = read_text(flags.file);
  if (!text.ok()) return fail(text.error());
  const Status status = compares ? compare(flags, *text) : measure(flags, *text);
  return status.ok() ? 0 : fail(status.error());
}

}  // namespace

void add_ppl(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<PplFlags>();
  auto* command = app.add_subcommand("ppl", "Measure the perplexity of a text");
  command->footer("  braid ppl -f book.txt -c 32768 --prefill-sparse 0.05   also what that loses");
  flags->model.spec_type = "none";  // nothing is generated
  add_model_options(*command, flags->model, kModelPart | kCachePart);
  command->add_option("-f,--file", flags->file, "text to score; - for stdin")
      ->group("Input")
      ->required()
      ->type_name("FILE");
  command->callback([flags, exit_code] { *exit_code = run_ppl(*flags); });
}

}  // namespace braid::cli
