// detokenizer.cpp -- see detokenizer.h.
#include "text/detokenizer.h"

#include <algorithm>

#include "text/unicode.h"

namespace braid {
namespace {

// Length of the incomplete sequence at the end of `bytes`.
size_t incomplete_tail_bytes(std::string_view bytes) {
  for (size_t length = 1; length <= std::min<size_t>(3, bytes.size()); ++length) {
    const Utf8Step step = utf8_step(bytes.substr(bytes.size() - length));
    if (step.kind == Utf8Kind::incomplete) return length;
  }
  return 0;
}

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
  held_ += bytes;
  const size_t ready_bytes = held_.size() - incomplete_tail_bytes(held_);
  std::string out;
  append_repaired_utf8(out, std::string_view(held_).substr(0, ready_bytes),
                       Utf8Repair::maximal_subpart);
  held_.erase(0, ready_bytes);
  return out;
}

std::string Utf8Stream::flush() {
  std::string out;
  append_repaired_utf8(out, held_, Utf8Repair::maximal_subpart);
  held_.clear();
  return out;
}

}  // namespace braid
