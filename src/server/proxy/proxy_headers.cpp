// proxy_headers.cpp -- see proxy_headers.h.
#include "server/proxy/proxy_headers.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "server/http/http_rules.h"

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

// A reader of JSON text that looks for the ends of values alone.
class JsonScanner {
 public:
  explicit JsonScanner(std::string_view text) : text_(text) {}

  size_t at() const { return at_; }
  bool take(char c) {
    skip_blanks();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  char next() {
    skip_blanks();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  // False if it breaks off.
  bool skip_string() {
    if (!take('"')) return false;
    for (; at_ < text_.size(); ++at_) {
      if (text_[at_] == '\\') {
        ++at_;
      } else if (text_[at_] == '"') {
        ++at_;
        return true;
      }
    }
    return false;
  }
  bool skip_value() {
    const char first = next();
    if (first == '"') return skip_string();
    size_t depth = 0;
    do {
      switch (next()) {
        case '\0':
          return false;
        case '"':
          if (!skip_string()) return false;
          break;
        case '{':
        case '[':
          ++depth;
          ++at_;
          break;
        case '}':
        case ']':
          if (depth == 0) return false;
          --depth;
          ++at_;
          break;
        default:
          if (depth == 0) {
            skip_word();
          } else {
            ++at_;
          }
      }
    } while (depth > 0);
    return true;
  }

 private:
  void skip_blanks() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string::npos)
      ++at_;
  }
  void skip_word() {
    while (at_ < text_.size() &&
           std::string_view(" \t\r\n,]}").find(text_[at_]) == std::string::npos)
      ++at_;
  }

  std::string_view text_;
  size_t at_ = 0;
};

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
  JsonScanner scan(body);
  if (!scan.take('{')) return body;
  do {
    if (scan.next() != '"') break;  // an empty object, or no JSON
    const size_t name = scan.at();
    if (!scan.skip_string()) return body;
    const bool is_model = std::string_view(body).substr(name, scan.at() - name) == "\"model\"";
    if (!scan.take(':')) return body;
    const bool is_text = scan.next() == '"';
    const size_t begin = scan.at();
    if (!scan.skip_value()) return body;
    if (is_model && is_text) found.push_back({begin, scan.at()});
  } while (scan.take(','));
  if (!scan.take('}')) return body;
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
