// engine.cpp -- the loop. See engine.h for its stages; setting up is in engine_setup.cpp.
#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace braid {
namespace {

const char* const kNotNumbers =
    "the model's logits are not numbers: the weights are damaged or the computation overflowed";

// Neither infinite nor no number at all.
bool all_finite(const void* values, DType type, int64_t count) {
  int64_t bad = 0;
  if (type == DType::f32) {
    const auto* bits = static_cast<const uint32_t*>(values);
    for (int64_t i = 0; i < count; ++i) bad += (bits[i] & 0x7f800000u) == 0x7f800000u ? 1 : 0;
  } else {
    const uint16_t exponent = type == DType::f16 ? 0x7c00 : 0x7f80;
    const auto* bits = static_cast<const uint16_t*>(values);
    for (int64_t i = 0; i < count; ++i) bad += (bits[i] & exponent) == exponent ? 1 : 0;
  }
  return bad == 0;
}

double ms_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

// Sequences of a plain decoding step, rounded up so that few records serve all.
int32_t bucket_of(int32_t sequences, int32_t most) {
  int32_t step = 1;
  while (step * 8 <= sequences) step *= 2;
  return std::min((sequences + step - 1) / step * step, most);
}

}  // namespace

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::error:
      return "error";
  }
  return "error";
}

Status Engine::validate(const Request& request) const {
  const auto bad = [](const std::string& message) { return Error{ErrorKind::invalid_argument, message}; };
  if (request.prompt.empty()) return bad("the prompt has no tokens");
  // A request that only runs its prompt needs no room for an answer.
  const size_t longest = static_cast<size_t>(most_tokens()) - (request.max_tokens == 0 ? 0 : 1);
  if (request.prompt.size() > longest)
    return bad(fmt::format("the prompt has {} tokens; a context of {} leaves room for {}",
                           request.prompt.size(), most_tokens(), most_tokens() - 1));
  const auto in_vocabulary = [&](int32_t id) { return id >= 0 && id < config().vocabulary; };
  for (const int32_t id : request.prompt)
    if (!in_vocabulary(id))
      return bad(
          fmt::format("token {} of the prompt is outside the vocabulary of {}", id, config().vocabulary));
  if (request.max_tokens < -1)
    return bad(fmt::format("{} tokens to generate is impossible", request.max_tokens));
  if (!std::is_sorted(request.checkpoints.begin(), request.checkpoints.end(),
                      [](const ResumePoint& a, const ResumePoint& b) { return a.position < b.position; }))
    return bad("the checkpoint positions are not in ascending order");
  return braid::validate(request.sampling, config().vocabulary);
}

Result<RequestId> Engine::submit(Request request, Sink& sink) {
  const RequestId id = next_id_++;
  BRAID_TRY(submit_as(id, std::move(request), sink));
  return id;
}

Status Engine::submit_as(RequestId id, Request request, Sink& sink) {
  BRAID_TRY(health_);
  BRAID_TRY(validate(request));
  // Far more than any context; keeps sums of counts inside 32 bits.
  request.max_tokens = std::min(request.max_tokens, context_tokens());

  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  sequence->tokens = request.prompt;
  sequence->sampler = Sampler(request.sampling, request.prompt);
  std::string seed(reinterpret_cast<const char*>(&fingerprint_), sizeof fingerprint_);
  sequence->seed = seed_hash(seed + request.cache_salt);
  sequence->request = std::move(request);
  sequence->sink = &sink;
  sequence->submitted = Clock::now();
  scheduler_->enqueue(std::move(sequence));
  return {};
}

void Engine::cancel(RequestId id) {
  if (Sequence* s = scheduler_->find(id)) s->cancelled = true;
  news_.silence(id);
}

void Engine::cancel_all() {
  scheduler_->cancel_all();
  news_.silence_all();
}

void Engine::set_drafter(Drafter* drafter) {
  BRAID_CHECK(drafter == nullptr || options_.max_drafts > 0);
  drafter_ = drafter;
}

void Engine::run_until_idle() {
  while (step()) {
  }
}

bool Engine::step() {
  const bool more = turn();
  // The caller may wait now for as long as nobody asks anything.
  if (scheduler_->idle() && health_.ok()) scheduler_->all_queued_is_done();
  // While somebody runs, the next turn queues work before it does anything that takes long.
  if (!more || !late_news_ || scheduler_->running().empty()) news_.tell();
  return more;
}

