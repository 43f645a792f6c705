// access.h -- who may ask: API keys, the names that requests may be addressed to, and the pages that may use
// the server from a browser. Decided by a request's head, before its body is read.
//
// A page of another origin is told apart by what browsers send and pages cannot change. Sec-Fetch-Site goes
// first; browsers that do not send it send Origin with everything that a page can make a server do. A request
// with neither comes from no page. Beside that a body must say that it is JSON, which a page of another
// origin cannot have sent without asking first; only who is no browser may leave curl's default.
//
// DNS rebinding: a page whose own name was made to point here has this server's origin, but its requests
// carry that name. So without keys only localhost and IP addresses, which no DNS record can take over, are
// answered, and the names that the operator lists. A key does the same: such a page does not have it.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/access/client.h"
#include "server/api/api_error.h"
#include "server/http/http.h"

namespace braid::server {

struct AccessOptions {
  std::vector<ApiKey> api_keys;           // empty: everybody may ask
  ClientLimits client_limits;             // of each key, and of each address where no keys are
  std::vector<std::string> cors_origins;  // empty: no page of another origin may
  // Without keys: host names that requests may be addressed to, besides localhost and IP addresses; "*": any.
  std::vector<std::string> allowed_hosts;
};

// Thread-safe.
class Access {
 public:
  explicit Access(AccessOptions options);

  bool needs_key() const { return !keys()->empty(); }
  // For requests from now on.
  void set_keys(std::vector<ApiKey> keys);
  // Of Authorization: Bearer, x-api-key or api-key; true for everybody if there are no keys.
  bool has_key(const HttpRequest& request) const;
  // Who asks, by the key or, where no keys are, by the address. A request without a known key has no limits.
  ClientIdentity identify(const HttpRequest& request) const;

  // What keeps a request out, whatever it asks for.
  std::optional<ApiError> fault(const HttpRequest& request) const;
  // The header fields that let a page of an allowed origin read the answer.
  void add_headers(const HttpRequest& request, Headers& out) const;

 private:
  using Keys = std::shared_ptr<const std::vector<ApiKey>>;
  Keys keys() const;
  static const ApiKey* find_key(const std::vector<ApiKey>& keys, const HttpRequest& request);
  std::optional<ApiError> host_fault(const HttpRequest& request) const;
  std::optional<ApiError> origin_fault(const HttpRequest& request) const;
  bool is_allowed_origin(std::string_view origin) const;

  const AccessOptions options_;
  mutable std::mutex mutex_;
  Keys keys_;  // guarded by mutex_
};

// The key that a request brings: of Authorization: Bearer, x-api-key or api-key. Empty: none.
std::string_view presented_key(const HttpRequest& request);

// What is wrong with the type of a body, if anything. Empty types are fine.
std::optional<ApiError> content_type_fault(const HttpRequest& request);

// Whether a page of `origin` (http://host:port) came from the server that it addresses as `host`.
bool is_own_origin(std::string_view origin, std::string_view host);

// Whether the host of a Host field is an IPv4 address, or an IPv6 address in brackets. No DNS name looks so.
bool is_address(std::string_view host);

// Same time for every key, so that timing tells nothing about it.
bool same_secret(std::string_view a, std::string_view b);

}  // namespace braid::server
