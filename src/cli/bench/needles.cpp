// needles.cpp -- see needles.h.
#include "cli/bench/needles.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <span>

#include "cli/generate.h"

namespace braid::cli {

namespace {

constexpr const char* kLooks[] = {"calm",  "brave", "dusty", "eager",
                                  "jolly", "merry", "pale",  "tall"};
constexpr const char* kThings[] = {"lantern", "falcon", "glacier", "ladder",  "rocket",
                                   "pebble",  "temple", "orchard", "feather", "kettle",
                                   "island",  "candle", "hammer",  "needle"};
constexpr int32_t kDecoys = 3;

struct Insert {
  double depth = 0;
  std::string sentence;
};

std::string with_inserts(std::span<const int32_t> hay, std::vector<Insert> inserts,
                         const Tokenizer& tokenizer) {
  std::stable_sort(inserts.begin(), inserts.end(),
                   [](const Insert& a, const Insert& b) { return a.depth < b.depth; });
  std::string text;
  size_t at = 0;
  for (const Insert& insert : inserts) {
    const auto to = static_cast<size_t>(insert.depth * static_cast<double>(hay.size()));
    text += tokenizer.decode(hay.subspan(at, to - at)) + " " + insert.sentence + " ";
    at = to;
  }
  return text + tokenizer.decode(hay.subspan(at));
}

}  // namespace

Result<std::vector<ReportPrompt>> make_needles(const std::vector<int32_t>& lengths, int32_t depths,
                                               const std::vector<int32_t>& hay,
                                               const GgufFile& file, const Tokenizer& tokenizer) {
  std::vector<ReportPrompt> prompts;
  BRAID_ASSIGN(const ChatTemplate chat, read_chat_template(file, tokenizer));
  ChatOptions options;
  options.enable_thinking = false;
  std::mt19937_64 random(1);
  const auto below = [&](uint64_t n) { return random() % n; };
  for (const int32_t length : lengths) {
    std::vector<int32_t> text;
    while (text.size() < static_cast<size_t>(length))
      text.insert(text.end(), hay.begin(),
                  hay.begin() + static_cast<ptrdiff_t>(std::min(
                                    hay.size(), static_cast<size_t>(length) - text.size())));
    for (int32_t i = 0; i < depths; ++i) {
      const auto name_of = [&](uint64_t which) {
        return fmt::format("{}-{}", kLooks[which % std::size(kLooks)],
                           kThings[which / std::size(kLooks) % std::size(kThings)]);
      };
      // Names within a prompt differ.
      const uint64_t first = below(std::size(kLooks) * std::size(kThings));
      const std::string number = std::to_string(100 + below(900));
      std::vector<Insert> inserts = {
          {(i + 0.5) / depths,
           fmt::format("The secret number for {} is {}.", name_of(first), number)}};
      for (int32_t d = 0; i % 2 == 1 && d < kDecoys; ++d)
        inserts.push_back(
            {(d + 0.25) / kDecoys,
             fmt::format("The secret number for {} is {}.",
                         name_of(first + 1 + static_cast<uint64_t>(d)), 100 + below(900))});
      const std::string message = with_inserts(text, std::move(inserts), tokenizer) +
                                  fmt::format(" What is the secret number for {}?", name_of(first));
      nlohmann::ordered_json messages =
          nlohmann::ordered_json::array({chat_message("user", message)});
      BRAID_ASSIGN(const RenderedText rendered, chat.render(messages, {}, options));
      BRAID_ASSIGN(std::vector<int32_t> tokens, tokenizer.encode_rendered(rendered));
      prompts.push_back({fmt::format("needle {}", length), std::move(tokens), number});
    }
  }
  return prompts;
}

}  // namespace braid::cli
