// window_builder.cpp -- see window_builder.h.
#include "server/compress/window_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace braid::server {
namespace {

constexpr size_t kQuestionBytes = 1000;
constexpr size_t kLeastQuestionBytes = 24;
constexpr size_t kCutTokens = 128;  // where a cut is looked for

// In UTF-8.
bool begins_character(std::string_view piece) {
  return !piece.empty() && (static_cast<unsigned char>(piece.front()) & 0xC0) != 0x80;
}

}  // namespace

std::string_view last_words(std::string_view text) {
  const std::string_view end = text.substr(text.size() - std::min(text.size(), kQuestionBytes));
  for (const std::string_view border : {"\n\n", "\r\n\r\n", "\n"}) {
    for (size_t at = end.rfind(border); at != std::string_view::npos && at > 0;
         at = end.rfind(border, at - 1)) {
      const std::string_view words = end.substr(at + border.size());
      if (words.size() >= kLeastQuestionBytes) return words;
    }
  }
  return end;
}

WindowBuilder::WindowBuilder(const Tokenizer& tokenizer, std::string question,
                             std::vector<int32_t> question_ids, size_t most_tokens)
    : tokenizer_(tokenizer),
      question_(std::move(question)),
      question_ids_(std::move(question_ids)),
      most_tokens_(most_tokens),
      room_(most_tokens - std::min(most_tokens, question_ids_.size())) {}

Result<WindowBuilder> WindowBuilder::create(const Tokenizer& tokenizer, std::string question,
                                            size_t most_tokens) {
  BRAID_ASSIGN(std::vector<int32_t> ids, part_tokens(tokenizer, question));
  return WindowBuilder(tokenizer, std::move(question), std::move(ids), most_tokens);
}

std::string WindowBuilder::problem() const {
  if (room_ < kLeastWindowTokens)
    return fmt::format(
        "the scoring model reads {} tokens, too few for a question of {} and {} of a text",
        most_tokens_, question_ids_.size(), kLeastWindowTokens);
  if (windows_.size() > kMostWindows)
    return fmt::format("the scoring model would read {} windows of {} tokens, more than {}",
                       windows_.size(), most_tokens_, kMostWindows);
  return {};
}

Status WindowBuilder::add(size_t number, const PromptPart& part, std::span<const int32_t> ids) {
  BRAID_CHECK(room_ >= kLeastWindowTokens);
  if (ids.size() > room_) return add_pieces(number, part, ids);
  if (open_ && windows_.back().prompt.ids.size() + ids.size() > room_) BRAID_TRY(end_window());
  return append(number, part, ids);
}

Status WindowBuilder::add_pieces(size_t number, const PromptPart& part,
                                 std::span<const int32_t> ids) {
  const size_t count = (ids.size() + room_ - kCutTokens - 1) / (room_ - kCutTokens);
  size_t begin = 0;
  for (size_t piece = 1; piece <= count; ++piece) {
    const size_t end = piece == count ? ids.size() : cut_before(ids, ids.size() * piece / count);
    PromptPart cut = part;
    if (begin > 0) cut.head_bytes = 0;
    if (piece < count) cut.tail_bytes = 0;
    if (open_) BRAID_TRY(end_window());
    BRAID_TRY(append(number, cut, ids.subspan(begin, end - begin)));
    begin = end;
  }
  return {};
}

// The last end of a line, or else of a word, among the tokens before `at`.
size_t WindowBuilder::cut_before(std::span<const int32_t> ids, size_t at) const {
  const size_t first = at - std::min(at - 1, kCutTokens);
  for (size_t i = at; i > first; --i)
    if (tokenizer_.piece(ids[i - 1], SpecialText::show).ends_with('\n')) return i;
  for (size_t i = at; i > first; --i)
    if (tokenizer_.piece(ids[i], SpecialText::show).starts_with(' ')) return i;
  for (size_t i = at; i > first; --i)
    if (begins_character(tokenizer_.piece(ids[i], SpecialText::show))) return i;
  return at;
}

Status WindowBuilder::append(size_t number, const PromptPart& part, std::span<const int32_t> ids) {
  if (!open_) windows_.emplace_back();
  open_ = true;
  windows_.back().parts.push_back(number);
  return append_part(windows_.back().prompt, tokenizer_, part, ids);
}

Status WindowBuilder::end_window() {
  open_ = false;
  ReadingWindow& window = windows_.back();
  window.text_tokens = window.prompt.ids.size();
  return append_part(window.prompt, tokenizer_, {question_, KeptBecause::last_user_turn},
                     question_ids_);
}

Result<std::vector<ReadingWindow>> WindowBuilder::windows() {
  if (open_) BRAID_TRY(end_window());
  return std::exchange(windows_, {});
}

}  // namespace braid::server
