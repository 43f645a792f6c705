// draft_budget.cpp -- see draft_budget.h.
#include "engine/draft/draft_budget.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

namespace braid {
namespace {

constexpr double kLossShare = 0.01;
constexpr double kMostCreditMs = kLossShare * 10e3;
constexpr double kMostCreditSteps = kLossShare * 1000;
constexpr double kGainToBegin = 1.05;
constexpr int32_t kForecastsToBegin = 4;
constexpr int32_t kForecastsToEnd = 8;
constexpr int32_t kFirstDistance = 64, kLastDistance = 4096;  // steps, doubling in between
constexpr int32_t kTrialRounds = 4, kFirstTrialRounds = 8;
constexpr int32_t kStepsToKnow = 16;  // of a new sequence, until a trial
constexpr int32_t kTrialDepth = 4;
constexpr int32_t kMostCalibrationDistance = 512;
constexpr double kFirstAcceptance = 0.7;
constexpr double kLeastProbability = 0.02;
constexpr size_t kMostHistories = 4096;

int64_t cells_of(const StepPlan& plan) {
  int64_t sum = 0;
  for (const StepItem& item : plan.items) sum += item.sequence->computed_tokens;
  return sum;
}

// So that a few unlucky steps are no reason to stop, however long steps are.
double most_credit_ms(double plain_ms) { return std::max(kMostCreditMs, kMostCreditSteps * plain_ms); }

bool differs(double a, double b, double share) { return std::abs(a - b) > share * std::max(a, b); }

}  // namespace

DraftBudget::DraftBudget(int32_t max_drafts)
    : max_drafts_(max_drafts),
      accepted_(static_cast<size_t>(max_drafts), Share{0, 0}),
      credit_ms_(kMostCreditMs),
      next_pause_(kFirstDistance),
      until_trial_(kFirstDistance),
      trial_distance_(kFirstDistance),
      calibration_distance_(kFirstDistance) {
  accepted_[0] = {2 * kFirstAcceptance, 2};
}

double DraftBudget::History::factor() const {
  constexpr double kStrength = 8;
  return std::clamp((accepted + kStrength) / (expected + kStrength), 0.0, 1.3);
}

DraftBudget::History& DraftBudget::history_of(RequestId id) {
  // Cancelled sequences leave theirs behind; it is no great loss to begin anew.
  if (histories_.size() >= kMostHistories && !histories_.contains(id)) histories_.clear();
  return histories_[id];
}

// ---- before the drafter ----

DraftBudget::Forecast DraftBudget::forecast(int32_t sequences, double plain_ms) const {
  Forecast best;
  const double n = sequences;
  double accepted = 0, path = 1, conditional = 0;
  for (int32_t depth = 1; depth <= max_drafts_; ++depth) {
    // A depth of which little is known is like the one before.
    const Share& share = accepted_[static_cast<size_t>(depth - 1)];
    if (depth == 1) {
      conditional = share.value();
    } else {
      conditional = (share.good + 2 * conditional) / (share.all + 2);
    }
    path *= conditional;
    accepted += path;
    const double offered = offered_.value();
    const auto rows = sequences + static_cast<int32_t>(std::ceil(offered * n * depth));
    const double ms = costs_.step_ms(sequences, rows) + costs_.drafting_ms(sequences, depth);
    const double gain = (1 + offered * accepted) / (ms / plain_ms);
    if (gain > best.gain) best = {depth, gain};
  }
  return best;
}

// What a plain step takes is known for steps like the last plain one, and for some time.
bool DraftBudget::wants_calibration(const StepPlan& plan) {
  constexpr int32_t kLeastDistance = 16;
  if (calibrate_ > 0) return true;
  const bool changed = since_plain_ >= kLeastDistance &&
                       (differs(plan.decoding, plain_sequences_, 0.2) ||
                        differs(static_cast<double>(cells_of(plan)), static_cast<double>(plain_cells_), 0.2));
  if (!changed && since_plain_ < calibration_distance_) return false;
  if (changed) {
    trial_distance_ = std::max(kFirstDistance, trial_distance_ / 2);
    until_trial_ = std::min(until_trial_, trial_distance_);
    next_pause_ = std::max(kFirstDistance, next_pause_ / 2);
  }
  calibrate_ = changed ? 2 : 1;
  return true;
}

DraftBudget::Mode DraftBudget::choose_mode(const StepPlan& plan, double plain_ms) {
  --until_trial_;
  pause_ = std::max(0, pause_ - 1);
  if (pause_ > 0 || credit_ms_ <= 0) return Mode::plain;
  if (plain_ms == 0 || wants_calibration(plan)) return Mode::plain;
  if (!std::exchange(began_, true)) credit_ms_ = most_credit_ms(plain_ms);
  if (costs_.most_extra_rows(plan.decoding) == 0) {  // what a row costs is asked with a few
    if (trial_rounds_ == 0) begin_trial(kFirstTrialRounds);
    return Mode::trial;
  }
  const Forecast next = forecast(plan.decoding, plain_ms);
  depth_ = next.depth;
  above_ = next.gain >= kGainToBegin ? above_ + 1 : 0;
  below_ = next.gain < 1 ? below_ + 1 : 0;
  if (!on_ && above_ >= kForecastsToBegin) {
    on_ = true;
    end_trial();
    trial_distance_ = kFirstDistance;
  } else if (on_ && below_ >= kForecastsToEnd) {
    on_ = false;
    until_trial_ = trial_distance_;
  }
  if (on_) return Mode::drafting;
  if (trial_rounds_ == 0 && until_trial_ <= 0) begin_trial(kTrialRounds);
  return trial_rounds_ > 0 ? Mode::trial : Mode::plain;
}

bool DraftBudget::admit(StepPlan& plan) {
  // Prompts hide what rows cost.
  const bool measured = plan.prompt_tokens == 0 && plan.decoding == static_cast<int32_t>(plan.items.size()) &&
                        plan.decoding > 0;
  mode_ = measured ? choose_mode(plan, costs_.plain_ms(plan.decoding)) : Mode::unmeasured;
  drafting_ms_ = 0;
  if (mode_ == Mode::trial) {
    admit_one(plan);
  } else {
    const int32_t depth = mode_ == Mode::drafting ? depth_ : 0;
    for (StepItem& item : plan.items) item.draft_depth = std::min(item.draft_depth, depth);
  }
  return std::any_of(plan.items.begin(), plan.items.end(),
                     [](const StepItem& i) { return i.draft_depth > 0; });
}

// A trial is for the sequence that has done best.
void DraftBudget::admit_one(StepPlan& plan) {
  StepItem* best = nullptr;
  double factor = -1;
  for (StepItem& item : plan.items) {
    const double own = item.draft_depth > 0 ? history_of(item.sequence->id).factor() : -1;
    if (own > factor) {
      if (best != nullptr) best->draft_depth = 0;
      best = &item;
      factor = own;
    } else {
      item.draft_depth = 0;
    }
  }
  depth_ = std::min(kTrialDepth, max_drafts_);
  if (best != nullptr) best->draft_depth = std::min(best->draft_depth, depth_);
}

void DraftBudget::begin_trial(int32_t rounds) {
  trial_rounds_ = rounds;
  trial_saved_ms_ = 0;
}

void DraftBudget::end_trial() {
  trial_rounds_ = 0;
  until_trial_ = trial_distance_;
}

// ---- between drafter and step ----

// nodes_ = all drafts, the most probable paths first, parents before children.
void DraftBudget::rank(const StepPlan& plan) {
  nodes_.clear();
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const StepItem& item = plan.items[i];
    if (item.drafts.empty()) continue;
    const double factor = history_of(item.sequence->id).factor();
    const size_t first = nodes_.size();
    conditional_.assign(item.drafts.size() + 1, 0);  // [1 + parent]: sum over its children
    depths_.clear();
    for (size_t n = 0; n < item.drafts.size(); ++n) {
      const Draft& draft = item.drafts[n];
      depths_.push_back(draft.parent < 0 ? 0 : depths_[static_cast<size_t>(draft.parent)] + 1);
      const double a = std::min(0.99, factor * survival_.probability(depths_[n], draft.log_q));
      conditional_[static_cast<size_t>(draft.parent + 1)] += a;
      nodes_.push_back({static_cast<int32_t>(i), static_cast<int32_t>(n), a});
    }
    for (size_t n = 0; n < item.drafts.size(); ++n) {
      const int32_t parent = item.drafts[n].parent;
      double& p = nodes_[first + n].probability;
      p /= std::max(1.0, conditional_[static_cast<size_t>(parent + 1)]);  // only one of them can be right
      if (parent >= 0) p *= nodes_[first + static_cast<size_t>(parent)].probability;
    }
  }
  std::stable_sort(nodes_.begin(), nodes_.end(),
                   [](const Node& a, const Node& b) { return a.probability > b.probability; });
}

