// chat.cpp -- see chat.h.
#include "cli/chat.h"

#include <fmt/format.h>

#include <string_view>

#include "base/json.h"
#include "base/output_file.h"
#include "cli/line_editor.h"
#include "cli/terminal.h"
#include "text/blanks.h"
#include "text/dialect.h"
#include "text/unicode.h"

namespace braid::cli {

namespace {

using Json = nlohmann::ordered_json;

// The message as templates expect it in a history: thought and text apart.
Json assistant_message(const std::string& text, bool in_thought) {
  const std::string_view end_tag = Dialect().think.close;
  const auto end = in_thought ? text.find(end_tag) : std::string::npos;
  if (in_thought && end == std::string::npos) {
    Json message = chat_message("assistant", "");
    message["reasoning_content"] = text;
    return message;
  }
  if (!in_thought) return chat_message("assistant", text);
  const auto content = text.find_first_not_of('\n', end + end_tag.size());
  Json message =
      chat_message("assistant", content == std::string::npos ? "" : text.substr(content));
  message["reasoning_content"] = text.substr(0, end);
  return message;
}

constexpr const char* kChatHelp =
    "Type a message and press Enter. Ctrl-C stops an answer, Ctrl-D leaves.\n"
    "A message has several lines if they are pasted, if a line ends with \\, or between\n"
    "\"\"\" and \"\"\". Arrow keys edit the line and bring back earlier messages, Ctrl-R "
    "searches.\n"
    "  /system TEXT     set the system message; without TEXT: show it\n"
    "  /think on|off    let the model think before it answers; auto: as its template does\n"
    "  /clear           forget the conversation\n"
    "  /save FILE       write the conversation as JSON     /load FILE   continue one\n"
    "  /stats           speed and memory of the last answer\n"
    "  /help            this text                          /quit        leave\n";

class Terminal {
 public:
  Terminal(LoadedModel& model, Conversation& conversation)
      : model_(model), conversation_(conversation), editor_(default_history_file()) {}

  int run() {
    print_status("{} on {}. /help shows the commands.\n", model_.name,
                 model_.engine->devices().description());
    while (const auto line = editor_.read("> ")) {
      if (all_blank(*line)) continue;
      if (*line == "/quit" || *line == "/exit" || *line == "/bye") return 0;
      // Paths and code comments may also begin with a slash.
      const bool command = line->front() == '/' && line->find('\n') == std::string::npos;
      if (command && obey(*line)) continue;
      if (const int code = answer(*line); code != 0) return code;
    }
    print_status("\n");
    return 0;
  }

 private:
  bool obey(const std::string& line) {
    const size_t cut = line.find(' ');
    const std::string name = line.substr(0, cut);
    const std::string rest =
        cut == std::string::npos ? "" : line.substr(line.find_first_not_of(' ', cut));
    if (name == "/help") {
      print_status("{}", kChatHelp);
    } else if (name == "/clear") {
      conversation_.clear();
      print_status("the conversation is empty\n");
    } else if (name == "/stats") {
      print_status("{}\n", last_summary_);
    } else if (name == "/system") {
      if (!rest.empty()) conversation_.set_system(rest);
      const std::string& system = conversation_.settings().system;
      print_status("{}\n", system.empty() ? "there is no system message" : "system: " + system);
    } else if (name == "/think") {
      think(rest);
    } else if (name == "/save" || name == "/load") {
      if (rest.empty()) {
        print_error(name + " needs the name of a file");
        return true;
      }
      const Status status = name == "/save" ? conversation_.save(rest) : conversation_.load(rest);
      if (!status.ok()) {
        print_error(status.error().message);
      } else {
        print_status("{}: {} messages\n", rest, conversation_.size());
      }
    } else if (name.find('/', 1) == std::string::npos && cut == std::string::npos) {
      print_status("unknown command {} (/help lists them)\n", name);
    } else {
      return false;
    }
    return true;
  }

