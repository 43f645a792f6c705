// page.h -- the web page inside the binary. It asks nothing of any other machine.
#pragma once

#include <string>

namespace braid::server {

std::string embedded_page();

}  // namespace braid::server
