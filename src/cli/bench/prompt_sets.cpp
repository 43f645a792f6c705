// prompt_sets.cpp -- see prompt_sets.h.
#include "cli/bench/prompt_sets.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <sstream>

#include "base/json.h"
#include "cli/generate.h"
#include "text/blanks.h"

namespace braid::cli {

namespace {

using Json = nlohmann::ordered_json;

Result<RenderedText> render(const Json& line, const GgufFile& file, const Tokenizer& tokenizer) {
  const auto text = line.find("text");
  if (text != line.end()) {
    if (!text->is_string()) return Error{ErrorKind::invalid_argument, "\"text\" is not a string"};
    return RenderedText{text->get<std::string>(), {}};
  }
  const auto messages = line.find("messages");
  if (messages == line.end() || !messages->is_array())
    return Error{ErrorKind::invalid_argument, "needs \"text\" or an array \"messages\""};
  BRAID_ASSIGN(const ChatTemplate chat, read_chat_template(file, tokenizer));
  ChatOptions options;
  options.enable_thinking = false;
  return chat.render(*messages, line.value("tools", Json()), options);
}

Status add_prompt(const std::string& text, const GgufFile& file, const Tokenizer& tokenizer,
                  std::vector<PromptSet>& sets) {
  BRAID_ASSIGN(const Json line, parse_json(text));
  if (!line.is_object()) return Error{ErrorKind::invalid_argument, "is not a JSON object"};
  const auto set = line.find("set");
  if (set != line.end() && !set->is_string())
    return Error{ErrorKind::invalid_argument, "\"set\" is not a string"};
  const std::string name = set == line.end() ? "prompts" : set->get<std::string>();
  BRAID_ASSIGN(const RenderedText rendered, render(line, file, tokenizer));
  BRAID_ASSIGN(std::vector<int32_t> tokens, tokenizer.encode_rendered(rendered));
  if (tokens.empty()) return Error{ErrorKind::invalid_argument, "the prompt is empty"};
  auto known =
      std::find_if(sets.begin(), sets.end(), [&](const PromptSet& s) { return s.name == name; });
  if (known == sets.end()) known = sets.insert(sets.end(), PromptSet{name, {}});
  known->prompts.push_back(std::move(tokens));
  return {};
}

}  // namespace

Result<std::vector<PromptSet>> read_prompt_sets(const std::string& path, const GgufFile& file,
                                                const Tokenizer& tokenizer) {
  BRAID_ASSIGN(const std::string text, read_text(path));
  std::vector<PromptSet> sets;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (all_blank(line)) continue;
    if (const Status added = add_prompt(line, file, tokenizer, sets); !added.ok())
      return Error{added.error().kind,
                   fmt::format("{}:{}: {}", path, number, added.error().message)};
  }
  if (sets.empty()) return Error{ErrorKind::invalid_argument, path + ": contains no prompts"};
  return sets;
}

PromptSet random_prompts(int32_t count, int32_t tokens, int64_t vocabulary) {
  PromptSet set{"random", {}};
  for (int32_t i = 0; i < count; ++i) {
    std::mt19937_64 random(static_cast<uint64_t>(i) + 100);
    std::vector<int32_t>& prompt = set.prompts.emplace_back();
    for (int32_t t = 0; t < tokens; ++t)
      prompt.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary)));
  }
  return set;
}

}  // namespace braid::cli
