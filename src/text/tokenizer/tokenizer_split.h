// tokenizer_split.h -- the pre-tokenizer: splits text into the pieces for merging.
// Published tokenizers define pieces by regular expressions in stages; each splits the pieces of
// the previous one, and unmatched text is a piece too. Pieces are not empty and join to the text.
// PCRE2 runs them, with JIT where possible. Every expression is linear for any text; a match limit
// guards this.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;

namespace braid {

enum class SplitKind {
  gpt2,
  llama3,
  qwen2,
  qwen35,
  laguna,            // line ends \n and \r\n start a piece, then qwen2
  laguna_line_feed,  // runs of \n are pieces, then qwen2
  fallback,          // the file names no pre-tokenizer
};

// Error of kind unsupported for unknown names.
Result<SplitKind> split_kind(std::string_view pre, bool laguna_breaks_at_line_feed_only);

class Splitter {
 public:
  // Working memory of one thread. Use it only with the Splitter that made it.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class Splitter;
    pcre2_real_match_data_8* match_ = nullptr;
    pcre2_real_match_context_8* context_ = nullptr;
  };

  // Receives one piece; an error ends the splitting and is passed on.
  using Sink = std::function<Status(std::string_view)>;

  static Result<Splitter> create(SplitKind kind);

  // Passes the pieces of `text` to `sink` from left to right. Thread-safe with separate scratches.
  // REQUIRES: text is well-formed UTF-8.
  Status split(std::string_view text, Scratch& scratch, const Sink& sink) const;

 private:
  struct CodeDeleter {
    void operator()(pcre2_real_code_8* code) const;
  };
  struct Stage {
    std::unique_ptr<pcre2_real_code_8, CodeDeleter> code;
    bool jit = false;
    bool covers_all = false;  // a match at every position: no gaps, no search
  };

  Splitter() = default;
  Status add_stage(std::string_view pattern, bool covers_all);
  Status split_stage(size_t stage, std::string_view text, Scratch& scratch, const Sink& sink) const;

  std::vector<Stage> stages_;
  bool starts_pieces_at_line_ends_ = false;
};

}  // namespace braid
