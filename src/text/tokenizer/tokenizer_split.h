// tokenizer_split.h -- the pre-tokenizer: cuts text into the pieces inside which merging happens.
//
// Not here: special tokens (tokenizer_special.h), which are cut out before, and merging (bpe.h).
//
// A published tokenizer defines its pieces by regular expressions, applied in stages: each stage cuts the
// pieces of the stage before, and what its expression leaves unmatched is a piece too. PCRE2 runs them,
// compiled to machine code where the platform allows it. Always true: the pieces are not empty and, joined,
// give the text back.
//
// Every expression is linear in the text for any text, and a match limit stands behind that promise.
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

// The names of tokenizer.ggml.pre that braid knows.
enum class SplitKind {
  gpt2,
  llama3,
  qwen2,
  qwen35,
  laguna,            // line ends \n and \r\n start a piece, then qwen2
  laguna_line_feed,  // runs of \n are pieces, then qwen2
  fallback,          // the file names no pre-tokenizer
};

// The kind for a name, or an Error of kind unsupported for a name that braid does not know.
Result<SplitKind> split_kind(std::string_view pre, bool laguna_breaks_at_line_feed_only);

class Splitter {
 public:
  // What one thread needs to split. Use it with the Splitter that made it.
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

  // Hands the pieces of `text` to `sink` from left to right. May be called from many threads, each with its
  // own scratch. REQUIRES: text is well-formed UTF-8.
  Status split(std::string_view text, Scratch& scratch, const Sink& sink) const;

 private:
  struct CodeDeleter {
    void operator()(pcre2_real_code_8* code) const;
  };
  struct Stage {
    std::unique_ptr<pcre2_real_code_8, CodeDeleter> code;
    bool jit = false;
    bool covers_all =
        false;  // some alternative matches at every position: no gaps, and no search for a match
  };

  Splitter() = default;
  Status add_stage(std::string_view pattern, bool covers_all);
  Status split_stage(size_t stage, std::string_view text, Scratch& scratch, const Sink& sink) const;

  std::vector<Stage> stages_;
  bool starts_pieces_at_line_ends_ = false;
};

}  // namespace braid
