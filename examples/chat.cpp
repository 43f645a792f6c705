// chat.cpp -- many users at once: each has a thread of its own, and one service answers them all.
//
//   chat MODEL.gguf "first question" "second question"
//
// The questions run together. Each sentence is printed as soon as it is complete. A sink is called
// on the engine's thread and must not block it, so it only hands the text over.
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "engine/service.h"
#include "text/chat.h"
#include "text/detokenizer.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/vocabulary.h"

using namespace braid;

namespace {

// One answer: the engine's thread writes, its user's thread reads.
class Answer : public Sink {
 public:
  explicit Answer(const Tokenizer& tokenizer) : text_(tokenizer) {}

  void token(RequestId, const TokenEvent& event) override { add(text_.push(event.id)); }
  void finished(RequestId, const Finished& end) override {
    add(text_.flush());
    const std::lock_guard lock(mutex_);
    end_ = end;
    changed_.notify_one();
  }

  // The next sentence, or what is left of the answer; empty at its end.
  std::string next() {
    std::unique_lock lock(mutex_);
    size_t end = 0;
    changed_.wait(
        lock, [&] { return (end = waiting_.find_first_of(".!?\n")) != std::string::npos || end_; });
    std::string sentence = waiting_.substr(0, end == std::string::npos ? end : end + 1);
    waiting_.erase(0, sentence.size());
    return sentence;
  }
  const Finished& end() const { return *end_; }  // after next() has been empty

 private:
  void add(const std::string& text) {
    const std::lock_guard lock(mutex_);
    waiting_ += text;
    changed_.notify_one();
  }

  StreamingDetokenizer text_;  // of the engine's thread
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string waiting_;          // guarded by mutex_
  std::optional<Finished> end_;  // guarded by mutex_
};

// Everything here may be used by any number of threads.
struct Model {
  const Tokenizer& tokenizer;
  const ChatTemplate& chat;
  EngineService& service;
};

Status ask(const Model& model, int user, const std::string& question) {
  auto messages = nlohmann::ordered_json::array({chat_message("user", question)});
  ChatOptions options;
  options.enable_thinking = false;
  BRAID_ASSIGN(const RenderedText prompt, model.chat.render(messages, nullptr, options));
  Request request;
  BRAID_ASSIGN(request.prompt, model.tokenizer.encode_rendered(prompt));
  request.max_tokens = 96;
  request.stop_ids = model.tokenizer.end_ids();
  const auto answer = std::make_shared<Answer>(model.tokenizer);
  BRAID_ASSIGN([[maybe_unused]] const RequestId id,
               model.service.submit(std::move(request), answer));
  for (std::string text = answer->next(); !text.empty(); text = answer->next())
    if (const size_t begin = text.find_first_not_of(" \n"); begin != text.npos)
      std::printf("[%d] %s\n", user, text.c_str() + begin);
  const Finished& end = answer->end();
  std::printf("[%d] (%s, %d tokens)\n", user, finish_reason_name(end.reason),
              end.usage.generated_tokens);
  return {};
}

Status run(int argc, char** argv) {
  BRAID_ASSIGN(const GgufFile file, GgufFile::open(argv[1]));
  BRAID_ASSIGN(auto vocabulary, read_vocabulary(file));
  BRAID_ASSIGN(const Tokenizer tokenizer, Tokenizer::create(std::move(vocabulary)));
  BRAID_ASSIGN(const ChatTemplate chat, read_chat_template(file, tokenizer));
  EngineOptions options;
  options.max_sequences = 4;  // more users wait until a place is free
  options.context_tokens = 2048;
  BRAID_ASSIGN(auto engine, Engine::create(file, options));
  const auto service = EngineService::start(std::move(engine), {});

  const Model model{tokenizer, chat, *service};
  std::vector<Status> results(argc);
  std::vector<std::thread> users;
  for (int i = 2; i < argc; ++i)
    users.emplace_back([&, i] { results[i] = ask(model, i - 1, argv[i]); });
  for (std::thread& user : users) user.join();
  for (const Status& result : results)
    if (!result.ok()) return result;
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s MODEL.gguf QUESTION...\n", argv[0]);
    return 2;
  }
  init_log();  // warnings go to stderr
  const Status status = run(argc, argv);
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.error().message.c_str());
  return status.ok() ? 0 : 2;
}
