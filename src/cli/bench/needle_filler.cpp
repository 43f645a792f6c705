// needle_filler.cpp -- see needle_filler.h.
#include "cli/bench/needle_filler.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/bench/needle_grammar.h"
#include "text/unicode.h"

namespace braid::cli {
namespace {

constexpr std::string_view kFillerNames[] = {"uniform", "prose",        "code",
                                             "logs",    "multilingual", "file"};
// A file's longer stretches without the end of a sentence or line are cut at a blank, or anywhere.
constexpr size_t kFileUnitBytes = 240, kFileUnitMostBytes = 480;

// Sentences from one word on, so that almost every number of tokens is a sum of some of them.
std::vector<FillerUnit> sentence_pads() {
  std::vector<FillerUnit> out;
  for (const std::string_view text :
       {" So.", " It rained.", " They waited.", " It was late.", " Nobody spoke.",
        " The lamp went out.", " There was no hurry.", " A door closed far away.",
        " All the windows stayed shut.", " After that it was quiet again.",
        " Some went home and some did not."})
    out.push_back({.text = std::string(text)});
  return out;
}

class UniformFiller : public FillerSource {
 public:
  void append(std::vector<FillerUnit>& out) override {
    out.push_back({.text = " The river is wide, the sky is clear and the fields are quiet."});
  }
  std::vector<FillerUnit> pads(const FillerUnit&) const override { return sentence_pads(); }
};

// Paragraphs of 4 to 8 sentences, each of one of the grammars.
class GrammarFiller : public FillerSource {
 public:
  GrammarFiller(uint64_t seed, std::span<const NeedleGrammar> grammars)
      : random_(seed, 'p'), grammars_(grammars) {}

  void append(std::vector<FillerUnit>& out) override {
    const bool first = left_ == 0;
    if (first) {
      left_ = 4 + random_.below(5);
      grammar_ = &random_.pick(grammars_);
    }
    --left_;
    out.push_back(
        {.text = std::string(first ? "\n\n" : grammar_->before) + grammar_->sentence(random_)});
  }
  std::vector<FillerUnit> pads(const FillerUnit&) const override {
    std::vector<FillerUnit> out = sentence_pads();
    if (grammars_.size() > 1)
      for (const std::string_view text : {" 好。", " Да.", " Déjà vu.", " ☕ おはよう。"})
        out.push_back({.text = std::string(text)});
    return out;
  }

 private:
  NeedleRandom random_;
  std::span<const NeedleGrammar> grammars_;
  const NeedleGrammar* grammar_ = nullptr;
  uint64_t left_ = 0;  // sentences of this paragraph
};

// Ends of sentences are followed by a blank; a unit begins with the blanks before it.
class FileFiller : public FillerSource {
 public:
  explicit FileFiller(std::string text) : text_(std::move(text)) {}

  void append(std::vector<FillerUnit>& out) override {
    if (at_ == text_.size()) at_ = 0;
    const size_t end = unit_end();
    std::string unit = text_.substr(at_, end - at_);
    if (at_ == 0 && !out.empty()) unit.insert(0, "\n\n");
    at_ = end;
    out.push_back({.text = std::move(unit)});
  }
  std::vector<FillerUnit> pads(const FillerUnit&) const override { return sentence_pads(); }

 private:
  static bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

  size_t unit_end() const {
    size_t i = at_;
    while (i < text_.size() && is_blank(text_[i])) ++i;
    for (++i; i < text_.size(); ++i) {
      const bool character = (static_cast<unsigned char>(text_[i]) & 0xC0) != 0x80;
      const char last = text_[i - 1];
      if (i - at_ >= kFileUnitMostBytes && character) return i;
      if (text_[i] == '\n') return i;
      if (!is_blank(text_[i])) continue;
      if (last == '.' || last == '!' || last == '?' || i - at_ >= kFileUnitBytes) return i;
    }
    return text_.size();
  }

  std::string text_;
  size_t at_ = 0;
};

}  // namespace

std::string_view filler_name(Filler filler) { return kFillerNames[static_cast<size_t>(filler)]; }

Result<Filler> parse_filler(std::string_view name) {
  for (size_t i = 0; i < std::size(kFillerNames); ++i)
    if (kFillerNames[i] == name) return static_cast<Filler>(i);
  return Error{ErrorKind::invalid_argument, fmt::format("'{}' is no filler: it is one of {}", name,
                                                        fmt::join(kFillerNames, ", "))};
}

Result<std::unique_ptr<FillerSource>> make_filler(Filler filler, uint64_t seed,
                                                  std::string_view file) {
  using Source = std::unique_ptr<FillerSource>;
  switch (filler) {
    case Filler::uniform:
      return Source(std::make_unique<UniformFiller>());
    case Filler::prose:
      return Source(std::make_unique<GrammarFiller>(seed, std::span(&prose_grammar(), 1)));
    case Filler::code:
      return make_code_filler(seed, CodeFiles::mixed);
    case Filler::logs:
      return make_log_filler(seed);
    case Filler::multilingual:
      return Source(std::make_unique<GrammarFiller>(seed, multilingual_grammars()));
    case Filler::file:
      break;
  }
  std::string text = repaired_utf8(file, Utf8Repair::maximal_subpart);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  if (text.empty())
    return Error{ErrorKind::invalid_argument, "the file for the filler has no text"};
  return Source(std::make_unique<FileFiller>(std::move(text)));
}

}  // namespace braid::cli
