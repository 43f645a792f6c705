// client.h -- the client of a request, for limits: an API key, or an address without keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace braid::server {

struct PriorityRange {
  int32_t lowest = -100, highest = 100;
  bool operator==(const PriorityRange&) const = default;
};

// The operator's limits for a client. Unset ones come from the server's options.
struct ClientLimits {
  std::optional<int32_t> max_requests;             // concurrent, including waiting ones
  std::optional<int32_t> max_queue;                // waiting requests beyond idle slots
  std::optional<PriorityRange> priority;           // allowed in requests
  std::optional<std::vector<std::string>> models;  // loadable, evicting others

  // Unset limits are taken from `defaults`.
  ClientLimits over(const ClientLimits& defaults) const;
};

struct ApiKey {
  ApiKey(std::string text) : key(std::move(text)) {}  // NOLINT: implicit on purpose
  ApiKey(const char* text) : key(text) {}             // NOLINT: implicit on purpose

  std::string key;
  std::string name;    // for the log; may be empty
  bool admin = false;  // sees all requests in /slots
  ClientLimits limits;
};

struct ClientIdentity {
  std::string id;    // the key or the address; never logged
  std::string name;  // of the key; may be empty
  bool by_key = false;
  bool admin = false;  // also true if there are no keys
  // It may not fill the whole queue, because other clients may exist.
  bool shares_queue = false;
  ClientLimits limits;
};

// A file with one key per line. Options may follow a key. Errors name `path` and the line.
//   name=NAME  max-requests=N  max-queue=N  priority=LOW..HIGH  models=A,B (none: models=)  admin
// Empty lines and those that begin with # are ignored.
Result<std::vector<ApiKey>> parse_keys(std::string_view text, const std::string& path);

// "-10..10". Errors: invalid_argument.
Result<PriorityRange> parse_priority_range(std::string_view text);

std::vector<std::string> parse_names(std::string_view text);

// IPv4 as it is; of IPv6 the /64 network, which is one household.
std::string address_id(const std::string& address);
bool is_loopback(const std::string& address);

}  // namespace braid::server
