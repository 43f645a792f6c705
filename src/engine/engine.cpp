// engine.cpp -- see engine.h; setup is in engine_setup.cpp.
#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <bitset>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>

namespace braid {
namespace {

// Delay before masks are checked again.
constexpr std::chrono::microseconds kMaskPatience(200);
constexpr int32_t kMostThatDraft = 8;

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
  const auto bad = [](const std::string& message) {
    return Error{ErrorKind::invalid_argument, message};
  };
  if (request.prompt.empty()) return bad("the prompt has no tokens");
  const size_t longest = static_cast<size_t>(most_tokens()) - (request.max_tokens == 0 ? 0 : 1);
  if (request.prompt.size() > longest)
    return bad(fmt::format("the prompt has {} tokens; a context of {} leaves room for {}",
                           request.prompt.size(), most_tokens(), most_tokens() - 1));
  const auto in_vocabulary = [&](int32_t id) { return id >= 0 && id < config().vocabulary; };
  for (const int32_t id : request.prompt)
    if (!in_vocabulary(id))
      return bad(fmt::format("token {} of the prompt is outside the vocabulary of {}", id,
                             config().vocabulary));
  if (request.max_tokens < -1)
    return bad(fmt::format("{} tokens to generate is impossible", request.max_tokens));
  if (!std::is_sorted(
          request.checkpoints.begin(), request.checkpoints.end(),
          [](const ResumePoint& a, const ResumePoint& b) { return a.position < b.position; }))
    return bad("the checkpoint positions are not in ascending order");
  return braid::validate(request.sampling, config().vocabulary);
}

Result<RequestId> Engine::submit(Request request, Sink& sink) {
  const RequestId id = next_id_++;
  BRAID_ASSIGN(std::unique_ptr<Sequence> sequence, prepare(std::move(request)));
  BRAID_TRY(submit_as(id, std::move(sequence), sink));
  return id;
}

Result<std::unique_ptr<Sequence>> Engine::prepare(Request request) const {
  BRAID_TRY(validate(request));
  // Keeps sums of counts inside 32 bits.
  request.max_tokens = std::min(request.max_tokens, context_tokens());

  auto sequence = std::make_unique<Sequence>();
  sequence->tokens = request.prompt;
  sequence->sampler = Sampler(request.sampling, request.prompt);
  std::string seed(reinterpret_cast<const char*>(&fingerprint_), sizeof fingerprint_);
  sequence->prefix.seed = seed_hash(seed + request.cache_salt, secret_);
  sequence->extend_hashes();
  sequence->request = std::move(request);
  sequence->times.submitted = Clock::now();
  return sequence;
}

Status Engine::submit_as(RequestId id, std::unique_ptr<Sequence> sequence, Sink& sink) {
  BRAID_TRY(health_);
  sequence->id = id;
  sequence->sink = &sink;
  scheduler_->enqueue(std::move(sequence));
  return {};
}

void Engine::cancel(RequestId id) {
  if (Sequence* s = scheduler_->find(id)) s->cancelled = true;
  events_.silence(id);
}

void Engine::cancel_all() {
  scheduler_->cancel_all();
  events_.silence_all();
}

void Engine::set_drafter(Drafter* drafter) {
  BRAID_CHECK(drafter == nullptr || options_.max_drafts > 0);
  drafter_ = drafter;
}

void Engine::set_oracle(Oracle* oracle) {
  judge_->set_oracle(oracle);
  if (own_drafter_) own_drafter_->set_oracle(oracle);
}

void Engine::fill_prompts_from(int32_t tokens) {
  BRAID_CHECK(tokens >= 0 && tokens % kBlockTokens == 0);
  filled_from_ = tokens;
}

void Engine::run_until_idle() {
  while (step()) {
  }
}

bool Engine::step_beside(double slice_ms) {
  BRAID_CHECK(options_.beside_another);
  scheduler_->pacer().set_outer_slice_ms(slice_ms);
  disturbed_ = false;
  const bool more = step();
  scheduler_->pacer().set_outer_slice_ms(-1);
  return more;
}

double Engine::slice_for_others_ms(double share) {
  Pacer& pacer = scheduler_->pacer();
  const auto decodes = [this](const auto& s) { return scheduler_->goes_by_rows(*s); };
  const auto running = scheduler_->running();
  if (!pacer.limits() || std::none_of(running.begin(), running.end(), decodes))
    return std::numeric_limits<double>::infinity();
  pacer.set_share(1);
  const double slice_ms = pacer.slice_ms();
  const bool prompts = !std::all_of(running.begin(), running.end(), decodes);
  pacer.set_share(prompts ? share : 1);
  return prompts ? (1 - share) * slice_ms : slice_ms;
}

bool Engine::step() {
  const bool more = turn();
  // While sequences run, the next turn first queues work and then delivers events.
  if (!more || !late_events_ || scheduler_->running().empty()) events_.deliver();
  // The caller may now block until a request arrives.
  if (scheduler_->idle() && health_.ok()) scheduler_->all_queued_is_done();
  return more;
}

bool Engine::turn() {
  if (interleaved_ && interleaved_->plan.items[0].sequence->cancelled) interleaved_.reset();
  for (auto& s : scheduler_->remove_cancelled())
    finish(std::move(s), {FinishReason::cancelled, {}, {}, {}, {}});

  const int32_t groups = drafts() ? 1 : memory_.slots;
  const Clock::time_point begin = Clock::now();
  StepPlan plan;
  if (in_flight_.empty()) plan = scheduler_->plan(begin, groups);
  if (filled_from_ > 0) fill_prompts(plan);
  if (interleaved_ && interleaved_->plan.items[0].sequence->in_flight_tokens == 0)
    interleaved_.reset();  // preempted
  for (const auto& s : scheduler_->running()) announce(*s);
  const bool whole = !plan.items.empty() || !in_flight_.empty();
  const int32_t answering = plan.answering + (scheduler_->pacer().has_outer_slice() ? 1 : 0);
  const bool awaits_masks = plan.awaits_masks;
  if (!late_events_ || (!whole && !interleaved_)) events_.deliver();
  if (!plan.items.empty()) queue(std::move(plan), begin);
  while (goes_ahead()) {
    const Clock::time_point begin_ahead = Clock::now();
    StepPlan next = scheduler_->plan_ahead(groups);
    if (filled_from_ > 0) fill_prompts(next);
    if (next.items.empty()) break;
    queue(std::move(next), begin_ahead);
  }
  // Without a step, a failed copy must still be noticed: sequences wait for it.
  if (in_flight_.empty() ? !device_works() : !end_oldest()) return false;
  if (!in_flight_.empty()) return true;
  const bool prompt_before = interleaved_.has_value();
  if ((answering > 0 || prompt_before) && !run_interleaved(answering)) return false;
  if (!whole && awaits_masks && !prompt_before && !interleaved_)
    std::this_thread::sleep_for(kMaskPatience);
  return whole || !scheduler_->idle();
}

// With few sequences drafts gain more than groups that alternate, and a drafter waits for the last
// stage. Whether a step drafts is decided while no other runs.
bool Engine::drafts() const {
  return drafter_ != nullptr &&
         (memory_.slots == 1 || std::ssize(scheduler_->running()) <= kMostThatDraft);
}

// Whether a step may be planned and queued now, beside those that run.
bool Engine::goes_ahead() const {
  if (in_flight_.empty() || std::ssize(in_flight_) == memory_.slots) return false;
  if (interleaved_ || scheduler_->wants_rest()) return false;
  return !drafts() || std::all_of(in_flight_.begin(), in_flight_.end(),
                                  [](const Step& step) { return step.plan.decoding == 0; });
}

void Engine::queue(StepPlan&& plan, Clock::time_point begin) {
  Step& step = in_flight_.emplace_back();
  step.plan = std::move(plan);
  step.begin = begin;
  const auto is_taken = [&](int32_t slot) {
    return std::any_of(in_flight_.begin(), in_flight_.end() - 1,
                       [&](const Step& other) { return other.slot == slot; });
  };
  while (is_taken(step.slot)) ++step.slot;
  stats_.ahead += in_flight_.size() > 1 ? 1 : 0;
  step.planned = Clock::now();
  step.may_draft = drafts() && in_flight_.size() == 1;
  propose(step);
  step.proposed = Clock::now();
  if (options_.hooks.fault != TestHooks::Fault::none && stats_.steps == options_.hooks.fault_step)
    devices_->at(options_.hooks.fault_device)
        .fail_on_purpose(options_.hooks.fault == TestHooks::Fault::lasting);
  Scheduler::queued(step.plan);
  const Status queued = runner_->queue(step);
  step.queued = Clock::now();
  if (!queued.ok()) fail_all(queued.error());
}

// Waits for the oldest step. False: the device has failed.
bool Engine::end_oldest() {
  events_.deliver();
  Step step = std::move(in_flight_.front());
  in_flight_.pop_front();
  devices_->wait_for(step.end);
  if (!device_works()) return false;
  const Clock::time_point computed = Clock::now();
  const int32_t prompt_tokens = step.plan.prompt_tokens;
  const bool verified = std::any_of(step.plan.items.begin(), step.plan.items.end(),
                                    [](const StepItem& item) { return !item.drafts.empty(); });
  Scheduler::ended(step.plan);
  outputs_.select(step.slot);
  if (!end_step(step)) return false;
  const Clock::time_point end = Clock::now();
  if (prompt_tokens == 0) {
    scheduler_->pacer().observe_step(step.plan.decoding, ms_between(step.begin, end), disturbed_);
    disturbed_ = false;
  } else if (step.plan.decoding == 0) {
    scheduler_->pacer().observe_prompt(prompt_tokens,
                                       ms_between(std::max(step.begin, last_end_), end));
  }
  last_end_ = end;
  const bool runs_later = devices_->traits().asynchronous && !devices_->mixed();
  const Clock::time_point started = runs_later ? step.queued : step.proposed;
  stats_.drafts.draft_ms += ms_between(step.planned, step.proposed);
  (verified ? stats_.drafts.verify_ms : stats_.drafts.plain_ms) += ms_between(started, computed);
  stats_.drafts.host_ms += ms_between(step.begin, step.planned) +
                           ms_between(step.proposed, started) + ms_between(computed, end);
  return true;
}

// Tokens of `s` from a position on are not judged: cells and state are unknown from there.
void Engine::withdraw(Sequence& s, int32_t from) {
  for (Step& step : in_flight_)
    std::erase_if(step.plan.items, [&](const StepItem& item) { return item.sequence == &s; });
  Scheduler::withdraw(s, from);
}

bool Engine::run_interleaved(int32_t answering) {
  Pacer& pacer = scheduler_->pacer();
  StepRunner::Slice slice;
  slice.begin = Clock::now();
  slice.others_decode = answering > 0;
  slice.ms = answering > 0 ? pacer.slice_ms() : 1e30;
  slice.disturbed = &disturbed_;
  slice.while_working = [this] { events_.deliver(); };
  while (true) {
    if (!interleaved_) {
      if (answering == 0 || !pacer.limits() || memory_.interleaved_tokens == 0) return true;
      StepPlan plan = scheduler_->plan_interleaved(pacer.chunk_rows(memory_.interleaved_tokens));
      if (plan.items.empty()) return true;
      interleaved_.emplace().plan = std::move(plan);
      runner_->begin_interleaved(*interleaved_);
    }
    const Clock::time_point begin = Clock::now();
    const bool ended = runner_->advance(*interleaved_, slice, pacer);
    if (!device_works()) return false;
    if (DraftBudget* b = budget())
      b->observe_other(ms_between(begin, Clock::now()), model_->take_catch_up_ms());
    if (!ended) return true;
    Step step = std::move(*interleaved_);
    interleaved_.reset();
    if (!end_step(step)) return false;
  }
}

bool Engine::end_step(Step& step) {
  ++stats_.steps;
  stats_.rows += static_cast<uint64_t>(step.plan.rows());
  verdicts_.clear();
  judge_->begin_step();
  judge_->judge(step.plan.items, verdicts_);
  fork(step.plan, verdicts_);
  if (!device_works()) return false;  // the judge may have fetched rows of logits
  commit(step, verdicts_);
  settle(step.plan, verdicts_);
  return true;
}

bool Engine::device_works() {
  if (const Status health = devices_->health(); health_.ok() && !health.ok())
    fail_all(health.error());
  return health_.ok();
}

void Engine::fail_all(const Error& error) {
  health_ = error;
  model_->stop();
  in_flight_.clear();
  interleaved_.reset();
  for (auto& s : scheduler_->remove_all())
    finish(std::move(s), {FinishReason::error, {}, error.message, {}, {}});
}

// Removes the prompts to fill from the plan and fills them, chunk by chunk, up to the last chunk.
void Engine::fill_prompts(StepPlan& plan) {
  std::erase_if(plan.items, [&](const StepItem& item) {
    Sequence& s = *item.sequence;
    const int32_t begin = s.computed_tokens;
    int32_t end = begin + item.certain;
    const bool is_asked_for = s.request.use_cache || s.request.score;
    if (is_asked_for || begin < filled_from_ || end >= s.prompt_tokens()) return false;
    do {
      fill_blocks(s);
      s.sealed_blocks = end / kBlockTokens;
      s.computed_tokens = end;
      scheduler_->committed(s, s.computed_tokens);
      end += item.certain;
      // A prompt's last token never runs alone (Scheduler::chunk).
    } while (s.prompt_tokens() - end >= 2 && scheduler_->grow(s, end));
    memory_.cache.move_state(s.slot, begin, s.computed_tokens);
    plan.prompt_tokens -= item.certain;
    return true;
  });
}

// Blocks after the computed tokens repeat computed ones. Where group 1 has released these, the
// previous block is copied, or zeros if it is gone too (a KV tail of 0).
void Engine::fill_blocks(const Sequence& s) {
  const auto computed_blocks = static_cast<size_t>(filled_from_ / kBlockTokens);
  const auto first = static_cast<size_t>(s.computed_tokens / kBlockTokens);
  for (int32_t g = 0; g < kKvGroups; ++g) {
    const BlockTable& blocks = s.blocks[g];
    for (size_t i = first; i < blocks.size(); ++i) {
      int32_t from = blocks[i % computed_blocks];
      if (from == kGone) from = blocks[first - 1];
      if (from != kGone) {
        memory_.cache.copy_image(g, blocks[i], from);
      } else {
        memory_.cache.clear_blocks(g, {&blocks[i], 1});
      }
    }
  }
}

void Engine::propose(Step& step) {
  if (!step.may_draft) return;
  StepPlan& plan = step.plan;
  for (StepItem& item : plan.items) {
    const Sequence& s = *item.sequence;
    // A prompt's last row gets no drafts, since forks use it; -1 for the model's own token.
    const int32_t left =
        s.request.max_tokens < 0 ? most_tokens() : s.request.max_tokens - s.generated() - 1;
    const int32_t room =
        std::min(left, scheduler_->tokens_to_checkpoint(s, s.computed_tokens + item.certain));
    item.draft_depth =
        item.wants_next && s.decoding() ? std::clamp(room, 0, options_.draft_depth) : 0;
    item.draft_count = options_.max_drafts;
  }
  draft(plan);
  for (StepItem& item : plan.items) {
    Sequence& s = *item.sequence;
    BRAID_CHECK(item.drafts.empty() || item.wants_next);
    BRAID_CHECK(static_cast<int32_t>(item.drafts.size()) <= options_.max_drafts);
    // Drafts never cause a preemption.
    if (!item.drafts.empty() && !scheduler_->grow(s, s.computed_tokens + item.rows()))
      item.drafts.clear();
    if (!item.drafts.empty()) count_drafts(item);
  }
}

void Engine::count_drafts(const StepItem& item) {
  ++stats_.drafts.rounds;
  stats_.drafted += item.drafts.size();
  boost::container::small_vector<size_t, 16> depths;
  std::array<std::bitset<DraftCounts::kDepths>, kDraftSources> seen;
  for (const Draft& draft : item.drafts) {
    depths.push_back(draft.parent < 0 ? 0 : depths[static_cast<size_t>(draft.parent)] + 1);
    const auto source = static_cast<size_t>(draft.source);
    const size_t depth = std::min(depths.back(), DraftCounts::kDepths - 1);
    DraftCounts& counts = stats_.drafts.by_source[source];
    ++counts.drafted[depth];
    if (!seen[source][depth]) ++counts.rounds[depth];
    seen[source].set(depth);
  }
}

void Engine::count_accepted(const StepItem& item, const Verdict& verdict) {
  stats_.accepted += verdict.accepted.size();
  for (size_t depth = 0; depth < verdict.accepted.size(); ++depth) {
    const Draft& draft = item.drafts[static_cast<size_t>(verdict.accepted[depth])];
    DraftCounts& counts = stats_.drafts.by_source[static_cast<size_t>(draft.source)];
    ++counts.accepted[std::min(depth, DraftCounts::kDepths - 1)];
  }
}

void Engine::draft(StepPlan& plan) {
  DraftBudget* const budget = this->budget();
  const bool admitted = budget == nullptr || budget->admit(plan);
  // A recorded step cannot switch catching up on or off, so a GPU always catches up.
  if (budget != nullptr) model_->catch_up(budget->catches_up() || devices_->traits().records);
  if (!admitted) return;
  const Clock::time_point begin = Clock::now();
  drafter_->propose(plan, memory_.max_rows - plan.rows());
  for (StepItem& item : plan.items)
    for (Draft& draft : item.drafts)
      if (draft.source == DraftSource::other) draft.source = drafter_->source();
  if (budget == nullptr) return;
  const double drafting_ms = ms_between(begin, Clock::now());
  budget->cut(plan, std::max(0.0, drafting_ms - take_making_ms()));
}

// Sequences that wait with an equal prompt continue from the same row of logits.
void Engine::fork(StepPlan& plan, std::vector<Verdict>& verdicts) {
  const size_t planned = plan.items.size();
  for (size_t i = 0; i < planned; ++i) {
    const StepItem item = plan.items[i];
    const Sequence& s = *item.sequence;
    const bool prompt_done =
        item.wants_next && item.drafts.empty() && item.end_position() == s.prompt_tokens();
    if (!prompt_done || verdicts[i].failed) continue;
    for (Sequence* twin : scheduler_->fork(*item.sequence)) {
      StepItem forked = item;
      forked.sequence = twin;
      forked.first_position = item.end_position();
      forked.certain = 0;  // it holds the same computed tokens
      plan.items.push_back(forked);
    }
  }
  judge_->judge(std::span(plan.items).subspan(planned), verdicts);
}

// Accepted drafts lie in cells in proposal order; the accepted path moves to its own positions.
void Engine::commit_drafts(const Step& step, std::span<const Verdict> verdicts) {
  const StepPlan& plan = step.plan;
  std::vector<CellMove> moves;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const StepItem& item = plan.items[i];
    if (verdicts[i].failed) continue;
    const int32_t context = item.end_position();
    for (int32_t n = 0; n < std::ssize(verdicts[i].accepted); ++n)
      if (const int32_t draft = verdicts[i].accepted[static_cast<size_t>(n)]; draft != n)
        moves.push_back({item.index, context + draft, context + n});
  }
  if (moves.empty()) return;
  const auto batch_on = [&](int32_t device) {
    return step.batch_for(devices_->at(device)).on_device(device);
  };
  for (const SequenceMemory& memory : memory_.cache.memories()) {
    for (size_t first = 0, end = 0; first < memory.delta.size(); first = end) {
      const int32_t device = memory.delta[first].device;
      while (end < memory.delta.size() && memory.delta[end].device == device) ++end;
      devices_->at(device).ops().delta_move(memory.delta.subspan(first, end - first), moves,
                                            batch_on(device));
    }
    if (memory.hidden)
      devices_->last().ops().hidden_move(memory.hidden, moves, batch_on(devices_->last_index()));
    for (const KvLayer& kv : memory.kv)
      devices_->at(kv.device).ops().kv_move(kv, moves, batch_on(kv.device).of_group(kv.group));
  }
}

