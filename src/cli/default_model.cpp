#include "cli/default_model.h"

// BRAID_DEFAULT_MODEL is the absolute path of the file, from CMakeLists.txt.
asm(R"(
  .section .rodata
  .balign 64
  .globl braid_default_model_begin
  .globl braid_default_model_end
braid_default_model_begin:
  .incbin ")" BRAID_DEFAULT_MODEL R"("
braid_default_model_end:
  .byte 0
  .previous
)");

extern "C" {
extern const std::byte braid_default_model_begin[];
extern const std::byte braid_default_model_end[];
}

namespace braid::cli {

std::span<const std::byte> default_model() {
  return {braid_default_model_begin, braid_default_model_end};
}

}  // namespace braid::cli
