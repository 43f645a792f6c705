// origin.h -- the writer of each part of a prompt.
// Only the template's own text may become control tokens: <|im_end|> in a user's text does not end
// a turn. User-defined tokens (<tool_call>, <think>) are also recognized in instructions, where
// models were trained to see them. The renderer (jinja.h) marks text, the tokenizer reads the
// marks. Text from several parts without marks counts as the least trusted one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace braid {

// From most to least trusted: each recognizes fewer special tokens than the one before it.
enum class Origin : uint8_t {
  written = 0,  // by the template or by braid: all
  answer = 1,  // earlier turn of the model: user-defined ones, and <think>, <tool_call> of any type
  instruction = 2,  // system and developer messages, tools: user-defined ones
  data = 3,         // by a user, a tool, a file: none
};

struct OriginSpan {
  uint32_t begin = 0, end = 0;  // bytes
  Origin origin = Origin::data;
};

// Ascending, not empty, not overlapping. Bytes outside are Origin::written.
using OriginSpans = std::vector<OriginSpan>;

inline void append_origin(OriginSpans& spans, size_t begin, size_t end, Origin origin) {
  if (begin == end || origin == Origin::written) return;
  if (!spans.empty() && spans.back().end == begin && spans.back().origin == origin) {
    spans.back().end = static_cast<uint32_t>(end);
  } else {
    spans.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end), origin});
  }
}

inline size_t first_span_behind(const OriginSpans& spans, size_t at) {
  const auto found =
      std::upper_bound(spans.begin(), spans.end(), at,
                       [](size_t position, const OriginSpan& span) { return position < span.end; });
  return static_cast<size_t>(found - spans.begin());
}

inline Origin least_trusted(const OriginSpans& spans, size_t begin, size_t end) {
  Origin worst = Origin::written;
  for (size_t i = first_span_behind(spans, begin); i < spans.size() && spans[i].begin < end; ++i) {
    worst = std::max(worst, spans[i].origin);
  }
  return worst;
}

// REQUIRES: text.size() < 4 GiB.
struct RenderedText {
  std::string text;
  OriginSpans spans;

  void append(std::string_view more, Origin origin) {
    append_origin(spans, text.size(), text.size() + more.size(), origin);
    text += more;
  }
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
