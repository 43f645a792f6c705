// answer_writer.cpp -- see answer_writer.h.
#include "server/http/answer_writer.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace braid::server {

namespace {

// Bytes sent at once. Bounded, so that the send timeout measures progress and not size.
constexpr size_t kPendingBytes = size_t{256} << 10;
// A larger buffer is freed after an answer.
constexpr size_t kKeptPendingBytes = size_t{16} << 10;

// `type` empty: without one. `length` empty: chunked, if the client supports that.
std::string answer_head(int status, std::string_view type, const Headers& more,
                        std::optional<uint64_t> length, const HttpAnswerWriter::Terms& terms,
                        bool framed = true) {
  std::string out = fmt::format("HTTP/1.1 {} {}\r\n", status, status_text(status));
  const auto add = [&](std::string_view name, std::string_view value) {
    out += name;
    out += ": ";
    for (const char c : value) out += c == '\r' || c == '\n' ? ' ' : c;
    out += "\r\n";
  };
  if (status != 204 && !type.empty()) add("Content-Type", type);
  if (length) {
    if (status != 204) add("Content-Length", std::to_string(*length));
  } else if (framed && terms.chunks) {
    add("Transfer-Encoding", "chunked");
  }
  if (!terms.keep_alive) add("Connection", "close");
  for (const auto& [name, value] : terms.headers) add(name, value);
  for (const auto& [name, value] : more) add(name, value);
  return out + "\r\n";
}

}  // namespace

void HttpAnswerWriter::whole(HttpAnswer answer, const Terms& terms, bool with_body) {
  status_ = answer.status;
  finishing_ = true;
  unsent_.push(
      answer_head(answer.status, answer.content_type, answer.headers, answer.body.size(), terms));
  if (with_body && answer.status != 204) unsent_.push(std::move(answer.body));
}

void HttpAnswerWriter::begin_answer(const AnswerHead& head, const Terms& terms, bool with_body) {
  status_ = head.status;
  streaming_ = true;
  with_body_ = with_body && head.status != 204 && head.status != 304;
  left_bytes_ = with_body_ ? head.length : std::nullopt;
  chunks_ = with_body_ && !head.length && terms.chunks;
  unsent_.push(answer_head(head.status, "", head.headers, head.length, terms, with_body_));
}

bool HttpAnswerWriter::write(std::string_view bytes) {
  if (!streaming_ || !with_body_ || bytes.empty()) return false;
  if (left_bytes_) {
    if (bytes.size() > *left_bytes_) return false;
    *left_bytes_ -= bytes.size();
  }
  unsent_.push(chunks_ ? fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes) : std::string(bytes));
  return true;
}

bool HttpAnswerWriter::finish_stream() {
  if (!streaming_ || left_bytes_.value_or(0) > 0) return false;
  streaming_ = false;
  finishing_ = true;
  if (chunks_) unsent_.push("0\r\n\r\n");
  return true;
}

bool HttpAnswerWriter::take_pending() {
  if (unsent_.empty()) return false;
  unsent_.take(kPendingBytes, pending_);
  return true;
}

uint64_t HttpAnswerWriter::take_sent_bytes() { return std::exchange(sent_bytes_, 0); }

void HttpAnswerWriter::end_answer() {
  streaming_ = finishing_ = false;
  pending_.clear();
  if (pending_.capacity() > kKeptPendingBytes) std::string().swap(pending_);
}

}  // namespace braid::server
