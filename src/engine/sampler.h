// sampler.h -- from a row of logits to the next token.
//
// Order: bias -> penalties -> (temperature 0: largest logit, ties to the lowest id) -> temperature
// -> top-k -> top-p -> min-p -> draw. Truncations keep at least the most probable token. Whole rows
// are truncated by row_scan.h, a top-k list in double.
//
// The draw picks the largest log p + Gumbel noise (noise.h) of the kept tokens. Noise depends only
// on seed, position and token, so a mask that removes other tokens changes nothing.
//
// A Sampler belongs to one sequence: next() proposes, accept() appends to its history. Samplers of
// one thread may share scratch memory; different threads may run different samplers.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/row_scan.h"

namespace braid {

struct SamplingParams {
  float temperature = 1.0f;         // 0: greedy
  int32_t top_k = 20;               // <= 0: off
  float top_p = 0.95f;              // 1: off; 0: the most probable token
  float min_p = 0.0f;               // 0: off
  float repetition_penalty = 1.0f;  // > 1 penalizes tokens of prompt and answer; 1: off
  int32_t penalty_last_n = -1;      // tokens that repetition_penalty covers; -1: all
  float presence_penalty = 0.0f;    // subtracted once from generated tokens
  float frequency_penalty = 0.0f;   // subtracted per generated occurrence
  std::vector<std::pair<int32_t, float>> logit_bias;  // added to raw logits; <= -100: never
  uint64_t seed = 0;
};

// Sorts by id and adds up the biases of a token; minus infinity dominates.
void merge_biases(std::vector<std::pair<int32_t, float>>& biases);

// Errors: invalid_argument, with name and range of the value.
Status validate(const SamplingParams& params, int64_t vocabulary);

struct Candidate {
  int32_t id = 0;
  double probability = 0;
};

// A row of logits, or its best as found by a device (ops.h, top_k). Views only.
struct Scores {
  Scores() = default;
  Scores(std::span<const float> row) : values(row) {}
  Scores(const std::vector<float>& row) : values(row) {}

  std::span<const float> values;
  // Of the values, best first, ties to the lowest id. Empty: value i is token i's.
  std::span<const int32_t> ids;
  float log_sum = 0;  // of exp over the whole row; only with ids

  bool whole() const { return ids.empty(); }
};

// After reserve() such rows need no allocation, except for more than 1,024 best tokens.
struct SamplerScratch {
  void reserve(int64_t vocabulary);

  std::vector<float> row;  // with mask, biases and penalties
  std::vector<Scored> best;
  std::vector<Candidate> candidates;
  RowScan scan;
};

class Sampler {
 public:
  Sampler() = default;
  Sampler(const SamplingParams& params, std::span<const int32_t> prompt);

  // The next allowed token (bit id % 64 of word id / 64; empty: all). -1: no logit is valid. None:
  // the best do not decide, call again with the whole row. The result is that of the whole row,
  // since penalties and masks only lower logits and log_sum bounds the others. Repeatable until
  // accept().
  std::optional<int32_t> next(const Scores& scores, std::span<const uint64_t> allowed,
                              SamplerScratch& scratch) const;

  void accept(int32_t id);

  // Sets scratch.candidates to next()'s distribution (sum 1). Empty: no logit is valid.
  void distribution(std::span<const float> logits, SamplerScratch& scratch) const;

  const SamplingParams& params() const { return params_; }

 private:
  bool changes_logits() const;
  const float* bias_of(int32_t id) const;  // null: no bias
  float penalized(float logit, int32_t id) const;
  void apply_bias_and_penalties(std::span<float> logits) const;
  std::span<const float> row_of(std::span<const float> logits, std::span<const uint64_t> allowed,
                                std::vector<float>& changed) const;
  bool lists_best() const;
  Cut cut_of(std::span<const float> row, float top, RowScan& scan) const;
  void list(std::span<const float> row, SamplerScratch& scratch) const;
  std::optional<int32_t> next_of_best(const Scores& best, std::span<const uint64_t> allowed,
                                      std::vector<Candidate>& c) const;
  bool cut_best(const Scores& best, size_t sure, bool all_as_in_row,
                std::vector<Candidate>& c) const;
  size_t probable_enough(std::span<const Candidate> c) const;
  void soften(std::vector<Candidate>& c) const;
  void truncate(std::vector<Candidate>& c) const;
  int32_t draw(std::span<const Candidate> c) const;

  SamplingParams params_;                           // its biases merged
  bool raises_logits_ = false;                      // a logit may exceed the model's
  int32_t position_ = 0;                            // number of tokens before the next one
  std::vector<int32_t> history_;                    // prompt and answer; only for a finite window
  std::unordered_map<int32_t, int32_t> in_window_;  // id -> occurrences in the penalty window
  std::unordered_map<int32_t, int32_t> generated_;  // id -> occurrences in the answer
};

// log of the sum of exp. NaN if no logit is valid.
double log_sum(const Scores& scores);
// With the best of a row, `id` must be among them. `log_sum`: log_sum(scores).
float log_probability(const Scores& scores, double log_sum, int32_t id);
inline float log_probability(const Scores& scores, int32_t id) {
  return log_probability(scores, log_sum(scores), id);
}
// The `count` most probable ids, best first (ties: lowest id), or as many as `scores` has.
void top_log_probabilities(const Scores& scores, double log_sum, int32_t count,
                           SamplerScratch& scratch, std::vector<std::pair<int32_t, float>>& out);

}  // namespace braid
