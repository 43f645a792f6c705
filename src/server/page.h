// page.h -- the web page inside the binary. It makes no requests to other machines.
#pragma once

#include <string>
#include <string_view>

namespace braid::server {

std::string embedded_page();

// Content-Security-Policy: only its own server, and only its current scripts and styles (by hash),
// so that model output cannot inject code.
std::string page_policy(std::string_view page);

}  // namespace braid::server
