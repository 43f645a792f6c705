// conversation.cpp -- see conversation.h.
#include "server/api/conversation.h"

#include <algorithm>
#include <map>

#include "text/blanks.h"

namespace braid::server {
namespace {

using Role = Message::Role;

bool says_nothing(std::string_view text) { return all_blank(text, kAsciiBlanks); }

void append_paragraph(std::string& text, std::string_view more) {
  if (more.empty()) return;
  if (!text.empty()) text += "\n\n";
  text += more;
}

Messages merge_head(Messages messages) {
  Messages out;
  size_t at = 0;
  std::string head;
  for (; at < messages.size() && messages[at].role == Role::system; ++at) {
    if (!says_nothing(messages[at].text)) append_paragraph(head, messages[at].text);
  }
  if (!head.empty()) out.push_back({.role = Role::system, .text = std::move(head)});
  std::move(messages.begin() + static_cast<ptrdiff_t>(at), messages.end(), std::back_inserter(out));
  return out;
}

std::string reminder(const std::string& text) {
  return "<system-reminder>\n" + std::string(trimmed(text, kAsciiBlanks)) + "\n</system-reminder>";
}

// Joins late system messages to the turn before, so that text rendered earlier does not change. In
// a user turn they precede the user's words, kept in own_ so that a turn is written once.
class LateMessages {
 public:
  void push(Message message) {
    close();
    out_.push_back(std::move(message));
  }

  void attach(const Message& system) {
    if (says_nothing(system.text)) return;
    const std::string text = reminder(system.text);
    if (!out_.empty() && out_.back().role == Role::tool) {
      append_paragraph(out_.back().text, text);
      return;
    }
    if (out_.empty() || out_.back().role != Role::user) push({.role = Role::user});
    Message& user = out_.back();
    if (!own_) {
      own_ = user.text.substr(user.system_bytes);
      if (says_nothing(*own_)) own_->clear();
      user.text.resize(user.system_bytes);
      while (user.text.ends_with('\n')) user.text.pop_back();
    }
    append_paragraph(user.text, text);
  }

  Messages take() {
    close();
    return std::move(out_);
  }

 private:
  void close() {
    if (!own_) return;
    Message& user = out_.back();
    if (!own_->empty()) user.text += "\n\n";
    user.system_bytes = user.text.size();
    user.text += *own_;
    own_.reset();
  }

  Messages out_;
  std::optional<std::string> own_;  // the user's words of the last turn
};

Messages merge_late(Messages messages) {
  Messages out;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != Role::system || i == 0) {
      out.push_back(std::move(messages[i]));
    } else {
      if (out[0].role != Role::system) out.insert(out.begin(), {.role = Role::system});
      append_paragraph(out[0].text, messages[i].text);
    }
  }
  return out;
}

Messages place_late_system(Messages messages, const TemplateAbilities& abilities,
                           LateSystem policy) {
  if (policy == LateSystem::native && abilities.late_system) return messages;
  if (policy == LateSystem::merge) return merge_late(std::move(messages));
  LateMessages out;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role == Role::system && i > 0) {
      out.attach(messages[i]);
    } else {
      out.push(std::move(messages[i]));
    }
  }
  return out.take();
}

// Sorts the results after an assistant turn by its calls. Results of unknown calls stay put.
void sort_results(Messages& messages) {
  std::map<std::string, std::string> names;  // call id -> tool
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != Role::assistant || messages[i].calls.empty()) continue;
    std::map<std::string, size_t> order;
    for (const ToolCall& call : messages[i].calls) {
      if (!call.id.empty()) order.emplace(call.id, order.size());
      names[call.id] = call.name;
    }
    std::vector<size_t> places;
    for (size_t j = i + 1; j < messages.size() && messages[j].role == Role::tool; ++j) {
      if (order.contains(messages[j].call_id)) places.push_back(j);
    }
    std::vector<Message> known;
    for (const size_t place : places) known.push_back(std::move(messages[place]));
    std::stable_sort(known.begin(), known.end(), [&](const Message& a, const Message& b) {
      return order.at(a.call_id) < order.at(b.call_id);
    });
    for (size_t k = 0; k < places.size(); ++k) messages[places[k]] = std::move(known[k]);
  }
  for (Message& message : messages) {
    if (message.role != Role::tool || !message.name.empty()) continue;
    if (const auto found = names.find(message.call_id); found != names.end())
      message.name = found->second;
  }
}

// Templates of the family look for a user message that is not a tool response.
bool is_query(const Message& message, const Dialect& dialect) {
  return message.role == Role::user && !dialect.is_result(trimmed(message.text, kAsciiBlanks));
}

