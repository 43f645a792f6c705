// dialect.h -- the markup that a model reads and writes: where it thinks, how it calls tools, where turns begin.
//
// A plain value, made once per loaded model from what its template renders. The parser of answers, the grammar of
// calls, the mask and the prompt read the same one; nobody else spells a tag. Where a turn ends is known by the
// vocabulary (Tokenizer::end_ids()), because an answer ends there in the middle of any markup.
//
// All models of the family write the tags below; they differ in the form of a call:
//   xml         <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>
//   json        <tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>
//   key_value   <tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>
#pragma once

#include <cstdint>
#include <string_view>

namespace braid {

struct Dialect {
  enum class Calls : uint8_t { none, xml, json, key_value };

  // Texts are literals and live for ever.
  struct Tags {
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

  std::string_view turn_open = "<|im_start|>";
  // Written for the model when it may not think any longer.
  std::string_view end_of_thought = "\n</think>\n\n";

  // The prompt ends with an open think block, but for blanks.
  bool opens_thought(std::string_view prompt) const;
  // The same, and there may be a thought in the block already: the last turn decides.
  bool is_in_thought(std::string_view prompt) const;
  // A text as templates write the result of a call, without blanks around it.
  bool is_result(std::string_view text) const;
  // A tag that stands alone and that models write in the middle of an answer.
  bool is_answer_tag(std::string_view text) const;
};

// The form in which a template has rendered a call of the tool `name`.
Dialect::Calls call_form_of(std::string_view rendered, std::string_view name);

// What operators and clients are told: "xml", "hermes" (json), "argkv" (key_value), "none".
std::string_view call_form_name(Dialect::Calls calls);

}  // namespace braid
