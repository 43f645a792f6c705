// formats.h -- the rows of the table of formats, with the file of their functions.
#pragma once

#include "ops/kv/kv_codec.h"

namespace braid::kv {

extern const KvCodec kF32, kF16, kBf16;                  // plain.cpp
extern const KvCodec kQ8_0, kQ5_1, kQ5_0, kQ4_1, kQ4_0;  // classic.cpp
extern const KvCodec kRotatedQ8_0, kRotatedQ5_1, kRotatedQ5_0, kRotatedQ4_1, kRotatedQ4_0;
extern const KvCodec kTbq4_0, kTq3_0, kTbq3_0;  // codebook.cpp
extern const KvCodec kC6, kC5, kC4, kC3;        // channel.cpp
extern const KvCodec kKvarn4, kKvarn3;          // kvarn.cpp

}  // namespace braid::kv
