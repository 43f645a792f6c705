// thoughts.cpp -- see thoughts.h.
#include "cli/thoughts.h"

#include <algorithm>

#include "text/blanks.h"
#include "text/dialect.h"

namespace braid::cli {
namespace {

// Bytes at the end of `text` that may begin `tag`.
size_t begun(std::string_view text, std::string_view tag) {
  for (size_t n = std::min(text.size(), tag.size() - 1); n > 0; --n)
    if (text.ends_with(tag.substr(0, n))) return n;
  return 0;
}

}  // namespace

ThoughtSplitter::Parts ThoughtSplitter::push(std::string_view text) {
  held_ += text;
  Parts out;
  take(out, false);
  return out;
}

ThoughtSplitter::Parts ThoughtSplitter::finish() {
  Parts out;
  take(out, true);
  return out;
}

void ThoughtSplitter::take(Parts& out, bool last) {
  const Dialect::Tags tags = Dialect().think;
  if (place_ == Place::beginning) {
    const size_t start = std::min(held_.find_first_not_of(kBlanks), held_.size());
    const std::string_view rest = std::string_view(held_).substr(start);
    if (rest.starts_with(tags.open)) {
      held_.erase(0, start + tags.open.size());
      place_ = Place::thought;
    } else if (!last && tags.open.starts_with(rest)) {
      return;  // undecided
    } else {
      place_ = Place::said;
    }
  }
  if (place_ == Place::thought) {
    if (!thinks_) held_.erase(0, std::min(held_.find_first_not_of(kBlanks), held_.size()));
    thinks_ |= !held_.empty();
    const size_t end = held_.find(tags.close);
    if (end == held_.npos) {
      // Blanks before the tag belong to it.
      size_t keep = last ? 0 : begun(held_, tags.close);
      while (!last && keep < held_.size() && is_blank(held_[held_.size() - keep - 1])) ++keep;
      out.thought += held_.substr(0, held_.size() - keep);
      held_.erase(0, held_.size() - keep);
      return;
    }
    const size_t text_end = held_.find_last_not_of(kBlanks, end == 0 ? 0 : end - 1);
    if (end > 0 && text_end != held_.npos) out.thought += held_.substr(0, text_end + 1);
    held_.erase(0, end + tags.close.size());
    place_ = Place::before_said;
  }
  if (place_ == Place::before_said) {
    held_.erase(0, std::min(held_.find_first_not_of(kBlanks), held_.size()));
    if (held_.empty()) return;
    place_ = Place::said;
  }
  out.said += held_;
  held_.clear();
}

}  // namespace braid::cli
