// page.cpp -- see page.h. BRAID_PAGE is the absolute path of ui/page.html, from CMakeLists.txt.
#include "server/page.h"

#include <openssl/evp.h>

#include <array>

#include "base/check.h"

asm(R"(
  .section .rodata
  .globl braid_page_begin
  .globl braid_page_end
braid_page_begin:
  .incbin ")" BRAID_PAGE R"("
braid_page_end:
  .byte 0
  .previous
)");

extern "C" {
extern const char braid_page_begin[];
extern const char braid_page_end[];
}

namespace braid::server {

namespace {

std::string source_hash(std::string_view text) {
  std::array<unsigned char, 32> digest{};
  BRAID_CHECK(EVP_Digest(text.data(), text.size(), digest.data(), nullptr, EVP_sha256(), nullptr) ==
              1);
  std::array<unsigned char, 45> base64{};  // 44 and a zero
  EVP_EncodeBlock(base64.data(), digest.data(), static_cast<int>(digest.size()));
  return " 'sha256-" + std::string(reinterpret_cast<const char*>(base64.data())) + "'";
}

// Hashes of every <tag>...</tag> without attributes; ' 'none'' if there are none.
std::string source_hashes(std::string_view page, const std::string& tag) {
  const std::string begin = "<" + tag + ">", end = "</" + tag + ">";
  std::string out;
  for (size_t at = page.find(begin); at != page.npos; at = page.find(begin, at)) {
    at += begin.size();
    const size_t stop = page.find(end, at);
    if (stop == page.npos) break;
    out += source_hash(page.substr(at, stop - at));
  }
  return out.empty() ? " 'none'" : out;
}

}  // namespace

std::string embedded_page() { return {braid_page_begin, braid_page_end}; }

std::string page_policy(std::string_view page) {
  return "default-src 'none'; connect-src 'self'; img-src data:; script-src" +
         source_hashes(page, "script") + "; style-src" + source_hashes(page, "style") +
         "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
}

}  // namespace braid::server
