// complete.cpp -- the engine as a library: two prompts at once, each streamed to its own file.
//   complete MODEL.gguf "first prompt" "second prompt"
// Build: `ninja example_complete`. Tokenizer converts text to ids; the engine sees only ids.
// Requests share the KV blocks of a common prefix.
#include <cstdio>
#include <memory>
#include <string>

#include "base/log.h"
#include "engine/engine.h"
#include "text/detokenizer.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/vocabulary.h"

using namespace braid;

namespace {

// Receives one answer. Called between the engine's steps.
class Printer : public Sink {
 public:
  Printer(const Tokenizer& tokenizer, int number) : text_(tokenizer), number_(number) {}
  void token(RequestId, const TokenEvent& event) override { answer_ += text_.push(event.id); }
  void finished(RequestId, const Finished& end) override {
    answer_ += text_.flush();
    std::printf("--- %d (%s): %d prompt tokens, %d of them cached, %d generated\n%s\n", number_,
                finish_reason_name(end.reason), end.usage.prompt_tokens, end.usage.cached_tokens,
                end.usage.generated_tokens, answer_.c_str());
  }

 private:
  StreamingDetokenizer text_;
  std::string answer_;
  int number_;
};

Status run(int argc, char** argv) {
  BRAID_ASSIGN(const GgufFile file, GgufFile::open(argv[1]));
  BRAID_ASSIGN(auto vocabulary, read_vocabulary(file));
  BRAID_ASSIGN(const Tokenizer tokenizer, Tokenizer::create(std::move(vocabulary)));
  EngineOptions options;
  options.max_sequences = argc - 2;
  BRAID_ASSIGN(const auto engine, Engine::create(file, options));
  std::vector<std::unique_ptr<Printer>> printers;
  for (int i = 2; i < argc; ++i) {
    Request request;
    BRAID_ASSIGN(request.prompt, tokenizer.encode(argv[i]));
    request.max_tokens = 64;
    request.stop_ids = tokenizer.end_ids();
    printers.push_back(std::make_unique<Printer>(tokenizer, i - 1));
    BRAID_ASSIGN([[maybe_unused]] const RequestId id,
                 engine->submit(std::move(request), *printers.back()));
  }
  engine->run_until_idle();
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s MODEL.gguf PROMPT...\n", argv[0]);
    return 2;
  }
  init_log();  // warnings go to stderr
  const Status status = run(argc, argv);
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.error().message.c_str());
  return status.ok() ? 0 : 2;
}
