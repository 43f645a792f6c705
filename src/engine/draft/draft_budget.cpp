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
constexpr double kFirstCreditSteps = 6, kMostCreditSteps = 20;  // tolerates unlucky rounds
constexpr double kEnoughCreditSteps = 6;
constexpr double kTrialCreditSteps = 3, kModelCreditSteps = 3;
constexpr double kCheapCatchUp = 0.005;  // share of a plain step
constexpr double kGainToBegin = 1.05;
constexpr int32_t kForecastsToBegin = 4;
constexpr int32_t kForecastsToEnd = 8;
constexpr int32_t kFirstDistance = 64, kLastDistance = 4096;  // steps; doubles in between
constexpr int32_t kFirstLookDistance = 8;                     // the same for single drafts
// Pauses of models are longer, but a new conversation shortens them.
constexpr int32_t kFirstModelPause = 192;
// Paths of a trial, of the first trial, and of a trial whose rows are free.
constexpr int32_t kTrialPaths = 4, kFirstTrialPaths = 8, kMostTrialPaths = 16;
constexpr double kTrialStepShare = 0.5;  // of a plain step, for several paths
// Enough paths for a verdict if acceptance was below kHopeless before.
constexpr int32_t kFewTrialPaths = 2;
constexpr double kHopeless = 0.1;
constexpr double kAmongTheBest = 0.8;  // share of the best factor
constexpr int32_t kStepsToKnow = 16;   // of a new sequence, before a trial
constexpr int32_t kTrialDepth = 4;
constexpr int32_t kDeeperEvery = 16;  // rounds
constexpr int32_t kLeastCalibrationDistance = 16, kMostCalibrationDistance = 512;
constexpr int32_t kMostCalibrations = 6;  // in a row
// Plain steps right after drafts are slower (caches); one within kAsUsual is not.
constexpr int32_t kPlainsToSettle = 2;
constexpr double kAsUsual = 1.02;
constexpr int32_t kUnfeltCells = 256;  // per sequence; fewer do not change the time of a step
constexpr double kFirstAcceptance = 0.7;
constexpr double kLeastProbability = 0.02;
constexpr double kMostCatchUp = 0.25;  // share of a prompt's step; more is noise
constexpr size_t kMostHistories = 4096;

int64_t cells_of(const StepPlan& plan) {
  int64_t sum = 0;
  for (const StepItem& item : plan.items) sum += item.sequence->computed_tokens;
  return sum;
}

bool ran_model(const StepPlan& plan) {
  return std::any_of(plan.items.begin(), plan.items.end(),
                     [](const StepItem& i) { return i.model_ran; });
}

bool differs(double a, double b, double share) { return std::abs(a - b) > share * std::max(a, b); }

}  // namespace

DraftBudget::DraftBudget(int32_t max_drafts, bool has_free, StepCosts::Padding padding)
    : max_drafts_(max_drafts),
      has_free_(has_free),
      costs_(std::move(padding)),
      accepted_(static_cast<size_t>(max_drafts), Share{0, 0}),
      judged_(static_cast<size_t>(max_drafts)),
      look_distance_(kFirstLookDistance),
      next_pause_(kFirstDistance),
      until_trial_(kFirstDistance),
      trial_distance_(kFirstDistance) {
  accepted_[0] = {2 * kFirstAcceptance, 2};
  models_.next_pause = kFirstModelPause;
}

// `value`: the mean of `trials` results. The bounded weight keeps older results relevant.
void DraftBudget::Share::add(double value, int32_t trials) {
  constexpr int32_t kMostAtOnce = 8;
  const int32_t weight = std::min(trials, kMostAtOnce);
  const double kept = std::pow(kForgetting, weight);
  good = good * kept + weight * value;
  all = all * kept + weight;
}

double DraftBudget::History::factor() const {
  constexpr double kStrength = 8;
  return std::clamp((accepted + kStrength) / (expected + kStrength), 0.0, 1.3);
}

