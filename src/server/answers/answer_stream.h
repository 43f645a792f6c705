// answer_stream.h -- one answer while it is made: tokens in, bytes of its API out.
//
// Token bytes -> whole characters -> reasoning and calls -> stop strings (content only) -> the writer of the
// API. Content that goes round in a loop is ended here; thoughts are by their mask. No sockets, no clock, no locks: whoever owns it calls it from one thread at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/answers/write_answer.h"
#include "server/requests/prompt.h"
#include "text/answer/detokenizer.h"
#include "text/answer/stop_strings.h"

namespace braid::server {

class AnswerStream {
 public:
  AnswerStream(PreparedAnswer prepared, std::shared_ptr<const Tokenizer> tokenizer,
               std::unique_ptr<AnswerWriter> writer);

  // A choice's prompt is begun, `cached_tokens` of it are known. Before open(), if at all.
  void started(int choice, int32_t cached_tokens);
  void open(std::string& out);
  void heartbeat(std::string& out) { writer_->heartbeat(out); }

  // Drafts for a choice were verified; its tokens follow.
  void drafts(int choice, int32_t drafted, int32_t accepted);
  // A token of choice `choice`. Tokens behind the end of a choice are ignored.
  void token(int choice, const TokenEvent& event, std::string& out);
  // The choice is complete for the client although the engine goes on: it should be cancelled.
  bool wants_end(int choice) const { return choices_[static_cast<size_t>(choice)].ended; }
  // The engine's last word. Errors of the engine fail the whole answer.
  void finished(int choice, const Finished& event, std::string& out);

  // Ends the answer at once with an error; nothing follows.
  void fail(const ApiError& error, std::string& out);

  // All choices are closed, or the answer failed.
  bool done() const { return done_; }
  const std::optional<ApiError>& error() const { return error_; }
  // Unstreamed, once done without error.
  Json whole() const { return writer_->whole(); }

  const AnswerUsage& usage() const { return usage_; }
  const Generation& generation() const { return *prepared_.generation; }
  std::vector<Request>& requests() { return prepared_.requests; }
  // How the first choice ended, for logs and metrics.
  AnswerEnd end() const { return choices_[0].end.reason; }
  AnswerRepairs repairs() const;
  int32_t calls() const;
  AnswerLoops loops() const;
  const Timings& timings() const { return timings_; }

 private:
  struct Choice {
    std::unique_ptr<StreamingDetokenizer> detokenizer;
    std::unique_ptr<AnswerParser> parser;  // null: all text is content
    std::unique_ptr<StopStrings> stops;
    std::vector<TokenLogprob> logprobs;  // not yet given to the writer
    int64_t generated_tokens = 0;
    int64_t reasoning_tokens = 0;
    int64_t content_tokens = 0;
    bool content_begun = false;
    std::vector<int32_t> content;  // tokens since content began, or since the last call; if loops count
    bool ended = false;            // nothing more is shown
    bool closed = false;           // the engine is done with it
    ChoiceEnd end;
    const char* thinking_closed_by = "none";
  };

  void text(int index, std::string_view text, std::string& out);
  void show(int index, AnswerEvents events, std::string& out);
  bool goes_round(size_t index, int32_t token, bool content);
  void end_loop(int index, std::string& out);
  // All text that was held back, as far as nothing ends the choice; `cut`: what is open stays open.
  void flush(int index, bool cut, std::string& out);
  void end(int index, AnswerEnd reason, std::string& out);
  TokenLogprob logprob_of(const TokenEvent& event) const;
  void echo(size_t index, bool scored, std::string& out);
  Json extra() const;

  PreparedAnswer prepared_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<AnswerWriter> writer_;
  std::vector<Choice> choices_;
  std::optional<LoopDetector> loop_detector_;  // of content
  AnswerUsage usage_;
  int64_t cached_at_start_ = 0;
  Timings timings_;
  size_t closed_ = 0;
  bool done_ = false;
  std::optional<ApiError> error_;
};

}  // namespace braid::server
