// request_reader.cpp -- see request_reader.h.
#include "server/http/request_reader.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/optional.hpp>
#include <utility>

#include "server/http/http_rules.h"

namespace braid::server {

namespace {

namespace http = boost::beast::http;
using boost::system::error_code;

// Allowed overhead of chunks: sizes, extensions, trailers. Permits chunks of one byte.
constexpr size_t kFramingBytes = size_t{16} << 10, kFramingPerByte = 8;
// A larger input buffer is freed after a request.
constexpr size_t kKeptInputBytes = size_t{16} << 10;
// Ignored empty lines before a request line.
constexpr int kMaxEmptyLines = 4;
// A TLS handshake begins with these bytes, and no HTTP method does.
constexpr std::string_view kTlsHandshake = "\x16\x03";

// Beast body type. Memory is counted as bytes arrive, never by a promised length.
struct HttpBody {
  struct value_type {
    std::string bytes;
    std::shared_ptr<RequestMemory::Share> share;
    size_t most_bytes = 0;  // the parser limits the body to this
    RequestMemory::Room room = RequestMemory::Room::held;
  };

  class reader {
   public:
    template <bool request, class Fields>
    reader(http::header<request, Fields>&, value_type& body) : body_(body) {}

    void init(const boost::optional<uint64_t>& length, error_code& error) {
      error = {};
      if (length) length_ = *length;  // below the parser's body_limit
    }
    template <class Buffers>
    size_t put(const Buffers& buffers, error_code& error) {
      const size_t more = boost::asio::buffer_size(buffers);
      std::string& bytes = body_.bytes;
      const size_t needed = bytes.size() + more;
      if (needed > bytes.capacity()) {
        const size_t most =
            length_ >= needed ? size_t{length_} : std::max(needed, body_.most_bytes);
        const size_t wanted = std::min(std::max(needed, 2 * bytes.capacity()), most);
        body_.room = body_.share->hold(wanted);
        if (body_.room != RequestMemory::Room::held) {
          error = make_error_code(boost::system::errc::not_enough_memory);
          return 0;
        }
        std::string grown;  // a new string, because growing at least doubles the capacity
        grown.reserve(wanted);
        bytes.swap(grown.append(bytes));
      }
      for (auto at = boost::asio::buffer_sequence_begin(buffers);
           at != boost::asio::buffer_sequence_end(buffers); ++at) {
        const boost::asio::const_buffer piece(*at);
        bytes.append(static_cast<const char*>(piece.data()), piece.size());
      }
      error = {};
      return more;
    }
    void finish(error_code& error) { error = {}; }