DraftBudget::History& DraftBudget::history_of(RequestId id) {
  // Cancelled sequences leave entries, so the table is cleared when it is full.
  if (histories_.size() >= kMostHistories && !histories_.contains(id)) histories_.clear();
  return histories_[id];
}

DraftBudget::Forecast DraftBudget::forecast(int32_t sequences, double plain_ms) const {
  Forecast best;
  const double n = sequences;
  double accepted = 0, path = 1, conditional = 0;
  for (int32_t depth = 1; depth <= max_drafts_; ++depth) {
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
    const double drafting_ms = models_.runs.value() * costs_.drafting_ms(sequences, depth);
    const double ms = costs_.step_ms(sequences, rows) + (models_.pause > 0 ? 0 : drafting_ms);
    const double gain = (1 + offered * accepted) / (ms / plain_ms);
    if (gain > best.gain) best = {depth, gain};
  }
  return best;
}

// The plain step's time is outdated after `distance` steps or when the contexts change much.
bool DraftBudget::wants_calibration(const StepPlan& plan) {
  if (calibrate_ > 0) return true;
  Plain& plain = plains_[row_bucket(plan.decoding)];
  if (plain.distance == 0 && costs_.is_estimated(plan.decoding)) {
    plain.distance = kLeastCalibrationDistance;
    plain.cells = cells_of(plan);
  }
  const auto cells = static_cast<double>(cells_of(plan)), before = static_cast<double>(plain.cells);
  const bool changed = plain.age >= kLeastCalibrationDistance && differs(cells, before, 0.2) &&
                       std::abs(cells - before) > kUnfeltCells * plan.decoding;
  if (!changed && plain.age < plain.distance) return false;
  calibrate_ = std::max(0, kPlainsToSettle - plains_in_a_row_) + 1;
  return true;
}

// Half or twice the sequences change the costs, so trials and pauses become shorter.
void DraftBudget::follow_load(int32_t sequences) {
  if (sequences < 2 * load_ && load_ < 2 * sequences) return;
  load_ = sequences;
  trial_distance_ = std::max(kFirstDistance, trial_distance_ / 2);
  until_trial_ = std::min(until_trial_, trial_distance_);
  next_pause_ = std::max(kFirstDistance, next_pause_ / 2);
  pause_ = std::min(pause_, next_pause_);
}

bool DraftBudget::may_go_on(int32_t sequences, double plain_ms) {
  most_credit_ms_ =
      std::clamp(kMostCreditMs, kFirstCreditSteps * plain_ms, kMostCreditSteps * plain_ms);
  credit_ms_ = std::min(credit_ms_, most_credit_ms_);
  enough_ms_ = kEnoughCreditSteps * plain_ms;
  if (!std::exchange(began_, true)) credit_ms_ = kFirstCreditSteps * plain_ms;
  cheap_ = costs_.catch_up_ms(sequences, sequences) <= kCheapCatchUp * plain_ms;
  const bool rested = rests_;
  rest_or_not();
  // After a rest, steps catch up for a while before drafting starts.
  if (rested && !rests_) until_trial_ = std::max(until_trial_, 2 * kStepsToKnow);
  return !broke_ && !rested;
}

void DraftBudget::rest_or_not() {
  broke_ = broke_ && (pause_ > 0 || credit_ms_ < enough_ms_);
  rests_ = broke_ && !cheap_;
}

