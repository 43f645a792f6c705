// attention_part.cpp -- see attention_part.h.
#include "cli/bench/attention_part.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/threads.h"
#include "cli/bench/kv_quality.h"
#include "cli/bench/kv_rows.h"
#include "cli/interrupt.h"
#include "cli/load_model.h"
#include "cli/terminal.h"

namespace braid::cli {

namespace {

constexpr int32_t kQueries = 128;  // positions per layer; each has a query per head

struct EndSink : Sink {
  void token(RequestId, const TokenEvent&) override {}
  void finished(RequestId, const Finished& event) override { end = event; }
  Finished end;
};

Result<std::vector<LayerRows>> rows_of_text(LoadedModel& loaded,
                                            const std::vector<int32_t>& tokens) {
  KvRows rows(loaded.engine->config(), static_cast<int32_t>(tokens.size()));
  loaded.engine->observe(&rows);
  Request request;
  request.prompt = tokens;
  request.max_tokens = 0;
  request.use_cache = false;
  EndSink sink;
  BRAID_ASSIGN(const RequestId id, loaded.engine->submit(std::move(request), sink));
  ProgressLine progress("running the text");
  while (!loaded.engine->idle() && !interrupted()) {
    loaded.engine->step();
    if (!rows.layers().empty())
      progress.update(static_cast<uint64_t>(rows.layers().back().positions), tokens.size());
  }
  loaded.engine->cancel(id);
  loaded.engine->observe(nullptr);
  if (sink.end.reason == FinishReason::error) return Error{ErrorKind::io, sink.end.error};
  return rows.take();
}

AttentionFigures mean_of(const std::vector<KvQuality>& layers) {
  AttentionFigures mean;
  const double share = 1.0 / static_cast<double>(layers.size());
  for (const KvQuality& q : layers) {
    mean.k_error += share * q.k_error;
    mean.v_error += share * q.v_error;
    mean.divergence += share * q.divergence;
    mean.output_error += share * q.output_error;
    mean.worst_divergence = std::max(mean.worst_divergence, q.divergence);
  }
  return mean;
}

}  // namespace

Result<std::vector<AttentionFigures>> measure_attention(const AttentionPart& part,
                                                        const std::vector<int32_t>& tokens,
                                                        std::span<const KvPair> formats) {
  ModelFlags flags;
  flags.model = part.model;
  flags.context = static_cast<int>(tokens.size()) + 1;
  flags.threads = part.threads;
  flags.device = "cpu";
  flags.activations = "f32";
  flags.cache_k = flags.cache_v = "f32";
  flags.state_memory = "0";
  flags.spec_type = "none";
  BRAID_ASSIGN(LoadedModel loaded, load_model(flags));
  BRAID_ASSIGN(const std::vector<LayerRows> layers, rows_of_text(loaded, tokens));
  if (interrupted()) return std::vector<AttentionFigures>();
  if (layers.empty())
    return Error{ErrorKind::unsupported, loaded.name + ": has no attention layers"};

  KvQualityOptions options;
  options.first_query = static_cast<int32_t>(tokens.size()) / 2;
  options.query_step =
      std::max(1, (static_cast<int32_t>(tokens.size()) - options.first_query) / kQueries);
  options.sealed = [tail = part.tail](int32_t p) {
    return std::pair(tail.sealed_from(), tail.exact_from(p));
  };
  std::vector<std::vector<KvQuality>> found(formats.size(), std::vector<KvQuality>(layers.size()));
  const auto jobs = static_cast<int64_t>(formats.size() * layers.size());
  ThreadPool pool(part.threads > 0 ? part.threads : usable_cores());
  ProgressLine progress("measuring attention");
  Counter next;
  std::atomic<uint64_t> done = 0;
  pool.run([&](int worker) {
    for (int64_t job = next.claim(); job < jobs && !interrupted(); job = next.claim()) {
      const size_t format = static_cast<size_t>(job) / layers.size();
      const size_t layer = static_cast<size_t>(job) % layers.size();
      found[format][layer] =
          measure_kv_quality(layers[layer], *formats[format].k, *formats[format].v, options);
      ++done;
      if (worker == 0) progress.update(done, static_cast<uint64_t>(jobs));
    }
  });
  std::vector<AttentionFigures> out;
  if (interrupted()) return out;
  for (const auto& format : found) out.push_back(mean_of(format));
  return out;
}

}  // namespace braid::cli
