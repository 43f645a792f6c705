// dialect.h -- the markup of a model: thoughts, tool calls, start of turns.
//
// Read once per loaded model from its template's output (read_*). The parser of answers, the
// grammar of calls, the mask and the prompt take all tags from it. Ends of turns
// (Tokenizer::end_ids()) end an answer inside any markup. Forms of a call:
//   xml         <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>
//               \n</tool_call>
//   hermes      <tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>
//   argkv       <tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n
//               </tool_call>, or the same without line feeds
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace braid {

struct Dialect {
  enum class Calls : uint8_t { none, xml, hermes, argkv };

  struct Tags {  // literals
    std::string_view open, close;
  };

  Calls calls = Calls::none;  // none: the template has no calls; the parser reads xml

  Tags think{"<think>", "</think>"};
  Tags call{"<tool_call>", "</tool_call>"};
  Tags function{"<function=", "</function>"};     // followed by a name and '>'
  Tags parameter{"<parameter=", "</parameter>"};  // followed by a name and '>'
  Tags key{"<arg_key>", "</arg_key>"};
  Tags value{"<arg_value>", "</arg_value>"};
  Tags result{"<tool_response>", "</tool_response>"};  // of a call, in a user's turn

  std::string turn_open = "<|im_start|>";         // of the model's turns
  std::string end_of_thought = "\n</think>\n\n";  // up to the answer
  std::string between_calls = "\n";
  bool argkv_in_lines = true;  // argkv: the name, keys and values end their lines

  // read_* leave their part unchanged if the text does not show it. A turn with a call of `name`,
  // possibly one of `other`, gives calls, between_calls, argkv_in_lines.
  void read_calls(std::string_view rendered, std::string_view name, std::string_view other);
  // A turn with the texts `thought` and `said` gives end_of_thought.
  void read_thought(std::string_view rendered, std::string_view thought, std::string_view said);
  // The template's generation prompt gives turn_open.
  void read_turn(std::string_view generation_prompt);

  // The prompt ends with an open think block, apart from blanks.
  bool opens_thought(std::string_view prompt) const;
  // The last turn has an open think block, perhaps with text in it.
  bool is_in_thought(std::string_view prompt) const;
  // The prompt ends with a closed think block, so no thought follows.
  bool closes_thought(std::string_view prompt) const;
  // A result of a call as templates write it, without blanks around it.
  bool is_result(std::string_view text) const;
  // A single tag that models write inside an answer.
  bool is_answer_tag(std::string_view text) const;
};

// For operators and clients.
std::string_view call_form_name(Dialect::Calls calls);

}  // namespace braid