  void think(const std::string& word) {
    if (word == "on" || word == "off") {
      conversation_.set_thinking(word == "on");
    } else if (word == "auto") {
      conversation_.set_thinking(std::nullopt);
    } else if (!word.empty()) {
      print_error("/think takes on, off or auto");
      return;
    }
    const auto thinking = conversation_.settings().thinking;
    print_status("thinking: {}\n", !thinking ? "auto" : *thinking ? "on" : "off");
  }

  // 0, or the exit code if the conversation cannot go on.
  int answer(const std::string& text) {
    if (const auto bad = first_invalid_utf8(text)) {
      print_error(fmt::format("the message is not valid UTF-8 (byte {})", *bad));
      return 0;
    }
    const auto answer = conversation_.answer(text);
    if (!answer.ok()) {
      if (!result_status().ok()) return fail(answer.error());
      print_error(answer.error().message + " (/clear starts again)");
      return 0;
    }
    print_result("\n");
    last_summary_ =
        summary(model_, *answer, conversation_.settings().sampling.seed, /*verbose=*/true);
    if (conversation_.settings().verbose) print_status("{}\n", last_summary_);
    return 0;
  }

  LoadedModel& model_;
  Conversation& conversation_;
  LineEditor editor_;
  std::string last_summary_ = "no answer yet";
};

}  // namespace

Conversation::Conversation(LoadedModel& model, ChatTemplate chat, Settings settings)
    : model_(model), chat_(std::move(chat)), settings_(std::move(settings)) {
  clear();
}

void Conversation::clear() {
  messages_ = Json::array();
  if (!settings_.system.empty()) messages_.push_back(chat_message("system", settings_.system));
}

void Conversation::set_system(const std::string& text) {
  const bool had = !messages_.empty() && messages_.front()["role"] == "system";
  if (had) messages_.erase(size_t{0});
  settings_.system = text;
  messages_.insert(messages_.begin(), chat_message("system", text));
}

Result<Answer> Conversation::answer(const std::string& text) {
  messages_.push_back(chat_message("user", text));
  auto result = continue_messages();
  if (!result.ok()) messages_.erase(messages_.size() - 1);
  return result;
}

Result<Answer> Conversation::continue_messages() {
  ChatOptions options;
  options.enable_thinking = settings_.thinking;
  BRAID_ASSIGN(const RenderedText prompt, chat_.render(messages_, settings_.tools, options));
  const bool in_thought = Dialect().opens_thought(prompt.text);
  BRAID_ASSIGN(Answer answer, generate(model_, prompt, settings_.sampling, settings_.max_tokens,
                                       in_thought ? TextKind::thought : TextKind::answer));
  messages_.push_back(assistant_message(answer.text, in_thought));
  return answer;
}

Status Conversation::save(const std::string& path) const {
  return write_output_file(path,
                           messages_.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

Status Conversation::load(const std::string& path) {
  BRAID_ASSIGN(const std::string text, read_text(path));
  auto read = parse_json(text);
  const auto wrong = [&path](const std::string& why) {
    return Error{ErrorKind::invalid_argument, path + ": " + why};
  };
  if (!read.ok()) return wrong(read.error().message);
  if (!read->is_array()) return wrong("is not a JSON array of messages");
  for (const Json& message : *read) {
    const auto is_text = [&message](const char* key) {
      return message.is_object() && message.contains(key) && message[key].is_string();
    };
    if (!is_text("role") || !is_text("content"))
      return wrong("has a message without the texts role and content");
  }
  messages_ = std::move(*read);
  settings_.system.clear();
  if (!messages_.empty() && messages_.front()["role"] == "system")
    settings_.system = messages_.front()["content"].get<std::string>();
  return {};
}

int chat_on_terminal(LoadedModel& model, Conversation& conversation) {
  return Terminal(model, conversation).run();
}

}  // namespace braid::cli
