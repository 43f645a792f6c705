// tokenizer.h -- text to token ids and back by the model file's vocabulary (byte-level BPE).
// - Encoding: special tokens are cut out (tokenizer_special.h). The rest is repaired to well-formed
//   UTF-8 (one U+FFFD per bad byte), normalized (nfc.h) for families that do so, split
//   (tokenizer_split.h) and merged (bpe.h).
// - Decoding: gives bytes. A single token may hold part of a character.
// - Cost: O(n log n) for any text. A cache of fixed size holds repeated pieces.
// - Threads: one Tokenizer serves any number of threads.
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
  bool add_special = true;    // add the model's begin and end tokens
  bool parse_special = true;  // recognize texts of control tokens; user-defined tokens always match
};

enum class SpecialText { hide, show };

class Tokenizer {
 public:
  // Fails if the vocabulary contradicts itself or is unsupported. Special ids out of range are
  // dropped with a warning.
  static Result<Tokenizer> create(VocabularyData data);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Fails for texts above kMaxTextBytes, pieces above kMaxPieceBytes, marks above kMaxNfcRunBytes,
  // and bytes that the vocabulary cannot spell if it has no unknown token.
  Result<std::vector<int32_t>> encode(std::string_view text, EncodeOptions options = {}) const;

  // A rendered prompt: control tokens are recognized in the template's text, user-defined ones also
  // in instructions and earlier answers, none in data (origin.h). A begin or end token added by
  // both template and settings appears once.
  Result<std::vector<int32_t>> encode_rendered(const RenderedText& prompt) const;

  // Bytes of a token; empty for ids out of range, fillers, and hidden control tokens.
  std::string_view piece(int32_t id, SpecialText special = SpecialText::hide) const;

  std::string decode(std::span<const int32_t> ids, SpecialText special = SpecialText::hide) const;

  int32_t size() const { return static_cast<int32_t>(data_.tokens.size()); }
  TokenType type(int32_t id) const;  // unused for ids out of range

  // The id of a text as in the file (byte alphabet for normal tokens, literal for special ones).
  std::optional<int32_t> find(std::string_view text) const;

  // Ids that end a generation, ascending.
  const std::vector<int32_t>& end_ids() const { return end_ids_; }
  bool is_end(int32_t id) const;

  // From the file or implied by token texts; empty: absent.
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

  Tokenizer(VocabularyData data, TokenIndex index, std::vector<int32_t> end_ids,
            SpecialFinder specials, Splitter splitter, bool ignore_merges);

  Status load_merges();
  void load_pieces();
  Result<std::vector<int32_t>> encode(std::string_view text, EncodeOptions options,
                                      const OriginSpans& origins) const;
  Status append_raw(std::string_view raw, Workspace& workspace, std::vector<int32_t>& out) const;
  Status append_piece(std::string_view piece, Workspace& workspace,
                      std::vector<int32_t>& out) const;
  Status append_symbols(Workspace& workspace, std::vector<int32_t>& out) const;

  VocabularyData data_;
  TokenIndex index_;  // views into data_.tokens
  std::vector<int32_t> end_ids_;
  SpecialFinder specials_;
  Splitter splitter_;
  bool ignore_merges_ = false;  // a piece that is a whole token is not merged
  bool add_bos_ = false;
  bool add_eos_ = false;

  MergeTable merges_{0};
  std::array<int32_t, 256> byte_symbols_{};
  std::vector<std::string>
      extra_symbols_;  // bytes of symbols that are not tokens; symbol - size() is the index

  std::string piece_bytes_;              // all pieces end to end
  std::vector<uint64_t> piece_offsets_;  // size() + 1

  std::unique_ptr<WorkspacePool> workspaces_;
};

}  // namespace braid
