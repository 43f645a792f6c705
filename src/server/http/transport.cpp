// transport.cpp -- see transport.h.
#include "server/http/transport.h"

#include <boost/asio/ip/address.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
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
  using Side = asio::ssl::stream_base::handshake_type;

  SecureTransport(Socket socket, const HttpStrand& strand, asio::ssl::context& context, Side side)
      : Transport(strand), tls_(std::move(socket), context), side_(side) {}
  void expect_host(const std::string& host) {
    Error is_name;
    asio::ip::make_address(host, is_name);
    if (is_name) SSL_set_tlsext_host_name(tls_.native_handle(), host.c_str());
    tls_.set_verify_callback(asio::ssl::host_name_verification(host));
  }

  Socket& socket() override { return tls_.next_layer(); }
  void handshake(Ended done) override { tls_.async_handshake(side_, std::move(done)); }
  void read_some(asio::mutable_buffer into, Moved done) override {
    tls_.async_read_some(into, std::move(done));
  }
  void write(asio::const_buffer bytes, Moved done) override {
    asio::async_write(tls_, bytes, std::move(done));
  }
  void say_goodbye(Ended done) override { tls_.async_shutdown(std::move(done)); }

 private:
  asio::ssl::stream<Socket> tls_;
  const Side side_;
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
  return std::make_unique<SecureTransport>(std::move(socket), strand, context,
                                           asio::ssl::stream_base::server);
}

std::unique_ptr<Transport> Transport::secure_client(Socket socket, const HttpStrand& strand,
                                                    asio::ssl::context& context,
                                                    const std::string& host) {
  auto made = std::make_unique<SecureTransport>(std::move(socket), strand, context,
                                                asio::ssl::stream_base::client);
  made->expect_host(host);
  return made;
}

}  // namespace braid::server
