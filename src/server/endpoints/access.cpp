// access.cpp -- see access.h.
#include "server/endpoints/access.h"

#include <algorithm>

#include "server/http/http_rules.h"
#include "text/blanks.h"

namespace braid::server {
namespace {

std::string_view host_name(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find(':'));
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string_view without_suffix(std::string_view text, std::string_view suffix) {
  return text.ends_with(suffix) ? text.substr(0, text.size() - suffix.size()) : text;
}

ApiError forbidden(std::string code, std::string message) {
  return {.status = 403,
          .type = "permission_error",
          .code = std::move(code),
          .message = std::move(message)};
}

}  // namespace

bool is_address(std::string_view host) {
  if (host.starts_with('[')) return true;
  return !host.empty() && host.find_first_not_of("0123456789.") == std::string_view::npos;
}

bool same_secret(std::string_view a, std::string_view b) {
  // Reads every byte of `b`, even if the lengths differ.
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < b.size(); ++i) {
    const unsigned char other = a.empty() ? 0 : static_cast<unsigned char>(a[i % a.size()]);
    difference |= static_cast<unsigned>(static_cast<unsigned char>(b[i]) ^ other);
  }
  return difference == 0;
}

bool is_own_origin(std::string_view origin, std::string_view host) {
  // A proxy may terminate TLS, so both schemes are accepted.
  for (const auto& [scheme, port] : {std::pair{"http://", ":80"}, std::pair{"https://", ":443"}}) {
    if (!origin.starts_with(scheme)) continue;
    origin.remove_prefix(std::string_view(scheme).size());
    return !origin.empty() && same_name(without_suffix(origin, port), without_suffix(host, port));
  }
  return false;
}

std::optional<ApiError> content_type_fault(const HttpRequest& request) {
  const std::string_view whole = request.header("Content-Type");
  const std::string_view type = trimmed_end(whole.substr(0, whole.find(';')));
  const std::string name = lower(type);
  if (name.empty() || name == "application/json" ||
      (name.starts_with("application/") && name.ends_with("+json"))) {
    return std::nullopt;
  }
  // curl -d sends this type by default. A browser sends it for a form.
  const auto from_browser = [](const auto& field) {
    return same_name(field.first, "Origin") || same_name(field.first, "Referer") ||
           lower(field.first).starts_with("sec-fetch-");
  };
  if (name == "application/x-www-form-urlencoded" &&
      std::none_of(request.headers.begin(), request.headers.end(), from_browser)) {
    return std::nullopt;
  }
  return ApiError{
      .status = 415,
      .code = "unsupported_media_type",
      .message = "the Content-Type must be application/json, not " + name.substr(0, 100)};
}

std::string_view presented_key(const HttpRequest& request) {
  std::string_view given = request.header("Authorization");
  if (given.empty()) {
    given = request.header("x-api-key");
    return given.empty() ? request.header("api-key") : given;
  }
  if (given.size() < 7 || lower(given.substr(0, 7)) != "bearer ") return {};
  return given.substr(7);
}

Access::Access(AccessOptions options)
    : options_(std::move(options)),
      keys_(std::make_shared<const std::vector<ApiKey>>(options_.api_keys)) {}

Access::Keys Access::keys() const {
  const std::lock_guard lock(mutex_);
  return keys_;
}

void Access::set_keys(std::vector<ApiKey> keys) {
  auto fresh = std::make_shared<const std::vector<ApiKey>>(std::move(keys));
  const std::lock_guard lock(mutex_);
  keys_.swap(fresh);
}

// Compares with every key, for constant time.
const ApiKey* Access::find_key(const std::vector<ApiKey>& keys, const HttpRequest& request) {
  const std::string_view given = presented_key(request);
  if (given.empty()) return nullptr;
  const ApiKey* found = nullptr;
  for (const ApiKey& key : keys) {
    if (same_secret(given, key.key)) found = &key;
  }
  return found;
}

bool Access::has_key(const HttpRequest& request) const {
  const Keys known = keys();
  return known->empty() || find_key(*known, request) != nullptr;
}

ClientIdentity Access::identify(const HttpRequest& request) const {
  const Keys known = keys();
  ClientIdentity out;
  if (known->empty()) {
    out.id = address_id(request.remote);
    out.admin = true;
    // A local program may be a proxy for many clients.
    out.shares_queue = !is_loopback(request.remote);
    out.limits = options_.client_limits;
  } else if (const ApiKey* key = find_key(*known, request)) {
    out.id = key->key;
    out.name = key->name;
    out.by_key = true;
    out.admin = key->admin;
    out.shares_queue = known->size() > 1;
    out.limits = key->limits.over(options_.client_limits);
  }
  return out;
}

std::optional<ApiError> Access::fault(const HttpRequest& request) const {
  if (auto fault = host_fault(request)) return fault;
  return origin_fault(request);
}

std::optional<ApiError> Access::host_fault(const HttpRequest& request) const {
  if (needs_key()) return std::nullopt;
  const std::string host = lower(host_name(request.header("Host")));
  if (host.empty() || is_address(host) || host == "localhost") return std::nullopt;
  for (const std::string& allowed : options_.allowed_hosts) {
    if (allowed == "*" || lower(allowed) == host) return std::nullopt;
  }
  const std::string shown = host.substr(0, 256);
  return forbidden("host_not_allowed",
                   "the host name " + shown +
                       " is not one of this server's: start it with --allowed-host " + shown +
                       ", or with --api-key");
}

bool Access::is_allowed_origin(std::string_view origin) const {
  return !origin.empty() && std::any_of(options_.cors_origins.begin(), options_.cors_origins.end(),
                                        [&](const std::string& allowed) {
                                          return allowed == "*" || allowed == origin;
                                        });
}

std::optional<ApiError> Access::origin_fault(const HttpRequest& request) const {
  const std::string_view origin = request.header("Origin"), site = request.header("Sec-Fetch-Site");
  if (is_allowed_origin(origin)) return std::nullopt;
  // "none": the user typed the address.
  const bool own = !site.empty()     ? same_name(site, "same-origin") || same_name(site, "none")
                   : !origin.empty() ? is_own_origin(origin, request.header("Host"))
                                     : true;
  if (own) return std::nullopt;
  const bool reads = request.method == "GET" || request.method == "HEAD";
  if (reads && same_name(request.header("Sec-Fetch-Mode"), "navigate")) return std::nullopt;
  const std::string page = origin.empty() ? "another site" : std::string(origin.substr(0, 256));
  return forbidden("cross_origin", "pages of " + page + " may not use this server (--cors-origin)");
}

void Access::add_headers(const HttpRequest& request, Headers& out) const {
  const std::string_view origin = request.header("Origin");
  if (!is_allowed_origin(origin)) return;
  const bool any =
      !needs_key() && std::find(options_.cors_origins.begin(), options_.cors_origins.end(), "*") !=
                          options_.cors_origins.end();
  out.emplace_back("Access-Control-Allow-Origin", any ? "*" : std::string(origin));
  if (!any) out.emplace_back("Vary", "Origin");
  out.emplace_back("Access-Control-Expose-Headers", "x-request-id, request-id, retry-after");
  if (request.method != "OPTIONS") return;
  const std::string_view wanted = request.header("Access-Control-Request-Headers");
  out.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS, HEAD");
  out.emplace_back("Access-Control-Allow-Headers", wanted.empty() ? "*" : std::string(wanted));
  out.emplace_back("Access-Control-Max-Age", "600");
}

}  // namespace braid::server
