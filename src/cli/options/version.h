// version.h -- what `braid --version` prints, which bug reports should quote.
#pragma once

#include <string>

namespace braid::cli {

// A few lines: version and commit, compiler, GPU architectures, instruction set of this processor.
std::string version_text();

}  // namespace braid::cli
