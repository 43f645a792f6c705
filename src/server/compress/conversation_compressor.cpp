// conversation_compressor.cpp -- see conversation_compressor.h.
#include "server/compress/conversation_compressor.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "text/blanks.h"

namespace braid::server {
namespace {

using Role = ConversationText::Role;

constexpr int kRecentAnswers = 2;
constexpr size_t kShortTokens = 64;      // of a message that is not touched
constexpr size_t kHeadBytes = 1000;      // of a long recent message: its first paragraph, at most
constexpr size_t kTailBytes = 2000;      // the same of its last one
constexpr size_t kLeastTailBytes = 400;  // if paragraphs are longer: to the begin of a line
// A message of which nothing is kept.
constexpr std::string_view kNothingKept = "[...]";

// The first paragraph or line, if it is short, or some words: they may say what the rest is for.
size_t head_of(std::string_view text) {
  const std::string_view begin = text.substr(0, kHeadBytes);
  for (const std::string_view border : {"\n\n", "\r\n\r\n", "\n"}) {
    const size_t at = begin.find(border);
    if (at != std::string_view::npos) return at + border.size();
  }
  const size_t blank = begin.rfind(' ', kLeastTailBytes);
  return blank == std::string_view::npos ? std::min(begin.size(), kLeastTailBytes) : blank;
}

// Bytes of the last paragraphs, or lines, or of the end alone.
size_t tail_of(std::string_view text, size_t most) {
  if (text.size() <= most) return text.size();
  const std::string_view end = text.substr(text.size() - most);
  for (const std::string_view border : {"\n\n", "\r\n\r\n", "\n", " "}) {
    const size_t at = end.find(border);
    if (at != std::string_view::npos && most - at >= kLeastTailBytes)
      return most - at - border.size();
  }
  return most;
}

// What the conversation asks for now.
std::string question_of(std::span<const ConversationText> messages) {
  std::string out;
  size_t user = messages.size();
  for (size_t i = messages.size(); i-- > 0 && user == messages.size();)
    if (messages[i].role == Role::user) user = i;
  if (user < messages.size()) {
    out += "\n\n";
    out += last_words(messages[user].text);
  }
  for (size_t i = messages.size(); i-- > 0 && (user == messages.size() || i > user);)
    if (messages[i].role == Role::answer && !messages[i].text.empty()) {
      out += "\n\n";
      out += last_words(messages[i].text);
      break;
    }
  if (out.empty() && !messages.empty()) out = last_words(messages.back().text);
  return out;
}

int64_t threshold_of(const ConversationCompressor::Options& options, const CompressionWish& wish) {
  if (wish.mode == CompressionMode::always) return ConversationCompressor::kAlwaysTokens;
  const int64_t context = wish.context_tokens / 10 * 9;
  return context > 0 ? std::min(options.threshold_tokens, context) : options.threshold_tokens;
}

bool is_kept(const Selection& selection, size_t token) {
  return std::any_of(selection.kept.begin(), selection.kept.end(), [&](const TokenRange& range) {
    return range.begin <= token && token < range.end;
  });
}

}  // namespace

Result<CompressionChoice> CompressionChoice::parse(std::string_view text) {
  if (text == "off") return CompressionChoice{};
  if (text == "auto") return CompressionChoice{CompressionMode::automatic, {}};
  if (text == "always") return CompressionChoice{CompressionMode::always, {}};
  const auto keep = KeepCurve::parse(text);
  if (keep.ok()) return CompressionChoice{CompressionMode::always, *keep};
  return Error{
      ErrorKind::invalid_argument,
      fmt::format("compression is off, auto, always or a share to keep: {}", keep.error().message)};
}

bool CompressionPlan::changes() const {
  return std::any_of(texts.begin(), texts.end(), [](const auto& text) { return text.has_value(); });
}

std::string CompressionPlan::note() const {
  if (!changes()) return "none";
  return fmt::format("read={} dropped={} reused={}", read_tokens, dropped_tokens,
                     found ? "yes" : "no");
}

size_t CompressionPlan::bytes() const {
  size_t bytes = parts.capacity() * sizeof(Part) + texts.capacity() * sizeof texts[0];
  for (const ReadingWindow& window : windows) bytes += sizeof window + window.prompt.bytes();
  for (const auto& text : texts) bytes += text ? text->capacity() : 0;
  return bytes;
}

struct ConversationCompressor::Measured {
  std::vector<int32_t> ids;  // of the original text
  CompressionKey key;        // of the conversation up to this message
  bool recent = false;
  size_t tokens() const { return ids.size(); }
};

ConversationCompressor::ConversationCompressor(std::shared_ptr<const Tokenizer> tokenizer,
                                               const Options& options)
    : tokenizer_(std::move(tokenizer)), options_(options), cache_(options.cache_bytes) {}

// Tokenizes all messages.
Result<std::vector<ConversationCompressor::Measured>> ConversationCompressor::measure(
    std::span<const ConversationText> messages, const CompressionWish& wish,
    CompressionPlan& plan) {
  std::vector<Measured> out(messages.size());
  const std::string keep = plan.keep.canonical();
  CompressionKey key = next_key({}, 't', wish.tenant);
  for (size_t i = 0; i < messages.size(); ++i) {
    Measured& message = out[i];
    BRAID_ASSIGN(message.ids, part_tokens(*tokenizer_, messages[i].text));
    key = next_key(key, static_cast<unsigned char>(messages[i].role), messages[i].text);
    message.key = next_key(key, 'a', keep);
    plan.read_tokens += static_cast<int64_t>(message.tokens());
  }
  return out;
}

// The last answers with what follows them, and more up to a quarter of the threshold.
void ConversationCompressor::mark_recent(std::span<const ConversationText> messages,
                                         std::span<Measured> measured, size_t most_tokens) {
  int answers = 0;
  size_t tokens = 0;
  bool user = false;
  for (size_t i = messages.size(); i-- > 0;) {
    tokens += measured[i].tokens();
    // The newest question is recent however old it is.
    const bool asks = messages[i].role == Role::user && !user;
    user = user || asks;
    measured[i].recent = asks || answers < kRecentAnswers || tokens <= most_tokens;
    answers += messages[i].role == Role::answer ? 1 : 0;
  }
}

// What may be shortened: found, or a part to read.
void ConversationCompressor::find_parts(std::span<const ConversationText> messages,
                                        std::span<const Measured> measured, size_t threshold,
                                        CompressionPlan& plan) {
  // The newest question; what follows it does not change it.
  size_t asking = messages.size() - 1;
  while (asking > 0 && messages[asking].role != Role::user) --asking;
  const CompressionKey question = next_key(measured[asking].key, 'l', plan.keep.canonical());
  for (size_t i = 0; i < messages.size(); ++i) {
    const Measured& message = measured[i];
    if (messages[i].role == Role::instructions || message.tokens() < kShortTokens) continue;
    const bool of_user = messages[i].role == Role::user;
    if (message.recent && message.tokens() <= threshold / (of_user ? 4 : 2)) continue;
    CompressionPlan::Part part{i, message.recent, message.key, message.tokens(), {}};
    if (message.recent && of_user) part.key = next_key(question, 'i', std::to_string(i));
    if (auto found = cache_.find(part.key)) {
      replace(plan, part, std::move(*found));
      plan.found = true;
    } else {
      plan.parts.push_back(part);
    }
  }
}

void ConversationCompressor::replace(CompressionPlan& plan, const CompressionPlan::Part& part,
                                     std::string text) const {
  const auto tokens = part_tokens(*tokenizer_, text);
  const size_t kept = tokens.ok() ? tokens->size() : part.tokens;
  plan.dropped_tokens += static_cast<int64_t>(part.tokens) - static_cast<int64_t>(kept);
  plan.texts[part.message] = std::move(text);
}

Result<CompressionPlan> ConversationCompressor::plan(std::span<const ConversationText> messages,
                                                     const CompressionWish& wish) {
  CompressionPlan plan;
  plan.texts.resize(messages.size());
  plan.keep = wish.keep.value_or(options_.keep);
  if (wish.mode == CompressionMode::off || messages.empty()) {
    plan.reason = "it is off";
    return plan;
  }
  const int64_t threshold = threshold_of(options_, wish);
  size_t bytes = 0;
  for (const ConversationText& message : messages) bytes += message.text.size();
  if (bytes < static_cast<size_t>(threshold)) {  // a token has a byte or more
    plan.reason = fmt::format("{} bytes are below the threshold of {} tokens", bytes, threshold);
    return plan;
  }
  BRAID_ASSIGN(std::vector<Measured> measured, measure(messages, wish, plan));
  if (plan.read_tokens < threshold) {
    plan.reason =
        fmt::format("{} tokens are below the threshold of {}", plan.read_tokens, threshold);
    return plan;
  }
  const double least_left = static_cast<double>(plan.read_tokens) *
                            plan.keep.at(static_cast<uint64_t>(plan.read_tokens)).prose;
  if (wish.context_tokens > 0 && least_left > 2.0 * static_cast<double>(wish.context_tokens)) {
    plan.reason = fmt::format("{} tokens do not fit a context of {} after compression either",
                              plan.read_tokens, wish.context_tokens);
    return plan;
  }
  mark_recent(messages, measured, static_cast<size_t>(threshold / 4));
  find_parts(messages, measured, static_cast<size_t>(threshold), plan);
  const int64_t tokens = plan.read_tokens - plan.dropped_tokens;
  // In few and large pieces, because each changes the prefix of the conversation; unless it would
  // not fit.
  const bool fits = wish.context_tokens == 0 || tokens < wish.context_tokens / 10 * 9;
  const int64_t least = fits ? std::max(kLeastTokens, threshold / 4) : kLeastTokens;
  int64_t to_read = 0;
  for (const CompressionPlan::Part& part : plan.parts) to_read += static_cast<int64_t>(part.tokens);
  if (tokens >= threshold && to_read >= least) {
    BRAID_TRY(build_windows(messages, measured, plan));
  } else {
    plan.reason = fmt::format("{} of {} tokens are old or in long messages, and not shortened yet",
                              to_read, tokens);
    plan.parts.clear();
  }
  return plan;
}

Status ConversationCompressor::build_windows(std::span<const ConversationText> messages,
                                             std::span<const Measured> measured,
                                             CompressionPlan& plan) const {
  const auto most = static_cast<size_t>(std::max<int64_t>(0, options_.most_tokens));
  BRAID_ASSIGN(WindowBuilder builder,
               WindowBuilder::create(*tokenizer_, question_of(messages), most));
  plan.reason = builder.problem();
  if (plan.reason.empty()) {
    for (size_t i = 0; i < plan.parts.size(); ++i) {
      const CompressionPlan::Part& part = plan.parts[i];
      PromptPart text{messages[part.message].text};
      if (part.keeps_ends) {
        text.head_bytes = head_of(text.text);
        text.tail_bytes = tail_of(text.text, kTailBytes);
      }
      BRAID_TRY(builder.add(i, text, measured[part.message].ids));
    }
    plan.reason = builder.problem();
  }
  if (plan.reason.empty()) {
    BRAID_ASSIGN(plan.windows, builder.windows());
  } else {
    plan.parts.clear();
  }
  return {};
}

void ConversationCompressor::take_scores(CompressionPlan& plan, std::span<const float> scores) {
  BRAID_CHECK(plan.to_read() != nullptr && scores.size() == plan.to_read()->ids.size());
  ReadingWindow& window = plan.windows[plan.next_window];
  const ChosenParts chosen =
      choose_parts(window.prompt, scores, plan.keep, static_cast<uint64_t>(plan.read_tokens));
  for (size_t i = 0; i < window.parts.size(); ++i) {
    std::string& text = plan.parts[window.parts[i]].text;
    const TokenRange& tokens = window.prompt.parts[i];
    const std::string more = kept_part(window.prompt, chosen.selection.kept, i);
    const bool gap = !text.empty() && !more.empty() &&
                     (plan.last_dropped || !is_kept(chosen.selection, tokens.begin));
    if (gap && !is_blank(text.back()) && !is_blank(more.front())) text += '\n';
    text += more;
    plan.last_dropped = tokens.begin < tokens.end && !is_kept(chosen.selection, tokens.end - 1);
  }
  window.prompt = {};
  if (++plan.next_window < plan.windows.size()) return;
  for (CompressionPlan::Part& part : plan.parts) {
    if (trimmed(part.text).empty()) part.text = kNothingKept;
    cache_.put(part.key, part.text);
    replace(plan, part, std::move(part.text));
  }
  plan.give_up();
}

}  // namespace braid::server
