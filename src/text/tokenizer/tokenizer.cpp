// tokenizer.cpp -- see tokenizer.h.
#include "text/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/log.h"
#include "text/nfc.h"
#include "text/unicode.h"

namespace braid {
namespace {

// Far above published special tokens; keeps their search linear.
constexpr size_t kMaxSpecialBytes = 1024;

// Limit of tokens and merges, so that symbol numbers fit 32 bits.
constexpr size_t kMaxTokens = size_t{1} << 28;

// Recently merged pieces. A hash gives each piece one slot, and the newest piece replaces the older
// one. The size is fixed; collisions cost only speed.
class PieceCache {
 public:
  PieceCache() : entries_(kEntries) {}

  struct Entry {
    uint8_t length_bytes = 0;
    uint8_t count = 0;
    std::array<char, 22> bytes;
    std::array<int32_t, 6> ids;
  };
  static bool fits(std::string_view piece) { return piece.size() <= sizeof(Entry::bytes); }

  Entry& place(std::string_view piece) {
    return entries_[std::hash<std::string_view>{}(piece) & (kEntries - 1)];
  }

  static bool holds(const Entry& entry, std::string_view piece) {
    return entry.length_bytes == piece.size() &&
           std::memcmp(entry.bytes.data(), piece.data(), piece.size()) == 0;
  }

  static void keep(Entry& entry, std::string_view piece, std::span<const int32_t> ids) {
    if (ids.size() > std::tuple_size_v<decltype(Entry::ids)>) return;
    entry.length_bytes = static_cast<uint8_t>(piece.size());
    entry.count = static_cast<uint8_t>(ids.size());
    std::copy(piece.begin(), piece.end(), entry.bytes.begin());
    std::copy(ids.begin(), ids.end(), entry.ids.begin());
  }

