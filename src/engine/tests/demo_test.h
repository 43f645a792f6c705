// demo_test.h -- the demo model, its drafter and its goldens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/mapped_file.h"

namespace braid::testing_demo {

inline const std::string kRoot = BRAID_SOURCE_DIR;
inline const std::string kDemoModel = kRoot + "/models/braid-demo-q8_0.gguf";
inline const std::string kDemoDrafter = kRoot + "/models/braid-demo-dflash";

inline const std::vector<std::byte>& demo_bytes() {
  static const std::vector<std::byte> kBytes = [] {
    auto file = MappedFile::open(kDemoModel);
    const auto span = file->bytes();
    return std::vector<std::byte>(span.begin(), span.end());
  }();
  return kBytes;
}

inline const nlohmann::json& demo_goldens() {
  static const nlohmann::json kCases =
      nlohmann::json::parse(std::ifstream(kRoot + "/tests/goldens/demo.json"));
  return kCases;
}
inline std::vector<int32_t> golden_prompt(size_t index) {
  return demo_goldens().at(index)["ids"].get<std::vector<int32_t>>();
}

}  // namespace braid::testing_demo