double Engine::take_making_ms() {
  double ms = 0;
  for (Records& records : records_) ms += records.take_making_ms();
  return ms;
}

void Engine::commit(const Step& step, std::span<const Verdict> verdicts) {
  const StepPlan& plan = step.plan;
  commit_drafts(step, verdicts);
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const StepItem& item = plan.items[i];
    const Verdict& verdict = verdicts[i];
    Sequence& s = *item.sequence;
    if (verdict.failed) {  // only the tokens before this step remain valid
      if (s.computed_tokens == item.first_position) s.queued_tokens = item.rows();
      withdraw(s, item.first_position);
      continue;
    }
    stats_.prompt_rows +=
        static_cast<uint64_t>(std::clamp(s.prompt_tokens() - item.first_position, 0, item.certain));
    stats_.generated += verdict.next.size();
    count_accepted(item, verdict);
    const auto accepted = static_cast<int32_t>(verdict.accepted.size());
    s.sealed_blocks = std::max(s.sealed_blocks, item.end_position() / kBlockTokens);
    Scheduler::advance(item, accepted);
    s.tokens.insert(s.tokens.end(), verdict.next.begin(), verdict.next.end());
    scheduler_->committed(s, item.end_position() + accepted);
  }
  if (drafter_ != nullptr) observe_drafts(step, verdicts);
}

