// host_pages.cpp -- memory maps filled by several threads (host_pages.h).
#include "base/host_pages.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/threads.h"

namespace braid {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr size_t kPieceBytes = size_t{32} << 20;  // per request of a thread

size_t page_bytes() {
  static const auto bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

// Makes pages resident without changing their zeros. Returns false if the system is out of memory.
bool fill(std::byte* data, size_t size_bytes) {
#ifdef MADV_POPULATE_WRITE
  int result = 0;
  do {
    result = ::madvise(data, size_bytes, MADV_POPULATE_WRITE);
  } while (result != 0 && errno == EINTR);
  if (result == 0) return true;
  if (errno == ENOMEM) return false;
#endif
  // Linux before 5.14 lacks the call, and it can fail for other reasons.
  for (size_t at = 0; at < size_bytes; at += page_bytes())
    *reinterpret_cast<volatile unsigned char*>(data + at) = 0;
  return true;
}

Error no_memory(size_t size_bytes, int error) {
  return {ErrorKind::exhausted, fmt::format("the system has no {} MiB of memory: {}",
                                            size_bytes >> 20, std::strerror(error))};
}

}  // namespace

size_t pages_bytes(size_t size_bytes) {
  return (size_bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

Result<std::byte*> take_pages(size_t size_bytes, int threads, const BytesDone& done) {
  BRAID_CHECK(size_bytes > 0 && threads >= 1);
  if (size_bytes > SIZE_MAX - 2 * kHugePageBytes) return no_memory(size_bytes, ENOMEM);
  const size_t bytes = pages_bytes(size_bytes);
  void* mapped = ::mmap(nullptr, bytes + kHugePageBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return no_memory(size_bytes, errno);
  auto* const begin = static_cast<std::byte*>(mapped);
  const size_t before =
      (kHugePageBytes - reinterpret_cast<uintptr_t>(begin) % kHugePageBytes) % kHugePageBytes;
  std::byte* const data = begin + before;
  if (before > 0) ::munmap(begin, before);
  if (before < kHugePageBytes) ::munmap(data + bytes, kHugePageBytes - before);
  // Both are optional, so errors are ignored.
  ::madvise(data, bytes, MADV_HUGEPAGE);
  ::madvise(data, bytes, MADV_DONTFORK);

  const auto pieces = static_cast<int64_t>((bytes + kPieceBytes - 1) / kPieceBytes);
  ThreadPool pool(static_cast<int>(std::min<int64_t>(threads, pieces)));
  Counter next;
  std::atomic<uint64_t> filled{0};
  std::atomic<bool> failed{false};
  pool.run([&](int worker) {
    for (int64_t piece = next.claim(); piece < pieces && !failed.load(); piece = next.claim()) {
      const size_t first = static_cast<size_t>(piece) * kPieceBytes;
      const size_t count = std::min(kPieceBytes, bytes - first);
      if (!fill(data + first, count)) failed.store(true);
      filled.fetch_add(count);
      if (worker == 0 && done) done(std::min<uint64_t>(filled.load(), size_bytes));
    }
  });
  if (failed.load()) {
    ::munmap(data, bytes);
    return no_memory(size_bytes, ENOMEM);
  }
  if (done) done(size_bytes);
  return data;
}

void give_pages_back(void* data, size_t size_bytes) { ::munmap(data, pages_bytes(size_bytes)); }

}  // namespace braid
