// news.h -- what clients are to hear of a step.
//
// Telling takes time (a lock and perhaps a wake-up for each client), and a device with its own memory can
// work meanwhile. So the engine writes down what happened, queues the next step, and only then tells.
#pragma once

#include <optional>
#include <vector>

#include "engine/request.h"

namespace braid {

// Of one request, in the order in which its sink hears it.
struct News {
  RequestId id = 0;
  Sink* sink = nullptr;        // lives until its finished()
  int32_t cached_tokens = -1;  // begun, with so many; -1: nothing about that
  int32_t prompt_done = -1;    // -1: nothing about that
  int32_t prompt_total = 0;
  std::vector<TokenEvent> tokens;
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

  // Everything in the order of add(). A sink may submit and cancel, which adds nothing.
  void tell() {
    for (News& n : news_) {
      if (n.cached_tokens >= 0) n.sink->started(n.id, n.cached_tokens);
      if (n.prompt_done >= 0) n.sink->progress(n.id, n.prompt_done, n.prompt_total);
      for (const TokenEvent& event : n.tokens) n.sink->token(n.id, event);
      if (n.end) n.sink->finished(n.id, *n.end);
    }
    news_.clear();
  }

 private:
  std::vector<News> news_;
};

}  // namespace braid
