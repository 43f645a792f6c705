// routes.cpp -- see routes.h. Body sizes: HttpOptions::max_body_bytes; JSON: AppOptions::limits.
#include "server/endpoints/routes.h"

namespace braid::server {

namespace {

using Open = Route::Open;

constexpr bool kBelow = true, kExact = false;
constexpr auto kInfo = Route::Use::info, kWorks = Route::Use::works, kProbe = Route::Use::probe,
               kScrape = Route::Use::scrape;

// clang-format off
constexpr Route kRoutes[] = {
    {"GET",  "/",                       kExact, Open::yes,               kInfo,  endpoint::page},
    {"GET",  "/health",                 kExact, Open::yes,               kProbe, endpoint::health},
    {"GET",  "/healthz",                kExact, Open::yes,               kProbe, endpoint::health},
    {"GET",  "/readyz",                 kExact, Open::yes,               kProbe, endpoint::health},
    {"GET",  "/ping",                   kExact, Open::yes,               kProbe, endpoint::health},
    {"GET",  "/livez",                  kExact, Open::yes,               kProbe, endpoint::live},
    {"GET",  "/version",                kExact, Open::yes,               kInfo,  endpoint::version},
    {"GET",  "/models",                 kExact, Open::if_public_models,  kInfo,  endpoint::models},
    {"GET",  "/models/",                kBelow, Open::if_public_models,  kInfo,  endpoint::models},
    {"GET",  "/metrics",                kExact, Open::if_public_metrics, kScrape, endpoint::metrics},
    {"GET",  "/experts",                kExact, Open::if_public_metrics, kScrape, endpoint::experts},
    {"GET",  "/props",                  kExact, Open::no,                kInfo,  endpoint::props},
    {"GET",  "/slots",                  kExact, Open::no,                kInfo,  endpoint::slots},
    {"POST", "/tokenize",               kExact, Open::no,                kWorks, endpoint::tokenize},
    {"POST", "/detokenize",             kExact, Open::no,                kWorks, endpoint::detokenize},
    {"POST", "/apply-template",         kExact, Open::no,                kWorks, endpoint::apply_template},
    {"POST", "/completions",            kExact, Open::no,                kWorks, endpoint::completions},
    {"POST", "/chat/completions",       kExact, Open::no,                kWorks, endpoint::chat},
    {"POST", "/responses",              kExact, Open::no,                kWorks, endpoint::responses},
    {"POST", "/responses/input_tokens", kExact, Open::no,                kWorks, endpoint::input_tokens},
    {"*",    "/responses/",             kBelow, Open::no,                kInfo,  endpoint::stored_responses},
    {"POST", "/messages",               kExact, Open::no,                kWorks, endpoint::messages},
    {"POST", "/messages/count_tokens",  kExact, Open::no,                kWorks, endpoint::count_tokens},
    {"POST", "/embeddings",             kExact, Open::no,                kWorks, endpoint::embeddings},
};
// clang-format on

}  // namespace

bool Route::is_open(const AppOptions& options) const {
  switch (open) {
    case Open::yes:
      return true;
    case Open::if_public_metrics:
      return options.public_metrics;
    case Open::if_public_models:
      return options.public_models;
    case Open::no:
      break;
  }
  return false;
}

std::span<const Route> all_routes() { return kRoutes; }

const Route* find_route(std::string_view path) {
  if (path.starts_with("/v1/")) path.remove_prefix(3);
  const Route* below = nullptr;
  for (const Route& route : kRoutes) {
    if (route.path == path) return &route;
    if (route.below && path.starts_with(route.path)) below = &route;
  }
  return below;
}

}  // namespace braid::server
