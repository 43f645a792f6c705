// selection.cpp -- see selection.h.
#include "text/compress/selection.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "text/compress/code_share.h"

namespace braid {
namespace {

using Places = std::span<const uint32_t>;

// Where each id occurs in a text.
class PlacesOfIds {
 public:
  explicit PlacesOfIds(std::span<const int32_t> text) {
    int32_t largest = -1;
    for (const int32_t id : text) largest = std::max(largest, id);
    first_.resize(static_cast<size_t>(largest) + 2);
    for (const int32_t id : text) ++first_[static_cast<size_t>(id) + 1];
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    places_.resize(text.size());
    std::vector<uint32_t> next(first_.begin(), first_.end() - 1);
    for (size_t i = 0; i < text.size(); ++i)
      places_[next[static_cast<size_t>(text[i])]++] = static_cast<uint32_t>(i);
  }

  // Ids above all of the text occur nowhere.
  Places of(int32_t id) const {
    const auto i = static_cast<size_t>(id);
    if (i + 1 >= first_.size()) return {};
    return Places(places_).subspan(first_[i], first_[i + 1] - first_[i]);
  }
  uint32_t hits(int32_t id) const { return static_cast<uint32_t>(of(id).size()); }
  int32_t ids() const { return static_cast<int32_t>(first_.size() - 1); }

 private:
  std::vector<uint32_t> first_;  // [ids + 1]
  std::vector<uint32_t> places_;
};

using Gram = std::array<int32_t, kGramTokens>;

struct GramHash {
  size_t operator()(const Gram& gram) const {
    uint64_t hash = 0;
    for (const int32_t id : gram) {
      hash = (hash ^ static_cast<uint32_t>(id)) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
    return static_cast<size_t>(hash);
  }
};

Gram gram_at(std::span<const int32_t> text, size_t at) {
  Gram gram;
  std::copy_n(text.begin() + static_cast<ptrdiff_t>(at), kGramTokens, gram.begin());
  return gram;
}

struct GramHits {
  uint32_t count = 0;
  std::vector<uint32_t> places;  // the first ones, up to the most that count
};

size_t question_tokens(const SelectionInput& input) {
  size_t tokens = input.ids.size() > kQuestionTokens ? kQuestionTokens : 0;
  for (const auto& [range, because] : input.protected_ranges)
    if (because == KeptBecause::last_user_turn && range.end == input.ids.size())
      tokens = std::min(tokens, range.end - range.begin);
  return tokens;
}

class ChunkChooser {
 public:
  explicit ChunkChooser(const SelectionInput& input)
      : input_(input),
        chunks_(chunk_count(input.ids.size()), KeptBecause::dropped),
        question_(input.ids.last(question_tokens(input))),
        body_(input.ids.first(question_.empty() ? 0 : input.ids.size() - question_.size())),
        places_(body_) {
    BRAID_CHECK(input.chunk_scores.size() == chunks_.size());
    BRAID_CHECK(input.code_shares.empty() || input.code_shares.size() == chunks_.size());
  }

  Selection choose() {
    mark_protected();
    set_budgets();
    if (free_[kProse] + free_[kCode] > 0) {
      keep_head_and_tail();
      keep_anchors();
      keep_rare();
      keep_linked();
      keep_repeated();
      keep_best_scores();
    }
    return result();
  }

 private:
  using Ids = std::span<const int32_t>;
  enum Class : size_t { kProse, kCode, kClasses };

  Class class_of(size_t chunk) const {
    if (input_.code_shares.empty()) return kProse;
    return input_.code_shares[chunk] >= kCodeRegion ? kCode : kProse;
  }

  size_t tokens_of(size_t chunk) const {
    return std::min(kChunkTokens, input_.ids.size() - chunk * kChunkTokens);
  }

  // Each token counts for the first of the ranges that cover it.
  void mark_protected() {
    std::vector<ProtectedRange> ranges(input_.protected_ranges.begin(),
                                       input_.protected_ranges.end());
    std::stable_sort(ranges.begin(), ranges.end(),
                     [](const auto& a, const auto& b) { return a.tokens.begin < b.tokens.begin; });
    std::vector<size_t> covered(chunks_.size());
    size_t done = 0;
    for (const ProtectedRange& range : ranges) {
      BRAID_CHECK(range.tokens.begin <= range.tokens.end && range.tokens.end <= input_.ids.size());
      for (size_t at = std::max(done, range.tokens.begin); at < range.tokens.end;) {
        const size_t chunk = at / kChunkTokens;
        const size_t end = std::min(range.tokens.end, (chunk + 1) * kChunkTokens);
        covered[chunk] += end - at;
        if (covered[chunk] == tokens_of(chunk)) chunks_[chunk] = range.because;
        at = end;
      }
      done = std::max(done, range.tokens.end);
      if (range.because == KeptBecause::role_marker) mark_question(range.tokens);
    }
  }

  void mark_question(const TokenRange& marker) {
    for (size_t i = std::max(marker.begin, body_.size()); i < marker.end; ++i)
      if (!question_.empty()) marker_[i - body_.size()] = true;
  }