 private:
  static constexpr size_t kEntries = 8192;
  std::vector<Entry> entries_;
};

// The byte of a text like <0x0A>, the spelling of byte tokens.
std::optional<char> byte_of_text(std::string_view text) {
  const auto digit = [](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
  };
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  const int high = digit(text[3]);
  const int low = digit(text[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<char>(high * 16 + low);
}

Status check_sizes(const VocabularyData& data) {
  if (data.model != "gpt2") {
    return Error{ErrorKind::unsupported,
                 fmt::format("the tokenizer model \"{}\" is not supported: braid reads "
                             "byte-level BPE vocabularies (\"gpt2\")",
                             data.model.substr(0, 64))};
  }
  if (data.tokens.empty()) return Error{ErrorKind::corrupt, "the vocabulary has no tokens"};
  if (data.tokens.size() > kMaxTokens || data.merges.size() > kMaxTokens) {
    return Error{ErrorKind::corrupt,
                 fmt::format("the vocabulary has {} tokens and {} merges, more than braid supports",
                             data.tokens.size(), data.merges.size())};
  }
  if (!data.types.empty() && data.types.size() < data.tokens.size()) {
    return Error{ErrorKind::corrupt,
                 fmt::format("the vocabulary has {} tokens but only {} token types",
                             data.tokens.size(), data.types.size())};
  }
  return {};
}

// Completes types and nameless tokens; drops special ids out of range with a warning.
Status complete(VocabularyData& data) {
  const size_t count = data.tokens.size();
  data.types.resize(count, static_cast<int32_t>(TokenType::normal));
  for (size_t id = 0; id < count; ++id) {
    int32_t& type = data.types[id];
    if (type < static_cast<int32_t>(TokenType::undefined) ||
        type > static_cast<int32_t>(TokenType::byte)) {
      return Error{ErrorKind::corrupt,
                   fmt::format("token {} has the type {}, which does not exist", id, type)};
    }
    if (type == static_cast<int32_t>(TokenType::undefined))
      type = static_cast<int32_t>(TokenType::normal);
    if (data.tokens[id].empty()) {
      data.tokens[id] = fmt::format("[EMPTY_{}]", id);
      type = static_cast<int32_t>(TokenType::unused);
    }
  }
  for (auto* role :
       {&data.bos, &data.eos, &data.eot, &data.eom, &data.unknown, &data.separator, &data.padding,
        &data.mask, &data.fim_prefix, &data.fim_suffix, &data.fim_middle, &data.fim_padding,
        &data.fim_repository, &data.fim_separator}) {
    if (*role && (**role < 0 || static_cast<size_t>(**role) >= count)) {
      spdlog::warn(
          "a special token id of the file, {}, lies outside its vocabulary of {} tokens and is "
          "ignored",
          **role, count);
      role->reset();
    }
  }
  return {};
}

Result<TokenIndex> index_of(const VocabularyData& data) {
  TokenIndex index(data.tokens.size());
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    if (const auto other = index.add(data.tokens[id], static_cast<int32_t>(id))) {
      return Error{ErrorKind::corrupt,
                   fmt::format("tokens {} and {} have the same text", *other, id)};
    }
    if (index.is_crowded()) {
      return Error{ErrorKind::corrupt, "the texts of tokens were chosen to be slow to find"};
    }
  }
  return index;
}

// `declared`: types of the file, before texts changed them.
Result<SpecialFinder> finder_of(const VocabularyData& data, const std::vector<int32_t>& declared,
                                const std::vector<int32_t>& end_ids) {
  std::vector<SpecialFinder::Special> specials;
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    const auto type = static_cast<TokenType>(data.types[id]);
    if (type != TokenType::control && type != TokenType::user_defined && type != TokenType::unknown)
      continue;
    if (data.tokens[id].size() > kMaxSpecialBytes) {
      return Error{ErrorKind::unsupported,
                   fmt::format("special token {} has a text of {} bytes; at most {} are supported",
                               id, data.tokens[id].size(), kMaxSpecialBytes)};
    }
    const bool user_defined = type == TokenType::user_defined;
    const bool ends = std::binary_search(end_ids.begin(), end_ids.end(), static_cast<int32_t>(id));
    Origin found_in = Origin::written;
    if (!ends && user_defined)
      found_in = declared[id] == data.types[id] ? Origin::instruction : Origin::answer;
    specials.push_back({data.tokens[id], static_cast<int32_t>(id), user_defined, found_in});
  }
  return SpecialFinder(std::move(specials));
}

}  // namespace

struct Tokenizer::Workspace {
  Splitter::Scratch split;
  BpeMerger merger;
  PieceCache cache;
  std::vector<int32_t> symbols;
};

// Idle workspaces; a few are kept, so that threads do not wait for each other.
class Tokenizer::WorkspacePool {
 public:
  std::unique_ptr<Workspace> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        auto workspace = std::move(idle_.back());
        idle_.pop_back();
        return workspace;
      }
    }
    return std::make_unique<Workspace>();
  }

  void give_back(std::unique_ptr<Workspace> workspace) {
    const std::lock_guard lock(mutex_);
    if (idle_.size() < kKept) idle_.push_back(std::move(workspace));
  }

 private:
  static constexpr size_t kKept = 8;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> idle_;
};

Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer::Tokenizer(VocabularyData data, TokenIndex index, std::vector<int32_t> end_ids,
                     SpecialFinder specials, Splitter splitter, bool ignore_merges)
    : data_(std::move(data)),  // a move keeps the strings in place, and so the index's views
      index_(std::move(index)),
      end_ids_(std::move(end_ids)),
      specials_(std::move(specials)),
      splitter_(std::move(splitter)),
      ignore_merges_(ignore_merges),
      workspaces_(std::make_unique<WorkspacePool>()) {
  add_bos_ = data_.add_bos.value_or(ignore_merges) && data_.bos;
  add_eos_ = data_.add_eos.value_or(false) && data_.eos;
}

