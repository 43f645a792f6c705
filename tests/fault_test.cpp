// fault_test.cpp -- fails each allocation above 32 bytes of a request once.
// The request is then answered, refused or cut, nothing leaks, and the server continues. A separate
// program, because it replaces operator new. FAULT_STRIDE=1 fails each allocation, the default one
// in seven.
#include <gtest/gtest.h>
#include <unwind.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>

#include "base/guard.h"
#include "engine/engine.h"
#include "gguf/gguf.h"
#include "server/test_server_test.h"

namespace {

// Allocations until one fails; negative: never.
std::atomic<int64_t> g_left{-1};
std::atomic<int64_t> g_failed{0}, g_skipped{0};
std::atomic<int64_t> g_live{0};  // blocks
// Marks threads whose allocations do not fail.
thread_local bool t_exempt = false;
thread_local int64_t t_allocations = 0;

// Reads the tables of the Itanium ABI (LSDA): the fate of an exception in a function.
uint64_t uleb128(const uint8_t*& at) {
  uint64_t out = 0;
  for (int shift = 0;; shift += 7) {
    const uint8_t byte = *at++;
    out |= uint64_t{byte & 0x7fu} << shift;
    if ((byte & 0x80) == 0) return out;
  }
}

enum class Met { nothing, handler, end };  // by an exception on its way up; `end`: std::terminate

// Only the table forms of the supported compilers: no landing pad start, call sites as uleb128.
Met met_in(const uint8_t* table, uintptr_t offset) {
  if (*table++ != 0xff) return Met::handler;
  if (*table++ != 0xff) uleb128(table);
  if (*table++ != 0x01) return Met::handler;
  const uint64_t bytes = uleb128(table);
  for (const uint8_t* end = table + bytes; table < end;) {
    const uint64_t begin = uleb128(table), length = uleb128(table), pad = uleb128(table),
                   action = uleb128(table);
    if (offset >= begin && offset < begin + length)
      return pad != 0 && action != 0 ? Met::handler : Met::nothing;
  }
  return Met::end;  // noexcept code has no entry
}

// Whether an exception here would end the program. JSON destructors allocate; those are excluded.
bool ends_the_program() {
  Met met = Met::nothing;
  const auto look = [](_Unwind_Context* context, void* out) {
    int before = 0;
    const uintptr_t at = _Unwind_GetIPInfo(context, &before) - (before == 0 ? 1 : 0);
    const auto* table = static_cast<const uint8_t*>(_Unwind_GetLanguageSpecificData(context));
    const uintptr_t function = _Unwind_GetRegionStart(context);
    if (table == nullptr) return _URC_NO_REASON;
    Met& met = *static_cast<Met*>(out);
    met = met_in(table, at - function);
    return met == Met::nothing ? _URC_NO_REASON : _URC_END_OF_STACK;
  };
  t_exempt = true;
  _Unwind_Backtrace(look, &met);
  t_exempt = false;
  return met == Met::end;
}

// nlohmann 3.11.2 does not survive a failed allocation of the box of a text, list or object.
constexpr size_t kBoxBytes = 32;

bool must_fail(size_t bytes) {
  if (t_exempt || bytes <= kBoxBytes || g_left.load(std::memory_order_relaxed) < 0) return false;
  if (g_left.fetch_sub(1) != 0) return false;
  if (ends_the_program()) {
    ++g_skipped;
    g_left = 0;  // the next one
    return false;
  }
  ++g_failed;
  return true;
}

void* allocate(size_t bytes, size_t alignment) {
  if (must_fail(bytes)) return nullptr;
  ++g_live;
  ++t_allocations;
  return alignment <= alignof(std::max_align_t)
             ? std::malloc(bytes == 0 ? 1 : bytes)
             : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void release(void* memory) {
  if (memory != nullptr) --g_live;
  std::free(memory);
}

}  // namespace

void* operator new(size_t bytes) {
  if (void* memory = allocate(bytes, 1)) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  if (void* memory = allocate(bytes, static_cast<size_t>(alignment))) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { release(memory); }

namespace braid::server {
namespace {

struct Exempt {
  explicit Exempt(bool exempt = true) : before(std::exchange(t_exempt, exempt)) {}
  ~Exempt() { t_exempt = before; }
  bool before;
};

// Calls of the backend's thread may fail, but nothing else on it.
class FailingSink : public Sink {
 public:
  explicit FailingSink(std::shared_ptr<Sink> to) : to_(std::move(to)) {}
  void started(RequestId id, int32_t cached) override {
    const Exempt no(false);
    to_->started(id, cached);
  }
  void token(RequestId id, const TokenEvent& event) override {
    const Exempt no(false);
    to_->token(id, event);
  }
  void finished(RequestId id, const Finished& event) override {
    const Exempt no(false);
    to_->finished(id, event);
  }

 private:
  std::shared_ptr<Sink> to_;
};

class SayingBackend : public FakeBackend {
 public:
  explicit SayingBackend(Play play) : FakeBackend(std::move(play)) {}
  Result<RequestId> submit(Request request, std::shared_ptr<Sink> sink) override {
    const Exempt exempt;
    return FakeBackend::submit(std::move(request), std::make_shared<FailingSink>(std::move(sink)));
  }
  void cancel(RequestId) override {}  // its messages are short
};

struct Case {
  const char* what;
  std::string path, body;
};

std::vector<Case> requests() {
  const std::string kTools =
      R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object",)"
      R"("properties":{"a":{"type":"string"},"b":{"type":"integer"}}}}}])";
  const std::string kCalls =
      R"([{"role":"system","content":"s"},{"role":"user","content":"q"},{"role":"assistant","tool_calls":)"
      R"([{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\":\"x\"}"}}]},)"
      R"({"role":"tool","tool_call_id":"c","content":"r"}])";
  return {
      {"chat", "/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}]})"},
      {"streamed chat with tools", "/v1/chat/completions",
       R"({"stream":true,"stream_options":{"include_usage":true},)" + kTools + R"(,"messages":)" +
           kCalls + "}"},
      {"a form", "/v1/chat/completions",
       R"({"messages":[{"role":"user","content":"hi"}],"response_format":{"type":"json_schema","json_schema":)"
       R"({"name":"x","schema":{"type":"object","properties":{"p":{"type":"string","pattern":"^a+$"}}}}}})"},
      {"messages", "/v1/messages",
       R"({"max_tokens":9,"stream":true,"messages":[{"role":"user","content":"hi"}],"tools":[{"name":"f",)"
       R"("input_schema":{"type":"object"}}]})"},
      {"responses", "/v1/responses", R"({"input":"hi","metadata":{"a":"b"},"stream":true})"},
      {"completions", "/v1/completions", R"({"prompt":["hi","ho"],"n":2,"logprobs":1})"},
      {"tokenize", "/tokenize", R"({"content":"some text","with_pieces":true})"},
      {"a bad body", "/v1/chat/completions", R"({"messages":[{"role":"user","content":)"},
  };
}

