// transport.cpp -- see transport.h.
#include "server/http/transport.h"

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <utility>

namespace braid::server {

namespace {

namespace asio = boost::asio;

class PlainTransport : public Transport {
 public:
  explicit PlainTransport(Socket socket)
      : Transport(asio::make_strand(socket.get_executor())), socket_(std::move(socket)) {}

  Socket& socket() override { return socket_; }
  void handshake(Ended done) override { done({}); }
  void read_some(asio::mutable_buffer into, Moved done) override {
    socket_.async_read_some(into, asio::bind_executor(strand(), std::move(done)));
  }
  void write(asio::const_buffer bytes, Moved done) override {
    asio::async_write(socket_, bytes, asio::bind_executor(strand(), std::move(done)));
  }
  void say_goodbye(Ended) override {
    Error ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
  }
  bool reads_after_goodbye() const override { return true; }

 private:
  Socket socket_;
};

class SecureTransport : public Transport {
 public:
  SecureTransport(Socket socket, asio::ssl::context& context)
      : Transport(asio::make_strand(socket.get_executor())), tls_(std::move(socket), context) {}

  Socket& socket() override { return tls_.next_layer(); }
  void handshake(Ended done) override {
    tls_.async_handshake(asio::ssl::stream_base::server, asio::bind_executor(strand(), std::move(done)));
  }
  void read_some(asio::mutable_buffer into, Moved done) override {
    tls_.async_read_some(into, asio::bind_executor(strand(), std::move(done)));
  }
  void write(asio::const_buffer bytes, Moved done) override {
    asio::async_write(tls_, bytes, asio::bind_executor(strand(), std::move(done)));
  }
  void say_goodbye(Ended done) override {
    tls_.async_shutdown(asio::bind_executor(strand(), std::move(done)));
  }
  bool reads_after_goodbye() const override { return false; }

 private:
  asio::ssl::stream<Socket> tls_;
};

}  // namespace

std::unique_ptr<Transport> Transport::plain(Socket socket) {
  return std::make_unique<PlainTransport>(std::move(socket));
}

std::unique_ptr<Transport> Transport::secure(Socket socket, asio::ssl::context& context) {
  return std::make_unique<SecureTransport>(std::move(socket), context);
}

}  // namespace braid::server
