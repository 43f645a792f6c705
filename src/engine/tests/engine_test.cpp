// engine_test.cpp -- answers do not depend on how work is cut, shared or interrupted.
//
// Results do not depend on the grouping of rows (GPU: deterministic), and greedy margins of random
// models are far above rounding. So tokens are compared exactly.
#include "engine/engine.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "engine/tests/machine_test.h"

namespace braid {
namespace {

using namespace testing_machines;

class EngineOn : public testing_devices::OnDevice {};
INSTANTIATE_TEST_SUITE_P(Devices, EngineOn, ::testing::Values("ref", "cpu", "cpu_late", "cuda"),
                         [](const auto& info) { return std::string(info.param); });

std::string refusal(Machine& m, const Request& request) {
  const auto id = m.engine->submit(request, m.sink);
  return id.ok() ? "" : id.error().message;
}

// All kinds of layers: with state, without, and with windows.
std::vector<RandomShape> all_shapes() {
  return {tiny_dense(), tiny_moe(),       tiny_attention(),
          tiny_qwen3(), tiny_qwen3next(), tiny_laguna()};
}

TEST_P(EngineOn, AnswersDoNotDependOnTheChunksOfThePrompt) {
  for (const RandomShape& shape : all_shapes()) {
    std::vector<std::vector<int32_t>> answers;
    for (const int32_t chunk : {1, 7, 32, 64, 200}) {
      EngineOptions options = on(GetParam());
      options.ubatch_tokens = chunk;
      Machine m(bytes_of(shape), options);
      answers.push_back(m.ask(greedy(prompt(150), 20)).tokens);
    }
    for (const auto& answer : answers) EXPECT_EQ(answer, answers[0]);
    EXPECT_EQ(answers[0].size(), 20u);
  }
}

TEST_P(EngineOn, TogetherIsTheSameAsAlone) {
  for (const RandomShape& shape : all_shapes()) {
    std::vector<std::vector<int32_t>> alone;
    for (int32_t i = 0; i < 6; ++i) {
      Machine m(bytes_of(shape), on(GetParam()));
      alone.push_back(m.ask(greedy(prompt(3 + 31 * i, i), 10 + i)).tokens);
    }
    EngineOptions options = on(GetParam());
    options.max_sequences = 3;  // the others wait
    options.ubatch_tokens = 16;
    Machine m(bytes_of(shape), options);
    std::vector<RequestId> ids;
    for (int32_t i = 0; i < 6; ++i) {
      ids.push_back(m.submit(greedy(prompt(3 + 31 * i, i), 10 + i)));
      m.engine->step();  // arrivals between steps
    }
    m.run();
    for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(m.sink.answers[ids[i]].tokens, alone[i]) << i;
  }
}

TEST_P(EngineOn, AModelWithoutRecurrentLayersResumesAtBlocks) {
  Machine m(bytes_of(tiny_attention()), on(GetParam()));
  EXPECT_EQ(m.engine->config().state_bytes({}), 0);
  const Answer first = m.ask(greedy(prompt(100), 8));
  const Answer again = m.ask(greedy(prompt(100), 8));
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_EQ(again.end.usage.cached_tokens, 96);  // whole blocks need no checkpoint
}

// tiny_laguna: three of four layers have a window of 64.
TEST_P(EngineOn, WindowsGiveBackWhatLiesBehindThem) {
  EngineOptions options = on(GetParam());
  options.context_tokens = 2048;
  options.ubatch_tokens = 64;
  options.hooks.poison_unused = true;
  options.hooks.shuffle_blocks = 5;
  Machine m(bytes_of(tiny_laguna()), options);
  const Scheduler& s = m.engine->scheduler();
  EXPECT_EQ(s.groups(), 2);
  EXPECT_EQ(s.blocks(0).total(), 64);
  EXPECT_LT(s.blocks(1).total(), 32);
  const MemoryPlan& plan = m.engine->memory();
  EXPECT_EQ(plan.kv_token_bytes, 4 * plan.kv_old_token_bytes);
  const auto in_use = [&](int32_t group) {
    return s.blocks(group).total() - s.blocks(group).free();
  };
  m.submit(greedy(prompt(1000), 200));
  Answer& answer = m.sink.answers[1];
  while (m.engine->step()) {
    m.engine->check();
    EXPECT_LE(in_use(1), 64 / 32 + (m.engine->devices().stages() > 1 ? 2 : 1));
    if (answer.tokens.size() == 1) {
      EXPECT_EQ(in_use(0), 32);
    }
  }
  // With a cache directory all layers keep all blocks.
  std::string folder = (std::filesystem::temp_directory_path() / "braid-windows-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  options.cache_dir = folder;
  {
    Machine whole(bytes_of(tiny_laguna()), options);
    EXPECT_EQ(whole.engine->scheduler().groups(), 1);
    EXPECT_EQ(whole.ask(greedy(prompt(1000), 200)).tokens, answer.tokens);
    EXPECT_GT(whole.engine->memory().predicted_bytes(), plan.predicted_bytes());
  }
  std::filesystem::remove_all(folder);
}

TEST_P(EngineOn, AnotherQuestionFindsWhatItsWindowsSee) {
  EngineOptions options = on(GetParam());
  options.context_tokens = 2048;
  options.hooks.poison_unused = true;
  Machine m(bytes_of(tiny_laguna()), options);
  for (const int32_t question : {5, 60, 300}) {
    auto asked = prompt(500);
    const auto more = prompt(question, question);
    asked.insert(asked.end(), more.begin(), more.end());
    Request r = greedy(asked, 10);
    r.checkpoints = {{500, ResumeKind::shared}};
    const Answer answer = m.ask(r);
    EXPECT_EQ(answer.end.usage.cached_tokens, question == 5 ? 0 : 480);
    EXPECT_EQ(answer.tokens, Machine(bytes_of(tiny_laguna()), options).ask(r).tokens);
  }
}

void let_all_layers_slide(GgufWriter& w) {
  static const std::vector<std::byte> slides(4, std::byte{1});
  GgufValue value;
  value.type = GgufValueType::ARRAY;
  value.elem_type = GgufValueType::BOOL;
  value.count = slides.size();
  value.bytes = slides;
  w.set_value("laguna.attention.sliding_window_pattern", value);
}

TEST_P(EngineOn, AllLayersMayHaveWindows) {
  const auto bytes = edited(bytes_of(tiny_laguna()), [](GgufWriter& w, std::vector<OwnTensor>&) {
    let_all_layers_slide(w);
  });
  EngineOptions options = on(GetParam());
  options.context_tokens = 2048;
  options.hooks.poison_unused = true;
  Machine m(bytes, options);
  EXPECT_EQ(m.engine->memory().kv_old_token_bytes, 0u);
  EngineOptions alone = options;
  alone.prefix_cache = false;
  const Answer first = m.ask(greedy(prompt(700), 20));
  EXPECT_EQ(first.tokens, Machine(bytes, alone).ask(greedy(prompt(700), 20)).tokens);
  const Answer again = m.ask(greedy(prompt(700), 20));
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_GT(again.end.usage.cached_tokens, 600);
}

using Said = std::pair<std::vector<int32_t>, std::vector<float>>;
Said say(const std::vector<std::byte>& bytes, const EngineOptions& options,
         const std::vector<int32_t>& ids) {
  Machine m(bytes, options);
  Request r = greedy(ids, 30);
  r.top_logprobs = 0;
  Said said;
  for (const TokenEvent& event : m.ask(r).events) {
    said.first.push_back(event.id);
    said.second.push_back(event.logprob);
  }
  EXPECT_EQ(said.first.size(), 30u);
  return said;
}

// By option or by file: the same model. Both kinds of layers use the same rope here.
TEST_P(EngineOn, AWindowByOptionIsThatOfAFile) {
  const auto turn_alike = [](GgufWriter& w) {
    w.set_string("laguna.rope.scaling.type", "none");
    w.set_u32("laguna.rope.dimension_count", 32);
    w.set_f32("laguna.rope.freq_base_swa", tiny_laguna().rope_base);
  };
  const auto file = edited(bytes_of(tiny_laguna()), [&](GgufWriter& w, auto&) { turn_alike(w); });
  EngineOptions options = on(GetParam());
  options.context_tokens = 1024;
  options.hooks.poison_unused = true;
  const auto asked = prompt(400);
  const Said whole = say(file, options, asked);
  EngineOptions limited = options;
  for (const uint32_t window : {32, 48, 64}) {
    limited.attention_window = static_cast<int32_t>(window);
    const auto slides = edited(file, [&](GgufWriter& w, auto&) {
      let_all_layers_slide(w);
      w.set_u32("laguna.attention.sliding_window", window);
    });
    const Said said = say(file, limited, asked);
    EXPECT_NE(said, whole) << window;
    EXPECT_EQ(said, say(slides, options, asked)) << window;
  }
  limited.attention_window = 100;  // windows of 64 stay
  const MemoryPlan plan = Engine::plan_memory(parsed(file), limited).value();
  EXPECT_EQ(plan.window_tokens, 100);
  EXPECT_NE(say(file, limited, asked), whole);
}

TEST_P(EngineOn, AWindowOfAllPositionsChangesNothing) {
  for (const RandomShape& shape : all_shapes()) {
    const auto bytes = bytes_of(shape);
    EngineOptions options = on(GetParam());
    const Said whole = say(bytes, options, prompt(200));
    for (const int32_t window : {256, 1000, 4096, INT32_MAX}) {
      options.attention_window = window;
      EXPECT_EQ(say(bytes, options, prompt(200)), whole) << shape.architecture << " " << window;
    }
  }
}

// Four attention layers: a row depends on 4 x 31 positions before it.
TEST_P(EngineOn, AWindowEndsWhatARowKnows) {
  const auto bytes = bytes_of(tiny_qwen3());
  EngineOptions options = on(GetParam());
  const auto one = prompt(200);
  auto other = one;
  for (size_t i = 0; i < 200 - 4 * 31 - 1; ++i) other[i] = (other[i] + 11) % 320;
  EXPECT_NE(say(bytes, options, one), say(bytes, options, other));
  options.attention_window = 32;
  EXPECT_EQ(say(bytes, options, one), say(bytes, options, other));
  other[200 - 4 * 31 - 1] = (other[200 - 4 * 31 - 1] + 11) % 320;
  EXPECT_NE(say(bytes, options, one), say(bytes, options, other));
}

// With recurrent layers a window only masks: all blocks are kept.
TEST_P(EngineOn, AWindowHoldsHoweverAPromptIsCut) {
  for (const RandomShape& shape : all_shapes()) {
    std::vector<std::vector<int32_t>> answers;
    for (const int32_t chunk : {1, 7, 64, 300}) {
      EngineOptions options = on(GetParam());
      options.attention_window = 40;
      options.ubatch_tokens = chunk;
      options.context_tokens = 512;
      options.max_sequences = 2;
      options.hooks.poison_unused = true;
      options.hooks.shuffle_blocks = 3;
      Machine m(bytes_of(shape), options);
      const bool recurrent = m.engine->config().state_bytes({}) > 0;
      const MemoryPlan& plan = m.engine->memory();
      EXPECT_EQ(plan.window_tokens, 40);
      EXPECT_EQ(m.engine->scheduler().groups(), recurrent ? 1 : 2);
      EXPECT_EQ(plan.kv_old_token_bytes, recurrent ? plan.kv_token_bytes : 0u);
      EXPECT_NE(
          plan.table().find(recurrent ? "windows of 40 tokens save none" : "window of 40 tokens"),
          std::string::npos);
      const RequestId beside = m.submit(greedy(prompt(90, 3), 40));
      answers.push_back(m.ask(greedy(prompt(250), 20)).tokens);
      EXPECT_EQ(m.sink.answers[beside].tokens.size(), 40u);
      const Answer again = m.ask(greedy(prompt(250), 20));
      EXPECT_EQ(again.tokens, answers.back());
      EXPECT_GT(again.end.usage.cached_tokens, 200);
    }
    for (const auto& answer : answers) EXPECT_EQ(answer, answers[0]) << shape.architecture;
  }
}

// Sizes of no published model. A GPU without kernels for them refuses.
TEST_P(EngineOn, OddSizesRunOrAreRefusedBeforeLoading) {
  RandomShape heads = tiny_dense();
  heads.head_dim = heads.rope_dims = 12;
  RandomShape state = tiny_dense();
  state.delta_dim = 48;
  RandomShape used = tiny_moe();
  used.experts = 64;
  used.experts_used = 40;
  const std::pair<RandomShape, const char*> cases[] = {
      {heads, "heads of 12"}, {state, "key heads of 48"}, {used, "40 of 64 experts"}};
  for (const auto& [shape, what] : cases) {
    const auto bytes = bytes_of(shape);
    if (std::string(GetParam()) != "cuda") {
      EXPECT_EQ(Machine(bytes, on(GetParam())).ask(greedy(prompt(40), 5)).tokens.size(), 5u)
          << what;
      continue;
    }
    const GgufFile file = parsed(bytes);
    const auto engine = Engine::create(file, on(GetParam()));
    ASSERT_FALSE(engine.ok()) << what;
    EXPECT_EQ(engine.error().kind, ErrorKind::unsupported);
    EXPECT_NE(engine.error().message.find(what), std::string::npos) << engine.error().message;
  }
}

// On a GPU a sequence's drafts of a step are bits of a word.
TEST_P(EngineOn, MoreDraftsThanKernelsTakeAreRefusedBeforeLoading) {
  const auto bytes = bytes_of(tiny_moe());
  const GgufFile file = parsed(bytes);
  EngineOptions options = on(GetParam());
  options.max_drafts = 64;
  {
    const auto engine = Engine::create(file, options);
    EXPECT_TRUE(engine.ok()) << engine.error().message;
  }
  options.max_drafts = 65;
  const auto engine = Engine::create(file, options);
  EXPECT_EQ(engine.ok(), std::string(GetParam()) != "cuda");
  if (engine.ok()) return;
  EXPECT_EQ(engine.error().kind, ErrorKind::unsupported);
  EXPECT_NE(engine.error().message.find("65 drafted tokens"), std::string::npos)
      << engine.error().message;
  EXPECT_NE(engine.error().message.find("at most 64"), std::string::npos) << engine.error().message;
}

TEST_P(EngineOn, FusedTensorsAreTheSameModel) {
  const auto split = bytes_of(tiny_moe(), "Q8_0");
  const auto fused = edited(split, [](GgufWriter&, std::vector<OwnTensor>& t) {
    fuse(t, {"blk.3.attn_q.weight", "blk.3.attn_k.weight", "blk.3.attn_v.weight"},
         "blk.3.attn_qkv.weight");
    for (int i = 0; i < 4; ++i) {
      const std::string p = "blk." + std::to_string(i) + ".";
      fuse(t, {p + "ffn_gate_exps.weight", p + "ffn_up_exps.weight"},
           p + "ffn_gate_up_exps.weight");
    }
  });
  Machine a(split, on(GetParam())), b(fused, on(GetParam()));
  EXPECT_EQ(a.ask(greedy(prompt(40), 20)).tokens, b.ask(greedy(prompt(40), 20)).tokens);
}

TEST_P(EngineOn, ScaleCompanionsMultiplyTheirProducts) {
  const auto plain = bytes_of(tiny_moe());
  // Powers of two, so rounding is unchanged.
  const auto scaled = edited(plain, [](GgufWriter&, std::vector<OwnTensor>& t) {
    for (const char* name : {"blk.0.ssm_out", "blk.1.ffn_down_exps", "blk.2.ssm_alpha",
                             "blk.3.attn_k", "blk.3.ffn_up_shexp", "output"}) {
      OwnTensor& w = find(t, std::string(name) + ".weight");
      auto* values = reinterpret_cast<float*>(w.data.data());
      for (size_t i = 0; i < w.data.size() / 4; ++i) values[i] *= 0.5f;
      OwnTensor scale{std::string(name) + ".scale", GgmlType::F32, {w.ne[2], 1, 1, 1}, {}};
      const std::vector<float> twos(w.ne[2], 2.0f);
      const auto raw = std::as_bytes(std::span(twos));
      scale.data.assign(raw.begin(), raw.end());
      t.push_back(std::move(scale));
    }
  });
  Machine a(plain, on(GetParam())), b(scaled, on(GetParam()));
  EXPECT_EQ(a.ask(greedy(prompt(40), 20)).tokens, b.ask(greedy(prompt(40), 20)).tokens);
}

TEST_P(EngineOn, StopsAtStopTokensLengthAndContext) {
  Machine m(bytes_of(tiny_dense()), on(GetParam()));
  const auto free_run = m.ask(greedy(prompt(20), 30));
  EXPECT_EQ(free_run.end.reason, FinishReason::length);
  EXPECT_EQ(free_run.end.usage.generated_tokens, 30);
  EXPECT_EQ(free_run.end.usage.prompt_tokens, 20);

  Request with_stop = greedy(prompt(20), 30);
  const int32_t stop = free_run.tokens[5];
  const auto first = std::find(free_run.tokens.begin(), free_run.tokens.end(), stop);
  with_stop.stop_ids = {stop};
  const auto stopped = m.ask(with_stop);
  EXPECT_EQ(stopped.end.reason, FinishReason::stop);
  EXPECT_EQ(stopped.end.stop_id, stop);
  EXPECT_EQ(stopped.tokens, std::vector<int32_t>(free_run.tokens.begin(), first));

  const auto full = m.ask(greedy(prompt(250), -1));
  EXPECT_EQ(full.end.reason, FinishReason::length);
  EXPECT_EQ(full.tokens.size(), 6u);  // 250 + 6 = the context of 256

  const auto nothing = m.ask(greedy(prompt(250), 0));
  EXPECT_EQ(nothing.end.reason, FinishReason::length);
  EXPECT_TRUE(nothing.tokens.empty());
}

TEST_P(EngineOn, CancelReturnsEverythingWithinTwoSteps) {
  EngineOptions options = on(GetParam());
  options.max_sequences = 2;
  options.ubatch_tokens = 8;
  Machine m(bytes_of(tiny_dense()), options);
  std::vector<RequestId> ids;
  for (int32_t i = 0; i < 4; ++i) ids.push_back(m.submit(greedy(prompt(50, i), 20)));
  m.sink.on_token = [&](RequestId id) {
    if (id == ids[1] && m.sink.answers[id].tokens.size() == 3) m.engine->cancel(id);  // in a step
  };
  m.engine->step();
  m.engine->cancel(ids[0]);  // in its prompt
  m.engine->cancel(ids[3]);  // still waiting
  m.engine->cancel(999);     // unknown
  // Those with a queued step end with it.
  for (int32_t i = 0; i < m.engine->devices().stages(); ++i) m.engine->step();
  EXPECT_TRUE(m.sink.answers[ids[0]].done);
  EXPECT_TRUE(m.sink.answers[ids[3]].done);
  m.run();
  EXPECT_EQ(m.sink.answers[ids[0]].end.reason, FinishReason::cancelled);
  EXPECT_EQ(m.sink.answers[ids[1]].end.reason, FinishReason::cancelled);
  EXPECT_EQ(m.sink.answers[ids[1]].tokens.size(), 3u);
  EXPECT_EQ(m.sink.answers[ids[2]].end.reason, FinishReason::length);
  EXPECT_EQ(m.sink.answers[ids[3]].end.reason, FinishReason::cancelled);
  EXPECT_EQ(m.sink.answers[ids[2]].tokens,
            Machine(bytes_of(tiny_dense()), on(GetParam())).ask(greedy(prompt(50, 2), 20)).tokens);
}

// Tokens are delivered in the next step, the last one with the end in its own.
TEST(Engine, LateNewsIsCompleteWhenNobodyRuns) {
  Machine m(bytes_of(tiny_dense()), on("cpu_late"));
  size_t told_in_step = 0;
  m.sink.on_token = [&](RequestId) { ++told_in_step; };
  const RequestId id = m.submit(greedy(prompt(20), 3));
  std::vector<size_t> told;
  while (true) {
    told_in_step = 0;
    if (!m.engine->step()) break;
    told.push_back(told_in_step);
  }
  EXPECT_EQ(told, (std::vector<size_t>{0, 1, 2}));  // the end needs no further step
  EXPECT_TRUE(m.sink.answers[id].done);
  EXPECT_EQ(m.sink.answers[id].end.usage.generated_tokens, 3);
}

// By the caller between steps, or by another sink, even after the token was recorded.
TEST_P(EngineOn, NoTokenComesAfterCancel) {
  for (const bool last_token : {false, true}) {
    for (const bool from_sink : {false, true}) {
      EngineOptions options = on(GetParam());
      options.max_sequences = 3;
      Machine m(bytes_of(tiny_dense()), options);
      std::vector<RequestId> ids;
      for (int32_t i = 0; i < 3; ++i)
        ids.push_back(m.submit(greedy(prompt(20, i), last_token ? 4 : 30)));
      std::map<RequestId, size_t> heard;  // at cancel()
      const auto cancel_all_but = [&](RequestId kept) {
        for (const RequestId id : ids)
          if (id != kept && m.engine->scheduler().running().size() > 0) {
            m.engine->cancel(id);
            heard.emplace(id, m.sink.answers[id].tokens.size());
          }
      };
      m.sink.on_token = [&](RequestId id) {
        if (from_sink && heard.empty() && m.sink.answers[id].tokens.size() == 3) cancel_all_but(id);
      };
      while (m.engine->step()) {
        m.engine->check();
        // With late events a pending token is delivered in the next step.
        if (!from_sink && heard.empty() && m.engine->scheduler().running().size() == 3 &&
            m.engine->scheduler().running()[0]->generated() == 3)
          cancel_all_but(ids[0]);
      }
      ASSERT_EQ(heard.size(), 2u) << last_token << from_sink;
      for (const auto& [id, tokens] : heard) {
        EXPECT_EQ(m.sink.answers[id].tokens.size(), tokens) << last_token << from_sink;
        EXPECT_EQ(m.sink.answers[id].end.reason, FinishReason::cancelled)
            << last_token << from_sink;
      }
    }
  }
}

// Judged before it was cancelled in the same step.
TEST_P(EngineOn, AScoreThatCancelsAnotherIsHeardAtOnce) {
  EngineOptions options = on(GetParam());
  options.max_sequences = 2;
  Machine m(bytes_of(tiny_dense()), options);
  Request first = greedy(prompt(20, 1), 10);
  first.priority = 1;
  const RequestId id = m.submit(std::move(first));
  Request scored = greedy(prompt(20, 2), 0);
  scored.score = [&](int32_t, std::span<const float>) { m.engine->cancel(id); };
  m.submit(std::move(scored));
  m.run();
  EXPECT_TRUE(m.sink.answers[id].tokens.empty());
  EXPECT_EQ(m.sink.answers[id].end.reason, FinishReason::cancelled);
}

TEST_P(EngineOn, APromptOfWholeBlocksMayEndWithoutAnAnswer) {
  Machine m(bytes_of(tiny_dense()), on(GetParam()));
  for (const int32_t length : {32, 64, 192}) {
    EXPECT_EQ(m.ask(greedy(prompt(length, length), 0)).end.reason, FinishReason::length);
    EXPECT_EQ(m.ask(greedy(prompt(length, length), 3)).tokens.size(), 3u);
  }
}

TEST_P(EngineOn, TheSameSeedGivesTheSameAnswer) {
  Machine m(bytes_of(tiny_dense()), on(GetParam()));
  const auto ask = [&](uint64_t seed) {
    Request r = greedy(prompt(10), 30);
    r.sampling = {};
    r.sampling.temperature = 2;
    r.sampling.seed = seed;
    return m.ask(r).tokens;
  };
  EXPECT_EQ(ask(1), ask(1));
  EXPECT_NE(ask(1), ask(2));
}

TEST_P(EngineOn, ScoresEveryPromptRowInOrderHoweverTheRowsAreCut) {
  std::vector<std::vector<float>> whole;
  for (const int32_t chunk : {64, 5}) {
    EngineOptions options = on(GetParam());
    options.ubatch_tokens = chunk;
    Machine m(bytes_of(tiny_dense()), options);
    Request r = greedy(prompt(40), 0);
    r.score_from = 3;
    std::vector<std::vector<float>> rows;
    r.score = [&](int32_t position, std::span<const float> logits) {
      EXPECT_EQ(position, 3 + static_cast<int32_t>(rows.size()));
      rows.emplace_back(logits.begin(), logits.end());
    };
    m.ask(r);
    ASSERT_EQ(rows.size(), 37u);
    if (whole.empty()) {
      whole = rows;
    } else {
      EXPECT_EQ(rows, whole);
    }
  }
}

TEST_P(EngineOn, LogProbabilitiesBelongToTheTokens) {
  Machine m(bytes_of(tiny_dense()), on(GetParam()));
  Request r = greedy(prompt(12), 5);
  r.top_logprobs = 3;
  const auto answer = m.ask(r);
  for (const TokenEvent& e : answer.events) {
    ASSERT_EQ(e.top.size(), 3u);
    EXPECT_EQ(e.top[0].first, e.id);  // greedy
    EXPECT_EQ(e.top[0].second, e.logprob);
    EXPECT_LT(e.logprob, 0);
    EXPECT_GE(e.top[1].second, e.top[2].second);
  }
}

TEST(Engine, ImpossibleRequestsAreRefusedWithNumbers) {
  Machine m(bytes_of(tiny_dense()));
  EXPECT_NE(refusal(m, greedy({}, 1)).find("no tokens"), std::string::npos);
  EXPECT_NE(refusal(m, greedy(prompt(256), 1)).find("256 tokens"), std::string::npos);
  EXPECT_NE(refusal(m, greedy({1, 320}, 1)).find("token 320"), std::string::npos);
  EXPECT_NE(refusal(m, greedy({-1}, 1)).find("token -1"), std::string::npos);
  Request hot = greedy({1}, 1);
  hot.sampling.temperature = -1;
  EXPECT_NE(refusal(m, hot).find("temperature"), std::string::npos);
  EXPECT_TRUE(m.engine->idle());
}

TEST_P(EngineOn, DamagedWeightsEndTheAnswerWithAnError) {
  const auto damaged = edited(bytes_of(tiny_dense()), [](GgufWriter&, std::vector<OwnTensor>& t) {
    auto* values = reinterpret_cast<float*>(find(t, "output_norm.weight").data.data());
    for (int i = 0; i < 64; ++i) values[i] = NAN;
  });
  Machine m(damaged, on(GetParam()));
  const auto answer = m.ask(greedy(prompt(5), 5));
  EXPECT_EQ(answer.end.reason, FinishReason::error);
  EXPECT_NE(answer.end.error.find("not numbers"), std::string::npos);
}

std::string creation_error(EngineOptions options) {
  const auto bytes = bytes_of(tiny_dense());
  const GgufFile file = parsed(bytes);
  options.device = options.device == "cpu" ? "ref" : options.device;
  const auto engine = Engine::create(file, options);
  return engine.ok() ? "" : engine.error().message;
}

TEST(Engine, OnACpuThePlanIsWhatIsTaken) {
  const auto bytes = bytes_of(tiny_moe());
  const GgufFile file = parsed(bytes);
  EngineOptions options;
  options.max_sequences = 3;
  options.context_tokens = 512;
  options.threads = 2;
  const auto engine = Engine::create(file, options);
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  const double page_bytes = 4096.0 * (*engine)->devices().count();
  for (const MemoryRow& row : (*engine)->memory().rows)
    EXPECT_NEAR(static_cast<double>(row.actual_bytes), static_cast<double>(row.predicted_bytes),
                0.02 * static_cast<double>(row.predicted_bytes) + page_bytes)
        << memory_use_name(row.use);
}

TEST(Engine, WhatDoesNotFitIsRefusedBeforeLoadingWithWhatWould) {
  EngineOptions options;
  options.context_tokens = 4096;
  options.host_memory_bytes = 3 << 20;
  const std::string message = creation_error(options);
  EXPECT_NE(message.find("4096 tokens"), std::string::npos) << message;
  EXPECT_NE(message.find("3.0 MiB are available"), std::string::npos) << message;

  options.host_memory_bytes = 0;
  options.context_tokens = 4097;
  EXPECT_NE(creation_error(options).find("4096"), std::string::npos);
  options.context_tokens = 100;
  options.max_sequences = 0;
  EXPECT_NE(creation_error(options), "");
  options.max_sequences = 1;
  for (const int32_t window : {-1, 1, 31, INT32_MIN}) {
    options.attention_window = window;
    EXPECT_NE(creation_error(options).find(fmt::format("{} positions", window)), std::string::npos);
  }
  options.attention_window = 32;
  options.device = "abacus";
  EXPECT_NE(creation_error(options).find("abacus"), std::string::npos);
}

TEST(Engine, AnOpenContextTakesWhatTheModelAllows) {
  const auto bytes = bytes_of(tiny_dense());
  const GgufFile file = parsed(bytes);
  EngineOptions options;
  options.device = "ref";
  options.host_memory_bytes = uint64_t{1} << 30;
  auto plan = Engine::plan_memory(file, options);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->context_tokens, 4096);
  EXPECT_NE(plan->table().find("KV blocks"), std::string::npos);
}

}  // namespace
}  // namespace braid