   private:
    value_type& body_;
    uint64_t length_ = 0;  // 0: unknown
  };
};

}  // namespace

struct RequestReader::Parser : http::request_parser<HttpBody> {};

RequestReader::RequestReader(const HttpOptions& options, std::shared_ptr<RequestMemory> memory,
                             std::string remote)
    : options_(options),
      memory_(std::move(memory)),
      remote_(std::move(remote)),
      head_share_(memory_) {}

RequestReader::~RequestReader() = default;

void RequestReader::begin() {
  state_ = State::head;
  request_ = nullptr;
  parser_ = std::make_unique<Parser>();
  parser_->header_limit(static_cast<uint32_t>(options_.max_header_bytes));
  parser_->body_limit(options_.max_body_bytes);
  parser_->eager(false);
  parser_->get().body().share = std::make_shared<RequestMemory::Share>(memory_);
  parser_->get().body().most_bytes = options_.max_body_bytes;
  begun_ = false;
  empty_lines_ = 0;
  head_bytes_ = scanned_bytes_ = framing_bytes_ = 0;
  if (input_.capacity() > kKeptInputBytes) std::string(input_).swap(input_);
  head_share_.hold(input_.capacity());
  set_deadline(options_.idle_ms);
}

void RequestReader::drop() {
  std::string().swap(input_);
  parser_.reset();
  head_share_.hold(0);
  state_ = State::over;
}

void RequestReader::set_deadline(int64_t ms) {
  deadline_ = HttpClock::now() + std::chrono::milliseconds(ms);
  if (begun_)
    deadline_ = std::min(deadline_, begun_at_ + std::chrono::milliseconds(options_.request_ms));
}

// Old clients send an extra line after a body (RFC 9112, 2.2).
void RequestReader::skip_empty_lines() {
  while (empty_lines_ < kMaxEmptyLines && input_.starts_with("\r\n")) {
    input_.erase(0, 2);
    ++empty_lines_;
  }
}

RequestReader::Outcome RequestReader::advance() {
  if (state_ == State::head && !begun_) {
    skip_empty_lines();
    // half an empty line
    if (input_ == "\r" && empty_lines_ < kMaxEmptyLines) return body_goes_on();
  }
  if (state_ == State::head && !input_.empty()) {
    if (!begun_) {
      begun_ = true;
      begun_at_ = HttpClock::now();
      set_deadline(options_.header_ms);
    }
    if (!head_is_good()) return Outcome::refused;
  }
  while (true) {
    if (state_ == State::body && parser_->is_done()) return Outcome::whole;
    if (input_.empty() || (state_ == State::head && head_bytes_ == 0)) break;
    error_code error;
    const size_t had = parser_->get().body().bytes.size();
    const size_t used = parser_->put(boost::asio::buffer(input_), error);
    input_.erase(0, used);
    if (state_ == State::body) framing_bytes_ += used - (parser_->get().body().bytes.size() - had);
    if (error == http::error::need_more) break;
    if (error) return framing_error(error);
    if (state_ == State::head && parser_->is_header_done()) return head_done();
    if (used == 0) break;
  }
  return body_goes_on();
}

// The parser has used all it can of the input.
RequestReader::Outcome RequestReader::body_goes_on() {
  if (state_ == State::body) {
    // The rest of the input is not body data, which the parser would have taken.
    if (framing_bytes_ + input_.size() >
        kFramingBytes + kFramingPerByte * parser_->get().body().bytes.size()) {
      return refuse(400, "invalid_request",
                    "the extensions or trailers of the chunks are too long");
    }
    set_deadline(options_.body_gap_ms);
  }
  const auto room = head_share_.hold(input_.capacity() + 2 * head_bytes_);
  return room == RequestMemory::Room::held ? Outcome::more : refuse_for_memory(room);
}

// False if refused. Limits are checked before parsing.
bool RequestReader::head_is_good() {
  if (options_.tls_certificate.empty() && input_.starts_with(kTlsHandshake)) {
    spdlog::info(
        "a TLS connection from {} on a plain HTTP port: use http://, or start the server with "
        "--tls-cert and --tls-key",
        remote_);
    refuse(400, "invalid_request", "this port has no TLS: use http://");
    return false;
  }
  const size_t end = input_.find("\r\n\r\n", scanned_bytes_);
  if (end == std::string::npos) scanned_bytes_ = input_.size() - std::min<size_t>(input_.size(), 3);
  const size_t bytes = end == std::string::npos ? input_.size() : end + 4;
  const std::string_view block(input_.data(), bytes);
  if (bytes > options_.max_header_bytes) {
    refuse(431, "invalid_request", "the header block is too large");
  } else if (end == std::string::npos) {
    return true;
  } else if (count_fields(block) > static_cast<size_t>(options_.max_fields)) {
    refuse(431, "too_many_headers", "the request has too many header fields");
  } else if (has_folded_line(block)) {
    refuse(400, "invalid_request", "a header field continues on a second line");
  } else {
    head_bytes_ = bytes;
    return true;
  }
  return false;
}

void RequestReader::fill_request() {
  const auto& message = parser_->get();
  request_ = std::make_shared<HttpRequest>();
  request_->method = std::string(message.method_string());
  const auto target = without_authority({message.target().data(), message.target().size()});
  const size_t mark = target.find_first_of("?#");
  request_->path = normal_path(target.substr(0, mark));
  if (mark != std::string_view::npos && target[mark] == '?')
    request_->query = target.substr(mark + 1);
  for (const auto& field : message) {
    request_->headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  }
  request_->remote = remote_;
  request_->id = request_id(request_->header("x-request-id"));
  keep_alive_ = message.keep_alive() && message.version() >= 11;
  version_ = message.version();
}

RequestReader::Outcome RequestReader::head_done() {
  fill_request();
  state_ = State::body;
  if (parser_->get().target().size() > options_.max_target_bytes) {
    return refuse(414, "uri_too_long", "the request line is too long");
  }
  if (std::string fault = framing_fault(request_->headers, version_); !fault.empty()) {
    return refuse(400, "invalid_request", std::move(fault));
  }
  const std::string_view coding = request_->header("Content-Encoding");
  if (!coding.empty() && !same_name(coding, "identity")) {
    return refuse(415, "unsupported_encoding", "compressed bodies are not accepted");
  }
  return Outcome::head;
}

void RequestReader::accept_body(std::string client) {
  parser_->get().body().share->set_client(std::move(client));
  parser_->eager(true);
}

bool RequestReader::body_ends() const { return parser_->is_done(); }

std::shared_ptr<HttpRequest> RequestReader::take() {
  request_->body = std::move(parser_->get().body().bytes);
  request_->memory = std::move(parser_->get().body().share);
  parser_.reset();
  state_ = State::over;
  return request_;
}

const std::shared_ptr<HttpRequest>& RequestReader::request() {
  if (request_ == nullptr) {
    request_ = std::make_shared<HttpRequest>();
    request_->id = random_request_id();
    request_->remote = remote_;
  }
  return request_;
}

RequestReader::Outcome RequestReader::refuse(int status, const char* code, std::string message) {
  fault_ = {status, code, std::move(message)};
  return Outcome::refused;
}

RequestReader::Outcome RequestReader::refuse_for_memory(RequestMemory::Room room) {
  switch (room) {
    case RequestMemory::Room::client:
      return refuse(429, "client_memory", kClientMemory);
    case RequestMemory::Room::never:
      return refuse(413, "request_too_large",
                    "the request is larger than all requests together may be");
    default:
      return Outcome::no_room;
  }
}

RequestReader::Outcome RequestReader::framing_error(const error_code& error) {
  if (error == boost::system::errc::not_enough_memory)
    return refuse_for_memory(parser_->get().body().room);
  if (error == http::error::header_limit) {
    return refuse(431, "invalid_request", "the header block is too large");
  }
  if (error == http::error::body_limit || error == http::error::buffer_overflow) {
    if (request_ == nullptr) fill_request();
    return refuse(413, "request_too_large",
                  fmt::format("the body is larger than {} bytes", options_.max_body_bytes));
  }
  return refuse(400, "invalid_request", "the request breaks HTTP: " + error.message());
}

}  // namespace braid::server
