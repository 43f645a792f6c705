// write_answer.h -- answers of every API: events to JSON. No clock, random numbers or sockets.
//   open()         before the prompt is run;
//   heartbeat()*   while there are no other events;
//   events()*      per choice, in order of the text;
//   end_choice()   once per choice;
//   close()        after the last choice;
//   fail()         instead, at any time after open().
// Each appends the bytes to send, or nothing if the answer is unstreamed; whole() returns that.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/api/answer_usage.h"
#include "server/api/generation.h"
#include "text/answer_parser.h"

namespace braid::server {

struct TokenLogprob {
  std::string bytes;
  float logprob = 0;                               // NaN: not known
  std::vector<std::pair<std::string, float>> top;  // bytes, best first
};

// repetition: the text looped.
enum class AnswerEnd { stop, stop_string, stop_token, repetition, length, tool_calls };
// OpenAI's name, also used in logs and metrics.
inline const char* finish_reason(AnswerEnd end) {
  switch (end) {
    case AnswerEnd::length:
      return "length";
    case AnswerEnd::tool_calls:
      return "tool_calls";
    default:
      return "stop";
  }
}

struct ChoiceEnd {
  AnswerEnd reason = AnswerEnd::stop;
  std::string stop_string = {};  // reason stop_string
  int32_t stop_token = -1;       // reason stop_token
  bool looped = false;           // the text looped, independent of `reason`
  int64_t reasoning_tokens = 0;
};

struct AnswerContext {
  std::string id;  // of the whole answer, with the API's prefix
  int64_t created_s = 0;
  std::string model;
  std::string fingerprint;  // empty: left out
  // Returns `prefix` and 24 random characters.
  std::function<std::string(const char* prefix)> new_id;
  std::function<int64_t()> now_s;
  double temperature = 1.0, top_p = 0.95;  // effective values, for APIs that report them
};

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  virtual void open(const AnswerUsage& known, std::string& out) = 0;
  virtual void heartbeat(std::string& out) = 0;
  // `logprobs`: tokens whose text is in these or earlier events; may be empty.
  virtual void events(int choice, std::span<const AnswerEvent> events,
                      std::span<const TokenLogprob> logprobs, std::string& out) = 0;
  virtual void end_choice(int choice, const ChoiceEnd& end, std::string& out) = 0;
  // `extra`: more members for the last object (timings, braid); may be empty.
  virtual void close(const AnswerUsage& usage, const Json& extra, std::string& out) = 0;
  virtual void fail(const ApiError& error, std::string& out) = 0;
  virtual Json whole() const = 0;
};

// `generation` must outlive the writer.
std::unique_ptr<AnswerWriter> make_writer(const Generation& generation, AnswerContext context);

const char* answer_id_prefix(Endpoint endpoint);

std::unique_ptr<AnswerWriter> make_chat_writer(const Generation& generation, AnswerContext context);
std::unique_ptr<AnswerWriter> make_completions_writer(const Generation& generation,
                                                      AnswerContext context);
std::unique_ptr<AnswerWriter> make_responses_writer(const Generation& generation,
                                                    AnswerContext context);
std::unique_ptr<AnswerWriter> make_messages_writer(const Generation& generation,
                                                   AnswerContext context);

// JSON on one line. Invalid UTF-8 is replaced; never throws for it.
std::string dump(const Json& json);
void append_data(std::string& out, const Json& json);                     // data: JSON
void append_event(std::string& out, const char* type, const Json& json);  // event: TYPE, data: JSON
// The member with cached and compressed tokens.
Json prompt_details(const AnswerUsage& usage);
Json openai_usage(const AnswerUsage& usage);
Json chat_logprob(const TokenLogprob& token);

}  // namespace braid::server
