// jinja.h -- chat templates: a Jinja template is parsed once and rendered many times.
//
// The dialect is the one published chat templates are written for: Jinja 2 with trim_blocks and
// lstrip_blocks, no autoescape, loop controls, a `generation` block, a JSON-exact `tojson`, raise_exception
// and strftime_now. It is not a general Jinja: there is no include, import, extends or block, filters such as
// map and select give lists, not generators, and whole numbers have 64 bits.
//
// Templates and the values they see come from outside, so both are hostile: parsing bounds size and nesting,
// rendering bounds steps, nesting, memory and output. A step is an amount of work (some 10 to 250 ns), so the
// limit of steps is what keeps a hostile template short, on a busy machine too; it grows with what the caller
// passes in, so that large conversations are rendered and small requests cannot do much. The clock is only
// a net below that. Nothing here throws, and no template can make a render outlive its limits by more than
// one bounded string operation.
//
// A Template is immutable; any number of threads may render it at once.
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
  // Syntax nodes evaluated + elements touched + text read or written in pieces of 64 bytes + KiB taken.
  uint64_t max_steps = 1'000'000;
  uint64_t input_steps = 32;     // more for each value and 64 bytes of text in the variables
  uint32_t max_recursion = 200;  // macro, caller() and loop() calls inside each other
  uint64_t max_output_bytes = uint64_t{64} << 20;   // of the rendered text
  uint64_t max_memory_bytes = uint64_t{512} << 20;  // of all values alive in one render, at most 2 GiB
  uint64_t max_wall_ms = 900;                       // for max_steps, more as they grow; 0: not limited
};

struct RenderOptions {
  Limits limits;
  std::optional<std::tm> now;  // clock of strftime_now; without it the local time at the call
};

struct RenderStats {
  uint64_t steps = 0;
  uint64_t memory_bytes = 0;
};

// Where a variable comes from, which decides what its texts may become (origin.h).
enum class Source : uint8_t {
  trusted,   // us: like the template's own words
  tools,     // a client's tools: instructions
  data,      // a client
  messages,  // a list of messages: answers and instructions where the role is assistant or system, else data
};

// The JSON value is read in place and must outlive the call. Of two variables with one name the later counts.
struct Variable {
  std::string name;
  const nlohmann::ordered_json* value = nullptr;
  Source source = Source::data;
  // Source::messages: how many bytes at the start of each one's content are instructions whatever its role;
  // null or too short: none. At most those that it has.
  const std::vector<size_t>* instruction_bytes = nullptr;
};
using Variables = std::vector<Variable>;

struct Ast;

class Template {
 public:
  // Syntax errors name the template line. Unknown filters and tests are errors only when they are reached.
  static Result<Template> parse(std::string_view text);

  // `context` is an object: one variable per key, all data. The message of raise_exception comes back word
  // for word; every other error starts with "template line N: ". A limit gives ErrorKind::exhausted.
  Result<std::string> render(const nlohmann::ordered_json& context, const RenderOptions& options = {},
                             RenderStats* stats = nullptr) const;
  // The same, with marks of who wrote what.
  Result<RenderedText> render(const Variables& variables, const RenderOptions& options = {},
                              RenderStats* stats = nullptr) const;

  // True if the template reads a variable of this name anywhere.
  bool mentions(std::string_view variable) const;

 private:
  explicit Template(std::shared_ptr<const Ast> ast) : ast_(std::move(ast)) {}

  std::shared_ptr<const Ast> ast_;
};

}  // namespace braid::jinja
