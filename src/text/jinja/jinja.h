// jinja.h -- chat templates: a Jinja template is parsed once and rendered many times.
//
// Jinja 2 with trim_blocks and lstrip_blocks, no autoescape, loop controls, a `generation` block, a
// JSON-exact `tojson`, raise_exception and strftime_now. No include, import, extends or block.
// Filters such as map give lists, not generators; whole numbers have 64 bits.
//
// Templates and values are untrusted: size, nesting, steps, memory and output are bounded. A step
// is about 10 to 250 ns of work; the step limit does not depend on the machine's load and grows
// with the caller's input. The clock is a second limit. Nothing throws. A render exceeds its limits
// by at most one bounded string operation. A Template is immutable; threads may render it at once.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/origin.h"

namespace braid::jinja {

struct Limits {
  // Nodes evaluated + elements touched + text read or written in units of 64 bytes + KiB allocated.
  uint64_t max_steps = 1'000'000;
  uint64_t input_steps = 32;     // more per value and per 64 bytes of text in the variables
  uint32_t max_recursion = 200;  // nested calls of macros, caller() and loop()
  uint64_t max_output_bytes = uint64_t{64} << 20;   // of the rendered text
  uint64_t max_memory_bytes = uint64_t{512} << 20;  // of all values of one render, at most 2 GiB
  uint64_t max_wall_ms = 900;                       // for max_steps, scaled with them; 0: no limit
};

struct RenderOptions {
  Limits limits;
  std::optional<std::tm> now;  // for strftime_now; default: local time at the call
};

struct RenderStats {
  uint64_t steps = 0;
  uint64_t memory_bytes = 0;
};

// Source of a variable, which decides about special tokens in its texts (origin.h).
enum class Source : uint8_t {
  trusted,   // braid itself: like the template's text
  tools,     // a client's tools: instructions
  data,      // a client
  messages,  // a list of messages: answers (role assistant), instructions (system), else data
};

// The JSON is read in place and must outlive the call. The later of two equal names counts.
struct Variable {
  std::string name;
  const nlohmann::ordered_json* value = nullptr;
  Source source = Source::data;
  // Source::messages: bytes at the start of each content that are instructions; null or missing: 0.
  const std::vector<size_t>* instruction_bytes = nullptr;
};
using Variables = std::vector<Variable>;

struct Ast;

class Template {
 public:
  // Syntax errors name the template line. Unknown filters and tests are errors only when reached.
  static Result<Template> parse(std::string_view text);

  // `context`: an object, one variable per key, all data. The message of raise_exception is
  // returned unchanged; other errors start with "template line N: ". A limit gives exhausted.
  Result<std::string> render(const nlohmann::ordered_json& context,
                             const RenderOptions& options = {}, RenderStats* stats = nullptr) const;
  // As above, with origins.
  Result<RenderedText> render(const Variables& variables, const RenderOptions& options = {},
                              RenderStats* stats = nullptr) const;

  // Whether the template reads a variable of this name anywhere.
  bool mentions(std::string_view variable) const;

 private:
  explicit Template(std::shared_ptr<const Ast> ast) : ast_(std::move(ast)) {}

  std::shared_ptr<const Ast> ast_;
};

}  // namespace braid::jinja