DraftBudget::Mode DraftBudget::choose_mode(const StepPlan& plan, double plain_ms) {
  follow_load(plan.decoding);
  --until_trial_;
  pause_ = std::max(0, pause_ - 1);
  if (plain_ms == 0 || !may_go_on(plan.decoding, plain_ms) || wants_calibration(plan))
    return Mode::plain;
  const bool may_try = credit_ms_ >= kTrialCreditSteps * plain_ms;
  if (costs_.most_extra_rows(plan.decoding) == 0) {  // a few rows measure the cost of a row
    if (trial_paths_ == 0 && may_try && until_trial_ < kFirstDistance)
      begin_trial(kFirstTrialPaths);
    return trial_paths_ > 0 ? Mode::trial : Mode::plain;
  }
  const Forecast next = forecast(plan.decoding, plain_ms);
  depth_ = next.depth;
  above_ = next.gain >= kGainToBegin ? above_ + 1 : 0;
  below_ = next.gain < 1 ? below_ + 1 : 0;
  if (!on_ && above_ >= kForecastsToBegin) {
    on_ = true;
    trial_distance_ = kFirstDistance;
    end_trial(false);
  } else if (on_ && below_ >= kForecastsToEnd) {
    on_ = false;
    until_trial_ = trial_distance_;
  }
  if (on_) {
    // Sometimes one deeper: depths without drafts give no data.
    if (++rounds_ % kDeeperEvery == 0) depth_ = std::min(depth_ + 1, max_drafts_);
    return Mode::drafting;
  }
  if (trial_paths_ == 0 && until_trial_ <= 0 && may_try) begin_trial(kTrialPaths);
  return trial_paths_ > 0 ? Mode::trial : Mode::plain;
}

bool DraftBudget::admit(StepPlan& plan) {
  const bool measured = plan.prompt_tokens == 0 &&
                        plan.decoding == static_cast<int32_t>(plan.items.size()) &&
                        plan.decoding > 0;
  if (measured) costs_.estimate(plan.decoding);
  mode_ = measured ? choose_mode(plan, costs_.plain_ms(plan.decoding)) : Mode::unmeasured;
  if (!measured) rest_or_not();
  drafting_ms_ = 0;
  models_.pause = std::max(0, models_.pause - 1);
  for (StepItem& item : plan.items) item.may_run_model = models_.pause == 0;
  if (mode_ == Mode::trial) {
    admit_trial(plan);
  } else {
    const int32_t depth = mode_ == Mode::drafting ? depth_ : 0;
    for (StepItem& item : plan.items) item.draft_depth = std::min(item.draft_depth, depth);
  }
  return std::any_of(plan.items.begin(), plan.items.end(),
                     [](const StepItem& i) { return i.draft_depth > 0; });
}

// More than one path if all cost little more than one.
int32_t DraftBudget::trial_paths_at_once(int32_t sequences) const {
  const double plain_ms = costs_.plain_ms(sequences);
  const auto extra_ms = [&](int32_t paths) {
    return costs_.step_ms(sequences, sequences + paths * depth_) - plain_ms;
  };
  if (extra_ms(1) <= 0) return 1;  // not known yet
  const int32_t free_paths = costs_.rows_alike(sequences, 1) / depth_;
  const int32_t paths =
      std::clamp(free_paths, std::min(trial_paths_, kTrialPaths), kMostTrialPaths);
  // All or one: each row count needs its own CUDA graph, and recording one takes several steps.
  return extra_ms(paths) <= std::min(2 * extra_ms(1), kTrialStepShare * plain_ms) ? paths : 1;
}

