// kv_report.cpp -- `braid kv-report`: what each KV cache format would lose on a model and a text.
//
// The first -c tokens of the text are run once with exact keys and values; then each format is measured on
// them (engine/quality): errors of K and V, and what becomes of attention for some queries of the second
// half, whose newest blocks are exact. The row of f16 is the floor.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/threads.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/terminal.h"
#include "engine/quality/kv_quality.h"
#include "engine/quality/kv_rows.h"
#include "ops/kv/kv_tail.h"

namespace braid::cli {

namespace {

constexpr int32_t kFewestTokens = 256;
constexpr int32_t kQueries = 128;  // of a layer, times heads

struct KvReportFlags {
  std::string model;
  std::string file;
  int32_t tokens = 4096;
  KvTail tail;
  int threads = 0;
  std::vector<std::string> formats;
};

struct ReportSink : Sink {
  void token(RequestId, const TokenEvent&) override {}
  void finished(RequestId, const Finished& event) override { end = event; }
  Finished end;
};

Result<std::vector<const KvCodec*>> chosen_codecs(const std::vector<std::string>& names) {
  std::vector<const KvCodec*> codecs;
  for (const std::string& name : names) {
    BRAID_ASSIGN(const KvCodec* codec, find_kv_codec(name));
    codecs.push_back(codec);
  }
  if (!codecs.empty()) return codecs;
  // Units are made of f16 rows: f32 would be another row of f16.
  for (const KvCodec* codec : kv_codecs())
    if (codec->name != "f32") codecs.push_back(codec);
  return codecs;
}

// The text through the model. Nothing where it was interrupted.
Result<std::vector<LayerRows>> run_text(LoadedModel& loaded, std::vector<int32_t> tokens) {
  KvRows rows(loaded.engine->config(), static_cast<int32_t>(tokens.size()));
  loaded.engine->observe(&rows);
  const size_t count = tokens.size();
  Request request;
  request.prompt = std::move(tokens);
  request.max_tokens = 0;
  request.use_cache = false;
  ReportSink sink;
  BRAID_ASSIGN(const RequestId id, loaded.engine->submit(std::move(request), sink));
  ProgressLine progress("running the text");
  while (!loaded.engine->idle() && !interrupted()) {
    loaded.engine->step();
    if (!rows.layers().empty()) progress.update(static_cast<uint64_t>(rows.layers().back().positions), count);
  }
  loaded.engine->cancel(id);
  loaded.engine->observe(nullptr);
  if (sink.end.reason == FinishReason::error) return Error{ErrorKind::io, sink.end.error};
  return rows.take();
}

// A format on all layers that it fits.
struct Row {
  const KvCodec* codec = nullptr;
  std::vector<KvQuality> layers;
};

std::vector<Row> measure(const std::vector<LayerRows>& layers, const std::vector<const KvCodec*>& codecs,
                         const KvQualityOptions& options, int threads) {
  std::vector<Row> rows;
  for (const KvCodec* codec : codecs) {
    if (std::all_of(layers.begin(), layers.end(),
                    [&](const LayerRows& l) { return kv_codec_accepts(*codec, l.config.head_dim).ok(); }))
      rows.push_back({codec, std::vector<KvQuality>(layers.size())});
  }
  const auto jobs = static_cast<int64_t>(rows.size() * layers.size());
  ThreadPool pool(threads > 0 ? threads : usable_cores());
  ProgressLine progress("measuring");
  Counter next;
  std::atomic<uint64_t> done = 0;
  pool.run([&](int worker) {
    for (int64_t job = next.claim(); job < jobs && !interrupted(); job = next.claim()) {
      Row& row = rows[static_cast<size_t>(job) / layers.size()];
      const size_t layer = static_cast<size_t>(job) % layers.size();
      row.layers[layer] = measure_kv_quality(layers[layer], *row.codec, *row.codec, options);
      ++done;
      if (worker == 0) progress.update(done, static_cast<uint64_t>(jobs));
    }
  });
  return rows;
}

void print_row(const Row& row, const std::vector<LayerRows>& layers) {
  KvQuality mean;
  double worst = 0;
  for (const KvQuality& q : row.layers) {
    const double share = 1.0 / static_cast<double>(row.layers.size());
    mean.k_error += share * q.k_error;
    mean.v_error += share * q.v_error;
    mean.divergence += share * q.divergence;
    mean.output_error += share * q.output_error;
    worst = std::max(worst, q.divergence);
  }
  const int32_t head_dim = layers.front().config.head_dim;
  fmt::print("{:<8} {:>7.3f} {:>7.3f} {:>8.3f} {:>8.3f} {:>10.4f} {:>10.4f} {:>9.3f}\n", row.codec->name,
             row.codec->bits_per_value(head_dim, KvSide::k), row.codec->bits_per_value(head_dim, KvSide::v),
             100 * mean.k_error, 100 * mean.v_error, 1e3 * mean.divergence, 1e3 * worst,
             100 * mean.output_error);
}

int run_kv_report(const KvReportFlags& flags) {
  auto codecs = chosen_codecs(flags.formats);
  if (!codecs.ok()) return fail(codecs.error());
  auto text = read_text(flags.file);
  if (!text.ok()) return fail(text.error());
  ModelFlags model;
  model.model = flags.model;
  model.context = flags.tokens + 1;
  model.threads = flags.threads;
  model.device = "cpu";
  model.activations = "f32";
  model.cache_k = model.cache_v = "f32";
  model.state_memory = "0";
  model.spec_type = "none";
  auto loaded = load_model(model);
  if (!loaded.ok()) return fail(loaded.error());
  auto ids = loaded->tokenizer->encode(*text, {.add_special = true, .parse_special = true});
  if (!ids.ok()) return fail(ids.error());
  if (ids->size() < static_cast<size_t>(kFewestTokens)) {
    return fail({ErrorKind::invalid_argument,
                 fmt::format("{}: has {} tokens, fewer than {}", flags.file, ids->size(), kFewestTokens)});
  }
  ids->resize(std::min(ids->size(), static_cast<size_t>(flags.tokens)));
  const auto tokens = static_cast<int32_t>(ids->size());

  const InterruptScope interrupt;
  const auto layers = run_text(*loaded, std::move(ids).value());
  if (!layers.ok()) return fail(layers.error());
  if (interrupted()) return 130;
  if (layers->empty()) return fail({ErrorKind::unsupported, loaded->name + ": has no attention layers"});
  KvQualityOptions options;
  options.first_query = tokens / 2;
  options.query_step = std::max(1, (tokens - options.first_query) / kQueries);
  options.sealed = [tail = flags.tail](int32_t p) {
    return std::pair(tail.sealed_from(), tail.exact_from(p));
  };
  const std::vector<Row> rows = measure(*layers, *codecs, options, flags.threads);
  if (interrupted()) return 130;
  fmt::print("{}: {} tokens, {} attention layers, queries from {} on, newest {} blocks exact\n", loaded->name,
             tokens, layers->size(), options.first_query, flags.tail.tail_blocks);
  fmt::print("{:<8} {:>7} {:>7} {:>8} {:>8} {:>10} {:>10} {:>9}\n", "format", "K bits", "V bits", "K err %",
             "V err %", "KL 1e-3", "worst", "out err %");
  for (const Row& row : rows) print_row(row, *layers);
  return 0;
}

}  // namespace

void add_kv_report(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<KvReportFlags>();
  auto* command = app.add_subcommand("kv-report", "What formats of the KV cache would lose on a text");
  command->add_option("-m,--model", flags->model, "GGUF file (default: the model built into braid)")
      ->envname("BRAID_MODEL");
  command->add_option("-f,--file", flags->file, "text to run, - for stdin")->required();
  command->add_option("-c,--ctx-size", flags->tokens, "tokens of it at most")
      ->check(CLI::Range(kFewestTokens, 1 << 20))
      ->capture_default_str();
  command->add_option("-t,--threads", flags->threads, "threads (default: physical cores)")
      ->check(CLI::Range(0, 1024));
  command
      ->add_option("--formats", flags->formats,
                   "some of them, e.g. q8_0,c4 (default: all that fit the model)")
      ->delimiter(',');
  command
      ->add_option("--kv-tail", flags->tail.tail_blocks,
                   "newest blocks of 32 tokens that a query reads exact")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command
      ->add_option("--kv-sink", flags->tail.sink_blocks,
                   "first blocks of the text that every query reads exact")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->callback([flags, exit_code] { *exit_code = run_kv_report(*flags); });
}

}  // namespace braid::cli
