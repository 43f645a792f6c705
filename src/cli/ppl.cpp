// ppl.cpp -- `braid ppl`: perplexity of a text.
// Windows of -c tokens run independently. Predictions at positions from c/2 on count, except the
// last, whose successor is outside the window. A model's begin token, if any, replaces the first
// token of each window.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/load_model.h"
#include "cli/terminal.h"
#include "engine/sampler.h"

namespace braid::cli {

namespace {

struct PplFlags {
  ModelFlags model;
  std::string file;
};

struct QuietSink : Sink {
  void token(RequestId, const TokenEvent&) override {}
  void finished(RequestId, const Finished& event) override { end = event; }
  Finished end;
};

int run_ppl(PplFlags flags) {
  if (flags.model.context == 0) flags.model.context = 2048;
  const int32_t window = flags.model.context;
  if (window < 4)
    return fail({ErrorKind::invalid_argument, "-c must be at least 4 to measure perplexity"});
  auto text = read_text(flags.file);
  if (!text.ok()) return fail(text.error());
  auto loaded = load_model(flags.model);
  if (!loaded.ok()) return fail(loaded.error());
  Engine& engine = *loaded->engine;
  const auto ids = loaded->tokenizer->encode(*text, {.add_special = true, .parse_special = true});
  if (!ids.ok()) return fail(ids.error());
  const size_t windows = ids->size() / static_cast<size_t>(window);
  if (windows == 0) {
    return fail({ErrorKind::invalid_argument,
                 fmt::format("{}: has {} tokens, fewer than one window of {} (-c)", flags.file,
                             ids->size(), window)});
  }

  const InterruptScope interrupt;
  ProgressLine progress("perplexity");
  double nll = 0;
  int64_t scored = 0;
  const double start_ms = now_ms();
  for (size_t w = 0; w < windows && !interrupted(); ++w) {
    Request request;
    request.prompt.assign(ids->begin() + static_cast<ptrdiff_t>(w) * window,
                          ids->begin() + static_cast<ptrdiff_t>(w + 1) * window);
    if (loaded->tokenizer->add_bos() && loaded->tokenizer->bos())
      request.prompt[0] = *loaded->tokenizer->bos();
    request.max_tokens = 0;
    request.score_from = window / 2;
    const std::vector<int32_t> prompt = request.prompt;
    request.score = [&](int32_t position, std::span<const float> logits) {
      if (position + 1 >= window) return;
      nll -= log_probability(logits, prompt[static_cast<size_t>(position) + 1]);
      ++scored;
    };
    QuietSink sink;
    const auto submitted = engine.submit(std::move(request), sink);
    if (!submitted.ok()) return fail(submitted.error());
    while (!engine.idle() && !interrupted()) engine.step();
    if (interrupted()) break;
    if (sink.end.reason == FinishReason::error) return fail({ErrorKind::io, sink.end.error});
    progress.update(w + 1, windows,
                    fmt::format("{:.4f}", std::exp(nll / static_cast<double>(scored))));
  }
  progress.clear();
  if (interrupted()) return 130;
  const double seconds = (now_ms() - start_ms) / 1000.0;
  print_status("{} windows of {} tokens, {} predictions scored, {:.0f} tok/s\n", windows, window,
               scored, static_cast<double>(windows) * window / seconds);
  print_result("ppl {:.4f}\n", std::exp(nll / static_cast<double>(scored)));
  return 0;
}

}  // namespace

void add_ppl(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<PplFlags>();
  auto* command = app.add_subcommand("ppl", "Measure the perplexity of a text");
  flags->model.spec_type = "none";  // nothing is generated
  add_model_options(*command, flags->model, kModelPart | kCachePart);
  command->add_option("-f,--file", flags->file, "text to score; - for stdin")
      ->group("Input")
      ->required()
      ->type_name("FILE");
  command->callback([flags, exit_code] { *exit_code = run_ppl(*flags); });
}

}  // namespace braid::cli
