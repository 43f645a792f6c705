// moe_few.h -- the experts of a few tokens in two launches (moe_few.cu).
#pragma once

#include "ops/cuda/context.h"
#include "ops/cuda/gemm/packed.h"

namespace braid::cuda {

struct MoeIn;
struct MoeOut;

// False: unsupported form, nothing was launched.
bool launch_moe_few(Context& context, const MoeIn& in, const MoeOut& out, Pack in_pack,
                    Pack out_pack);

}  // namespace braid::cuda