void Engine::observe_drafts(const Step& step, std::span<const Verdict> verdicts) {
  drafter_->observe(step.plan, verdicts);
  DraftBudget* const b = budget();
  if (b == nullptr || step.end == 0) return;  // an interleaved step is observed in slices
  const double step_ms = ms_between(step.proposed, Clock::now());
  const double work_ms = std::max(0.0, step_ms - take_making_ms());
  if (!step.may_draft) return b->observe_other(work_ms, model_->take_catch_up_ms());
  b->observe(step.plan, verdicts, work_ms, model_->take_catch_up_ms());
  stats_.drafts.pays = b->is_on();
  stats_.drafts.lost_ms = b->lost_ms();
}

void Engine::announce(Sequence& s) {
  if (std::exchange(s.announced, true)) return;
  RequestEvents& events = events_.add(s.id, *s.sink);
  events.cached_tokens = s.prefix.cached_tokens;
}

void Engine::settle(const StepPlan& plan, std::span<Verdict> verdicts) {
  const Clock::time_point now = Clock::now();
  for (size_t i = 0; i < plan.items.size(); ++i) {
    Sequence& s = *plan.items[i].sequence;
    Verdict& verdict = verdicts[i];
    const int32_t end =
        plan.items[i].end_position() + static_cast<int32_t>(verdict.accepted.size());
    announce(s);                                   // if just forked
    if (s.cancelled && !verdict.events.empty()) {  // cancelled by a sink after the judge ran
      verdict.events.clear();
      verdict.finished = true;
      verdict.end.reason = FinishReason::cancelled;
    }
    RequestEvents& events = events_.add(s.id, *s.sink);
    const bool was_prompt = s.generated() == static_cast<int32_t>(verdict.next.size());
    if (was_prompt) {
      s.times.first_token = now;
      events.prompt_done = std::min(end, s.prompt_tokens());
      events.prompt_total = s.prompt_tokens();
    }
    s.times.last_token = now;
    events.drafted = static_cast<int32_t>(plan.items[i].drafts.size());
    events.accepted = static_cast<int32_t>(verdict.accepted.size());
    events.tokens = std::move(verdict.events);
    if (!verdict.finished) continue;
    if (s.steps > 0) withdraw(s, end);  // cancelled
    const bool keep = verdict.end.reason != FinishReason::error;
    finish(scheduler_->remove(&s, keep), std::move(verdict.end));
  }
}

void Engine::finish(std::unique_ptr<Sequence> s, Finished end) {
  end.usage.prompt_tokens = s->prompt_tokens();
  end.usage.cached_tokens = s->prefix.cached_tokens;
  end.usage.generated_tokens = s->generated();
  if (s->times.started != Clock::time_point()) {
    end.timings.queue_ms = ms_between(s->times.submitted, s->times.started);
    if (s->times.first_token != Clock::time_point()) {
      end.timings.prompt_ms = ms_between(s->times.started, s->times.first_token);
      end.timings.generation_ms = ms_between(s->times.first_token, s->times.last_token);
    }
  }
  events_.add(s->id, *s->sink).end = std::move(end);
}

}  // namespace braid