void DraftBudget::admit_trial(StepPlan& plan) {
  depth_ = std::min(kTrialDepth, max_drafts_);
  asked_.clear();
  for (StepItem& item : plan.items)
    if (item.draft_depth > 0) asked_.emplace_back(history_of(item.sequence->id).factor(), &item);
  std::stable_sort(asked_.begin(), asked_.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  const int32_t wanted = trial_paths_at_once(plan.decoding);
  int32_t n = 0;
  for (const auto& [factor, item] : asked_) {
    const bool chosen = n++ < wanted && factor >= kAmongTheBest * asked_.front().first;
    item->draft_depth = chosen ? std::min(item->draft_depth, depth_) : 0;
  }
}

void DraftBudget::begin_trial(int32_t paths) {
  trial_paths_ = paths;
  trial_judged_ = trial_right_ = 0;
  trial_ran_model_ = false;
  trial_saved_ms_ = 0;
}

void DraftBudget::end_trial(bool in_vain) {
  trial_paths_ = 0;
  if (in_vain) trial_distance_ = std::min(kLastDistance, 2 * trial_distance_);
  until_trial_ = trial_distance_;
  if (!in_vain || cheap_) return;
  broke_ = true;  // catching up would cost time and gain nothing
  pause_ = std::max(pause_, trial_distance_);
}

// Fills nodes_ with all drafts, the most probable paths first, parents before children.
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
      const double a =
          std::min(0.99, factor * survival_of(draft).probability(depths_[n], draft.log_q));
      conditional_[static_cast<size_t>(draft.parent + 1)] += a;
      nodes_.push_back({static_cast<int32_t>(i), static_cast<int32_t>(n), a});
    }
    for (size_t n = 0; n < item.drafts.size(); ++n) {
      const int32_t parent = item.drafts[n].parent;
      double& p = nodes_[first + n].probability;
      p /= std::max(1.0, conditional_[static_cast<size_t>(parent + 1)]);  // one at most is right
      if (parent >= 0) p *= nodes_[first + static_cast<size_t>(parent)].probability;
    }
  }
  std::stable_sort(nodes_.begin(), nodes_.end(),
                   [](const Node& a, const Node& b) { return a.probability > b.probability; });
}

