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
struct News {
  RequestId id = 0;
  Sink* sink = nullptr;        // lives until its finished()
  int32_t cached_tokens = -1;  // begun, with so many; -1: nothing about that
  int32_t prompt_done = -1;    // -1: nothing about that
  int32_t prompt_total = 0;
  std::vector<TokenEvent> tokens;
  size_t told = 0;  // of tokens
  std::optional<Finished> end;
};

// Used by the engine's thread alone. What is not told when it goes is told to nobody.
class NewsQueue {
 public:
  // More about `id`; valid until the next.
  News& add(RequestId id, Sink& sink) {
    News& news = news_.emplace_back();
    news.id = id;
    news.sink = &sink;
    return news;
  }

  // `id` is cancelled and hears of no token any more, from inside tell() neither; an end that came with them
  // is none that it knows.
  void silence(RequestId id) {
    bool untold = false;
    for (News& n : news_)
      if (n.id == id) untold = silence(n, untold);
  }
  void silence_all() {
    for (size_t i = 0; i < news_.size(); ++i) silence(news_[i].id);
  }

  // Everything in the order of add(). A sink may submit and cancel, which adds nothing.
  void tell() {
    for (News& n : news_) {
      if (n.cached_tokens >= 0) n.sink->started(n.id, n.cached_tokens);
      if (n.prompt_done >= 0) n.sink->progress(n.id, n.prompt_done, n.prompt_total);
      while (n.told < n.tokens.size()) {
        const TokenEvent& event = n.tokens[n.told++];  // counted first: silence() leaves what is being told
        n.sink->token(n.id, event);
      }
      if (n.end) n.sink->finished(n.id, *n.end);
    }
    news_.clear();
  }

 private:
  static bool silence(News& n, bool untold) {
    untold = untold || n.told < n.tokens.size();
    n.tokens.resize(n.told);
    if (untold && n.end && n.end->reason != FinishReason::error) {
      n.end->reason = FinishReason::cancelled;
      n.end->stop_id.reset();
    }
    return untold;
  }

  std::vector<News> news_;
};

}  // namespace braid
