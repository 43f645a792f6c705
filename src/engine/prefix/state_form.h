// state_form.h -- what a file keeps of the image of a sequence's recurrent states.
//
// The image in memory (sequence_cache.h) has room for drafts, more or less by the options of drafting. A file has
// none: the states, what the next row needs of the rows before it, and the entries of the rows that are not folded
// yet. So it can be read whatever drafts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace braid {

// Thread-safe. A file is hostile: whatever its bytes are, the image that is made of them is one that ops may run on.
class StateForm {
 public:
  struct Shape {
    int32_t position = 0;  // tokens that the states stand behind
    int32_t pending = 0;   // of the last so many the entries are not folded into them
    bool has_row = false;  // with the last token's hidden row
  };
  virtual ~StateForm() = default;

  // Of an image in memory.
  virtual size_t image_bytes() const = 0;
  // Of the image of a sequence of `position` tokens; empty: its states do not stand there.
  virtual std::optional<Shape> shape_of(std::span<const std::byte> image, int32_t position) const = 0;
  // Of a file's state; empty: there is no such shape.
  virtual std::optional<uint64_t> file_bytes(const Shape& shape) const = 0;
  // Where the bytes of a file of this shape lie in the image, in their order. What the image has no room for lies in
  // `more`, which is sized for it.
  virtual std::vector<std::span<std::byte>> parts(std::span<std::byte> image, const Shape& shape,
                                                  std::vector<float>& more) const = 0;
  // When these have been read: completes the image.
  virtual void complete(std::span<std::byte> image, const Shape& shape,
                        std::span<const float> more) const = 0;
};

}  // namespace braid
