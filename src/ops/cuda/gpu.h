// gpu.h -- the CUDA runtime, as all of this folder includes it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
