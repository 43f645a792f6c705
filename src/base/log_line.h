// log_line.h -- one finished line for the log, for sources that cannot include log.h (nvcc does not compile
// spdlog).
#pragma once

#include <string>

namespace braid {

void log_info(const std::string& line);
void log_warning(const std::string& line);

}  // namespace braid
