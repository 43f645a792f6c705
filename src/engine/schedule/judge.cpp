// judge.cpp -- see judge.h.
#include "engine/schedule/judge.h"

#include <algorithm>
#include <cmath>
#include <new>

namespace braid {
namespace {

const char* const kNotNumbers =
    "the model's logits are not numbers: the weights are damaged or the computation overflowed";

const char* const kNoMemory = "there is no memory left to sample the next token";

constexpr int kMostWorkers = 8;   // each has its own scratch memory
constexpr int kOwnWorkers = 4;    // including the engine's thread
constexpr size_t kMostRows = 64;  // drawn together
// Fewer logits take less time than waking a thread.
constexpr int64_t kWorthThreads = 1 << 16;

}  // namespace

Judge::Judge(StepOutputs& outputs, int64_t vocabulary, int32_t most_tokens, ThreadPool* threads)
    : outputs_(outputs),
      vocabulary_(vocabulary),
      most_tokens_(most_tokens),
      own_threads_(threads != nullptr
                       ? nullptr
                       : std::make_unique<ThreadPool>(std::min(kOwnWorkers, usable_cores()),
                                                      ThreadPool::Waiting::sleep)),
      threads_(threads != nullptr ? *threads : *own_threads_),
      scratch_(static_cast<size_t>(std::min(kMostWorkers, threads_.size()))),
      mask_bits_(static_cast<size_t>((vocabulary + 63) / 64)),
      open_bits_(mask_bits_.size(), ~uint64_t{0}) {
  for (SamplerScratch& scratch : scratch_) scratch.reserve(vocabulary);
}

void Judge::judge(std::span<const StepItem> items, std::vector<Verdict>& verdicts) {
  const size_t before = verdicts.size();
  verdicts.resize(before + items.size());
  for (size_t i = 0; i < items.size(); ++i) begin(items[i], verdicts[before + i]);
  waiting_.clear();
  size_t next = 0;  // of the items
  while (true) {
    outputs_.release_wanted();
    // Waiting paths first: rows of one sequence stay together.
    size_t together = 0;
    while (together < kMostRows) {
      if (together == waiting_.size()) {
        if (next == items.size()) break;
        Path path{&items[next], &verdicts[before + next], -1};
        ++next;
        if (path.verdict->finished || !path.item->wants_next || !follow(path)) continue;
        waiting_.push_back(path);
      }
      if (!bring_row(waiting_[together], together)) break;
      ++together;
    }
    if (together == 0) return;
    outputs_.wait_wanted();
    draw_rows(together);
    size_t kept = 0;
    for (size_t i = 0; i < waiting_.size(); ++i)
      if (i >= together || (take_row(waiting_[i], rows_[i]) && follow(waiting_[i])))
        waiting_[kept++] = waiting_[i];
    waiting_.resize(kept);
  }
}

void Judge::begin(const StepItem& item, Verdict& verdict) {
  verdict.failed = !outputs_.is_sound(item.last_output());
  if (item.sequence->cancelled) {  // while the device worked
    verdict.finished = true;
    verdict.end.reason = FinishReason::cancelled;
    return;
  }
  if (verdict.failed) {
    verdict.finished = true;
    verdict.end.reason = FinishReason::error;
    verdict.end.error = kNotNumbers;
    return;
  }
  report_scores(item);
  if (!item.wants_next &&
      item.end_position() == std::ssize(item.sequence->tokens)) {  // the prompt was all
    verdict.finished = true;
    verdict.end.reason = FinishReason::length;
  }
}

void Judge::report_scores(const StepItem& item) {
  Sequence& s = *item.sequence;
  if (!s.request.score) return;
  const int32_t end = std::min(item.end_position(), s.prompt_tokens());
  int32_t output = item.first_output;
  // Positions that run again after a preemption are not reported again.
  for (int32_t p = std::max({item.first_position, s.request.score_from, s.scored_tokens}); p < end;
       ++p)
    s.request.score(p, outputs_.row(output++));
  s.scored_tokens = std::max(s.scored_tokens, end);
}

// The best logits of the path's row, if the device found enough for the request.
std::optional<Scores> Judge::best_of(const Path& path) const {
  if (path.request().top_logprobs > outputs_.best_count()) return std::nullopt;
  return outputs_.best_of(path.output());
}

// Draws while the best logits decide. True: a whole row is needed.
bool Judge::follow(Path& path) {
  const Request& request = path.request();
  do {
    const std::optional<Scores> best = best_of(path);
    if (!best) return true;
    const std::optional<int32_t> id =
        path.item->sequence->sampler.next(*best, allowed_by(request.mask.get()), scratch_[0]);
    if (!id || *id < 0) return true;  // the whole row shows why
    drawn_.scores = *best;
    drawn_.id = *id;
    drawn_.log_sum = best->log_sum;
    if (request.top_logprobs >= 0)
      top_log_probabilities(*best, drawn_.log_sum, request.top_logprobs, scratch_[0], drawn_.top);
  } while (take(path, drawn_));
  return false;
}

// Fetches the path's row as number `at`. False: no room.
bool Judge::bring_row(const Path& path, size_t at) {
  const StepItem& item = *path.item;
  if (!outputs_.want(path.output(), item.last_output(),
                     1 + static_cast<int32_t>(item.drafts.size())))
    return false;
  if (at == rows_.size()) rows_.emplace_back().bits.reserve(mask_bits_.size());
  WholeRow& row = rows_[at];
  const std::span<const uint64_t> allowed = allowed_by(path.request().mask.get());
  row.bits.assign(allowed.begin(), allowed.end());
  row.allowed = row.bits;
  row.sampler = &item.sequence->sampler;
  row.top_logprobs = path.request().top_logprobs;
  row.output = path.output();
  if (const std::optional<Scores> best = best_of(path); best && row.top_logprobs >= 0) {
    row.drawn.log_sum = best->log_sum;
    top_log_probabilities(*best, best->log_sum, row.top_logprobs, scratch_[0], row.drawn.top);
    row.top_logprobs = -1;
  }
  return true;
}

void Judge::draw_rows(size_t count) {
  for (WholeRow& row : std::span(rows_).first(count))
    row.drawn.scores = outputs_.wanted(row.output);
  if (count == 1 || static_cast<int64_t>(count) * vocabulary_ < kWorthThreads) {
    for (WholeRow& row : std::span(rows_).first(count)) draw(row, scratch_[0]);
    return;
  }
  next_row_.reset();
  threads_.run([&](int worker) {
    if (static_cast<size_t>(worker) >= scratch_.size()) return;
    for (size_t i; (i = static_cast<size_t>(next_row_.claim())) < count;)
      draw(rows_[i], scratch_[static_cast<size_t>(worker)]);
  });
}

// On any thread; writes only `row` and `scratch`.
void Judge::draw(WholeRow& row, SamplerScratch& scratch) {
  Drawn& drawn = row.drawn;
  row.failed = false;
  try {
    drawn.id = *row.sampler->next(drawn.scores, row.allowed, scratch);
    if (row.top_logprobs < 0 || drawn.id < 0) return;
    drawn.log_sum = log_sum(drawn.scores);
    top_log_probabilities(drawn.scores, drawn.log_sum, row.top_logprobs, scratch, drawn.top);
  } catch (const std::bad_alloc&) {
    row.failed = true;
  }
}

bool Judge::take_row(Path& path, WholeRow& row) {
  if (!row.failed && row.drawn.id >= 0) return take(path, row.drawn);
  Verdict& verdict = *path.verdict;
  verdict.finished = true;
  verdict.end.reason = FinishReason::error;
  verdict.end.error = row.failed ? kNoMemory : why_no_token(row, verdict);
  return false;
}

// Appends the drawn token. True: a draft equals it, and its row decides the next one. So every
// token is drawn from the model's distribution.
bool Judge::take(Path& path, Drawn& drawn) {
  const StepItem& item = *path.item;
  Sequence& s = *item.sequence;
  const Request& request = s.request;
  Verdict& verdict = *path.verdict;
  const int32_t id = oracle_ != nullptr ? oracle_->next(item, path.node, drawn.id) : drawn.id;
  s.sampler.accept(id);
  if (request.mask) request.mask->advance(id);
  verdict.next.push_back(id);
  if (std::find(request.stop_ids.begin(), request.stop_ids.end(), id) != request.stop_ids.end()) {
    verdict.finished = true;
    verdict.end.reason = FinishReason::stop;
    verdict.end.stop_id = id;
    return false;
  }
  TokenEvent& event = verdict.events.emplace_back();
  event.id = id;
  if (request.top_logprobs >= 0) {
    event.logprob = log_probability(drawn.scores, drawn.log_sum, id);
    event.top = std::move(drawn.top);
  }
  const auto made = static_cast<int64_t>(s.generated()) + static_cast<int64_t>(verdict.next.size());
  const bool enough = request.max_tokens >= 0 && made >= request.max_tokens;
  if (enough || s.prompt_tokens() + made >= most_tokens_) {
    verdict.finished = true;
    verdict.end.reason = FinishReason::length;
    return false;
  }
  const auto child = std::find_if(item.drafts.begin(), item.drafts.end(), [&](const Draft& d) {
    return d.parent == path.node && d.token == id;
  });
  if (child == item.drafts.end()) return false;
  // Without a ready mask the rest is not drawn, as if it had not been drafted.
  if (request.mask && !request.mask->ready(mask_steps_)) return false;
  path.node = static_cast<int32_t>(child - item.drafts.begin());
  verdict.accepted.push_back(path.node);
  return true;
}

std::string Judge::why_no_token(const WholeRow& row, Verdict& verdict) {
  const std::span<const float> logits = row.drawn.scores.values;
  verdict.failed =
      std::none_of(logits.begin(), logits.end(), [](float x) { return x > -INFINITY; });
  if (verdict.failed) return kNotNumbers;
  const bool masked =
      std::all_of(row.allowed.begin(), row.allowed.end(), [](uint64_t word) { return word == 0; });
  if (!row.allowed.empty() && masked)
    return "the form of the answer (its token mask) allows no token here";
  return "the logit bias excludes every token that may come here";
}

std::span<const uint64_t> Judge::allowed_by(TokenMask* mask) {
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

}  // namespace braid
