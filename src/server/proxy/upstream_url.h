// upstream_url.h -- the address of the server behind the proxy, as the user writes it. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace braid::server {

struct UpstreamUrl {
  bool secure = false;  // https
  std::string host;     // a name or an address; IPv6 without brackets
  uint16_t port = 80;
  std::string
      path;  // before the paths of requests: empty, or /and/so/on without a slash at its end

  // For the Host header: without the scheme's own port, IPv6 in brackets.
  std::string authority() const;
  // For messages: http://host:port/path.
  std::string text() const;
  // The target of a request line. If `path` ends in /v1, a request's own /v1 is not doubled, and
  // /, /health and /metrics are beside it.
  std::string target(std::string_view request_path, std::string_view query) const;
};

// http://HOST[:PORT][/PATH] or https://. Errors: invalid_argument, a sentence that names `text`.
Result<UpstreamUrl> parse_upstream_url(std::string_view text);

}  // namespace braid::server