Result<Tokenizer> Tokenizer::create(VocabularyData data) {
  BRAID_TRY(check_sizes(data));
  BRAID_TRY(complete(data));
  BRAID_ASSIGN(const SplitKind kind, split_kind(data.pre, data.laguna_breaks_at_line_feed_only));
  if (kind == SplitKind::fallback) {
    spdlog::warn(
        "the file does not name its pre-tokenizer; text may be cut differently from how the model "
        "learned "
        "it");
  }
  BRAID_ASSIGN(TokenIndex index, index_of(data));
  const std::vector<int32_t> declared = data.types;
  std::vector<int32_t> end_ids = resolve_special_tokens(data, index);
  BRAID_ASSIGN(SpecialFinder specials, finder_of(data, declared, end_ids));
  BRAID_ASSIGN(Splitter splitter, Splitter::create(kind));
  // Only llama-bpe takes whole tokens unmerged, and only it adds bos by default.
  Tokenizer tokenizer(std::move(data), std::move(index), std::move(end_ids), std::move(specials),
                      std::move(splitter), kind == SplitKind::llama3);
  BRAID_TRY(tokenizer.load_merges());
  tokenizer.load_pieces();
  return tokenizer;
}

Status Tokenizer::load_merges() {
  std::map<std::string, int32_t> extras;
  const auto symbol_of = [&](std::string_view text) {
    if (const auto found = index_.find(text)) return *found;
    const auto [place, is_new] =
        extras.emplace(text, size() + static_cast<int32_t>(extra_symbols_.size()));
    if (is_new) extra_symbols_.push_back(from_byte_alphabet(text));
    return place->second;
  };
  for (int byte = 0; byte < 256; ++byte) {
    const char value = static_cast<char>(byte);
    byte_symbols_[byte] = symbol_of(to_byte_alphabet({&value, 1}));
  }
  merges_ = MergeTable(data_.merges.size());
  std::string joined;
  int32_t likely = 0;  // files list tokens in merge order, so the next one is tried first
  for (size_t rank = 0; rank < data_.merges.size(); ++rank) {
    const std::string_view merge = data_.merges[rank];
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == merge.size()) {
      return Error{ErrorKind::corrupt,
                   fmt::format("merge {} of the vocabulary does not consist of two parts", rank)};
    }
    const std::string_view left = merge.substr(0, space);
    const std::string_view right = merge.substr(space + 1);
    joined.assign(left).append(right);
    const int32_t merged =
        likely < size() && data_.tokens[likely] == joined ? likely : symbol_of(joined);
    likely = merged + 1;
    merges_.add(symbol_of(left), symbol_of(right), {static_cast<uint32_t>(rank), merged});
  }
  data_.merges = {};
  return {};
}

void Tokenizer::load_pieces() {
  piece_offsets_.reserve(data_.tokens.size() + 1);
  piece_offsets_.push_back(0);
  for (int32_t id = 0; id < size(); ++id) {
    const std::string& text = data_.tokens[id];
    switch (type(id)) {
      case TokenType::undefined:
      case TokenType::normal:
        piece_bytes_ += from_byte_alphabet(text);
        break;
      case TokenType::unknown:
      case TokenType::control:
      case TokenType::user_defined:
        piece_bytes_ += text;
        break;
      case TokenType::byte:
        if (const auto byte = byte_of_text(text)) {
          piece_bytes_ += *byte;
        } else {
          piece_bytes_ += text;
        }
        break;
      case TokenType::unused:
        break;
    }
    piece_offsets_.push_back(piece_bytes_.size());
  }
}

TokenType Tokenizer::type(int32_t id) const {
  if (id < 0 || id >= size()) return TokenType::unused;
  return static_cast<TokenType>(data_.types[id]);
}

std::optional<int32_t> Tokenizer::find(std::string_view text) const { return index_.find(text); }

bool Tokenizer::is_end(int32_t id) const {
  return std::binary_search(end_ids_.begin(), end_ids_.end(), id);
}

