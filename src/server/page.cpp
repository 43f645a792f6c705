// page.cpp -- see page.h. BRAID_PAGE is the absolute path of ui/index.html, from CMakeLists.txt.
#include "server/page.h"

asm(R"(
  .section .rodata
  .globl braid_page_begin
  .globl braid_page_end
braid_page_begin:
  .incbin ")" BRAID_PAGE R"("
braid_page_end:
  .byte 0
  .previous
)");

extern "C" {
extern const char braid_page_begin[];
extern const char braid_page_end[];
}

namespace braid::server {

std::string embedded_page() { return {braid_page_begin, braid_page_end}; }

}  // namespace braid::server
