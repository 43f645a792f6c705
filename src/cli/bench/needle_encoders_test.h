// needle_encoders_test.h -- encoders for tests of needle cases.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "cli/bench/needle_stock.h"
#include "gguf/gguf.h"
#include "text/tokenizer/tokenizer.h"

namespace braid::cli {

// The tokenizer of the built-in model.
inline const Tokenizer& demo_tokenizer() {
  static const Tokenizer kTokenizer = [] {
    const auto file = GgufFile::open(BRAID_SOURCE_DIR "/models/braid-demo-q8_0.gguf");
    return Tokenizer::create(read_vocabulary(*file).value()).value();
  }();
  return kTokenizer;
}

inline Result<std::vector<int32_t>> demo_encode(std::string_view text) {
  return demo_tokenizer().encode(text);
}

// Words with the blanks before them, in pieces of at most four bytes, after a begin token. Depends
// on no model file. Pieces are numbered by their bytes.
inline Result<std::vector<int32_t>> piece_encode(std::string_view text) {
  std::vector<int32_t> ids = {-1};
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && (text[end] == ' ' || text[end] == '\n')) ++end;
    const size_t most = std::min(text.size(), std::max(end, at) + 4);
    while (end < most && text[end] != ' ' && text[end] != '\n') ++end;
    int32_t id = 0;
    for (const char c : text.substr(at, end - at)) id = (id * 31 + c) & 0xFFFFFF;
    ids.push_back(id);
    at = end;
  }
  return ids;
}

}  // namespace braid::cli
