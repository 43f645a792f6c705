// line_editor.h -- one message of several lines from a person at a terminal, with arrow keys and a history.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace braid::cli {

// Not movable; one at a time, on the thread that reads the terminal. Prompts go to stderr.
class LineEditor {
 public:
  // `history_file`: kept from run to run, readable by its owner alone; empty: none.
  explicit LineEditor(std::string history_file);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // The next message, without its last line break; nothing at the end of the input (Ctrl-D).
  // A message goes on in the next line after a \ at the end of a line, between """ and """, and where the next
  // line is there already because several were pasted.
  std::optional<std::string> read(const std::string& prompt);

  struct Implementation;

 private:
  std::unique_ptr<Implementation> implementation_;
};

// $XDG_STATE_HOME/braid/history, or below ~/.local/state; empty if the folder cannot be made.
std::string default_history_file();

}  // namespace braid::cli
