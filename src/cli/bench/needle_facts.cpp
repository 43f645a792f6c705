// needle_facts.cpp -- see needle_facts.h.
#include "cli/bench/needle_facts.h"

#include <fmt/format.h>

#include <algorithm>

namespace braid::cli {
namespace {

using FactWords = std::string_view[];

constexpr std::string_view kNeedleNames[] = {"number",  "uuid",       "identifier", "several",
                                             "two-hop", "distractor", "border",     "secret"};
constexpr int kNumberDigits = 7, kSecretDigits = 5, kSeveralFacts = 4;

// None of these words is in a filler.
constexpr FactWords kFactLooks = {"cobalt", "saffron", "crimson", "ivory",  "amber",  "violet",
                                  "jade",   "scarlet", "bronze",  "indigo", "silver", "turquoise"};
constexpr FactWords kFactThings = {"lighthouse", "observatory", "caravan",  "abbey",
                                   "windlass",   "carousel",    "aqueduct", "planetarium",
                                   "foundry",    "citadel",     "monorail", "pavilion"};
constexpr FactWords kFactNumbers = {"access code", "registry number", "serial number",
                                    "signal number"};
constexpr FactWords kFactFirstNames = {"Tessa",   "Orlando", "Mirela", "Casimir",
                                       "Ottilie", "Bram",    "Zelda",  "Lucasta"};
constexpr FactWords kFactLastNames = {"Quillfeather", "Brambleton", "Vanterpool",   "Okonjuro",
                                      "Starkweather", "Dellacroce", "Winterbourne", "Halvorsund"};

char lower_letter(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string fact_subject(NeedleRandom& random) {
  const std::string_view look = random.pick(kFactLooks), thing = random.pick(kFactThings);
  return fmt::format("{} {}", look, thing);
}

std::string random_uuid(NeedleRandom& random) {
  std::string out = random.hex(8);
  out += "-" + random.hex(4);
  out += "-4" + random.hex(3);
  out += '-';
  out += "89ab"[random.below(4)];
  out += random.hex(3);
  return out + "-" + random.hex(12);
}

std::string in_camel_case(std::string_view text) {
  std::string out;
  bool up = false;
  for (const char c : text) {
    if (c == ' ') {
      up = true;
    } else {
      out += up ? static_cast<char>(c - 'a' + 'A') : c;
      up = false;
    }
  }
  return out;
}

// Two digits differ, neither of them the first.
std::string similar_number(std::string number, NeedleRandom& random) {
  const auto first = 1 + random.below(kNumberDigits - 2);
  const auto second = first + 1 + random.below(kNumberDigits - 1 - first);
  for (const uint64_t i : {first, second}) {
    char& digit = number[static_cast<size_t>(i)];
    digit =
        static_cast<char>('0' + (static_cast<uint64_t>(digit - '0') + 1 + random.below(9)) % 10);
  }
  return number;
}

FactSet number_fact(NeedleRandom& random) {
  const std::string subject = fact_subject(random), noun(random.pick(kFactNumbers));
  const std::string value = random.digits(kNumberDigits);
  return {{{fmt::format("The {} of the {} is {}.", noun, subject, value), "", value}},
          fmt::format("What is the {} of the {}? Answer with the number.", noun, subject),
          {value},
          {}};
}

FactSet secret_fact(NeedleRandom& random) {
  const std::string_view look = random.pick(kFactLooks), thing = random.pick(kFactThings);
  const std::string value = random.digits(kSecretDigits);
  return {{{fmt::format("The secret number for {}-{} is {}.", look, thing, value), "", value}},
          fmt::format("What is the secret number for {}-{}?", look, thing),
          {value},
          {}};
}

FactSet uuid_fact(NeedleRandom& random) {
  const std::string subject = fact_subject(random), value = random_uuid(random);
  return {{{fmt::format("The identifier of the {} is {}.", subject, value), "", value}},
          fmt::format("What is the identifier of the {}? Answer with the identifier.", subject),
          {value},
          {}};
}

FactSet identifier_fact(NeedleRandom& random) {
  std::string target = fact_subject(random) + " handler";
  std::replace(target.begin(), target.end(), ' ', '_');
  std::string value = in_camel_case("open " + fact_subject(random));
  value += random.hex(4);
  return {{{fmt::format("In the settings, {} is set to {}.", target, value), target, value}},
          fmt::format("Which name is assigned to {}? Answer with the name.", target),
          {value},
          {}};
}

FactSet several_facts(NeedleRandom& random) {
  const std::string subject = fact_subject(random), noun(random.pick(kFactNumbers));
  FactSet out;
  for (int i = 0; i < kSeveralFacts; ++i) {
    out.answers.push_back(random.digits(kNumberDigits));
    out.facts.push_back(
        {fmt::format("One of the four {}s of the {} is {}.", noun, subject, out.answers.back()), "",
         out.answers.back()});
  }
  out.question =
      fmt::format("What are the four {}s of the {}? Answer with all four numbers.", noun, subject);
  return out;
}

FactSet two_hop_facts(NeedleRandom& random) {
  const std::string subject = fact_subject(random);
  const std::string_view first = random.pick(kFactFirstNames), last = random.pick(kFactLastNames);
  const std::string person = fmt::format("{} {}", first, last);
  const std::string value = random.digits(kNumberDigits);
  return {{{fmt::format("The locker of {} has the number {}.", person, value), "", value},
           {fmt::format("The keeper of the {} is {}.", subject, person), "", person}},
          fmt::format("Which number has the locker of the keeper of the {}? "
                      "Answer with the number.",
                      subject),
          {value},
          {}};
}

FactSet distractor_facts(NeedleRandom& random) {
  const std::string subject = fact_subject(random), noun(random.pick(kFactNumbers));
  const bool north = random.one_in(2);
  const std::string value = random.digits(kNumberDigits), other = similar_number(value, random);
  const auto sentence = [&](bool of_north, const std::string& number) {
    return fmt::format("The {} of the {} {} is {}.", noun, of_north ? "northern" : "southern",
                       subject, number);
  };
  return {{{sentence(north, value), "", value}, {sentence(!north, other), "", other, true}},
          fmt::format("What is the {} of the {} {}? Answer with the number.", noun,
                      north ? "northern" : "southern", subject),
          {value},
          {other}};
}

}  // namespace

std::string_view needle_name(Needle needle) { return kNeedleNames[static_cast<size_t>(needle)]; }

Result<Needle> parse_needle(std::string_view name) {
  for (size_t i = 0; i < std::size(kNeedleNames); ++i)
    if (kNeedleNames[i] == name) return static_cast<Needle>(i);
  return Error{ErrorKind::invalid_argument, fmt::format("'{}' is no needle: it is one of {}", name,
                                                        fmt::join(kNeedleNames, ", "))};
}

std::string write_fact(const Fact& fact, const FillerUnit& place) {
  const std::string indent(static_cast<size_t>(place.indent), ' ');
  const bool assigns = !fact.target.empty();
  switch (place.style) {
    case FactStyle::python:
      if (assigns) return fmt::format("{}{} = {}\n", indent, fact.target, fact.value);
      return fmt::format("{}# {}\n", indent, fact.sentence);
    case FactStyle::c:
      if (assigns)
        return fmt::format("{}static const handler_fn {} = {};\n", indent, fact.target, fact.value);
      return fmt::format("{}// {}\n", indent, fact.sentence);
    case FactStyle::log:
      return fmt::format(
          "{{\"ts\":\"{}\",\"service\":\"config\",\"host\":\"ams-1\",\"level\":\"info\","
          "\"msg\":\"{}\"}}\n",
          log_time(place.clock_ms), fact.sentence);
    case FactStyle::sentence:
      break;
  }
  return " " + fact.sentence;
}

FactSet draw_facts(Needle needle, NeedleRandom& random) {
  switch (needle) {
    case Needle::uuid:
      return uuid_fact(random);
    case Needle::identifier:
      return identifier_fact(random);
    case Needle::several:
      return several_facts(random);
    case Needle::two_hop:
      return two_hop_facts(random);
    case Needle::distractor:
      return distractor_facts(random);
    case Needle::secret:
      return secret_fact(random);
    case Needle::number:
    case Needle::border:
      break;
  }
  return number_fact(random);
}

bool contains_all(std::string_view text, const std::vector<std::string>& answers, Needle needle) {
  const bool verbatim = needle == Needle::uuid || needle == Needle::identifier;
  return std::all_of(answers.begin(), answers.end(), [&](const std::string& answer) {
    return verbatim ? text.find(answer) != text.npos : count_texts(text, answer) > 0;
  });
}

int count_texts(std::string_view text, std::string_view part) {
  int found = 0;
  const auto same = [](char a, char b) { return lower_letter(a) == lower_letter(b); };
  for (auto at = text.begin();; ++at, ++found) {
    at = std::search(at, text.end(), part.begin(), part.end(), same);
    if (at == text.end()) return found;
  }
}

}  // namespace braid::cli