class Faults : public testing::Test {
 protected:
  Faults() {
    auto model = demo_served_model(nullptr);
    model->backend =
        std::make_shared<SayingBackend>([script = says(*model, "fine and well")](const Request&) {
          t_exempt = true;  // the backend's thread, from its first request on
          return script;
        });
    server_.listen(App::create(test_options(), model));
  }
  // HTTP status over a new connection; 0: it ended without an answer.
  int ask(const Case& request) {
    Client client(server_.port());
    const auto answer = client.ask("POST", request.path, request.body, "Connection: close\r\n");
    client.read_all();
    return answer.status;
  }
  bool is_quiet() {
    for (int i = 0; i < 20'000; ++i) {
      if (server_.app->active() == 0 && server_.http->load().connections == 0) return true;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return false;
  }

  void fail_each(const Case& request, int64_t stride) {
    constexpr std::array kStatuses{0, 200, 400, 500, 503, 529};
    std::map<int, int> statuses;
    const int64_t skipped = g_skipped;
    int64_t k = 0;
    for (bool reached = true; reached; k += stride) {
      ASSERT_LT(k, 100'000);
      const int64_t failed = g_failed;
      g_left = k;
      const int status = ask(request);
      ASSERT_TRUE(is_quiet()) << "allocation " << k;
      g_left = -1;
      reached = g_failed != failed;
      ++statuses[status];
      ASSERT_NE(std::find(kStatuses.begin(), kStatuses.end(), status), kStatuses.end())
          << "allocation " << k << ": " << status;
      ASSERT_NE(ask(request), 0) << "after allocation " << k;
      ASSERT_TRUE(is_quiet()) << "after allocation " << k;
    }
    std::string told;
    for (const auto& [status, count] : statuses)
      told += (told.empty() ? "" : ", ") + std::to_string(count) + " x " + std::to_string(status);
    std::printf(
        "[report] %s: one in %lld of %lld allocations failed: %s; %lld lie in what may not throw\n",
        request.what, static_cast<long long>(stride), static_cast<long long>(k), told.c_str(),
        static_cast<long long>(g_skipped - skipped));
  }

  const Exempt exempt_;
  ListeningApp server_;
};

TEST_F(Faults, EachAllocationMayFail) {
  const char* given = std::getenv("FAULT_STRIDE");
  const int64_t stride = given == nullptr ? 7 : std::max(1LL, std::atoll(given));
  for (const Case& request : requests()) {
    ASSERT_NO_FATAL_FAILURE(fail_each(request, stride)) << request.what;
    // One-time allocations have happened by now. A throwing constructor of the JSON library leaks
    // the one value it has begun; nothing else may leak.
    const int64_t live = g_live, failed = g_failed;
    ASSERT_NO_FATAL_FAILURE(fail_each(request, stride)) << request.what;
    EXPECT_LE(g_live - live, 16 + g_failed - failed) << request.what << ": blocks are lost";
  }
  Client client(server_.port());
  EXPECT_EQ(client.ask("GET", "/health").status, 200);
  const auto answer = client.ask("POST", "/v1/chat/completions", requests()[0].body);
  EXPECT_NE(answer.body.find("fine and well"), std::string::npos) << answer.body;
}

class Counting : public Sink {
 public:
  void token(RequestId, const TokenEvent&) override { ++tokens; }
  void finished(RequestId, const Finished&) override {}
  int64_t tokens = 0;
};

// A decoding step of 512 sequences allocates nothing per sequence, except growing lists.
TEST(Allocations, AStepHasNoneForEachSequence) {
  const auto file = GgufFile::open(BRAID_SOURCE_DIR "/models/braid-demo-q8_0.gguf");
  ASSERT_TRUE(file.ok());
  const auto allocations = [&](int32_t sequences) {
    EngineOptions options;
    options.device = "cpu";
    options.max_sequences = sequences;
    options.context_tokens = 256;
    options.spec_type = SpecType::none;
    auto engine = Engine::create(*file, options);
    EXPECT_TRUE(engine.ok());
    Counting sink;
    for (int32_t i = 0; i < sequences; ++i) {
      Request request;
      for (int32_t t = 0; t < 20; ++t) request.prompt.push_back((i * 37 + t * t * 7 + 5) % 300);
      request.max_tokens = 200;
      EXPECT_TRUE((*engine)->submit(std::move(request), sink).ok());
    }
    while (sink.tokens < 14 * sequences) (*engine)->step();
    int64_t least = INT64_MAX;
    for (int i = 0; i < 12; ++i) {
      const int64_t before = t_allocations, told = sink.tokens;
      (*engine)->step();
      EXPECT_EQ(sink.tokens - told, sequences);
      least = std::min(least, t_allocations - before);
    }
    std::printf("[report] %d sequences: %lld allocations a step\n", sequences,
                static_cast<long long>(least));
    return least;
  };
  EXPECT_LT(allocations(512), allocations(8) + 64);
}

}  // namespace
}  // namespace braid::server
