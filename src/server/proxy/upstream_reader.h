// upstream_reader.h -- parses one answer of the upstream. A state machine without a socket; one
// thread at a time. The upstream is not trusted: its head is bounded in bytes and fields, and the
// framing of a body in bytes without content.
// append() received bytes or end() them, then advance() until it needs more. Steps:
// - more: needs bytes.
// - head: the final head is complete and valid. Interim answers (1xx) were dropped.
// - data: take_data() has bytes of the body, at most what was appended.
// - done: the answer is complete.
// - fault: fault() says what is wrong, as the end of a sentence about the upstream.
// Trailers are dropped. Boost.Beast, which parses, is not visible here.
#pragma once

#include <boost/system/error_code.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/http.h"

namespace braid::server {

struct UpstreamHead {
  int status = 200;
  Headers headers;                 // all, also those of framing
  std::optional<uint64_t> length;  // of the body, if the upstream says it
};

class UpstreamReader {
 public:
  enum class Step { more, head, data, done, fault };

  static constexpr size_t kMaxHeadBytes = size_t{64} << 10;
  static constexpr int kMaxFields = 200;

  // `to_head`: of a request with the method HEAD, whose answer has no body.
  explicit UpstreamReader(bool to_head);
  ~UpstreamReader();

  void append(std::string_view bytes) { input_ += bytes; }
  // The upstream closed its side.
  void end() { ended_ = true; }
  Step advance();

  UpstreamHead take_head() { return std::move(head_); }
  std::string take_data() { return std::move(data_); }
  const std::string& fault() const { return fault_; }

  // A byte of the answer was received, also of an interim one.
  bool begun() const { return begun_ || !input_.empty(); }
  // After `done`: another request may be sent on this connection.
  bool keep_alive() const { return keep_alive_ && input_.empty() && !ended_; }

 private:
  struct Parser;
  void begin();
  Step head_done();
  Step at_end();
  Step fail(std::string what);
  Step failed_parse(const boost::system::error_code& error);

  const bool to_head_;
  std::unique_ptr<Parser> parser_;
  std::string input_, data_, fault_;
  size_t framing_bytes_ = 0;  // of the body, since its last byte of content
  size_t head_bytes_ = 0;     // parsed, of all heads of this answer
  int interim_heads_ = 0;
  UpstreamHead head_;
  bool ended_ = false, begun_ = false, head_told_ = false, keep_alive_ = false;
};

}  // namespace braid::server
