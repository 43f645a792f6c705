// served_model.h -- a model for the server: its text side, its defaults and its backend.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gguf/gguf.h"
#include "server/api/backend.h"
#include "server/api/conversation.h"
#include "server/api/generation.h"
#include "text/chat.h"
#include "text/tokenizer/tokenizer.h"

namespace braid::server {

class ConversationCompressor;
class GrammarCache;

struct ServedModel {
  std::vector<std::string> names;  // accepted from clients; the first is shown
  std::string file_name;           // without its folder
  std::string architecture;
  std::string quantization;
  int64_t parameters = 0;
  int64_t file_bytes = 0;
  int64_t trained_context_tokens = 0;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat;  // empty: only completions
  TemplateAbilities abilities;
  SamplingParams defaults;
  std::shared_ptr<const void> source;  // the backend's data; destroyed after it
  std::shared_ptr<Backend> backend;
  std::shared_ptr<ConversationCompressor> compressor;  // null: nothing is compressed
  std::shared_ptr<GrammarCache> grammars;              // structured output; null: not offered

  const std::string& name() const { return names.front(); }
};

// Sets what clients see of the file: architecture, quantization, parameters, file_bytes.
Status describe_file(const GgufFile& file, ServedModel& model);

enum class Thinking { automatic, on, off };

struct AnswerPolicy {
  Thinking thinking = Thinking::automatic;
  LateSystem late_system = LateSystem::attach;
  std::optional<bool> preserve_thinking;  // unset: if the client sends reasoning back
  bool low_priority_first = false;        // priorities as in vLLM: the lowest runs first
  // Constraint of calls when the client sets none: offered names (names), also schemas (full).
  enum class ToolForm { free, names, full } tool_form = ToolForm::free;
  int64_t default_max_tokens = -1;      // without one in the request; -1: rest of the context
  int32_t reply_reserve_tokens = 4096;  // of the answer, at most a quarter of its limit
  int64_t most_thought_tokens = -1;     // limit of any thought; -1: none
  LoopGuard loop_guard = LoopGuard::think;
  bool loop_ends_as_length = false;  // a looping answer is reported as reaching its limit
  std::map<std::string, int64_t> effort_tokens = {
      {"low", 4032}, {"medium", 16128}, {"high", 32256}, {"xhigh", 56832}, {"max", 81408}};
};

}  // namespace braid::server
