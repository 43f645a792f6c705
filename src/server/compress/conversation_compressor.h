// conversation_compressor.h -- shortens the texts of a conversation; its form stays as it is.
//
// Instructions, calls of tools and short messages are never touched. Two kinds of texts are
// shortened in a conversation of at least `threshold_tokens`:
//   aged   before the recent messages: the last two answers with all that follows them, and more,
//          up to a quarter of the threshold. They are shortened once, and found again in later
//          turns, so that the prefix of an agent's conversation stays the same
//   long   a recent message of a user with more than a quarter of the threshold, or another with
//          more than half of it. It keeps its beginning and its end. A user's is shortened anew
//          when the question changes, others once
// The last paragraphs of the last user's message and of the last answer after it are the question.
//
// The scoring model reads in windows (window_builder.h), each with a budget of its own.
//
// Use, each step on any thread:
//   plan()         says what the scoring model has to read first, if anything
//   take_scores()  of that; then CompressionPlan::to_read() is the next window
// Texts are found again only by the same client (CompressionWish::tenant), for the same
// conversation up to there. Thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "server/compress/compression_cache.h"
#include "server/compress/window_builder.h"

namespace braid::server {

enum class CompressionMode : uint8_t { off, automatic, always };

// Values of the request header and of the option: off, auto, always, or a KeepCurve, which means
// always. Error: invalid_argument.
struct CompressionChoice {
  CompressionMode mode = CompressionMode::off;
  std::optional<KeepCurve> keep;

  static Result<CompressionChoice> parse(std::string_view text);
};

struct ConversationText {
  enum class Role : uint8_t { instructions, user, answer, tool } role = Role::user;
  std::string_view text;
};

struct CompressionWish {
  CompressionMode mode = CompressionMode::automatic;
  std::optional<KeepCurve> keep;  // instead of the compressor's
  std::string tenant;
  int64_t context_tokens = 0;  // of the model that gets the text; 0: unknown
};

struct CompressionPlan {
  // New texts by message; empty: unchanged.
  std::vector<std::optional<std::string>> texts;
  bool found = false;          // some of them were made for earlier requests
  std::string reason;          // if nothing is compressed: why
  int64_t read_tokens = 0;     // of all messages, by the scoring model's tokenizer
  int64_t dropped_tokens = 0;  // of them; complete when nothing is left to read

  // What the scoring model has to read next, with the question at its end; null: nothing.
  const TokenizedPrompt* to_read() const {
    return next_window < windows.size() ? &windows[next_window].prompt : nullptr;
  }
  // Nothing is shortened of what was to be read.
  void give_up() { windows.clear(); }
  bool changes() const;
  // For the answer's header: "read=41200 dropped=35100 reused=no", or "none".
  std::string note() const;
  size_t bytes() const;

  // Of the compressor. A message that is shortened, and its text so far.
  struct Part {
    size_t message = 0;
    bool keeps_ends = false;
    CompressionKey key;
    size_t tokens = 0;
    std::string text = {};
  };
  std::vector<Part> parts;
  std::vector<ReadingWindow> windows;  // their parts are numbers of `parts`
  size_t next_window = 0;
  bool last_dropped = false;  // the last token before the next window
  KeepCurve keep;
};

class ConversationCompressor {
 public:
  struct Options {
    CompressionMode mode = CompressionMode::automatic;  // of requests without a wish
    KeepCurve keep;
    int64_t threshold_tokens = 32'000;
    int64_t most_tokens = 0;  // that the scoring model reads at once
    size_t cache_bytes = size_t{64} << 20;
  };
  static constexpr int64_t kAlwaysTokens = 2048;  // the threshold of CompressionMode::always
  static constexpr int64_t kLeastTokens = 512;    // fewer are not worth reading

  ConversationCompressor(std::shared_ptr<const Tokenizer> tokenizer, const Options& options);

  // Errors: those of the tokenizer.
  Result<CompressionPlan> plan(std::span<const ConversationText> messages,
                               const CompressionWish& wish);
  // scores [tokens of plan.to_read()].
  void take_scores(CompressionPlan& plan, std::span<const float> scores);

  const Options& options() const { return options_; }
  const CompressionCache& cache() const { return cache_; }

 private:
  struct Measured;
  Result<std::vector<Measured>> measure(std::span<const ConversationText> messages,
                                        const CompressionWish& wish, CompressionPlan& plan);
  static void mark_recent(std::span<const ConversationText> messages, std::span<Measured> measured,
                          size_t most_tokens);
  void find_parts(std::span<const ConversationText> messages, std::span<const Measured> measured,
                  size_t threshold, CompressionPlan& plan);
  Status build_windows(std::span<const ConversationText> messages,
                       std::span<const Measured> measured, CompressionPlan& plan) const;
  void replace(CompressionPlan& plan, const CompressionPlan::Part& part, std::string text) const;

  const std::shared_ptr<const Tokenizer> tokenizer_;
  const Options options_;
  CompressionCache cache_;
};

}  // namespace braid::server