bool Engine::turn() {
  if (pieces_ && pieces_->plan.items[0].sequence->cancelled) pieces_.reset();
  for (auto& s : scheduler_->remove_cancelled())
    finish(std::move(s), {FinishReason::cancelled, {}, {}, {}, {}});

  const Clock::time_point begin = Clock::now();
  Plan plan = scheduler_->plan(begin);
  if (pieces_ && pieces_->plan.items[0].sequence->under_way == 0) pieces_.reset();  // pushed out
  for (const auto& s : scheduler_->running()) announce(*s);
  if (!late_news_ || (plan.items.empty() && !pieces_)) news_.tell();
  if (!plan.items.empty() && !run_plan(plan, begin)) return false;
  if (plan.decoding > 0 || pieces_) return run_pieces(plan.decoding);
  return !plan.items.empty() || !scheduler_->idle();
}

// One step as a whole. False: the device has failed.
bool Engine::run_plan(Plan& plan, Clock::time_point begin) {
  propose(plan);
  Batch batch = batch_->fill(plan);
  const int32_t rows = batch.tokens;
  begin_outputs(plan, batch);
  if (options_.fault != EngineOptions::Fault::none && stats_.steps == options_.fault_step)
    device_->fail_on_purpose(options_.fault == EngineOptions::Fault::lasting);
  run(batch);
  const Clock::time_point queued = Clock::now();
  news_.tell();
  device_->synchronize();
  if (!device_works()) return false;
  const Clock::time_point computed = Clock::now();
  const int32_t prompt_tokens = plan.prompt_tokens;
  if (!end_step(batch, plan)) return false;
  const Clock::time_point end = Clock::now();
  const double ms = ms_between(begin, end);
  if (prompt_tokens == 0) {
    scheduler_->pacer().observe_step(plan.decoding, ms, disturbed_);
    disturbed_ = false;
  } else if (plan.decoding == 0) {
    scheduler_->pacer().observe_prompt(prompt_tokens, ms);
  }
  stats_.host_ms += ms_between(begin, queued) + ms_between(computed, end);
  ++stats_.steps;
  stats_.rows += static_cast<uint64_t>(rows);
  return true;
}

// What comes of the outputs: verdicts, then what sequences hold and clients will hear. False: the device has
// failed.
bool Engine::end_step(const Batch& batch, Plan& plan) {
  std::vector<Verdict> verdicts;
  for (const PlanItem& item : plan.items) verdicts.push_back(judge(item));
  fork(plan, verdicts);
  if (!device_works()) return false;  // whole rows of logits may have been computed and fetched since
  commit(batch, plan, verdicts);
  settle(plan, verdicts);
  return true;
}

// A prompt's chunk goes as far through the layers as the pacer leaves time between two steps of `decoding`
// sequences, and the next chunk after it; with nobody decoding to its end. True: there may be more to do.
bool Engine::run_pieces(int32_t decoding) {
  const Clock::time_point begin = Clock::now();
  Pacer& pacer = scheduler_->pacer();
  const double slice_ms = decoding > 0 ? pacer.slice_ms() : 1e30;
  while (true) {
    if (!pieces_) {
      if (decoding == 0 || !pacer.limits() || pieced_tokens_ == 0) return true;
      Plan plan = scheduler_->plan_pieces(pacer.chunk_rows(pieced_tokens_));
      if (plan.items.empty()) return true;
      Pieces& fresh = pieces_.emplace();
      fresh.plan = std::move(plan);
      fresh.batch = piece_batch_->fill(fresh.plan);
      piece_batch_->upload(fresh.batch);
    }
    Pieces& now = *pieces_;
    const StepCursor::Piece kind = now.at.next;
    const int32_t position = now.plan.items[0].sequence->held + now.at.row;
    const double spent_ms = ms_between(begin, Clock::now());
    int32_t rows = now.batch.tokens;
    if (kind == StepCursor::Piece::attention_rows) {
      const int32_t left = rows - now.at.row;
      rows = decoding == 0 ? left : pacer.attention_rows(position, slice_ms - spent_ms, left);
    }
    // One piece at least, or a prompt would never end beside very short steps.
    const bool moved = disturbed_;
    if (moved && spent_ms + pacer.piece_ms(kind, rows, position) > slice_ms) return true;
    const Batch part = kind == StepCursor::Piece::attention_rows
                           ? piece_batch_->part(now.batch, now.at.row, rows)
                           : now.batch;
    model_->forward_piece(now.at, now.batch, part, cache_.memory());
    news_.tell();
    device_->synchronize();
    if (!device_works()) return false;
    const double piece_ms = ms_between(begin, Clock::now()) - spent_ms;
    pacer.observe_piece(kind, rows, position, piece_ms);
    disturbed_ = true;
    if (!now.at.done) continue;
    begin_outputs(now.plan, now.batch);
    if (best_rows_ > 0) find_best(now.batch);
    device_->synchronize();
    if (!device_works()) return false;
    ++stats_.steps;
    stats_.rows += static_cast<uint64_t>(now.batch.tokens);
    Pieces ended = std::move(now);
    pieces_.reset();
    if (!end_step(ended.batch, ended.plan)) return false;
  }
}

