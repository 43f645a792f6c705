// tokenizer.h -- text to token ids and back, as the model file's vocabulary defines it (byte-level BPE).
//
// Not here: chat templates (chat.h), text that arrives in steps (detokenizer.h).
//
// Encoding  special tokens are cut out first (tokenizer_special.h), the rest is repaired to well-formed
//           UTF-8 (a byte that is ill-formed becomes one U+FFFD), normalised (nfc.h), cut into pieces
//           (tokenizer_split.h) and merged (bpe.h). Only families whose published tokenizers normalise
//           text do it here.
// Decoding  gives bytes. A single token may hold part of a character.
// Cost      O(n log n) in the text for any text; repeated pieces come out of a cache of fixed size.
// Threads   one Tokenizer serves any number of threads.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/origin.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/tokenizer_special.h"
#include "text/tokenizer/tokenizer_split.h"
#include "text/tokenizer/vocabulary.h"

namespace braid {

struct EncodeOptions {
  bool add_special = true;    // the begin and end tokens that the model wants around a text
  bool parse_special = true;  // texts of control tokens become these tokens; user-defined tokens always match
};

// How control tokens read when ids become text.
enum class SpecialText { hide, show };

class Tokenizer {
 public:
  // Fails with one sentence when the vocabulary contradicts itself or needs what braid does not have. Special
  // ids outside the vocabulary are dropped with a warning.
  static Result<Tokenizer> create(VocabularyData data);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Fails for texts above kMaxTextBytes, for a piece above kMaxPieceBytes or marks above kMaxNfcRunBytes, and for
  // a byte that the vocabulary cannot spell when it has no unknown token.
  Result<std::vector<int32_t>> encode(std::string_view text, EncodeOptions options = {}) const;

  // A prompt that a template rendered: the special tokens that it wrote are recognised, user-defined ones
  // also in instructions and in the answers of earlier turns, and none in data (origin.h). A begin or end
  // token that both the template and the model's settings add stands there once.
  Result<std::vector<int32_t>> encode_rendered(const RenderedText& prompt) const;

  // Bytes of a token; empty for an id outside the vocabulary, for fillers, and for control tokens that are
  // hidden.
  std::string_view piece(int32_t id, SpecialText special = SpecialText::hide) const;

  std::string decode(std::span<const int32_t> ids, SpecialText special = SpecialText::hide) const;

  int32_t size() const { return static_cast<int32_t>(data_.tokens.size()); }
  TokenType type(int32_t id) const;  // unused for an id outside the vocabulary

  // The id whose text in the file is `text` (byte alphabet for normal tokens, literal for special ones).
  std::optional<int32_t> find(std::string_view text) const;

  // Ids that end a generation, ascending.
  const std::vector<int32_t>& end_ids() const { return end_ids_; }
  bool is_end(int32_t id) const;

  // Special ids as the file gives them or their texts imply; empty: the model has none.
  std::optional<int32_t> bos() const { return data_.bos; }
  std::optional<int32_t> eos() const { return data_.eos; }
  std::optional<int32_t> eot() const { return data_.eot; }
  std::optional<int32_t> padding() const { return data_.padding; }
  std::optional<int32_t> fim_prefix() const { return data_.fim_prefix; }
  std::optional<int32_t> fim_suffix() const { return data_.fim_suffix; }
  std::optional<int32_t> fim_middle() const { return data_.fim_middle; }
  bool add_bos() const { return add_bos_; }
  bool add_eos() const { return add_eos_; }

  static constexpr size_t kMaxTextBytes = size_t{1} << 30;
  static constexpr size_t kMaxPieceBytes = size_t{8} << 20;

 private:
  struct Workspace;
  class WorkspacePool;

  Tokenizer(VocabularyData data, TokenIndex index, std::vector<int32_t> end_ids, SpecialFinder specials,
            Splitter splitter, bool ignore_merges);

  Status load_merges();
  void load_pieces();
  Result<std::vector<int32_t>> encode(std::string_view text, EncodeOptions options,
                                      const OriginSpans& origins) const;
  Status append_raw(std::string_view raw, Workspace& workspace, std::vector<int32_t>& out) const;
  Status append_piece(std::string_view piece, Workspace& workspace, std::vector<int32_t>& out) const;
  Status append_symbols(Workspace& workspace, std::vector<int32_t>& out) const;

  VocabularyData data_;
  TokenIndex index_;  // views into data_.tokens
  std::vector<int32_t> end_ids_;
  SpecialFinder specials_;
  Splitter splitter_;
  bool ignore_merges_ = false;  // a piece that is a token as a whole is not merged
  bool add_bos_ = false;
  bool add_eos_ = false;

  MergeTable merges_{0};
  std::array<int32_t, 256> byte_symbols_{};
  std::vector<std::string>
      extra_symbols_;  // bytes of symbols that are no tokens; symbol - size() is the index

  std::string piece_bytes_;              // all pieces end to end
  std::vector<uint64_t> piece_offsets_;  // size() + 1

  std::unique_ptr<WorkspacePool> workspaces_;
};

}  // namespace braid
