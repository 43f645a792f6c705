// answer_fuzz.cpp -- hostile model output through the UTF-8 joiner, the parser and stop strings.
// The first byte chooses the format, the rest is the output. Checks: joined events do not depend on
// the pieces; arguments of complete calls are JSON objects; output is well-formed UTF-8.
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/answer_parser.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"
#include "text/unicode.h"

namespace {

using namespace braid;
using Json = nlohmann::ordered_json;

std::shared_ptr<const OfferedTools> offered() {
  static const auto kTools = std::make_shared<const OfferedTools>(Json::parse(R"([
    {"type": "function", "function": {"name": "f", "parameters": {"properties": {
      "i": {"type": "integer"}, "s": {"type": "string"}, "o": {"type": ["object", "array", "null"]},
      "e": {"enum": ["a", 1, null]}, "u": {}}}}}])"));
  return kTools;
}

struct Outcome {
  std::string kinds, text;
  bool operator==(const Outcome&) const = default;
};

Outcome run(const AnswerFormat& format, bool cut, std::string_view output, size_t piece_bytes) {
  AnswerParser parser(format);
  Utf8Stream joiner;
  AnswerEvents events;
  StopStrings stops({"stop", "op<", "<"});
  std::string shown;
  for (size_t at = 0; at < output.size(); at += piece_bytes) {
    const std::string text = joiner.push(output.substr(at, piece_bytes));
    shown += stops.push(text);
    parser.push(text, events);
  }
  parser.push(joiner.flush(), events);
  parser.finish(cut, events);
  shown += stops.flush();
  Outcome result;
  std::string arguments;
  for (const AnswerEvent& event : events) {
    BRAID_CHECK(!first_invalid_utf8(event.text));
    const auto kind = static_cast<char>('0' + static_cast<int>(event.kind));
    if (result.kinds.empty() || result.kinds.back() != kind) result.kinds += kind;
    result.text += event.text;
    if (event.kind == AnswerEvent::Kind::call) arguments.clear();
    if (event.kind == AnswerEvent::Kind::arguments) arguments += event.text;
    if (event.kind == AnswerEvent::Kind::call_end) {
      BRAID_CHECK(Json::parse(arguments, nullptr, /*allow_exceptions=*/false).is_object());
    }
  }
  result.text += '|' + shown;
  return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0 || size > 1 << 14) return 0;
  AnswerFormat format;
  format.starts_in_thought = (data[0] & 1) != 0;
  format.dialect.calls = (data[0] & 2) != 0 ? Dialect::Calls::argkv : Dialect::Calls::xml;
  if ((data[0] & 4) == 0) format.tools = offered();
  if ((data[0] & 8) != 0) format.max_value_bytes = 8;
  const bool cut = (data[0] & 16) != 0;
  format.may_think = (data[0] & 32) == 0;
  if ((data[0] & 64) != 0) format.held.insert("f");
  const std::string_view output(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Outcome whole = run(format, cut, output, size);
  BRAID_CHECK(run(format, cut, output, 1) == whole);
  BRAID_CHECK(run(format, cut, output, 5) == whole);
  return 0;
}
