// tokenizer_special.cpp -- see tokenizer_special.h.
#include "text/tokenizer/tokenizer_special.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "text/dialect.h"

namespace braid {
namespace {

// Texts that end a generation whatever their type in the file. If the file names no end of turn,
// the first one present is used.
constexpr std::string_view kEndTexts[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_utterance>",
    "<turn|>",
    "<｜end▁of▁sentence｜>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "[EOS]",
    "<|end_of_text|>",
    "<eos>",
    "<|tool_response>",
    "</assistant>",
};

// Harmony markers frame visible output, so they are text, not control.
constexpr std::string_view kFrameTexts[] = {"<|channel|>", "<|message|>", "<|start|>",
                                            "<|constrain|>"};

constexpr std::string_view kFimPrefix[] = {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>",
                                           "<PRE>"};
constexpr std::string_view kFimSuffix[] = {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>",
                                           "<SUF>"};
constexpr std::string_view kFimMiddle[] = {"<|fim_middle|>", "<fim-middle>", "<fim_middle>",
                                           "<MID>"};
constexpr std::string_view kFimPadding[] = {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>"};
constexpr std::string_view kFimRepository[] = {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>",
                                               "<REPO>", "<reponame>"};
constexpr std::string_view kFimSeparator[] = {"<|file_sep|>"};

template <typename Texts>
void give_role_by_text(std::optional<int32_t>& role, const TokenIndex& index, const Texts& texts) {
  for (const std::string_view text : texts) {
    if (!role) role = index.find(text);
  }
}

}  // namespace

std::vector<int32_t> resolve_special_tokens(VocabularyData& data, const TokenIndex& index) {
  const auto set_type = [&](int32_t id, TokenType type) {
    data.types[id] = static_cast<int32_t>(type);
  };

  std::set<int32_t> ends;
  for (const std::string_view text : kEndTexts) {
    if (const auto id = index.find(text)) {
      ends.insert(*id);
      set_type(*id, TokenType::control);
    }
  }
  for (const std::string_view text : kFrameTexts) {
    if (const auto id = index.find(text)) set_type(*id, TokenType::user_defined);
  }

  give_role_by_text(data.eot, index, kEndTexts);
  give_role_by_text(data.fim_prefix, index, kFimPrefix);
  give_role_by_text(data.fim_suffix, index, kFimSuffix);
  give_role_by_text(data.fim_middle, index, kFimMiddle);
  give_role_by_text(data.fim_padding, index, kFimPadding);
  give_role_by_text(data.fim_repository, index, kFimRepository);
  give_role_by_text(data.fim_separator, index, kFimSeparator);
  for (const auto& role :
       {data.eos, data.eot, data.eom, data.fim_padding, data.fim_repository, data.fim_separator}) {
    if (role) ends.insert(*role);
  }
  // Published files call these user-defined, but a conversation must not contain them.
  for (const auto& role : {data.fim_prefix, data.fim_suffix, data.fim_middle, data.fim_padding,
                           data.fim_repository, data.fim_separator}) {
    if (role) set_type(*role, TokenType::control);
  }

  // The counterpart of </assistant>, user-defined in published files, is control too.
  if (const auto open = index.find("<assistant>"); open && index.contains("</assistant>")) {
    set_type(*open, TokenType::control);
  }
  // The parser of answers must see its tags.
  const Dialect dialect;
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    const bool control = data.types[id] == static_cast<int32_t>(TokenType::control);
    if (control && dialect.is_answer_tag(data.tokens[id]))
      data.types[id] = static_cast<int32_t>(TokenType::user_defined);
  }

