// dialect_test.cpp -- what is read off a rendered text: the form of calls, and whether a thought is open.
#include "text/dialect.h"

#include <gtest/gtest.h>

namespace braid {
namespace {

using Calls = Dialect::Calls;

TEST(Dialect, TheFormOfACallIsSeenInARenderedOne) {
  EXPECT_EQ(call_form_of("<tool_call>\n<function=f>\n<parameter=a>", "f"), Calls::xml);
  EXPECT_EQ(call_form_of("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}", "f"), Calls::json);
  EXPECT_EQ(call_form_of("<tool_call>f\n<arg_key>a</arg_key>", "f"), Calls::key_value);
  EXPECT_EQ(call_form_of("{\"name\": \"f\"}", "f"), Calls::none);
  EXPECT_EQ(call_form_of("", "f"), Calls::none);
}

TEST(Dialect, APromptOpensAThoughtWithItsLastTag) {
  const Dialect dialect;
  EXPECT_TRUE(dialect.opens_thought("<|im_start|>assistant\n<think>"));
  EXPECT_TRUE(dialect.opens_thought("<|im_start|>assistant\n<think>\n \t\r\n"));
  EXPECT_FALSE(dialect.opens_thought("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_FALSE(dialect.opens_thought("<|im_start|>assistant\n<think>\nhm"));
  EXPECT_FALSE(dialect.opens_thought(" \n"));
}

TEST(Dialect, AThoughtBelongsToTheLastTurn) {
  const Dialect dialect;
  EXPECT_TRUE(dialect.is_in_thought("<|im_start|>assistant\n<think>\nhm"));
  EXPECT_FALSE(dialect.is_in_thought("<|im_start|>assistant\n<think>\nhm\n</think>\nyes"));
  EXPECT_FALSE(dialect.is_in_thought("<think>\nhm<|im_start|>assistant\nyes"));
  EXPECT_FALSE(dialect.is_in_thought("yes"));
}

TEST(Dialect, TagsInTheMiddleOfAnAnswer) {
  const Dialect dialect;
  for (const char* tag :
       {"<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_value>"}) {
    EXPECT_TRUE(dialect.is_answer_tag(tag)) << tag;
  }
  for (const char* tag : {"<function=", "</function>", "<tool_response>", "<|im_start|>", "think"}) {
    EXPECT_FALSE(dialect.is_answer_tag(tag)) << tag;
  }
}

}  // namespace
}  // namespace braid
