// answer_mask_test.cpp -- tokens that a mask allows while an answer grows.
#include "server/api/structured/answer_mask.h"

#include <gtest/gtest.h>

#include <set>

#include "server/api/read_request.h"
#include "server/api/structured/schema_grammar.h"
#include "server/test_server_test.h"

namespace braid::server {
namespace {

class Mask {
 public:
  explicit Mask(MaskRules rules) : model(demo_served_model(nullptr)) {
    rules.tokenizer = model->tokenizer;
    rules.end_ids = model->tokenizer->end_ids();
    rules.think_close = *model->tokenizer->find("</think>");
    mask = make_mask(std::make_shared<MaskRules>(std::move(rules)));
  }
  std::vector<int32_t> allowed() const {
    std::vector<uint64_t> bits((static_cast<size_t>(model->tokenizer->size()) + 63) / 64);
    mask->allowed(bits);
    std::vector<int32_t> ids;
    for (int32_t id = 0; id < model->tokenizer->size(); ++id) {
      if ((bits[static_cast<size_t>(id) / 64] >> (id % 64) & 1) != 0) ids.push_back(id);
    }
    return ids;
  }
  std::vector<int32_t> ids(const std::string& text) const {
    return model->tokenizer->encode(text, {.add_special = false, .parse_special = true}).value();
  }
  std::shared_ptr<ServedModel> model;
  std::unique_ptr<TokenMask> mask;
};

TEST(AnswerMask, ABudgetClosesTheThoughtTokenByToken) {
  const auto tokenizer = demo_served_model(nullptr)->tokenizer;
  MaskRules rules;
  rules.starts_in_thought = true;
  rules.thought_budget = 3;
  rules.closing =
      tokenizer->encode("\n</think>\n\n", {.add_special = false, .parse_special = true}).value();
  const size_t closing = rules.closing.size();
  Mask mask(rules);
  const int32_t word = mask.ids("x")[0];
  for (int i = 0; i < 3; ++i) {
    EXPECT_GT(mask.allowed().size(), 1000u);
    mask.mask->advance(word);
  }
  for (size_t i = 0; i < closing; ++i) {
    ASSERT_EQ(mask.allowed(), std::vector<int32_t>{rules.closing[i]});
    mask.mask->advance(rules.closing[i]);
  }
  EXPECT_GT(mask.allowed().size(), 1000u);
  mask.mask->rewind(static_cast<int32_t>(closing));
  EXPECT_EQ(mask.allowed(), std::vector<int32_t>{rules.closing[0]});
  mask.mask->rewind(1);
  EXPECT_GT(mask.allowed().size(), 1000u);
}

// The loop is found at the same token despite rewinding.
TEST(AnswerMask, ALoopClosesTheThought) {
  const auto model = demo_served_model(nullptr);
  const int32_t open = *model->tokenizer->find("<think>");
  const auto closing =
      model->tokenizer->encode("\n</think>\n\n", {.add_special = false, .parse_special = true})
          .value();
  MaskRules rules;
  rules.starts_in_thought = true;
  rules.closing = closing;
  rules.think_open = open;
  rules.forbidden_later = {open};
  rules.tokenizer = model->tokenizer;
  rules.think_close = *model->tokenizer->find("</think>");
  rules.thought_loops = LoopRule{.max_period = 8,
                                 .copies = 4,
                                 .covered_tokens = 16,
                                 .plain_covered_tokens = 16,
                                 .every_tokens = 4};
  const auto end = std::make_shared<ThoughtEndCell>(ThoughtEnd::none);
  const auto mask = make_mask(std::make_shared<MaskRules>(rules), end);
  const auto forced = [&] { return !mask->all_but().has_value(); };
  int32_t other = 300;
  for (int i = 0; i < 10; ++i) mask->advance(other++);
  for (int i = 0; i < 18; ++i) {  // tokens 10 to 27; 16 are covered at length 28
    // A rejected draft: another token, or the first of the closing text.
    mask->advance(other++);
    mask->advance(77);
    mask->rewind(2);
    EXPECT_FALSE(forced()) << i;
    mask->advance(400 + i % 4);
  }
  EXPECT_TRUE(forced());
  EXPECT_EQ(end->load(), ThoughtEnd::none) << "not closed yet";
  mask->rewind(1);
  EXPECT_FALSE(forced());
  mask->advance(400 + 17 % 4);
  for (const int32_t id : closing) {
    EXPECT_TRUE(forced());
    mask->advance(id);
  }
  EXPECT_EQ(end->load(), ThoughtEnd::loop);
  EXPECT_EQ(mask->all_but().value().size(), 1u) << "<think>, although nothing was said yet";
  mask->rewind(1);
  EXPECT_EQ(end->load(), ThoughtEnd::loop) << "its closing text is on the way";
  mask->rewind(static_cast<int32_t>(closing.size()) - 1);
  EXPECT_EQ(end->load(), ThoughtEnd::none);
}

// Calls in a thought are skipped, and text after them is examined separately.
TEST(AnswerMask, ACallInAThoughtIsNoLoop) {
  const auto model = demo_served_model(nullptr);
  MaskRules rules;
  rules.starts_in_thought = true;
  rules.closing = {65};
  rules.tokenizer = model->tokenizer;
  rules.think_close = *model->tokenizer->find("</think>");
  rules.call_open = *model->tokenizer->find("<tool_call>");
  rules.call_close = *model->tokenizer->find("</tool_call>");
  rules.thought_loops = LoopRule{.max_period = 8,
                                 .copies = 2,
                                 .covered_tokens = 16,
                                 .plain_covered_tokens = 16,
                                 .every_tokens = 1};
  const auto mask = make_mask(std::make_shared<MaskRules>(rules));
  const auto say = [&](int count) {
    for (int i = 0; i < count; ++i) {
      if (!mask->all_but()) return i;
      mask->advance(500);
    }
    return count;
  };
  EXPECT_EQ(say(15), 15);
  mask->advance(rules.call_open);
  EXPECT_EQ(say(1000), 1000);
  mask->advance(rules.call_close);
  EXPECT_EQ(say(1000), 16);
  mask->rewind(16 + 1 + 1000 + 1);  // before the call
  EXPECT_EQ(say(20), 1) << "the sixteenth before the call";
}

TEST(AnswerMask, AFormHoldsBehindTheThoughtOnly) {
  MaskRules rules;
  rules.starts_in_thought = true;
  const auto grammar = schema_to_grammar(Json::parse(R"({"type":"integer","const":7})"),
                                         /*strict=*/false, *demo_served_model(nullptr)->grammars);
  ASSERT_TRUE(grammar.ok()) << grammar.error().message;
  rules.grammar = *grammar;
  Mask mask(rules);
  for (const int32_t id : mask.ids("free {thought}\n</think>\n\n")) mask.mask->advance(id);
  for (const int32_t id : mask.allowed()) {
    const auto piece = mask.model->tokenizer->piece(id);
    EXPECT_TRUE(piece.find_first_not_of(" \n7") == std::string_view::npos) << piece;
  }
  mask.mask->advance(mask.ids("7")[0]);
  EXPECT_EQ(mask.allowed(), mask.model->tokenizer->end_ids());
}

TEST(AnswerMask, ThoughtsAreNotClosedTwiceNorOpenedInTheMiddle) {
  const auto model = demo_served_model(nullptr);
  const int32_t open = *model->tokenizer->find("<think>"),
                close = *model->tokenizer->find("</think>");
  Generation generation;
  generation.endpoint = Endpoint::chat;
  const auto masks = MaskFactory::create(generation, *model, {}, true, true);
  ASSERT_TRUE(masks.ok());
  const auto mask = masks->make(-1);
  ASSERT_NE(mask, nullptr);
  const auto closed = [&] {
    std::vector<uint64_t> bits((static_cast<size_t>(model->tokenizer->size()) + 63) / 64);
    mask->allowed(bits);
    std::set<int32_t> out;
    for (int32_t id = 0; id < model->tokenizer->size(); ++id)
      if ((bits[static_cast<size_t>(id) / 64] >> (id % 64) & 1) == 0) out.insert(id);
    const auto few = mask->all_but();
    EXPECT_TRUE(few && std::set<int32_t>(few->begin(), few->end()) == out);
    return out;
  };
  EXPECT_EQ(closed(), std::set<int32_t>{});  // in the thought
  mask->advance(close);
  EXPECT_EQ(closed(), std::set<int32_t>{close});
  mask->advance(model->tokenizer->encode("x", {}).value()[0]);
  EXPECT_EQ(closed(), (std::set<int32_t>{open, close}));
  mask->rewind(2);
  EXPECT_EQ(closed(), std::set<int32_t>{});
  generation.endpoint = Endpoint::completions;
  EXPECT_EQ(MaskFactory::create(generation, *model, {}, false, false)->make(-1), nullptr);
}

TEST(AnswerMask, WithoutThinkingNoThoughtIsOpenedAndOneInLettersCanBeClosed) {
  const auto model = demo_served_model(nullptr);
  const int32_t open = *model->tokenizer->find("<think>"),
                close = *model->tokenizer->find("</think>");
  Generation generation;
  generation.endpoint = Endpoint::chat;
  for (const bool thinking : {false, true}) {
    const auto closed = [&](const std::string& said) {
      const auto mask = MaskFactory::create(generation, *model, {}, false, thinking)->make(-1);
      for (const char c : said) mask->advance(*model->tokenizer->find(std::string(1, c)));
      const auto few = mask->all_but();
      return few ? std::set<int32_t>(few->begin(), few->end()) : std::set<int32_t>{-1};
    };
    EXPECT_EQ(closed(""), (thinking ? std::set<int32_t>{close} : std::set<int32_t>{open, close}));
    EXPECT_EQ(closed("<think"), (std::set<int32_t>{open, close}));
    EXPECT_EQ(closed("<think>"), std::set<int32_t>{}) << "a thought is open";
    EXPECT_EQ(closed("<think>hm"), std::set<int32_t>{});
    EXPECT_EQ(closed("x<think>"), (std::set<int32_t>{open, close})) << "text";
    EXPECT_EQ(closed("<thinx>"), (std::set<int32_t>{open, close}));
  }
}

TEST(AnswerMask, EndTokensWait) {
  MaskRules rules;
  rules.min_tokens = 2;
  Mask mask(rules);
  const auto has_end = [&] {
    const auto ids = mask.allowed();
    return std::find(ids.begin(), ids.end(), mask.model->tokenizer->end_ids()[0]) != ids.end();
  };
  EXPECT_FALSE(has_end());
  mask.mask->advance(65);
  EXPECT_FALSE(has_end());
  mask.mask->advance(65);
  EXPECT_TRUE(has_end());
}

TEST(AnswerMask, TokensThatTheClientStopsAtWaitAsEndTokensDo) {
  const auto model = demo_served_model(nullptr);
  Generation generation;
  generation.endpoint = Endpoint::completions;
  generation.min_tokens = 1;
  generation.stop_token_ids = {65};
  const auto mask = MaskFactory::create(generation, *model, {}, false, false)->make(-1);
  const auto has_stop = [&] {
    std::vector<uint64_t> bits((static_cast<size_t>(model->tokenizer->size()) + 63) / 64);
    mask->allowed(bits);
    return (bits[1] >> 1 & 1) != 0;
  };
  EXPECT_FALSE(has_stop());
  mask->advance(66);
  EXPECT_TRUE(has_stop());
}

}  // namespace
}  // namespace braid::server
