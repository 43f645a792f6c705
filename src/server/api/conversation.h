// conversation.h -- a conversation of any API, repaired for the model's template.
// Templates refuse much that clients legally send: late or repeated system messages, no user
// message, call arguments that are not an object. A repair must not depend on later messages: that
// would change the text of earlier ones and invalidate the prefix cache.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "server/api/api_error.h"
#include "text/chat.h"
#include "text/dialect.h"

namespace braid::server {

struct ToolCall {
  std::string id;
  std::string name;
  Json arguments = Json::object();
};

struct Message {
  enum class Role { system, user, assistant, tool };
  Role role = Role::user;
  std::string text = {};
  std::optional<std::string> reasoning = {};
  std::vector<ToolCall> calls = {};
  std::string call_id = {};  // role tool: the call it answers
  std::string name = {};     // role tool: the tool, if the client sent it
  // Leading bytes of `text` that are a system message, with the blank line after it.
  size_t system_bytes = 0;
};
using Messages = std::vector<Message>;

// Detected by rendering small conversations.
struct TemplateAbilities {
  bool system_role = true;
  bool late_system = false;  // system messages after the first turn
  bool tools = false;
  bool calls = false;              // assistant turns with calls
  bool arguments_as_text = false;  // needs call arguments as JSON text
  bool parallel_calls = false;
  bool reasoning = false;                 // keeps reasoning inside a tool loop
  bool preserve_thinking = false;         // reads the variable of that name
  bool thinking_switch = false;           // enable_thinking changes the prompt
  bool thinks_by_default = false;         // the prompt opens a think block by default
  bool effort = false;                    // reads reasoning_effort
  std::vector<std::string> efforts = {};  // accepted by the template
  Dialect dialect = {};                   // the markup of its calls
};
TemplateAbilities probe_template(const ChatTemplate& chat);

// System messages after the first turn, for templates that do not accept them there.
// - attach: earlier text does not change. After a user's message it opens that turn, so the
//   question stays last. After a tool's result it ends that turn, after an answer it is a new turn.
// - merge: joined to the system message at the start.
// - native: unchanged if the template accepts it, else attach.
enum class LateSystem { attach, merge, native };

Messages normalise(Messages messages, const TemplateAbilities& abilities, LateSystem late_system);

Json template_messages(const Messages& messages, const TemplateAbilities& abilities);
std::vector<size_t> instruction_bytes(const Messages& messages);

// Puts one line feed between the parts unless there is one.
void join_text(std::string& text, std::string_view more);

// Text that is not a JSON object becomes {"_raw": text}. Empty if the budget is exhausted.
std::optional<Json> arguments_object(const std::string& text, JsonBudget& budget);

const char* role_name(Message::Role role);

}  // namespace braid::server
