// test_server_test.h -- for tests: the demo model's text side with a scripted backend.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <thread>

#include "gguf/gguf.h"
#include "server/api/structured/grammar_cache.h"
#include "server/app.h"
#include "text/tokenizer/vocabulary.h"

namespace braid::server {

// Answers requests one by one with scripted tokens, on its own thread.
class FakeBackend : public Backend {
 public:
  struct Script {
    std::vector<int32_t> tokens;
    FinishReason reason = FinishReason::stop;
    std::optional<int32_t> stop_id;
    bool wait = false;                  // before the end, until release() or cancel()
    bool wait_first = false;            // before the first token, until release() or cancel()
    int32_t drafted = 0, accepted = 0;  // before the first token
    // Follows the mask and max_tokens like the engine: forbidden tokens are skipped, forced ones
    // produced. After a forced token, `closed` replaces the rest.
    bool obeys = false;
    std::vector<int32_t> closed = {};
  };
  using Play = std::function<Script(const Request&)>;

  explicit FakeBackend(Play play, int32_t context = 4096)
      : play_(std::move(play)), context_(context) {
    thread_ = std::thread([this] { run(); });
  }
  ~FakeBackend() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  Result<RequestId> submit(Request request, std::shared_ptr<Sink> sink) override {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= max_queued) return Error{ErrorKind::exhausted, "the queue is full"};
    last = request;
    queue_.push_back({++ids_, std::move(request), std::move(sink)});
    wake_.notify_all();
    return ids_;
  }
  void cancel(RequestId id) override {
    const std::lock_guard lock(mutex_);
    cancelled.insert(id);
    wake_.notify_all();
  }
  Result<RequestId> score(PromptToScore prompt) override {
    if (!scores) return Backend::score(std::move(prompt));
    {
      const std::lock_guard lock(mutex_);
      if (hold_scores) {
        held_scores_[++ids_] = std::move(prompt);
        wake_.notify_all();
        return ids_;
      }
      ++scored;
    }
    prompt.done(scores(prompt.ids));
    return RequestId{1};
  }
  void cancel_score(RequestId id) override {
    PromptToScore prompt;
    {
      const std::lock_guard lock(mutex_);
      cancelled.insert(id);
      const auto held = held_scores_.find(id);
      if (held == held_scores_.end()) return;
      prompt = std::move(held->second);
      held_scores_.erase(held);
      wake_.notify_all();
    }
    prompt.done(Error{ErrorKind::cancelled, "interrupted"});
  }
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    wake_.notify_all();
  }
  bool wait_cancelled(size_t count) {
    std::unique_lock lock(mutex_);
    return wake_.wait_for(lock, std::chrono::seconds(20),
                          [&] { return cancelled.size() >= count; });
  }
  bool wait_submitted(RequestId count) {
    std::unique_lock lock(mutex_);
    return wake_.wait_for(lock, std::chrono::seconds(20), [&] { return ids_ >= count; });
  }
  bool wait_started(RequestId count) {
    std::unique_lock lock(mutex_);
    return wake_.wait_for(lock, std::chrono::seconds(20), [&] { return started_ >= count; });
  }
  BackendStats stats() const override {
    const std::lock_guard lock(mutex_);
    BackendStats out;
    out.waiting = static_cast<int32_t>(queue_.size());
    out.running = running_;
    out.alive = alive;
    out.stalled_ms = stalled_ms;
    out.expert_layers = expert_layers;
    return out;
  }
  int32_t context_tokens() const override { return context_; }

  std::atomic<bool> alive{true};
  std::atomic<double> stalled_ms{0};
  std::vector<ExpertLayer> expert_layers;  // set before the first request
  // Of score(); empty: there is no model for it.
  std::function<Result<std::vector<float>>(const std::vector<int32_t>&)> scores;
  std::atomic<bool> hold_scores{false};  // until cancel_score()
  std::atomic<int> scored{0};
  size_t max_queued = 1000;
  std::set<RequestId> cancelled;  // guarded by mutex_
  Request last;                   // guarded by mutex_

 private:
  struct Queued {
    RequestId id;
    Request request;
    std::shared_ptr<Sink> sink;
  };

  void run() {
    while (true) {
      Queued work;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || !queue_.empty(); });
        if (stop_) return;
        work = std::move(queue_.front());
        queue_.pop_front();
        running_ = 1;
      }
      answer(work);
    }
  }

  void answer(const Queued& work) {
    const Script script = play_(work.request);
    // Each prompt token is the likeliest, the id next to it the second.
    for (size_t p = 0; work.request.score && p < work.request.prompt.size(); ++p) {
      std::vector<float> logits(8192, 0.0f);
      const auto next =
          static_cast<size_t>(work.request.prompt[std::min(p + 1, work.request.prompt.size() - 1)]);
      logits[next] = 10;
      logits[(next + 1) % logits.size()] = 9;
      work.request.score(static_cast<int32_t>(p), logits);
    }
    Finished end;
    end.usage.prompt_tokens = static_cast<int32_t>(work.request.prompt.size());
    {
      const std::lock_guard lock(mutex_);
      ++started_;
      wake_.notify_all();
    }
    work.sink->started(work.id, 0);
    const auto wait_here = [&](std::unique_lock<std::mutex>& lock) {
      wake_.wait(lock, [&] { return stop_ || released_ || cancelled.contains(work.id); });
    };
    if (script.wait_first) {
      std::unique_lock lock(mutex_);
      wait_here(lock);
    }
    if (script.drafted > 0) work.sink->drafts(work.id, script.drafted, script.accepted);
    Finished limited;
    const std::vector<int32_t> said =
        script.obeys ? obedient(work.request, script, limited) : script.tokens;
    for (const int32_t id : said) {
      TokenEvent event;
      event.id = id;
      event.logprob = -0.5f;
      event.top = {{id, -0.5f}};
      work.sink->token(work.id, event);
      ++end.usage.generated_tokens;
    }
    bool was_cancelled = false;
    {
      std::unique_lock lock(mutex_);
      if (script.wait) wait_here(lock);
      was_cancelled = cancelled.contains(work.id) || stop_;
      running_ = 0;
    }
    const bool cut = limited.reason == FinishReason::length;
    end.reason = was_cancelled ? FinishReason::cancelled
                 : cut         ? FinishReason::length
                               : script.reason;
    if (!was_cancelled && !cut) end.stop_id = script.stop_id;
    work.sink->finished(work.id, end);
  }

  static std::vector<int32_t> obedient(const Request& request, const Script& script,
                                       Finished& end) {
    std::vector<int32_t> out;
    std::vector<uint64_t> bits(256);  // exceeds the demo vocabulary
    std::vector<int32_t> left(script.tokens.rbegin(), script.tokens.rend());
    bool forced = false;
    while (true) {
      if (static_cast<int32_t>(out.size()) == request.max_tokens) {
        end.reason = FinishReason::length;
        return out;
      }
      std::fill(bits.begin(), bits.end(), request.mask == nullptr ? ~uint64_t{0} : 0);
      if (request.mask != nullptr) request.mask->allowed(bits);
      const auto allowed =
          std::count_if(bits.begin(), bits.end(), [](uint64_t word) { return word != 0; });
      int32_t only = -1;
      if (allowed == 1) {
        const auto word = std::find_if(bits.begin(), bits.end(), [](uint64_t w) { return w != 0; });
        if ((*word & (*word - 1)) == 0)
          only = static_cast<int32_t>(64 * (word - bits.begin())) + __builtin_ctzll(*word);
      }
      int32_t id = only;
      if (only >= 0) {
        if (!std::exchange(forced, true)) left.assign(script.closed.rbegin(), script.closed.rend());
      } else {
        if (left.empty()) return out;
        id = left.back();
        left.pop_back();
        if ((bits[static_cast<size_t>(id) / 64] >> (id % 64) & 1) == 0) continue;
      }
      if (request.mask != nullptr) request.mask->advance(id);
      out.push_back(id);
    }
  }

  Play play_;
  int32_t context_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Queued> queue_;
  std::map<RequestId, PromptToScore> held_scores_;  // guarded by mutex_
  RequestId ids_ = 0, started_ = 0;
  int32_t running_ = 0;
  bool stop_ = false, released_ = false;
  std::thread thread_;
};

