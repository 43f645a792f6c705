// transport.h -- the byte stream of a connection: TCP, or TLS over it. On the strand only.
// Calls are asynchronous. `done` runs once on the strand, with an error if the socket was closed.
// At most one read and one write may be pending. A buffer must live until its `done`.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "server/http/http_shared.h"

namespace braid::server {

class Transport {
 public:
  using Error = boost::system::error_code;
  using Socket = boost::asio::ip::tcp::socket;
  using Ended = std::function<void(Error)>;
  using Moved = std::function<void(Error, size_t bytes)>;

  // `strand`: of the loop that accepted the socket.
  static std::unique_ptr<Transport> plain(Socket socket, const HttpStrand& strand);
  // `context` is not needed after the call.
  static std::unique_ptr<Transport> secure(Socket socket, const HttpStrand& strand,
                                           boost::asio::ssl::context& context);
  // The client's side of TLS. The server's certificate must be of `host`, a name or an address,
  // if `context` verifies. Errors of the handshake go to its `done`.
  static std::unique_ptr<Transport> secure_client(Socket socket, const HttpStrand& strand,
                                                  boost::asio::ssl::context& context,
                                                  const std::string& host);
  virtual ~Transport() = default;

  const HttpStrand& strand() const { return strand_; }
  virtual Socket& socket() = 0;

  // Before the first read. Without TLS, calls `done` directly.
  virtual void handshake(Ended done) = 0;
  virtual void read_some(boost::asio::mutable_buffer into, Moved done) = 0;
  // Writes everything.
  virtual void write(boost::asio::const_buffer bytes, Moved done) = 0;

  // Ends sending in a way that clients can verify. With TLS, `done` runs after the client's reply;
  // without TLS, directly.
  virtual void say_goodbye(Ended done) = 0;
  // After say_goodbye(): raw bytes, to be dropped.
  void discard_some(boost::asio::mutable_buffer into, Moved done);

 protected:
  explicit Transport(const HttpStrand& strand) : strand_(strand) {}

 private:
  const HttpStrand strand_;
};

}  // namespace braid::server
