// body_texts.h -- the texts of a conversation in the JSON body of a request, and their replacement.
// All other bytes of the body stay as they are. Pure functions; linear in the body.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/compress/conversation_compressor.h"

namespace braid::server {

struct BodyText {
  ConversationText::Role role = ConversationText::Role::user;
  std::string text;
  size_t begin = 0, end = 0;  // of the quoted string in the body
};

struct BodyTexts {
  std::vector<BodyText> texts;  // in the order of the body
  // The answer must have a form (a schema, a grammar), or the prompt is echoed or has a suffix.
  bool has_form = false;
};

// Of a chat completion, a completion or a message of Anthropic's API. A message with several parts
// has several texts. Empty: the body is no JSON, has more than a million values, repeats
// `messages` or `prompt`, or has no texts, such as a prompt of token ids.
std::optional<BodyTexts> texts_of_body(std::string_view path, std::string_view body);

// `changed`: one for each of `texts`; empty: as it is.
std::string with_texts(std::string_view body, std::span<const BodyText> texts,
                       std::span<const std::optional<std::string>> changed);

}  // namespace braid::server
