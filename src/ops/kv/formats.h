// formats.h -- the rows of the table of formats, with the file of their functions.
#pragma once

#include "ops/kv/kv_codec.h"

namespace braid::kv {

extern const KvCodec kF32, kF16, kBf16;                  // plain.cpp
extern const KvCodec kQ8_0, kQ5_1, kQ5_0, kQ4_1, kQ4_0;  // classic.cpp
extern const KvCodec kTbq4_0, kTq3_0;                    // codebook.cpp
extern const KvCodec kC5, kC4;                           // channel.cpp

}  // namespace braid::kv
