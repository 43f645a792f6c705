// engine_memory_test.cpp -- what sizes the engine chooses by itself.
#include "engine/engine_memory.h"

#include <gtest/gtest.h>

#include "engine/tests/demo_test.h"

namespace braid {
namespace {

using testing_demo::kDemoDrafter;
using testing_demo::kDemoModel;

// Limits of the demo model's scheduler, as Engine::open() gets to them.
SchedulerLimits limits_of(EngineOptions options) {
  auto file = GgufFile::open(kDemoModel);
  EXPECT_TRUE(file.ok());
  options.context_tokens = 4096;
  options.max_sequences = 4;
  options.draft_depth = options.max_drafts;
  ModelOptions model_options;
  model_options.with_mtp = options.spec_type.has(SpecType::mtp);
  auto model = Model::open(*file, model_options);
  EXPECT_TRUE(model.ok());
  EngineMemory memory;
  std::unique_ptr<Dflash> drafter;
  if (options.spec_type.has(SpecType::dflash)) {
    auto opened = Dflash::open(kDemoDrafter, (*model)->config());
    EXPECT_TRUE(opened.ok());
    drafter = std::move(opened).value();
    (*model)->attach(*drafter, drafter->kv_layers());
    memory.dflash = drafter.get();
  }
  DeviceOptions device_options;
  device_options.threads = 1;
  device_options.max_tokens = EngineMemory::most_rows(options);
  auto device = make_cpu_device(device_options);
  EXPECT_TRUE(device.ok());
  const Status planned = memory.make_plan(options, **model, **device);
  EXPECT_TRUE(planned.ok()) << (planned.ok() ? "" : planned.error().message);
  return memory.scheduler_limits(options, (*model)->config());
}

// Slots and blocks hold more for a head or a drafter, but checkpoints stand where they would without, and so
// later prompts find as much.
TEST(EngineMemory, DraftersDoNotMoveCheckpoints) {
  const SchedulerLimits plain = limits_of({});
  // By the model's sizes, not by what is the least or the most of any model.
  EXPECT_GT(plain.checkpoint_spacing, 64);
  EXPECT_LT(plain.checkpoint_spacing, 512);
  EXPECT_GT(plain.checkpoint_interval, 1024);
  EXPECT_LT(plain.checkpoint_interval, 8192);
  for (const auto& [type, drafts] :
       {std::pair(SpecType::ngram, 7), {SpecType::mtp, 3}, {SpecType::dflash, 15}}) {
    EngineOptions options;
    options.spec_type = type;
    options.max_drafts = drafts;
    if (type == SpecType::dflash) options.draft_model = kDemoDrafter;
    const SchedulerLimits drafting = limits_of(options);
    EXPECT_EQ(drafting.checkpoint_spacing, plain.checkpoint_spacing) << static_cast<int>(type);
    EXPECT_EQ(drafting.checkpoint_interval, plain.checkpoint_interval) << static_cast<int>(type);
  }
}

}  // namespace
}  // namespace braid
