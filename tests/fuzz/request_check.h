// request_check.h -- runs a request body through the server without the engine: reading, prompt,
// grammars and masks, and an answer written back.
// Checks (BRAID_CHECK): a body is accepted, or refused with one sentence and a status from 400 to
// 499; limits hold; output is JSON, whole or in events.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>

#include "request_generator.h"
#include "server/served_model.h"

namespace braid::fuzz {

struct RequestCounts {
  uint64_t bodies = 0;
  uint64_t read = 0;      // accepted by the API's reader
  uint64_t answered = 0;  // rendered, encoded, masked; an answer was written
};

class RequestChecker {
 public:
  RequestChecker();

  // `seed` chooses operator settings and model output.
  void check(const RequestBody& body, uint64_t seed);
  // Only up to the generation request. Null: refused.
  std::shared_ptr<server::Generation> read(const RequestBody& body);

  const RequestCounts& counts() const { return counts_; }

 private:
  void answer(const std::shared_ptr<server::Generation>& generation, size_t body_bytes);
  void walk(TokenMask& mask);
  std::vector<int32_t> said(const server::Generation& generation);

  std::shared_ptr<server::ServedModel> model_;
  std::mt19937_64 random_;
  RequestCounts counts_;
};

}  // namespace braid::fuzz
