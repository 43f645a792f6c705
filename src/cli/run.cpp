// run.cpp -- `braid run`: one answer, or a chat on the terminal.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "base/json/json.h"
#include "cli/commands.h"
#include "cli/generate.h"
#include "cli/model_options.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/terminal.h"
#include "text/dialect.h"
#include "text/unicode.h"

namespace braid::cli {

namespace {

using Json = nlohmann::ordered_json;

struct RunFlags {
  ModelFlags model;
  SamplingFlags sampling;
  std::string prompt;
  bool has_prompt = false;
  std::string file;
  std::string system;
  std::string tools;
  std::string think = "auto";
  int32_t max_tokens = -1;
  bool raw = false;
  bool quiet = false;
  bool plan = false;
};

Result<Json> read_tools(const std::string& path) {
  BRAID_ASSIGN(const std::string text, read_text(path));
  auto tools = parse_json(text);
  if (!tools.ok()) return Error{ErrorKind::invalid_argument, path + ": " + tools.error().message};
  if (!tools->is_array()) {
    return Error{ErrorKind::invalid_argument, path + ": is not a JSON array of tools"};
  }
  return tools;
}

// What is the same for every turn: the model, its template, how to sample.
class Conversation {
 public:
  Conversation(LoadedModel& model, ChatTemplate chat, SamplingParams sampling, Json tools,
               const RunFlags& flags)
      : model_(model),
        chat_(std::move(chat)),
        sampling_(std::move(sampling)),
        tools_(std::move(tools)),
        flags_(flags) {
    clear();
  }

  void clear() {
    messages_ = Json::array();
    if (!flags_.system.empty()) messages_.push_back(chat_message("system", flags_.system));
  }

  // Adds the user's message, streams the answer, keeps both. An interrupted answer is kept as far as it came.
  Result<Answer> answer(const std::string& text) {
    messages_.push_back(chat_message("user", text));
    auto result = continue_messages();
    if (!result.ok()) messages_.erase(messages_.size() - 1);
    return result;
  }

 private:
  Result<Answer> continue_messages() {
    ChatOptions options;
    if (flags_.think != "auto") options.enable_thinking = flags_.think == "on";
    BRAID_ASSIGN(const RenderedText prompt, chat_.render(messages_, tools_, options));
    const bool in_thought = Dialect().opens_thought(prompt.text);
    BRAID_ASSIGN(Answer answer, generate(model_, prompt, sampling_, flags_.max_tokens, in_thought));
    messages_.push_back(assistant_message(answer.text, in_thought));
    return answer;
  }

  // The answer as templates expect it in a history: thought and text apart.
  static Json assistant_message(const std::string& text, bool in_thought) {
    const std::string_view end_tag = Dialect().think.close;
    const auto end = in_thought ? text.find(end_tag) : std::string::npos;
    if (in_thought && end == std::string::npos) {
      Json message = chat_message("assistant", "");
      message["reasoning_content"] = text;
      return message;
    }
    if (!in_thought) return chat_message("assistant", text);
    const auto content = text.find_first_not_of('\n', end + end_tag.size());
    Json message = chat_message("assistant", content == std::string::npos ? "" : text.substr(content));
    message["reasoning_content"] = text.substr(0, end);
    return message;
  }

