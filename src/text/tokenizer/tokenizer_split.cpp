// tokenizer_split.cpp -- see tokenizer_split.h.
// White space is listed instead of \s. PCRE2's \s includes U+180E, which Unicode 6.3 removed and
// published tokenizers do not treat as white space.
#include "text/tokenizer/tokenizer_split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <string>

namespace braid {
namespace {

#define BRAID_SPACE \
  R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})"
#define BRAID_CONTRACTION R"('[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
// Up to the last line end; else all but the last blank, which starts the next word; else all.
#define BRAID_SPACE_RUNS \
  "[" BRAID_SPACE "]*[\\r\\n]+|[" BRAID_SPACE "]+(?![^" BRAID_SPACE "])|[" BRAID_SPACE "]+"

constexpr const char* kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^)" BRAID_SPACE R"(\p{L}\p{N}]+)"
    "|[" BRAID_SPACE "]+(?![^" BRAID_SPACE "])|[" BRAID_SPACE "]+";

constexpr const char* kLlama3 =
    BRAID_CONTRACTION R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^)" BRAID_SPACE
                      R"(\p{L}\p{N}]+[\r\n]*|)" BRAID_SPACE_RUNS;

constexpr const char* kQwen2 =
    BRAID_CONTRACTION R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^)" BRAID_SPACE
                      R"(\p{L}\p{N}]+[\r\n]*|)" BRAID_SPACE_RUNS;

constexpr const char* kQwen35 =
    BRAID_CONTRACTION R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^)" BRAID_SPACE
                      R"(\p{L}\p{M}\p{N}]+[\r\n]*|)" BRAID_SPACE_RUNS;

#undef BRAID_SPACE
#undef BRAID_CONTRACTION
#undef BRAID_SPACE_RUNS

// Matches try few more characters than they take, so only a faulty expression reaches this.
constexpr uint32_t kMatchLimit = 100'000'000;

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 128> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// Start of the run of line ends (\n or \r\n) with the next \n from `begin`; size if absent.
size_t line_end_run(std::string_view text, size_t begin) {
  const size_t line_feed = text.find('\n', begin);
  if (line_feed == std::string_view::npos) return text.size();
  return line_feed > begin && text[line_feed - 1] == '\r' ? line_feed - 1 : line_feed;
}

size_t skip_line_ends(std::string_view text, size_t index) {
  while (index < text.size()) {
    if (text[index] == '\n') {
      index += 1;
    } else if (text[index] == '\r' && index + 1 < text.size() && text[index + 1] == '\n') {
      index += 2;
    } else {
      break;
    }
  }
  return index;
}

}  // namespace

Result<SplitKind> split_kind(std::string_view pre, bool laguna_breaks_at_line_feed_only) {
  if (pre == "qwen2" || pre == "deepseek-r1-qwen") return SplitKind::qwen2;
  if (pre == "qwen35") return SplitKind::qwen35;
  if (pre == "llama-bpe" || pre == "llama3" || pre == "llama-v3") return SplitKind::llama3;
  if (pre == "gpt-2") return SplitKind::gpt2;
  if (pre == "laguna")
    return laguna_breaks_at_line_feed_only ? SplitKind::laguna_line_feed : SplitKind::laguna;
  if (pre.empty() || pre == "default") return SplitKind::fallback;
  return Error{ErrorKind::unsupported,
               fmt::format("the tokenizer's pre-tokenizer \"{}\" is unknown to braid (known: "
                           "qwen2, qwen35, llama-bpe, "
                           "gpt-2, laguna)",
                           pre.substr(0, 64))};
}

void Splitter::CodeDeleter::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

Splitter::Scratch::Scratch() {
  match_ = pcre2_match_data_create(1, nullptr);
  context_ = pcre2_match_context_create(nullptr);
  BRAID_CHECK(match_ != nullptr && context_ != nullptr);  // a few hundred bytes
  pcre2_set_match_limit(context_, kMatchLimit);
}

Splitter::Scratch::~Scratch() {
  pcre2_match_data_free(match_);
  pcre2_match_context_free(context_);
}

