// line_editor.cpp -- see line_editor.h. libedit edits the line.
#include "cli/line_editor.h"

#include <fcntl.h>
#include <histedit.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace braid::cli {
namespace {

constexpr int kHistoryLines = 1000;
// A terminal delivers a paste faster than a person types.
constexpr int kPasteMs = 20;

bool more_is_pasted() {
  pollfd in{STDIN_FILENO, POLLIN, 0};
  return ::poll(&in, 1, kPasteMs) > 0 && (in.revents & POLLIN) != 0;
}

}  // namespace

struct LineEditor::Implementation {
  EditLine* editor = nullptr;
  History* history = nullptr;
  std::string history_file;
  std::string prompt;

  static char* prompt_of(EditLine* editor) {
    Implementation* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return self->prompt.data();
  }

  std::optional<std::string> line(const std::string& text) {
    prompt = text;
    int length = 0;
    const char* read = el_gets(editor, &length);
    if (read == nullptr || length <= 0) return std::nullopt;
    return std::string(read, static_cast<size_t>(length));
  }
};

LineEditor::LineEditor(std::string history_file)
    : implementation_(std::make_unique<Implementation>()) {
  // Input is UTF-8; numbers keep the format of the C locale.
  if (std::setlocale(LC_CTYPE, "C.UTF-8") == nullptr) std::setlocale(LC_CTYPE, "");
  Implementation& self = *implementation_;
  self.history_file = std::move(history_file);
  self.editor = el_init("braid", stdin, stderr, stderr);
  self.history = history_init();
  HistEvent event;
  history(self.history, &event, H_SETSIZE, kHistoryLines);
  history(self.history, &event, H_SETUNIQUE, 1);
  if (!self.history_file.empty()) history(self.history, &event, H_LOAD, self.history_file.c_str());
  el_set(self.editor, EL_CLIENTDATA, &self);
  el_set(self.editor, EL_PROMPT, &Implementation::prompt_of);
  el_set(self.editor, EL_EDITOR, "emacs");
  el_set(self.editor, EL_HIST, history, self.history);
  el_set(self.editor, EL_SIGNAL, 1);  // Ctrl-C restores the terminal and ends the program
  el_set(self.editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  el_source(self.editor, nullptr);  // ~/.editrc
}

LineEditor::~LineEditor() {
  Implementation& self = *implementation_;
  if (!self.history_file.empty()) {
    HistEvent event;
    // Created first, so that its mode holds before anything is written.
    const int file =
        ::open(self.history_file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file >= 0) {
      ::close(file);
      history(self.history, &event, H_SAVE, self.history_file.c_str());
    }
  }
  history_end(self.history);
  el_end(self.editor);
}

std::optional<std::string> LineEditor::read(const std::string& prompt) {
  constexpr std::string_view kBlock = "\"\"\"";
  Implementation& self = *implementation_;
  std::string message;
  bool block = false;
  for (bool first = true;; first = false) {
    auto line = self.line(first ? prompt : "... ");
    if (!line) {
      if (first) return std::nullopt;
      break;
    }
    const bool ended = line->ends_with('\n');
    if (ended) line->pop_back();
    if (line->starts_with(kBlock) && !block && first) {
      block = true;
      line->erase(0, kBlock.size());
      if (line->empty()) continue;
    }
    if (block && line->ends_with(kBlock)) {
      message += line->substr(0, line->size() - kBlock.size());
      break;
    }
    const bool goes_on = !block && line->ends_with('\\');
    if (goes_on) line->pop_back();
    message += *line;
    if (!ended) break;
    if (!block && !goes_on && !more_is_pasted()) break;
    message += '\n';
  }
  while (message.ends_with('\n')) message.pop_back();
  if (!message.empty()) {
    HistEvent event;
    history(self.history, &event, H_ENTER, message.c_str());
  }
  return message;
}

std::string default_history_file() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path folder;
  if (state != nullptr && *state == '/') {
    folder = state;
  } else if (home != nullptr && *home == '/') {
    folder = std::filesystem::path(home) / ".local" / "state";
  } else {
    return {};
  }
  folder /= "braid";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  return error ? std::string() : (folder / "history").string();
}

}  // namespace braid::cli
