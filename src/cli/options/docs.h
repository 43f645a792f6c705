// docs.h -- reference pages in Markdown that the program generates.
#pragma once

#include <string>
#include <vector>

#include "cli/options/listing.h"

namespace braid::cli {

std::string cli_reference(const std::vector<ListedCommand>& commands);
// Paths, and the fields of requests by endpoint: obeyed, refused, ignored.
std::string api_reference();
std::string metrics_reference();
std::string errors_reference();

}  // namespace braid::cli
