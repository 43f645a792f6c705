// needle_case.cpp -- see needle_case.h.
#include "cli/bench/needle_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace braid::cli {
namespace {

constexpr int kCaseAttempts = 8;  // with other facts, if an answer is in the filler by chance
constexpr int kCaseRounds = 12;   // of one layout; most need two or three
// Room that units leave, so that pads before a fact do not move it to another place.
constexpr int64_t kBorderPadTokens = 48;

int64_t common_prefix(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  const size_t most = std::min(a.size(), b.size());
  return std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(most), b.begin()).first -
         a.begin();
}

bool leaks(const NeedleCase& made) {
  const std::string prompt = needle_prompt(made);
  const auto is_leak = [&](const std::string& text) {
    return count_texts(prompt, text) != 1 || count_texts(made.question, text) != 0;
  };
  return std::any_of(made.answers.begin(), made.answers.end(), is_leak) ||
         std::any_of(made.decoys.begin(), made.decoys.end(), is_leak);
}

using PadList = std::vector<FillerStock::Pad>;

int64_t sum_of(const PadList& pads) {
  int64_t sum = 0;
  for (const FillerStock::Pad& pad : pads) sum += pad.tokens;
  return sum;
}

// For each sum that some of the pads have, each taken once at most, one such choice; in ascending
// order of the sums.
std::vector<PadList> pad_choices(const PadList& pads) {
  // By sum: the pads used, as bits.
  std::vector<std::optional<uint64_t>> sums(8 * kNeedleChunkTokens);
  sums[0] = 0;
  for (size_t i = 0; i < pads.size(); ++i)
    for (auto sum = static_cast<int64_t>(sums.size()) - 1; sum >= pads[i].tokens; --sum) {
      const auto& before = sums[static_cast<size_t>(sum - pads[i].tokens)];
      if (before && !sums[static_cast<size_t>(sum)])
        sums[static_cast<size_t>(sum)] = *before | uint64_t{1} << i;
    }
  std::vector<PadList> out;
  for (const auto& used : sums) {
    if (!used) continue;
    out.emplace_back();
    for (size_t i = 0; i < pads.size(); ++i)
      if (*used >> i & 1) out.back().push_back(pads[i]);
  }
  return out;
}

std::string_view without_leading_blanks(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \n"), text.size()));
  return text;
}

// Lays facts into filler again and again, until counts of the whole prompt are right.
class CaseLayout {
 public:
  CaseLayout(const NeedleShape& shape, const EncodeText& encode, FillerStock& stock, FactSet facts)
      : shape_(shape), encode_(encode), stock_(stock), set_(std::move(facts)) {}

  Result<NeedleCase> make();

 private:
  struct Placed {
    size_t unit = 0;  // before it
    std::string text;
    double depth = 0;
  };

  std::vector<double> depths() const;
  Status count_scaffold();
  Status place_facts(const FillerStock::Cut& cut);
  NeedleCase assemble(const FillerStock::Cut& cut) const;
  // The token with the first byte of the answer, counted from the unit before.
  Result<int64_t> local_position(const PadList& lead) const;
  Result<int64_t> value_tokens() const;
  // If not, chooses other pads before the first fact, or another place.
  Result<bool> answer_on_border(const NeedleCase& made, const std::vector<int32_t>& ids);

  const NeedleShape& shape_;
  const EncodeText& encode_;
  FillerStock& stock_;
  FactSet set_;
  std::vector<Placed> placed_;  // per fact
  PadList lead_;                // before the first fact
  // Of the first fact: counts that change a little do not move it.
  std::optional<size_t> held_unit_;
  int64_t question_tokens_ = 0, fact_tokens_ = 0, lead_tokens_ = 0;
};

std::vector<double> CaseLayout::depths() const {
  std::vector<double> out;
  for (size_t i = 0; i < set_.facts.size(); ++i) {
    double depth = shape_.depth;
    if (shape_.needle == Needle::several) {
      depth += static_cast<double>(i) / static_cast<double>(set_.facts.size());
      if (depth > 1) depth -= 1;
    } else if (i > 0) {  // at least a quarter away
      depth = depth > 0.375 && depth < 0.625 ? depth + (depth < 0.5 ? 0.25 : -0.25) : 1 - depth;
    }
    out.push_back(depth);
  }
  return out;
}

// Before the first layout the facts are counted as they are written at its beginning.
Status CaseLayout::count_scaffold() {
  BRAID_ASSIGN(question_tokens_, stock_.count("\n\n" + set_.question));
  BRAID_TRY(stock_.cut(0, 0));
  fact_tokens_ = 0;
  for (const Fact& fact : set_.facts) {
    BRAID_ASSIGN(const int64_t tokens, stock_.count(write_fact(fact, stock_.unit(0))));
    fact_tokens_ += tokens;
  }
  const int64_t needed = question_tokens_ + fact_tokens_;
  if (needed > shape_.tokens)
    return Error{ErrorKind::invalid_argument,
                 fmt::format("{} tokens are too few: the facts and the question of {} take {}",
                             shape_.tokens, needle_id(shape_), needed)};
  return {};
}

