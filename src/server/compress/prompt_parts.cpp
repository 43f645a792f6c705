// prompt_parts.cpp -- see prompt_parts.h.
#include "server/compress/prompt_parts.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "text/compress/chunk_scores.h"
#include "text/compress/code_share.h"

namespace braid::server {
namespace {

// Tokens of [from, ...) that begin before `byte` of the prompt's text.
size_t tokens_up_to(const TokenizedPrompt& prompt, size_t from, size_t byte) {
  const auto begin = prompt.ends.begin() + static_cast<std::ptrdiff_t>(from);
  const auto end = std::lower_bound(begin, prompt.ends.end(), static_cast<uint32_t>(byte));
  return static_cast<size_t>(end - prompt.ends.begin()) + (end == prompt.ends.end() ? 0 : 1);
}

void keep_ends(TokenizedPrompt& prompt, const PromptPart& part, size_t first, size_t begin) {
  const size_t end = prompt.text.size(), last = prompt.ids.size();
  if (part.head_bytes > 0) {
    const size_t upto = tokens_up_to(prompt, first, std::min(end, begin + part.head_bytes));
    if (upto > first) prompt.kept.push_back({{first, upto}, KeptBecause::instructions});
  }
  if (part.tail_bytes > 0) {
    const size_t at = end - std::min(end - begin, part.tail_bytes);
    const auto found = std::upper_bound(prompt.ends.begin() + static_cast<std::ptrdiff_t>(first),
                                        prompt.ends.end(), static_cast<uint32_t>(at));
    const auto from = static_cast<size_t>(found - prompt.ends.begin());
    if (from < last) prompt.kept.push_back({{from, last}, KeptBecause::last_user_turn});
  }
}

std::vector<TokenRange> protected_tokens(const TokenizedPrompt& prompt) {
  std::vector<TokenRange> out;
  for (const ProtectedRange& range : prompt.kept) out.push_back(range.tokens);
  return out;
}

// The part of `range` inside of `part`, counted from its begin; empty if there is none.
TokenRange inside(const TokenRange& range, const TokenRange& part) {
  const size_t begin = std::clamp(range.begin, part.begin, part.end);
  const size_t end = std::clamp(range.end, part.begin, part.end);
  return {begin - part.begin, end - part.begin};
}

}  // namespace

Result<std::vector<int32_t>> part_tokens(const Tokenizer& tokenizer, std::string_view text) {
  return tokenizer.encode(text, {.add_special = false, .parse_special = false});
}

Status append_part(TokenizedPrompt& prompt, const Tokenizer& tokenizer, const PromptPart& part,
                   std::span<const int32_t> ids) {
  const size_t first = prompt.ids.size(), begin = prompt.text.size();
  for (const int32_t id : ids) {
    prompt.text += tokenizer.piece(id, SpecialText::show);
    if (prompt.text.size() > std::numeric_limits<uint32_t>::max())
      return Error{ErrorKind::invalid_argument, "the prompt has more than 4 GiB"};
    prompt.ids.push_back(id);
    prompt.ends.push_back(static_cast<uint32_t>(prompt.text.size()));
  }
  prompt.parts.push_back({first, prompt.ids.size()});
  if (part.kept == KeptBecause::dropped) {
    keep_ends(prompt, part, first, begin);
  } else if (prompt.ids.size() > first) {
    prompt.kept.push_back({{first, prompt.ids.size()}, part.kept});
  }
  return {};
}

Result<TokenizedPrompt> tokenize_parts(const Tokenizer& tokenizer,
                                       std::span<const PromptPart> parts) {
  TokenizedPrompt out;
  for (const PromptPart& part : parts) {
    BRAID_ASSIGN(const std::vector<int32_t> ids, part_tokens(tokenizer, part.text));
    BRAID_TRY(append_part(out, tokenizer, part, ids));
  }
  return out;
}

ChosenParts choose_parts(const TokenizedPrompt& prompt, std::span<const float> scores,
                         const KeepCurve& keep, uint64_t length_tokens) {
  ChosenParts out;
  out.chunk_scores = chunk_scores(scores);
  SelectionInput input;
  input.ids = prompt.ids;
  input.chunk_scores = out.chunk_scores;
  const std::vector<float> code = code_shares(prompt.text, prompt.ends);
  input.code_shares = code;
  input.protected_ranges = prompt.kept;
  input.ratios = keep.at(length_tokens);
  out.selection = select_chunks(input);
  return out;
}

KeptText kept_prompt(const TokenizedPrompt& prompt, std::span<const TokenRange> kept) {
  const std::vector<TokenRange> kept_anyway = protected_tokens(prompt);
  KeptTextInput input;
  input.text = prompt.text;
  input.token_ends = prompt.ends;
  input.kept = kept;
  input.protected_tokens = kept_anyway;
  return kept_text(input);
}

std::string kept_part(const TokenizedPrompt& prompt, std::span<const TokenRange> kept,
                      size_t part) {
  BRAID_CHECK(part < prompt.parts.size());
  const TokenRange& range = prompt.parts[part];
  if (range.begin == range.end) return {};
  const size_t from = range.begin == 0 ? 0 : prompt.ends[range.begin - 1];
  const size_t to = prompt.ends[range.end - 1];
  std::vector<uint32_t> ends;
  for (size_t i = range.begin; i < range.end; ++i)
    ends.push_back(prompt.ends[i] - static_cast<uint32_t>(from));
  const auto of_part = [&](std::span<const TokenRange> ranges) {
    std::vector<TokenRange> out;
    for (const TokenRange& r : ranges)
      if (const TokenRange own = inside(r, range); own.begin < own.end) out.push_back(own);
    return out;
  };
  const std::vector<TokenRange> kept_of_part = of_part(kept);
  const std::vector<TokenRange> kept_anyway = of_part(protected_tokens(prompt));
  KeptTextInput input;
  input.text = std::string_view(prompt.text).substr(from, to - from);
  input.token_ends = ends;
  input.kept = kept_of_part;
  input.protected_tokens = kept_anyway;
  return std::move(kept_text(input).text);
}

}  // namespace braid::server
