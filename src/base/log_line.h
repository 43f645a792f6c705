// log_line.h -- logs one line, for sources that cannot include log.h (nvcc fails on spdlog).
#pragma once

#include <string>

namespace braid {

void log_info(const std::string& line);
void log_warning(const std::string& line);

}  // namespace braid
