// thoughts.h -- splits a streamed answer into its thought and its reply.
#pragma once

#include <string>
#include <string_view>

namespace braid::cli {

// Input may be cut anywhere. Think tags and the blanks around them are in neither part.
class ThoughtSplitter {
 public:
  struct Parts {
    std::string thought, said;
  };
  // `in_thought`: the prompt ends inside a think block. Else a thought begins with a tag.
  explicit ThoughtSplitter(bool in_thought)
      : place_(in_thought ? Place::thought : Place::beginning) {}

  Parts push(std::string_view text);
  // Returns text that was held back as a possible tag.
  Parts finish();

 private:
  enum class Place { beginning, thought, before_said, said };
  void take(Parts& out, bool last);

  Place place_;
  bool thinks_ = false;  // some of the thought was seen
  std::string held_;
};

}  // namespace braid::cli
