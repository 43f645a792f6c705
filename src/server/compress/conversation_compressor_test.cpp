// conversation_compressor_test.cpp -- which texts are shortened, what is found again, and by whom.
#include "server/compress/conversation_compressor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "gguf/gguf.h"
#include "text/tokenizer/vocabulary.h"

namespace braid::server {
namespace {

using Role = ConversationText::Role;

std::shared_ptr<const Tokenizer> demo_tokenizer() {
  static const auto kTokenizer = [] {
    const auto file = GgufFile::open(BRAID_SOURCE_DIR "/models/braid-demo-q8_0.gguf");
    auto vocabulary = read_vocabulary(*file);
    return std::make_shared<const Tokenizer>(Tokenizer::create(std::move(*vocabulary)).value());
  }();
  return kTokenizer;
}

// About `words` words, different for each seed.
std::string prose(int words, uint32_t seed) {
  static const char* const kWords[] = {"the",   "old",  "street", "was",  "quiet",  "and",
                                       "a",     "dog",  "slept",  "near", "wooden", "doors",
                                       "while", "rain", "fell",   "on",   "roofs",  "all day"};
  std::mt19937 random(seed);
  std::string out;
  for (int i = 0; i < words; ++i) {
    out += kWords[random() % std::size(kWords)];
    out += i % 12 == 11 ? ".\n" : " ";
  }
  return out;
}

struct Conversation {
  std::vector<std::pair<Role, std::string>> messages;
  void add(Role role, std::string text) { messages.emplace_back(role, std::move(text)); }
  std::vector<ConversationText> texts() const {
    std::vector<ConversationText> out;
    for (const auto& [role, text] : messages) out.push_back({role, text});
    return out;
  }
};

ConversationCompressor compressor(int64_t threshold = 4000, int64_t most = 100'000) {
  ConversationCompressor::Options options;
  options.keep = *KeepCurve::parse("0.2");
  options.threshold_tokens = threshold;
  options.most_tokens = most;
  return {demo_tokenizer(), options};
}

CompressionWish wish(CompressionMode mode = CompressionMode::automatic,
                     std::string tenant = "alice") {
  CompressionWish out;
  out.mode = mode;
  out.tenant = std::move(tenant);
  return out;
}

// Scores that ask for chunks by chance.
void finish(ConversationCompressor& c, CompressionPlan& plan) {
  while (const TokenizedPrompt* prompt = plan.to_read()) {
    std::vector<float> scores(prompt->ids.size());
    for (size_t i = 0; i < scores.size(); ++i)
      scores[i] = static_cast<float>((i / 32 * 7919) % 101) / 101;
    c.take_scores(plan, scores);
  }
}

CompressionPlan compressed(ConversationCompressor& c, const Conversation& conversation,
                           const CompressionWish& how = wish()) {
  auto plan = c.plan(conversation.texts(), how);
  EXPECT_TRUE(plan.ok());
  finish(c, *plan);
  return std::move(*plan);
}

// What the model would get.
std::vector<std::string> result(const Conversation& conversation, const CompressionPlan& plan) {
  std::vector<std::string> out;
  for (size_t i = 0; i < conversation.messages.size(); ++i)
    out.push_back(plan.texts[i].value_or(conversation.messages[i].second));
  return out;
}

Conversation agent(int turns, int words = 400) {
  Conversation out;
  out.add(Role::instructions, "You are a careful programmer. " + prose(300, 1));
  out.add(Role::user, "Find out why the number 4711 is wrong in the ledger.");
  for (int i = 0; i < turns; ++i) {
    out.add(Role::answer, "Now I read file " + std::to_string(i) + ".");
    out.add(Role::tool, prose(words, static_cast<uint32_t>(100 + i)));
  }
  return out;
}

TEST(ConversationCompressor, ShortConversationsStayAsTheyAre) {
  auto c = compressor();
  const auto plan = compressed(c, agent(3));
  EXPECT_FALSE(plan.changes());
  EXPECT_NE(plan.reason.find("below the threshold of 4000"), std::string::npos) << plan.reason;
  EXPECT_FALSE(compressed(c, agent(30), wish(CompressionMode::off)).changes());
  EXPECT_FALSE(compressed(c, Conversation()).changes());
}

TEST(ConversationCompressor, AgedResultsAreShortenedAndTheRestIsKept) {
  auto c = compressor();
  const Conversation before = agent(16);
  const auto plan = compressed(c, before);
  ASSERT_TRUE(plan.changes()) << plan.reason;
  const auto after = result(before, plan);
  size_t shortened = 0;
  for (size_t i = 0; i < after.size(); ++i) {
    const auto& [role, text] = before.messages[i];
    if (role != Role::tool) EXPECT_EQ(after[i], text) << i;
    if (after[i] != text) {
      ++shortened;
      EXPECT_LT(after[i].size(), text.size()) << i;
      EXPECT_FALSE(after[i].empty());
    }
  }
  EXPECT_GT(shortened, 8u);
  // The last two results are what the agent works at.
  EXPECT_EQ(after.back(), before.messages.back().second);
  EXPECT_EQ(after[after.size() - 3], before.messages[after.size() - 3].second);
  EXPECT_GT(plan.dropped_tokens, plan.read_tokens / 3);
}

TEST(ConversationCompressor, TheBeginOfAnAgentsConversationStaysTheSame) {
  auto c = compressor();
  std::vector<std::string> last;
  int scored = 0, breaks = 0, most_common = 0;
  for (int turns = 2; turns <= 60; ++turns) {
    const Conversation conversation = agent(turns, 200);
    auto plan = c.plan(conversation.texts(), wish());
    ASSERT_TRUE(plan.ok());
    scored += plan->to_read() != nullptr ? 1 : 0;
    finish(c, *plan);
    const auto now = result(conversation, *plan);
    const auto [a, b] = std::mismatch(last.begin(), last.end(), now.begin());
    breaks += a == last.end() ? 0 : 1;
    most_common = std::max(most_common, static_cast<int>(a - last.begin()));
    last = now;
  }
  EXPECT_GT(scored, 1);
  EXPECT_LT(scored, 20) << "the prefix changes too often to be of use";
  EXPECT_EQ(breaks, scored) << "a text that was shortened before has changed";
  EXPECT_GT(most_common, 40);
}

// What was shortened as an old text is not put in place where it is the question, or recent.
TEST(ConversationCompressor, AConversationThatGoesBackHasItsOwnTexts) {
  auto c = compressor();
  Conversation conversation;
  conversation.add(Role::user, prose(150, 1) + "\n\nWhat is in this text about dogs?");
  conversation.add(Role::answer, "They slept.");
  for (int i = 0; i < 12; ++i) {
    conversation.add(Role::user, prose(500, static_cast<uint32_t>(10 + i)));
    conversation.add(Role::answer, "I see.");
  }
  const auto plan = compressed(c, conversation);
  ASSERT_TRUE(plan.texts[0]) << plan.reason;
  ASSERT_TRUE(plan.texts[2]);
  Conversation back = conversation;
  back.messages.resize(1);
  EXPECT_FALSE(compressed(c, back).changes()) << "far below the threshold";
  for (const size_t length : {19u, 21u, 23u}) {
    back = conversation;
    back.messages.resize(length);
    const auto shorter = compressed(c, back);
    EXPECT_FALSE(shorter.texts[length - 1]) << "the question";
    EXPECT_FALSE(shorter.texts[length - 3]) << "recent";
    EXPECT_TRUE(shorter.texts[2]);
  }
}

TEST(ConversationCompressor, ALongFirstMessageOfAnAgentStaysTheSame) {
  auto c = compressor();
  Conversation conversation;
  conversation.add(Role::user, prose(4000, 1) + "\n\nFind out who slept near the doors, please.");
  std::string first;
  for (int turn = 0; turn < 12; ++turn) {
    conversation.add(Role::answer, "Now I read file " + std::to_string(turn) + " of the project.");
    conversation.add(Role::tool, prose(100, static_cast<uint32_t>(100 + turn)));
    const auto plan = compressed(c, conversation);
    ASSERT_TRUE(plan.texts[0]) << plan.reason;
    if (turn > 0) EXPECT_EQ(*plan.texts[0], first) << turn;
    first = *plan.texts[0];
  }
}

TEST(ConversationCompressor, WhatCannotFitOrTakesTooLongIsNotRead) {
  auto c = compressor(4000, 1000);
  const Conversation conversation = agent(30);
  CompressionWish small = wish();
  small.context_tokens = 600;
  EXPECT_EQ(c.plan(conversation.texts(), small)->to_read(), nullptr);
  Conversation huge;
  huge.add(Role::user, prose(120'000, 1));
  const auto plan = c.plan(huge.texts(), wish());
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->to_read(), nullptr);
  EXPECT_NE(plan->reason.find("more than 64"), std::string::npos) << plan->reason;
}

TEST(ConversationCompressor, ALongQuestionKeepsItsEndsAndIsReadAnewForAnotherQuestion) {
  auto c = compressor();
  Conversation conversation;
  const std::string head = "Read this report carefully.\n\n";
  const std::string first = "\n\nWhat does it say about doors?", other = "\n\nWho slept near them?";
  conversation.add(Role::user, head + prose(6000, 5) + first);
  const auto plan = compressed(c, conversation);
  ASSERT_TRUE(plan.texts[0]) << plan.reason;
  EXPECT_TRUE(plan.texts[0]->starts_with(head));
  EXPECT_TRUE(plan.texts[0]->ends_with(first));
  EXPECT_LT(plan.texts[0]->size(), conversation.messages[0].second.size() / 2);
  EXPECT_FALSE(plan.found);
  // The same prompt needs no reading.
  auto again = c.plan(conversation.texts(), wish());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->to_read(), nullptr);
  EXPECT_TRUE(again->found);
  EXPECT_EQ(again->texts[0], plan.texts[0]);
  conversation.messages[0].second = head + prose(6000, 5) + other;
  const auto anew = c.plan(conversation.texts(), wish());
  ASSERT_TRUE(anew.ok());
  EXPECT_NE(anew->to_read(), nullptr);
}

TEST(ConversationCompressor, WhatOneClientHasShortenedNoOtherFinds) {
  auto c = compressor();
  const Conversation conversation = agent(16);
  compressed(c, conversation);
  EXPECT_GT(c.cache().entries(), 0u);
  EXPECT_TRUE(compressed(c, conversation).found);
  const auto other = c.plan(conversation.texts(), wish(CompressionMode::automatic, "mallory"));
  ASSERT_TRUE(other.ok());
  EXPECT_FALSE(other->found);
  EXPECT_NE(other->to_read(), nullptr);
  // Nor is it found after another beginning, or for another share.
  Conversation moved = conversation;
  moved.messages[1].second += "!";
  EXPECT_FALSE(c.plan(moved.texts(), wish())->found);
  CompressionWish more = wish();
  more.keep = *KeepCurve::parse("0.5");
  EXPECT_FALSE(c.plan(conversation.texts(), more)->found);
}

TEST(ConversationCompressor, ReadsInWindowsWhatDoesNotFitAtOnce) {
  auto c = compressor(4000, 3000);
  const Conversation conversation = agent(30);
  auto plan = c.plan(conversation.texts(), wish());
  ASSERT_TRUE(plan.ok());
  EXPECT_GT(plan->windows.size(), 2u);
  for (const ReadingWindow& window : plan->windows) {
    EXPECT_LE(window.prompt.ids.size(), 3000u);
    EXPECT_EQ(window.prompt.kept.back().tokens.end, window.prompt.ids.size()) << "the question";
    EXPECT_EQ(window.parts.size() + 1, window.prompt.parts.size());
  }
  finish(c, *plan);
  for (size_t i = 3; i + 16 < conversation.messages.size(); i += 2)
    EXPECT_TRUE(plan->texts[i]) << i;
  auto blind = compressor(4000, 100);
  const auto none = blind.plan(conversation.texts(), wish());
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->to_read(), nullptr);
  EXPECT_NE(none->reason.find("the scoring model reads 100"), std::string::npos) << none->reason;
}

TEST(ConversationCompressor, PiecesOfOneTextFitTheirWindows) {
  for (const int words : {3000, 7001, 20'003}) {
    for (const int64_t most : {900, 1023, 2500}) {
      auto c = compressor(2000, most);
      Conversation conversation;
      std::string text = prose(words, 3);
      std::replace(text.begin(), text.end(), words % 2 == 0 ? '\n' : '\0', ' ');
      conversation.add(Role::user, std::move(text));
      auto plan = c.plan(conversation.texts(), wish());
      ASSERT_TRUE(plan.ok());
      ASSERT_FALSE(plan->windows.empty()) << plan->reason;
      for (const ReadingWindow& window : plan->windows)
        EXPECT_LE(static_cast<int64_t>(window.prompt.ids.size()), most) << words;
    }
  }
}

TEST(ConversationCompressor, OneTextOfSeveralWindowsIsOneTextAgain) {
  for (const char* keep : {"1", "0.2"}) {
    ConversationCompressor::Options options;
    options.keep = *KeepCurve::parse(keep);
    options.threshold_tokens = 4000;
    options.most_tokens = 2500;
    ConversationCompressor c(demo_tokenizer(), options);
    Conversation conversation;
    const std::string head = "What rained?\n\n", tail = "\n\nSo: what rained?";
    conversation.add(Role::user, head + prose(7000, 3) + tail);
    const auto plan = compressed(c, conversation);
    ASSERT_TRUE(plan.texts[0]) << plan.reason;
    const std::string& text = *plan.texts[0];
    EXPECT_TRUE(text.starts_with(head)) << text.substr(0, 50);
    EXPECT_TRUE(text.ends_with(tail));
    if (keep == std::string("1")) {
      EXPECT_EQ(text, conversation.messages[0].second);
    } else {
      EXPECT_LT(text.size(), conversation.messages[0].second.size() / 2);
    }
  }
}

TEST(ConversationCompressor, AlwaysCompressesFromTwoThousandTokensOn) {
  auto c = compressor(1'000'000);
  EXPECT_FALSE(compressed(c, agent(16)).changes());
  EXPECT_TRUE(compressed(c, agent(16), wish(CompressionMode::always)).changes());
  CompressionWish small = wish();
  small.context_tokens = 5000;  // it would not fit
  EXPECT_TRUE(compressed(c, agent(16), small).changes());
}

TEST(ConversationCompressor, AnyBytesInAnyOrderGiveATextForEachMessage) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    auto c = compressor(1500, 3000 + static_cast<int64_t>(random() % 5000));
    Conversation conversation;
    const int count = static_cast<int>(random() % 24);
    for (int i = 0; i < count; ++i) {
      std::string text = prose(static_cast<int>(random() % 500), static_cast<uint32_t>(random()));
      for (size_t k = random() % 20; k > 0 && !text.empty(); --k)
        text[random() % text.size()] = static_cast<char>(random());
      if (random() % 8 == 0) text.clear();
      conversation.add(static_cast<Role>(random() % 4), std::move(text));
    }
    for (int turn = 0; turn < 2; ++turn) {
      const auto plan = compressed(c, conversation);
      ASSERT_EQ(plan.texts.size(), conversation.messages.size());
      for (size_t i = 0; i < plan.texts.size(); ++i)
        if (plan.texts[i]) EXPECT_FALSE(plan.texts[i]->empty());
    }
  }
}

