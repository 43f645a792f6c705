// chat.h -- a conversation with a model, and the terminal that it is held on.
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

// Messages so far, and what is the same for every turn. The model must live as long.
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

  // Adds the user's message, streams the answer and keeps both. An interrupted answer is kept as far as it came. After
  // an error the message is not kept.
  Result<Answer> answer(const std::string& text);

  void clear();  // but for the system message
  void set_system(const std::string& text);
  void set_thinking(std::optional<bool> thinking) { settings_.thinking = thinking; }

  // As a JSON array of messages, which `braid inspect --template` and the APIs read, too.
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

// Reads messages and commands from the terminal until it ends. The exit code.
int chat_on_terminal(LoadedModel& model, Conversation& conversation);

}  // namespace braid::cli
