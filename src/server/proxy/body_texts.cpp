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
  if (value == R"("system")" || value == R"("developer")") return Role::instructions;
  if (value == R"("assistant")") return Role::answer;
  if (value == R"("tool")" || value == R"("function")") return Role::tool;
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
      if (name == R"("role")") role = role_of(value);
      if (name == R"("content")") content = value;
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
      if (name == R"("type")") type = value;
      if (name == R"("text")") words = value;
      if (name == R"("content")") content = value;
    });
    if (type == R"("text")" && is_string(words)) text(words, role);
    if (type == R"("tool_result")") read_content(content, Role::tool);
  }

  std::string_view body_;
  JsonBudget budget_;
  std::vector<BodyText> out_;
};

// Members that ask for more than a free answer to the prompt.
bool asks_for_form(std::string_view name, std::string_view value) {
  static constexpr std::array<std::string_view, 9> kNames = {
      R"("json_schema")",        R"("guided_json")", R"("guided_choice")",
      R"("guided_regex")",       R"("grammar")",     R"("guided_grammar")",
      R"("structured_outputs")", R"("suffix")",      R"("output_format")"};
  if (value == "null") return false;
  if (std::find(kNames.begin(), kNames.end(), name) != kNames.end()) return true;
  if (name == R"("echo")") return value == "true";
  return name == R"("response_format")" && value.find(R"("text")") == std::string_view::npos;
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
    if (completion && name == R"("prompt")") {
      ++found;
      if (is_string(value)) reader.text(value, Role::user);
    } else if (!completion && name == R"("messages")") {
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
