// prefix_test.cpp -- what is computed again, and what is not: chats over one system message, tools, edits,
// prompts that share a beginning nobody named, and what is left when memory is short.
#include <fmt/format.h>

#include <algorithm>

#include "engine/schedule/scheduler_world_test.h"

namespace braid {
namespace {

// Of a 27B on one GPU: engine_setup.cpp makes this interval and spacing of its state and its q8_0 cache.
SchedulerLimits large_limits() {
  SchedulerLimits limits;
  limits.context_tokens = 16384;
  limits.ubatch_tokens = 512;
  limits.gap_limit = 0;
  limits.checkpoint_interval = 8192;
  limits.checkpoint_spacing = 512;
  return limits;
}
// The same without state, three of four layers with a window. The numbers are engine_memory.cpp's, for 4
// sequences and 1024 blocks.
SchedulerLimits window_limits() {
  SchedulerLimits limits = large_limits();
  limits.recurrent = false;
  limits.window = 512;
  limits.checkpoint_interval = 3072;
  limits.checkpoint_spacing = 192;
  return limits;
}
constexpr int32_t kWindowBlocks = 4 * 19 + 16 + 256;
constexpr int32_t kHeader = 5;  // tokens that begin an answer

std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A conversation as the server hands it over: ends of messages are named, those of the head are shared.
struct Chat {
  std::vector<int32_t> tokens;
  std::vector<int32_t> ends;
  Chat& add(const std::vector<int32_t>& message) {
    tokens = joined(std::move(tokens), message);
    ends.push_back(static_cast<int32_t>(tokens.size()));
    return *this;
  }
};

RequestId ask(World& world, const Chat& chat, int32_t max_tokens = 4, int32_t head = 1) {
  world.shared_until = head == 0 ? 0 : chat.ends[static_cast<size_t>(head) - 1];
  return world.submit(joined(chat.tokens, std::vector<int32_t>(kHeader, 5)), max_tokens, chat.ends);
}
// What it computes of its prompt when nobody else is there.
int32_t computes(World& world, const Chat& chat, int32_t max_tokens = 4, int32_t head = 1) {
  const int64_t before = world.prompt_computed;
  ask(world, chat, max_tokens, head);
  world.run();
  return static_cast<int32_t>(world.prompt_computed - before);
}

void ask_another_question(bool windows) {
  std::mt19937_64 random(21);
  std::string table;
  for (const int32_t system : {500, 1000, 2030, 4000, 8000}) {
    table += fmt::format("[report] system message {:5}:", system);
    for (const int32_t question : {5, 20, 100, 400}) {
      World world(windows ? window_limits() : large_limits(), 1024, 4, windows ? 0 : 16, 0,
                  windows ? kWindowBlocks : 0);
      const auto head = tokens_of(random, system);
      computes(world, Chat().add(head).add(tokens_of(random, question)));
      const Chat second = Chat().add(head).add(tokens_of(random, question));
      const int32_t computed = computes(world, second);
      EXPECT_LE(computed, question + kHeader + kBlockTokens) << system << " " << question;
      table += fmt::format("  {:3} more: {:4} of {:4} cached", question,
                           static_cast<int32_t>(second.tokens.size()) + kHeader - computed,
                           second.tokens.size() + kHeader);
    }
    table += "\n";
  }
  fmt::print("{}", table);
}

TEST(Prefix, AnotherQuestionCostsTheQuestion) {
  ask_another_question(false);
  ask_another_question(true);
}

// What 2,000 chats compute. `together`: some come at once, else each when no other prompt is being run.
void two_thousand_chats(bool together, bool windows) {
  std::mt19937_64 random(22);
  World world(windows ? window_limits() : large_limits(), 1024, 8, windows ? 0 : 32, 0,
              windows ? kWindowBlocks : 0);
  const auto head = tokens_of(random, 2030);
  const auto prompts_done = [&] {
    const auto running = world.scheduler.running();
    return world.scheduler.waiting().empty() &&
           std::all_of(running.begin(), running.end(), [](const auto& s) { return s->generated() > 0; });
  };
  int64_t all = 0, own = 0, strangers = 0;
  for (int32_t chat = 0; chat < 2000; ++chat) {
    const Chat asked = Chat().add(head).add(tokens_of(random, 5 + static_cast<int32_t>(random() % 396)));
    ask(world, asked, 1 + static_cast<int32_t>(random() % 12));
    all += std::ssize(asked.tokens) + kHeader;
    own += std::ssize(asked.tokens) + kHeader - 2030;
    if (chat % 10 == 9) {  // somebody with a long text of his own
      ask(world, Chat().add(tokens_of(random, 6000)), 2, 0);
      strangers += 6000 + kHeader;
    }
    while (!(together && chat % 8 < 4) && !prompts_done()) ASSERT_TRUE(world.step());
  }
  world.run();
  const int64_t computed = world.prompt_computed - strangers;
  fmt::print(
      "[report] 2000 chats over a system message of 2030 tokens, {}, 200 long texts in between: {} of "
      "{} prompt tokens of the chats computed, {} are their own; {} checkpoints, {} evicted\n",
      together ? "some at once" : "one after the other", computed, all, own,
      world.scheduler.stats().checkpoints, world.scheduler.checkpoints().evictions());
  // Its own, the block that a checkpoint may stand before its end, and the system message once.
  EXPECT_LE(computed, own + 2000 * kBlockTokens + 2030);
}

TEST(Prefix, TwoThousandChatsComputeTheirSystemMessageOnce) {
  for (const bool windows : {false, true}) {
    two_thousand_chats(false, windows);
    two_thousand_chats(true, windows);
  }
}

// What a window sees of a prefix, where others will go on, outlives what it saw of the rest of their texts.
TEST(Prefix, WindowsThatLongTextsLeaveBehindGoFirst) {
  std::mt19937_64 random(32);
  World world(window_limits(), 2048, 2, 0, 0, 150);
  const auto head = tokens_of(random, 2030);
  const auto chat = [&] { return Chat().add(head).add(tokens_of(random, 50)); };
  computes(world, chat());
  EXPECT_LE(computes(world, chat()), 50 + kHeader + kBlockTokens);
  // Each takes more blocks than there are, one after the other.
  for (int32_t i = 0; i < 5; ++i) {
    computes(world, Chat().add(tokens_of(random, 5000)), 4, 0);
    EXPECT_LE(computes(world, chat()), 50 + kHeader + kBlockTokens);
  }
  // Where nobody has named an end, the first that parts computes all, and leaves behind what the next needs.
  const auto shared = tokens_of(random, 3000);
  const auto unnamed = [&] {
    const int64_t before = world.prompt_computed;
    world.submit(joined(shared, tokens_of(random, 1000)), 4);
    world.run();
    return world.prompt_computed - before;
  };
  EXPECT_EQ(unnamed(), 4000);
  for (int32_t i = 0; i < 2; ++i) computes(world, Chat().add(tokens_of(random, 5000)), 4, 0);
  unnamed();
  for (int32_t i = 0; i < 2; ++i) computes(world, Chat().add(tokens_of(random, 5000)), 4, 0);
  EXPECT_LE(unnamed(), 1000 + kBlockTokens);
}

TEST(Prefix, ANextTurnGoesOnWithItsWindow) {
  std::mt19937_64 random(33);
  World world(window_limits(), 1024, 2, 0, 0, kWindowBlocks);
  Chat chat = Chat().add(tokens_of(random, 300));
  for (int32_t turn = 0; turn < 12; ++turn) {
    const auto question = tokens_of(random, 20 + 60 * turn);
    chat.add(question);
    const int64_t before = world.prompt_computed;
    const RequestId id = ask(world, chat, 200);
    world.run();
    const std::vector<int32_t>& all = world.finished.at(id);
    EXPECT_EQ(all, alone(joined(chat.tokens, std::vector<int32_t>(kHeader, 5)), 200, 16384));
    if (turn > 0) {
      EXPECT_LE(world.prompt_computed - before, std::ssize(question) + kHeader + kBlockTokens);
    }
    // The answer becomes part of the conversation.
    chat.tokens = all;
    chat.ends.push_back(static_cast<int32_t>(all.size()));
  }
}

// One alone gets by with the blocks of its window and a chunk, however few; others wait or make room.
TEST(Prefix, FewBlocksOfAWindowAreEnough) {
  std::mt19937_64 random(34);
  for (const int32_t blocks : {19, 20, 24, 40}) {
    World world(window_limits(), 1024, 4, 0, 0, blocks);
    std::map<RequestId, std::vector<int32_t>> prompts;
    for (int32_t i = 0; i < 6; ++i) {
      auto prompt = tokens_of(random, 100 + static_cast<int32_t>(random() % 3000));
      const RequestId id = world.submit(prompt, 700);
      prompts[id] = std::move(prompt);
    }
    world.run();
    for (const auto& [id, prompt] : prompts) EXPECT_EQ(world.finished[id], alone(prompt, 700, 16384));
  }
}

TEST(Prefix, TextsThatComeOnceLeaveWhatManyShare) {
  std::mt19937_64 random(23);
  World world(large_limits(), 600, 2, 16, 0);
  const auto head = tokens_of(random, 2030);
  const auto chat = [&] { return Chat().add(head).add(tokens_of(random, 50)); };
  for (int32_t i = 0; i < 6; ++i) computes(world, chat());
  // Each fills a quarter of the blocks; together they take more images than there are.
  for (int32_t i = 0; i < 40; ++i) computes(world, Chat().add(tokens_of(random, 5000)), 4, 0);
  EXPECT_LE(computes(world, chat()), 50 + kHeader + kBlockTokens);
  // But nothing stays for ever.
  for (int32_t i = 0; i < 400; ++i) computes(world, Chat().add(tokens_of(random, 5000)), 4, 0);
  EXPECT_GT(computes(world, chat()), 2030);
}

TEST(Prefix, ToolsEditsRepeatsAndNextTurns) {
  std::mt19937_64 random(24);
  World world(large_limits(), 1024, 2, 32, 0);
  const auto tools = tokens_of(random, 1500), system = tokens_of(random, 300), other = tokens_of(random, 280);
  const auto question = tokens_of(random, 200);
  const Chat first = Chat().add(tools).add(system).add(question);
  computes(world, first, 4, 2);
  // The same tools under another system message.
  EXPECT_LE(computes(world, Chat().add(tools).add(other).add(question), 4, 2),
            280 + 200 + kHeader + kBlockTokens);
  // The last message edited: all but it.
  EXPECT_LE(computes(world, Chat().add(tools).add(system).add(tokens_of(random, 90)), 4, 2),
            90 + kHeader + kBlockTokens);
  // The answer once more.
  EXPECT_LE(computes(world, first, 4, 2), kHeader + kBlockTokens);
  // An answer whose thoughts are left out, and the next question; then that one edited.
  const auto answer = tokens_of(random, 150);
  Chat next = first;
  next.add(answer).add(tokens_of(random, 60));
  EXPECT_LE(computes(world, next, 4, 2), 150 + 60 + kHeader + kBlockTokens);
  Chat edited = first;
  edited.add(answer).add(tokens_of(random, 70));
  EXPECT_LE(computes(world, edited, 4, 2), 70 + kHeader + kBlockTokens);
}

TEST(Prefix, WhereUnnamedPromptsPartTheThirdGoesOn) {
  std::mt19937_64 random(25);
  World world(large_limits(), 1024, 2, 32, 0);
  const auto shared = tokens_of(random, 3000);
  const auto one = [&] {
    const int64_t before = world.prompt_computed;
    world.submit(joined(shared, tokens_of(random, 100)), 4);
    world.run();
    return world.prompt_computed - before;
  };
  EXPECT_EQ(one(), 3100);
  EXPECT_GT(one(), 3000);
  EXPECT_LE(one(), 100 + kBlockTokens);
}

TEST(Prefix, ChatsThatArriveTogetherTakeOneCheckpointOfTheirHead) {
  std::mt19937_64 random(26);
  World world(large_limits(), 1024, 4, 32, 0);
  const auto head = tokens_of(random, 2030);
  for (int32_t i = 0; i < 4; ++i) ask(world, Chat().add(head).add(tokens_of(random, 25)), 1);
  world.run();
  EXPECT_LE(world.prompt_computed, 2030 + 4 * (25 + kHeader));
  // The head's; the ends of the answers.
  EXPECT_LE(world.scheduler.stats().checkpoints, 1u + 4u);
}

// Cuts of a prompt: a step of few rows each.
TEST(Prefix, APromptIsCutAtFewPlaces) {
  std::mt19937_64 random(27);
  World world(large_limits(), 1024, 2, 64, 0);
  Chat chat;
  chat.add(tokens_of(random, 900)).add(tokens_of(random, 700));  // tools, system message
  for (int32_t i = 0; i < 100; ++i) chat.add(tokens_of(random, 60));
  const int64_t before = world.prompt_steps;
  computes(world, chat, 2, 2);
  const int64_t steps = world.prompt_steps - before;
  const int64_t whole = (std::ssize(chat.tokens) + kHeader + 511) / 512;
  fmt::print(
      "[report] a prompt of {} tokens in 102 messages: {} steps of at most 512, {} uncut, {} checkpoints\n",
      chat.tokens.size() + kHeader, steps, whole, world.scheduler.stats().checkpoints);
  EXPECT_LE(steps, 2 * whole + 4);
}

TEST(Prefix, ARequestWithoutCacheLeavesNothing) {
  std::mt19937_64 random(28);
  for (const bool swap : {true, false}) {
    SchedulerLimits limits = small_limits();
    limits.preemption = swap ? Preemption::swap : Preemption::recompute;
    World world(limits, 16, 2, 6, 32);
    const auto prompt = tokens_of(random, 150), other = tokens_of(random, 150);
    world.submit(prompt, 180, {50, 100}, 0, "", false);
    world.submit(other, 180, {50, 100}, 0, "", false);
    while (world.step()) {
      world.scheduler.check();
      EXPECT_EQ(world.scheduler.blocks().published(), 0);
      for (int32_t id = 0; id < 6; ++id) EXPECT_FALSE(world.scheduler.checkpoints().findable(id));
    }
    EXPECT_GT(world.scheduler.stats().preempted, 0u);
    EXPECT_EQ(world.scheduler.checkpoints().used(), 0);
    EXPECT_EQ(world.finished[1], alone(prompt, 180, 400));
    EXPECT_EQ(world.finished[2], alone(other, 180, 400));
    // What was swapped came back whole.
    if (swap) {
      EXPECT_EQ(world.prompt_computed, 300);
    }
  }
}

TEST(Prefix, PromptsThatFillThePoolRunOneAfterTheOther) {
  std::mt19937_64 random(29);
  SchedulerLimits limits = small_limits();
  limits.context_tokens = 4096;
  World world(limits, 100, 4, 8, 0);
  std::map<RequestId, std::vector<int32_t>> prompts;
  for (int32_t i = 0; i < 4; ++i) {
    auto prompt = tokens_of(random, 2880);  // 90 of 100 blocks
    const RequestId id = world.submit(prompt, 60);
    prompts[id] = std::move(prompt);
  }
  world.run();
  for (const auto& [id, prompt] : prompts) EXPECT_EQ(world.finished[id], alone(prompt, 60, 4096));
  EXPECT_EQ(world.scheduler.stats().preempted, 0u);
  EXPECT_EQ(world.prompt_computed, 4 * 2880);
}

// Whoever is forked may have come when the other had begun long before (World checks that no start is before
// the submit).
TEST(Prefix, AForkStartsNoEarlierThanItCame) {
  std::mt19937_64 random(30);
  World world(small_limits(), 60, 4, 4, 0);
  const auto prompt = tokens_of(random, 200);
  world.submit(prompt, 3);
  world.step();
  world.step();
  world.submit(prompt, 3);
  world.run();
  EXPECT_EQ(world.scheduler.stats().forked, 1u);
}

TEST(Prefix, ThousandsWhoWaitForAPrefixAreNotLookedUpInEveryStep) {
  std::mt19937_64 random(31);
  World world(large_limits(), 1024, 8, 32, 0);
  const auto head = tokens_of(random, 8000);
  for (int32_t i = 0; i < 2000; ++i) ask(world, Chat().add(head).add(tokens_of(random, 20)), 1);
  int64_t steps = 0;
  const int64_t before = world.prompt_computed;
  while (world.prompt_computed - before < 8000) {
    ASSERT_TRUE(world.step());
    ++steps;
  }
  fmt::print("[report] 2000 wait for a prompt of 8025 tokens: {} steps, {} walks along a prefix\n", steps,
             world.scheduler.stats().lookups);
  EXPECT_GE(steps, 8000 / 512);
  EXPECT_LE(world.scheduler.stats().lookups, 2000u + 200u);
}

}  // namespace
}  // namespace braid
