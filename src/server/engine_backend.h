// engine_backend.h -- the engine's service (engine/service.h) as the server's backend.
#pragma once

#include <memory>

#include "engine/service.h"
#include "server/api/backend.h"

namespace braid::server {

// `slots`: maximum of running sequences.
std::shared_ptr<Backend> make_engine_backend(std::unique_ptr<EngineService> service, int32_t slots);

}  // namespace braid::server
