// engine_memory_test.cpp -- automatic sizes and the memory plan.
#include "engine/engine_memory.h"

#include <gtest/gtest.h>

#include "engine/draft/ngram_drafter.h"
#include "engine/schedule/step_outputs.h"
#include "engine/tests/demo_test.h"

namespace braid {
namespace {

using testing_demo::kDemoDrafter;
using testing_demo::kDemoModel;

struct Planned {
  EngineMemory memory;
  SchedulerLimits limits;
  uint64_t bytes(MemoryUse use) const {
    uint64_t sum = 0;
    for (const MemoryRow& row : memory.plan.rows) sum += row.use == use ? row.predicted_bytes : 0;
    return sum;
  }
};
Planned planned_for(EngineOptions options) {
  auto file = GgufFile::open(kDemoModel);
  EXPECT_TRUE(file.ok());
  options.context_tokens = 4096;
  options.draft_depth = options.max_drafts;
  ModelOptions model_options;
  model_options.with_mtp = options.spec_type.has(SpecType::mtp);
  auto model = Model::open(*file, model_options);
  EXPECT_TRUE(model.ok());
  Planned out;
  EngineMemory& memory = out.memory;
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
  Devices devices(std::move(device).value());
  const Status planned = memory.make_plan(options, **model, devices);
  EXPECT_TRUE(planned.ok()) << (planned.ok() ? "" : planned.error().message);
  out.limits = memory.scheduler_limits(options, (*model)->config());
  return out;
}

SchedulerLimits limits_of(EngineOptions options) {
  options.max_sequences = 4;
  return planned_for(options).limits;
}

// Later prompts must find the same checkpoints with and without a drafter.
TEST(EngineMemory, DraftersDoNotMoveCheckpoints) {
  const SchedulerLimits plain = limits_of({});
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

TEST(EngineMemory, WhatTheHostKeepsIsPlanned) {
  EngineOptions options;
  options.spec_type = SpecType::none;
  options.max_sequences = 512;
  const Planned plain = planned_for(options);
  EXPECT_GT(plain.memory.sizes.blocks[0], 1000);
  EXPECT_EQ(plain.bytes(MemoryUse::block_books),
            BlockPool::bytes(plain.memory.sizes.blocks[0]) +
                BlockPool::bytes(plain.memory.sizes.blocks[1]));
  EXPECT_EQ(plain.bytes(MemoryUse::ngram_tables), 0u);
  EXPECT_EQ(plain.bytes(MemoryUse::fetched_logits), 0u) << "the host reads the device's";
  options.spec_type = SpecType::ngram;
  options.max_drafts = 7;
  EXPECT_EQ(planned_for(options).bytes(MemoryUse::ngram_tables), NgramDrafter::bytes(512, 4096));
  EXPECT_GT(NgramDrafter::bytes(512, 4096), uint64_t{512} * 2 * 4096 * sizeof(int32_t));
  EXPECT_LT(NgramDrafter::bytes(512, 1 << 20), uint64_t{129} << 20)
      << "bounded whatever the context";
  // Eight rows of logits or hidden values; for every row the best 64, their ids and a sum.
  EXPECT_EQ(StepOutputs::host_bytes(4, 1000, 512, 2),
            (8u * 1000 + 2 * (4 * 129 + 8 * 512)) * sizeof(float));
  EXPECT_EQ(StepOutputs::host_bytes(4, 10, 512, 1), (8u * 512 + 4 * 21 + 8 * 512) * sizeof(float));
}

}  // namespace
}  // namespace braid
