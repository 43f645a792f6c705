// write_answer.h -- answers of every API: events to JSON, streamed or whole. Pure: no clock, no randomness of
// its own, no sockets.
//
//   open()                 before the prompt is run
//   heartbeat()*           while nothing else happens
//   events()*              per choice, in order of the text
//   end_choice()           once per choice
//   close()                after the last choice, or
//   fail()                 instead, at any time after open()
// All append the bytes to send. An unstreamed answer is made by the same calls, which then append nothing,
// and taken with whole().
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
#include "text/answer/answer_parser.h"

namespace braid::server {

// A token's log probability with the text it stands for.
struct TokenLogprob {
  std::string bytes;
  float logprob = 0;                               // NaN: there is none
  std::vector<std::pair<std::string, float>> top;  // bytes, best first
};

// repetition: the text went round in a loop.
enum class AnswerEnd { stop, stop_string, stop_token, repetition, length, tool_calls };
// In the words of OpenAI, which logs and metrics use too.
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
  bool looped = false;           // the text went round in a loop, whatever the reason is called
  int64_t reasoning_tokens = 0;
};

struct AnswerContext {
  std::string id;  // of the whole answer, with the API's prefix
  int64_t created_s = 0;
  std::string model;
  std::string fingerprint;  // empty: left out
  // Fresh ids: prefix + 24 characters.
  std::function<std::string(const char* prefix)> new_id;
  std::function<int64_t()> now_s;
  double temperature = 1.0, top_p = 0.95;  // in force, for APIs that repeat them
};

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  virtual void open(const AnswerUsage& known, std::string& out) = 0;
  virtual void heartbeat(std::string& out) = 0;
  // `logprobs`: of tokens whose text is in these events or came before; may be empty.
  virtual void events(int choice, std::span<const AnswerEvent> events, std::span<const TokenLogprob> logprobs,
                      std::string& out) = 0;
  virtual void end_choice(int choice, const ChoiceEnd& end, std::string& out) = 0;
  // `extra`: further members of the last object (timings, braid); may be empty.
  virtual void close(const AnswerUsage& usage, const Json& extra, std::string& out) = 0;
  virtual void fail(const ApiError& error, std::string& out) = 0;
  virtual Json whole() const = 0;
};

// `generation` must outlive the writer.
std::unique_ptr<AnswerWriter> make_writer(const Generation& generation, AnswerContext context);

// The prefix of an answer's id.
const char* answer_id_prefix(Endpoint endpoint);

std::unique_ptr<AnswerWriter> make_chat_writer(const Generation& generation, AnswerContext context);
std::unique_ptr<AnswerWriter> make_completions_writer(const Generation& generation, AnswerContext context);
std::unique_ptr<AnswerWriter> make_responses_writer(const Generation& generation, AnswerContext context);
std::unique_ptr<AnswerWriter> make_messages_writer(const Generation& generation, AnswerContext context);

// ---- For the writers -------------------------------------------------------------------------------------

// JSON text on one line; what is no UTF-8 is replaced, never thrown.
std::string dump(const Json& json);
void append_data(std::string& out, const Json& json);                     // data: JSON
void append_event(std::string& out, const char* type, const Json& json);  // event: TYPE, data: JSON
Json openai_usage(const AnswerUsage& usage);
Json chat_logprob(const TokenLogprob& token);

}  // namespace braid::server
