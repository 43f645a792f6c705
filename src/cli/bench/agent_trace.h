// agent_trace.h -- a long session of an agent that reads files, logs and changes, with facts in an
// early, a middle and a late turn, and a question for each.
//
// A turn is a message of the user, calls with their outputs, and a summary. The same on every
// platform.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/bench/needle_facts.h"
#include "cli/bench/needle_stock.h"

namespace braid::cli {

inline constexpr int64_t kLeastTurnTokens = 800;

struct TraceShape {
  uint64_t seed = 0;
  int64_t tokens = 0;  // most of all messages; each turn has an equal share
  int32_t turns = 3;
  int64_t message_tokens = 0;  // that the caller's template adds to each message
};

struct TraceMessage {
  std::string role;  // "user", "assistant" or "tool"
  std::string content;
};

// To be asked after all messages, by itself.
struct TraceQuestion {
  std::string text;
  std::vector<std::string> answers;  // each stands once in all messages, not in a question
  Needle needle = Needle::number;
  int32_t turn = 0;           // from 0
  size_t message = 0;         // with the fact
  size_t begin = 0, end = 0;  // bytes of the fact in its content
};

struct AgentTrace {
  TraceShape shape;
  std::string id;
  std::vector<TraceMessage> messages;
  std::vector<TraceQuestion> questions;  // of the early, the middle and the late fact
  int64_t tokens = 0;                    // of all messages, at least 0.99 of the shape's
};

// "agent-t65536-n12-s1".
std::string trace_id(const TraceShape& shape);

// Errors: invalid_argument (fewer than three turns, fewer than kLeastTurnTokens for a turn);
// unsupported (a tokenizer whose counts do not come near any number); those of the encoder.
Result<AgentTrace> make_agent_trace(const TraceShape& shape, const EncodeText& encode);

// See contains_all().
bool contains_answers(std::string_view text, const TraceQuestion& question);

}  // namespace braid::cli
