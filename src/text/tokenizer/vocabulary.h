// vocabulary.h -- what a model file says about its tokenizer, as plain data, before anything is believed.
//
// Tokenizer::create (tokenizer.h) checks it. A special id that the file does not give is empty: no default is
// invented for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "gguf/gguf.h"

namespace braid {

// The numbers that files use for the kind of a token.
enum class TokenType : int32_t {
  undefined = 0,
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6,
};

struct VocabularyData {
  std::string model = "gpt2";       // only byte-level BPE ("gpt2") is supported
  std::string pre;                  // name of the pre-tokenizer; empty when the file names none
  std::vector<std::string> tokens;  // index = id; byte alphabet for normal tokens, literal text for the rest
  std::vector<int32_t> types;       // TokenType per token; empty: all normal
  std::vector<std::string> merges;  // "left right", index = rank

  std::optional<int32_t> bos, eos, eot, eom, unknown, separator, padding, mask;
  std::optional<int32_t> fim_prefix, fim_suffix, fim_middle, fim_padding, fim_repository, fim_separator;

  std::optional<bool> add_bos, add_eos;  // empty: the default of the pre-tokenizer

  // Laguna only. false: a CRLF is one line end, as in its publisher's tokenizer. true: pieces break at every
  // line feed and nowhere else, as in engines that read these files first.
  bool laguna_breaks_at_line_feed_only = false;
};

// Copies the tokenizer keys out of a model file. The model's name, its tokens and its merges have to be there.
// A special id that is no number in range counts as absent, with a warning, as do types of tokens that are not
// there; any other key of the wrong type is an Error.
Result<VocabularyData> read_vocabulary(const GgufFile& file);

}  // namespace braid
