// field_trace.h -- which members of a request its reader asks for, and what finding them takes. For tests that
// hold readers to the table of fields (requests/request_fields.h).
#pragma once

#include <cstdint>
#include <set>
#include <string>

namespace braid::server {

// While it lives: the names that are asked for, on this thread, of the outermost object of any request. One
// at a time.
class FieldTrace {
 public:
  FieldTrace();
  ~FieldTrace();
  FieldTrace(const FieldTrace&) = delete;
  FieldTrace& operator=(const FieldTrace&) = delete;

  const std::set<std::string>& names() const { return names_; }
  // Of names of members, of all objects.
  uint64_t compared() const { return compared_; }

 private:
  friend class Fields;
  static thread_local FieldTrace* current_;
  std::set<std::string> names_;
  uint64_t compared_ = 0;
};

}  // namespace braid::server
