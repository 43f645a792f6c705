// transport.cpp -- see transport.h.
#include "server/http/transport.h"

#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <utility>

namespace braid::server {

namespace {

namespace asio = boost::asio;

class PlainTransport : public Transport {
 public:
  PlainTransport(Socket socket, const HttpStrand& strand)
      : Transport(strand), socket_(std::move(socket)) {}

  Socket& socket() override { return socket_; }
  void handshake(Ended done) override { done({}); }
  void read_some(asio::mutable_buffer into, Moved done) override {
    socket_.async_read_some(into, std::move(done));
  }
  void write(asio::const_buffer bytes, Moved done) override {
    asio::async_write(socket_, bytes, std::move(done));
  }
  void say_goodbye(Ended done) override {
    Error error;
    socket_.shutdown(Socket::shutdown_send, error);
    done(error);
  }

 private:
  Socket socket_;
};

class SecureTransport : public Transport {
 public:
  SecureTransport(Socket socket, const HttpStrand& strand, asio::ssl::context& context)
      : Transport(strand), tls_(std::move(socket), context) {}

  Socket& socket() override { return tls_.next_layer(); }
  void handshake(Ended done) override {
    tls_.async_handshake(asio::ssl::stream_base::server, std::move(done));
  }
  void read_some(asio::mutable_buffer into, Moved done) override {
    tls_.async_read_some(into, std::move(done));
  }
  void write(asio::const_buffer bytes, Moved done) override {
    asio::async_write(tls_, bytes, std::move(done));
  }
  void say_goodbye(Ended done) override { tls_.async_shutdown(std::move(done)); }

 private:
  asio::ssl::stream<Socket> tls_;
};

}  // namespace

void Transport::discard_some(asio::mutable_buffer into, Moved done) {
  socket().async_read_some(into, std::move(done));
}

std::unique_ptr<Transport> Transport::plain(Socket socket, const HttpStrand& strand) {
  return std::make_unique<PlainTransport>(std::move(socket), strand);
}

std::unique_ptr<Transport> Transport::secure(Socket socket, const HttpStrand& strand,
                                             asio::ssl::context& context) {
  return std::make_unique<SecureTransport>(std::move(socket), strand, context);
}

}  // namespace braid::server
