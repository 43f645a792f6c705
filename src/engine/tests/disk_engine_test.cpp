// disk_engine_test.cpp -- restarted engines give the same answers without recomputing the prompt.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <random>
#include <thread>

#include "base/temp_folder_test.h"
#include "engine/engine.h"
#include "engine/prefix/disk_format.h"
#include "engine/prefix/disk_store.h"
#include "engine/service.h"
#include "engine/tests/engine_devices_test.h"
#include "model/test_models_test.h"

namespace braid {
namespace {

using namespace testing_models;
namespace fs = std::filesystem;

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  int32_t cached = 0;
  bool done = false;
  bool operator==(const Answer& other) const {
    return tokens == other.tokens && logprobs == other.logprobs;
  }
};

struct Machine : Sink {
  using Edit = std::function<void(std::vector<std::byte>& file)>;
  Machine(const RandomShape& shape, const EngineOptions& options, const Edit& edit = nullptr)
      : Machine(bytes_of(shape), options, edit) {}
  Machine(std::vector<std::byte> model, EngineOptions options, const Edit& edit = nullptr)
      : bytes(std::move(model)) {
    if (edit) edit(bytes);
    file = std::make_unique<GgufFile>(parsed(bytes));
    options.threads = 2;
    options.activations = Activations::f32;
    options.context_tokens = 1024;
    options.ubatch_tokens = 64;
    auto made = Engine::create(*file, options);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    engine = std::move(made).value();
  }
  void token(RequestId id, const TokenEvent& event) override {
    answers[id].tokens.push_back(event.id);
    answers[id].logprobs.push_back(event.logprob);
  }
  void finished(RequestId id, const Finished& event) override {
    answers[id].cached = event.usage.cached_tokens;
    answers[id].done = true;
  }
  RequestId submit(std::vector<int32_t> prompt, const std::string& salt = "",
                   int32_t max_tokens = 12) {
    Request r;
    r.prompt = std::move(prompt);
    r.sampling.temperature = 0;
    r.max_tokens = max_tokens;
    r.cache_salt = salt;
    r.top_logprobs = 0;
    auto id = engine->submit(std::move(r), *this);
    EXPECT_TRUE(id.ok());
    return *id;
  }
  void run() {
    while (engine->step()) engine->check();
  }
  Answer ask(std::vector<int32_t> prompt, const std::string& salt = "", int32_t max_tokens = 12) {
    const RequestId id = submit(std::move(prompt), salt, max_tokens);
    run();
    EXPECT_TRUE(answers[id].done);
    return answers[id];
  }
  std::vector<std::byte> bytes;
  std::unique_ptr<GgufFile> file;
  std::unique_ptr<Engine> engine;
  std::map<RequestId, Answer> answers;
};

std::vector<int32_t> prompt(int32_t length, int32_t salt = 0) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < length; ++i) ids.push_back((i * 37 + salt * 101 + i * i * 7 + 5) % 320);
  return ids;
}

std::vector<int32_t> joined(std::vector<int32_t> a, const std::vector<int32_t>& b,
                            const std::vector<int32_t>& c = {}) {
  a.insert(a.end(), b.begin(), b.end());
  a.insert(a.end(), c.begin(), c.end());
  return a;
}

