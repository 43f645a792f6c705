// code_share.h -- how much of each part of a text is code, from its bytes alone.
//
// Of each line, or of each 512 bytes of a longer one:
//   symbols      brackets, operators and their like per byte that is no blank; 1 from 0.12 on
//   identifiers  names_like_this, likeThis, a::b, a.b, f( per word; 1 from 0.4 on
//   end          1 if the line ends like a statement or a block
//   indent       1 if the line begins with a tab or two blanks
//   share = min(1, 0.6 symbols + 0.5 identifiers + 0.3 end + 0.2 indent)
// A chunk's share is the mean over its bytes and those of kRegionChunks chunks on both sides, since
// code comes in regions. Bytes of blank lines do not count. JSON, logs of calls, tables and markup
// look like code, and lose as much when they are cut.
// Cost: linear in bytes and tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "text/compress/ranges.h"

namespace braid {

inline constexpr size_t kRegionChunks = 4;
inline constexpr float kCodeRegion = 0.5f;  // a chunk with at least this share is code

// Share of one line without its line break, 0 to 1; 0 for a blank one. Linear in bytes.
float code_share_of_line(std::string_view line);

// token_ends [tokens]: bytes of the text up to the end of each token; they never decrease, and the
// last one is the size of the text. Returns [chunk_count(tokens)], 0 to 1.
std::vector<float> code_shares(std::string_view text, std::span<const uint32_t> token_ends);

}  // namespace braid