Status CaseLayout::place_facts(const FillerStock::Cut& cut) {
  const int64_t filler = stock_.tokens_before(cut.units);
  const std::vector<double> depths = this->depths();
  placed_.clear();
  fact_tokens_ = 0;
  for (size_t i = 0; i < set_.facts.size(); ++i) {
    Placed placed;
    placed.unit = stock_.unit_at(depths[i] * static_cast<double>(filler), cut);
    if (i == 0 && held_unit_) placed.unit = std::min(*held_unit_, cut.units);
    if (filler > 0)
      placed.depth =
          static_cast<double>(stock_.tokens_before(placed.unit)) / static_cast<double>(filler);
    placed.text = write_fact(set_.facts[i], stock_.unit(placed.unit));
    BRAID_ASSIGN(const int64_t tokens, stock_.count(placed.text));
    fact_tokens_ += tokens;
    placed_.push_back(std::move(placed));
  }
  return {};
}

NeedleCase CaseLayout::assemble(const FillerStock::Cut& cut) const {
  NeedleCase out;
  out.shape = shape_;
  out.id = needle_id(shape_);
  out.question = set_.question;
  out.answers = set_.answers;
  out.decoys = set_.decoys;
  out.needles.resize(placed_.size());
  const auto append = [&](std::string_view text) {
    out.context += out.context.empty() ? without_leading_blanks(text) : text;
  };
  for (size_t unit = 0; unit <= cut.units; ++unit) {
    for (size_t i = 0; i < placed_.size(); ++i) {
      if (placed_[i].unit != unit) continue;
      if (i == 0)
        for (const FillerStock::Pad& pad : lead_) append(pad.unit.text);
      const size_t from = out.context.size();
      append(placed_[i].text);
      NeedleSpan& span = out.needles[i];
      span.begin = out.context.find_first_not_of(" \n", from);
      span.end = out.context.find_last_not_of(" \n") + 1;
      span.value_begin = out.context.find(set_.facts[i].value, from);
      span.value_end = span.value_begin + set_.facts[i].value.size();
      span.depth = placed_[i].depth;
      span.decoy = set_.facts[i].decoy;
    }
    if (unit < cut.units) append(stock_.unit(unit).text);
  }
  for (const FillerStock::Pad& pad : cut.tail) append(pad.unit.text);
  out.context.resize(out.context.find_last_not_of(" \n") + 1);
  return out;
}

Result<int64_t> CaseLayout::local_position(const PadList& lead) const {
  const Placed& placed = placed_.front();
  std::string text = placed.unit == 0 ? "" : stock_.unit(placed.unit - 1).text;
  for (const FillerStock::Pad& pad : lead) text += pad.unit.text;
  text += placed.text;
  if (placed.unit == 0) text = std::string(without_leading_blanks(text));
  const size_t value = text.rfind(set_.facts.front().value);
  BRAID_ASSIGN(const std::vector<int32_t> whole, encode_(text));
  BRAID_ASSIGN(const std::vector<int32_t> before, encode_(std::string_view(text).substr(0, value)));
  return common_prefix(before, whole);
}

Result<int64_t> CaseLayout::value_tokens() const {
  const std::string_view text = placed_.front().text, value = set_.facts.front().value;
  const size_t begin = text.find(value);
  BRAID_ASSIGN(const std::vector<int32_t> whole, encode_(text));
  BRAID_ASSIGN(const std::vector<int32_t> before, encode_(text.substr(0, begin)));
  BRAID_ASSIGN(const std::vector<int32_t> with, encode_(text.substr(0, begin + value.size())));
  const int64_t same = common_prefix(with, whole);
  // The last token may hold what comes after the answer, too.
  const int64_t shared = same < static_cast<int64_t>(with.size()) ? 1 : 0;
  const int64_t tokens = same + shared - common_prefix(before, whole);
  if (tokens < 2)
    return Error{
        ErrorKind::unsupported,
        fmt::format("this tokenizer has a token for {}: no border can be within it", value)};
  return tokens;
}

Result<bool> CaseLayout::answer_on_border(const NeedleCase& made, const std::vector<int32_t>& ids) {
  BRAID_ASSIGN(const int64_t value_tokens, this->value_tokens());
  const int64_t lowest = std::max(kNeedleBorderOffset, kNeedleChunkTokens + 1 - value_tokens);
  const auto text = std::string_view(made.context).substr(0, made.needles.front().value_begin);
  BRAID_ASSIGN(const std::vector<int32_t> before, encode_(text));
  const int64_t position = shape_.tokens_before + common_prefix(before, ids);
  if (position % kNeedleChunkTokens >= lowest) return true;
  const size_t unit = placed_.front().unit;
  const int64_t missing = shape_.tokens - made.tokens;
  const bool is_near = missing >= 0 && missing <= shape_.tokens / 100;
  if (is_near) held_unit_ = unit;
  // How a choice of pads moves the answer is seen in the text around it; sums are only near that.
  BRAID_ASSIGN(const int64_t local, local_position(lead_));
  BRAID_ASSIGN(const PadList pads, stock_.pads(stock_.unit(unit)));
  for (PadList& choice : pad_choices(pads)) {
    BRAID_ASSIGN(const int64_t moved, local_position(choice));
    const int64_t offset = (position + moved - local) % kNeedleChunkTokens;
    if (offset < lowest) continue;
    lead_ = std::move(choice);
    lead_tokens_ = sum_of(lead_);
    return false;
  }
  if (is_near) held_unit_ = unit > 0 ? unit - 1 : 1;
  return false;
}