// Where no row's logits are wanted, those that are only to be judged need no product with the output matrix.
void Engine::begin_outputs(const Plan& plan, const Batch& batch) {
  outputs_ = batch.outputs;
  logits_count_ = 0;
  row_held_ = -1;
  const bool wanted = std::any_of(plan.items.begin(), plan.items.end(), [](const PlanItem& item) {
    return item.wants_next || item.sequence->request.score;
  });
  best_rows_ = best_count_ > 0 && wanted && batch.outputs <= logits_.rows ? batch.outputs : 0;
  if (best_rows_ == 0) return;
  logits_first_ = 0;
  logits_count_ = batch.outputs;
}

void Engine::find_best(const Batch& batch) {
  const int32_t rows = batch.outputs;
  model_->logits(logits_, 0, rows);
  device_->ops().top_k(best_values_.top(rows), best_ids_.top(rows), best_sums_.top(rows), logits_.top(rows));
  device_->to_host(best_on_host_.data(), best_memory_.data(), best_on_host_.size_bytes());
}

void Engine::enqueue(const Batch& batch) {
  batch_->upload(batch);
  model_->forward(batch, cache_.memory(), batch_->has_uncertain());
  if (best_rows_ > 0) find_best(batch);
}

// A device with its own memory leaves the best logits of every row on the host. Its plain decoding steps are
// padded to a bucket, recorded the second time (whatever a kernel sets up once must not be recorded), and
// replayed from then on.
void Engine::run(Batch& batch) {
  if (best_rows_ == 0) return enqueue(batch);
  if (!batch_->plain_decode() || model_->observed()) return enqueue(batch);
  const int32_t rows = bucket_of(batch.sequences, options_.max_sequences);
  batch_->pad(batch, rows);
  const auto key = static_cast<uint64_t>(rows);
  if (!device_->has_record(key) && !warmed_up_.insert(rows).second && device_->begin_record()) {
    enqueue(batch);
    if (const Status recorded = device_->end_record(key); !recorded.ok()) return fail_all(recorded.error());
  }
  if (device_->has_record(key)) {
    device_->replay(key);
  } else {
    enqueue(batch);
  }
}

bool Engine::device_works() {
  if (const Status health = device_->health(); health_.ok() && !health.ok()) fail_all(health.error());
  return health_.ok();
}

// The device is of no use any more: nobody gets another token from it.
void Engine::fail_all(const Error& error) {
  health_ = error;
  pieces_.reset();
  for (auto& s : scheduler_->remove_all())
    finish(std::move(s), {FinishReason::error, {}, error.message, {}, {}});
}

std::optional<TopLogits> Engine::best_of(int32_t output) const {
  if (output >= best_rows_) return std::nullopt;
  const auto* base = static_cast<const float*>(best_on_host_.data());
  const int64_t values = logits_.rows * best_count_;
  const auto count = static_cast<size_t>(best_count_);
  TopLogits top;
  top.values = {base + int64_t{output} * best_count_, count};
  top.ids = {reinterpret_cast<const int32_t*>(base + values) + int64_t{output} * best_count_, count};
  top.log_sum = base[2 * values + output];
  return top;
}

