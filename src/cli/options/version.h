// version.h -- the text of `braid --version`, for bug reports.
#pragma once

#include <string>

namespace braid::cli {

// A few lines: version and commit, compiler, GPU architectures, instruction set of this CPU.
std::string version_text();

}  // namespace braid::cli
