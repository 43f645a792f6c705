// vocabulary.h -- a model file's tokenizer data, unchecked; Tokenizer::create checks it.
// A special id that the file does not give is empty, without a default.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "gguf/gguf.h"

namespace braid {

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
  std::string model = "gpt2";  // only byte-level BPE ("gpt2") is supported
  std::string pre;             // pre-tokenizer; empty if not named
  // index = id; byte alphabet for normal tokens, literal text for others
  std::vector<std::string> tokens;
  std::vector<int32_t> types;       // TokenType per token; empty: all normal
  std::vector<std::string> merges;  // "left right", index = rank

  std::optional<int32_t> bos, eos, eot, eom, unknown, separator, padding, mask;
  std::optional<int32_t> fim_prefix, fim_suffix, fim_middle, fim_padding, fim_repository,
      fim_separator;

  std::optional<bool> add_bos, add_eos;  // empty: the pre-tokenizer's default

  // Laguna only. false: a CRLF is one line end, as in its publisher's tokenizer. true: pieces break
  // only at line feeds, as in engines that read these files first.
  bool laguna_breaks_at_line_feed_only = false;
};

// Copies the tokenizer keys of a model file. The model's name, tokens and merges are required.
// Invalid special ids and types beyond the tokens are ignored with a warning; another key of the
// wrong type is an Error.
Result<VocabularyData> read_vocabulary(const GgufFile& file);

}  // namespace braid
