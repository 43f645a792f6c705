// request_check.h -- a request body through everything that a server does with it before and after the
// engine, which is left out: reading, prompt, forms and masks, and an answer written back.
//
// Promises held: no crash; a body is accepted, or refused with one sentence and a status from 400 to 499;
// what was read stays inside the limits; what is written is JSON, whole or in events. A broken promise stops
// the program (BRAID_CHECK).
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>

#include "request_generator.h"
#include "server/models/served_model.h"

namespace braid::fuzz {

struct RequestCounts {
  uint64_t bodies = 0;
  uint64_t read = 0;      // by the reader of their API
  uint64_t answered = 0;  // rendered, encoded, masked; an answer was written
};

class RequestChecker {
 public:
  // Opens the demo model's text side.
  RequestChecker();

  // `seed` chooses what the operator has set and what the model says.
  void check(const RequestBody& body, uint64_t seed);
  // The same up to the generation that was asked for. Null: refused.
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
