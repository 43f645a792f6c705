// upstream_reader.cpp -- see upstream_reader.h.
#include "server/proxy/upstream_reader.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/optional.hpp>
#include <limits>
#include <utility>

#include "server/http/http_rules.h"

namespace braid::server {
namespace {

namespace http = boost::beast::http;

// Extensions of chunks and trailers between two bytes of content.
constexpr size_t kMaxGapBytes = size_t{64} << 10;
constexpr int kMaxInterimHeads = 16;

// Beast body type: the bytes as they come. Nothing is reserved by a promised length.
struct PieceBody {
  using value_type = std::string;

  class reader {
   public:
    template <bool request, class Fields>
    reader(http::header<request, Fields>&, value_type& body) : body_(body) {}

    void init(const boost::optional<uint64_t>&, boost::system::error_code& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, boost::system::error_code& error) {
      for (auto at = boost::asio::buffer_sequence_begin(buffers);
           at != boost::asio::buffer_sequence_end(buffers); ++at) {
        const boost::asio::const_buffer piece(*at);
        body_.append(static_cast<const char*>(piece.data()), piece.size());
      }
      error = {};
      return boost::asio::buffer_size(buffers);
    }
    void finish(boost::system::error_code& error) { error = {}; }

   private:
    value_type& body_;
  };
};

// The framing that the parser accepts and that servers may interpret differently.
std::string coding_fault(const Headers& headers) {
  for (const auto& [name, value] : headers) {
    if (same_name(name, "Transfer-Encoding") && !same_name(value, "chunked"))
      return "sent an unknown Transfer-Encoding";
  }
  return {};
}

}  // namespace

// The string of the body is emptied after each step.
struct UpstreamReader::Parser : http::response_parser<PieceBody> {};

UpstreamReader::UpstreamReader(bool to_head) : to_head_(to_head) { begin(); }

UpstreamReader::~UpstreamReader() = default;

void UpstreamReader::begin() {
  parser_ = std::make_unique<Parser>();
  parser_->header_limit(static_cast<uint32_t>(kMaxHeadBytes));
  parser_->body_limit(std::numeric_limits<uint64_t>::max());  // the parser refuses all without one
  parser_->eager(false);                                      // stops after the head
  if (to_head_) parser_->skip(true);
}

UpstreamReader::Step UpstreamReader::advance() {
  if (!fault_.empty()) return Step::fault;
  while (true) {
    if (head_told_ && parser_->is_done()) return Step::done;
    if (input_.empty()) return ended_ ? at_end() : Step::more;
    begun_ = true;
    boost::system::error_code error;
    const size_t used = parser_->put(boost::asio::buffer(input_), error);
    input_.erase(0, used);
    if (!head_told_) head_bytes_ += used;
    if (error && error != http::error::need_more) return failed_parse(error);
    if (!head_told_ && parser_->is_header_done()) {
      const Step step = head_done();
      if (step == Step::more) continue;  // after an interim head
      return step;
    }
    std::string& body = parser_->get().body();
    if (head_told_ && !body.empty()) {
      framing_bytes_ = 0;
      data_ = std::move(body);
      body.clear();
      return Step::data;
    }
    framing_bytes_ += used;
    if (framing_bytes_ > kMaxGapBytes || input_.size() > kMaxHeadBytes)
      return fail(head_told_ ? "sent chunks with endless extensions or trailers"
                             : "sent a head that is too long");
    if (error == http::error::need_more || used == 0) return ended_ ? at_end() : Step::more;
  }
}

// A head was parsed. `more`: it was an interim one.
UpstreamReader::Step UpstreamReader::head_done() {
  const auto& message = parser_->get();
  const unsigned status = message.result_int();
  if (status == 101) return fail("switches to a protocol that was not asked for");
  if (status < 200) {
    if (++interim_heads_ > kMaxInterimHeads || head_bytes_ > kMaxHeadBytes)
      return fail("sends interim answers without end");
    begin();
    return Step::more;
  }
  if (status > 999) return fail("sent an answer that is not HTTP");
  head_.status = static_cast<int>(status);
  for (const auto& field : message) {
    if (static_cast<int>(head_.headers.size()) == kMaxFields)
      return fail("sent a head with too many fields");
    head_.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  }
  if (std::string what = coding_fault(head_.headers); !what.empty()) return fail(std::move(what));
  if (const auto length = parser_->content_length()) head_.length = *length;
  keep_alive_ = message.keep_alive() && !parser_->need_eof();
  head_told_ = true;
  framing_bytes_ = 0;
  parser_->eager(true);
  return Step::head;
}

// The upstream closed its side, and all bytes were parsed.
UpstreamReader::Step UpstreamReader::at_end() {
  if (!head_told_)
    return fail(begun_ ? "closed the connection within the head of its answer"
                       : "closed the connection without an answer");
  boost::system::error_code error;
  parser_->put_eof(error);
  if (error || !parser_->is_done()) return fail("closed the connection within its answer");
  return Step::done;
}

UpstreamReader::Step UpstreamReader::fail(std::string what) {
  fault_ = std::move(what);
  return Step::fault;
}

UpstreamReader::Step UpstreamReader::failed_parse(const boost::system::error_code& error) {
  if (error == http::error::header_limit) return fail("sent a head that is too long");
  return fail(
      (head_told_ ? "broke HTTP within its answer: " : "sent an answer that is not HTTP: ") +
      error.message());
}

}  // namespace braid::server