void Engine::propose(Plan& plan) {
  if (drafter_ == nullptr) return;
  drafter_->propose(plan, max_rows_ - plan.rows());
  for (PlanItem& item : plan.items) {
    Sequence& s = *item.sequence;
    BRAID_CHECK(item.drafts.empty() || item.wants_next);
    BRAID_CHECK(static_cast<int32_t>(item.drafts.size()) <= options_.max_drafts);
    // Nobody makes room for guesses.
    if (!item.drafts.empty() && !scheduler_->grow(s, s.held + item.rows())) item.drafts.clear();
    stats_.drafted += item.drafts.size();
  }
}

std::span<const float> Engine::logits_row(int32_t output, int32_t together) {
  BRAID_CHECK(together <= logits_.rows && output + together <= outputs_);
  if (output < logits_first_ || output + together > logits_first_ + logits_count_) {
    logits_first_ = output;
    logits_count_ = std::min(static_cast<int32_t>(logits_.rows), outputs_ - output);
    model_->logits(logits_, logits_first_, logits_count_);
    device_->synchronize();
  }
  const auto width = static_cast<size_t>(logits_.cols);
  float* row = static_cast<float*>(logits_.data) + int64_t{output - logits_first_} * logits_.stride;
  if (row_on_host_.data() == nullptr) return {row, width};
  if (row_held_ != output) {
    device_->to_host(row_on_host_.data(), row, width * sizeof(float));
    device_->synchronize();
    row_held_ = output;
  }
  return {static_cast<const float*>(row_on_host_.data()), width};
}

void Engine::report_scores(const PlanItem& item) {
  Sequence& s = *item.sequence;
  if (!s.request.score) return;
  const int32_t end = std::min(s.held + item.certain, s.prompt_tokens());
  int32_t output = item.first_output;
  // What was reported before a preemption is run again, but not reported again.
  for (int32_t p = std::max({s.held, s.request.score_from, s.scored}); p < end; ++p)
    s.request.score(p, logits_row(output++, 1));
  s.scored = std::max(s.scored, end);
}

// Whether logits of this output row are numbers: as the device found them, or from the row that they are made
// of.
bool Engine::is_sound(int32_t output) {
  if (const auto best = best_of(output)) return std::isfinite(best->values[0]);
  const Tensor row = model_->output_hidden().middle(output, 1);
  const void* values = row.data;
  if (row_on_host_.data() != nullptr) {
    device_->to_host(row_on_host_.data(), row.data, static_cast<size_t>(row.cols) * size_bytes(row.type));
    device_->synchronize();
    row_held_ = -1;
    values = row_on_host_.data();
  }
  return all_finite(values, row.type, row.cols);
}

Verdict Engine::judge(const PlanItem& item) {
  Verdict verdict;
  verdict.failed = !is_sound(item.last_output());
  if (item.sequence->cancelled) {  // while the device worked: nothing more is said
    verdict.finished = true;
    verdict.end.reason = FinishReason::cancelled;
    return verdict;
  }
  if (verdict.failed) {
    verdict.finished = true;
    verdict.end.reason = FinishReason::error;
    verdict.end.error = kNotNumbers;
    return verdict;
  }
  report_scores(item);
  if (item.wants_next) {
    judge_path(item, verdict);
  } else if (item.certain == item.sequence->pending()) {  // only the prompt was asked for
    verdict.finished = true;
    verdict.end.reason = FinishReason::length;
  }
  return verdict;
}

