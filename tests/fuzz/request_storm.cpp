// request_storm.cpp -- generated bodies through request_check.h, and lists in linear work.
//
//   request_storm COUNT SEED      bodies SEED, SEED + 1, ...; prints counts and bodies per second.
//   request_storm --show SEED     the body and its endpoint.
//   request_storm --dictionary    words for libFuzzer (tests/fuzz/dictionaries/request.dict).
//
// The seed determines a body. Work is measured in allocated bytes.
#include <unistd.h>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string>

#include "request_check.h"

namespace {

thread_local uint64_t allocated_bytes = 0;
volatile uint64_t current_seed = 0;

extern "C" void say_seed(int signal) {
  char text[64];
  const int length = std::snprintf(text, sizeof text, "signal %d at body %llu\n", signal,
                                   static_cast<unsigned long long>(current_seed));
  if (write(2, text, static_cast<size_t>(length)) < 0) _exit(3);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

void* operator new(size_t bytes) {
  allocated_bytes += bytes;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace braid::fuzz {
namespace {

using server::Endpoint;
using server::Json;

// Bytes allocated to read a body and make its messages. 0: refused.
uint64_t work_of(RequestChecker& checker, const RequestBody& body) {
  const uint64_t before = allocated_bytes;
  const auto generation = checker.read(body);
  if (generation == nullptr) return 0;
  const server::TemplateAbilities abilities;
  server::template_messages(
      server::normalise(generation->messages, abilities, server::LateSystem::attach), abilities);
  return allocated_bytes - before;
}

std::string repeated(size_t count, const std::function<std::string(size_t)>& one) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += (i > 0 ? "," : "") + one(i);
  return out;
}

struct List {
  const char* what;
  Endpoint endpoint;
  std::function<std::string(size_t)> body;  // with this number of elements
};

std::string tool_list(size_t count, bool chat) {
  return "\"tools\":[" +
         repeated(count,
                  [&](size_t i) {
                    const std::string inner =
                        "\"name\":\"tool_with_a_long_name_" + std::to_string(i) + "\"";
                    return chat ? "{\"function\":{" + inner + "}}"
                                : "{\"type\":\"function\"," + inner + "}";
                  }) +
         "],";
}

const std::string kUser = R"({"role":"user","content":"x"})";

std::function<std::string(size_t)> same(const char* text) {
  return [text](size_t) { return std::string(text); };
}

void add_lists_of_tools(std::vector<List>& out) {
  out.push_back({"late system messages behind a long question", Endpoint::chat, [](size_t n) {
                   return R"({"messages":[{"role":"user","content":")" + std::string(64 * n, 'q') +
                          "\"}," +
                          repeated(n, [](size_t) { return R"({"role":"system","content":"s"})"; }) +
                          "]}";
                 }});
  out.push_back(
      {"calls and tools", Endpoint::chat, [](size_t n) {
         return "{" + tool_list(std::min<size_t>(n / 4, 1024), true) + "\"messages\":[" + kUser +
                "," +
                repeated(
                    n,
                    [](size_t) {
                      return R"({"role":"assistant","tool_calls":[{"function":{"name":"tool_x"}}]})";
                    }) +
                "]}";
       }});
  out.push_back({"calls and tools of Responses", Endpoint::responses, [](size_t n) {
                   return "{" + tool_list(std::min<size_t>(n / 4, 1024), false) + "\"input\":[" +
                          kUser + "," +
                          repeated(
                              n,
                              [](size_t i) {
                                return R"({"type":"function_call","name":"tool_x","call_id":")" +
                                       std::to_string(i) + "\"}";
                              }) +
                          "]}";
                 }});
  out.push_back({"calls of one turn, and their results", Endpoint::chat, [](size_t n) {
                   n = std::min<size_t>(n, 4096);
                   return "{\"messages\":[" + kUser + R"(,{"role":"assistant","tool_calls":[)" +
                          repeated(n,
                                   [](size_t i) {
                                     return "{\"id\":\"" + std::to_string(i) +
                                            R"(","function":{"name":"f"}})";
                                   }) +
                          "]}," +
                          repeated(n,
                                   [n](size_t i) {
                                     return R"({"role":"tool","content":"r","tool_call_id":")" +
                                            std::to_string(n - 1 - i) + "\"}";
                                   }) +
                          "]}";
                 }});
  out.push_back(
      {"tools that are chosen", Endpoint::responses, [](size_t n) {
         n = std::min<size_t>(n, 1024);
         return "{" + tool_list(n, false) + R"("tool_choice":{"type":"allowed_tools","tools":[)" +
                repeated(n,
                         [](size_t i) {
                           return R"({"name":"tool_with_a_long_name_)" + std::to_string(i) + "\"}";
                         }) +
                "]},\"input\":\"hi\"}";
       }});
  out.push_back({"tools of one long namespace", Endpoint::responses, [](size_t n) {
                   n = std::min<size_t>(n, 1024);
                   return R"({"input":"hi","tools":[{"type":"namespace","name":")" +
                          std::string(127, 'n') + "\",\"tools\":[" +
                          repeated(n,
                                   [](size_t i) {
                                     return R"({"type":"function","name":"t)" + std::to_string(i) +
                                            "\"}";
                                   }) +
                          "]}]}";
                 }});
}