// Templates look back from a tool result, so a leading one gets a user message before it.
void ensure_query(Messages& messages, const Dialect& dialect) {
  const bool query = std::any_of(messages.begin(), messages.end(), [&](const Message& message) {
    return is_query(message, dialect);
  });
  if (!query && !messages.empty() && messages.back().role == Role::system) {
    messages.back().role = Role::user;
    messages.back().system_bytes = messages.back().text.size();
    return;
  }
  const auto first =
      messages.begin() + (!messages.empty() && messages[0].role == Role::system ? 1 : 0);
  const bool orphan = first != messages.end() && first->role == Role::tool;
  if (!query || orphan) messages.insert(first, Message{.role = Role::user});
}

}  // namespace

const char* role_name(Role role) {
  switch (role) {
    case Role::system:
      return "system";
    case Role::user:
      return "user";
    case Role::assistant:
      return "assistant";
    case Role::tool:
      return "tool";
  }
  return "user";
}

void join_text(std::string& text, std::string_view more) {
  if (!text.empty() && !more.empty() && !text.ends_with('\n') && !more.starts_with('\n'))
    text += '\n';
  text += more;
}

std::optional<Json> arguments_object(const std::string& text, JsonBudget& budget) {
  if (says_nothing(text)) return Json::object();
  auto parsed = parse_json(text, budget);
  if (parsed.ok() && parsed->is_object()) return std::move(*parsed);
  if (!parsed.ok() && parsed.error().kind == ErrorKind::exhausted) return std::nullopt;
  return Json{{"_raw", text}};
}

Messages normalise(Messages messages, const TemplateAbilities& abilities, LateSystem late_system) {
  std::erase_if(messages, [](const Message& message) {
    return message.role == Role::assistant && message.text.empty() && message.calls.empty() &&
           message.reasoning.value_or("").empty();
  });
  messages = place_late_system(merge_head(std::move(messages)), abilities, late_system);
  sort_results(messages);
  if (!abilities.system_role && !messages.empty() && messages[0].role == Role::system) {
    const std::string text = std::move(messages[0].text);
    messages.erase(messages.begin());
    const auto user = std::find_if(messages.begin(), messages.end(), [](const Message& message) {
      return message.role == Role::user;
    });
    if (user == messages.end()) {
      messages.insert(messages.begin(),
                      {.role = Role::user, .text = text, .system_bytes = text.size()});
    } else {
      const std::string own = std::move(user->text);
      user->text = text + "\n\n";
      user->system_bytes += user->text.size();
      user->text += own;
    }
  }
  ensure_query(messages, abilities.dialect);
  return messages;
}

Json template_messages(const Messages& messages, const TemplateAbilities& abilities) {
  Json out = Json::array();
  for (const Message& message : messages) {
    Json json{{"role", role_name(message.role)}, {"content", message.text}};
    if (message.reasoning) json["reasoning_content"] = *message.reasoning;
    if (!message.calls.empty()) {
      Json calls = Json::array();
      for (const ToolCall& call : message.calls) {
        Json arguments = abilities.arguments_as_text ? Json(call.arguments.dump()) : call.arguments;
        calls.push_back({{"id", call.id},
                         {"type", "function"},
                         {"function", {{"name", call.name}, {"arguments", std::move(arguments)}}}});
      }
      json["tool_calls"] = std::move(calls);
    }
    if (message.role == Role::tool) {
      json["tool_call_id"] = message.call_id;
      if (!message.name.empty()) json["name"] = message.name;
    }
    out.push_back(std::move(json));
  }
  return out;
}

std::vector<size_t> instruction_bytes(const Messages& messages) {
  std::vector<size_t> out;
  for (const Message& message : messages) out.push_back(message.system_bytes);
  return out;
}

namespace {

class Prober {
 public:
  explicit Prober(const ChatTemplate& chat) : chat_(chat) {}

  // Empty if the template fails. After it hit its limits it is not run again: loading stays fast.
  std::string render(const Json& messages, const Json& tools = nullptr,
                     const ChatOptions& options = {}) {
    if (endless_) return {};
    auto text = chat_.render(messages, tools, options);
    endless_ = !text.ok() && text.error().kind == ErrorKind::exhausted;
    return text.ok() ? std::move(text->text) : std::string();
  }

