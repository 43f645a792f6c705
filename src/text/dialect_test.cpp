// dialect_test.cpp -- form of calls and open thoughts, read from rendered text.
#include "text/dialect.h"

#include <gtest/gtest.h>

namespace braid {
namespace {

using Calls = Dialect::Calls;

Dialect read_calls(std::string_view rendered) {
  Dialect dialect;
  dialect.read_calls(rendered, "f1", "g2");
  return dialect;
}

TEST(Dialect, TheFormOfACallIsSeenInARenderedOne) {
  EXPECT_EQ(read_calls("<tool_call>\n<function=f1>\n<parameter=a>").calls, Calls::xml);
  EXPECT_EQ(read_calls("<tool_call>\n{\"name\": \"f1\", \"arguments\": {}}").calls, Calls::hermes);
  EXPECT_EQ(read_calls("<tool_call>f1\n<arg_key>a</arg_key>").calls, Calls::argkv);
  EXPECT_EQ(read_calls("{\"name\": \"f1\"}").calls, Calls::none);
  EXPECT_EQ(read_calls("").calls, Calls::none);
  EXPECT_EQ(read_calls("not <arg_key>, but <tool_call>\n{\"name\": \"f1\"}").calls, Calls::hermes);
  Dialect known;
  known.calls = Calls::hermes;
  known.read_calls("no call", "f1", "g2");
  EXPECT_EQ(known.calls, Calls::hermes);
}

TEST(Dialect, TheLayoutOfCallsIsThatOfTheTemplate) {
  const Dialect lines = read_calls(
      "<assistant>\n<tool_call>f1\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</"
      "tool_call>\n<tool_call>g2\n");
  EXPECT_TRUE(lines.argkv_in_lines);
  EXPECT_EQ(lines.between_calls, "\n");
  const Dialect line = read_calls(
      "<tool_call>f1<arg_key>a</arg_key><arg_value>1</arg_value></"
      "tool_call><tool_call>g2<arg_key>");
  EXPECT_FALSE(line.argkv_in_lines);
  EXPECT_EQ(line.between_calls, "");
  const Dialect words = read_calls(
      "<tool_call>\n{\"name\": \"f1\"}\n</tool_call>\nand\n<tool_call>\n{\"name\": "
      "\"g2\"}\n</tool_call>");
  EXPECT_EQ(words.between_calls, "\n");
  EXPECT_EQ(read_calls("<tool_call>\n<function=f1>\n<function=g2>").between_calls, "\n");
}

TEST(Dialect, AThoughtEndsAsTheTemplateEndsIt) {
  const auto end = [](std::string_view rendered) {
    Dialect dialect;
    dialect.read_thought(rendered, "HM", "YES");
    return dialect.end_of_thought;
  };
  EXPECT_EQ(end("<think>\nHM\n</think>\n\nYES"), "\n</think>\n\n");
  EXPECT_EQ(end("<think>\nHM\n</think>\nYES"), "\n</think>\n");
  EXPECT_EQ(end("<think>HM</think>YES"), "</think>");
  for (const char* other :
       {"", "YES", "<think>HM", "HM YES", "HM</think> says YES", "YES</think>HM"}) {
    EXPECT_EQ(end(other), "\n</think>\n\n") << other;
  }
}

TEST(Dialect, ATurnOpensAsTheTemplateOpensIt) {
  const auto open = [](std::string_view prompt) {
    Dialect dialect;
    dialect.read_turn(prompt);
    return dialect.turn_open;
  };
  EXPECT_EQ(open("<|im_start|>assistant\n<think>\n\n</think>\n\n"), "<|im_start|>assistant");
  EXPECT_EQ(open("<assistant>\n</think>"), "<assistant>");
  EXPECT_EQ(open("<assistant><think>"), "<assistant>");
  EXPECT_EQ(open("<think>"), "<|im_start|>");
  EXPECT_EQ(open(""), "<|im_start|>");
}

TEST(Dialect, APromptOpensAThoughtWithItsLastTag) {
  const Dialect dialect;
  EXPECT_TRUE(dialect.opens_thought("<|im_start|>assistant\n<think>"));
  EXPECT_TRUE(dialect.opens_thought("<|im_start|>assistant\n<think>\n \t\r\n"));
  EXPECT_FALSE(dialect.opens_thought("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_FALSE(dialect.opens_thought("<|im_start|>assistant\n<think>\nhm"));
  EXPECT_FALSE(dialect.opens_thought(" \n"));
}

TEST(Dialect, APromptThatClosesAThoughtAsksForNone) {
  const Dialect dialect;
  EXPECT_TRUE(dialect.closes_thought("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_TRUE(dialect.closes_thought("<assistant></think>"));
  EXPECT_FALSE(dialect.closes_thought("<assistant><think>"));
  EXPECT_FALSE(dialect.closes_thought("<|im_start|>assistant\n"));
}

TEST(Dialect, AThoughtBelongsToTheLastTurn) {
  const Dialect dialect;
  EXPECT_TRUE(dialect.is_in_thought("<|im_start|>assistant\n<think>\nhm"));
  EXPECT_FALSE(dialect.is_in_thought("<|im_start|>assistant\n<think>\nhm\n</think>\nyes"));
  EXPECT_FALSE(dialect.is_in_thought("<think>\nhm<|im_start|>assistant\nyes"));
  EXPECT_FALSE(dialect.is_in_thought("yes"));
  Dialect laguna;
  laguna.turn_open = "<assistant>";
  EXPECT_FALSE(laguna.is_in_thought("<user>What is <think>?</user>\n<assistant>A tag"));
  EXPECT_TRUE(laguna.is_in_thought("<user>What is <think>?</user>\n<assistant><think>It"));
}

TEST(Dialect, TagsInTheMiddleOfAnAnswer) {
  const Dialect dialect;
  for (const char* tag :
       {"<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_value>"}) {
    EXPECT_TRUE(dialect.is_answer_tag(tag)) << tag;
  }
  for (const char* tag :
       {"<function=", "</function>", "<tool_response>", "<|im_start|>", "think"}) {
    EXPECT_FALSE(dialect.is_answer_tag(tag)) << tag;
  }
}

}  // namespace
}  // namespace braid
