// chat.h -- a conversation with a model, and its terminal loop.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/result.h"
#include "cli/generate.h"
#include "cli/load_model.h"
#include "engine/request.h"
#include "text/chat.h"

namespace braid::cli {

// The messages and settings of a conversation. The model must outlive it.
class Conversation {
 public:
  struct Settings {
    std::string system;            // empty: none
    std::optional<bool> thinking;  // empty: the template's default
    nlohmann::ordered_json tools;
    SamplingParams sampling;
    int32_t max_tokens = -1;
    bool verbose = false;
  };
  Conversation(LoadedModel& model, ChatTemplate chat, Settings settings);

  // Adds both messages. An interrupted answer is kept in part; an error drops the user's message.
  Result<Answer> answer(const std::string& text);

  void clear();  // keeps the system message
  void set_system(const std::string& text);
  void set_thinking(std::optional<bool> thinking) { settings_.thinking = thinking; }

  // Writes a JSON array of messages, as `braid inspect --template` and the APIs read it.
  Status save(const std::string& path) const;
  Status load(const std::string& path);

  size_t size() const { return messages_.size(); }
  const Settings& settings() const { return settings_; }

 private:
  Result<Answer> continue_messages();

  LoadedModel& model_;
  ChatTemplate chat_;
  Settings settings_;
  nlohmann::ordered_json messages_;
};

// Reads messages and commands until the input ends. Returns the exit code.
int chat_on_terminal(LoadedModel& model, Conversation& conversation);

}  // namespace braid::cli
