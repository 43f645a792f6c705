// answer_mask.h -- which tokens may come next, for answers with rules: a thinking budget, a required call, a
// form to keep. Everything that only needs to be decided once is decided here, off the engine's thread.
//
// An answer is followed token by token:
//   reasoning free, counted; when the budget is used up, or the thought goes round in a loop, the closing text
//             is forced, token by token
//   content   after </think>: the form, if there is one, holds from its first token on
// so a form never disturbs reasoning, and the budget never cuts a character in two.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request/request.h"
#include "server/api/generation.h"
#include "server/api/thought_end.h"
#include "server/models/served_model.h"

namespace braid::server {

class GrammarProgram;
class MaskWorkers;

// What is the same for all choices of an answer.
struct MaskRules {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<int32_t> end_ids;   // end the answer
  bool suppress_end = false;      // ignore_eos: they are not to come at all
  std::vector<int32_t> stop_ids;  // end it too, since the client says so
  int32_t min_tokens = 0;         // end_ids and stop_ids come only after so many tokens
  bool starts_in_reasoning = false;
  int32_t think_open = -1, think_close = -1;  // ids; -1: the vocabulary has none
  std::string_view think_tag;             // opens reasoning when content begins with it; empty: nothing does
  int64_t think_budget = -1;              // tokens; -1: none
  int32_t character_tokens = 3;           // it may be exceeded by, to end a character
  std::optional<LoopRule> thought_loops;  // closed as if the budget was used up; none: not looked for
  int32_t call_open = -1, call_close = -1;  // ids; what is between is no part of a thought's text
  std::vector<int32_t> closing;             // forced when the budget is used up; ends reasoning
  std::vector<int32_t> forbidden;           // in content that has not begun
  std::vector<int32_t> forbidden_later;     // in content that has begun: those, and what opens reasoning
  std::shared_ptr<const GrammarProgram> grammar;  // of content; null: free
  std::shared_ptr<MaskWorkers> workers;           // for what takes long; null: nobody
};

// `end` may be null.
std::unique_ptr<TokenMask> make_mask(std::shared_ptr<const MaskRules> rules,
                                     std::shared_ptr<ThoughtEndCell> end = nullptr);

// What an answer's thought and its visible text are held to.
LoopRules loop_rules(const Generation& generation, const AnswerPolicy& policy);

// Makes the masks of one answer's choices. None at all when nothing is to be held, so free answers cost
// nothing.
class MaskFactory {
 public:
  // Errors: 400 invalid_json_schema. `thinking`: the model may think in this answer.
  static ApiResult<MaskFactory> create(const Generation& generation, const ServedModel& model,
                                       const AnswerPolicy& policy, bool starts_in_reasoning, bool thinking);

  // Null: free. `max_tokens`: of this choice, which always has a limit; some are kept for the visible answer.
  // `end` is told who closes the thought; it may be null.
  std::shared_ptr<TokenMask> make(int32_t max_tokens, std::shared_ptr<ThoughtEndCell> end = nullptr) const;
  // Tools whose arguments follow their schema wherever a call of them begins.
  std::set<std::string, std::less<>> held_tools() const;

 private:
  int64_t reserve_of(int32_t max_tokens) const;

  MaskRules rules_;
  bool thinking_ = false;
  int32_t reserve_tokens_ = 0;
};

}  // namespace braid::server