  // In these two families the end of turn of other models occurs inside answers.
  const auto has = [&](std::string_view text) { return index.contains(text); };
  const bool is_harmony =
      (has("<|return|>") && has("<|call|>")) || (has("<|calls|>") && has("<|flush|>"));
  if (is_harmony && has("<|end|>")) ends.erase(*index.find("<|end|>"));
  if (has("<|tool_response>") && has("</s>")) ends.erase(*index.find("</s>"));
  return {ends.begin(), ends.end()};
}

SpecialFinder::SpecialFinder(std::vector<Special> specials) : specials_(std::move(specials)) {
  std::sort(specials_.begin(), specials_.end(),
            [](const Special& a, const Special& b) { return a.text < b.text; });
  by_first_byte_.fill({0, 0});
  for (size_t index = 0; index < specials_.size(); ++index) {
    BRAID_CHECK(!specials_[index].text.empty() && specials_[index].found_in != Origin::data);
    auto& range = by_first_byte_[static_cast<uint8_t>(specials_[index].text[0])];
    if (range.second == 0) range.first = index;
    range.second = index + 1;
  }
}

namespace {

bool may_stand(const SpecialFinder::Special& special, size_t at, const OriginSpans& origins) {
  if (origins.empty()) return true;
  return least_trusted(origins, at, at + special.text.size()) <= special.found_in;
}

}  // namespace

// Specials in the text, in the order of cutting; the sorted list is searched like a tree.
std::vector<size_t> SpecialFinder::present_in(std::string_view text, bool parse_special,
                                              const OriginSpans& origins) const {
  std::vector<bool> seen(specials_.size());
  std::vector<size_t> present;
  for (size_t position = 0; position < text.size(); ++position) {
    auto [low, high] = by_first_byte_[static_cast<uint8_t>(text[position])];
    for (size_t depth = 1; low < high; ++depth) {
      if (specials_[low].text.size() == depth) {  // shorter texts sort first; all are distinct
        const bool wanted = parse_special || specials_[low].matches_always;
        if (!seen[low] && wanted && may_stand(specials_[low], position, origins)) {
          seen[low] = true;
          present.push_back(low);
        }
        ++low;
      }
      if (low == high || position + depth >= text.size()) break;
      const uint8_t byte = static_cast<uint8_t>(text[position + depth]);
      const auto begin = specials_.begin();
      const auto byte_of = [depth](const Special& special) {
        return static_cast<uint8_t>(special.text[depth]);
      };
      const auto first =
          std::partition_point(begin + low, begin + high,
                               [&](const Special& special) { return byte_of(special) < byte; });
      const auto last = std::partition_point(
          first, begin + high, [&](const Special& special) { return byte_of(special) == byte; });
      low = first - begin;
      high = last - begin;
    }
  }
  std::sort(present.begin(), present.end(), [this](size_t a, size_t b) {
    const Special& left = specials_[a];
    const Special& right = specials_[b];
    return left.text.size() != right.text.size() ? left.text.size() > right.text.size()
                                                 : left.id < right.id;
  });
  return present;
}

std::vector<Fragment> SpecialFinder::split(std::string_view text, bool parse_special,
                                           const OriginSpans& origins) const {
  std::vector<Fragment> fragments;
  if (text.empty()) return fragments;
  fragments.push_back({0, text.size(), -1});
  std::vector<Fragment> next;
  for (const size_t index : present_in(text, parse_special, origins)) {
    const Special& special = specials_[index];
    next.clear();
    for (const Fragment& fragment : fragments) {
      if (fragment.id >= 0) {
        next.push_back(fragment);
        continue;
      }
      const std::string_view raw = text.substr(0, fragment.end);
      size_t begin = fragment.begin;
      while (begin < fragment.end) {
        size_t found = raw.find(special.text, begin);
        while (found < fragment.end && !may_stand(special, found, origins)) {
          found = raw.find(special.text, found + 1);
        }
        found = std::min(found, fragment.end);
        if (found > begin) next.push_back({begin, found, -1});
        if (found == fragment.end) break;
        begin = found + special.text.size();
        next.push_back({found, begin, special.id});
      }
    }
    fragments.swap(next);
  }
  return fragments;
}

}  // namespace braid
