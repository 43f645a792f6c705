// docs.cpp -- see docs.h. `braid docs PAGE` prints generated parts of docs/reference (make docs).
#include "cli/options/docs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <memory>
#include <sstream>
#include <string_view>

#include "cli/commands.h"
#include "cli/options/man.h"
#include "cli/terminal.h"
#include "server/api/error_codes.h"
#include "server/api/request_fields.h"
#include "server/endpoints/routes.h"
#include "server/metrics.h"

namespace braid::cli {
namespace {

std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|' || c == '<' || c == '*') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

std::string option_row(const ListedOption& option) {
  std::string names;
  for (const std::string& name : option.names)
    names += fmt::format("{}`{}`", names.empty() ? "" : ", ", name);
  if (!option.value.empty()) names += " " + cell(option.value);
  std::string help = cell(option.help);
  if (!option.choices.empty() && option.value == "NAME")
    help += fmt::format(" (one of {})", fmt::join(option.choices, ", "));
  return fmt::format("| {} | {} | {} | {} | {} |\n", names, help, cell(option.fallback),
                     option.range,
                     option.environment.empty() ? "" : "`" + option.environment + "`");
}

constexpr std::array kEndpoints = {server::Endpoint::chat, server::Endpoint::completions,
                                   server::Endpoint::responses, server::Endpoint::messages};
constexpr const char* kEndpointNames[] = {"chat", "completions", "responses", "messages"};

std::string field_table(server::FieldState state) {
  struct Row {
    std::string name, reason;
    bool at[kEndpoints.size()] = {};
  };
  std::vector<Row> rows;
  for (const server::KnownField& field : server::known_fields()) {
    if (field.state != state) continue;
    if (rows.empty() || rows.back().name != field.name)
      rows.push_back({std::string(field.name), std::string(field.reason), {}});
    for (size_t i = 0; i < kEndpoints.size(); ++i)
      rows.back().at[i] |= kEndpoints[i] == field.endpoint;
  }
  const bool reasons = state == server::FieldState::refused;
  std::string out =
      fmt::format("| field | {} |{}\n|---|---|---|---|---|{}\n", fmt::join(kEndpointNames, " | "),
                  reasons ? " said to the client |" : "", reasons ? "---|" : "");
  for (const Row& row : rows) {
    out += fmt::format("| `{}` |", row.name);
    for (const bool has : row.at) out += has ? " x |" : " |";
    out += reasons ? fmt::format(" {} |\n", cell(row.reason)) : "\n";
  }
  return out;
}

}  // namespace

std::string cli_reference(const std::vector<ListedCommand>& commands) {
  std::string out;
  for (const ListedCommand& command : commands) {
    out += fmt::format("## braid {}\n\n{}.\n", command.name, command.help);
    if (!command.footer.empty()) out += fmt::format("\n```\n{}\n```\n", command.footer);
    std::string group;
    for (const ListedOption& option : command.options) {
      if (option.names.empty()) continue;
      if (option.group != group) {
        group = option.group;
        out += fmt::format(
            "\n**{}**\n\n| option | | default | range | environment |\n|---|---|---|---|---|\n",
            group);
      }
      out += option_row(option);
    }
    out += "\n";
  }
  return out;
}

std::string api_reference() {
  std::string out = "## Paths\n\n| method | path | API key |\n|---|---|---|\n";
  for (const server::Route& route : server::all_routes()) {
    using Open = server::Route::Open;
    out += fmt::format("| {} | `{}{}` | {} |\n",
                       std::string_view(route.method) == "*" ? "any" : route.method, route.path,
                       route.below ? "..." : "",
                       route.open == Open::no                  ? "needed if there are keys"
                       : route.open == Open::yes               ? "never"
                       : route.open == Open::if_public_metrics ? "needed, unless --public-metrics"
                                                               : "needed, unless --public-models");
  }
  out += "\nEach path exists with and without `/v1`.\n\n## Fields that are obeyed\n\n";
  out += field_table(server::FieldState::read);
  out +=
      "\n## Fields that are refused\n\nA request with one of these is answered with 400, unless "
      "its value "
      "asks "
      "for nothing\n(null, false, 0, an empty text or list).\n\n";
  out += field_table(server::FieldState::refused);
  out += "\n## Fields that are ignored\n\nThe answer is the same without them.\n\n";
  return out + field_table(server::FieldState::ignored);
}

std::string metrics_reference() {
  server::BackendStats stats;
  stats.expert_layers.emplace_back();  // only then they are shown
  const server::Metrics metrics;
  std::istringstream lines(metrics.render(stats, "model", "version", {}));
  std::string out = "| metric | type | |\n|---|---|---|\n", help, name;
  for (std::string line; std::getline(lines, line);) {
    const size_t cut = line.size() > 7 ? line.find(' ', 7) : line.npos;
    if (cut == line.npos) continue;
    if (line.starts_with("# HELP ")) {
      name = line.substr(7, cut - 7);
      help = line.substr(cut + 1);
    } else if (line.starts_with("# TYPE ")) {
      out += fmt::format("| `{}` | {} | {} |\n", name, line.substr(cut + 1), cell(help));
    }
  }
  return out;
}

std::string errors_reference() {
  std::string out = "| code | status | cause | what to do |\n|---|---|---|---|\n";
  for (const server::ErrorCode& each : server::error_codes())
    out += fmt::format("| `{}` | {} | {} | {} |\n", each.code, each.statuses, cell(each.cause),
                       cell(each.cure));
  return out;
}

void add_docs(CLI::App& app, int* exit_code) {
  auto* docs = app.add_subcommand("docs", "Pages that the program writes about itself");
  docs->group("");  // hidden: for packages and documentation
  docs->require_subcommand(1);
  docs->add_flag("--markdown")
      ->group("");  // the only form of these pages, accepted where it is said
  const auto add = [&](const char* name, const char* what, auto write) {
    docs->add_subcommand(name, what)->fallthrough()->callback([write, exit_code] {
      print_result("{}", write());
      *exit_code = 0;
    });
  };
  add("cli", "Commands and options", [&app] { return cli_reference(list_commands(app)); });
  add("api", "Paths and fields of requests", api_reference);
  add("metrics", "What /metrics shows", metrics_reference);
  add("errors", "Error codes of the server", errors_reference);
  add_man(*docs, app, BRAID_VERSION, exit_code);
}

}  // namespace braid::cli
