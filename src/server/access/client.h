// client.h -- who a request is from, as far as limits go: an API key, or without keys an address.
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

// What the operator lets a client do. What is unset is as the server's own options say.
struct ClientLimits {
  std::optional<int32_t> max_requests;             // at a time, those that wait included
  std::optional<int32_t> max_queue;                // that wait, beyond idle slots
  std::optional<PriorityRange> priority;           // that a request may ask for
  std::optional<std::vector<std::string>> models;  // that may be loaded for it, which evicts another

  // These limits, and `defaults` for what they leave open.
  ClientLimits over(const ClientLimits& defaults) const;
};

struct ApiKey {
  ApiKey(std::string text) : key(std::move(text)) {}  // NOLINT: implicit on purpose
  ApiKey(const char* text) : key(text) {}             // NOLINT: implicit on purpose

  std::string key;
  std::string name;    // for the log; empty: none
  bool admin = false;  // sees everybody's requests in /slots
  ClientLimits limits;
};

struct ClientIdentity {
  std::string id;    // the key or the address: not for logs
  std::string name;  // of the key; may be empty
  bool by_key = false;
  bool admin = false;  // also everybody where no keys are
  // It may not wait in all places of the queue, as there may be other clients.
  bool shares_queue = false;
  ClientLimits limits;
};

// A file of keys, one a line. Behind a key may stand, in any order:
//   name=NAME  max-requests=N  max-queue=N  priority=LOW..HIGH  models=A,B (none: models=)  admin
// Empty lines and those that begin with # do not count. Errors name `path` and the line.
Result<std::vector<ApiKey>> parse_keys(std::string_view text, const std::string& path);

// "-10..10". Errors: invalid_argument.
Result<PriorityRange> parse_priority_range(std::string_view text);

// Names with commas between them; an empty text is no name at all.
std::vector<std::string> parse_names(std::string_view text);

// What stands for an address: IPv4 as it is, of IPv6 the network of 64 bits that one household has.
std::string address_id(const std::string& address);
bool is_loopback(const std::string& address);

}  // namespace braid::server
