// dflash_file.h -- a drafter's file: its configuration, and its tensors by any of their names.
// A folder with config.json and model.safetensors, or a GGUF file, whose names vary by program.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gguf/gguf.h"
#include "gguf/safetensors.h"
#include "model/dflash/dflash_config.h"

namespace braid {

struct DflashTensor {
  std::string name;  // as in the file
  GgmlType type = GgmlType::F32;
  std::array<uint64_t, 4> ne = {1, 1, 1, 1};  // fastest first, as in GGUF
  std::span<const std::byte> data;            // points into the file
};

class DflashFile {
 public:
  // A GGUF file, a .safetensors file beside its config.json, or the folder. Errors: not_found, io,
  // corrupt, unsupported.
  static Result<DflashFile> open(const std::string& path);
  // The bytes must outlive the result.
  static Result<DflashFile> of_gguf(GgufFile file);
  static Result<DflashFile> of_safetensors(SafetensorsFile file, std::string_view config);

  const std::string& name() const { return name_; }
  const DflashConfig& config() const { return config_; }
  // By any of `names`; empty if absent. Errors: corrupt (over 3 dimensions), unsupported (type).
  Result<std::optional<DflashTensor>> find(std::span<const std::string> names);
  // A tensor that was never found, a sign of another kind of drafter. Empty if all were.
  std::string left_over() const;
  uint64_t file_bytes() const;

 private:
  DflashFile() = default;

  std::string name_;
  DflashConfig config_;
  std::optional<GgufFile> gguf_;  // one of the two
  std::optional<SafetensorsFile> safetensors_;
  std::set<std::string, std::less<>> found_;
};

}  // namespace braid
