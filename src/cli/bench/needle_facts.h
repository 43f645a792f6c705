// needle_facts.h -- the facts that a needle case hides, their question and its answers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/bench/needle_filler.h"
#include "cli/bench/needle_random.h"

namespace braid::cli {

// - number: seven digits.
// - uuid, identifier: texts that count only letter by letter.
// - several: four numbers of one thing, all of which are asked for.
// - two_hop: one fact names a person, another the person's number; the question names neither.
// - distractor: a number, and elsewhere nearly the same sentence with another number.
// - border: a number whose tokens lie on both sides of the border of two chunks.
// - secret: five digits, in the words that the model inside of the program was trained on.
enum class Needle { number, uuid, identifier, several, two_hop, distractor, border, secret };
inline constexpr Needle kAllNeedles[] = {Needle::number,  Needle::uuid,    Needle::identifier,
                                         Needle::several, Needle::two_hop, Needle::distractor,
                                         Needle::border,  Needle::secret};
std::string_view needle_name(Needle needle);
// Error: invalid_argument, with the names.
Result<Needle> parse_needle(std::string_view name);

// A sentence or, with a target, the assignment of `value` to it.
struct Fact {
  std::string sentence;
  std::string target;
  std::string value;  // stands once in the sentence
  bool decoy = false;
};

// As a text that stands before `place`, with the blank or the line end that it needs there.
std::string write_fact(const Fact& fact, const FillerUnit& place);

struct FactSet {
  std::vector<Fact> facts;  // the first is the one at the asked depth
  std::string question;
  std::vector<std::string> answers;
  std::vector<std::string> decoys;
};
FactSet draw_facts(Needle needle, NeedleRandom& random);

// All answers are in the text: letter by letter for UUIDs and identifiers, else without regard to
// the case of ASCII letters.
bool contains_all(std::string_view text, const std::vector<std::string>& answers, Needle needle);

// How often `part` stands in `text`, overlaps counted; ASCII letters of both cases are alike.
int count_texts(std::string_view text, std::string_view part);

}  // namespace braid::cli
