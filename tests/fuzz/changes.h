// changes.h -- reads a fuzzer's input as changes to a valid file, so that it gets past the parser.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gguf/gguf.h"
#include "gguf/gguf_writer.h"

namespace braid::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  uint8_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  uint32_t number() {
    const uint8_t kind = byte();
    if (kind < 128) return kind;
    if (kind < 192) return (uint32_t{1} << (kind & 31)) + (kind & 32 ? 1 : 0);
    if (kind < 224) return (uint32_t{1} << (kind & 31)) - 1;
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value = value << 8 | byte();
    return value;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

inline void change_key(GgufWriter& writer, const std::string& key, Input& in) {
  switch (in.byte() % 8) {
    case 0:
      writer.remove(key);
      break;
    case 1: {
      constexpr std::array<float, 8> kFloats = {0.0f,  -1.0f,   1.0f,     0.5f,
                                                1e30f, -1e-30f, INFINITY, NAN};
      writer.set_f32(key, kFloats[in.byte() % kFloats.size()]);
      break;
    }
    case 2:
      writer.set_bool(key, in.byte() % 2 == 1);
      break;
    case 3: {
      constexpr std::array<const char*, 4> kTexts = {"yarn", "linear", "none", "longrope"};
      writer.set_string(key, kTexts[in.byte() % kTexts.size()]);
      break;
    }
    case 4: {
      std::vector<uint32_t> list(in.byte() % 8);
      for (uint32_t& value : list) value = in.number();
      writer.set_u32s(key, list);
      break;
    }
    default:
      writer.set_u32(key, in.number());
  }
}

struct Changed {
  std::string name;
  std::array<uint64_t, 4> ne;
  uint32_t dims = 1;
  std::vector<std::byte> data;
};

inline std::vector<Changed> tensors_of(const GgufFile& file) {
  std::vector<Changed> tensors;
  for (const GgufTensor& t : file.tensors()) {
    uint32_t dims = 4;
    while (dims > 1 && t.ne[dims - 1] == 1) --dims;
    tensors.push_back({std::string(t.name), t.ne, dims, {t.data.begin(), t.data.end()}});
  }
  return tensors;
}

}  // namespace braid::fuzz
