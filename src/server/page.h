// page.h -- the web page inside the binary. It asks nothing of any other machine.
#pragma once

#include <string>
#include <string_view>

namespace braid::server {

std::string embedded_page();

// The Content-Security-Policy of a page: it may talk to its own server only, and run only the scripts and
// styles that stand in it now (by their hashes), whatever a model makes it show.
std::string page_policy(std::string_view page);

}  // namespace braid::server
