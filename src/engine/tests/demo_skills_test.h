// demo_skills_test.h -- questions of the kinds that the demo model was trained on.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace braid::testing_skills {

enum class Skill : uint8_t { code, calls, retrieval, echo };
inline constexpr Skill kSkills[] = {Skill::code, Skill::calls, Skill::retrieval, Skill::echo};
inline constexpr const char* kSkillNames[] = {"code", "calls", "retrieval", "echo"};

// Portable, unlike the standard library's distributions.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed * 2654435761u + 12345) {}
  uint32_t below(uint32_t n) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33) % n;
  }
  template <size_t N>
  std::string one_of(const char* const (&list)[N]) {
    return list[below(N)];
  }

 private:
  uint64_t state_;
};

inline constexpr const char* kThings[] = {"hammer",  "island",  "kettle",  "lantern", "falcon",
                                          "glacier", "candle",  "ladder",  "rocket",  "pebble",
                                          "temple",  "orchard", "feather", "needle"};
inline constexpr const char* kLooks[] = {"dusty", "brave", "calm", "eager",
                                         "jolly", "merry", "pale", "tall"};
inline constexpr const char* kNames[] = {"Kira", "Liam", "Olga", "Paul",
                                         "Rosa", "Tess", "Will", "Zane"};
inline constexpr const char* kPlaces[] = {"harbor",  "museum",  "school",
                                          "theater", "library", "market"};
inline constexpr const char* kCities[] = {"Berlin", "Lima",  "Cairo", "Boston",
                                          "Zurich", "Delhi", "Tokyo"};

inline std::string question(const std::string& text, const std::string& system = "") {
  const std::string before = system.empty() ? "" : "<|im_start|>system\n" + system + "<|im_end|>\n";
  return before + "<|im_start|>user\n" + text +
         "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
}

inline std::string filler(Dice& dice, int sentences) {
  std::string text;
  for (int i = 0; i < sentences; ++i) {
    switch (dice.below(3)) {
      case 0:
        text += fmt::format("On day {}, the {} in {} was quiet. ", 100 + dice.below(150),
                            dice.one_of(kPlaces), dice.one_of(kCities));
        break;
      case 1:
        text += fmt::format("{} cleaned the {} {} near the {}. ", dice.one_of(kNames),
                            dice.one_of(kLooks), dice.one_of(kThings), dice.one_of(kPlaces));
        break;
      default:
        text += fmt::format("The {} {} was carried by {} in {}. ", dice.one_of(kLooks),
                            dice.one_of(kThings), dice.one_of(kNames), dice.one_of(kCities));
    }
  }
  return text;
}

inline std::string call_prompt(Dice& dice) {
  const auto tool = [](const std::string& thing, const std::string& properties,
                       const std::string& required) {
    return fmt::format(
        R"({{"type": "function", "function": {{"name": "find_{0}", "description": "Find a {0}", )"
        R"("parameters": {{"type": "object", "properties": {{{1}}}, "required": [{2}]}}}}}})",
        thing, properties, required);
  };
  const std::string other = dice.one_of(kThings), wanted = dice.one_of(kThings);
  const std::string count = R"("count": {"type": "integer"})",
                    user = R"("user": {"type": "string"})";
  const std::string system = "# Tools\n\nYou may call these functions:\n\n<tools>\n" +
                             tool(other, count, R"("count")") + "\n" +
                             tool(wanted, count + ", " + user, R"("count", "user")") +
                             "\n</tools>\n\nTo call a function, answer with nothing after this "
                             "block:\n\n<tool_call>\n<function=name>\n"
                             "<parameter=parameter_name>\nvalue\n</parameter>\n</function>\n</"
                             "tool_call>\n\nGive every required "
                             "parameter. If no function fits, answer in plain text.";
  return question(fmt::format("Please find a {}: count {} and user {}.", wanted,
                              10 + dice.below(90), dice.one_of(kNames)),
                  system);
}

inline std::string retrieval_prompt(Dice& dice, int sentences = 6) {
  const std::string thing = fmt::format("{}-{}", dice.one_of(kLooks), dice.one_of(kThings));
  return question(filler(dice, sentences) +
                  fmt::format("The secret number for {} is {}. ", thing, 100 + dice.below(900)) +
                  filler(dice, sentences) +
                  fmt::format("What is the secret number for {}?", thing));
}

inline std::string echo_prompt(Dice& dice) {
  const char* const asked[] = {"Repeat exactly: ", "Repeat this sentence: ", "Repeat this: "};
  return question(asked[dice.below(3)] + fmt::format("The {} {} was cleaned by {} in {}.",
                                                     dice.one_of(kLooks), dice.one_of(kThings),
                                                     dice.one_of(kNames), dice.one_of(kCities)));
}

// The beginning of a function outside the training data.
inline std::string code_prompt(Dice& dice, const std::string& corpus) {
  const size_t first =
      corpus.find("\ndef ", dice.below(static_cast<uint32_t>(corpus.size() - 8000))) + 1;
  const size_t end = corpus.find('\n', first + 200) + 1;
  return question("Complete the following Python function.\n\n" +
                  corpus.substr(first, end - first));
}

inline std::vector<std::string> prompts(Skill skill, int count) {
  std::ifstream in(std::string(BRAID_SOURCE_DIR) + "/tests/goldens/corpus-heldout.txt");
  const std::string corpus{std::istreambuf_iterator<char>(in), {}};
  Dice dice(static_cast<uint64_t>(skill) + 1);
  std::vector<std::string> list;
  for (int i = 0; i < count; ++i) {
    switch (skill) {
      case Skill::code:
        list.push_back(code_prompt(dice, corpus));
        break;
      case Skill::calls:
        list.push_back(call_prompt(dice));
        break;
      case Skill::retrieval:
        list.push_back(retrieval_prompt(dice));
        break;
      case Skill::echo:
        list.push_back(echo_prompt(dice));
        break;
    }
  }
  return list;
}

inline std::vector<std::string> far_retrievals(int count, int sentences) {
  Dice dice(static_cast<uint64_t>(sentences));
  std::vector<std::string> list;
  for (int i = 0; i < count; ++i) list.push_back(retrieval_prompt(dice, sentences));
  return list;
}

// Text that the answer must contain; empty: any.
inline std::vector<std::string> expected_of(Skill skill, const std::string& prompt) {
  const auto between = [&](const char* begin, const char* end) {
    const size_t first = prompt.rfind(begin) + std::char_traits<char>::length(begin);
    return prompt.substr(first, prompt.find(end, first) - first);
  };
  switch (skill) {
    case Skill::code:
      return {};
    case Skill::calls:
      return {"<function=find_" + between("Please find a ", ":") + ">",
              "<parameter=count>\n" + between(": count ", " and") + "\n",
              "<parameter=user>\n" + between("and user ", ".") + "\n"};
    case Skill::retrieval: {
      const std::string said = between("The secret number for ", ". ");
      return {said.substr(said.find(" is ") + 4)};
    }
    case Skill::echo:
      return {between(": ", "<|im_end|>")};
  }
  return {};
}

}  // namespace braid::testing_skills
