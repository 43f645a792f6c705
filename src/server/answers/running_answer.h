// running_answer.h -- an answer between the engine and a client.
//
// The engine's thread only puts events into a list; all work on them happens on the strand of the client's
// connection. When the client leaves, the engine is told at once; when the engine is done, the client gets a
// last event, whatever happened. Without memory for an event of the engine the answer fails; the engine's
// thread never sees an exception.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "server/answers/answer_stream.h"
#include "server/http/http.h"
#include "server/metrics/metrics.h"
#include "server/models/served_model.h"

namespace braid::server {

struct RunningInfo {
  std::string request_id, endpoint;
  int64_t prompt_tokens = 0, generated_tokens = 0;
  int64_t drafted_tokens = 0, accepted_tokens = 0;
  double age_ms = 0;
  bool begun = false;
};

class RunningAnswer : public std::enable_shared_from_this<RunningAnswer> {
 public:
  struct Hooks {
    std::function<void(const AnswerReport&)> report;  // once, on the strand, before the exchange ends
    std::function<int()> retry_after_s;
    std::function<void()> begun, ended;  // on the strand, for each choice: the engine begins it, or is done
    int64_t heartbeat_ms = 10'000;
    int64_t limit_ms = 0;  // of the whole answer; 0: none
    // A stream's head goes out with its first token, and at the latest after so long; 0: at once. Until then
    // an answer that fails has a status of its own, and a proxy may ask another replica.
    int64_t late_head_ms = 0;
  };

  RunningAnswer(std::shared_ptr<Exchange> exchange, std::unique_ptr<AnswerStream> stream,
                std::shared_ptr<const ServedModel> model, Hooks hooks);

  // Queues the work and opens the stream. Errors become the answer.
  void start();

  // Ends it with an error for the client. Thread-safe.
  void fail(const ApiError& error);

  RunningInfo info() const;

 private:
  class ChoiceSink;
  struct Item {
    int choice = 0;
    std::optional<Finished> end;        // else a start
    std::optional<int32_t> cached;      // else drafts, if there are some
    int32_t drafted = 0, accepted = 0;  // else a token
    TokenEvent token;
  };

  // On the engine's thread.
  template <typename MakeItem>
  void put(MakeItem make) noexcept;

  // On the strand.
  void begin();
  void send_head();
  void open();
  void drain();
  void flush(std::string out);
  void finish();
  std::optional<ApiError> write_whole(HttpAnswer& answer) const;
  void fail_now(const ApiError& error);
  void cancel(size_t choice);
  void cancel_all();
  void gone();
  void beat();
  void report(const char* reason);

  std::shared_ptr<Exchange> exchange_;
  std::unique_ptr<AnswerStream> stream_;
  std::shared_ptr<const ServedModel> model_;
  Hooks hooks_;
  std::vector<RequestId> ids_;
  std::vector<char> cancelled_;  // per choice: the backend was told
  bool over_ = false;            // the client has its last event, or is gone
  bool reported_ = false;
  bool head_sent_ = false;  // of a stream
  bool opened_ = false;
  size_t begun_choices_ = 0;
  using Clock = std::chrono::steady_clock;
  Clock::time_point started_ = Clock::now(), last_write_ = Clock::now();
  std::optional<Clock::time_point> first_token_;
  int64_t max_tokens_ = 0;
  std::atomic<int64_t> generated_{0}, drafted_{0}, accepted_{0};
  std::atomic<bool> begun_{false};  // submitted

  std::mutex mutex_;
  std::vector<Item> items_;  // guarded by mutex_
  bool scheduled_ = false;   // guarded by mutex_
  bool lost_item_ = false;   // guarded by mutex_; there was no memory for one
};

}  // namespace braid::server
