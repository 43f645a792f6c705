// state_form.h -- the part of a sequence's recurrent-state image that a file keeps.
//
// The image (sequence_cache.h) has room for drafts. A file has only the states, the inputs that the
// next row needs, and the pending entries, so it does not depend on the drafter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace braid {

// Thread-safe. Files are untrusted: an image made from any bytes is safe for ops.
class StateForm {
 public:
  struct Shape {
    int32_t position = 0;  // tokens before the states
    int32_t pending = 0;   // last tokens with entries not folded yet
    bool has_row = false;  // has the last token's hidden row
  };
  virtual ~StateForm() = default;

  virtual size_t image_bytes() const = 0;
  // Empty: the image's states are not at `position`.
  virtual std::optional<Shape> shape_of(std::span<const std::byte> image,
                                        int32_t position) const = 0;
  // Of a file's state; empty: the shape is impossible.
  virtual std::optional<uint64_t> file_bytes(const Shape& shape) const = 0;
  // Where the file's bytes lie in the image, in order; bytes without room there lie in `more`.
  virtual std::vector<std::span<std::byte>> parts(std::span<std::byte> image, const Shape& shape,
                                                  std::vector<float>& more) const = 0;
  virtual void complete(std::span<std::byte> image, const Shape& shape,
                        std::span<const float> more) const = 0;
};

}  // namespace braid
