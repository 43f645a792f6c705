// request_generator.h -- generated request bodies for the storm, its test and the fuzzer.
// Most are nearly valid, to get past the first check: required members, known words, tools called
// by their names. The seed determines the body.
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

// Field names and known words, for libFuzzer's -dict=.
std::string request_dictionary();

}  // namespace braid::fuzz