inline std::shared_ptr<ServedModel> demo_served_model(std::shared_ptr<Backend> backend) {
  static const auto kFile = GgufFile::open(BRAID_SOURCE_DIR "/models/braid-demo-q8_0.gguf");
  static const auto kTokenizer =
      std::make_shared<const Tokenizer>(Tokenizer::create(read_vocabulary(*kFile).value()).value());
  static const auto kGrammars = std::make_shared<GrammarCache>(*kTokenizer);
  auto model = std::make_shared<ServedModel>();
  model->names = {"demo", "second/name"};
  model->file_name = "demo.gguf";
  model->tokenizer = kTokenizer;
  EXPECT_TRUE(describe_file(*kFile, *model).ok());
  const auto text = kFile->find_string("tokenizer.chat_template");
  model->chat.emplace(ChatTemplate::parse(**text, "", "<|im_end|>").value());
  model->abilities = probe_template(*model->chat);
  model->grammars = kGrammars;
  model->backend = std::move(backend);
  return model;
}

inline FakeBackend::Script says(const ServedModel& model, const std::string& text) {
  FakeBackend::Script script;
  script.tokens =
      model.tokenizer->encode(text, {.add_special = false, .parse_special = true}).value();
  script.stop_id = model.tokenizer->end_ids().front();
  return script;
}