class DiskEngineOn : public testing_devices::OnDevice {
 protected:
  EngineOptions options(const TempFolder& folder) const {
    EngineOptions o;
    o.device = GetParam();
    o.deterministic = true;
    o.cache_dir = folder.path;
    o.hooks.poison_unused = true;
    return o;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, DiskEngineOn, ::testing::Values("ref", "cpu", "cuda"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(DiskEngineOn, AWindowFindsItsOwnPrefixesOnly) {
  for (const RandomShape& shape : {tiny_dense(), tiny_attention()}) {
    const TempFolder folder;
    const auto asked = prompt(420);
    std::map<int32_t, Answer> said;
    for (int round = 0; round < 2; ++round) {
      for (const int32_t window : {0, 64, 96}) {
        EngineOptions o = options(folder);
        o.attention_window = window;
        Machine m(shape, o);
        const Answer answer = m.ask(asked);
        if (round == 0) {
          EXPECT_EQ(answer.cached, 0) << window;
          said[window] = answer;
        } else {
          EXPECT_GT(answer.cached, 380) << window;
          EXPECT_EQ(answer, said[window]) << window;
        }
      }
    }
    EXPECT_FALSE(said[0] == said[64] || said[0] == said[96] || said[64] == said[96]);
  }
}

TEST_P(DiskEngineOn, AConversationGoesOnAfterARestart) {
  for (const RandomShape& shape : {tiny_dense(), tiny_moe(), tiny_attention()}) {
    const TempFolder folder, never;
    const auto first = prompt(420);
    Machine stays(shape, options(never));
    const Answer one = stays.ask(first);
    const auto second = joined(first, one.tokens, prompt(50, 9));
    const Answer two = stays.ask(second);
    EXPECT_GT(two.cached, 400);
    {
      Machine before(shape, options(folder));
      EXPECT_EQ(before.ask(first), one);
      EXPECT_EQ(before.engine->disk()->stats().loads, 0u);
    }
    Machine after(shape, options(folder));
    const Answer again = after.ask(second);
    EXPECT_EQ(again, two);
    EXPECT_EQ(again.cached, two.cached);
    EXPECT_EQ(after.engine->disk()->stats().loads, 1u);
    EXPECT_EQ(after.engine->scheduler().stats().from_disk, 1u);
    EXPECT_EQ(after.ask(second), again);
    EXPECT_EQ(after.engine->disk()->stats().loads, 1u);
  }
}

TEST_P(DiskEngineOn, ManyWhoWaitForTheSamePrefixAnswerAlike) {
  for (const RandomShape& shape : {tiny_dense(), tiny_attention()}) {
    const TempFolder folder;
    const auto shared = prompt(500);
    std::vector<Answer> right;
    {
      EngineOptions o = options(folder);
      Machine before(shape, o);
      for (int32_t i = 0; i < 6; ++i)
        right.push_back(before.ask(joined(shared, prompt(20, i + 1))));
    }
    EngineOptions o = options(folder);
    o.max_sequences = 4;
    Machine after(shape, o);
    std::vector<RequestId> ids;
    for (int32_t i = 0; i < 6; ++i) ids.push_back(after.submit(joined(shared, prompt(20, i + 1))));
    after.run();
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(after.answers[ids[i]].tokens, right[i].tokens) << i;
    }
    // The first waits for the disk, as computing costs are unknown; later ones depend on time.
    EXPECT_GT(after.answers[ids[0]].cached, 0);
    EXPECT_LE(after.engine->disk()->stats().loads, ids.size());
  }
}

TEST_P(DiskEngineOn, TenantsAndModelsDoNotMeet) {
  const TempFolder folder;
  const auto p = prompt(420);
  { Machine(tiny_dense(), options(folder)).ask(p, "tenant a"); }
  const size_t files = folder.files(kDiskSuffix).size();
  EXPECT_GT(files, 0u);
  {
    Machine same(tiny_dense(), options(folder));
    EXPECT_EQ(same.ask(p, "tenant b", 0).cached, 0);
    EXPECT_EQ(same.ask(p, "", 0).cached, 0);
    EXPECT_GT(same.ask(p, "tenant a", 0).cached, 0);
  }
  Machine other(tiny_moe(), options(folder));
  EXPECT_EQ(other.ask(p, "tenant a", 0).cached, 0);
  EXPECT_GT(other.engine->disk()->stats().foreign, 0u);
}

TEST_P(DiskEngineOn, AnEditedModelFindsNothing) {
  const auto edit = [](std::vector<std::byte>& bytes) {
    const GgufFile file = parsed(bytes);
    const GgufTensor* largest = &file.tensors()[0];
    for (const GgufTensor& t : file.tensors())
      if (t.data.size() > largest->data.size()) largest = &t;
    ASSERT_GT(largest->data.size(), 16384u);
    bytes[static_cast<size_t>(largest->data.data() - bytes.data()) + largest->data.size() / 2] ^=
        std::byte{1};
  };
  const TempFolder folder;
  { Machine(tiny_dense(), options(folder)).ask(prompt(420)); }
  Machine other(tiny_dense(), options(folder), edit);
  EXPECT_EQ(other.ask(prompt(420)).cached, 0);
  EXPECT_GT(other.engine->disk()->stats().foreign, 0u);
}

TEST_P(DiskEngineOn, WhatDraftsIsNoPartOfAFile) {
  struct Way {
    const char* name;
    SpecTypes types;
    int32_t most, sequences;
  };
  const Way ways[] = {{"nobody", SpecType::none, 0, 1},
                      {"three of the head", SpecType::mtp, 3, 2},
                      {"eight n-grams", SpecType::ngram, 8, 1},
                      {"nobody beside 12", SpecType::none, 0, 12}};
  // Repetitive turns, so that drafts are accepted.
  auto p = joined(prompt(40), prompt(40), prompt(40));
  p = joined(p, p, prompt(300));
  const auto engine = [&](const TempFolder& folder, const Way& way) {
    EngineOptions o = options(folder);
    o.spec_type = way.types;
    o.max_drafts = way.most;
    o.max_sequences = way.sequences;
    return Machine(bytes_of(tiny_dense(), "F32", true), o);
  };
  for (const Way& writer : ways) {
    const TempFolder folder;
    Answer first;
    { first = engine(folder, writer).ask(p, "", 40); }
    const auto next = joined(p, first.tokens, prompt(20, 5));
    Answer right;
    {
      const TempFolder fresh;
      Machine going_on = engine(fresh, writer);
      going_on.ask(p, "", 40);
      right = going_on.ask(next, "", 40);
    }
    for (const Way& reader : ways) {
      const TempFolder copy;
      for (const auto& path : folder.files(kDiskSuffix)) fs::copy(path, copy.path);
      fs::copy(fs::path(folder.path) / kSecretName, copy.path);
      Machine after = engine(copy, reader);
      EXPECT_EQ(after.engine->disk()->stats().foreign, 0u);
      const Answer again = after.ask(next, "", 40);
      EXPECT_EQ(again.tokens, right.tokens) << writer.name << ", then " << reader.name;
      // Drafted rows round differently on the reference, and on a GPU depending on folds.
      if (std::string(GetParam()) == "cpu" || writer.most + reader.most == 0) {
        EXPECT_TRUE(again == right) << writer.name << ", then " << reader.name;
      }
      EXPECT_GT(again.cached, static_cast<int32_t>(p.size()) + 30)
          << writer.name << ", then " << reader.name;
      EXPECT_EQ(after.engine->disk()->stats().failed_loads, 0u);
    }
  }
}

// The number of pending entries indexes a ring; a file with valid checksums may hold any number.
TEST_P(DiskEngineOn, ForgedStatesCostTimeNotAnswers) {
  const auto p = joined(prompt(420), prompt(30, 2));
  for (const uint32_t forged : {1u, 17u, 1'000'000u, 0x7fffffffu, 0x80000000u, 0xffffffffu}) {
    const TempFolder folder;
    Answer right;
    { right = Machine(tiny_dense(), options(folder)).ask(p); }
    size_t changed = 0;
    for (const auto& path : folder.files(kDiskSuffix)) {
      std::ifstream in(path, std::ios::binary);
      std::vector<char> bytes((std::istreambuf_iterator<char>(in)), {});
      DiskHeader header;
      ASSERT_GE(bytes.size(), sizeof header);
      std::memcpy(&header, bytes.data(), sizeof header);
      if (!header.has_state()) continue;
      header.pending += forged;
      header.header_checksum = header_checksum(header);
      std::memcpy(bytes.data(), &header, sizeof header);
      std::ofstream(path, std::ios::binary)
          .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
      ++changed;
    }
    ASSERT_GT(changed, 0u);
    Machine after(tiny_dense(), options(folder));
    EXPECT_EQ(after.ask(p).tokens, right.tokens) << forged;
    EXPECT_GT(after.engine->disk()->stats().removed, 0u) << forged;
  }
}

TEST_P(DiskEngineOn, DamagedFilesCostTimeNotAnswers) {
  const TempFolder folder;
  const auto p = joined(prompt(420), prompt(30, 2));
  Answer right;
  { right = Machine(tiny_dense(), options(folder)).ask(p); }
  for (const auto& path : folder.files(kDiskSuffix)) {  // the last byte: of the state
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    const int byte = file.get();
    file.seekp(-1, std::ios::end);
    file.put(static_cast<char>(byte ^ 1));
  }
  Machine after(tiny_dense(), options(folder));
  const Answer again = after.ask(p);
  EXPECT_EQ(again.tokens, right.tokens);
  EXPECT_EQ(again.cached, 0);
  EXPECT_GT(after.engine->disk()->stats().failed_loads, 0u);
}

// The pool is too small for running sequences and the load.
TEST_P(DiskEngineOn, ReadingUnderPressureHarmsNobody) {
  const TempFolder folder;
  std::vector<Answer> right;
  {
    Machine before(tiny_dense(), options(folder));
    for (int32_t i = 0; i < 5; ++i) right.push_back(before.ask(prompt(500, i), "", 40));
  }
  EngineOptions o = options(folder);
  o.max_sequences = 3;
  o.kv_memory_bytes = 38 * 32 * 2 * 2 * 32;  // 38 blocks of f16
  o.hooks.poison_unused = true;
  Machine after(tiny_dense(), o);
  EXPECT_LT(after.engine->scheduler().blocks().total(), 60);
  std::vector<RequestId> ids;
  for (int32_t i = 0; i < 5; ++i) {
    ids.push_back(after.submit(prompt(500, i), "", 40));
    after.engine->step();
    if (i == 2) after.engine->cancel(after.submit(prompt(500, 4)));
  }
  after.run();
  for (size_t i = 0; i < ids.size(); ++i)
    EXPECT_EQ(after.answers[ids[i]].tokens, right[i].tokens) << i;
  EXPECT_GT(after.engine->scheduler().stats().from_disk, 0u);
}

[[noreturn]] void converse(const EngineOptions& options, int ready) {
  Machine m(tiny_dense(), options);
  [[maybe_unused]] const ssize_t told = ::write(ready, "x", 1);
  for (int32_t round = 0;; ++round) {
    auto text = prompt(300, round % 3);
    for (int32_t turn = 0; turn < 4; ++turn)
      text = joined(text, m.ask(text, "", 6).tokens, prompt(40, turn));
  }
}

TEST_P(DiskEngineOn, KilledAtAnyMomentItAnswersAsIfNothingHadBeen) {
  if (GetParam() == std::string("cuda"))
    GTEST_SKIP() << "a child process cannot go on with the driver";
  std::vector<std::vector<int32_t>> texts;
  std::vector<Answer> right;
  const TempFolder never, folder;
  for (int32_t round = 0; round < 3; ++round) {
    Machine m(tiny_dense(), options(never));
    auto text = prompt(300, round);
    for (int32_t turn = 0; turn < 4; ++turn) {
      texts.push_back(text);
      right.push_back(m.ask(text, "", 6));
      text = joined(text, right.back().tokens, prompt(40, turn));
    }
  }
  std::mt19937 random(17);
  int32_t cached = 0;
  for (int life = 0; life < 6; ++life) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) converse(options(folder), pipe[1]);
    ::close(pipe[1]);
    char byte;
    ASSERT_EQ(::read(pipe[0], &byte, 1), 1);
    ::close(pipe[0]);
    ::usleep(static_cast<useconds_t>(random() % 150000));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    Machine m(tiny_dense(), options(folder));
    for (const size_t i : {random() % texts.size(), random() % texts.size()}) {
      const Answer answer = m.ask(texts[i], "", 6);
      EXPECT_EQ(answer.tokens, right[i].tokens) << "life " << life << ", text " << i;
      cached += answer.cached;
    }
    EXPECT_EQ(m.engine->disk()->stats().failed_loads, 0u);
  }
  EXPECT_GT(cached, 0);
}

