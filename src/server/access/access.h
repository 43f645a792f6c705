// access.h -- who may ask: API keys, the names that requests may be addressed to, and the pages that may use
// the server from a browser. Decided by a request's head, before its body is read.
//
// A page of another origin is told apart by what browsers send and pages cannot change. Sec-Fetch-Site goes
// first; browsers that do not send it send Origin with everything that a page can make a server do. A request
// with neither comes from no page. Beside that a body must say that it is JSON, which a page of another
// origin cannot have sent without asking first; only who is no browser may leave curl's default.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/api_error.h"
#include "server/http/http.h"

namespace braid::server {

struct AccessOptions {
  std::vector<std::string> api_keys;       // empty: everybody may ask
  std::vector<std::string> cors_origins;   // empty: no page of another origin may
  std::vector<std::string> allowed_hosts;  // names a request may be addressed to, when guarded
  bool guard_host = true;                  // bound to a loopback address: refuse names that are not ours
};

// Thread-safe.
class Access {
 public:
  explicit Access(AccessOptions options);

  bool needs_key() const { return !keys()->empty(); }
  // For requests from now on.
  void set_keys(std::vector<std::string> keys);
  // Of Authorization: Bearer, x-api-key or api-key; true for everybody if there are no keys.
  bool has_key(const HttpRequest& request) const;

  // What keeps a request out, whatever it asks for.
  std::optional<ApiError> fault(const HttpRequest& request) const;
  // The header fields that let a page of an allowed origin read the answer.
  void add_headers(const HttpRequest& request, Headers& out) const;

 private:
  using Keys = std::shared_ptr<const std::vector<std::string>>;
  Keys keys() const;
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

// Same time for every key, so that timing tells nothing about it.
bool same_secret(std::string_view a, std::string_view b);

}  // namespace braid::server
