// request.h -- what a client asks of the engine and what it hears back. Token ids only: text belongs
// elsewhere.
#pragma once

#include <boost/container/small_vector.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/request/sampler.h"

namespace braid {

using RequestId = uint64_t;

// Which tokens may come next, for answers of a given form. Follows one path of tokens. One object per answer.
//
// Threads: made and filled on any thread; from submit() until finished() only the engine's thread calls it,
// between its steps, while all other answers wait. So every call must be quick, and must not take a lock that
// somebody holds for long, or throw. allowed() may block; it is called once ready() has said yes. Nothing is
// called after finished(); the last reference may be dropped on any thread, the engine's included. What
// several masks share must therefore not change any more (or guard itself). allowed() may be called several
// times at one place, also for places that are rewound later.
class TokenMask {
 public:
  // Steps of work that all masks together may take on the engine's thread before one of its steps, and again
  // behind it.
  static constexpr int64_t kStepsBetween = 150'000;

  virtual ~TokenMask() = default;
  // Whether allowed() answers at once. If not, what it takes is worked out by another thread: until then the
  // answer has no part in the engine's steps, and nobody waits for it. What is done here is taken off
  // `allowance`; with nothing left, nothing is done here.
  virtual bool ready(int64_t& allowance) { return true; }
  // Sets bit id % 64 of bits[id / 64] for every allowed id (all bits are clear before). bits [ceil(V / 64)].
  // At least one must be allowed. Waits if it is not ready.
  virtual void allowed(std::span<uint64_t> bits) = 0;
  // What allowed() would say where nearly everything may come: all tokens but these few, without a look at
  // each. None: ask allowed(). Valid until the next call of anything here.
  virtual std::optional<std::span<const int32_t>> all_but() { return std::nullopt; }
  // `token` (an allowed one) follows; takes back the last `tokens` of them, at most 1,024.
  virtual void advance(int32_t token) = 0;
  virtual void rewind(int32_t tokens) = 0;
};

// Who may want to go on from a position of a prompt, fewest first.
enum class ResumeKind : uint8_t {
  interval,  // whoever leaves the prompt there by chance
  turn,      // the same conversation: a message, a prompt or an answer ends there
  shared,    // other conversations too: the system message or the list of tools ends there
};
struct ResumePoint {
  int32_t position = 0;  // count of tokens
  ResumeKind kind = ResumeKind::turn;
};

struct Request {
  std::vector<int32_t> prompt;  // at least one token; fewer than the context holds, unless max_tokens is 0
  SamplingParams sampling;
  int32_t max_tokens = -1;        // tokens to generate; -1: until the context is full; 0: only run the prompt
  std::vector<int32_t> stop_ids;  // end the answer; not reported as tokens
  int32_t priority = 0;           // higher enters first; equal ones in order of arrival
  // Positions of the prompt worth resuming from. Ascending.
  std::vector<ResumePoint> checkpoints;
  bool use_cache = true;            // take what is known of the prompt, and leave what others may take
  std::string cache_salt;           // prefixes are shared only between requests with the same salt
  std::shared_ptr<TokenMask> mask;  // null: every token may come
  int32_t top_logprobs = -1;  // -1: no log probabilities; 0: of the token alone; n: of the n best as well

  // Perplexity and tests: receives the logits row of each prompt position from score_from on, in order, as
  // the prompt is run. Row p is the prediction of token p + 1. The row is valid during the call.
  std::function<void(int32_t position, std::span<const float> logits)> score;
  int32_t score_from = 0;
};

struct TokenEvent {
  int32_t id = 0;
  float logprob = 0;                           // natural log, raw distribution; if asked for
  std::vector<std::pair<int32_t, float>> top;  // best first; if asked for
};
using TokenEvents = boost::container::small_vector<TokenEvent, 2>;

enum class FinishReason : uint8_t { stop, length, cancelled, error };
const char* finish_reason_name(FinishReason reason);

struct Usage {
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;     // of the prompt, not computed again
  int32_t generated_tokens = 0;  // the stop token included
};

struct Timings {
  double queue_ms = 0;       // submit to first work
  double prompt_ms = 0;      // first work to first token (or end of the prompt)
  double generation_ms = 0;  // first token to last

  double prompt_tok_s(const Usage& usage) const {
    return prompt_ms > 0 ? 1e3 * (usage.prompt_tokens - usage.cached_tokens) / prompt_ms : 0;
  }
  double generation_tok_s(const Usage& usage) const {
    return generation_ms > 0 ? 1e3 * (usage.generated_tokens - 1) / generation_ms : 0;
  }
};

struct Finished {
  FinishReason reason = FinishReason::stop;
  std::optional<int32_t> stop_id;  // the stop token, if one ended the answer
  std::string error;               // if reason is error
  Usage usage;
  Timings timings;
};

// Called on the engine's thread, perhaps while the device works; must not block for long. May call submit()
// and cancel(); after cancel() no token comes any more.
class Sink {
 public:
  virtual ~Sink() = default;
  // The request has a place and its prompt is about to be run, `cached_tokens` of it excepted. At most once,
  // before all others; never for a request that ends while it waits.
  virtual void started(RequestId id, int32_t cached_tokens) {}
  // A step has verified so many drafts of the answer; its tokens follow.
  virtual void drafts(RequestId id, int32_t drafted, int32_t accepted) {}
  virtual void token(RequestId id, const TokenEvent& event) = 0;
  virtual void progress(RequestId id, int32_t prompt_done, int32_t prompt_total) {}
  // The last call for this id.
  virtual void finished(RequestId id, const Finished& event) = 0;
};

}  // namespace braid
