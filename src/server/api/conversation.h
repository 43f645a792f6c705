// conversation.h -- a conversation, whichever API it came through, made fit for a model's template.
//
// Templates refuse much that clients legally send: system messages late or twice, no user message, call
// arguments that are no object. normalise() repairs all of that, the same way every time, because a repair
// that depends on later messages would change the text of earlier ones and cost the prefix cache.
//
// Not here: reading requests and rendering (requests/).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/json/json.h"
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
  std::string call_id = {};  // role tool: which call it answers
  std::string name = {};     // role tool: the tool, if the client said
  // Of text, at its start: what a system message says in this user's turn, with the blank line behind it.
  size_t system_bytes = 0;
};
using Messages = std::vector<Message>;

// What a template can do, found out by rendering small conversations.
struct TemplateAbilities {
  bool system_role = true;
  bool late_system = false;  // system messages behind the first turn
  bool tools = false;
  bool calls = false;              // assistant turns with calls
  bool arguments_as_text = false;  // wants call arguments as JSON text
  bool parallel_calls = false;
  bool reasoning = false;                 // keeps reasoning inside a tool loop
  bool preserve_thinking = false;         // knows the variable of that name
  bool thinking_switch = false;           // enable_thinking changes the prompt
  bool thinks_by_default = false;         // the prompt opens a think block when nobody says anything
  bool effort = false;                    // reads reasoning_effort
  std::vector<std::string> efforts = {};  // accepted values
  Dialect dialect = {};                   // the markup that it writes
};
TemplateAbilities probe_template(const ChatTemplate& chat);

// What becomes of system messages behind the first turn, for templates that take none there.
//   attach  one behind a user's message opens that user's turn, so that the question stays last; one behind a
//           tool's result ends it; one behind an answer is a turn of its own. Nothing before it changes.
//   merge   it joins the system message at the start
//   native  it stays where it is, if the template takes it; else attach
enum class LateSystem { attach, merge, native };

Messages normalise(Messages messages, const TemplateAbilities& abilities, LateSystem late_system);

// Messages as templates expect them.
Json template_messages(const Messages& messages, const TemplateAbilities& abilities);
// system_bytes of each, for ChatOptions::instruction_bytes.
std::vector<size_t> instruction_bytes(const Messages& messages);

// Text parts of one message become one text: with one line feed between parts unless one is there.
void join_text(std::string& text, std::string_view more);

// The JSON text of call arguments as an object; what is no object becomes {"_raw": text}. Empty: the budget has
// not so many values left.
std::optional<Json> arguments_object(const std::string& text, JsonBudget& budget);

// Roles, the other way round.
const char* role_name(Message::Role role);

}  // namespace braid::server
