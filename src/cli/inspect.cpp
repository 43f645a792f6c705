// inspect.cpp -- `braid inspect FILE`: the contents of a model file, without loading it.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "base/json.h"
#include "cli/commands.h"
#include "cli/load_model.h"
#include "cli/options/option_group.h"
#include "cli/terminal.h"
#include "engine/engine.h"
#include "gguf/block_layouts.h"
#include "gguf/gguf.h"
#include "text/unicode.h"

namespace braid::cli {

namespace {

using Json = nlohmann::ordered_json;

struct InspectFlags {
  ModelFlags model;
  std::string messages;
  std::string tokens;
  std::string tools;
  bool has_tokens = false;
  bool json = false;
  bool tensors = false;
};

template <typename T>
Json array_json(const Result<std::vector<T>>& values, size_t limit) {
  if (!values.ok()) return values.error().message;
  Json out = Json::array();
  for (size_t i = 0; i < values->size() && i < limit; ++i) {
    if constexpr (std::is_same_v<T, std::string_view>) {
      out.push_back(repaired_utf8((*values)[i], Utf8Repair::maximal_subpart));
    } else {
      out.push_back((*values)[i]);
    }
  }
  if (values->size() > limit) return {{"first", out}, {"count", values->size()}};
  return out;
}

Json value_json(const GgufFile& file, const GgufEntry& entry) {
  constexpr size_t kShown = 16;
  const GgufValue& value = entry.value;
  auto plain = [](const auto& result) -> Json {
    return result.ok() ? Json(*result) : Json(result.error().message);
  };
  if (value.is_array()) {
    switch (value.elem_type) {
      case GgufValueType::STRING:
        return array_json(file.get_strings(entry.key), kShown);
      case GgufValueType::F32:
      case GgufValueType::F64:
        return array_json(file.get_f32s(entry.key), kShown);
      case GgufValueType::I8:
      case GgufValueType::I16:
      case GgufValueType::I32:
      case GgufValueType::U8:
      case GgufValueType::U16:
        return array_json(file.get_i32s(entry.key), kShown);
      case GgufValueType::U32:
        return array_json(file.get_u32s(entry.key), kShown);
      default:
        return fmt::format("array of {} {}", value.count, gguf_value_type_name(value.elem_type));
    }
  }
  switch (value.type) {
    case GgufValueType::STRING: {
      const auto text = file.get_string(entry.key);
      return text.ok() ? Json(repaired_utf8(*text, Utf8Repair::maximal_subpart))
                       : Json(text.error().message);
    }
    case GgufValueType::BOOL:
      return plain(file.get_bool(entry.key));
    case GgufValueType::F32:
    case GgufValueType::F64:
      return plain(file.get_f32(entry.key));
    case GgufValueType::I8:
    case GgufValueType::I16:
    case GgufValueType::I32:
    case GgufValueType::I64:
      if (const auto signed_value = file.get_i32(entry.key); signed_value.ok())
        return *signed_value;
      [[fallthrough]];
    default:
      return plain(file.get_u64(entry.key));
  }
}

Json describe(const GgufFile& file, const Result<MemoryPlan>& plan) {
  Json out;
  out["file"] = file.name();
  out["gguf_version"] = file.version();
  out["file_bytes"] = file.file_bytes();
  uint64_t parameters = 0;
  for (const auto& tensor : file.tensors()) parameters += tensor.elems();
  out["parameters"] = parameters;
  for (const auto& entry : file.entries())
    out["metadata"][std::string(entry.key)] = value_json(file, entry);
  out["tensors"] = Json::array();
  for (const auto& tensor : file.tensors()) {
    Json shape = Json::array();
    for (uint32_t d = 0; d < std::max(1u, tensor.n_dims); ++d) shape.push_back(tensor.ne[d]);
    out["tensors"].push_back({{"name", tensor.name},
                              {"type", type_name(tensor.type)},
                              {"shape", shape},
                              {"bytes", tensor.data.size()}});
  }
  if (plan.ok()) {
    out["memory_plan"] = Json::array();
    for (const auto& row : plan->rows) {
      out["memory_plan"].push_back(
          {{"what", memory_use_name(row.use)}, {"bytes", row.predicted_bytes}});
    }
    out["memory_plan_context_tokens"] = plan->context_tokens;
    out["kv_token_bytes"] = plan->kv_token_bytes;
    for (const auto& [name, token_bytes] : plan->kv_formats)
      out["kv_formats"][std::string(name)] = token_bytes;
    if (plan->window_tokens > 0) {
      out["kv_window_tokens"] = plan->window_tokens;
      out["kv_token_bytes_behind_window"] = plan->kv_old_token_bytes;
    }
  } else {
    out["memory_plan_error"] = plan.error().message;
  }
  return out;
}

void print_text(const Json& info, const Result<MemoryPlan>& plan, bool tensors) {
  print_result("{}: GGUF v{}, {}, {:.1f} million parameters\n\n", info["file"].get<std::string>(),
               info["gguf_version"].get<int>(), format_bytes(info["file_bytes"].get<uint64_t>()),
               info["parameters"].get<double>() / 1e6);
  if (plan.ok()) {
    print_result("{} tokens of context\n{}\n{}\n", plan->context_tokens, plan->table(),
                 plan->format_table());
  } else {
    print_result("cannot run here: {}\n\n", plan.error().message);
  }
  for (const auto& [key, value] : info["metadata"].items()) {
    std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.size() > 100) text = text.substr(0, 100) + " ...";
    print_result("  {:<44} {}\n", key, repaired_utf8(text, Utf8Repair::maximal_subpart));
  }
  if (!tensors) {
    print_result("\n  {} tensors (--tensors lists them)\n", info["tensors"].size());
    return;
  }
  print_result("\n  {:<36} {:<8} {:>20} {:>12}\n", "tensor", "type", "shape", "size");
  for (const auto& tensor : info["tensors"]) {
    std::string shape;
    for (const auto& dim : tensor["shape"]) shape += (shape.empty() ? "" : " x ") + dim.dump();
    print_result("  {:<36} {:<8} {:>20} {:>12}\n", tensor["name"].get<std::string>(),
                 tensor["type"].get<std::string>(), shape,
                 format_bytes(tensor["bytes"].get<uint64_t>()));
  }
}

int print_tokens(const GgufFile& file, const std::string& text) {
  const auto tokenizer = make_tokenizer(file);
  if (!tokenizer.ok()) return fail(tokenizer.error());
  const auto ids = tokenizer->encode(text);
  if (!ids.ok()) return fail(ids.error());
  print_result("{}\n", Json(*ids).dump());
  return 0;
}

int print_prompt(const GgufFile& file, const InspectFlags& flags) {
  const auto tokenizer = make_tokenizer(file);
  if (!tokenizer.ok()) return fail(tokenizer.error());
  const auto chat = read_chat_template(file, *tokenizer, flags.model.chat_template);
  if (!chat.ok()) return fail(chat.error());
  auto read_json = [](const std::string& path) -> Result<Json> {
    BRAID_ASSIGN(const std::string text, read_text(path));
    auto json = parse_json(text);
    if (!json.ok()) return Error{ErrorKind::invalid_argument, path + ": " + json.error().message};
    if (!json->is_array())
      return Error{ErrorKind::invalid_argument, path + ": is not a JSON array"};
    return json;
  };
  const auto messages = read_json(flags.messages);
  if (!messages.ok()) return fail(messages.error());
  Json tools;
  if (!flags.tools.empty()) {
    auto read = read_json(flags.tools);
    if (!read.ok()) return fail(read.error());
    tools = std::move(*read);
  }
  const auto prompt = chat->render(*messages, tools);
  if (!prompt.ok()) return fail(prompt.error());
  print_result("{}", prompt->text);
  return 0;
}

int run_inspect(const InspectFlags& flags) {
  const auto file = open_model_file(flags.model.model);
  if (!file.ok()) return fail(file.error());
  if (flags.has_tokens) return print_tokens(*file, flags.tokens);
  if (!flags.messages.empty()) return print_prompt(*file, flags);
  const auto options = engine_options(flags.model);
  if (!options.ok()) return fail(options.error());
  const auto plan = Engine::plan_memory(*file, *options);
  const Json info = describe(*file, plan);
  if (flags.json) {
    print_result("{}\n", info.dump(2, ' ', false, Json::error_handler_t::replace));
  } else {
    print_text(info, plan, flags.tensors);
  }
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<InspectFlags>();
  auto* command =
      app.add_subcommand("inspect", "Memory plan and contents of a model file, without loading it");
  command->footer("  braid inspect model.gguf -c 131072 -np 2 -ctk q8_0 -ctv q8_0");
  add_model_options(
      *command, flags->model,
      kModelPart | kMemoryPart | kParallelPart | kCachePart | kDrafterPart | kTemplatePart);
  OptionGroup group(*command, "Inspect");
  group.flag("--tensors", flags->tensors, "also list all tensors");
  group.flag("--json", flags->json, "print everything as JSON");
  auto* tokens =
      group.add("--tokens", flags->tokens, "print the token IDs of this text as a JSON array");
  group
      .add("--template", flags->messages,
           "render this JSON file of messages with the chat template, and print the prompt")
      ->type_name("FILE");
  group.add("--tools", flags->tools, "with --template: JSON file of tool definitions")
      ->type_name("FILE");
  command->callback([flags, tokens, exit_code] {
    flags->has_tokens = tokens->count() > 0;
    *exit_code = run_inspect(*flags);
  });
}

}  // namespace braid::cli
