// needle_filler.h -- long texts without meaning, in which a fact is hidden. They are the same on
// every platform.
//
// Kinds differ in how much a fact stands out:
// - uniform: one sentence again and again.
// - prose: sentences of a grammar, in paragraphs.
// - code: files of Python and C.
// - logs: JSON objects, a line each.
// - multilingual: paragraphs in Latin script with diacritics, Cyrillic, Chinese, Japanese, emoji.
// - file: a text of the user, from its beginning again if it is too short.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace braid::cli {

enum class Filler { uniform, prose, code, logs, multilingual, file };
inline constexpr Filler kGeneratedFillers[] = {Filler::uniform, Filler::prose, Filler::code,
                                               Filler::logs, Filler::multilingual};
std::string_view filler_name(Filler filler);
// Error: invalid_argument, with the names.
Result<Filler> parse_filler(std::string_view name);

// How a fact is written beside a unit.
enum class FactStyle { sentence, python, c, log };

// A piece of filler before which a fact can stand: a sentence, or a line with its line end. Units
// are joined without anything between them; a sentence begins with the blank that separates it.
struct FillerUnit {
  std::string text;
  FactStyle style = FactStyle::sentence;
  int32_t indent = 0;    // blanks before a line of code here
  int64_t clock_ms = 0;  // since 1970, of a line of a log
};

class FillerSource {
 public:
  virtual ~FillerSource() = default;
  // Appends at least one unit and stops at a natural end: a sentence, a line, a function.
  virtual void append(std::vector<FillerUnit>& out) = 0;
  // About ten short units of different lengths, which may stand before this one.
  virtual std::vector<FillerUnit> pads(const FillerUnit& place) const = 0;
};

// `file` is the text of Filler::file and must outlive the source. Bytes that are not UTF-8 become
// U+FFFD. Error: invalid_argument, for a file without text.
Result<std::unique_ptr<FillerSource>> make_filler(Filler filler, uint64_t seed,
                                                  std::string_view file = {});

// File after file. Every unit of a function or class ends where a statement may follow.
enum class CodeFiles { python, c, mixed };
std::unique_ptr<FillerSource> make_code_filler(uint64_t seed, CodeFiles files);
std::unique_ptr<FillerSource> make_log_filler(uint64_t seed);

// "2031-05-04T03:02:01.007Z".
std::string log_time(int64_t clock_ms);

}  // namespace braid::cli
