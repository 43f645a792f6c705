// draft_budget.h -- decides how much is drafted and verified; losses stay bounded.
//
// A draft is worth its row if the probability of its path times the time of a token exceeds the
// row's cost. Costs (step_costs.h) and acceptance (survival.h, times a factor per sequence) are
// measured. A forecast chooses the depth before the drafter runs. Afterwards the set of nodes with
// the best token rate is kept.
//
// Time beyond plain steps for the same tokens is paid from a credit, catching up included. It
// starts at six plain steps and grows by 1 % of the time and by gains, up to 100 ms (but six to
// twenty plain steps). Without credit drafting pauses, and so does catching up if it costs more
// than 0.5 %. So the loss is at most 1 %, plus the initial credit and the last step.
//
// - While off, short trials test whether drafting would pay. While on, plain steps are measured
//   from time to time, the last of several: right after drafts they are slower (caches).
// - Drafters that run a model have separate books beside free ones. They pause after a loss or a
//   failed trial; a new conversation shortens the pause.
// - The credit counts expected step times (step_costs.h), so other programs do not stop drafting.
//
// The rows of a step depend on time; the tokens do not, wherever rows do not change each other's
// bytes. Engine thread only.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/draft/step_costs.h"
#include "engine/draft/survival.h"
#include "engine/schedule/step_plan.h"

namespace braid {

class DraftBudget {
 public:
  explicit DraftBudget(int32_t max_drafts, bool has_free = false, StepCosts::Padding padding = {});

  // Lowers the draft_depth of the plan's items and sets may_run_model. False: do not draft.
  bool admit(StepPlan& plan);
  bool catches_up() const;
  // Call after drafting, which took `drafting_ms`. Drops drafts that are not worth their rows.
  void cut(StepPlan& plan, double drafting_ms);
  // Call after every step that admit() saw. `step_ms` excludes drafting and includes `catch_up_ms`.
  void observe(const StepPlan& plan, std::span<const Verdict> verdicts, double step_ms,
               double catch_up_ms = 0);

  // For other work; `ms` includes `catch_up_ms`.
  void observe_other(double ms, double catch_up_ms);

  // The probability that a draft is accepted if its parent is, from its source's results so far.
  double survival(const Draft& draft, int32_t depth) const {
    return survival_[static_cast<size_t>(draft.source)].probability(depth, draft.log_q);
  }

  bool is_on() const { return on_; }
  // Estimated time beyond plain steps for the same tokens; negative: saved.
  double lost_ms() const { return lost_ms_; }

 private:
  struct Share {
    static constexpr double kForgetting = 31.0 / 32;  // per trial
    double good, all;
    void add(double value, int32_t trials = 1);
    double value() const { return good / all; }
  };
  struct Judged {
    int32_t right = 0, all = 0;
  };
  struct History {  // of a sequence
    double expected = 0, accepted = 0;
    double factor() const;
  };
  // State of the calibration for one number of sequences.
  struct Plain {
    int32_t age = 0;       // steps since the last plain one
    int32_t distance = 0;  // steps between plain ones
    int32_t in_a_row = 0;  // plain steps that differed
    int64_t cells = 0;     // read by the last one
  };
  struct Forecast {
    int32_t depth = 1;
    double gain = 0;  // token rate relative to plain steps
  };
  // Drafters that run a model beside free ones. They are skipped for `pause` steps after a loss.
  struct ModelUse {
    double saved_ms = 0;
    int32_t pause = 0, next_pause;
    Share runs{2, 2};  // rounds in which one ran
  };
  struct Node {
    int32_t item, draft;
    double probability;  // of its whole path
  };
  enum class Mode : uint8_t { unmeasured, plain, trial, drafting };

  Mode choose_mode(const StepPlan& plan, double plain_ms);
  void follow_load(int32_t sequences);
  bool may_go_on(int32_t sequences, double plain_ms);
  void rest_or_not();
  bool wants_calibration(const StepPlan& plan);
  void after_plain(const StepPlan& plan, double step_ms, double known_ms, bool is_typical);
  Forecast forecast(int32_t sequences, double plain_ms) const;
  int32_t trial_paths_at_once(int32_t sequences) const;
  void admit_trial(StepPlan& plan);
  void begin_trial(int32_t paths);
  void end_trial(bool in_vain);
  void count_trial(const StepPlan& plan, std::span<const Verdict> verdicts, double plain_ms);
  void rank(const StepPlan& plan);
  int32_t look_again(int32_t worthwhile);
  int32_t worthwhile(const StepPlan& plan, double drafting_ms) const;
  Survival& survival_of(const Draft& draft) { return survival_[static_cast<size_t>(draft.source)]; }
  void learn(const StepItem& item, const Verdict& verdict);
  void settle(double lost_ms, double passed_ms);
  void pause_models();
  void settle_models(const StepPlan& plan, double lost_ms, double plain_ms);
  History& history_of(RequestId id);

  int32_t max_drafts_;
  bool has_free_;
  StepCosts costs_;
  std::array<Survival, kDraftSources> survival_;  // by source
  std::vector<Share> accepted_;                   // [depth]: drafts whose parents were accepted
  std::vector<Judged> judged_;                    // [depth]: of the step
  Share offered_{2, 2};                           // share of draft attempts with a result
  std::unordered_map<RequestId, History> histories_;

  Mode mode_ = Mode::unmeasured;  // of the current step
  int32_t depth_ = 0;
  double drafting_ms_ = 0;

  int32_t dropped_ = 0;    // consecutive rounds that kept no draft
  int32_t look_distance_;  // such rounds until one draft is kept

  bool on_ = false;
  uint32_t rounds_ = 0;            // while drafting was on
  int32_t above_ = 0, below_ = 0;  // consecutive forecasts
  double credit_ms_ = 0, most_credit_ms_ = 0;
  double enough_ms_ = 0;  // credit required to resume
  bool began_ = false;    // the credit is set
  bool broke_ = false;    // waits for credit
  bool rests_ = false;    // also skips catching up
  bool cheap_ = true;     // catching up is cheap
  int32_t pause_ = 0;     // minimum number of steps to wait
  int32_t next_pause_;    // after the next loss
  int32_t load_ = 0;      // sequences at the last large change

  int32_t until_trial_;       // steps
  int32_t trial_distance_;    // between trials
  int32_t trial_paths_ = 0;   // still to judge; 0: no trial
  int32_t trial_judged_ = 0;  // paths
  int32_t trial_right_ = 0;   // accepted drafts
  double trial_saved_ms_ = 0;
  bool trial_ran_model_ = false;  // only with free drafters beside it

  std::unordered_map<int32_t, Plain> plains_;  // by row_bucket(sequences)
  int32_t calibrate_ = 0;                      // remaining plain steps
  int32_t plains_in_a_row_ = 0;

  ModelUse models_;

  double lost_ms_ = 0;
  std::vector<Node> nodes_;                          // ranked
  std::vector<std::pair<double, StepItem*>> asked_;  // best first
  std::vector<double> conditional_;
  std::vector<int32_t> depths_;
  std::vector<int32_t> kept_;
};

}  // namespace braid
