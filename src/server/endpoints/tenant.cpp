// tenant.cpp -- see tenant.h.
#include "server/endpoints/tenant.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/check.h"
#include "base/hex.h"

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
  for (unsigned i = 0; i < length; ++i) append_hex(out, digest[i], 2);
  return out;
}

}  // namespace braid::server
