// access.h -- which requests are allowed: API keys, host names, browser origins. Decided by the
// request's head, before its body is read.
// Cross-origin pages: recognized by Sec-Fetch-Site, or by Origin in browsers without it; pages
// cannot change either. A request with neither is not from a page. Bodies must also be declared as
// JSON, which needs a CORS preflight. Only clients that are not browsers may send curl's default
// type.
// DNS rebinding: a page whose host name resolves to this server has this server's origin, but sends
// that host name. So without keys, only localhost, IP addresses (DNS cannot take them over) and the
// operator's names are accepted. With keys this is not needed: such a page has no key.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/api_error.h"
#include "server/endpoints/client.h"
#include "server/http/http.h"

namespace braid::server {

struct AccessOptions {
  std::vector<ApiKey> api_keys;           // empty: no key is needed
  ClientLimits client_limits;             // of each key, or of each address if there are no keys
  std::vector<std::string> cors_origins;  // empty: no cross-origin page is allowed
  // Without keys: accepted host names besides localhost and IP addresses; "*" accepts any.
  std::vector<std::string> allowed_hosts;
};

// Thread-safe.
class Access {
 public:
  explicit Access(AccessOptions options);

  bool needs_key() const { return !keys()->empty(); }
  void set_keys(std::vector<ApiKey> keys);
  // From Authorization: Bearer, x-api-key or api-key. Always true if there are no keys.
  bool has_key(const HttpRequest& request) const;
  // By key, or by address without keys. A request without a known key has no limits.
  ClientIdentity identify(const HttpRequest& request) const;

  std::optional<ApiError> fault(const HttpRequest& request) const;
  // Adds the CORS fields for pages of allowed origins.
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

// From Authorization: Bearer, x-api-key or api-key. Empty if absent.
std::string_view presented_key(const HttpRequest& request);

// An empty type is allowed.
std::optional<ApiError> content_type_fault(const HttpRequest& request);

// Whether `origin` (http://host:port) is the origin of the server addressed as `host`.
bool is_own_origin(std::string_view origin, std::string_view host);

// An IPv4 address, or IPv6 in brackets. DNS names never have this form.
bool is_address(std::string_view host);

// Takes the same time for every key.
bool same_secret(std::string_view a, std::string_view b);

}  // namespace braid::server
