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
constexpr size_t kQuestionBytes = 4000;
constexpr size_t kLastAnswerBytes = 1000;
// A message of which nothing is kept.
constexpr std::string_view kNothingKept = "[...]";

// The first paragraph, if it is short: it may say what the rest is for.
size_t head_of(std::string_view text) {
  const size_t end = text.substr(0, kHeadBytes).find("\n\n");
  return end == std::string_view::npos ? 0 : end + 2;
}

// Bytes of the last paragraphs, or lines, or of the end alone.
size_t tail_of(std::string_view text, size_t most) {
  if (text.size() <= most) return text.size();
  const std::string_view end = text.substr(text.size() - most);
  for (const std::string_view border : {"\n\n", "\n", " "}) {
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
  const auto add = [&](std::string_view text, size_t most) {
    out += "\n\n";
    out += text.substr(text.size() - tail_of(text, most));
  };
  if (user < messages.size()) add(messages[user].text, kQuestionBytes);
  for (size_t i = messages.size(); i-- > 0 && (user == messages.size() || i > user);)
    if (messages[i].role == Role::answer && !messages[i].text.empty()) {
      add(messages[i].text, kLastAnswerBytes);
      break;
    }
  if (out.empty() && !messages.empty()) add(messages.back().text, kQuestionBytes);
  return out;
}

int64_t threshold_of(const ConversationCompressor::Options& options, const CompressionWish& wish) {
  if (wish.mode == CompressionMode::always) return ConversationCompressor::kAlwaysTokens;
  const int64_t context = wish.context_tokens / 10 * 9;
  return context > 0 ? std::min(options.threshold_tokens, context) : options.threshold_tokens;
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

size_t CompressionPlan::bytes() const {
  size_t bytes =
      prompt.bytes() + parts.capacity() * sizeof(Part) + texts.capacity() * sizeof texts[0];
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

// Tokenizes all messages, and puts in place what was shortened before.
Result<std::vector<ConversationCompressor::Measured>> ConversationCompressor::measure(
    std::span<const ConversationText> messages, const CompressionWish& wish,
    CompressionPlan& plan) {
  std::vector<Measured> out(messages.size());
  plan.texts.resize(messages.size());
  const std::string keep = plan.keep.canonical();
  CompressionKey key = next_key({}, 't', wish.tenant);
  for (size_t i = 0; i < messages.size(); ++i) {
    Measured& message = out[i];
    BRAID_ASSIGN(message.ids, part_tokens(*tokenizer_, messages[i].text));
    key = next_key(key, static_cast<unsigned char>(messages[i].role), messages[i].text);
    message.key = next_key(key, 'a', keep);
    plan.read_tokens += static_cast<int64_t>(message.tokens());
    auto found = cache_.find(message.key);
    if (!found) continue;
    BRAID_ASSIGN(const std::vector<int32_t> shorter, part_tokens(*tokenizer_, *found));
    plan.dropped_tokens +=
        static_cast<int64_t>(message.tokens()) - static_cast<int64_t>(shorter.size());
    plan.texts[i] = std::move(*found);
    plan.found = true;
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

// What may be shortened, and has not been for this or an earlier request.
void ConversationCompressor::find_parts(std::span<const ConversationText> messages,
                                        std::span<const Measured> measured, size_t threshold,
                                        CompressionPlan& plan) {
  const CompressionKey whole = next_key(measured.back().key, 'l', plan.keep.canonical());
  for (size_t i = 0; i < messages.size(); ++i) {
    const Measured& message = measured[i];
    if (messages[i].role == Role::instructions || plan.texts[i]) continue;
    if (message.tokens() < kShortTokens) continue;
    const bool of_user = messages[i].role == Role::user;
    if (message.recent && message.tokens() <= threshold / (of_user ? 4 : 2)) continue;
    CompressionPlan::Part part{i, message.recent, message.key, message.tokens()};
    if (message.recent && of_user) {
      part.key = next_key(whole, 'i', std::to_string(i));
      if (auto found = cache_.find(part.key)) {
        replace(plan, part, std::move(*found));
        plan.found = true;
        continue;
      }
    }
    plan.parts.push_back(part);
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
  plan.keep = wish.keep.value_or(options_.keep);
  if (wish.mode == CompressionMode::off || messages.empty()) {
    plan.texts.resize(messages.size());
    plan.reason = "it is off";
    return plan;
  }
  const int64_t threshold = threshold_of(options_, wish);
  BRAID_ASSIGN(std::vector<Measured> measured, measure(messages, wish, plan));
  const int64_t tokens = plan.read_tokens - plan.dropped_tokens;
  if (tokens < threshold) {
    plan.reason = fmt::format("{} tokens are below the threshold of {}", tokens, threshold);
    return plan;
  }
  mark_recent(messages, measured, static_cast<size_t>(threshold / 4));
  find_parts(messages, measured, static_cast<size_t>(threshold), plan);
  BRAID_TRY(build_prompt(messages, measured, plan));
  // In few and large pieces: each changes the prefix of the conversation.
  const int64_t least = std::max(kLeastTokens, threshold / 8);
  int64_t to_read = 0;
  for (const CompressionPlan::Part& part : plan.parts) to_read += static_cast<int64_t>(part.tokens);
  plan.needs_scores = !plan.parts.empty() && to_read >= least;
  if (!plan.needs_scores && plan.reason.empty())
    plan.reason =
        fmt::format("{} tokens are old or in long messages, fewer than {}", to_read, least);
  return plan;
}

// Oldest first, up to what the scoring model can read; then the question.
Status ConversationCompressor::build_prompt(std::span<const ConversationText> messages,
                                            std::span<const Measured> measured,
                                            CompressionPlan& plan) const {
  if (plan.parts.empty()) return {};
  const CompressionPlan::Part& last = plan.parts.back();
  const bool ends_with_question = last.keeps_ends && last.message + 1 == messages.size() &&
                                  messages[last.message].role == Role::user;
  const std::string question = question_of(messages);
  BRAID_ASSIGN(const std::vector<int32_t> question_ids, part_tokens(*tokenizer_, question));
  const int64_t most = options_.most_tokens - static_cast<int64_t>(question_ids.size());
  int64_t tokens = 0;
  size_t fit = 0;
  while (fit < plan.parts.size() && tokens + static_cast<int64_t>(plan.parts[fit].tokens) <= most)
    tokens += static_cast<int64_t>(plan.parts[fit++].tokens);
  if (fit == 0)
    plan.reason = fmt::format("a text has {} tokens, and the scoring model reads {}",
                              plan.parts[0].tokens, options_.most_tokens);
  const bool all = fit == plan.parts.size();
  plan.parts.resize(fit);
  for (const CompressionPlan::Part& part : plan.parts) {
    const std::string_view text = messages[part.message].text;
    PromptPart scored{text};
    if (part.keeps_ends) {
      scored.head_bytes = head_of(text);
      scored.tail_bytes = tail_of(text, kTailBytes);
    }
    BRAID_TRY(append_part(plan.prompt, *tokenizer_, scored, measured[part.message].ids));
  }
  if (plan.parts.empty() || (ends_with_question && all)) return {};
  return append_part(plan.prompt, *tokenizer_, {question, KeptBecause::last_user_turn},
                     question_ids);
}

void ConversationCompressor::finish(CompressionPlan& plan, std::span<const float> scores) {
  BRAID_CHECK(plan.needs_scores && scores.size() == plan.prompt.ids.size());
  const ChosenParts chosen =
      choose_parts(plan.prompt, scores, plan.keep, static_cast<uint64_t>(plan.read_tokens));
  for (size_t i = 0; i < plan.parts.size(); ++i) {
    std::string text = kept_part(plan.prompt, chosen.selection, i);
    if (trimmed(text).empty()) text = kNothingKept;
    cache_.put(plan.parts[i].key, text);
    replace(plan, plan.parts[i], std::move(text));
  }
  plan.needs_scores = false;
  plan.prompt = {};
}

}  // namespace braid::server