  void set_budgets() {
    const auto& [prose, code] = input_.ratios;
    BRAID_CHECK(prose > 0 && prose <= 1 && code > 0 && code <= 1);
    for (size_t k = 0; k < chunks_.size(); ++k)
      if (chunks_[k] == KeptBecause::dropped) ++free_[class_of(k)];
    // A tenth of 30 chunks is 3, however the product rounds.
    constexpr double kRounding = 1e-9;
    for (const Class c : {kProse, kCode}) {
      const double chunks = static_cast<double>(free_[c]) * (c == kCode ? code : prose);
      budget_[c] = std::min(free_[c], static_cast<size_t>(chunks + kRounding));
    }
    if (free_[kProse] + free_[kCode] > 0 && budget() == 0)
      budget_[free_[kCode] > free_[kProse] ? kCode : kProse] = 1;
  }

  size_t budget() const { return budget_[kProse] + budget_[kCode]; }
  size_t kept() const { return kept_[kProse] + kept_[kCode]; }
  size_t left() const { return budget() - std::min(budget(), kept()); }

  void keep(size_t chunk, KeptBecause because) {
    if (chunks_[chunk] != KeptBecause::dropped) return;
    chunks_[chunk] = because;
    ++kept_[class_of(chunk)];
  }

  void keep_around(size_t chunk, size_t radius, KeptBecause because) {
    const size_t end = std::min(chunks_.size(), chunk + radius + 1);
    for (size_t k = chunk - std::min(chunk, radius); k < end; ++k) keep(k, because);
  }

  void keep_head_and_tail() {
    size_t head = kHeadChunks, tail = kTailChunks;
    if (head + tail > budget() / 2) {
      const size_t forced = std::max<size_t>(1, budget() / 2);
      head = kHeadChunks * forced / (kHeadChunks + kTailChunks);
      tail = forced - head;
    }
    const size_t chunks = chunks_.size();
    for (size_t k = 0; k < std::min(head, chunks); ++k) keep(k, KeptBecause::head);
    for (size_t k = chunks - std::min(tail, chunks); k < chunks; ++k) keep(k, KeptBecause::tail);
  }

  // Memory and the steps of a look-up are bounded by the question, however the body was made.
  void keep_anchors() {
    if (body_.size() < kGramTokens) return;
    const AnchorRule rule = anchor_rule(chunks_.size());
    std::unordered_map<Gram, GramHits, GramHash> grams;
    for (size_t i = 0; i + kGramTokens <= question_.size(); ++i) {
      const auto first = marker_.begin() + static_cast<ptrdiff_t>(i);
      if (std::find(first, first + kGramTokens, true) == first + kGramTokens)
        grams[gram_at(question_, i)] = {};
    }
    for (size_t i = 0; i + kGramTokens <= body_.size(); ++i) {
      const auto found = grams.find(gram_at(body_, i));
      if (found == grams.end()) continue;
      GramHits& hits = found->second;
      if (++hits.count <= rule.most_hits) hits.places.push_back(static_cast<uint32_t>(i));
    }
    // All are kept, so their order does not matter.
    for (const auto& [gram, hits] : grams) {
      if (hits.count > rule.most_hits) continue;
      for (const uint32_t place : hits.places) keep_run(place, rule.radius_chunks);
    }
  }

  // The run may begin in one chunk and end in the next.
  void keep_run(size_t place, size_t radius) {
    keep_around(place / kChunkTokens, radius, KeptBecause::anchor);
    keep_around((place + kGramTokens - 1) / kChunkTokens, radius, KeptBecause::anchor);
  }

  // The most chunks that may be kept when a rule with this share of the rest ends.
  size_t limit(double share) const {
    return kept() + static_cast<size_t>(static_cast<double>(left()) * share);
  }

  // Chunks of an id's places, then their neighbors.
  void keep_places(int32_t id, size_t radius, size_t limit, KeptBecause because) {
    for (const uint32_t place : places_.of(id)) {
      if (kept() >= limit) return;
      keep(place / kChunkTokens, because);
    }
    for (const uint32_t place : places_.of(id)) {
      const size_t chunk = place / kChunkTokens;
      for (size_t k = chunk - std::min(chunk, radius); k <= chunk + radius; ++k) {
        if (kept() >= limit) return;
        if (k < chunks_.size()) keep(k, because);
      }
    }
  }

  // Ids with 1 to kRareHits hits, rarest first, then as they come; each once.
  class RareIds {
   public:
    explicit RareIds(const PlacesOfIds& places)
        : places_(places), known_(static_cast<size_t>(places.ids())) {}

    void add(int32_t id) {
      const uint32_t hits = places_.hits(id);
      if (hits < 1 || hits > kRareHits || known_[static_cast<size_t>(id)]) return;
      known_[static_cast<size_t>(id)] = true;
      by_hits_[hits - 1].push_back(id);
    }
    const std::array<std::vector<int32_t>, kRareHits>& by_hits() const { return by_hits_; }