Result<NeedleCase> CaseLayout::make() {
  BRAID_TRY(count_scaffold());
  const bool exact = shape_.tokens >= kNeedleExactTokens;
  const auto least =
      exact ? static_cast<int64_t>(std::ceil(static_cast<double>(shape_.tokens) * 0.995)) : 0;
  const int64_t slack = exact ? shape_.tokens / 800 : 0;
  int64_t bias = 0;  // what the joined text has more than the sum of its parts
  for (int round = 0; round < kCaseRounds; ++round) {
    const int64_t reserved =
        shape_.needle == Needle::border ? std::max<int64_t>(0, kBorderPadTokens - lead_tokens_) : 0;
    const int64_t room =
        shape_.tokens - question_tokens_ - fact_tokens_ - lead_tokens_ - bias - round / 2;
    BRAID_ASSIGN(const FillerStock::Cut cut, stock_.cut(room, slack, reserved));
    BRAID_TRY(place_facts(cut));
    NeedleCase made = assemble(cut);
    BRAID_ASSIGN(const std::vector<int32_t> ids, encode_(needle_prompt(made)));
    made.tokens = static_cast<int64_t>(ids.size());
    bias = made.tokens - cut.tokens - question_tokens_ - fact_tokens_ - lead_tokens_;
    bool right = made.tokens <= shape_.tokens && made.tokens >= least;
    if (shape_.needle == Needle::border) {
      BRAID_ASSIGN(const bool on_border, answer_on_border(made, ids));
      right = right && on_border;
    }
    if (right) return made;
  }
  return Error{ErrorKind::unsupported,
               fmt::format("{} cannot be made of this tokenizer's tokens", needle_id(shape_))};
}

}  // namespace

std::string needle_id(const NeedleShape& shape) {
  std::string id = fmt::format("{}-{}-t{}-d{:.3f}-s{}", filler_name(shape.filler),
                               needle_name(shape.needle), shape.tokens, shape.depth, shape.seed);
  if (shape.tokens_before != 0) id += fmt::format("-b{}", shape.tokens_before);
  return id;
}

Result<NeedleCase> make_needle_case(const NeedleShape& shape, const EncodeText& encode,
                                    std::string_view file) {
  if (!(shape.depth >= 0 && shape.depth <= 1))
    return Error{ErrorKind::invalid_argument,
                 fmt::format("depth {} is not between 0 and 1", shape.depth)};
  if (shape.tokens_before < 0)
    return Error{ErrorKind::invalid_argument,
                 fmt::format("{} tokens cannot be before the context", shape.tokens_before)};
  // The filler is the same for all facts, depths and lengths of a seed; the facts are not.
  BRAID_ASSIGN(auto filler, make_filler(shape.filler, shape.seed, file));
  FillerStock stock(std::move(filler), encode);
  uint64_t stream = static_cast<uint64_t>(shape.needle) << 56 ^
                    static_cast<uint64_t>(std::llround(shape.depth * 1e6)) << 32 ^
                    static_cast<uint64_t>(shape.tokens);
  stream = split_mix(stream);
  for (int attempt = 0; attempt < kCaseAttempts; ++attempt) {
    NeedleRandom random(shape.seed, stream + static_cast<uint64_t>(attempt));
    BRAID_ASSIGN(NeedleCase made,
                 CaseLayout(shape, encode, stock, draw_facts(shape.needle, random)).make());
    if (!leaks(made)) return made;
  }
  return Error{ErrorKind::invalid_argument,
               fmt::format("the filler of {} has the answers in it", needle_id(shape))};
}

std::string needle_prompt(const NeedleCase& needle_case) {
  return needle_case.context + "\n\n" + needle_case.question;
}

bool contains_answers(std::string_view text, const NeedleCase& needle_case) {
  return contains_all(text, needle_case.answers, needle_case.shape.needle);
}

bool contains_needles(std::string_view text, const NeedleCase& needle_case) {
  return std::all_of(
      needle_case.needles.begin(), needle_case.needles.end(), [&](const NeedleSpan& span) {
        const auto fact =
            std::string_view(needle_case.context).substr(span.begin, span.end - span.begin);
        return span.decoy || text.find(fact) != text.npos;
      });
}

}  // namespace braid::cli
