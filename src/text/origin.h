// origin.h -- who wrote which part of a prompt.
//
// A template writes the frame of a conversation, and only its own words may become control tokens: a user's
// text that spells <|im_end|> is a text about that token, not the end of a turn. Tokens that the vocabulary
// calls user-defined (<tool_call>, <think>) are no part of the frame: instructions show with them how a call
// is written, and models were trained to see them there. The renderer (jinja.h) marks what came out of
// messages, the tokenizer (tokenizer.h) reads the marks. Whatever is derived from several texts without a
// mark per part counts as its least trusted part.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

// From most to least trusted: each recognises fewer special tokens than the one before it.
enum class Origin : uint8_t {
  written = 0,  // by the template or by us: all of them
  answer = 1,   // by the model in an earlier turn: user-defined ones, and <think>, <tool_call> of any type
  instruction = 2,  // by who set the model up (system and developer messages, tools): user-defined ones
  data = 3,         // by a user, a tool, a file: none
};

struct OriginSpan {
  uint32_t begin = 0, end = 0;  // bytes
  Origin origin = Origin::data;
};

// Ascending, apart or touching with different origins, none empty. What no span covers is Origin::written.
using OriginSpans = std::vector<OriginSpan>;

inline void append_origin(OriginSpans& spans, size_t begin, size_t end, Origin origin) {
  if (begin == end || origin == Origin::written) return;
  if (!spans.empty() && spans.back().end == begin && spans.back().origin == origin) {
    spans.back().end = static_cast<uint32_t>(end);
  } else {
    spans.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end), origin});
  }
}

// Index of the first span that ends behind `at`.
inline size_t first_span_behind(const OriginSpans& spans, size_t at) {
  const auto found =
      std::upper_bound(spans.begin(), spans.end(), at,
                       [](size_t position, const OriginSpan& span) { return position < span.end; });
  return static_cast<size_t>(found - spans.begin());
}

// The least trusted origin within [begin, end).
inline Origin least_trusted(const OriginSpans& spans, size_t begin, size_t end) {
  Origin worst = Origin::written;
  for (size_t i = first_span_behind(spans, begin); i < spans.size() && spans[i].begin < end; ++i) {
    worst = std::max(worst, spans[i].origin);
  }
  return worst;
}

// A text with its marks. REQUIRES: text.size() < 4 GiB.
struct RenderedText {
  std::string text;
  OriginSpans spans;

  void append(std::string_view more, Origin origin) {
    append_origin(spans, text.size(), text.size() + more.size(), origin);
    text += more;
  }
  // The first `bytes` of it.
  RenderedText prefix(size_t bytes) const {
    RenderedText out{text.substr(0, bytes), spans};
    while (!out.spans.empty() && out.spans.back().begin >= out.text.size()) out.spans.pop_back();
    if (!out.spans.empty()) {
      out.spans.back().end = std::min(out.spans.back().end, static_cast<uint32_t>(out.text.size()));
    }
    return out;
  }
};

}  // namespace braid
