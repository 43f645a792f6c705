// running_answer.h -- an answer between the engine and a client.
// The engine's thread only appends events to a list; the strand of the client's connection handles
// them. A disconnect cancels the request at once. The client always gets a last event. Without
// memory for an engine event the answer fails; the engine's thread never sees an exception.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "server/api/answer_stream.h"
#include "server/http/http.h"
#include "server/metrics.h"
#include "server/served_model.h"

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
    std::function<void(const AnswerReport&)> report;  // once, before the exchange ends
    std::function<int()> retry_after_s;
    std::function<void()> begun, ended;  // on the strand, once per choice
    Headers headers;                     // of the answer
    double before_s = 0;                 // that the request took until here
    int64_t heartbeat_ms = 10'000;
    int64_t limit_ms = 0;  // for the whole answer; 0: no limit
    // A stream's head is sent with the first token, at the latest after this time; 0: at once.
    // Until then a failed answer has an HTTP status, and a proxy may try another replica.
    int64_t late_head_ms = 0;
  };

  RunningAnswer(std::shared_ptr<Exchange> exchange, std::unique_ptr<AnswerStream> stream,
                std::shared_ptr<const ServedModel> model, Hooks hooks);

  // Errors become the answer.
  void start();

  // Thread-safe.
  void fail(const ApiError& error);

  RunningInfo info() const;

 private:
  class ChoiceSink;
  struct Item {
    int choice = 0;
    std::optional<Finished> end;        // else a start
    std::optional<int32_t> cached;      // else draft counts, if drafted > 0
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
  std::vector<char> cancelled_;  // per choice: the backend's cancel() was called
  bool over_ = false;            // the client has its last event or disconnected
  bool reported_ = false;
  bool head_sent_ = false;  // streams only
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
  bool lost_item_ = false;   // guarded by mutex_; an event was lost for lack of memory
};

}  // namespace braid::server
