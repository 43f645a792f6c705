// engine.cpp -- the loop. See engine.h for its stages; setting up is in engine_setup.cpp.
#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace braid {
namespace {

double ms_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
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
  if (!std::is_sorted(request.checkpoints.begin(), request.checkpoints.end()))
    return bad("the checkpoint positions are not in ascending order");
  return braid::validate(request.sampling, config().vocabulary);
}

Result<RequestId> Engine::submit(Request request, Sink& sink) {
  const RequestId id = next_id_++;
  BRAID_TRY(submit_as(id, std::move(request), sink));
  return id;
}

Status Engine::submit_as(RequestId id, Request request, Sink& sink) {
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
  for (auto& s : scheduler_->remove_cancelled())
    finish(std::move(s), {FinishReason::cancelled, {}, {}, {}, {}});

  const Clock::time_point begin = Clock::now();
  Plan plan = scheduler_->plan(begin);
  if (plan.items.empty()) return !scheduler_->idle();
  propose(plan);

  const Batch batch = batch_->fill(plan);
  model_->forward(batch, cache_.memory(), batch_->has_uncertain());
  device_->synchronize();
  const Clock::time_point computed = Clock::now();
  const double logits_before_ms = stats_.logits_ms;

  outputs_ = batch.outputs;
  logits_count_ = 0;
  std::vector<Verdict> verdicts;
  for (const PlanItem& item : plan.items) verdicts.push_back(judge(item));
  fork(plan, verdicts);
  commit(batch, plan, verdicts);
  scheduler_->observe(plan, ms_between(begin, Clock::now()));

  stats_.forward_ms += ms_between(begin, computed);
  stats_.judge_ms += ms_between(computed, Clock::now()) - (stats_.logits_ms - logits_before_ms);
  ++stats_.steps;
  stats_.rows += static_cast<uint64_t>(batch.tokens);
  settle(plan, verdicts);
  return true;
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
    const Clock::time_point begin = Clock::now();
    model_->logits(logits_, logits_first_, logits_count_);
    if (logits_on_host_.data() != nullptr)
      device_->to_host(
          logits_on_host_.data(), logits_.data,
          static_cast<size_t>(logits_count_) * static_cast<size_t>(logits_.cols) * sizeof(float));
    device_->synchronize();
    stats_.logits_ms += ms_between(begin, Clock::now());
  }
  const auto* rows =
      static_cast<const float*>(logits_on_host_.data() != nullptr ? logits_on_host_.data() : logits_.data);
  return {rows + int64_t{output - logits_first_} * logits_.cols, static_cast<size_t>(logits_.cols)};
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

Verdict Engine::judge(const PlanItem& item) {
  report_scores(item);
  Verdict verdict;
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
  const int32_t last_output = item.first_output + item.outputs - drafts - 1;
  const Request& request = s.request;
  int32_t node = -1;
  while (true) {
    logits_row(last_output, 1 + drafts);  // the whole tree stays together
    const auto row = logits_row(last_output + 1 + node, 1);
    const int32_t id = s.sampler.next(request.mask ? masked(row, *request.mask) : row, scratch_);
    if (id < 0) {
      verdict.finished = true;
      verdict.end.reason = FinishReason::error;
      verdict.end.error =
          "the model's logits are not numbers: the weights are damaged or the computation overflowed";
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
      event.logprob = log_probability(row, id);
      event.top = top_log_probabilities(row, request.top_logprobs);
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

std::span<const float> Engine::masked(std::span<const float> row, TokenMask& mask) {
  std::fill(mask_bits_.begin(), mask_bits_.end(), 0);
  mask.allowed(mask_bits_);
  for (size_t id = 0; id < row.size(); ++id) {
    const bool allowed = (mask_bits_[id / 64] >> (id % 64) & 1) != 0;
    masked_logits_[id] = allowed ? row[id] : -INFINITY;
  }
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
    if (!prompt_done || verdicts[i].end.reason == FinishReason::error) continue;
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

void Engine::settle(const Plan& plan, std::span<Verdict> verdicts) {
  const Clock::time_point now = Clock::now();
  for (size_t i = 0; i < plan.items.size(); ++i) {
    Sequence& s = *plan.items[i].sequence;
    Verdict& verdict = verdicts[i];
    const bool was_prompt = s.generated() == static_cast<int32_t>(verdict.next.size());
    if (was_prompt) {
      s.first_token = now;
      s.sink->progress(s.id, std::min(s.held, s.prompt_tokens()), s.prompt_tokens());
    }
    s.last_token = now;
    for (const TokenEvent& event : verdict.events) s.sink->token(s.id, event);
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
  s->sink->finished(s->id, end);
}

}  // namespace braid
