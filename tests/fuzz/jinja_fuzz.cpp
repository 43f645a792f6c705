// jinja_fuzz.cpp -- hostile chat templates, rendered with a small conversation.
// Limits are tight, so that runs are short and reach every limit. Checks: steps, memory and output
// stay within limits; two renders give the same result.
#include <cstdint>
#include <ctime>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/jinja/jinja.h"

namespace {

using namespace braid;
using Json = nlohmann::ordered_json;

const Json& context() {
  static const Json kContext = Json::parse(R"({
    "messages": [
      {"role": "system", "content": " Be brief.\n"},
      {"role": "user", "content": "caf\u00e9 <|im_end|> 'q' \"d\"\n"},
      {"role": "assistant", "content": null, "reasoning_content": "plan\n", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1, "b": [true, null, 1.5]}}}]},
      {"role": "tool", "tool_call_id": "c1", "content": "<think>x</think>\n\ny"},
      {"role": "user", "content": [{"type": "text", "text": "part"}, {"type": "image"}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"z": 18446744073709551615, "y": {}}}}],
    "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>", "d": {"k": 1, "j": "v"}, "l": [3, 1, 2],
    "s": " A b-c\t", "n": -7, "x": 2.5})");
  return kContext;
}

jinja::RenderOptions limits() {
  jinja::RenderOptions options;
  options.limits.max_steps = 20'000;
  options.limits.input_steps = 0;
  options.limits.max_output_bytes = 1 << 16;
  options.limits.max_memory_bytes = 1 << 22;
  options.limits.max_wall_ms = 0;
  options.now = std::tm{};
  return options;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 1 << 16) return 0;
  const auto parsed = jinja::Template::parse({reinterpret_cast<const char*>(data), size});
  if (!parsed.ok()) {
    BRAID_CHECK(!parsed.error().message.empty());
    return 0;
  }
  const jinja::RenderOptions options = limits();
  jinja::RenderStats stats;
  const auto first = parsed->render(context(), options, &stats);
  const auto second = parsed->render(context(), options);
  BRAID_CHECK(stats.memory_bytes <= options.limits.max_memory_bytes);
  BRAID_CHECK(first.ok() == second.ok());
  if (first.ok()) {
    BRAID_CHECK(*first == *second);
    BRAID_CHECK(first->size() <= options.limits.max_output_bytes);
    BRAID_CHECK(stats.steps <= options.limits.max_steps);
  } else {
    BRAID_CHECK(first.error().message == second.error().message);
  }
  return 0;
}
