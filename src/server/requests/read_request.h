// read_request.h -- requests of every API: JSON to Generation. Pure functions.
//
// The four readers differ in how a conversation, tools and formats are written; what they share is below
// them. An error names the field. Fields that nobody knows are accepted at every level; what becomes of those
// that are known, here or elsewhere, is the table in request_fields.h.
#pragma once

#include <map>
#include <set>

#include "server/api/fields.h"
#include "server/api/generation.h"

namespace braid::server {

ApiResult<Generation> read_chat(const Json& body, const ApiLimits& limits);
ApiResult<Generation> read_completions(const Json& body, const ApiLimits& limits);
ApiResult<Generation> read_responses(const Json& body, const ApiLimits& limits);
// `counting`: for count_tokens, where max_tokens is not needed.
ApiResult<Generation> read_messages(const Json& body, const ApiLimits& limits, bool counting = false);

// ---- Shared by the readers -------------------------------------------------------------------------------

// model, stream, sampling, stops, limits, reasoning, cache: what all APIs call the same or accept as
// extension.
void read_common(const Fields& fields, const ApiLimits& limits, Generation& out);

// A list of stop strings; `stop` may be one.
void read_stops(const Fields& fields, const char* name, const ApiLimits& limits, Generation& out);

// {type, budget_tokens, display}: Anthropic's form, which others send too.
void read_thinking(const Fields& fields, Generation& out);

// What becomes of loops: loop_guard, thinking_loop_break, and vLLM's repetition_detection.
void read_loops(const Fields& fields, LoopOptions& out);

// Adds tools and keeps their names apart.
class ToolList {
 public:
  ToolList(const ApiLimits& limits, Generation& out) : limits_(limits), out_(out) {}

  // `schema` null: no parameters. `identity`: what the tool is called on the wire.
  void add(const Fields& tool, const Json* schema, const std::string* description, ToolIdentity identity);
  // A tool that takes free text: a function with the one parameter `input`.
  void add_custom(const Fields& tool, ToolIdentity identity);

 private:
  void add(const Fields& tool, Json parameters, const std::string* description, ToolIdentity identity);

  std::string unique_name(const ToolIdentity& identity);

  const ApiLimits& limits_;
  Generation& out_;
  std::set<std::string> names_;
  std::map<std::string, int> next_;  // what tells apart the tools of one long name: the number to try next
};

// Whether this can be the name of a namespace of tools; else an error.
bool check_namespace(const Fields& tool, const std::string& name, const ApiLimits& limits);

// The flat name of a tool that is called `name` (and `name_space`) on the wire. Empty: there is none.
std::optional<std::string> flat_name(const Generation& generation, const std::string& name,
                                     const std::string& name_space = "");

// Adds an admissible tool; errors when it was not offered.
void choose_tool(const Fields& fields, const std::string& name, Generation& out);
// {mode, tools} of "allowed_tools". Hosted tools in it do not count.
void choose_allowed(const Fields& allowed, Generation& out);
// "auto", "none", "required" (and Anthropic's "any"). False: none of them.
bool choose_mode(const std::string& word, Generation& out);
// No tools: only auto and none make sense.
void check_choice(const Fields& fields, Generation& out);

// The form of the answer: a schema, any JSON object, and what other servers call forms (guided_json,
// guided_choice, json_schema, structured_outputs). A second form is an error.
void read_schema(const Fields& format, const char* name, const ApiLimits& limits, Generation& out);
void read_any_object(const Fields& fields, const std::string& path, Generation& out);
void read_form_extensions(const Fields& fields, const ApiLimits& limits, Generation& out);

// The JSON text of a call's arguments, the member `name` of the call. Values are counted in `texts`, the budget
// of all such texts of a request; beyond it is an error.
Json read_arguments(const Fields& call, const char* name, JsonBudget& texts);

// Element i of the member `name`, which is this list.
inline Fields element_of(const Fields& fields, const Json& list, const char* name, size_t i) {
  return Fields(list[i], Fields::element(fields.path(name), i), fields.error());
}

// What stands for an image or a file in the text, or an error.
std::string media_text(const Fields& part, const char* kind, const ApiLimits& limits);

// Text after the prefix that marks our own opaque texts; empty: not one of ours.
std::string opaque_text(std::string_view text);
std::optional<std::string> read_opaque(std::string_view opaque);

}  // namespace braid::server
