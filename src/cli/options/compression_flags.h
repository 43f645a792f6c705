// compression_flags.h -- options of commands that compress prompts for other models.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "server/compress/load_scorer.h"

namespace CLI {
class App;
}

namespace braid::cli {

// The model inside of the program, as a name for --prefill-drafter.
inline constexpr const char* kBuiltInDrafter = "builtin";

struct CompressionFlags {
  std::string mode;     // off, auto or always; empty: auto with a drafter, else off
  std::string drafter;  // file; empty: none
  std::string keep = "auto";
  int threshold_tokens = 32'000;
  int context_tokens = 0;
  std::optional<double> sparse_threshold;
};

class OptionGroup;
// --prefill-drafter-sparse.
void add_drafter_sparse_option(OptionGroup& group, std::optional<double>& threshold);

void add_compression_options(CLI::App& command, CompressionFlags& flags);

// Empty without a drafter. The file is empty for kBuiltInDrafter. Errors: invalid_argument.
Result<std::optional<server::CompressionOptions>> compression_options(const CompressionFlags& flags,
                                                                      const std::string& device,
                                                                      int threads);

}  // namespace braid::cli
