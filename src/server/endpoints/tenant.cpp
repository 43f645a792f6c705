// tenant.cpp -- see tenant.h.
#include "server/endpoints/tenant.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <iterator>

#include "base/check.h"

namespace braid::server {

std::string cache_tenant(std::string_view key) {
  // A pseudorandom function of the key: its value for a fixed text does not reveal the key.
  constexpr std::string_view kText = "braid: whose prefixes these are";
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned length = 0;
  const unsigned char* made =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(kText.data()), kText.size(), digest, &length);
  BRAID_CHECK(made != nullptr && length == 32);
  std::string out;
  for (unsigned i = 0; i < length; ++i)
    fmt::format_to(std::back_inserter(out), "{:02x}", digest[i]);
  return out;
}

}  // namespace braid::server
