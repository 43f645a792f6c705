// proxy_headers.cpp -- see proxy_headers.h.
#include "server/proxy/proxy_headers.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "server/http/http_rules.h"
#include "server/proxy/json_scanner.h"

namespace braid::server {
namespace {

template <size_t N>
bool is_one_of(std::string_view name, const std::array<std::string_view, N>& names) {
  return std::any_of(names.begin(), names.end(),
                     [&](std::string_view each) { return same_name(name, each); });
}

bool begins_with_name(std::string_view name, std::string_view prefix) {
  return name.size() >= prefix.size() && same_name(name.substr(0, prefix.size()), prefix);
}

// Of one connection. Content-Length is written anew for each.
bool is_of_connection(std::string_view name) {
  static constexpr std::array<std::string_view, 7> kNames = {
      "Connection", "Keep-Alive",    "TE", "Trailer", "Transfer-Encoding",
      "Upgrade",    "Content-Length"};
  return is_one_of(name, kNames) || begins_with_name(name, "Proxy-");
}

// The names in all Connection headers.
std::vector<std::string_view> named_by_connection(const Headers& headers) {
  std::vector<std::string_view> out;
  for (const auto& [name, value] : headers) {
    if (!same_name(name, "Connection")) continue;
    std::string_view rest = value;
    while (!rest.empty()) {
      const size_t comma = std::min(rest.find(','), rest.size());
      std::string_view each = rest.substr(0, comma);
      rest.remove_prefix(std::min(comma + 1, rest.size()));
      while (each.starts_with(' ') || each.starts_with('\t')) each.remove_prefix(1);
      while (each.ends_with(' ') || each.ends_with('\t')) each.remove_suffix(1);
      if (!each.empty()) out.push_back(each);
    }
  }
  return out;
}

bool is_key(std::string_view name) {
  static constexpr std::array<std::string_view, 3> kNames = {"Authorization", "x-api-key",
                                                             "api-key"};
  return is_one_of(name, kNames);
}

// Access decides about pages, so the upstream need not know of them.
bool is_of_page(std::string_view name) {
  return same_name(name, "Origin") || begins_with_name(name, "Sec-Fetch-");
}

bool has_line_break(std::string_view text) {
  return text.find_first_of(std::string_view("\r\n\0", 3)) != text.npos;
}

}  // namespace

Headers upstream_headers(const HttpRequest& request, const UpstreamUrl& url,
                         const UpstreamKey& key) {
  Headers out{{"Host", url.authority()}};
  const auto named = named_by_connection(request.headers);
  for (const auto& [name, value] : request.headers) {
    const auto is_it = [&name = name](std::string_view other) { return same_name(name, other); };
    if (is_of_connection(name) || std::any_of(named.begin(), named.end(), is_it)) continue;
    if (is_it("Host") || is_it("Expect") || is_of_page(name)) continue;
    if (is_key(name) && (key.hides_clients || !key.key.empty())) continue;
    if (has_line_break(name) || has_line_break(value)) continue;
    out.emplace_back(name, value);
  }
  if (!key.key.empty()) {
    // Servers of Anthropic's API read either header, or only the one of their other API.
    out.emplace_back("Authorization", "Bearer " + key.key);
    const bool messages = request.path.find("/messages") != std::string::npos;
    if (messages || !request.header("x-api-key").empty()) out.emplace_back("x-api-key", key.key);
  }
  return out;
}

AnswerHead client_head(UpstreamHead head, const Headers& more) {
  AnswerHead out;
  out.status = head.status;
  out.length = head.length;
  const auto named = named_by_connection(head.headers);
  for (const auto& [name, value] : head.headers) {
    const auto is_it = [&name = name](std::string_view other) { return same_name(name, other); };
    if (is_of_connection(name) || std::any_of(named.begin(), named.end(), is_it)) continue;
    if (begins_with_name(name, "Access-Control-")) continue;
    if (name.empty() || has_line_break(name) || has_line_break(value)) continue;
    out.headers.emplace_back(name, value);
  }
  for (const auto& [name, value] : more) {
    if (!has_line_break(name) && !has_line_break(value)) out.headers.emplace_back(name, value);
  }
  return out;
}

bool is_event_stream(const Headers& headers) {
  return std::any_of(headers.begin(), headers.end(), [](const auto& field) {
    return same_name(field.first, "Content-Type") &&
           begins_with_name(field.second, "text/event-stream");
  });
}

bool is_rewritable(std::string_view path) {
  static constexpr std::array<std::string_view, 3> kPaths = {"/chat/completions", "/completions",
                                                             "/messages"};
  if (path.starts_with("/v1/")) path.remove_prefix(3);
  return std::find(kPaths.begin(), kPaths.end(), path) != kPaths.end();
}

std::string with_model(std::string body, std::string_view model) {
  const std::string quoted =
      nlohmann::json(model).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  struct Piece {
    size_t begin, end;
  };
  std::vector<Piece> found;
  const bool is_object = for_members(body, [&](std::string_view name, std::string_view value) {
    if (!is_text(name, "model") || !value.starts_with('"')) return;
    const auto begin = static_cast<size_t>(value.data() - body.data());
    found.push_back({begin, begin + value.size()});
  });
  if (!is_object) return body;
  std::string out;
  size_t copied = 0;
  for (const Piece& piece : found) {
    out.append(body, copied, piece.begin - copied);
    out += quoted;
    copied = piece.end;
  }
  return found.empty() ? body : out.append(body, copied);
}

}  // namespace braid::server
