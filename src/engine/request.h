// request.h -- an engine request and its events. Token ids only, no text.
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

#include "engine/sampler.h"

namespace braid {

using RequestId = uint64_t;

// Restricts the next tokens of one answer; follows one path of tokens. One object per answer.
//
// From submit() to finished() only the engine's thread calls it, between steps, while all answers
// wait. So calls must be fast, take no contended lock, and not throw. allowed() may block and be
// called repeatedly, after ready() returned true. The last reference may be dropped on any thread.
// Data shared by masks must be immutable or synchronized.
class TokenMask {
 public:
  // Work of all masks on the engine's thread, before each step and again after it.
  static constexpr int64_t kStepsBetween = 150'000;

  virtual ~TokenMask() = default;
  // Whether allowed() returns at once; if not, the answer skips steps while another thread works.
  // Work done here is subtracted from `allowance`, which is the limit.
  virtual bool ready(int64_t& allowance) { return true; }
  // Sets bit id % 64 of bits[id / 64] for every allowed id, at least one. bits [ceil(V / 64)] is
  // clear before. Waits if not ready.
  virtual void allowed(std::span<uint64_t> bits) = 0;
  // The exceptions, if nearly all tokens are allowed; valid until the next call. Empty: use
  // allowed().
  virtual std::optional<std::span<const int32_t>> all_but() { return std::nullopt; }
  // Appends an allowed token; removes the last `tokens`, at most 1,024.
  virtual void advance(int32_t token) = 0;
  virtual void rewind(int32_t tokens) = 0;
};

// Which requests may resume at a position of a prompt, fewest first.
enum class ResumeKind : uint8_t {
  interval,  // prompts that part there by chance
  turn,      // the same conversation: end of a message, prompt or answer
  shared,    // other conversations: end of system message or tools
};
struct ResumePoint {
  int32_t position = 0;  // number of tokens
  ResumeKind kind = ResumeKind::turn;
};

struct Request {
  std::vector<int32_t> prompt;  // 1 token or more; below the context, unless max_tokens is 0
  SamplingParams sampling;
  int32_t max_tokens = -1;        // -1: until the context is full; 0: only run the prompt
  std::vector<int32_t> stop_ids;  // end the answer; not reported
  int32_t priority = 0;           // higher first; equal ones in order of arrival
  std::vector<ResumePoint> checkpoints;
  bool use_cache = true;            // reuse cached prefixes and leave new ones
  std::string cache_salt;           // prefixes are shared only between requests with the same salt
  std::shared_ptr<TokenMask> mask;  // null: all tokens are allowed
  int32_t top_logprobs = -1;        // -1: off; 0: of the token; n: also of the n best

  // For perplexity and tests: the logits of each prompt position from score_from on, in order. Row
  // p predicts token p + 1 and is valid during the call.
  std::function<void(int32_t position, std::span<const float> logits)> score;
  int32_t score_from = 0;
};

struct TokenEvent {
  int32_t id = 0;
  float logprob = 0;                           // natural log, raw distribution; if requested
  std::vector<std::pair<int32_t, float>> top;  // best first; if requested
};
using TokenEvents = boost::container::small_vector<TokenEvent, 2>;

enum class FinishReason : uint8_t { stop, length, cancelled, error };
const char* finish_reason_name(FinishReason reason);

struct Usage {
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;     // of the prompt, reused
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

// Called on the engine's thread, perhaps while the device works; must not block. May call submit()
// and cancel(); no token follows cancel().
class Sink {
 public:
  virtual ~Sink() = default;
  // The first call, before the prompt runs, at most once. Not for a request that ends in the queue.
  virtual void started(RequestId id, int32_t cached_tokens) {}
  // Verified drafts of a step; the tokens follow.
  virtual void drafts(RequestId id, int32_t drafted, int32_t accepted) {}
  virtual void token(RequestId id, const TokenEvent& event) = 0;
  virtual void progress(RequestId id, int32_t prompt_done, int32_t prompt_total) {}
  virtual void finished(RequestId id, const Finished& event) = 0;
};

}  // namespace braid
