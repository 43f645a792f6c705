// events.h -- what clients are to hear of a step.
//
// Telling takes time (a lock and perhaps a wake-up for each client), and a device with its own memory can
// work meanwhile. So the engine writes down what happened, queues the next step, and only then tells.
#pragma once

#include <optional>
#include <vector>

#include "engine/request/request.h"

namespace braid {

// Of one request, in the order in which its sink hears it.
struct RequestEvents {
  RequestId id = 0;
  Sink* sink = nullptr;        // lives until its finished()
  int32_t cached_tokens = -1;  // begun, with so many; -1: nothing about that
  int32_t prompt_done = -1;    // -1: nothing about that
  int32_t prompt_total = 0;
  int32_t drafted = 0;   // tokens of the step that were verified
  int32_t accepted = 0;  // of them
  TokenEvents tokens;
  size_t delivered = 0;  // of tokens
  std::optional<Finished> end;
};

// Used by the engine's thread alone. What is not told when it goes is told to nobody.
class EventQueue {
 public:
  // More about `id`; valid until the next.
  RequestEvents& add(RequestId id, Sink& sink) {
    RequestEvents& events = events_.emplace_back();
    events.id = id;
    events.sink = &sink;
    return events;
  }

  // `id` is cancelled and hears of no token any more, from inside deliver() neither; an end that came with
  // them is none that it knows.
  void silence(RequestId id) {
    bool undelivered = false;
    for (RequestEvents& n : events_)
      if (n.id == id) undelivered = silence(n, undelivered);
  }
  void silence_all() {
    for (size_t i = 0; i < events_.size(); ++i) silence(events_[i].id);
  }

  // Everything in the order of add(). A sink may submit and cancel, which adds nothing.
  void deliver() {
    for (RequestEvents& n : events_) {
      if (n.cached_tokens >= 0) n.sink->started(n.id, n.cached_tokens);
      if (n.prompt_done >= 0) n.sink->progress(n.id, n.prompt_done, n.prompt_total);
      if (n.drafted > 0) n.sink->drafts(n.id, n.drafted, n.accepted);
      while (n.delivered < n.tokens.size()) {
        const TokenEvent& event =
            n.tokens[n.delivered++];  // counted first: silence() leaves what is being told
        n.sink->token(n.id, event);
      }
      if (n.end) n.sink->finished(n.id, *n.end);
    }
    events_.clear();
  }

 private:
  static bool silence(RequestEvents& n, bool undelivered) {
    undelivered = undelivered || n.delivered < n.tokens.size();
    n.tokens.resize(n.delivered);
    n.drafted = 0;
    if (undelivered && n.end && n.end->reason != FinishReason::error) {
      n.end->reason = FinishReason::cancelled;
      n.end->stop_id.reset();
    }
    return undelivered;
  }

  std::vector<RequestEvents> events_;
};

}  // namespace braid
