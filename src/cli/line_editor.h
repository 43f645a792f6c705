// line_editor.h -- reads multi-line messages from a terminal, with arrow keys and a history.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace braid::cli {

// Not movable; one at a time, on the thread that reads the terminal. Prompts go to stderr.
class LineEditor {
 public:
  // `history_file` is kept between runs, readable by its owner only; empty: no file.
  explicit LineEditor(std::string history_file);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // The next message without its last line break; empty at the end of input (Ctrl-D). It continues
  // on the next line after a final \, between """ and """, and within a paste.
  std::optional<std::string> read(const std::string& prompt);

  struct Implementation;

 private:
  std::unique_ptr<Implementation> implementation_;
};

// $XDG_STATE_HOME/braid/history, or below ~/.local/state; empty if the folder cannot be made.
std::string default_history_file();

}  // namespace braid::cli
