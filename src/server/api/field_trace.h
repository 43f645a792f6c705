// field_trace.h -- the members that a request reader looks up, and the cost, for tests.
#pragma once

#include <cstdint>
#include <set>
#include <string>

namespace braid::server {

// Records names looked up in outermost objects on this thread. One instance at a time.
class FieldTrace {
 public:
  FieldTrace();
  ~FieldTrace();
  FieldTrace(const FieldTrace&) = delete;
  FieldTrace& operator=(const FieldTrace&) = delete;

  const std::set<std::string>& names() const { return names_; }
  uint64_t compared() const { return compared_; }

 private:
  friend class Fields;
  static thread_local FieldTrace* current_;
  std::set<std::string> names_;
  uint64_t compared_ = 0;
};

}  // namespace braid::server
