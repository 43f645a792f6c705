// upstream_url.cpp -- see upstream_url.h.
#include "server/proxy/upstream_url.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <charconv>

namespace braid::server {
namespace {

constexpr std::string_view kVersionPath = "/v1";
constexpr size_t kMaxUrlBytes = 2048;

// Letters of a host name or an IPv4 address. "_" is in names of containers.
bool is_host_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '-' || c == '_';
}

bool is_below_version(std::string_view path) {
  return path == kVersionPath || path.starts_with("/v1/");
}

Error not_a_url(std::string_view text, std::string_view why) {
  std::string shown(text.substr(0, 200));
  // A password in it is not for the terminal.
  if (const size_t at = shown.find('@'); at != std::string::npos) shown.replace(0, at, "...");
  return {ErrorKind::invalid_argument, fmt::format("--upstream {}: {}", shown, why)};
}

}  // namespace

std::string UpstreamUrl::authority() const {
  const std::string shown = host.find(':') == std::string::npos ? host : "[" + host + "]";
  return port == (secure ? 443 : 80) ? shown : fmt::format("{}:{}", shown, port);
}

std::string UpstreamUrl::text() const {
  return (secure ? "https://" : "http://") + authority() + path;
}

std::string UpstreamUrl::target(std::string_view request_path, std::string_view query) const {
  std::string_view base = path;
  const bool beside =
      request_path == "/" || request_path == "/health" || request_path == "/metrics";
  if (base.ends_with(kVersionPath) && (is_below_version(request_path) || beside)) {
    base.remove_suffix(kVersionPath.size());
  }
  std::string out(base);
  out += request_path;
  if (!query.empty()) {
    out += '?';
    out += query;
  }
  return out;
}

Result<UpstreamUrl> parse_upstream_url(std::string_view text) {
  UpstreamUrl out;
  std::string_view rest = text;
  if (text.size() > kMaxUrlBytes) return not_a_url(text, "is too long for an address");
  if (rest.starts_with("https://")) {
    out.secure = true;
    out.port = 443;
    rest.remove_prefix(8);
  } else if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
  } else {
    return not_a_url(text, "must begin with http:// or https://");
  }
  const auto is_plain = [](char c) { return c > ' ' && c < 0x7f; };
  if (!std::all_of(text.begin(), text.end(), is_plain))
    return not_a_url(text, "has a blank or another character that no address has");
  if (rest.find_first_of("?#") != rest.npos)
    return not_a_url(text, "must end with its path, without ? and #");
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view authority = rest.substr(0, slash), path = rest.substr(slash);
  if (authority.find('@') != authority.npos)
    return not_a_url(text, "has a user or a password; give a key with --upstream-key");
  while (path.ends_with('/')) path.remove_suffix(1);
  out.path = path;

  std::string_view port;
  bool has_port = false;
  if (authority.starts_with('[')) {
    const size_t end = authority.find(']');
    boost::system::error_code error;
    if (end != authority.npos)
      boost::asio::ip::make_address_v6(std::string(authority.substr(1, end - 1)), error);
    if (end == authority.npos || error) return not_a_url(text, "has no IPv6 address in brackets");
    out.host = authority.substr(1, end - 1);
    port = authority.substr(end + 1);
    has_port = port.starts_with(':');
    if (!port.empty() && !has_port) return not_a_url(text, "has no port after its address");
    if (has_port) port.remove_prefix(1);
  } else {
    const size_t colon = authority.find(':');
    out.host = authority.substr(0, colon);
    has_port = colon != authority.npos;
    if (has_port) port = authority.substr(colon + 1);
    if (out.host.empty() || !std::all_of(out.host.begin(), out.host.end(), is_host_letter))
      return not_a_url(text, "has no host name or IP address (IPv6: in brackets)");
  }
  if (has_port) {
    const char* end = port.data() + port.size();
    const auto [stop, error] = std::from_chars(port.data(), end, out.port);
    if (port.empty() || error != std::errc() || stop != end || out.port == 0)
      return not_a_url(text, "has no port from 1 to 65535");
  }
  return out;
}

}  // namespace braid::server
