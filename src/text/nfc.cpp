// nfc.cpp -- Unicode annex 15. Independent runs begin at starters that compose with nothing before.
#include "text/nfc.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "text/unicode.h"

namespace braid {
namespace {

using CodePoint = utf8proc_int32_t;

// Characters below U+0300, and from kEnd on, never change and never compose with an earlier one.
constexpr uint8_t kLeadOfFirst = 0xCC;  // the first byte of U+0300
constexpr CodePoint kEnd = 0x30000;
// The same holds from U+4000 to U+9FFF.
constexpr uint8_t kLeadOfU4000 = 0xE4, kLeadOfU9000 = 0xE9;

int combining_class(CodePoint c) { return utf8proc_get_property(c)->combining_class; }

void decompose(CodePoint c, std::vector<CodePoint>& out) {
  CodePoint parts[32];  // Unicode guarantees at most 4
  int boundary = 0;
  const auto count = utf8proc_decompose_char(c, parts, 32, UTF8PROC_DECOMPOSE, &boundary);
  BRAID_CHECK(count >= 0 && count <= 32);
  out.insert(out.end(), parts, parts + count);
}

// REQUIRES: decomposed and in order.
void compose(std::vector<CodePoint>& points) {
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  const auto count = utf8proc_normalize_utf32(
      points.data(), static_cast<utf8proc_ssize_t>(points.size()), options);
  BRAID_CHECK(count >= 0 && static_cast<size_t>(count) <= points.size());
  points.resize(static_cast<size_t>(count));
}

class CodePointSet {
 public:
  CodePointSet() : words_(kEnd / 64) {}
  void add(CodePoint c) { words_[static_cast<size_t>(c) / 64] |= uint64_t{1} << (c % 64); }
  bool has(CodePoint c) const {
    return c < kEnd && (words_[static_cast<size_t>(c) / 64] >> (c % 64) & 1) != 0;
  }

 private:
  std::vector<uint64_t> words_;
};

struct Classes {
  CodePointSet inner;     // belongs to the run of the character before it
  CodePointSet unstable;  // quick check is "no" or "maybe": it may change
};

Classes read_classes() {
  Classes out;
  std::vector<CodePoint> points;
  for (CodePoint c = 0; c < kEnd; ++c) {
    if (combining_class(c) != 0) out.inner.add(c);
    points.clear();
    decompose(c, points);
    if (points.size() == 1 && points[0] == c) continue;
    const CodePoint last = points.back();
    compose(points);
    const CodePoint changed = points.size() == 1 && points[0] == c ? last : c;
    out.unstable.add(changed);
    out.inner.add(changed);
  }
  return out;
}

const Classes& classes() {
  static const Classes all = read_classes();
  return all;
}

struct Step {
  CodePoint code_point;
  size_t length_bytes;
};

// REQUIRES: well-formed text; not ASCII.
Step step_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return static_cast<CodePoint>(static_cast<uint8_t>(text[at + i]));
  };
  const CodePoint lead = byte(0);
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F),
          4};
}

class RunNormalizer {
 public:
  const std::string& normalise(std::string_view run) {
    points_.clear();
    for (size_t at = 0; at < run.size();) {
      const auto lead = static_cast<uint8_t>(run[at]);
      const Step step = lead < 0x80 ? Step{lead, 1} : step_at(run, at);
      decompose(step.code_point, points_);
      at += step.length_bytes;
    }
    order();
    compose(points_);
    text_.clear();
    for (const CodePoint c : points_) append_utf8(text_, static_cast<char32_t>(c));
    return text_;
  }

 private:
  void order() {
    for (size_t begin = 0; begin < points_.size(); ++begin) {
      marks_.clear();
      size_t end = begin;
      for (int of = 0; end < points_.size() && (of = combining_class(points_[end])) != 0; ++end)
        marks_.emplace_back(of, points_[end]);
      std::stable_sort(marks_.begin(), marks_.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
      for (size_t i = 0; i < marks_.size(); ++i) points_[begin + i] = marks_[i].second;
      begin = end;
    }
  }

  std::vector<CodePoint> points_;
  std::vector<std::pair<int, CodePoint>> marks_;  // combining class, mark
  std::string text_;
};

}  // namespace

Result<std::string_view> nfc(std::string_view text, std::string& buffer) {
  buffer.clear();
  RunNormalizer normalizer;
  size_t run = 0;     // start of the run at `at`
  size_t copied = 0;  // bytes of the text already in the buffer
  int class_before = 0;
  for (size_t at = 0; at < text.size();) {
    const auto lead = static_cast<uint8_t>(text[at]);
    if (lead < kLeadOfFirst || (lead >= kLeadOfU4000 && lead <= kLeadOfU9000)) {
      run = at;
      class_before = 0;
      at += lead < 0x80 ? 1 : lead < kLeadOfU4000 ? 2 : 3;
      continue;
    }
    const Step step = step_at(text, at);
    if (!classes().inner.has(step.code_point)) {
      run = at;
      class_before = 0;
      at += step.length_bytes;
      continue;
    }
    if (!classes().unstable.has(step.code_point)) {
      const int own = combining_class(step.code_point);
      const bool ordered = own >= class_before;
      class_before = own;
      if (ordered) {
        at += step.length_bytes;
        continue;
      }
    }
    while (at < text.size() && static_cast<uint8_t>(text[at]) >= kLeadOfFirst) {
      const Step next = step_at(text, at);
      if (!classes().inner.has(next.code_point)) break;
      at += next.length_bytes;
    }
    if (at - run > kMaxNfcRunBytes) {
      return Error{
          ErrorKind::invalid_argument,
          fmt::format(
              "the text has {} bytes of combining marks on one letter; at most {} can be tokenized",
              at - run, kMaxNfcRunBytes)};
    }
    const std::string_view before = text.substr(run, at - run);
    const std::string& after = normalizer.normalise(before);
    if (after != before) {
      buffer.append(text.substr(copied, run - copied)).append(after);
      copied = at;
    }
    run = at;
    class_before = 0;
  }
  if (copied == 0) return text;
  buffer.append(text.substr(copied));
  return std::string_view(buffer);
}

}  // namespace braid