template <typename Condition>
bool comes_true(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return condition();
}

// Blocks are offered during the prompt, so one longer than the staging memory can be stored.
TEST_P(DiskEngineOn, WithoutStateALongPromptIsStoredOnTheWay) {
  const TempFolder folder;
  EngineOptions o = options(folder);
  o.checkpoint_interval = 256;
  {
    Machine m(tiny_attention(), o);
    m.submit(prompt(900), "", 0);
    uint64_t offers = 0;
    const auto step = [&] {
      m.engine->devices().wait_for_copies(UINT64_MAX);
      return m.engine->step();
    };
    for (int32_t offered = 0; step();) {
      // Each step submits the offer of the step before.
      EXPECT_TRUE(comes_true([&] { return m.engine->disk()->stats().stored >= offers; }));
      const auto running = m.engine->scheduler().running();
      if (running.empty() || running[0]->prefix.offered_tokens == offered) continue;
      offered = running[0]->prefix.offered_tokens;
      ++offers;
    }
    EXPECT_EQ(offers, 3u);  // and the end
  }
  Machine after(tiny_attention(), o);
  EXPECT_EQ(after.engine->disk()->stats().files, 4u);
  EXPECT_EQ(after.ask(prompt(900), "", 4).cached, 896);
}

// Without another request or a shutdown: the process may be killed.
TEST_P(DiskEngineOn, AnIdleEngineHasWrittenWhatItKeptLast) {
  for (const bool cancelled : {false, true}) {
    const TempFolder folder;
    Machine m(tiny_dense(), options(folder));
    const RequestId id = m.submit(prompt(420));
    while (!m.engine->idle()) {
      m.engine->step();
      const auto running = m.engine->scheduler().running();
      if (cancelled && !running.empty() && running[0]->generated() == 5) m.engine->cancel(id);
    }
    const uint64_t taken = m.engine->scheduler().stats().checkpoints;
    EXPECT_GE(taken, 2u);  // the last at the answer's end
    EXPECT_TRUE(comes_true([&] { return m.engine->disk()->stats().stored == taken; }))
        << m.engine->disk()->stats().stored << " of " << taken;
  }
}

