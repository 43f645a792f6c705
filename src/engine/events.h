// events.h -- events of a step for clients.
//
// Delivery takes a lock and perhaps a wake-up per client, so it happens while the device works.
#pragma once

#include <optional>
#include <vector>

#include "engine/request.h"

namespace braid {

struct RequestEvents {
  RequestId id = 0;
  Sink* sink = nullptr;        // lives until its finished()
  int32_t cached_tokens = -1;  // of started(); -1: none
  int32_t prompt_done = -1;    // -1: none
  int32_t prompt_total = 0;
  int32_t drafted = 0;   // verified in the step
  int32_t accepted = 0;  // of them
  TokenEvents tokens;
  size_t delivered = 0;  // of tokens
  std::optional<Finished> end;
};

// Engine thread only. Undelivered events are dropped by the destructor.
class EventQueue {
 public:
  RequestEvents& add(RequestId id, Sink& sink) {
    RequestEvents& events = events_.emplace_back();
    events.id = id;
    events.sink = &sink;
    return events;
  }

  // No more tokens for `id`, even inside deliver(). An end after dropped tokens becomes
  // `cancelled`.
  void silence(RequestId id) {
    bool undelivered = false;
    for (RequestEvents& n : events_)
      if (n.id == id) undelivered = silence(n, undelivered);
  }
  void silence_all() {
    for (size_t i = 0; i < events_.size(); ++i) silence(events_[i].id);
  }

  // In the order of add(). A sink may call submit and cancel; they add no events.
  void deliver() {
    for (RequestEvents& n : events_) {
      if (n.cached_tokens >= 0) n.sink->started(n.id, n.cached_tokens);
      if (n.prompt_done >= 0) n.sink->progress(n.id, n.prompt_done, n.prompt_total);
      if (n.drafted > 0) n.sink->drafts(n.id, n.drafted, n.accepted);
      while (n.delivered < n.tokens.size()) {
        const TokenEvent& event =
            n.tokens[n.delivered++];  // before the call, which may call silence()
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
