// grammar_budget.h -- cost limit of compiling a grammar; counted, so equal on every machine.
#pragma once

#include <cstdint>
#include <string>

namespace braid::server {

class GrammarBudget {
 public:
  // Nodes made, edges followed, schema values copied; about 0.2 s of work at most.
  static constexpr int64_t kSteps = 12'000'000;
  // Kept tables of automata, words and instructions.
  static constexpr int64_t kBytes = int64_t{16} << 20;

  explicit GrammarBudget(int64_t steps = kSteps, int64_t bytes = kBytes)
      : most_steps_(steps), most_bytes_(bytes) {}

  // False if the budget is exceeded, now or before.
  bool spend(int64_t steps, int64_t bytes = 0) {
    steps_ += steps;
    bytes_ += bytes;
    return !used_up();
  }
  bool used_up() const { return steps_ > most_steps_ || bytes_ > most_bytes_; }
  int64_t steps() const { return steps_; }
  int64_t bytes() const { return bytes_; }
  int64_t steps_left() const { return most_steps_ - steps_; }
  int64_t bytes_left() const { return most_bytes_ - bytes_; }

  std::string sentence(const std::string& what) const {
    return what + " is too large: compiling it takes more than " +
           (steps_ > most_steps_ ? std::to_string(most_steps_) + " steps"
                                 : std::to_string(most_bytes_ >> 20) + " MiB of tables");
  }

 private:
  int64_t most_steps_, most_bytes_;
  int64_t steps_ = 0, bytes_ = 0;
};

}  // namespace braid::server