// Draws what comes next; while a draft says the same, the draft's own row decides what follows it. Exact for
// greedy and for sampling: every token is drawn from the model's distribution at its own row.
void Engine::judge_path(const PlanItem& item, Verdict& verdict) {
  Sequence& s = *item.sequence;
  const auto drafts = static_cast<int32_t>(item.drafts.size());
  const int32_t last_output = item.last_output();
  const Request& request = s.request;
  int32_t node = -1;
  while (true) {
    const int32_t output = last_output + 1 + node;
    // The best logits decide mostly; else the whole row.
    std::optional<TopLogits> best = best_of(output);
    if (best && request.top_logprobs > best_count_) best.reset();
    const std::span<const uint64_t> allowed = allowed_by(request.mask.get());
    std::span<const float> row;
    std::optional<int32_t> drawn;
    if (best) drawn = s.sampler.next(*best, allowed, scratch_);
    if (!drawn) {
      best.reset();
      logits_row(last_output, 1 + drafts);  // the whole tree stays together
      row = logits_row(output, 1);
      drawn = s.sampler.next(allowed.empty() ? row : masked(row, allowed), scratch_);
    }
    const int32_t id = *drawn;
    if (id < 0) {
      verdict.finished = true;
      verdict.end.reason = FinishReason::error;
      verdict.end.error = why_no_token(output, allowed, verdict);
      return;
    }
    s.sampler.accept(id);
    if (request.mask) request.mask->advance(id);
    verdict.next.push_back(id);
    if (std::find(request.stop_ids.begin(), request.stop_ids.end(), id) != request.stop_ids.end()) {
      verdict.finished = true;
      verdict.end.reason = FinishReason::stop;
      verdict.end.stop_id = id;
      return;
    }
    TokenEvent& event = verdict.events.emplace_back();
    event.id = id;
    if (request.top_logprobs >= 0) {
      event.logprob = best ? log_probability(*best, id) : log_probability(row, id);
      event.top = best ? top_log_probabilities(*best, request.top_logprobs)
                       : top_log_probabilities(row, request.top_logprobs);
    }
    const auto made = static_cast<int64_t>(s.generated()) + static_cast<int64_t>(verdict.next.size());
    const bool enough = request.max_tokens >= 0 && made >= request.max_tokens;
    if (enough || s.prompt_tokens() + made >= most_tokens()) {
      verdict.finished = true;
      verdict.end.reason = FinishReason::length;
      return;
    }
    const auto child = std::find_if(item.drafts.begin(), item.drafts.end(),
                                    [&](const Draft& d) { return d.parent == node && d.token == id; });
    if (child == item.drafts.end()) return;
    node = static_cast<int32_t>(child - item.drafts.begin());
    verdict.accepted.push_back(node);
  }
}

// The sampler found none.
std::string Engine::why_no_token(int32_t output, std::span<const uint64_t> allowed, Verdict& verdict) {
  const std::span<const float> row = logits_row(output, 1);
  verdict.failed = std::none_of(row.begin(), row.end(), [](float x) { return x > -INFINITY; });
  if (verdict.failed) return kNotNumbers;
  const bool masked = std::all_of(allowed.begin(), allowed.end(), [](uint64_t word) { return word == 0; });
  if (!allowed.empty() && masked) return "the form of the answer (its token mask) allows no token here";
  return "the logit bias excludes every token that may come here";
}

// Bits of the ids that may come next; empty: all.
std::span<const uint64_t> Engine::allowed_by(TokenMask* mask) {
  if (mask == nullptr) return {};
  if (const auto few = mask->all_but()) {
    if (few->empty()) return {};
    const auto bit = [](int32_t id) { return uint64_t{1} << (id % 64); };
    for (const int32_t id : closed_) open_bits_[static_cast<size_t>(id) / 64] |= bit(id);
    closed_.assign(few->begin(), few->end());
    for (const int32_t id : closed_) open_bits_[static_cast<size_t>(id) / 64] &= ~bit(id);
    return open_bits_;
  }
  std::fill(mask_bits_.begin(), mask_bits_.end(), 0);
  mask->allowed(mask_bits_);
  return mask_bits_;
}

std::span<const float> Engine::masked(std::span<const float> row, std::span<const uint64_t> allowed) {
  for (size_t id = 0; id < row.size(); ++id)
    masked_logits_[id] = (allowed[id / 64] >> (id % 64) & 1) != 0 ? row[id] : -INFINITY;
  return masked_logits_;
}

// Sequences that wait with the prompt of one whose prompt has just been run go on from the same row of
// logits.
void Engine::fork(Plan& plan, std::vector<Verdict>& verdicts) {
  const size_t planned = plan.items.size();
  for (size_t i = 0; i < planned; ++i) {
    const PlanItem item = plan.items[i];
    const Sequence& s = *item.sequence;
    const bool prompt_done =
        item.wants_next && item.drafts.empty() && s.held + item.certain == s.prompt_tokens();
    if (!prompt_done || verdicts[i].failed) continue;
    for (Sequence* twin : scheduler_->fork(*item.sequence)) {
      PlanItem forked = item;
      forked.sequence = twin;
      forked.certain = 0;  // nothing of it was run: it holds what the other holds
      plan.items.push_back(forked);
      verdicts.push_back(judge(forked));
    }
  }
}

