// needle_report.h -- how often hidden facts were found, by filler, length, depth and needle.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "cli/bench/needle_case.h"

namespace braid::cli {

// What a model says to the question after the whole text, and after what is kept of it; nothing if
// that was too long for it.
struct NeedleAnswers {
  std::optional<std::string> whole, kept;
  bool whole_is_right = false, kept_is_right = false;
};

struct NeedleResult {
  NeedleShape shape;
  int64_t prompt_tokens = 0;
  bool passed = false;
  int64_t kept_tokens = 0;  // of the prompt, after compression; without it all of them
  double seconds = 0;
  std::optional<NeedleAnswers> answers;  // of all results or of none
  int64_t windows = 0;  // that compression has read; 0: the text was not compressed
};

// Two tables in Markdown: pass rates by filler and length, and by needle with share kept and mean
// time. With answers both have the rates of right ones, and the first a row for each filler and
// length. Empty without results.
std::string needle_tables(std::span<const NeedleResult> results);

// An SVG of pass rates by length (x) and depth (y), which also stand in the cells as numbers; empty
// without results.
std::string needle_heat_map(const std::string& title, std::span<const NeedleResult> results);

// An object per line.
std::string needle_json_lines(std::span<const NeedleResult> results);

}  // namespace braid::cli