TEST(CompressionChoice, ReadsModesAndSharesAndRefusesOthers) {
  EXPECT_EQ(CompressionChoice::parse("off")->mode, CompressionMode::off);
  EXPECT_EQ(CompressionChoice::parse("auto")->mode, CompressionMode::automatic);
  EXPECT_EQ(CompressionChoice::parse("always")->mode, CompressionMode::always);
  const auto share = CompressionChoice::parse("0.25");
  ASSERT_TRUE(share.ok());
  EXPECT_EQ(share->mode, CompressionMode::always);
  EXPECT_EQ(share->keep->at(10'000).prose, 0.25);
  for (const char* bad : {"", "1.5", "0", "-1", "on", "nan", "0.5 0.6", "\x01"}) {
    const auto refused = CompressionChoice::parse(bad);
    ASSERT_FALSE(refused.ok()) << bad;
    EXPECT_NE(refused.error().message.find("off, auto, always"), std::string::npos);
  }
}

TEST(CompressionCache, ForgetsTheOldestAndStaysWithinItsBytes) {
  CompressionCache cache(64 << 10);
  std::vector<CompressionKey> keys;
  for (int i = 0; i < 200; ++i) {
    keys.push_back(next_key({}, 'k', std::to_string(i)));
    cache.put(keys.back(), std::string(1000, 'x'));
    EXPECT_LE(cache.bytes(), size_t{64} << 10);
    EXPECT_TRUE(cache.find(keys[0])) << "used again and again";
  }
  EXPECT_FALSE(cache.find(keys[1]));
  EXPECT_TRUE(cache.find(keys.back()));
  cache.put(keys[0], std::string(1 << 20, 'y'));
  EXPECT_EQ(cache.find(keys[0])->front(), 'x') << "larger than the cache";
  cache.put(keys[0], "z");
  EXPECT_EQ(*cache.find(keys[0]), "z");
}

}  // namespace
}  // namespace braid::server
