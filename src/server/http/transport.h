// transport.h -- the stream of bytes under a connection: plain TCP, or TLS over it.
//
// Calls are asynchronous: `done` runs once, on the strand, also when the socket is closed meanwhile (with an
// error). At most one read and one write are under way at a time. A buffer lives until its `done`.
//
// Threads: the strand only.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <functional>
#include <memory>

#include "server/http/http_shared.h"

namespace braid::server {

class Transport {
 public:
  using Error = boost::system::error_code;
  using Socket = boost::asio::ip::tcp::socket;
  using Ended = std::function<void(Error)>;
  using Moved = std::function<void(Error, size_t bytes)>;

  // `strand`: of the loop that the socket was accepted for.
  static std::unique_ptr<Transport> plain(Socket socket, const HttpStrand& strand);
  // `context` may go once this has returned.
  static std::unique_ptr<Transport> secure(Socket socket, const HttpStrand& strand,
                                           boost::asio::ssl::context& context);
  virtual ~Transport() = default;

  const HttpStrand& strand() const { return strand_; }
  virtual Socket& socket() = 0;

  // Before the first read. Plain TCP has none and calls `done` within.
  virtual void handshake(Ended done) = 0;
  virtual void read_some(boost::asio::mutable_buffer into, Moved done) = 0;
  // All of it.
  virtual void write(boost::asio::const_buffer bytes, Moved done) = 0;

  // Tells the client that this was all and that nobody has cut it short. `done` runs when it was told: within
  // for plain TCP; with TLS when the client has said the same, or something else.
  virtual void say_goodbye(Ended done) = 0;
  // After that: bytes as they come, whatever they are, to be thrown away.
  void discard_some(boost::asio::mutable_buffer into, Moved done);

 protected:
  explicit Transport(const HttpStrand& strand) : strand_(strand) {}

 private:
  const HttpStrand strand_;
};

}  // namespace braid::server