void Engine::commit(const Batch& batch, const Plan& plan, std::span<const Verdict> verdicts) {
  std::vector<std::vector<int32_t>> rows(plan.items.size());
  std::vector<AcceptedPath> paths;
  std::vector<CellMove> moves;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const PlanItem& item = plan.items[i];
    if (verdicts[i].failed) continue;
    const int32_t context = item.sequence->held + item.certain;
    for (size_t n = 0; n < verdicts[i].accepted.size(); ++n) {
      const int32_t draft = verdicts[i].accepted[n];
      rows[i].push_back(item.first_row + item.certain + draft);
      // Drafts lie in cells in the order they were proposed; the path moves down to its positions.
      if (draft != static_cast<int32_t>(n))
        moves.push_back({static_cast<int32_t>(i), context + draft, context + static_cast<int32_t>(n)});
    }
    if (!rows[i].empty())
      paths.push_back({item.sequence->slot, static_cast<int32_t>(rows[i].size()), context, rows[i].data()});
  }
  Ops& ops = device_->ops();
  const SequenceMemory memory = cache_.memory();
  if (!paths.empty())
    for (size_t l = 0; l < memory.delta.size(); ++l)
      ops.delta_commit(memory.delta[l], memory.journals[l], paths);
  if (!moves.empty())
    for (const KvLayer& kv : memory.kv) ops.kv_move(kv, moves, batch);

  for (size_t i = 0; i < plan.items.size(); ++i) {
    const PlanItem& item = plan.items[i];
    const Verdict& verdict = verdicts[i];
    Sequence& s = *item.sequence;
    if (verdict.failed) {
      s.under_way = item.rows();  // what it held before stays, and is all that may be found
      continue;
    }
    stats_.prompt_rows += static_cast<uint64_t>(std::clamp(s.prompt_tokens() - s.held, 0, item.certain));
    stats_.generated += verdict.next.size();
    stats_.accepted += verdict.accepted.size();
    s.held += item.certain + static_cast<int32_t>(verdict.accepted.size());
    s.tokens.insert(s.tokens.end(), verdict.next.begin(), verdict.next.end());
    scheduler_->blocks().truncate(s.blocks, s.held);
    scheduler_->committed(s);
  }
  if (drafter_ != nullptr) drafter_->observe(plan, verdicts);
}

void Engine::announce(Sequence& s) {
  if (std::exchange(s.announced, true)) return;
  News& news = news_.add(s.id, *s.sink);
  news.cached_tokens = s.cached;
}

void Engine::settle(const Plan& plan, std::span<Verdict> verdicts) {
  const Clock::time_point now = Clock::now();
  for (size_t i = 0; i < plan.items.size(); ++i) {
    Sequence& s = *plan.items[i].sequence;
    Verdict& verdict = verdicts[i];
    announce(s);                                   // forked just now
    if (s.cancelled && !verdict.events.empty()) {  // by another's sink, after it was judged
      verdict.events.clear();
      verdict.finished = true;
      verdict.end.reason = FinishReason::cancelled;
    }
    News& news = news_.add(s.id, *s.sink);
    const bool was_prompt = s.generated() == static_cast<int32_t>(verdict.next.size());
    if (was_prompt) {
      s.first_token = now;
      news.prompt_done = std::min(s.held, s.prompt_tokens());
      news.prompt_total = s.prompt_tokens();
    }
    s.last_token = now;
    news.tokens = std::move(verdict.events);
    if (!verdict.finished) continue;
    const bool keep = verdict.end.reason != FinishReason::error;
    finish(scheduler_->remove(&s, keep), std::move(verdict.end));
  }
}

void Engine::finish(std::unique_ptr<Sequence> s, Finished end) {
  end.usage.prompt_tokens = s->prompt_tokens();
  end.usage.cached_tokens = s->cached;
  end.usage.generated_tokens = s->generated();
  if (s->started != Clock::time_point()) {
    end.timings.queue_ms = ms_between(s->submitted, s->started);
    if (s->first_token != Clock::time_point()) {
      end.timings.prompt_ms = ms_between(s->started, s->first_token);
      end.timings.generation_ms = ms_between(s->first_token, s->last_token);
    }
  }
  news_.add(s->id, *s->sink).end = std::move(end);
}

}  // namespace braid
