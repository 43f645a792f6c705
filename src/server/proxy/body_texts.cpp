// body_texts.cpp -- see body_texts.h.
#include "server/proxy/body_texts.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/json.h"
#include "server/proxy/json_scanner.h"

namespace braid::server {
namespace {

using Role = ConversationText::Role;

bool is_string(std::string_view value) { return value.starts_with('"'); }

Role role_of(std::string_view value) {
  if (is_text(value, "system") || is_text(value, "developer")) return Role::instructions;
  if (is_text(value, "assistant")) return Role::answer;
  if (is_text(value, "tool") || is_text(value, "function")) return Role::tool;
  return Role::user;
}

class Reader {
 public:
  explicit Reader(std::string_view body) : body_(body) {}

  void messages(std::string_view array) {
    for_elements(array, [this](std::string_view message) { read_message(message); });
  }

  void text(std::string_view value, Role role) {
    const auto decoded = parse_json(value, budget_);
    if (!decoded.ok() || !decoded->is_string()) return;
    const auto begin = static_cast<size_t>(value.data() - body_.data());
    out_.push_back({role, decoded->get<std::string>(), begin, begin + value.size()});
  }

  std::vector<BodyText> take() { return std::move(out_); }

 private:
  void read_message(std::string_view message) {
    std::string_view content;
    Role role = Role::user;
    for_members(message, [&](std::string_view name, std::string_view value) {
      if (is_text(name, "role")) role = role_of(value);
      if (is_text(name, "content")) content = value;
    });
    read_content(content, role);
  }

  // A string, or a list of parts.
  void read_content(std::string_view content, Role role) {
    if (is_string(content)) return text(content, role);
    if (!content.starts_with('[')) return;
    for_elements(content, [&](std::string_view part) { read_part(part, role); });
  }

  void read_part(std::string_view part, Role role) {
    std::string_view type, words, content;
    for_members(part, [&](std::string_view name, std::string_view value) {
      if (is_text(name, "type")) type = value;
      if (is_text(name, "text")) words = value;
      if (is_text(name, "content")) content = value;
    });
    if (is_text(type, "text") && is_string(words)) text(words, role);
    // A result has no results in it.
    if (is_text(type, "tool_result") && role != Role::tool) read_content(content, Role::tool);
  }

  std::string_view body_;
  JsonBudget budget_;
  std::vector<BodyText> out_;
};

// Members that ask for more than a free answer to the prompt.
bool asks_for_form(std::string_view name, std::string_view value) {
  static constexpr std::array<std::string_view, 9> kNames = {
      "json_schema",    "guided_json",        "guided_choice", "guided_regex", "grammar",
      "guided_grammar", "structured_outputs", "suffix",        "output_format"};
  if (value == "null") return false;
  const auto is_it = [&](std::string_view each) { return is_text(name, each); };
  if (std::any_of(kNames.begin(), kNames.end(), is_it)) return true;
  if (is_text(name, "echo")) return value == "true";
  if (!is_text(name, "response_format")) return false;
  bool is_plain = false;
  for_members(value, [&](std::string_view member, std::string_view type) {
    if (is_text(member, "type")) is_plain = is_text(type, "text");
  });
  return !is_plain;
}

}  // namespace

std::optional<BodyTexts> texts_of_body(std::string_view path, std::string_view body) {
  if (!parse_json(body).ok()) return std::nullopt;
  const bool completion = path.ends_with("/completions") && !path.ends_with("/chat/completions");
  BodyTexts out;
  Reader reader(body);
  int found = 0;
  const bool is_object = for_members(body, [&](std::string_view name, std::string_view value) {
    out.has_form = out.has_form || asks_for_form(name, value);
    if (completion && is_text(name, "prompt")) {
      ++found;
      if (is_string(value)) reader.text(value, Role::user);
    } else if (!completion && is_text(name, "messages")) {
      ++found;
      reader.messages(value);
    }
  });
  out.texts = reader.take();
  if (!is_object || found != 1 || out.texts.empty()) return std::nullopt;
  return out;
}

std::string with_texts(std::string_view body, std::span<const BodyText> texts,
                       std::span<const std::optional<std::string>> changed) {
  BRAID_CHECK(texts.size() == changed.size());
  std::string out;
  size_t copied = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (!changed[i]) continue;
    BRAID_CHECK(texts[i].begin >= copied && texts[i].end <= body.size());
    out += body.substr(copied, texts[i].begin - copied);
    out +=
        nlohmann::json(*changed[i]).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    copied = texts[i].end;
  }
  out += body.substr(copied);
  return out;
}

}  // namespace braid::server
