// open_devices.h -- from the names of devices to Devices.
//
// "cpu", "ref", "cuda" (the first GPU), "cuda:1", "auto" (the first GPU, else the CPU), or several
// of one kind with commas: "cuda:0,cuda:1". CPU devices of one list share their threads. "cpu" may
// come before GPUs: it has the first layers. With EngineOptions::planned_gpus, GPUs are not opened.
//
// For tests, BRAID_STAGES=3 makes three devices of each single name: the GPUs from that one on in
// turn, which on a machine with one GPU is three times the same, or the CPU three times.
// BRAID_RANKS=2 does so for ranks.
#pragma once

#include <memory>
#include <string_view>

#include "base/result.h"
#include "engine/engine_options.h"
#include "ops/devices.h"

namespace braid {

// Error: invalid_argument, if they are not such a list.
Status check_device_names(std::string_view text);

// Those that options.device names. With Split::tensor the environment should have
// CUDA_MODULE_LOADING=EAGER before the first CUDA call: loading a kernel waits for those that run,
// which may wait for another rank. `max_rows`: of a step. Errors: invalid_argument (names),
// unsupported (no such GPU).
Result<std::shared_ptr<Devices>> open_devices(const EngineOptions& options, int32_t max_rows);

// Whether the layers may be spread over more GPUs than the one opened for "auto" or "cuda".
bool may_use_more_devices(const EngineOptions& options, const Devices& opened);
// "cuda:0,cuda:1"; options.device without GPUs.
std::string all_gpus(const EngineOptions& options);

// options.device with the CPU before its GPUs; unchanged without GPUs, or if it begins with the
// CPU. Error: invalid_argument.
Result<std::string> with_cpu(const EngineOptions& options);

}  // namespace braid
