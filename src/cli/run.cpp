// run.cpp -- `braid run`: one answer, or a chat on the terminal.

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "base/json.h"
#include "cli/chat.h"
#include "cli/commands.h"
#include "cli/generate.h"
#include "cli/load_model.h"
#include "cli/terminal.h"
#include "text/unicode.h"

namespace braid::cli {

namespace {

using Json = nlohmann::ordered_json;

struct RunFlags {
  ModelFlags model;
  SamplingChoice sampling;
  std::string prompt;
  bool has_prompt = false;
  std::string file;
  std::string system;
  std::string tools;
  std::string think = "auto";
  int32_t max_tokens = -1;
  bool raw = false;
  bool quiet = false;
  bool verbose = false;
  bool plan = false;
};

Result<Json> read_tools(const std::string& path) {
  if (path.empty()) return Json();
  BRAID_ASSIGN(const std::string text, read_text(path));
  auto tools = parse_json(text);
  if (!tools.ok()) return Error{ErrorKind::invalid_argument, path + ": " + tools.error().message};
  if (!tools->is_array()) {
    return Error{ErrorKind::invalid_argument, path + ": is not a JSON array of tools"};
  }
  return tools;
}

// Stdin is a pipe or a file. A terminal, /dev/null or a service's socket has no text.
bool stdin_has_text() {
  struct stat status;
  return ::fstat(STDIN_FILENO, &status) == 0 &&
         (S_ISFIFO(status.st_mode) || S_ISREG(status.st_mode));
}

// The text of a pipe beside -p. A pipe that stays open and empty, as programs give to their
// children, is left alone; -f - waits for it.
Result<std::string> read_piped_text() {
  constexpr int kPatienceMs = 3000;
  pollfd in{STDIN_FILENO, POLLIN, 0};
  if (::poll(&in, 1, kPatienceMs) != 0) return read_text("-");
  print_note(
      "nothing came from stdin in 3 seconds, so the message is -p alone (-f - waits for stdin)");
  return std::string();
}

Result<std::string> message_of(const RunFlags& flags) {
  std::string text;
  if (!flags.file.empty() || !flags.has_prompt) {
    BRAID_ASSIGN(text, read_text(flags.file.empty() ? "-" : flags.file));
  } else if (stdin_has_text()) {
    BRAID_ASSIGN(text, read_piped_text());
  }
  if (flags.has_prompt)
    text =
        text.empty() || flags.prompt.empty() ? flags.prompt + text : flags.prompt + "\n\n" + text;
  if (const auto at = first_invalid_utf8(text))
    return Error{ErrorKind::invalid_argument,
                 fmt::format("the prompt is not valid UTF-8 (byte {})", *at)};
  return text;
}

int finish(LoadedModel& model, const Result<Answer>& answer, const SamplingParams& sampling,
           const RunFlags& flags) {
  if (!answer.ok()) return fail(answer.error());
  if (::isatty(STDOUT_FILENO) == 1 && !answer->text.ends_with('\n')) print_result("\n");
  if (!flags.quiet)
    print_status("{}{}\n", stderr_is_terminal() ? "" : "\n",
                 summary(model, *answer, sampling.seed, flags.verbose));
  return answer->interrupted ? 130 : 0;
}

int run(const RunFlags& flags) {
  const bool chat = !flags.has_prompt && flags.file.empty() && ::isatty(STDIN_FILENO) == 1;
  if (chat && flags.raw) return fail({ErrorKind::invalid_argument, "--raw needs -p or -f"});
  auto text = chat ? Result<std::string>(std::string()) : message_of(flags);
  if (!text.ok()) return fail(text.error());
  auto tools = read_tools(flags.tools);
  if (!tools.ok()) return fail(tools.error());

  // A single message has no later use for its prefix, except in a cache directory.
  auto model = load_model(flags.model, [&](EngineOptions& options) {
    options.prefix_cache = chat || !flags.model.cache_dir.empty();
  });
  if (!model.ok()) return fail(model.error());
  if (flags.plan) print_status("{}\n", model->engine->memory().table());
  const auto sampling = sampling_defaults(*model->file, flags.sampling);
  if (!sampling.ok()) return fail(sampling.error());
  if (flags.raw) {
    const auto answer = generate(*model, {*text, {}}, *sampling, flags.max_tokens, TextKind::raw);
    return finish(*model, answer, *sampling, flags);
  }
  auto chat_template =
      read_chat_template(*model->file, *model->tokenizer, flags.model.chat_template);
  if (!chat_template.ok()) return fail(chat_template.error());
  Conversation::Settings settings{flags.system, std::nullopt,     std::move(*tools),
                                  *sampling,    flags.max_tokens, flags.verbose};
  if (flags.think != "auto") settings.thinking = flags.think == "on";
  Conversation conversation(*model, std::move(*chat_template), std::move(settings));
  if (chat) return chat_on_terminal(*model, conversation);
  return finish(*model, conversation.answer(*text), *sampling, flags);
}

}  // namespace

void add_run(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<RunFlags>();
  auto* command = app.add_subcommand("run", "Answer one message, or chat on the terminal");
  command->footer(
      "Without -p and -f: a chat if stdin is a terminal, else stdin is the message. The text of -f "
      "or of a "
      "pipe "
      "follows that of -p:\n"
      "  braid run -p \"Summarize this:\" < notes.txt > answer.txt\n"
      "stdout gets the answer alone; thoughts, progress and the summary go to stderr.");
  auto* prompt = command->add_option("-p,--prompt", flags->prompt, "the message")
                     ->group("Message")
                     ->envname("BRAID_PROMPT");
  command->add_option("-f,--file", flags->file, "a file with the message, - for stdin")
      ->type_name("FILE")
      ->group("Message");
  command->add_option("--system", flags->system, "system message")
      ->group("Message")
      ->envname("BRAID_SYSTEM");
  command->add_option("--think", flags->think, "think before answering; auto: as the template does")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->group("Message")
      ->capture_default_str()
      ->envname("BRAID_THINK");
  command
      ->add_option("-n,--predict", flags->max_tokens,
                   "tokens to generate at most; -1: until the model stops or the context is full")
      ->check(CLI::Range(-1, 1 << 30))
      ->group("Message")
      ->capture_default_str()
      ->envname("BRAID_PREDICT");
  command
      ->add_option("--tools", flags->tools, "JSON file: array of functions that the model may call")
      ->type_name("FILE")
      ->group("Message");
  command
      ->add_flag(
          "--raw", flags->raw,
          "continue the text as it is, without a chat template (special tokens are recognized)")
      ->group("Message");
  add_model_options(*command, flags->model,
                    kModelPart | kCachePart | kMemoryPart | kDiskPart | kDrafterPart |
                        kSpeculationPart | kTemplatePart);
  add_sampling_options(*command, flags->sampling);
  command->add_flag("-v,--verbose", flags->verbose,
                    "speculation, bandwidth and seed in the summary");
  command->add_flag("-q,--quiet", flags->quiet, "no summary");
  command->add_flag("--memory-plan", flags->plan,
                    "print what memory is taken for, predicted and actual");
  command->callback([flags, prompt, exit_code] {
    flags->has_prompt = prompt->count() > 0 || !flags->prompt.empty();
    *exit_code = run(*flags);
  });
}

}  // namespace braid::cli
