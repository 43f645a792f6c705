// formats.cpp -- see formats.h.
#include "server/api/structured/formats.h"

#include <map>

namespace braid::server {

namespace {

std::string group(const std::string& inner) { return "(?:" + inner + ")"; }

// RFC 3339, without leap seconds. February 29 only in leap years.
std::string date_pattern() {
  const std::string leap =
      "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29";
  const std::string days =
      "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"
      "02-(?:0[1-9]|1[0-9]|2[0-8]))";
  return group("[0-9]{4}-" + days + "|" + leap);
}

const std::string kTime =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-"
    "5][0-9])";

// RFC 3339, appendix A: parts in order, without gaps.
std::string duration_pattern() {
  const std::string n = "[0-9]+";
  const std::string time =
      "T(?:" + n + "H(?:" + n + "M(?:" + n + "S)?)?|" + n + "M(?:" + n + "S)?|" + n + "S)";
  const std::string date =
      group(n + "Y(?:" + n + "M(?:" + n + "D)?)?|" + n + "M(?:" + n + "D)?|" + n + "D");
  return "P(?:" + n + "W|" + date + group(time) + "?|" + time + ")";
}

const std::string kLabel = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
const std::string kByte = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";

std::string ipv4_pattern() { return kByte + "(?:\\." + kByte + "){3}"; }

// RFC 4291, 2.2: eight groups, `::` for one or more. The last two may be an IPv4 address.
std::string ipv6_pattern() {
  const std::string h = "[0-9A-Fa-f]{1,4}", last = group(h + ":" + h + "|" + ipv4_pattern());
  std::string out = group(h + ":") + "{6}" + last;
  const auto add = [&](int before, const std::string& after) {
    std::string begin;
    if (before > 0)
      begin = group(group(h + ":") + "{0," + std::to_string(before - 1) + "}" + h) + "?";
    out += "|" + begin + "::" + after;
  };
  for (int after = 5; after >= 1; --after)
    add(5 - after, group(h + ":") + "{" + std::to_string(after) + "}" + last);
  add(5, last);
  add(6, h);
  add(7, "");
  return group(out);
}

std::string email_pattern() {
  const std::string atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
  return atom + "(?:\\." + atom + ")*@" + kLabel + "(?:\\." + kLabel + ")*";
}

// RFC 3986. A literal address is only checked for its characters.
const std::string kPathCharacter = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";
const std::string kHierarchy =
    "//(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@)?"
    "(?:\\[[0-9A-Fa-f:.]+\\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)"
    "(?::[0-9]*)?(?:/" +
    kPathCharacter + "*)*";
const std::string kAbsolutePath = "/(?:" + kPathCharacter + "+(?:/" + kPathCharacter + "*)*)?";
const std::string kTail =
    "(?:\\?(?:" + kPathCharacter + "|[/?])*)?(?:#(?:" + kPathCharacter + "|[/?])*)?";

std::string uri_pattern() {
  const std::string rootless = kPathCharacter + "+(?:/" + kPathCharacter + "*)*";
  return "[A-Za-z][A-Za-z0-9+.-]*:(?:" + kHierarchy + "|" + kAbsolutePath + "|" + rootless + ")?" +
         kTail;
}

std::string uri_reference_pattern() {
  const std::string first = "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})+";
  const std::string no_scheme = first + "(?:/" + kPathCharacter + "*)*";
  return group(uri_pattern() + "|" + group(kHierarchy + "|" + kAbsolutePath + "|" + no_scheme) +
               "?" + kTail);
}

const std::string kPointer = "(?:/(?:[^~/]|~[01])*)*";

std::map<std::string, Format> make_formats() {
  constexpr int64_t kMaxHostname = 253;
  const std::string hostname = kLabel + "(?:\\." + kLabel + ")*";
  const std::string hex = "[0-9A-Fa-f]";
  std::map<std::string, Format> out = {
      {"date", {date_pattern()}},
      {"time", {kTime}},
      {"date-time", {date_pattern() + "T" + kTime}},
      {"duration", {duration_pattern()}},
      {"email", {email_pattern()}},
      {"hostname", {hostname, kMaxHostname}},
      {"ipv4", {ipv4_pattern()}},
      {"ipv6", {ipv6_pattern()}},
      {"uri", {uri_pattern()}},
      {"uri-reference", {uri_reference_pattern()}},
      {"uuid", {hex + "{8}(?:-" + hex + "{4}){3}-" + hex + "{12}"}},
      {"json-pointer", {kPointer}},
      {"relative-json-pointer", {"(?:0|[1-9][0-9]*)(?:#|" + kPointer + ")"}},
      {"byte", {"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"}},
  };
  for (auto& [name, format] : out) format.pattern = "^" + format.pattern + "$";
  out["password"] = out["binary"] = {};
  return out;
}

}  // namespace

std::optional<Format> find_format(const std::string& name) {
  static const std::map<std::string, Format> kFormats = make_formats();
  const auto found = kFormats.find(name);
  return found == kFormats.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace braid::server
