// window_builder.h -- cuts texts that the scoring model cannot read at once into windows.
//
// A window is as many parts, or as much of one, as the model's context holds beside the question.
// The question stands at its end. A part that is longer becomes pieces of about the same size, each
// in a window of its own. They end with a line, or else with a word. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "server/compress/prompt_parts.h"

namespace braid::server {

inline constexpr size_t kMostWindows = 64;         // of one text or conversation
inline constexpr size_t kLeastWindowTokens = 512;  // beside the question

struct ReadingWindow {
  TokenizedPrompt prompt;
  std::vector<size_t> parts;  // numbers of prompt.parts, without the question
  size_t text_tokens = 0;     // before the question
};

// The last paragraph, or line, that is long enough to ask for something.
std::string_view last_words(std::string_view text);

class WindowBuilder {
 public:
  // `tokenizer` must outlive this. Errors: those of the tokenizer.
  static Result<WindowBuilder> create(const Tokenizer& tokenizer, std::string question,
                                      size_t most_tokens);

  // Why the model does not read this, with the numbers: the question leaves fewer tokens than
  // kLeastWindowTokens, or there are more windows than kMostWindows. Else empty.
  std::string problem() const;
  // Not for a question with a problem(). `ids`: part_tokens() of part.text. Of several pieces the
  // first keeps the part's head and the last its tail. Errors: those of append_part().
  Status add(size_t number, const PromptPart& part, std::span<const int32_t> ids);
  // In the order of the parts. The builder is empty afterwards.
  Result<std::vector<ReadingWindow>> windows();

 private:
  WindowBuilder(const Tokenizer& tokenizer, std::string question, std::vector<int32_t> question_ids,
                size_t most_tokens);
  Status add_pieces(size_t number, const PromptPart& part, std::span<const int32_t> ids);
  size_t cut_before(std::span<const int32_t> ids, size_t at) const;
  Status append(size_t number, const PromptPart& part, std::span<const int32_t> ids);
  Status end_window();

  const Tokenizer& tokenizer_;
  const std::string question_;
  const std::vector<int32_t> question_ids_;
  const size_t most_tokens_;
  const size_t room_;  // beside the question
  std::vector<ReadingWindow> windows_;
  bool open_ = false;  // the last window has no question yet
};

}  // namespace braid::server
