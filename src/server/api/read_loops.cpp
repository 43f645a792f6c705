// read_loops.cpp -- the fields of the loop guard; see read_request.h.
#include <fmt/format.h>

#include "server/api/read_request.h"

namespace braid::server {
namespace {

constexpr int32_t kMaxPeriod = 1024;
constexpr int64_t kMaxWindow = 16384;  // tokens that a client's rule may look back

std::optional<LoopGuard> loop_guard_of(const Fields& fields) {
  const std::string* word = fields.string("loop_guard");
  if (word == nullptr) return std::nullopt;
  if (*word == "off") return LoopGuard::off;
  if (*word == "think") return LoopGuard::think;
  if (*word == "all") return LoopGuard::all;
  fields.fail(invalid_value(fields.path("loop_guard"),
                            fields.path("loop_guard") + " must be off, think or all"));
  return std::nullopt;
}

// {max_pattern_size, min_pattern_size, min_count}. A max_pattern_size of 0 disables the rule.
std::optional<LoopRule> loop_rule_of(const Fields& fields) {
  const Json* object = fields.object("repetition_detection");
  if (object == nullptr) return std::nullopt;
  const Fields inner(*object, fields.path("repetition_detection"), fields.error());
  const int64_t most = inner.integer("max_pattern_size", 0, kMaxPeriod).value_or(0);
  const int64_t least = inner.integer("min_pattern_size", 0, kMaxPeriod).value_or(0);
  const int64_t count = inner.integer("min_count", 0, kMaxWindow).value_or(0);
  if (most == 0 || !fields.ok()) return std::nullopt;
  if (least > most) {
    inner.fail(invalid_value(inner.path("min_pattern_size"),
                             inner.path("min_pattern_size") + " is above max_pattern_size"));
  } else if (count < 2) {
    inner.fail(
        invalid_value(inner.path("min_count"), inner.path("min_count") + " must be 2 or more"));
  } else if (most * count > kMaxWindow) {
    inner.fail(invalid_value(
        inner.path("min_count"),
        fmt::format("{} times max_pattern_size is above {}", inner.path("min_count"), kMaxWindow)));
  }
  if (!fields.ok()) return std::nullopt;
  return LoopRule{.min_period = static_cast<int32_t>(std::max<int64_t>(1, least)),
                  .max_period = static_cast<int32_t>(most),
                  .copies = static_cast<int32_t>(count),
                  .covered_tokens = 0,
                  .plain_kinds = 0,
                  .plain_covered_tokens = 0,
                  .every_tokens = 1};
}

}  // namespace

void read_loops(const Fields& fields, LoopOptions& out) {
  out.guard = loop_guard_of(fields);
  out.break_thoughts = fields.boolean("thinking_loop_break", true);
  out.rule = loop_rule_of(fields);
}

}  // namespace braid::server
