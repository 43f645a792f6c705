// needle_case.h -- a fact hidden in a long text, a question for it, and whether a text answers it.
// It judges what loses information: compressed prompts, formats of the KV cache, long contexts.
//
// A case depends on its shape, the filler's file and the encoder alone: platforms and libraries
// give the same bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/bench/needle_facts.h"
#include "cli/bench/needle_filler.h"
#include "cli/bench/needle_stock.h"

namespace braid::cli {

inline constexpr int64_t kNeedleChunkTokens = 32;   // Needle::border lies on a multiple of it
inline constexpr int64_t kNeedleBorderOffset = 28;  // the first token of its answer, or later
// From here on a case has at least 0.995 of the asked tokens.
inline constexpr int64_t kNeedleExactTokens = 4096;

struct NeedleShape {
  uint64_t seed = 0;
  int64_t tokens = 0;  // most of the prompt: context, blank line, question
  double depth = 0;    // share of the filler before the first fact, 0 to 1
  Filler filler = Filler::prose;
  Needle needle = Needle::number;
  // That the caller puts before the context: its chunks are counted from there. Not in `tokens`.
  int64_t tokens_before = 0;
};

// "prose-number-t4096-d0.500-s1".
std::string needle_id(const NeedleShape& shape);

// A fact in the context. Bytes are without the blanks around it.
struct NeedleSpan {
  size_t begin = 0, end = 0;
  size_t value_begin = 0, value_end = 0;  // of the answer, or of the name that links two facts
  double depth = 0;                       // share of the filler's tokens before it
  bool decoy = false;
};

struct NeedleCase {
  NeedleShape shape;
  std::string id;
  std::string context;
  std::string question;
  // Each stands once in the context and not in the question.
  std::vector<std::string> answers;
  std::vector<std::string> decoys;  // wrong answers from the context
  std::vector<NeedleSpan> needles;  // the first is at the asked depth
  int64_t tokens = 0;               // of needle_prompt(), with what the encoder adds
};

// `file` is the text of Filler::file. Errors:
// - invalid_argument: a depth or tokens_before out of range, too few tokens for facts and question,
//   a file without text or with the answers.
// - unsupported: a tokenizer whose counts do not come near any number, or that has a token for a
//   whole number of Needle::border.
// - those of the encoder.
Result<NeedleCase> make_needle_case(const NeedleShape& shape, const EncodeText& encode,
                                    std::string_view file = {});

std::string needle_prompt(const NeedleCase& needle_case);

// See contains_all().
bool contains_answers(std::string_view text, const NeedleCase& needle_case);
// All facts are in the text word by word, decoys aside: of a compressed prompt, as without the
// link of two facts an answer says nothing.
bool contains_needles(std::string_view text, const NeedleCase& needle_case);

}  // namespace braid::cli
