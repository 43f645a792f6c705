// request_fuzz.cpp -- hostile request bodies through all APIs (request_check.h has the checks).
// The first byte chooses the reader, the second settings and model output; the rest is the body.
// Half of the mutations come from the generator, the others from libFuzzer.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "request_check.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

constexpr size_t kHead = 2;

uint8_t choice_of(const braid::fuzz::RequestBody& body) {
  return body.counting ? 4 : static_cast<uint8_t>(body.endpoint);
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  if (seed % 2 == 0 || max_size <= kHead) return LLVMFuzzerMutate(data, size, max_size);
  const braid::fuzz::RequestBody body = braid::fuzz::RequestGenerator(seed).body();
  data[0] = choice_of(body);
  data[1] = static_cast<uint8_t>(seed >> 8);
  const size_t bytes = std::min(body.text.size(), max_size - kHead);
  std::memcpy(data + kHead, body.text.data(), bytes);
  return kHead + bytes;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using braid::server::Endpoint;
  if (size < kHead || size > 1 << 16) return 0;
  static braid::fuzz::RequestChecker checker;
  braid::fuzz::RequestBody body;
  body.endpoint = static_cast<Endpoint>(std::min(data[0] % 5, 3));
  body.counting = data[0] % 5 == 4;
  body.text.assign(reinterpret_cast<const char*>(data) + kHead, size - kHead);
  checker.check(body, data[1]);
  return 0;
}
