// answer_stream.h -- one answer in progress: tokens in, bytes of its API out. Used by one thread at
// a time; no sockets, clock or locks.
// Token bytes -> characters -> reasoning and calls -> stop strings (content only) -> API writer.
// Looping content is ended here; the token mask ends looping thoughts.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/api/prompt.h"
#include "server/api/write_answer.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace braid::server {

class AnswerStream {
 public:
  AnswerStream(PreparedAnswer prepared, std::shared_ptr<const Tokenizer> tokenizer,
               std::unique_ptr<AnswerWriter> writer);

  // The engine began the choice's prompt. Called before open(), if at all.
  void started(int choice, int32_t cached_tokens);
  void open(std::string& out);
  void heartbeat(std::string& out) { writer_->heartbeat(out); }

  void drafts(int choice, int32_t drafted, int32_t accepted);
  // Tokens after the end of a choice are ignored.
  void token(int choice, const TokenEvent& event, std::string& out);
  // The client needs no more of the choice. The caller should cancel it in the engine.
  bool wants_end(int choice) const { return choices_[static_cast<size_t>(choice)].ended; }
  // Engine errors fail the whole answer.
  void finished(int choice, const Finished& event, std::string& out);

  void fail(const ApiError& error, std::string& out);

  bool done() const { return done_; }
  const std::optional<ApiError>& error() const { return error_; }
  // Unstreamed answers only, after done() without an error.
  Json whole() const { return writer_->whole(); }

  // So far, also of an answer that ends early.
  AnswerUsage usage() const;
  int64_t prompt_tokens() const { return usage_.prompt_tokens; }  // constant: from any thread
  const Generation& generation() const { return *prepared_.generation; }
  std::vector<Request>& requests() { return prepared_.requests; }
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
    std::vector<int32_t> content;  // tokens examined for loops
    bool ended = false;            // the rest is not shown
    bool closed = false;           // the engine has finished it
    ChoiceEnd end;
    const char* thought_closed_by = "none";
  };

  void text(int index, std::string_view text, std::string& out);
  void show(int index, AnswerEvents events, std::string& out);
  bool goes_round(size_t index, int32_t token, bool content);
  void end_loop(int index, std::string& out);
  // Sends pending text unless a stop string ends the choice. `cut`: open parts stay open.
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
  AnswerUsage usage_;                          // without what choices count
  int64_t cached_at_start_ = 0;
  Timings timings_;
  size_t closed_ = 0;
  bool done_ = false;
  std::optional<ApiError> error_;
};

}  // namespace braid::server