  static Json call_turn(const Json& arguments, int calls) {
    Json list = Json::array();
    for (int i = 0; i < calls; ++i) {
      list.push_back(
          {{"id", "call_" + std::to_string(i)},
           {"type", "function"},
           {"function", {{"name", "FUNCNAME" + std::to_string(i)}, {"arguments", arguments}}}});
    }
    return Json{{"role", "assistant"}, {"content", ""}, {"tool_calls", std::move(list)}};
  }

 private:
  const ChatTemplate& chat_;
  bool endless_ = false;
};

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

void probe_calls(Prober& prober, TemplateAbilities& abilities) {
  const Json user = chat_message("user", "USERTEXT"), later = chat_message("user", "AGAIN");
  const Json tools =
      Json::array({{{"type", "function"},
                    {"function",
                     {{"name", "TOOLNAME"},
                      {"description", "d"},
                      {"parameters", {{"type", "object"}, {"properties", Json::object()}}}}}}});
  abilities.tools = has(prober.render(Json::array({user}), tools), "TOOLNAME");
  const Json object{{"ARGKEY", "ARGVALUE"}};
  std::string text = prober.render(Json::array({user, Prober::call_turn(object, 1), later}), tools);
  abilities.calls = has(text, "ARGKEY") && has(text, "ARGVALUE");
  if (!abilities.calls) {
    text = prober.render(Json::array({user, Prober::call_turn(object.dump(), 1), later}), tools);
    abilities.calls = abilities.arguments_as_text = has(text, "ARGKEY") && has(text, "ARGVALUE");
  }
  abilities.dialect.read_calls(text, "FUNCNAME0", "FUNCNAME1");
  const Json arguments = abilities.arguments_as_text ? Json(object.dump()) : object;
  text = prober.render(Json::array({user, Prober::call_turn(arguments, 2), later}), tools);
  abilities.parallel_calls = has(text, "FUNCNAME0") && has(text, "FUNCNAME1");
  abilities.dialect.read_calls(text, "FUNCNAME0", "FUNCNAME1");
  Json turn = Prober::call_turn(arguments, 1);
  turn["reasoning_content"] = "THOUGHT";
  const Json result{
      {"role", "tool"}, {"content", "RESULT"}, {"tool_call_id", "call_0"}, {"name", "FUNCNAME0"}};
  // Some templates keep reasoning only with thinking on, which may not be their default.
  ChatOptions on;
  on.enable_thinking = true;
  const Json loop = Json::array({user, turn, result});
  abilities.reasoning =
      has(prober.render(loop, tools), "THOUGHT") || has(prober.render(loop, tools, on), "THOUGHT");
}

}  // namespace

TemplateAbilities probe_template(const ChatTemplate& chat) {
  Prober prober(chat);
  TemplateAbilities abilities;
  const Json system = chat_message("system", "SYSTEXT"), user = chat_message("user", "USERTEXT");
  const Json assistant = chat_message("assistant", "SAID"), again = chat_message("user", "AGAIN");
  abilities.system_role = has(prober.render(Json::array({system, user})), "SYSTEXT");
  abilities.late_system =
      has(prober.render(Json::array({user, assistant, system, again})), "SYSTEXT");
  probe_calls(prober, abilities);

  Json thought = assistant;
  thought["reasoning_content"] = "THOUGHT";
  ChatOptions keep;
  keep.variables["preserve_thinking"] = true;
  const Json earlier = Json::array({user, thought, again});
  abilities.preserve_thinking = has(prober.render(earlier, nullptr, keep), "THOUGHT") &&
                                chat.program().mentions("preserve_thinking");
  ChatOptions on, off, bare;
  on.enable_thinking = true;
  off.enable_thinking = false;
  bare.add_generation_prompt = false;
  abilities.dialect.read_thought(prober.render(Json::array({user, thought}), nullptr, on),
                                 "THOUGHT", "SAID");
  const Json one = Json::array({user});
  const std::string asked = prober.render(one), said = prober.render(one, nullptr, bare);
  if (asked.starts_with(said))
    abilities.dialect.read_turn(std::string_view(asked).substr(said.size()));
  abilities.thinks_by_default = abilities.dialect.opens_thought(asked);
  abilities.thinking_switch = prober.render(one, nullptr, on) != prober.render(one, nullptr, off);
  abilities.effort = chat.program().mentions("reasoning_effort");
  for (const char* effort : {"none", "minimal", "low", "medium", "high", "xhigh", "max"}) {
    ChatOptions options;
    options.variables["reasoning_effort"] = effort;
    if (abilities.effort && !prober.render(one, nullptr, options).empty())
      abilities.efforts.push_back(effort);
  }
  return abilities;
}

}  // namespace braid::server
