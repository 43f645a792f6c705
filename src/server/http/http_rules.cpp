// http_rules.cpp -- see http_rules.h.
#include "server/http/http_rules.h"

#include <algorithm>

namespace braid::server {

const char* status_text(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 301:
      return "Moved Permanently";
    case 302:
      return "Found";
    case 304:
      return "Not Modified";
    case 307:
      return "Temporary Redirect";
    case 308:
      return "Permanent Redirect";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Payload Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 422:
      return "Unprocessable Content";
    case 424:
      return "Failed Dependency";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 529:
      return "Overloaded";
    default:
      return "Answer";
  }
}

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (same_name(key, name)) return value;
  }
  return {};
}

bool same_name(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) {
           return std::tolower(static_cast<unsigned char>(x)) ==
                  std::tolower(static_cast<unsigned char>(y));
         });
}

std::string random_id(std::string_view prefix, std::mt19937_64& random) {
  static constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  std::string out(prefix);
  for (int i = 0; i < 24; ++i) out += kLetters[random() % kLetters.size()];
  return out;
}

std::string random_request_id() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return random_id("req_", random);
}

std::string request_id(std::string_view given) {
  const bool usable =
      !given.empty() && given.size() <= 128 &&
      std::all_of(given.begin(), given.end(), [](char c) { return c > ' ' && c < 0x7f; });
  return usable ? std::string(given) : random_request_id();
}

std::string normal_path(std::string_view target) {
  std::string path;
  for (const char c : target) {
    if (c == '/' && path.ends_with('/')) continue;
    path += c;
  }
  if (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path.empty() ? "/" : path;
}

std::string_view without_authority(std::string_view target) {
  const size_t scheme = target.find("://");
  if (scheme == std::string_view::npos || target.find_first_of("/?#") < scheme) return target;
  return target.substr(std::min(target.find_first_of("/?#", scheme + 3), target.size()));
}

size_t count_fields(std::string_view block) {
  const auto lines = std::count(block.begin(), block.end(), '\n');
  return lines > 2 ? static_cast<size_t>(lines - 2) : 0;
}

bool has_folded_line(std::string_view block) {
  return block.find("\r\n ") != std::string_view::npos ||
         block.find("\r\n\t") != std::string_view::npos;
}

std::string framing_fault(const Headers& headers, unsigned version) {
  int hosts = 0, lengths = 0, codings = 0;
  for (const auto& [name, value] : headers) {
    if (same_name(name, "Host")) ++hosts;
    if (same_name(name, "Content-Length")) {
      ++lengths;
      if (value.empty() ||
          !std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; })) {
        return "Content-Length is not a number";
      }
    }
    if (same_name(name, "Transfer-Encoding")) {
      ++codings;
      if (!same_name(value, "chunked")) return "Transfer-Encoding must be chunked";
      if (version < 11) return "HTTP/1.0 has no Transfer-Encoding";
    }
  }
  if (version >= 11 && hosts != 1) return "one Host header is needed";
  if (lengths > 1 || codings > 1 || (lengths > 0 && codings > 0)) {
    return "Content-Length and Transfer-Encoding contradict each other";
  }
  return {};
}

}  // namespace braid::server
