// served_model.h -- a model as the server sees it: its text side, its defaults, and who generates for it.
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

class GrammarCache;

struct ServedModel {
  std::vector<std::string> names;  // what clients may call it; the first is the one shown
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
  std::shared_ptr<const void> source;  // what the backend reads from; goes after it
  std::shared_ptr<Backend> backend;
  std::shared_ptr<GrammarCache> grammars;  // for answers of a given form; null: not offered

  const std::string& name() const { return names.front(); }
};

// What clients are told about a model, from its file: architecture, quantization, parameters, file_bytes.
Status describe_file(const GgufFile& file, ServedModel& model);

enum class Thinking { automatic, on, off };

// What the operator decided about prompts and answers.
struct AnswerPolicy {
  Thinking thinking = Thinking::automatic;
  LateSystem late_system = LateSystem::attach;
  std::optional<bool> preserve_thinking;  // not set: when the client sends reasoning back
  bool calls_in_reasoning = true;
  bool low_priority_first = false;  // requests mean vLLM's priorities, of which the lowest goes first
  // What calls are held to where the client asks for nothing: the offered names, or their schemas too.
  enum class ToolForm { free, names, full } tool_form = ToolForm::free;
  int64_t default_max_tokens = -1;      // when the request names none; -1: the rest of the context
  int32_t reply_reserve_tokens = 4096;  // kept for the visible answer, of a limited one at most a quarter
  int64_t most_think_tokens = -1;       // of any thought, whatever is asked for; -1: no bound
  LoopGuard loop_guard = LoopGuard::think;
  bool loop_ends_as_length = false;  // an answer that loops: as one that reached its limit
  std::map<std::string, int64_t> effort_tokens = {
      {"low", 4032}, {"medium", 16128}, {"high", 32256}, {"xhigh", 56832}, {"max", 81408}};
};

}  // namespace braid::server