std::string_view Tokenizer::piece(int32_t id, SpecialText special) const {
  const TokenType kind = type(id);
  if (kind == TokenType::unused) return {};
  if (special == SpecialText::hide && (kind == TokenType::control || kind == TokenType::unknown))
    return {};
  return std::string_view(piece_bytes_)
      .substr(piece_offsets_[id], piece_offsets_[id + 1] - piece_offsets_[id]);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, SpecialText special) const {
  std::string out;
  for (const int32_t id : ids) out += piece(id, special);
  return out;
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  return encode(text, options, {});
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, EncodeOptions options,
                                               const OriginSpans& origins) const {
  if (text.size() > kMaxTextBytes) {
    return Error{ErrorKind::invalid_argument,
                 fmt::format("the text has {} bytes; at most {} can be tokenized at once",
                             text.size(), kMaxTextBytes)};
  }
  std::vector<int32_t> out;
  if (options.add_special && add_bos_) out.push_back(*data_.bos);
  auto workspace = workspaces_->take();
  for (const Fragment& fragment : specials_.split(text, options.parse_special, origins)) {
    if (fragment.id >= 0) {
      out.push_back(fragment.id);
    } else {
      BRAID_TRY(
          append_raw(text.substr(fragment.begin, fragment.end - fragment.begin), *workspace, out));
    }
  }
  workspaces_->give_back(std::move(workspace));
  if (options.add_special && add_eos_) out.push_back(*data_.eos);
  return out;
}

Result<std::vector<int32_t>> Tokenizer::encode_rendered(const RenderedText& prompt) const {
  BRAID_ASSIGN(std::vector<int32_t> ids,
               encode(prompt.text, {.add_special = false, .parse_special = true}, prompt.spans));
  if (add_bos_ && (ids.empty() || ids.front() != *data_.bos)) ids.insert(ids.begin(), *data_.bos);
  if (add_eos_ && (ids.empty() || ids.back() != *data_.eos)) ids.push_back(*data_.eos);
  return ids;
}

Status Tokenizer::append_raw(std::string_view raw, Workspace& workspace,
                             std::vector<int32_t>& out) const {
  std::string repaired;
  if (first_invalid_utf8(raw)) {
    append_repaired_utf8(repaired, raw, Utf8Repair::each_byte);
    raw = repaired;
  }
  // Published configurations of these two families normalize; files do not state it.
  std::string normalised;
  if (data_.pre == "qwen2" || data_.pre == "qwen35") {
    BRAID_ASSIGN(raw, nfc(raw, normalised));
  }
  return splitter_.split(raw, workspace.split, [&](std::string_view piece) {
    return append_piece(piece, workspace, out);
  });
}

Status Tokenizer::append_piece(std::string_view piece, Workspace& workspace,
                               std::vector<int32_t>& out) const {
  if (piece.size() > kMaxPieceBytes) {
    return Error{
        ErrorKind::invalid_argument,
        fmt::format("the text has {} bytes without a word boundary; at most {} can be tokenized",
                    piece.size(), kMaxPieceBytes)};
  }
  PieceCache::Entry* place = nullptr;
  if (PieceCache::fits(piece)) {
    place = &workspace.cache.place(piece);
    if (PieceCache::holds(*place, piece)) {
      out.insert(out.end(), place->ids.begin(), place->ids.begin() + place->count);
      return {};
    }
  }
  const size_t begin = out.size();
  const auto whole = ignore_merges_ ? find(to_byte_alphabet(piece)) : std::nullopt;
  if (whole) {
    out.push_back(*whole);
  } else {
    workspace.symbols.clear();
    workspace.merger.merge(merges_, byte_symbols_, piece, workspace.symbols);
    BRAID_TRY(append_symbols(workspace, out));
  }
  if (place != nullptr) PieceCache::keep(*place, piece, std::span(out).subspan(begin));
  return {};
}

// Symbols that are not tokens become the tokens of their bytes.
Status Tokenizer::append_symbols(Workspace& workspace, std::vector<int32_t>& out) const {
  for (const int32_t symbol : workspace.symbols) {
    if (symbol < size()) {
      out.push_back(symbol);
      continue;
    }
    for (const char value : extra_symbols_[symbol - size()]) {
      const uint8_t byte = static_cast<uint8_t>(value);
      if (byte_symbols_[byte] < size()) {
        out.push_back(byte_symbols_[byte]);
      } else if (data_.unknown) {
        out.push_back(*data_.unknown);
      } else {
        return Error{
            ErrorKind::invalid_argument,
            fmt::format("the model's vocabulary has no token for the byte 0x{:02X} of the text",
                        byte)};
      }
    }
  }
  return {};
}

}  // namespace braid