// How many of nodes_ give the most tokens for the time. Rows up to the end of a bucket cost the same.
int32_t DraftBudget::worthwhile(const StepPlan& plan, double drafting_ms) const {
  // Into what was never measured no further than twice as far.
  const auto all = std::min(static_cast<int32_t>(nodes_.size()), 2 * costs_.most_extra_rows(plan.decoding));
  int32_t best = 0, n = 0;
  double tokens = plan.decoding;
  double best_rate = tokens / (costs_.step_ms(plan.decoding, plan.decoding) + drafting_ms);
  while (n < all) {
    const int32_t end = row_bucket(plan.decoding + n + 1) - plan.decoding;
    for (; n < std::min(end, all) && nodes_[static_cast<size_t>(n)].probability >= kLeastProbability; ++n)
      tokens += nodes_[static_cast<size_t>(n)].probability;
    const double rate = tokens / (costs_.step_ms(plan.decoding, plan.decoding + n) + drafting_ms);
    if (rate > best_rate) {
      best_rate = rate;
      best = n;
    }
    if (n < std::min(end, all)) break;
  }
  return best;
}

void DraftBudget::cut(StepPlan& plan, double drafting_ms) {
  drafting_ms_ = drafting_ms;
  if (mode_ != Mode::drafting && mode_ != Mode::trial) return;
  int32_t asked = 0;
  for (const StepItem& item : plan.items) {
    if (item.draft_depth == 0) continue;
    ++asked;
    offered_.add(item.drafts.empty() ? 0 : 1);
  }
  if (mode_ == Mode::trial) return;  // is told by all its drafts
  costs_.observe_drafting(asked, depth_, drafting_ms);
  rank(plan);
  const int32_t kept = worthwhile(plan, drafting_ms);
  size_t at = 0;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    std::vector<Draft>& drafts = plan.items[i].drafts;
    if (drafts.empty()) continue;
    kept_.assign(drafts.size(), -1);
    for (at = 0; at < static_cast<size_t>(kept); ++at)
      if (nodes_[at].item == static_cast<int32_t>(i)) kept_[static_cast<size_t>(nodes_[at].draft)] = 0;
    int32_t next = 0;
    for (size_t n = 0; n < drafts.size(); ++n) {
      if (kept_[n] < 0) continue;
      Draft draft = drafts[n];
      if (draft.parent >= 0) draft.parent = kept_[static_cast<size_t>(draft.parent)];
      kept_[n] = next;
      drafts[static_cast<size_t>(next++)] = draft;
    }
    drafts.resize(static_cast<size_t>(next));
  }
}

