// read_request.h -- requests of every API: JSON to Generation. Pure functions. An error names the
// field. Unknown fields are accepted at every level; known ones are listed in request_fields.h.
#pragma once

#include <map>
#include <set>

#include "server/api/fields.h"
#include "server/api/generation.h"

namespace braid::server {

ApiResult<Generation> read_chat(const Json& body, const ApiLimits& limits);
ApiResult<Generation> read_completions(const Json& body, const ApiLimits& limits);
ApiResult<Generation> read_responses(const Json& body, const ApiLimits& limits);
// `counting`: for count_tokens, which needs no max_tokens.
ApiResult<Generation> read_messages(const Json& body, const ApiLimits& limits,
                                    bool counting = false);

// Fields with the same name in all APIs: model, stream, sampling, stops, limits, reasoning, cache.
void read_common(const Fields& fields, const ApiLimits& limits, Generation& out);

// A list of stop strings. `stop` may be a string.
void read_stops(const Fields& fields, const char* name, const ApiLimits& limits, Generation& out);

// {type, budget_tokens, display}: Anthropic's form, sent to other APIs too.
void read_thinking(const Fields& fields, Generation& out);

// loop_guard, thinking_loop_break, and vLLM's repetition_detection.
void read_loops(const Fields& fields, LoopOptions& out);

// Adds tools with distinct flat names.
class ToolList {
 public:
  ToolList(const ApiLimits& limits, Generation& out) : limits_(limits), out_(out) {}

  // `schema` null: no parameters. `identity`: the name in the API.
  void add(const Fields& tool, const Json* schema, const std::string* description,
           ToolIdentity identity);
  // A tool with free text: a function with the parameter `input`.
  void add_custom(const Fields& tool, ToolIdentity identity);

 private:
  void add(const Fields& tool, Json parameters, const std::string* description,
           ToolIdentity identity);

  std::string unique_name(const ToolIdentity& identity);

  const ApiLimits& limits_;
  Generation& out_;
  std::set<std::string> names_;
  std::map<std::string, int> next_;  // next number per truncated name
};

// False, with an error, if `name` is not a valid namespace.
bool check_namespace(const Fields& tool, const std::string& name, const ApiLimits& limits);

// The flat name of a tool's API name. Empty if unknown.
std::optional<std::string> flat_name(const Generation& generation, const std::string& name,
                                     const std::string& name_space = "");

// Adds an allowed tool. An error if it was not offered.
void choose_tool(const Fields& fields, const std::string& name, Generation& out);
// {mode, tools} of "allowed_tools". Hosted tools in it are ignored.
void choose_allowed(const Fields& allowed, Generation& out);
// "auto", "none", "required", Anthropic's "any". False for other words.
bool choose_mode(const std::string& word, Generation& out);
// Without tools, only auto and none are valid.
void check_choice(const Fields& fields, Generation& out);

// Structured output: a schema, any JSON object, or other servers' fields (guided_json,
// guided_choice, json_schema, structured_outputs). A second format is an error.
void read_schema(const Fields& format, const char* name, const ApiLimits& limits, Generation& out);
void read_any_object(const Fields& fields, const std::string& path, Generation& out);
void read_form_extensions(const Fields& fields, const ApiLimits& limits, Generation& out);

// `name`: the arguments as JSON text. Values are counted in `texts` for the whole request.
Json read_arguments(const Fields& call, const char* name, JsonBudget& texts);

// Element i of `list`, which is the member `name`.
inline Fields element_of(const Fields& fields, const Json& list, const char* name, size_t i) {
  return Fields(list[i], Fields::element(fields.path(name), i), fields.error());
}

// The placeholder text of an image or a file, or an error.
std::string media_text(const Fields& part, const char* kind, const ApiLimits& limits);

// read_opaque(): the text after the prefix of this server's opaque texts. Empty for other texts.
std::string opaque_text(std::string_view text);
std::optional<std::string> read_opaque(std::string_view opaque);

}  // namespace braid::server