// The number of nodes_ with the best token rate. All rows of a bucket cost the same.
int32_t DraftBudget::worthwhile(const StepPlan& plan, double drafting_ms) const {
  const auto all =
      std::min(static_cast<int32_t>(nodes_.size()), costs_.next_extra_rows(plan.decoding));
  int32_t best = 0, n = 0;
  double tokens = plan.decoding;
  double best_rate = tokens / (costs_.step_ms(plan.decoding, plan.decoding) + drafting_ms);
  while (n < all) {
    const int32_t end = row_bucket(plan.decoding + n + 1) - plan.decoding;
    for (;
         n < std::min(end, all) && nodes_[static_cast<size_t>(n)].probability >= kLeastProbability;
         ++n)
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

// Without any draft nothing is learned. Therefore the best one is kept in some rounds.
int32_t DraftBudget::look_again(int32_t worthwhile) {
  if (worthwhile > 0) {
    dropped_ = 0;
    look_distance_ = kFirstLookDistance;
  } else if (!nodes_.empty() && ++dropped_ >= look_distance_) {
    dropped_ = 0;
    look_distance_ = std::min(2 * look_distance_, kLastDistance);
    return 1;
  }
  return worthwhile;
}

void DraftBudget::cut(StepPlan& plan, double drafting_ms) {
  drafting_ms_ = drafting_ms;
  if (mode_ != Mode::drafting && mode_ != Mode::trial) return;
  int32_t ran = 0;
  for (const StepItem& item : plan.items) {
    if (item.draft_depth == 0) continue;
    ran += item.model_ran ? 1 : 0;
    offered_.add(item.drafts.empty() ? 0 : 1);
  }
  if (ran > 0) drafting_ms_ = costs_.observe_drafting(ran, depth_, drafting_ms);
  if (models_.pause == 0) models_.runs.add(ran > 0 ? 1 : 0);
  if (mode_ == Mode::trial) return;  // a trial judges all drafts
  rank(plan);
  const int32_t kept = look_again(worthwhile(plan, drafting_ms));
  size_t at = 0;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    Drafts& drafts = plan.items[i].drafts;
    if (drafts.empty()) continue;
    kept_.assign(drafts.size(), -1);
    for (at = 0; at < static_cast<size_t>(kept); ++at)
      if (nodes_[at].item == static_cast<int32_t>(i))
        kept_[static_cast<size_t>(nodes_[at].draft)] = 0;
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

void DraftBudget::learn(const StepItem& item, const Verdict& verdict) {
  History& history = history_of(item.sequence->id);
  if (verdict.finished) return;  // nothing after an end was judged
  if (item.drafts.empty()) {     // without data the factor decays towards 1
    constexpr double kFading = 0.99;
    history.expected *= kFading;
    history.accepted *= kFading;
    return;
  }
  const double factor = history.factor();
  depths_.clear();
  for (size_t n = 0; n < item.drafts.size(); ++n) {
    const Draft& draft = item.drafts[n];
    const auto is_accepted = [&](int32_t i) {
      return std::find(verdict.accepted.begin(), verdict.accepted.end(), i) !=
             verdict.accepted.end();
    };
    depths_.push_back(draft.parent < 0 ? 0 : depths_[static_cast<size_t>(draft.parent)] + 1);
    if (draft.parent >= 0 && !is_accepted(draft.parent)) continue;
    const bool accepted = is_accepted(static_cast<int32_t>(n));
    const double expected = survival_of(draft).probability(depths_[n], draft.log_q);
    constexpr double kForgetting = 0.98;
    history.expected = kForgetting * history.expected + std::min(1.0, expected);
    history.accepted = kForgetting * history.accepted + (accepted ? 1 : 0);
    // Rejections of a sequence with a bad factor are not evidence against the drafter.
    if (factor > 0.5) survival_of(draft).judged(depths_[n], draft.log_q, accepted);
  }
  // For each reached depth: whether any draft was accepted.
  const size_t right = verdict.accepted.size();
  const auto deepest = static_cast<size_t>(1 + *std::max_element(depths_.begin(), depths_.end()));
  for (size_t d = 0; d < std::min({right + 1, deepest, judged_.size()}); ++d) {
    ++judged_[d].all;
    judged_[d].right += d < right ? 1 : 0;
  }
}

void DraftBudget::settle(double lost_ms, double passed_ms) {
  if (!began_) return;
  lost_ms_ += lost_ms;
  credit_ms_ = std::min(credit_ms_ + kLossShare * passed_ms - lost_ms, most_credit_ms_);
  if (broke_ || credit_ms_ > 0) {
    if (credit_ms_ == most_credit_ms_) next_pause_ = kFirstDistance;
    return;
  }
  broke_ = true;
  on_ = false;
  above_ = below_ = 0;
  pause_ = next_pause_;
  next_pause_ = std::min(kLastDistance, 2 * next_pause_);
  end_trial(true);
}

bool DraftBudget::catches_up() const { return !rests_ && models_.pause <= 2 * kStepsToKnow; }

void DraftBudget::pause_models() {
  models_.saved_ms = 0;
  models_.pause = models_.next_pause;
  models_.next_pause = std::min(kLastDistance, 2 * models_.next_pause);
}

void DraftBudget::settle_models(const StepPlan& plan, double lost_ms, double plain_ms) {
  if (!has_free_ || !ran_model(plan)) return;
  models_.saved_ms = models_.saved_ms * Share::kForgetting - lost_ms;
  if (models_.saved_ms < -kModelCreditSteps * plain_ms) {
    pause_models();
  } else if (models_.saved_ms > kEnoughCreditSteps * plain_ms) {
    models_.next_pause = kFirstModelPause;
  }
}

// A trial continues while it saves time. It waits for drafts while that costs little.
void DraftBudget::count_trial(const StepPlan& plan, std::span<const Verdict> verdicts,
                              double plain_ms) {
  if (mode_ != Mode::trial || trial_paths_ == 0) return;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    if (plan.items[i].drafts.empty()) continue;
    ++trial_judged_;
    trial_right_ += static_cast<int32_t>(verdicts[i].accepted.size());
  }
  trial_ran_model_ = trial_ran_model_ || (has_free_ && ran_model(plan));
  const bool is_hopeless =
      trial_right_ == 0 && trial_judged_ >= kFewTrialPaths && accepted_[0].value() < kHopeless;
  const bool ends =
      trial_saved_ms_ < -kTrialCreditSteps * plain_ms || trial_judged_ >= trial_paths_;
  if (!ends && !is_hopeless) return;
  if (trial_saved_ms_ > 0) {
    begin_trial(kTrialPaths);
  } else if (trial_ran_model_) {
    // The loss may be due to the model, so the next trial uses free drafts only.
    if (models_.pause == 0) pause_models();
    end_trial(false);
  } else {
    end_trial(true);
  }
}

void DraftBudget::after_plain(const StepPlan& plan, double step_ms, double known_ms,
                              bool is_typical) {
  if (!is_typical) {
    calibrate_ = std::max(0, calibrate_ - 1);
    return;
  }
  Plain& plain = plains_[row_bucket(plan.decoding)];
  const bool moved = known_ms > 0 && differs(step_ms, known_ms, 0.1);
  if (calibrate_ > 0) {
    calibrate_ = moved && ++plain.in_a_row < kMostCalibrations ? 1 : 0;
    plain.distance =
        moved ? kFirstDistance : std::min(kMostCalibrationDistance, 2 * plain.distance);
  }
  if (calibrate_ == 0) plain.in_a_row = 0;
  plain.distance = std::max(plain.distance, kFirstDistance);
  plain.age = 0;
  plain.cells = cells_of(plan);
}

void DraftBudget::observe_other(double ms, double catch_up_ms) {
  settle(std::min(catch_up_ms, kMostCatchUp * ms), ms);
}

void DraftBudget::observe(const StepPlan& plan, std::span<const Verdict> verdicts, double step_ms,
                          double catch_up_ms) {
  double tokens = 0;
  for (size_t i = 0; i < plan.items.size(); ++i) {
    const RequestId id = plan.items[i].sequence->id;
    // A sequence that repeats tokens after a preemption gains nothing from accepted drafts.
    const bool again = verdicts[i].next.empty() && !verdicts[i].finished;
    tokens += again ? 1 : static_cast<double>(verdicts[i].next.size());
    if (!histories_.contains(id)) {
      const int32_t soon = std::max(kStepsToKnow, trial_distance_ / 8);
      until_trial_ = std::min(until_trial_, soon);
      pause_ = std::min(pause_, soon);
      models_.pause = std::min(models_.pause, std::max(kStepsToKnow, models_.next_pause / 16));
    }
    learn(plan.items[i], verdicts[i]);
    if (verdicts[i].finished) histories_.erase(id);
  }
  for (size_t d = 0; d < judged_.size(); ++d) {
    const auto [right, all] = std::exchange(judged_[d], {});
    if (all > 0) accepted_[d].add(static_cast<double>(right) / all, all);
  }
  if (mode_ == Mode::unmeasured) {
    observe_other(step_ms, catch_up_ms);
    return;
  }
  const double plain_ms = costs_.plain_ms(plan.decoding);
  const int32_t rows = plan.rows();
  plains_in_a_row_ = rows == plan.decoding ? plains_in_a_row_ + 1 : 0;
  const bool is_usual = plain_ms > 0 && step_ms - catch_up_ms <= kAsUsual * plain_ms;
  const bool is_typical = rows > plan.decoding || is_usual || plains_in_a_row_ > kPlainsToSettle;
  const double counted_ms = costs_.observe(plan.decoding, rows, step_ms, catch_up_ms, is_typical);
  const double caught_up_ms = catch_up_ms > 0 ? costs_.catch_up_ms(plan.decoding, rows) : 0;
  ++plains_[row_bucket(plan.decoding)].age;
  if (mode_ == Mode::plain) {
    settle(caught_up_ms + (is_typical || plain_ms == 0 ? 0 : counted_ms - plain_ms), step_ms);
    after_plain(plan, step_ms - catch_up_ms, plain_ms, is_typical);
    return;
  }
  const double drafting_ms = counted_ms + drafting_ms_ - plain_ms * tokens / plan.decoding;
  trial_saved_ms_ -= drafting_ms;
  settle_models(plan, drafting_ms, plain_ms);
  count_trial(plan, verdicts, plain_ms);
  settle(drafting_ms + caught_up_ms, step_ms + drafting_ms_);
  if (rows == plan.decoding) after_plain(plan, step_ms - catch_up_ms, plain_ms, is_typical);
}

}  // namespace braid