TEST_P(DiskEngineOn, AServiceThatWaitsHasWrittenWhatItKeptLast) {
  struct Waiter : Sink {
    void token(RequestId, const TokenEvent&) override {}
    void finished(RequestId, const Finished&) override { done.set_value(); }
    std::promise<void> done;
  };
  const TempFolder folder;
  Machine m(tiny_dense(), options(folder));
  const auto service = EngineService::start(std::move(m.engine), {});
  auto waiter = std::make_shared<Waiter>();
  Request r;
  r.prompt = prompt(420);
  r.max_tokens = 12;
  r.sampling.temperature = 0;
  ASSERT_TRUE(service->submit(std::move(r), waiter).ok());
  waiter->done.get_future().wait();
  EXPECT_TRUE(comes_true([&] {
    const EngineStatus status = service->status();
    return status.disk.stored >= 2 && status.disk.stored == status.scheduler.checkpoints;
  }));
}

TEST(DiskEngine, ImpossibleDirectoriesAreRefusedBeforeLoading) {
  const auto bytes = bytes_of(tiny_dense());
  const GgufFile file = parsed(bytes);
  EngineOptions o;
  o.device = "ref";
  o.cache_dir = "/proc/none";
  const auto refusal = [&] {
    const auto engine = Engine::create(file, o);
    return engine.ok() ? "" : engine.error().message;
  };
  EXPECT_NE(refusal().find("/proc/none: the cache directory cannot be created"), std::string::npos);
  o.state_memory_bytes = 0;
  EXPECT_NE(refusal().find("--state-memory"), std::string::npos);
}

}  // namespace
}  // namespace braid