  LoadedModel& model_;
  ChatTemplate chat_;
  SamplingParams sampling_;
  Json tools_;
  const RunFlags& flags_;
  Json messages_;
};

constexpr const char* kChatHelp =
    "Type a message and press Enter. Ctrl-C stops the answer, Ctrl-D leaves.\n"
    "  /help   this text        /clear  forget the conversation\n"
    "  /stats  the last answer's speed and memory       /quit   leave\n";

int chat_on_terminal(LoadedModel& model, Conversation& conversation, uint64_t seed) {
  print_status("{} on {}. /help shows the commands.\n", model.name, model.engine->device().description());
  std::string last_summary = "no answer yet";
  const char* bold = use_colour() ? "\x1b[1m" : "";
  const char* off = use_colour() ? "\x1b[0m" : "";
  while (true) {
    print_status("{}> {}", bold, off);
    std::string line;
    if (!std::getline(std::cin, line)) break;
    if (line.empty()) continue;
    if (line == "/quit" || line == "/exit") return 0;
    if (line == "/help") {
      print_status("{}", kChatHelp);
    } else if (line == "/clear") {
      conversation.clear();
      print_status("the conversation is empty again\n");
    } else if (line == "/stats") {
      print_status("{}\n", last_summary);
    } else if (line[0] == '/' && line.find(' ') == std::string::npos) {
      print_status("unknown command {} (/help lists them)\n", line);
    } else if (const auto bad = first_invalid_utf8(line)) {
      print_error(fmt::format("the message is not valid UTF-8 (byte {})", *bad));
    } else {
      const auto answer = conversation.answer(line);
      if (!answer.ok()) {
        if (!result_status().ok()) return fail(answer.error());
        print_error(answer.error().message + " (/clear starts again)");
        continue;
      }
      print_result("\n");
      last_summary = summary(model, *answer, seed);
    }
  }
  print_status("\n");
  return 0;
}

int answer_once(LoadedModel& model, Conversation* conversation, const std::string& text,
                const SamplingParams& sampling, const RunFlags& flags) {
  auto answer = conversation != nullptr
                    ? conversation->answer(text)
                    : generate(model, {text, {}}, sampling, flags.max_tokens, /*in_thought=*/false);
  if (!answer.ok()) return fail(answer.error());
  if (::isatty(STDOUT_FILENO) == 1 && !answer->text.ends_with('\n')) print_result("\n");
  if (!flags.quiet)
    print_status("{}{}\n", stderr_is_terminal() ? "" : "\n", summary(model, *answer, sampling.seed));
  return answer->interrupted ? 130 : 0;
}

int run(const RunFlags& flags) {
  if (flags.has_prompt && !flags.file.empty()) {
    return fail({ErrorKind::invalid_argument, "-p and -f both give the prompt: choose one"});
  }
  std::string text = flags.prompt;
  const bool chat = !flags.has_prompt && flags.file.empty() && ::isatty(STDIN_FILENO) == 1;
  if (chat && flags.raw) return fail({ErrorKind::invalid_argument, "--raw needs -p or -f"});
  if (!flags.has_prompt && !chat) {
    auto read = read_text(flags.file.empty() ? "-" : flags.file);
    if (!read.ok()) return fail(read.error());
    text = std::move(*read);
  }
  if (const auto at = first_invalid_utf8(text)) {
    return fail({ErrorKind::invalid_argument, fmt::format("the prompt is not valid UTF-8 (byte {})", *at)});
  }
  Json tools;
  if (!flags.tools.empty()) {
    auto read = read_tools(flags.tools);
    if (!read.ok()) return fail(read.error());
    tools = std::move(*read);
  }

  // One message leaves nothing behind, unless a directory keeps it for the next time.
  auto model = load_model(flags.model, [&](EngineOptions& options) {
    options.prefix_cache = chat || !flags.model.cache_dir.empty();
  });
  if (!model.ok()) return fail(model.error());
  if (flags.plan) print_status("{}\n", model->engine->memory().table());
  const auto sampling = sampling_params(flags.sampling, *model->file);
  if (!sampling.ok()) return fail(sampling.error());
  if (flags.raw) return answer_once(*model, nullptr, text, *sampling, flags);

  auto chat_template = make_chat_template(*model->file, *model->tokenizer);
  if (!chat_template.ok()) return fail(chat_template.error());
  Conversation conversation(*model, std::move(*chat_template), *sampling, std::move(tools), flags);
  if (chat) return chat_on_terminal(*model, conversation, sampling->seed);
  return answer_once(*model, &conversation, text, *sampling, flags);
}

}  // namespace

void add_run(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<RunFlags>();
  auto* command = app.add_subcommand("run", "Answer one message, or chat on the terminal");
  command->footer(
      "Without -p and -f: chat if stdin is a terminal, else stdin is the message.\n"
      "stdout gets the generated text alone; progress and the summary go to stderr.");
  add_model_options(*command, flags->model);
  auto* prompt = command->add_option("-p,--prompt", flags->prompt, "the message")->envname("BRAID_PROMPT");
  command->add_option("-f,--file", flags->file, "a file that holds the message, - for stdin");
  command
      ->add_option("-n,--predict", flags->max_tokens, "tokens to generate at most; -1: until the model stops")
      ->check(CLI::Range(-1, 1 << 30))
      ->capture_default_str()
      ->envname("BRAID_PREDICT");
  command->add_option("--system", flags->system, "system message");
  command->add_option("--tools", flags->tools, "JSON file: array of functions the model may call");
  command->add_option("--think", flags->think, "thinking: on, off, or auto (the template's default)")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str()
      ->envname("BRAID_THINK");
  command->add_flag("--raw", flags->raw,
                    "no chat template: continue the text as it is (special tokens are recognised)");
  command->add_flag("--memory-plan", flags->plan, "print what memory is taken for, predicted and actual");
  command->add_flag("-q,--quiet", flags->quiet, "no summary");
  add_sampling_options(*command, flags->sampling);
  command->callback([flags, prompt, exit_code] {
    flags->has_prompt = prompt->count() > 0 || !flags->prompt.empty();
    *exit_code = run(*flags);
  });
}

}  // namespace braid::cli
