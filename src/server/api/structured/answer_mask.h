// answer_mask.h -- token masks for answers with a thinking budget, a required call or a grammar.
// One-time decisions are made here, off the engine's thread.
// - thought: unconstrained and counted. If the budget is used up or the thought loops, the
//   closing text is forced token by token, but never inside a character.
// - content: after </think>; the grammar applies from its first token.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "server/api/generation.h"
#include "server/api/thought_end.h"
#include "server/served_model.h"

namespace braid::server {

class GrammarProgram;
class MaskWorkers;

// Shared by all choices of an answer.
struct MaskRules {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<int32_t> end_ids;   // end the answer
  bool suppress_end = false;      // ignore_eos: end_ids are forbidden
  std::vector<int32_t> stop_ids;  // set by the client; also end the answer
  int32_t min_tokens = 0;         // end_ids and stop_ids are forbidden before
  bool starts_in_thought = false;
  int32_t think_open = -1, think_close = -1;  // -1: not in the vocabulary
  std::string_view think_tag;               // opens a thought at the start of content; may be empty
  int64_t thought_budget = -1;              // tokens; -1: no limit
  int32_t character_tokens = 3;             // the budget may be exceeded by, to end a character
  std::optional<LoopRule> thought_loops;    // close a looping thought; empty: off
  int32_t call_open = -1, call_close = -1;  // calls are not part of a thought's text
  std::vector<int32_t> closing;             // forced to end a thought
  std::vector<int32_t> forbidden;           // before content has begun
  std::vector<int32_t> forbidden_later;     // after content has begun: also opening a thought
  std::shared_ptr<const GrammarProgram> grammar;  // of content; null: unconstrained
  std::shared_ptr<MaskWorkers> workers;           // for expensive masks; may be null
};

std::unique_ptr<TokenMask> make_mask(std::shared_ptr<const MaskRules> rules,
                                     std::shared_ptr<ThoughtEndCell> end = nullptr);

LoopRules loop_rules(const Generation& generation, const AnswerPolicy& policy);

class MaskFactory {
 public:
  // Errors: 400 invalid_json_schema. `thinking`: the model may think in this answer.
  static ApiResult<MaskFactory> create(const Generation& generation, const ServedModel& model,
                                       const AnswerPolicy& policy, bool starts_in_thought,
                                       bool thinking);

  // Null if the choice is unconstrained. A part of `max_tokens` is reserved for the visible answer.
  // `end` (may be null) gets the reason that closes the thought.
  std::shared_ptr<TokenMask> make(int32_t max_tokens,
                                  std::shared_ptr<ThoughtEndCell> end = nullptr) const;
  // Tools whose arguments always match their schema.
  std::set<std::string, std::less<>> held_tools() const;

 private:
  int64_t reserve_of(int32_t max_tokens) const;

  MaskRules rules_;
  bool thinking_ = false;
  int32_t reserve_tokens_ = 0;
};

}  // namespace braid::server
