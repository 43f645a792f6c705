// prefix_test.cpp -- which tokens are recomputed: system messages, tools, edits, memory shortage.
#include <fmt/format.h>

#include <algorithm>

#include "engine/schedule/scheduler_world_test.h"

namespace braid {
namespace {

// Automatic values of a 27B with a q8_0 cache (engine_memory.cpp).
SchedulerLimits large_limits() {
  SchedulerLimits limits;
  limits.context_tokens = 16384;
  limits.ubatch_tokens = 512;
  limits.gap_limit = 0;
  limits.checkpoint_interval = 8192;
  limits.checkpoint_spacing = 512;
  return limits;
}
// Without state, three of four layers have a window (engine_memory.cpp, 4 sequences, 1024 blocks).
SchedulerLimits window_limits() {
  SchedulerLimits limits = large_limits();
  limits.recurrent = false;
  limits.window = 512;
  limits.checkpoint_interval = 3072;
  limits.checkpoint_spacing = 192;
  return limits;
}
constexpr int32_t kWindowBlocks = 4 * 19 + 16 + 256;
constexpr int32_t kHeader = 5;  // tokens at the start of an answer

std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Message ends are named checkpoints; those of the head are shared.
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
// Prompt tokens computed when it runs alone.
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

// `together`: some chats start concurrently, else one after another.
void two_thousand_chats(bool together, bool windows) {
  std::mt19937_64 random(22);
  World world(windows ? window_limits() : large_limits(), 1024, 8, windows ? 0 : 32, 0,
              windows ? kWindowBlocks : 0);
  const auto head = tokens_of(random, 2030);
  const auto prompts_done = [&] {
    const auto running = world.scheduler.running();
    return world.scheduler.waiting().empty() &&
           std::all_of(running.begin(), running.end(),
                       [](const auto& s) { return s->generated() > 0; });
  };
  int64_t all = 0, own = 0, strangers = 0;
  for (int32_t chat = 0; chat < 2000; ++chat) {
    const Chat asked =
        Chat().add(head).add(tokens_of(random, 5 + static_cast<int32_t>(random() % 396)));
    ask(world, asked, 1 + static_cast<int32_t>(random() % 12));
    all += std::ssize(asked.tokens) + kHeader;
    own += std::ssize(asked.tokens) + kHeader - 2030;
    if (chat % 10 == 9) {  // a client with a long text
      ask(world, Chat().add(tokens_of(random, 6000)), 2, 0);
      strangers += 6000 + kHeader;
    }
    while (!(together && chat % 8 < 4) && !prompts_done()) ASSERT_TRUE(world.step());
  }
  world.run();
  const int64_t computed = world.prompt_computed - strangers;
  fmt::print(
      "[report] 2000 chats over a system message of 2030 tokens, {}, 200 long texts in between: {} "
      "of "
      "{} prompt tokens of the chats computed, {} are their own; {} checkpoints, {} evicted\n",
      together ? "some at once" : "one after the other", computed, all, own,
      world.scheduler.stats().checkpoints, world.scheduler.checkpoints().evictions());
  // Own tokens, the block before a checkpoint, and the system message once.
  EXPECT_LE(computed, own + 2000 * kBlockTokens + 2030);
}

TEST(Prefix, TwoThousandChatsComputeTheirSystemMessageOnce) {
  for (const bool windows : {false, true}) {
    two_thousand_chats(false, windows);
    two_thousand_chats(true, windows);
  }
}

TEST(Prefix, WindowsThatLongTextsLeaveBehindGoFirst) {
  std::mt19937_64 random(32);
  World world(window_limits(), 2048, 2, 0, 0, 150);
  const auto head = tokens_of(random, 2030);
  const auto chat = [&] { return Chat().add(head).add(tokens_of(random, 50)); };
  computes(world, chat());
  EXPECT_LE(computes(world, chat()), 50 + kHeader + kBlockTokens);
  for (int32_t i = 0; i < 5; ++i) {
    computes(world, Chat().add(tokens_of(random, 5000)), 4, 0);
    EXPECT_LE(computes(world, chat()), 50 + kHeader + kBlockTokens);
  }
  // The first prompt that parts computes everything and leaves a checkpoint for the next.
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
    chat.tokens = all;
    chat.ends.push_back(static_cast<int32_t>(all.size()));
  }
}

// One sequence needs only its window and a chunk; others wait or preempt.
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
    for (const auto& [id, prompt] : prompts)
      EXPECT_EQ(world.finished[id], alone(prompt, 700, 16384));
  }
}

TEST(Prefix, TextsThatComeOnceLeaveWhatManyShare) {
  std::mt19937_64 random(23);
  World world(large_limits(), 600, 2, 16, 0);
  const auto head = tokens_of(random, 2030);
  const auto chat = [&] { return Chat().add(head).add(tokens_of(random, 50)); };
  for (int32_t i = 0; i < 6; ++i) computes(world, chat());
  // Each fills a quarter of the blocks; together they exceed the images.
  for (int32_t i = 0; i < 40; ++i) computes(world, Chat().add(tokens_of(random, 5000)), 4, 0);
  EXPECT_LE(computes(world, chat()), 50 + kHeader + kBlockTokens);
  for (int32_t i = 0; i < 400; ++i) computes(world, Chat().add(tokens_of(random, 5000)), 4, 0);
  EXPECT_GT(computes(world, chat()), 2030);
}

TEST(Prefix, ToolsEditsRepeatsAndNextTurns) {
  std::mt19937_64 random(24);
  World world(large_limits(), 1024, 2, 32, 0);
  const auto tools = tokens_of(random, 1500), system = tokens_of(random, 300),
             other = tokens_of(random, 280);
  const auto question = tokens_of(random, 200);
  const Chat first = Chat().add(tools).add(system).add(question);
  computes(world, first, 4, 2);
  EXPECT_LE(computes(world, Chat().add(tools).add(other).add(question), 4, 2),
            280 + 200 + kHeader + kBlockTokens);
  EXPECT_LE(computes(world, Chat().add(tools).add(system).add(tokens_of(random, 90)), 4, 2),
            90 + kHeader + kBlockTokens);
  EXPECT_LE(computes(world, first, 4, 2), kHeader + kBlockTokens);
  // An answer without its thoughts, then the next question; then that question edited.
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
  EXPECT_LE(world.scheduler.stats().checkpoints, 1u + 4u);
}

// Each cut of a prompt adds a small step.
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
      "[report] a prompt of {} tokens in 102 messages: {} steps of at most 512, {} uncut, {} "
      "checkpoints\n",
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

// The other may have begun much earlier. World checks that no start precedes the submit.
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
  fmt::print("[report] 2000 wait for a prompt of 8025 tokens: {} steps, {} walks along a prefix\n",
             steps, world.scheduler.stats().lookups);
  EXPECT_GE(steps, 8000 / 512);
  EXPECT_LE(world.scheduler.stats().lookups, 2000u + 200u);
}

}  // namespace
}  // namespace braid