   private:
    const PlacesOfIds& places_;
    std::vector<bool> known_;  // [ids]
    std::array<std::vector<int32_t>, kRareHits> by_hits_;
  };

  void keep_rare_ids(const RareIds& rare, size_t radius, double share, size_t least,
                     KeptBecause because) {
    const size_t most = std::max(limit(share), kept() + least);
    for (const auto& ids : rare.by_hits())
      for (const int32_t id : ids) {
        if (kept() >= most) return;
        keep_places(id, radius, most, because);
      }
  }

  void keep_rare() {
    RareIds rare(places_);
    for (size_t i = 0; i < question_.size(); ++i)
      if (!marker_[i]) rare.add(question_[i]);
    keep_rare_ids(rare, 1, kRareShare, 0, KeptBecause::rare);
  }

  void keep_linked() {
    RareIds rare(places_);
    for (size_t k = 0; k < chunks_.size(); ++k) {
      if (chunks_[k] != KeptBecause::anchor && chunks_[k] != KeptBecause::rare) continue;
      for (const int32_t id : input_.ids.subspan(k * kChunkTokens, tokens_of(k))) rare.add(id);
    }
    keep_rare_ids(rare, 0, kLinkedShare, kLeastLinkedChunks, KeptBecause::linked);
  }

  void keep_repeated() {
    const size_t most = limit(kRepeatedShare);
    if (kept() >= most) return;
    std::vector<bool> asked(static_cast<size_t>(places_.ids()));
    for (const int32_t id : question_)
      if (id < places_.ids()) asked[static_cast<size_t>(id)] = true;
    // [asked first][most hits first]: ascending ids
    std::array<std::array<std::vector<int32_t>, kMostRepeatedHits + 1>, 2> order;
    for (int32_t id = 0; id < places_.ids(); ++id) {
      const uint32_t hits = places_.hits(id);
      if (hits < kFewestRepeatedHits || hits > kMostRepeatedHits) continue;
      order[asked[static_cast<size_t>(id)] ? 0 : 1][kMostRepeatedHits - hits].push_back(id);
    }
    for (const auto& by_hits : order)
      for (const auto& ids : by_hits)
        for (const int32_t id : ids) {
          if (kept() >= most) return;
          keep_places(id, 0, most, KeptBecause::repeated);
        }
  }

  double value_of(size_t chunk) const {
    const auto score = static_cast<double>(input_.chunk_scores[chunk]);
    if (!std::isfinite(score)) return -std::numeric_limits<double>::infinity();
    if (score <= 0) return score;
    uint32_t rare = 0;
    for (const int32_t id : input_.ids.subspan(chunk * kChunkTokens, tokens_of(chunk))) {
      const uint32_t hits = places_.hits(id);
      rare += hits == 1 || hits == 2 ? 1 : 0;
    }
    const double share = std::min(1.0, static_cast<double>(rare) / kFullRareTokens);
    return score * (1 + kRareBoost * share);
  }

  void keep_best_scores() {
    struct Candidate {
      double value;
      size_t chunk;
    };
    std::vector<Candidate> candidates;
    for (size_t k = 0; k < chunks_.size(); ++k)
      if (chunks_[k] == KeptBecause::dropped) candidates.push_back({value_of(k), k});
    std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
      return a.value != b.value ? a.value > b.value : a.chunk < b.chunk;
    });
    for (const Candidate& candidate : candidates) {
      const Class c = class_of(candidate.chunk);
      if (kept_[c] < budget_[c]) keep(candidate.chunk, KeptBecause::score);
    }
  }

  Selection result() {
    std::vector<TokenRange> ranges;
    for (size_t k = 0; k < chunks_.size(); ++k)
      if (chunks_[k] != KeptBecause::dropped)
        ranges.push_back({k * kChunkTokens, k * kChunkTokens + tokens_of(k)});
    for (const ProtectedRange& range : input_.protected_ranges) ranges.push_back(range.tokens);
    Selection out;
    out.kept = merged(std::move(ranges));
    for (const TokenRange& range : out.kept) out.kept_tokens += range.end - range.begin;
    out.free_chunks = free_[kProse] + free_[kCode];
    out.budget_chunks = budget();
    out.chunks = std::move(chunks_);
    return out;
  }

  const SelectionInput& input_;
  std::vector<KeptBecause> chunks_;
  Ids question_, body_;
  PlacesOfIds places_;                          // of the body
  std::array<bool, kQuestionTokens> marker_{};  // tokens of the question in role markers
  // Of free chunks.
  std::array<size_t, kClasses> free_{}, budget_{}, kept_{};
};

}  // namespace

Selection select_chunks(const SelectionInput& input) {
  BRAID_CHECK(input.ids.size() <= std::numeric_limits<uint32_t>::max());
  for (const int32_t id : input.ids) BRAID_CHECK(id >= 0 && id < SelectionInput::kMostIds);
  return ChunkChooser(input).choose();
}

}  // namespace braid
