// judge.cpp -- see judge.h.
#include "engine/step/judge.h"

#include <algorithm>
#include <cmath>

namespace braid {
namespace {

const char* const kNotNumbers =
    "the model's logits are not numbers: the weights are damaged or the computation overflowed";

}  // namespace

Judge::Judge(StepOutputs& outputs, int64_t vocabulary, int32_t most_tokens)
    : outputs_(outputs),
      most_tokens_(most_tokens),
      mask_bits_(static_cast<size_t>((vocabulary + 63) / 64)),
      open_bits_(mask_bits_.size(), ~uint64_t{0}) {
  scratch_.logits.reserve(static_cast<size_t>(vocabulary));
  scratch_.masked.reserve(static_cast<size_t>(vocabulary));
}

Verdict Judge::judge(const StepItem& item) {
  Verdict verdict;
  verdict.failed = !outputs_.is_sound(item.last_output());
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

void Judge::report_scores(const StepItem& item) {
  Sequence& s = *item.sequence;
  if (!s.request.score) return;
  const int32_t end = std::min(s.computed_tokens + item.certain, s.prompt_tokens());
  int32_t output = item.first_output;
  // What was reported before a preemption is run again, but not reported again.
  for (int32_t p = std::max({s.computed_tokens, s.request.score_from, s.scored_tokens}); p < end; ++p)
    s.request.score(p, outputs_.row(output++));
  s.scored_tokens = std::max(s.scored_tokens, end);
}

// Draws what comes next; while a draft says the same, the draft's own row decides what follows it. Exact for
// greedy and for sampling: every token is drawn from the model's distribution at its own row.
void Judge::judge_path(const StepItem& item, Verdict& verdict) {
  Sequence& s = *item.sequence;
  const auto drafts = static_cast<int32_t>(item.drafts.size());
  const int32_t last_output = item.last_output();
  const Request& request = s.request;
  int32_t node = -1;
  while (true) {
    const int32_t output = last_output + 1 + node;
    const std::span<const uint64_t> allowed = allowed_by(request.mask.get());
    // The best logits decide mostly; else the whole row.
    Scores scores;
    std::optional<int32_t> drawn;
    const std::optional<Scores> best = outputs_.best_of(output);
    if (best && request.top_logprobs <= outputs_.best_count()) {
      scores = *best;
      drawn = s.sampler.next(scores, allowed, scratch_);
    }
    if (!drawn) {
      outputs_.expect(last_output, 1 + drafts);
      scores = outputs_.row(output);
      drawn = s.sampler.next(scores, allowed, scratch_);
    }
    if (*drawn < 0) {
      verdict.finished = true;
      verdict.end.reason = FinishReason::error;
      verdict.end.error = why_no_token(output, allowed, verdict);
      return;
    }
    const int32_t id = oracle_ != nullptr ? oracle_->next(item, node, *drawn) : *drawn;
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
      event.logprob = log_probability(scores, id);
      event.top = top_log_probabilities(scores, request.top_logprobs);
    }
    const auto made = static_cast<int64_t>(s.generated()) + static_cast<int64_t>(verdict.next.size());
    const bool enough = request.max_tokens >= 0 && made >= request.max_tokens;
    if (enough || s.prompt_tokens() + made >= most_tokens_) {
      verdict.finished = true;
      verdict.end.reason = FinishReason::length;
      return;
    }
    const auto child = std::find_if(item.drafts.begin(), item.drafts.end(),
                                    [&](const Draft& d) { return d.parent == node && d.token == id; });
    if (child == item.drafts.end()) return;
    // Without a mask nothing is drawn behind the draft: as if nobody had drafted it.
    if (request.mask && !request.mask->ready(mask_steps_)) return;
    node = static_cast<int32_t>(child - item.drafts.begin());
    verdict.accepted.push_back(node);
  }
}

// The sampler found none.
std::string Judge::why_no_token(int32_t output, std::span<const uint64_t> allowed, Verdict& verdict) {
  const std::span<const float> row = outputs_.row(output);
  verdict.failed = std::none_of(row.begin(), row.end(), [](float x) { return x > -INFINITY; });
  if (verdict.failed) return kNotNumbers;
  const bool masked = std::all_of(allowed.begin(), allowed.end(), [](uint64_t word) { return word == 0; });
  if (!allowed.empty() && masked) return "the form of the answer (its token mask) allows no token here";
  return "the logit bias excludes every token that may come here";
}

// Bits of the ids that may come next; empty: all.
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
