// hardening_test.cpp -- the released program has the checks of CMakeLists.txt, its kernels do not.
#include <elf.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

#ifdef NDEBUG
constexpr bool kReleased = true;
#else
constexpr bool kReleased = false;
#endif

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

template <typename T>
T at(const std::string& bytes, size_t offset) {
  T value{};
  if (offset + sizeof(T) <= bytes.size()) std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::vector<std::string> output_lines(const std::string& command) {
  std::vector<std::string> lines;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return lines;
  char line[4096];
  while (std::fgets(line, sizeof(line), pipe) != nullptr) lines.emplace_back(line);
  ::pclose(pipe);
  return lines;
}

TEST(Hardening, OfTheProgram) {
  if (!kReleased) GTEST_SKIP() << "a debug build has sanitizers instead";
  const std::string program = bytes_of(BRAID_PROGRAM);
  const auto header = at<Elf64_Ehdr>(program, 0);
  ASSERT_EQ(std::memcmp(header.e_ident, ELFMAG, SELFMAG), 0);
  EXPECT_EQ(header.e_type, ET_DYN) << "not position-independent";
  bool relro = false, now = false, stack_executable = true;
  for (int i = 0; i < header.e_phnum; ++i) {
    const auto segment =
        at<Elf64_Phdr>(program, header.e_phoff + static_cast<size_t>(i) * header.e_phentsize);
    relro |= segment.p_type == PT_GNU_RELRO;
    if (segment.p_type == PT_GNU_STACK) stack_executable = (segment.p_flags & PF_X) != 0;
    if (segment.p_type != PT_DYNAMIC) continue;
    for (size_t o = 0; o < segment.p_filesz; o += sizeof(Elf64_Dyn)) {
      const auto entry = at<Elf64_Dyn>(program, segment.p_offset + o);
      now |= entry.d_tag == DT_BIND_NOW ||
             (entry.d_tag == DT_FLAGS && (entry.d_un.d_val & DF_BIND_NOW) != 0) ||
             (entry.d_tag == DT_FLAGS_1 && (entry.d_un.d_val & DF_1_NOW) != 0);
    }
  }
  EXPECT_TRUE(relro);
  EXPECT_TRUE(now);
  EXPECT_FALSE(stack_executable);
  for (const char* check : {"__stack_chk_fail", "glibcxx_assert_fail", "__memcpy_chk"})
    EXPECT_NE(program.find(check), program.npos) << check;
}

// Kernels are compiled without checks, for specific processors. The linker might keep a weak
// standard function of theirs for the whole program.
TEST(Hardening, KernelsHaveNoChecksAndLeaveNoneOut) {
  if (!kReleased) GTEST_SKIP() << "a debug build has sanitizers instead";
  int objects = 0;
  for (const auto& entry : fs::recursive_directory_iterator(BRAID_KERNEL_OBJECTS)) {
    if (entry.path().extension() != ".o") continue;
    ++objects;
    for (const std::string& line : output_lines("nm -C '" + entry.path().string() + "'")) {
      if (line.size() < 20) continue;
      const char kind = line[17];
      const std::string name = line.substr(19);
      if (kind == 'U') {
        for (const char* check : {"__stack_chk_fail", "glibcxx_assert_fail", "_chk\n"})
          EXPECT_EQ(name.find(check), name.npos) << entry.path() << " calls " << name;
      }
      const bool weak = kind == 'W' || kind == 'V' || kind == 'u';
      // Templates over the kernels' own types have no copy elsewhere.
      if (weak && name.find("std::") < name.find("braid::"))
        ADD_FAILURE() << entry.path() << " has a copy of " << name;
    }
  }
  EXPECT_GT(objects, 30);
}

}  // namespace
