// draft_budget.h -- how much is drafted and verified: what saves time, and never more than a little at a
// loss.
//
// A draft is worth its row where the probability of its path times the time of a token exceeds what the row
// costs. Both are measured: costs of steps (step_costs.h), and how likely drafts are accepted (survival.h,
// times a factor of each sequence). Before the drafter runs, a forecast decides whether it shall at all, and
// how deep; afterwards the nodes of all sequences are ranked, and as many are kept as give the most tokens
// for the time.
//
// What a drafter costs beyond plain steps for the same tokens, catching up included, is paid from a credit.
// It begins with six plain steps, grows by 1 % of the time, and holds 1 % of ten seconds at most, but no
// fewer than six plain steps and no more than twenty; gains pay back. Without credit nobody drafts until
// some has come together, and where catching up costs more than half a percent, that is left out, too. So
// whatever is drafted, no more than 1 % is lost, besides the credit at the start and the last step. While it
// is off, a short trial now and then shows whether things have changed: some paths, of several sequences in one
// step where that costs little more than those of one; while it is on, a few plain steps now and then show what
// plain steps take. Of these the last one counts: behind drafts a
// plain step takes longer than among its like (caches hold what drafts needed), and who never drafts has
// only the latter.
//
// Where some drafters run a model and others do not, rounds with the former have books of their own: where these say
// that it was a loss, the others go on alone for a while, a shorter one where a new conversation begins. So they do
// behind a trial in vain that ran a model.
//
// The credit is counted in what steps took as far as that is to be expected of them (step_costs.h): another
// program that takes the processor is no reason to stop.
//
// Decides by measured times, so which rows a step has is not repeatable; the tokens are, wherever rows do not
// change each other's bytes. Engine thread only.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/draft/budget/step_costs.h"
#include "engine/draft/budget/survival.h"
#include "engine/schedule/step_plan.h"

namespace braid {

class DraftBudget {
 public:
  // has_free: one of the drafters runs no model. `padding`: of the device.
  explicit DraftBudget(int32_t max_drafts, bool has_free = false, StepCosts::Padding padding = {});

  // Lowers the draft_depth of the plan's items, and says whether models may be run for them. False: nobody is to be
  // drafted for.
  bool admit(StepPlan& plan);
  // After admit(): whether the step shall catch up.
  bool catches_up() const;
  // After drafting, which took `drafting_ms`: drops drafts that are not worth their rows.
  void cut(StepPlan& plan, double drafting_ms);
  // After every step that admit() saw, which took `step_ms` without the drafting, `catch_up_ms` of them to
  // catch up.
  void observe(const StepPlan& plan, std::span<const Verdict> verdicts, double step_ms,
               double catch_up_ms = 0);

  // Other work took `ms`, `catch_up_ms` of them to catch up.
  void observe_other(double ms, double catch_up_ms);

  // How likely a draft is accepted whose parent is, as far as its source has been judged.
  double survival(const Draft& draft, int32_t depth) const {
    return survival_[static_cast<size_t>(draft.source)].probability(depth, draft.log_q);
  }

  bool is_on() const { return on_; }
  // Time beyond plain steps for the same tokens so far, as far as it can be told; negative: saved.
  double lost_ms() const { return lost_ms_; }

 private:
  // A moving share of successes.
  struct Share {
    static constexpr double kForgetting = 31.0 / 32;  // of a trial
    double good, all;
    void add(double value, int32_t trials = 1);
    double value() const { return good / all; }
  };
  // What is judged in a step, of drafts of one depth.
  struct Judged {
    int32_t right = 0, all = 0;
  };
  struct History {  // of a sequence
    double expected = 0, accepted = 0;
    double factor() const;
  };
  // The plain steps of so many sequences, as far as they have been compared.
  struct Plain {
    int32_t age = 0;       // steps since the last
    int32_t distance = 0;  // steps until the next
    int32_t in_a_row = 0;  // that differed
    int64_t cells = 0;     // that the last one read
  };
  struct Forecast {
    int32_t depth = 1;
    double gain = 0;  // tokens for the time, against plain steps
  };
  // Drafters that run a model, where there are others: what rounds with them have saved lately, and the steps in
  // which they are not asked as it was a loss.
  struct ModelUse {
    double saved_ms = 0;
    int32_t pause = 0, next_pause;
    Share runs{2, 2};  // rounds in which one was run
  };
  struct Node {
    int32_t item, draft;
    double probability;  // that its whole path is accepted
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
  std::array<Survival, kDraftSources> survival_;  // of each source: they differ in how sure they are
  std::vector<Share> accepted_;                   // [depth]: drafts there whose parents were accepted
  std::vector<Judged> judged_;                    // [depth]: of the step
  Share offered_{2, 2};                           // sequences for which there were drafts, of those asked for
  std::unordered_map<RequestId, History> histories_;

  Mode mode_ = Mode::unmeasured;  // of the step under way
  int32_t depth_ = 0;
  double drafting_ms_ = 0;

  int32_t dropped_ = 0;    // rounds in a row in which no draft was kept
  int32_t look_distance_;  // such rounds until one is

  bool on_ = false;
  uint32_t rounds_ = 0;            // while it was on
  int32_t above_ = 0, below_ = 0;  // forecasts in a row that said so
  double credit_ms_ = 0, most_credit_ms_ = 0;
  double enough_ms_ = 0;  // credit to begin again with
  bool began_ = false;    // there is credit
  bool broke_ = false;    // waits for credit
  bool rests_ = false;    // and does not catch up
  bool cheap_ = true;     // catching up is
  int32_t pause_ = 0;     // steps to wait at least
  int32_t next_pause_;    // should the credit be spent again
  int32_t load_ = 0;      // sequences, as of the last change worth to be called one

  int32_t until_trial_;       // steps
  int32_t trial_distance_;    // between trials
  int32_t trial_paths_ = 0;   // that are still to be judged; 0: there is none
  int32_t trial_judged_ = 0;  // that were
  int32_t trial_right_ = 0;   // drafts of these that were accepted
  double trial_saved_ms_ = 0;
  bool trial_ran_model_ = false;  // where there are others

  std::unordered_map<int32_t, Plain> plains_;  // by row_bucket(sequences)
  int32_t calibrate_ = 0;                      // plain steps to come
  int32_t plains_in_a_row_ = 0;

  ModelUse models_;

  double lost_ms_ = 0;
  std::vector<Node> nodes_;                          // ranked
  std::vector<std::pair<double, StepItem*>> asked_;  // the best first
  std::vector<double> conditional_;
  std::vector<int32_t> depths_;
  std::vector<int32_t> kept_;
};

}  // namespace braid
