// thoughts.h -- an answer that streams in, as a thought and what is said after it.
#pragma once

#include <string>
#include <string_view>

namespace braid::cli {

// Text may be cut anywhere. Think tags are in neither part, nor are blanks around them.
class ThoughtSplitter {
 public:
  struct Parts {
    std::string thought, said;
  };
  // `in_thought`: the prompt ends inside a think block. Else an answer that begins with the tag has a thought.
  explicit ThoughtSplitter(bool in_thought)
      : place_(in_thought ? Place::thought : Place::beginning) {}

  Parts push(std::string_view text);
  // What was held back because it might have been a tag.
  Parts finish();

 private:
  enum class Place { beginning, thought, before_said, said };
  void take(Parts& out, bool last);

  Place place_;
  bool thinks_ = false;  // something of the thought was seen
  std::string held_;
};

}  // namespace braid::cli