// ---- after the step ----

void DraftBudget::learn(const StepItem& item, const Verdict& verdict) {
  // Behind an end nothing was judged.
  if (item.drafts.empty() || verdict.finished) return;
  History& history = history_of(item.sequence->id);
  const double factor = history.factor();
  depths_.clear();
  for (size_t n = 0; n < item.drafts.size(); ++n) {
    const Draft& draft = item.drafts[n];
    const auto is_accepted = [&](int32_t i) {
      return std::find(verdict.accepted.begin(), verdict.accepted.end(), i) != verdict.accepted.end();
    };
    depths_.push_back(draft.parent < 0 ? 0 : depths_[static_cast<size_t>(draft.parent)] + 1);
    if (draft.parent >= 0 && !is_accepted(draft.parent)) continue;
    const bool accepted = is_accepted(static_cast<int32_t>(n));
    const double expected = survival_.probability(depths_[n], draft.log_q);
    constexpr double kForgetting = 0.98;
    history.expected = kForgetting * history.expected + std::min(1.0, expected);
    history.accepted = kForgetting * history.accepted + (accepted ? 1 : 0);
    // What is particular of the sequence is not the drafter's.
    if (factor > 0.5) survival_.judged(depths_[n], draft.log_q, accepted);
  }
  // Of the depths that were reached: was any of the drafts there right?
  const size_t right = verdict.accepted.size();
  const auto deepest = static_cast<size_t>(1 + *std::max_element(depths_.begin(), depths_.end()));
  for (size_t d = 0; d < std::min({right + 1, deepest, accepted_.size()}); ++d)
    accepted_[d].add(d < right ? 1 : 0);
}