class Client {
 public:
  explicit Client(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~Client() { close(); }
  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }

  bool send(const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t sent = ::send(socket_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      at += static_cast<size_t>(sent);
    }
    return true;
  }
  // Until `text` was received or the connection ended. Keeps what was read.
  bool read_until(const std::string& text) {
    while (received.find(text) == std::string::npos) {
      if (!read_some()) return false;
    }
    return true;
  }
  void read_all() {
    while (read_some()) {
    }
  }

  struct Answer {
    int status = 0;
    std::string head, body;
    Json json() const { return Json::parse(body, nullptr, false); }
  };
  Answer read_answer() {
    Answer out;
    if (!read_until("\r\n\r\n")) return out;
    const size_t end = received.find("\r\n\r\n") + 4;
    out.head = received.substr(0, end);
    received.erase(0, end);
    out.status = std::stoi(out.head.substr(9, 3));
    const size_t at = out.head.find("Content-Length: ");
    if (at != std::string::npos) {
      const size_t length = std::stoul(out.head.substr(at + 16));
      while (received.size() < length && read_some()) {
      }
      out.body = received.substr(0, length);
      received.erase(0, length);
    } else if (out.head.find("chunked") != std::string::npos) {
      while (read_until("\r\n")) {
        const size_t line = received.find("\r\n");
        const size_t length = std::stoul(received.substr(0, line), nullptr, 16);
        while (received.size() < line + 4 + length && read_some()) {
        }
        out.body += received.substr(line + 2, length);
        received.erase(0, line + 4 + length);
        if (length == 0) break;
      }
    }
    return out;
  }
  Answer ask(const std::string& method, const std::string& path, const std::string& body = "",
             const std::string& headers = "") {
    std::string text = method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers;
    if (!body.empty()) text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    send(text + "\r\n" + body);
    return read_answer();
  }

  int descriptor() const { return socket_; }

  std::string received;

 private:
  bool read_some() {
    pollfd watched{socket_, POLLIN, 0};
    if (::poll(&watched, 1, 20'000) <= 0) return false;
    char buffer[16384];
    const ssize_t count = ::recv(socket_, buffer, sizeof buffer, 0);
    if (count <= 0) return false;
    received.append(buffer, static_cast<size_t>(count));
    return true;
  }

  int socket_;
};

inline AppOptions test_options() {
  AppOptions options;
  options.version = "test";
  options.access_log = AccessLog::off;
  options.policy.thinking = Thinking::off;
  return options;
}

struct ListeningApp {
  void listen(std::unique_ptr<App> served, HttpOptions options = {}) {
    app = std::move(served);
    options.port = 0;
    auto started = HttpServer::start(options, app->handlers());
    ASSERT_TRUE(started.ok()) << started.error().message;
    http = std::move(started).value();
  }
  ~ListeningApp() { stop(); }
  void stop() {
    if (app) app->stop();
    if (http) http->stop();
  }
  uint16_t port() const { return http->port(); }

  std::unique_ptr<App> app;
  std::unique_ptr<HttpServer> http;
};

struct TestServer : ListeningApp {
  explicit TestServer(FakeBackend::Play play,
                      const std::function<void(AppOptions&, HttpOptions&)>& adjust = nullptr,
                      int32_t context = 4096)
      : backend(std::make_shared<FakeBackend>(std::move(play), context)),
        model(demo_served_model(backend)) {
    AppOptions options = test_options();
    HttpOptions http_options;
    if (adjust) adjust(options, http_options);
    listen(App::create(std::move(options), model), http_options);
  }
  ~TestServer() {
    backend->release();
    stop();
  }

  std::shared_ptr<FakeBackend> backend;
  std::shared_ptr<ServedModel> model;
};

// Whether the mask allows `text` token by token, and the end after it. Restores the mask.
inline bool mask_allows(TokenMask* mask, const Tokenizer& tokenizer, const std::string& text,
                        bool ends) {
  if (mask == nullptr) return true;
  std::vector<uint64_t> bits((static_cast<size_t>(tokenizer.size()) + 63) / 64);
  const auto allowed = [&](int32_t id) {
    std::fill(bits.begin(), bits.end(), 0);
    mask->allowed(bits);
    return (bits[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0;
  };
  int32_t written = 0;
  bool fine = true;
  const auto ids = tokenizer.encode(text, {.add_special = false});
  for (const int32_t id : *ids) {
    fine = allowed(id);
    if (!fine) break;
    mask->advance(id);
    ++written;
  }
  if (fine && ends) fine = allowed(tokenizer.end_ids().front());
  mask->rewind(written);
  return fine;
}

}  // namespace braid::server
