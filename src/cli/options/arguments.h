// arguments.h -- reads words before CLI11: names of llama.cpp and vLLM, suggestions for typos.
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
  std::vector<std::string> notes;  // about options that are accepted and ignored
};

// Errors: invalid_argument, a sentence for the user.
Result<Arguments> read_arguments(const CLI::App& app, std::span<const std::string> typed);

// An option of llama.cpp or vLLM that braid renames, ignores or refuses.
struct Habit {
  // `experts`: ignored if its value is a pattern of experts, else refused.
  // `gibibytes`: renamed, and numbers without a unit are GiB.
  enum Kind { renamed, ignored, refused, experts, gibibytes };
  std::string_view name;
  Kind kind;
  std::string_view text;  // renamed: braid's option, perhaps with a value; else a sentence
  int values = 0;         // after it; kMaybe: one if it is on, off, auto, 0 or 1
  static constexpr int kMaybe = -1;
};
std::span<const Habit> habits();

// The closest of `names` by edit distance; empty: none is close.
std::string_view nearest(std::string_view word, std::span<const std::string> names);

}  // namespace braid::cli
