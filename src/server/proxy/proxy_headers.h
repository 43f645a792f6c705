// proxy_headers.h -- what of a head passes the proxy, in both directions. Pure functions.
// What belongs to one connection stays (RFC 9110, 7.6.1), and what the proxy itself decides: keys,
// and which pages of browsers may use it.
#pragma once

#include <string>
#include <string_view>

#include "server/http/http.h"
#include "server/proxy/upstream_reader.h"
#include "server/proxy/upstream_url.h"

namespace braid::server {

struct UpstreamKey {
  std::string key;             // empty: the client's key passes, if hides_clients is false
  bool hides_clients = false;  // the client's key is one of the proxy and never passes
};

// With Host, without framing.
Headers upstream_headers(const HttpRequest& request, const UpstreamUrl& url,
                         const UpstreamKey& key);

// `more` is added. Names and values have no line breaks.
AnswerHead client_head(UpstreamHead head, const Headers& more);

// Whether `headers` declare an event stream.
bool is_event_stream(const Headers& headers);

// Whether a POST to this path has texts that a BodyRewriter may change.
bool is_rewritable(std::string_view path);

// The JSON object `body` with the value of its member "model" replaced, if that is a string. All
// other bytes stay. A body that is no object, or breaks off, is returned as it is.
std::string with_model(std::string body, std::string_view model);

}  // namespace braid::server
