// request_generator.h -- bodies of requests as clients write them, and as nobody should: for the storm
// (request_storm.cpp), its test and the fuzzer.
//
// Most bodies are nearly right, so that they get past the first check: the members that an API needs, the
// words that readers know, tools that are called by their names. A body is a function of its seed.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "server/api/generation.h"

namespace braid::fuzz {

struct RequestBody {
  server::Endpoint endpoint = server::Endpoint::chat;
  bool counting = false;  // Messages: for count_tokens
  std::string text;
};

class RequestGenerator {
 public:
  explicit RequestGenerator(uint64_t seed) : random_(seed) {}

  RequestBody body();

 private:
  using Json = server::Json;
  using Endpoint = server::Endpoint;

  uint64_t below(uint64_t n) { return random_() % n; }
  bool one_in(uint64_t n) { return below(n) == 0; }

  std::string text();
  Json number();
  Json value(int depth);
  Json schema(int depth);
  Json tool_name();
  Json tools();
  Json tool_choice();
  Json part();
  Json content();
  Json chat_message();
  Json messages_turn();
  Json responses_item();
  Json call_arguments();
  Json turns();
  Json field(const std::string& name);
  void add_members(Json& object, int depth);
  void spoil(std::string& text);

  std::mt19937_64 random_;
  Endpoint endpoint_ = Endpoint::chat;
  bool wild_ = false;  // any value anywhere
};

// The fields of the table and the words that readers know, as libFuzzer's -dict= wants them.
std::string request_dictionary();

}  // namespace braid::fuzz
