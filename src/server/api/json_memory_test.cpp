// json_memory_test.cpp -- the computed sizes cover what the allocator provides.
#include "server/api/json_memory.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include "server/api/fields.h"

namespace braid::server {
namespace {

std::string list(size_t times, const std::string& one) {
  std::string out;
  for (size_t i = 0; i < times; ++i) out += (i > 0 ? "," : "") + one;
  return "[" + out + "]";
}

TEST(JsonMemory, CountsAreNotBelowWhatTheAllocatorGives) {
  std::string members;
  for (int i = 0; i < 5000; ++i) {
    const std::string name = "name" + std::to_string(i);
    members += (i > 0 ? ",\"" : "\"") + name + "\":\"" + name + "\"";
  }
  const std::string deep = std::string(100, '[') + std::string(100, ']');
  const std::string kValues[] = {
      "1",
      list(5000, "1"),
      list(4097, "[]"),
      list(50, deep),
      list(4097, "{}"),
      list(3000, R"({"a":1})"),
      list(3000, R"({"role":"user","content":"a text of more than a few letters"})"),
      list(5000, "\"\""),
      list(5000, "\"sixteen letters!\""),
      list(3000, "\"" + std::string(31, 'x') + "\""),
      "{" + members + "}",
      "\"" + std::string(300'000, 'x') + "\"",
      "\"" + std::string(262'145, 'x') + "\"",
      R"("\ud800 )" + std::string(100'000, 'x') + "\"",
  };
  for (const std::string& value : kValues) {
    const std::string text = "{\"a\":" + value + "}";
    const size_t before = ::mallinfo2().uordblks + ::mallinfo2().hblkhd;
    const auto json = parse_body(text);
    const size_t held = ::mallinfo2().uordblks + ::mallinfo2().hblkhd - before;
    ASSERT_TRUE(json.ok());
    const size_t counted = json_bytes(*json), bound = json_bytes_bound(text);
    // Large blocks are whole pages, and a thread's cached blocks count as held.
    EXPECT_GE(counted + counted / 32 + 16384, held) << value.substr(0, 60);
    EXPECT_GE(bound, counted) << value.substr(0, 60);
    EXPECT_LE(bound, 12 * counted + 4096)
        << value.substr(0, 60) << ": it would refuse what has room";
  }
}

TEST(JsonMemory, AGenerationCountsItsParts) {
  Generation generation;
  const size_t empty = generation_bytes(generation);
  generation.messages.push_back({.role = Message::Role::user, .text = std::string(1000, 'x')});
  generation.messages.back().calls.push_back({"id", "name", Json{{"a", std::string(2000, 'y')}}});
  EXPECT_GE(generation_bytes(generation), empty + 3000 + sizeof(Message) + sizeof(ToolCall));
  const size_t before = generation_bytes(generation);
  generation.echo_fields["instructions"] = std::string(1000, 'z');
  EXPECT_GE(generation_bytes(generation), before + 3000);
  generation.prompts.emplace_back(std::vector<int32_t>(1000));
  EXPECT_GE(generation_bytes(generation), before + 7000);
  const size_t unnamed = generation_bytes(generation);
  generation.flat_names[{std::string(100, 'n'), std::string(200, 'w')}] = std::string(300, 'f');
  EXPECT_GE(generation_bytes(generation), unnamed + 600 + 3 * sizeof(std::string));
}

}  // namespace
}  // namespace braid::server
