// iq_grids.h -- the codebooks of the iq1, iq2 and iq3 block types, unfolded at first use.
// An index is the rank of a vector in ascending order of its digits (element 0 least significant).
#pragma once

#include <array>
#include <cstdint>

namespace braid {

struct IqGrids {
  std::array<std::array<uint8_t, 8>, 256> g2xxs;
  std::array<std::array<uint8_t, 8>, 512> g2xs;
  std::array<std::array<uint8_t, 8>, 1024> g2s;
  std::array<std::array<uint8_t, 4>, 256> g3xxs;
  std::array<std::array<uint8_t, 4>, 512> g3s;
  std::array<std::array<int8_t, 8>, 2048> g1;
};

const IqGrids& iq_grids();

}  // namespace braid
