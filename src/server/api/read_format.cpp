// read_format.cpp -- structured output, under all names of clients; see read_request.h.
#include <fmt/format.h>

#include "server/api/read_request.h"

namespace braid::server {
namespace {

using FormKind = OutputFormat::Kind;

// False, with an error, if a format was already set.
bool first_form(const Fields& fields, const std::string& path, const Generation& out) {
  if (out.format.kind == FormKind::text) return true;
  fields.fail(
      invalid_value(path, fmt::format("{} and {} are two forms for one answer", path,
                                      out.format.param.empty() ? "another" : out.format.param)));
  return false;
}

void read_choices(const Fields& fields, const char* name, const ApiLimits& limits,
                  Generation& out) {
  const std::string path = fields.path(name);
  const Json* list = fields.array(name, limits.max_choices);
  if (list == nullptr || !first_form(fields, path, out)) return;
  size_t bytes = 0;
  std::vector<std::string> choices;
  for (const Json& entry : *list) {
    if (!entry.is_string()) break;
    choices.push_back(entry.get<std::string>());
    bytes += choices.back().size();
  }
  if (choices.empty() || choices.size() != list->size()) {
    fields.fail(invalid_value(path, path + " must be a list of strings, and not empty"));
  } else if (bytes > limits.max_choice_bytes) {
    fields.fail(invalid_value(path, fmt::format("{} has {} bytes of text, at most {} are accepted",
                                                path, bytes, limits.max_choice_bytes)));
  } else {
    out.format = {FormKind::choice, {}, std::move(choices), false, path};
  }
}

void refuse_long_schema(const Fields& fields, const std::string& path, const ApiLimits& limits) {
  fields.fail(
      {.code = "invalid_json_schema",
       .param = path,
       .message = fmt::format("{} is longer than {} bytes", path, limits.max_schema_bytes)});
}

// A schema, or a string with its text.
void read_schema_or_text(const Fields& fields, const char* name, const ApiLimits& limits,
                         Generation& out) {
  const Json* schema = fields.find(name);
  if (schema == nullptr || !schema->is_string()) return read_schema(fields, name, limits, out);
  const std::string path = fields.path(name);
  const auto& text = schema->get_ref<const std::string&>();
  if (text.size() > limits.max_schema_bytes) return refuse_long_schema(fields, path, limits);
  JsonBudget budget = request_budget();
  const auto parsed = parse_json(text, budget);
  if (!parsed.ok() || !parsed->is_object()) {
    const std::string why = parsed.ok() ? "is not an object" : parsed.error().message;
    fields.fail(
        invalid_value(path, fmt::format("{} as a text must be a JSON schema, and {}", path, why)));
    return;
  }
  const Json holder{{name, *parsed}};
  read_schema(Fields(holder, fields.path(), fields.error()), name, limits, out);
}

void read_structured(const Fields& fields, const ApiLimits& limits, Generation& out) {
  const Json* structured = fields.object("structured_outputs");
  if (structured == nullptr) return;
  const Fields inner(*structured, fields.path("structured_outputs"), fields.error());
  for (const char* name : {"regex", "grammar", "structural_tag", "whitespace_pattern"}) {
    if (inner.has(name)) {
      inner.fail(unsupported(inner.path(name),
                             inner.path(name) + ": only json, json_object and choice are offered"));
    }
  }
  for (const char* name : {"disable_any_whitespace", "disable_additional_properties"}) {
    if (inner.boolean(name, false))
      inner.fail(unsupported(inner.path(name), inner.path(name) + ": not offered"));
  }
  const bool object = inner.boolean("json_object", false);
  if (inner.ok() && int{inner.has("json")} + int{inner.has("choice")} + int{object} != 1) {
    inner.fail(invalid_value(inner.path(),
                             inner.path() + " must have one of json, json_object and choice"));
  }
  if (inner.has("json")) read_schema_or_text(inner, "json", limits, out);
  if (inner.has("choice")) read_choices(inner, "choice", limits, out);
  if (object) read_any_object(inner, inner.path("json_object"), out);
}

}  // namespace

void read_any_object(const Fields& fields, const std::string& path, Generation& out) {
  if (fields.ok() && first_form(fields, path, out))
    out.format = {FormKind::json_object, {}, {}, false, path};
}

void read_schema(const Fields& format, const char* name, const ApiLimits& limits, Generation& out) {
  const Json* schema = format.find(name);
  const std::string path = format.path(name);
  if (schema == nullptr) {
    format.fail(missing_field(path));
  } else if (!schema->is_object() && !schema->is_boolean()) {
    format.fail(invalid_type(path, path + " must be a JSON schema"));
  } else if (schema->dump().size() > limits.max_schema_bytes) {
    refuse_long_schema(format, path, limits);
  } else if (first_form(format, path, out)) {
    out.format = {FormKind::json_schema, *schema, {}, format.boolean("strict", false), path};
  }
}

void read_form_extensions(const Fields& fields, const ApiLimits& limits, Generation& out) {
  if (fields.has("json_schema")) read_schema(fields, "json_schema", limits, out);
  if (fields.has("guided_json")) read_schema_or_text(fields, "guided_json", limits, out);
  read_choices(fields, "guided_choice", limits, out);
  read_structured(fields, limits, out);
}

}  // namespace braid::server
