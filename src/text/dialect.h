// dialect.h -- the markup that a model reads and writes: thoughts, calls of tools, where turns begin.
//
// A plain value, made once per loaded model from what its template renders (read_*). The parser of answers,
// the grammar of calls, the mask and the prompt read the same one; nobody else spells a tag. Where a turn
// ends is known by the vocabulary (Tokenizer::end_ids()): an answer ends there in the middle of any markup.
//
// All models of the supported families write the tags below; they differ in the form of a call:
//   xml         <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>
//   json        <tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>
//   key_value   <tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>, or the
//               same without any of its line feeds
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace braid {

struct Dialect {
  enum class Calls : uint8_t { none, xml, json, key_value };

  struct Tags {  // literals, which live for ever
    std::string_view open, close;
  };

  Calls calls = Calls::none;  // none: the template writes no calls; what looks like one is read as xml

  Tags think{"<think>", "</think>"};
  Tags call{"<tool_call>", "</tool_call>"};
  Tags function{"<function=", "</function>"};     // a name and '>' follow what opens
  Tags parameter{"<parameter=", "</parameter>"};  // the same
  Tags key{"<arg_key>", "</arg_key>"};
  Tags value{"<arg_value>", "</arg_value>"};
  Tags result{"<tool_response>", "</tool_response>"};  // of a call, in a user's turn

  // What differs from template to template.
  std::string turn_open = "<|im_start|>";         // of the model's turns
  std::string end_of_thought = "\n</think>\n\n";  // up to the answer
  std::string between_calls = "\n";
  bool pairs_in_lines = true;  // key_value: the name, keys and values end their lines

  // Each looks for its part in a text that the template has rendered, and leaves what was there if the text
  // does not show it. In a turn with a call of the tool `name` and perhaps one of `other`: calls,
  // between_calls, pairs_in_lines.
  void read_calls(std::string_view rendered, std::string_view name, std::string_view other);
  // In a turn of which `thought` and `said` are the texts: end_of_thought.
  void read_thought(std::string_view rendered, std::string_view thought, std::string_view said);
  // In what a template writes for an answer to begin: turn_open.
  void read_turn(std::string_view generation_prompt);

  // The prompt ends with an open think block, but for blanks.
  bool opens_thought(std::string_view prompt) const;
  // The same, and there may be a thought in the block already: the last turn decides.
  bool is_in_thought(std::string_view prompt) const;
  // The prompt ends with the end of a think block, be it an empty one: there is no thought to come.
  bool closes_thought(std::string_view prompt) const;
  // A text as templates write the result of a call, without blanks around it.
  bool is_result(std::string_view text) const;
  // A tag that stands alone and that models write in the middle of an answer.
  bool is_answer_tag(std::string_view text) const;
};

// What operators and clients are told: "xml", "hermes" (json), "argkv" (key_value), "none".
std::string_view call_form_name(Dialect::Calls calls);

}  // namespace braid