void add_lists_of_messages(std::vector<List>& out) {
  out.push_back({"members that nobody knows", Endpoint::chat, [](size_t n) {
                   return "{" +
                          repeated(n, [](size_t i) { return "\"x" + std::to_string(i) + "\":1"; }) +
                          ",\"messages\":[" + kUser + "]}";
                 }});
  out.push_back({"blocks", Endpoint::messages, [](size_t n) {
                   return R"({"max_tokens":9,"messages":[{"role":"user","content":[)" +
                          repeated(n, same(R"({"type":"text","text":"x"})")) + "]}]}";
                 }});
  out.push_back({"results of tools", Endpoint::messages, [](size_t n) {
                   return R"({"max_tokens":9,"messages":[{"role":"user","content":[)" +
                          repeated(
                              n,
                              [](size_t i) {
                                return R"({"type":"tool_result","content":"r","tool_use_id":")" +
                                       std::to_string(i % 7) + "\"}";
                              }) +
                          "]}]}";
                 }});
  out.push_back({"messages", Endpoint::chat, [](size_t n) {
                   return "{\"messages\":[" + repeated(n, same(kUser.c_str())) + "]}";
                 }});
  out.push_back({"system messages", Endpoint::chat, [](size_t n) {
                   return "{\"messages\":[" +
                          repeated(n, same(R"({"role":"system","content":"s"})")) + "," + kUser +
                          "]}";
                 }});
  out.push_back({"items of one turn", Endpoint::responses, [](size_t n) {
                   return "{\"input\":[" +
                          repeated(n, same(R"({"type":"reasoning","summary":[],"content":"t"})")) +
                          "]}";
                 }});
  out.push_back({"nested blocks", Endpoint::messages, [](size_t n) {
                   std::string open, close;
                   for (int i = 0; i < 50; ++i) {
                     open += R"([{"type":"search_result","title":"t","content":)";
                     close += "}]";
                   }
                   return R"({"max_tokens":9,"messages":[{"role":"user","content":)" + open + "\"" +
                          std::string(64 * n, 'x') + "\"" + close + "}]}";
                 }});
  out.push_back({"arguments", Endpoint::chat, [](size_t n) {
                   return "{\"messages\":[" + kUser +
                          R"(,{"role":"assistant","tool_calls":[{"function":{"name":"f",)" +
                          R"("arguments":"{\"a\":[)" + repeated(n, same("1")) + "]}\"}}]}]}";
                 }});
}

bool lists_are_linear(RequestChecker& checker) {
  bool fine = true;
  std::vector<List> lists;
  add_lists_of_tools(lists);
  add_lists_of_messages(lists);
  for (const List& list : lists) {
    const size_t small = 400, large = 2 * small;
    const uint64_t half = work_of(checker, {list.endpoint, false, list.body(small)});
    const uint64_t whole = work_of(checker, {list.endpoint, false, list.body(large)});
    const double growth = half == 0 ? 0 : static_cast<double>(whole) / static_cast<double>(half);
    const bool good = growth > 1 && growth < 2.5;
    std::printf("%s %-46s %9llu bytes for %zu, %9llu for %zu: %.2f\n", good ? "ok  " : "FAIL",
                list.what, static_cast<unsigned long long>(half), small,
                static_cast<unsigned long long>(whole), large, growth);
    fine = fine && good;
  }
  return fine;
}

void storm(RequestChecker& checker, uint64_t count, uint64_t seed) {
  const auto start = std::chrono::steady_clock::now();
  double worst = 0;
  uint64_t worst_seed = 0;
  for (uint64_t i = 0; i < count; ++i) {
    current_seed = seed + i;
    const RequestBody body = RequestGenerator(seed + i).body();
    const uint64_t before = allocated_bytes;
    checker.check(body, seed + i);
    const double ratio = static_cast<double>(allocated_bytes - before) /
                         static_cast<double>(body.text.size() + 4096);
    if (ratio > worst) worst = ratio, worst_seed = seed + i;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const RequestCounts& counts = checker.counts();
  std::printf(
      "%llu bodies in %.1f s, %.0f a second: %llu read, %llu answered; most allocated for a byte: "
      "%.0f (body "
      "%llu)\n",
      static_cast<unsigned long long>(counts.bodies), seconds, static_cast<double>(count) / seconds,
      static_cast<unsigned long long>(counts.read),
      static_cast<unsigned long long>(counts.answered), worst,
      static_cast<unsigned long long>(worst_seed));
}

}  // namespace
}  // namespace braid::fuzz

int main(int count, char** arguments) {
  using namespace braid::fuzz;
  const std::string first = count > 1 ? arguments[1] : "";
  if (first == "--dictionary") {
    std::fputs(request_dictionary().c_str(), stdout);
    return 0;
  }
  if (count != 3) {
    std::fputs("request_storm COUNT SEED | --show SEED | --dictionary\n", stderr);
    return 2;
  }
  const uint64_t seed = std::strtoull(arguments[2], nullptr, 10);
  if (first == "--show") {
    const RequestBody body = RequestGenerator(seed).body();
    std::printf("%s\n%s\n", braid::server::endpoint_path(body.endpoint), body.text.c_str());
    return 0;
  }
  for (const int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL}) std::signal(signal, say_seed);
  RequestChecker checker;
  const bool fine = lists_are_linear(checker);
  storm(checker, std::strtoull(first.c_str(), nullptr, 10), seed);
  return fine ? 0 : 1;
}
