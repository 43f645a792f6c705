// client.cpp -- see client.h.
#include "server/endpoints/client.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <set>

#include "text/blanks.h"

namespace braid::server {
namespace {

constexpr int32_t kMostCount = 1 << 20;  // requests; the command line has the same limit

std::string_view take_word(std::string_view& line) {
  line = trimmed_start(line);
  const std::string_view word = line.substr(0, line.find_first_of(kBlanks));
  line.remove_prefix(word.size());
  return word;
}

std::optional<int32_t> whole_number(std::string_view text) {
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value)
                                                                  : std::nullopt;
}

Result<int32_t> parse_count(std::string_view text, int32_t least) {
  const auto value = whole_number(text);
  if (!value || *value < least || *value > kMostCount)
    return Error{ErrorKind::invalid_argument,
                 fmt::format("\"{}\" is not a number from {} to {}", text, least, kMostCount)};
  return *value;
}

Status read_setting(std::string_view word, ApiKey& key) {
  const size_t equals = word.find('=');
  const std::string_view name = word.substr(0, equals);
  if (word == "admin") {
    key.admin = true;
    return {};
  }
  const std::string_view value = equals == std::string_view::npos ? "" : word.substr(equals + 1);
  if (equals == std::string_view::npos) {
    // Errors do not repeat the word, which may be part of a key.
  } else if (name == "name") {
    const bool fine =
        !value.empty() && value.size() <= 64 && std::all_of(value.begin(), value.end(), [](char c) {
          return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
        });
    if (!fine)
      return Error{ErrorKind::invalid_argument,
                   "a name has 1 to 64 letters, digits, '.', '_' and '-'"};
    key.name = value;
    return {};
  } else if (name == "max-requests") {
    // Without a request a key is good for nothing: its line may be deleted.
    BRAID_ASSIGN(key.limits.max_requests, parse_count(value, 1));
    return {};
  } else if (name == "max-queue") {
    BRAID_ASSIGN(key.limits.max_queue, parse_count(value, 0));
    return {};
  } else if (name == "priority") {
    BRAID_ASSIGN(key.limits.priority, parse_priority_range(value));
    return {};
  } else if (name == "models") {
    key.limits.models = parse_names(value);
    return {};
  }
  return Error{ErrorKind::invalid_argument,
               "a key can be followed by name=, max-requests=, max-queue=, priority=LOW..HIGH, "
               "models= or admin"};
}

}  // namespace

ClientLimits ClientLimits::over(const ClientLimits& defaults) const {
  ClientLimits out = *this;
  if (!out.max_requests) out.max_requests = defaults.max_requests;
  if (!out.max_queue) out.max_queue = defaults.max_queue;
  if (!out.priority) out.priority = defaults.priority;
  if (!out.models) out.models = defaults.models;
  return out;
}

Result<std::vector<ApiKey>> parse_keys(std::string_view text, const std::string& path) {
  std::vector<ApiKey> keys;
  for (size_t number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::string_view first = take_word(line);
    if (first.empty() || first.front() == '#') continue;
    ApiKey key{std::string(first)};
    std::set<std::string_view> given;
    for (std::string_view word = take_word(line); !word.empty(); word = take_word(line)) {
      const std::string_view name = word.substr(0, word.find('='));
      Status status = read_setting(word, key);
      if (status.ok() && !given.insert(name).second)
        status = Error{ErrorKind::invalid_argument, fmt::format("{} is given twice", name)};
      if (!status.ok())
        return Error{status.error().kind,
                     fmt::format("{}:{}: {}", path, number, status.error().message)};
    }
    keys.push_back(std::move(key));
  }
  // An empty file would silently disable authentication.
  if (keys.empty()) return Error{ErrorKind::invalid_argument, path + ": contains no key"};
  return keys;
}

Result<PriorityRange> parse_priority_range(std::string_view text) {
  const size_t dots = text.find("..");
  const auto lowest = whole_number(text.substr(0, dots));
  const auto highest = whole_number(dots == std::string_view::npos ? "" : text.substr(dots + 2));
  if (!lowest || !highest || *lowest < -100 || *highest > 100 || *lowest > *highest)
    return Error{
        ErrorKind::invalid_argument,
        fmt::format("\"{}\" is not a range of priorities: LOW..HIGH within -100..100", text)};
  return PriorityRange{*lowest, *highest};
}

std::vector<std::string> parse_names(std::string_view text) {
  std::vector<std::string> names;
  while (!text.empty()) {
    const std::string_view name = text.substr(0, text.find(','));
    text.remove_prefix(std::min(name.size() + 1, text.size()));
    if (!name.empty()) names.emplace_back(name);
  }
  return names;
}

std::string address_id(const std::string& address) {
  in6_addr bytes{};
  if (::inet_pton(AF_INET6, address.c_str(), &bytes) != 1) return address;
  char text[INET6_ADDRSTRLEN];
  if (IN6_IS_ADDR_V4MAPPED(&bytes)) {
    ::inet_ntop(AF_INET, &bytes.s6_addr[12], text, sizeof text);
    return text;
  }
  std::memset(&bytes.s6_addr[8], 0, 8);
  ::inet_ntop(AF_INET6, &bytes, text, sizeof text);
  return text;
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1" || address.starts_with("::ffff:127.");
}

}  // namespace braid::server