void DraftBudget::settle(double plain_ms, double tokens_ms, double spent_ms) {
  const double most_ms = most_credit_ms(plain_ms);
  credit_ms_ = std::min(credit_ms_ + kLossShare * spent_ms, most_ms);
  if (mode_ == Mode::plain) return;
  const double lost = spent_ms - tokens_ms;
  lost_ms_ += lost;
  credit_ms_ -= lost;
  if (credit_ms_ >= most_ms) {
    credit_ms_ = most_ms;
    next_pause_ = kFirstDistance;
  } else if (credit_ms_ <= 0) {
    on_ = false;
    above_ = below_ = 0;
    pause_ = next_pause_;
    next_pause_ = std::min(kLastDistance, 2 * next_pause_);
    end_trial();
  }
  trial_saved_ms_ -= lost;
}

// After a round of a trial for which there were drafts. It goes on for as long as it pays.
void DraftBudget::count_trial() {
  if (mode_ != Mode::trial || trial_rounds_ == 0 || --trial_rounds_ > 0) return;
  if (trial_saved_ms_ > 0) {
    begin_trial(kTrialRounds);
  } else {
    trial_distance_ = std::min(kLastDistance, 2 * trial_distance_);
    end_trial();
  }
}

// What is known of plain steps, after one of them.
void DraftBudget::compare_plain(const StepPlan& plan, double step_ms, double known_ms) {
  constexpr int32_t kMostInARow = 8;
  const bool moved = known_ms > 0 && differs(step_ms, known_ms, 0.05);
  if (calibrate_ > 0 && --calibrate_ == 0) {
    if (moved && ++calibrations_ < kMostInARow) calibrate_ = 1;
    calibration_distance_ =
        moved ? kFirstDistance : std::min(kMostCalibrationDistance, 2 * calibration_distance_);
  }
  if (calibrate_ == 0) calibrations_ = 0;
  since_plain_ = 0;
  plain_sequences_ = plan.decoding;
  plain_cells_ = cells_of(plan);
}

void DraftBudget::observe(const StepPlan& plan, std::span<const Verdict> verdicts, double step_ms) {
  double tokens = 0;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const RequestId id = plan.items[i].sequence->id;
    tokens += static_cast<double>(verdicts[i].next.size());
    // A new conversation may be another kind of text.
    if (!histories_.contains(id)) until_trial_ = std::min(until_trial_, kStepsToKnow);
    history_of(id);
    learn(plan.items[i], verdicts[i]);
    if (verdicts[i].finished) histories_.erase(id);
  }
  if (mode_ == Mode::unmeasured) return;
  const double plain_ms = costs_.plain_ms(plan.decoding);
  const double counted_ms = costs_.observe(plan.decoding, plan.rows(), step_ms);
  settle(plain_ms, plain_ms * tokens / plan.decoding, counted_ms + drafting_ms_);
  ++since_plain_;
  if (plan.rows() == plan.decoding) {
    compare_plain(plan, step_ms, plain_ms);
  } else {
    count_trial();
  }
}

}  // namespace braid
