// arguments.h -- what the user typed, before CLI11 reads it: short names of several letters, the habits of users of
// other programs, and one helpful sentence for an option or a command that does not exist.
#pragma once

#include <CLI/CLI.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace braid::cli {

struct Arguments {
  std::vector<std::string> words;  // for CLI11, without the program's name
  std::vector<std::string> notes;  // of options that were understood and do nothing here
};

// Errors: invalid_argument, a sentence for the user.
Result<Arguments> read_arguments(const CLI::App& app, std::span<const std::string> typed);

// An option of llama.cpp or vLLM that braid has under another name, does not need, or cannot offer.
struct Habit {
  enum Kind { renamed, ignored, refused };
  std::string_view name;
  Kind kind;
  std::string_view
      text;  // renamed: braid's option and perhaps its value ("--device cpu"); else a sentence
  int values = 0;  // that follow it; kMaybe: one if it is on, off, auto, 0 or 1
  static constexpr int kMaybe = -1;
};
std::span<const Habit> habits();

// The one of `names` that is most like `word`, by edits of single letters; empty: none is near.
std::string_view nearest(std::string_view word, std::span<const std::string> names);

}  // namespace braid::cli