Status Splitter::add_stage(std::string_view pattern, bool covers_all) {
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | (covers_all ? PCRE2_ANCHORED : 0);
  Stage stage;
  stage.covers_all = covers_all;
  stage.code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 options, &error, &error_offset, nullptr));
  if (!stage.code) {
    return Error{ErrorKind::unsupported,
                 fmt::format("this machine's PCRE2 library refuses a pre-tokenizer pattern at "
                             "character {}: {}",
                             error_offset, pcre2_message(error))};
  }
  // Without JIT support PCRE2 falls back to its slower interpreter.
  stage.jit = pcre2_jit_compile(stage.code.get(), PCRE2_JIT_COMPLETE) == 0;
  stages_.push_back(std::move(stage));
  return {};
}

Result<Splitter> Splitter::create(SplitKind kind) {
  Splitter splitter;
  switch (kind) {
    case SplitKind::gpt2:
      BRAID_TRY(splitter.add_stage(kGpt2, true));
      break;
    case SplitKind::llama3:
      BRAID_TRY(splitter.add_stage(kLlama3, true));
      break;
    case SplitKind::qwen2:
      BRAID_TRY(splitter.add_stage(kQwen2, true));
      break;
    case SplitKind::qwen35:
      BRAID_TRY(splitter.add_stage(kQwen35, true));
      break;
    case SplitKind::laguna:
      splitter.starts_pieces_at_line_ends_ = true;
      BRAID_TRY(splitter.add_stage(kQwen2, true));
      break;
    case SplitKind::laguna_line_feed:
      BRAID_TRY(splitter.add_stage(R"([^\n]+|\n+)", true));
      BRAID_TRY(splitter.add_stage(kQwen2, true));
      break;
    case SplitKind::fallback:
      BRAID_TRY(splitter.add_stage(R"([\p{P}\$\+<=>\^~\|]+)", false));
      BRAID_TRY(splitter.add_stage(kGpt2, true));
      BRAID_TRY(splitter.add_stage(R"(\p{N}+)", false));
      BRAID_TRY(splitter.add_stage(R"([0-9][0-9][0-9])", false));
      break;
  }
  return splitter;
}

Status Splitter::split(std::string_view text, Scratch& scratch, const Sink& sink) const {
  if (!starts_pieces_at_line_ends_) return split_stage(0, text, scratch, sink);
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = line_end_run(text, skip_line_ends(text, begin));
    BRAID_TRY(split_stage(0, text.substr(begin, end - begin), scratch, sink));
    begin = end;
  }
  return {};
}

Status Splitter::split_stage(size_t stage_index, std::string_view text, Scratch& scratch,
                             const Sink& sink) const {
  if (text.empty()) return {};
  if (stage_index == stages_.size()) return sink(text);
  const Stage& stage = stages_[stage_index];
  const bool is_last = stage_index + 1 == stages_.size();
  const auto pass_on = [&](size_t begin, size_t end) -> Status {
    const std::string_view piece = text.substr(begin, end - begin);
    return is_last ? sink(piece) : split_stage(stage_index + 1, piece, scratch, sink);
  };
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t begin = 0;
  while (begin < text.size()) {
    const int found = stage.jit ? pcre2_jit_match(stage.code.get(), subject, text.size(), begin, 0,
                                                  scratch.match_, scratch.context_)
                                : pcre2_match(stage.code.get(), subject, text.size(), begin,
                                              PCRE2_NO_UTF_CHECK, scratch.match_, scratch.context_);
    if (found == PCRE2_ERROR_NOMATCH) {
      BRAID_CHECK(!stage.covers_all);
      return pass_on(begin, text.size());
    }
    if (found < 0) {
      return Error{ErrorKind::exhausted,
                   fmt::format("the text could not be cut into pieces at byte {}: {}", begin,
                               pcre2_message(found))};
    }
    // Read first: nested stages overwrite the offsets.
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(scratch.match_);
    const size_t match_begin = offsets[0];
    const size_t match_end = offsets[1];
    BRAID_CHECK(match_begin >= begin && match_end > match_begin);
    if (match_begin > begin) BRAID_TRY(pass_on(begin, match_begin));
    BRAID_TRY(pass_on(match_begin, match_end));
    begin = match_end;
  }
  return {};
}

}  // namespace braid
