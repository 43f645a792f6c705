// request_fuzz.cpp -- hostile request bodies through the readers of every API.
//
// The first byte chooses the reader, the rest is the body.
//
// Promises held: no crash, no undefined behaviour; an error has a message and a status of 400 to 499; what
// was read stays inside the limits.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "server/requests/read_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace braid::server;
  if (size == 0 || size > 1 << 16) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto json = parse_body(body);
  if (!json.ok()) {
    BRAID_CHECK(json.error().status == 400 && !json.error().message.empty());
    return 0;
  }
  const ApiLimits limits;
  const auto read = [&] {
    switch (data[0] % 4) {
      case 0:
        return read_chat(*json, limits);
      case 1:
        return read_completions(*json, limits);
      case 2:
        return read_responses(*json, limits);
      default:
        return read_messages(*json, limits);
    }
  };
  const auto generation = read();
  if (!generation.ok()) {
    BRAID_CHECK(generation.error().status >= 400 && generation.error().status < 500);
    BRAID_CHECK(!generation.error().message.empty());
    return 0;
  }
  BRAID_CHECK(generation->n >= 1 && generation->n <= limits.max_n);
  BRAID_CHECK(generation->stops.size() <= static_cast<size_t>(limits.max_stops));
  BRAID_CHECK(generation->tools.size() <= limits.max_tools);
  TemplateAbilities abilities;
  template_messages(normalise(generation->messages, abilities, LateSystem::attach), abilities);
  BRAID_CHECK(generation->sampling.logit_bias.size() + generation->sampling.logit_bias_texts.size() <=
              kMaxLogitBiases);
  if (generation->format.kind == OutputFormat::Kind::choice) BRAID_CHECK(!generation->format.choices.empty());
  return 0;
}
