// sampler.h -- from a row of logits to the next token.
//
// Order: bias -> penalties -> (temperature 0: largest logit, ties to the lowest id) -> temperature -> top-k
// -> top-p -> min-p -> draw. Every truncation keeps at least the most probable token.
//
// What is drawn is the token with the largest log p + noise among those that the truncations keep (Gumbel
// noise, noise.h). The noise depends on seed, position and token alone: the same seed and logits give the
// same token at a position, whatever was tried before, and a mask that takes others away does not change it.
// What a whole row keeps is found in one defined way (row_scan.h), what is left of it by top-k in double.
//
// A Sampler belongs to one sequence and knows its history: next() proposes, accept() makes a token part of
// the history. Scratch memory may be shared between samplers of one thread. Samplers of several sequences may
// be asked on several threads at once.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/request/row_scan.h"

namespace braid {

struct SamplingParams {
  float temperature = 1.0f;         // 0: greedy
  int32_t top_k = 20;               // <= 0: off
  float top_p = 0.95f;              // 1: off; 0: the most probable token
  float min_p = 0.0f;               // 0: off
  float repetition_penalty = 1.0f;  // > 1 makes tokens of prompt and answer less likely; 1: off
  int32_t penalty_last_n = -1;      // how many of the last tokens repetition_penalty sees; -1: all
  float presence_penalty = 0.0f;    // subtracted once from tokens already generated
  float frequency_penalty = 0.0f;   // subtracted per earlier generation
  std::vector<std::pair<int32_t, float>> logit_bias;  // added to raw logits; <= -100: never
  uint64_t seed = 0;
};

// Ascending by id and each id once: several biases of a token add up, and one of never is never (minus
// infinity). What a Sampler looks biases up in.
void merge_biases(std::vector<std::pair<int32_t, float>>& biases);

// Errors: invalid_argument, with the name of the value and its range.
Status validate(const SamplingParams& params, int64_t vocabulary);

struct Candidate {
  int32_t id = 0;
  double probability = 0;
};

// Logits of one output row as a sampler sees them: the whole row, or the best of it as a device found them
// (ops.h, top_k). Views only.
struct Scores {
  Scores() = default;
  Scores(std::span<const float> row) : values(row) {}
  Scores(const std::vector<float>& row) : values(row) {}

  std::span<const float> values;
  // Of the values, best first, ties to the lowest id; empty: value i is token i's.
  std::span<const int32_t> ids;
  float log_sum = 0;  // of exp over the whole row; only with ids

  bool whole() const { return ids.empty(); }
};

// What next() and top_log_probabilities() work in. reserve(): nothing is allocated for rows of that size, unless
// for more than a thousand of the best.
struct SamplerScratch {
  void reserve(int64_t vocabulary);

  std::vector<float> row;  // without what is not allowed, with biases and penalties
  std::vector<Scored> best;
  std::vector<Candidate> candidates;
  RowScan scan;
};

class Sampler {
 public:
  Sampler() = default;
  Sampler(const SamplingParams& params, std::span<const int32_t> prompt);

  // The next token among those allowed (bit id % 64 of word id / 64; empty: all). -1 when none has a logit
  // that is a number. None: the best of the row do not decide it, ask again with the whole row. Where they
  // decide, the result is that of the whole row: penalties and masks only take logits down, so nothing that
  // is not among the best passes the worst of them, and what the others weigh together is bounded by the
  // row's log_sum. The same until accept(), however often it is asked.
  std::optional<int32_t> next(const Scores& scores, std::span<const uint64_t> allowed,
                              SamplerScratch& scratch) const;

  // `id` was generated: it is history now.
  void accept(int32_t id);

  // scratch.candidates = the distribution that next() draws from (sum 1, order unspecified but
  // deterministic). Greedy: one candidate. Empty when no logit is a number.
  void distribution(std::span<const float> logits, SamplerScratch& scratch) const;

  const SamplingParams& params() const { return params_; }

 private:
  bool changes_logits() const;
  const float* bias_of(int32_t id) const;  // null: none
  float penalized(float logit, int32_t id) const;
  void apply_bias_and_penalties(std::span<float> logits) const;
  std::span<const float> row_of(std::span<const float> logits, std::span<const uint64_t> allowed,
                                std::vector<float>& changed) const;
  bool lists_best() const;
  Cut cut_of(std::span<const float> row, float top, RowScan& scan) const;
  void list(std::span<const float> row, SamplerScratch& scratch) const;
  std::optional<int32_t> next_of_best(const Scores& best, std::span<const uint64_t> allowed,
                                      std::vector<Candidate>& c) const;
  bool cut_best(const Scores& best, size_t sure, bool all_as_in_row, std::vector<Candidate>& c) const;
  size_t probable_enough(std::span<const Candidate> c) const;
  void soften(std::vector<Candidate>& c) const;
  void truncate(std::vector<Candidate>& c) const;
  int32_t draw(std::span<const Candidate> c) const;

  SamplingParams params_;                           // its biases merged
  bool raises_logits_ = false;                      // a logit may end above what the model said
  int32_t position_ = 0;                            // of the next token: how many come before
  std::vector<int32_t> history_;                    // prompt and answer; only kept for a finite window
  std::unordered_map<int32_t, int32_t> in_window_;  // id -> occurrences that repetition_penalty sees
  std::unordered_map<int32_t, int32_t> generated_;  // id -> occurrences in the answer
};

// log of the sum of exp over the row. No number where the row has none.
double log_sum(const Scores& scores);
// log softmax of a token's logit; of the best of a row, `id` must be among them.
// `log_sum`: log_sum(scores).
float log_probability(const Scores& scores, double log_sum, int32_t id);
inline float log_probability(const Scores& scores, int32_t id) {
  return log_probability(scores, log_sum(scores), id);
}
// out = the `count` most probable ids with their log probabilities, best first (ties: lowest id); of the best
// of a row, at most as many as they are.
void top_log_probabilities(const Scores& scores, double log_sum, int32_t count, SamplerScratch& scratch,
                           std::vector<std::pair<int32_t, float>>& out);

}  // namespace braid
