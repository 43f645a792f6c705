// prefix_hash.cpp -- see prefix_hash.h.
#include "engine/prefix/prefix_hash.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <memory>
#include <new>

#include "base/check.h"

namespace braid {
namespace {

struct FreeContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

}  // namespace

PrefixSecret random_secret() {
  PrefixSecret out;
  BRAID_CHECK(
      RAND_bytes(reinterpret_cast<unsigned char*>(out.data()), static_cast<int>(out.size())) == 1);
  return out;
}

PrefixHash seed_hash(std::string_view text, const PrefixSecret& secret) {
  PrefixHash out;
  const auto* of = reinterpret_cast<const unsigned char*>(text.data());
  auto* to = reinterpret_cast<unsigned char*>(out.words.data());
  if (HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), of, text.size(), to,
           nullptr) == nullptr)
    throw std::bad_alloc();
  return out;
}

PrefixHash chain_hash(const PrefixHash& parent, std::span<const int32_t> tokens) {
  // A reused context skips the digest lookup, which takes as long as the hash itself.
  thread_local const std::unique_ptr<EVP_MD_CTX, FreeContext> context(EVP_MD_CTX_new());
  thread_local bool known = false;
  PrefixHash out;
  known = context != nullptr &&
          EVP_DigestInit_ex(context.get(), known ? nullptr : EVP_sha256(), nullptr) == 1;
  if (!known || EVP_DigestUpdate(context.get(), parent.words.data(), sizeof parent.words) != 1 ||
      EVP_DigestUpdate(context.get(), tokens.data(), tokens.size_bytes()) != 1 ||
      EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(out.words.data()),
                         nullptr) != 1)
    throw std::bad_alloc();
  return out;
}

}  // namespace braid
