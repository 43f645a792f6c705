// fake_upstream_test.h -- for tests: an upstream whose bytes are scripted, and a proxy for it.
#pragma once

#include <gtest/gtest.h>
#include <netinet/tcp.h>

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "server/proxy/proxy_app.h"
#include "server/test_server_test.h"

namespace braid::server {

// One thread for each connection, which runs the script from its begin to its end and then closes.
class FakeUpstream {
 public:
  struct Asked {
    std::string head, body;
    std::string line() const { return head.substr(0, head.find("\r\n")); }
    bool has(const std::string& text) const { return head.find(text) != head.npos; }
  };

  class Peer {
   public:
    Peer(int socket, int number) : number(number), socket_(socket) {}

    // Empty when the proxy closed the connection.
    std::optional<Asked> read() {
      Asked out;
      while (input_.find("\r\n\r\n") == input_.npos) {
        if (!read_some()) return std::nullopt;
      }
      const size_t end = input_.find("\r\n\r\n") + 4;
      out.head = input_.substr(0, end);
      const size_t at = out.head.find("Content-Length: ");
      const size_t length = at == out.head.npos ? 0 : std::stoul(out.head.substr(at + 16));
      while (input_.size() < end + length) {
        if (!read_some()) return std::nullopt;
      }
      out.body = input_.substr(end, length);
      input_.erase(0, end + length);
      return out;
    }
    bool send(const std::string& bytes) {
      for (size_t at = 0; at < bytes.size();) {
        const ssize_t sent = ::send(socket_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
        if (sent <= 0) return false;
        at += static_cast<size_t>(sent);
      }
      return true;
    }
    // Each byte on its own.
    bool send_bytes(const std::string& bytes) {
      const int on = 1;
      ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      for (const char c : bytes) {
        if (!send(std::string(1, c))) return false;
        std::this_thread::yield();
      }
      return true;
    }
    bool sees_end() {
      while (read_some()) {
      }
      return ended_;
    }
    void reset() {
      const linger now{1, 0};
      ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    }

    const int number;  // of the connection, from 1

   private:
    bool read_some() {
      pollfd watched{socket_, POLLIN, 0};
      if (::poll(&watched, 1, 20'000) <= 0) return false;
      char buffer[16384];
      const ssize_t count = ::recv(socket_, buffer, sizeof buffer, 0);
      ended_ = count <= 0;
      if (count > 0) input_.append(buffer, static_cast<size_t>(count));
      return count > 0;
    }

    const int socket_;
    std::string input_;
    bool ended_ = false;
  };
  using Play = std::function<void(Peer&)>;

  explicit FakeUpstream(Play play) : play_(std::move(play)) {
    listening_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listening_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listening_, 256), 0);
    socklen_t size = sizeof address;
    ::getsockname(listening_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    accepting_ = std::thread([this] { accept_all(); });
  }
  ~FakeUpstream() {
    ::shutdown(listening_, SHUT_RDWR);
    accepting_.join();
    ::close(listening_);
    {
      const std::lock_guard lock(mutex_);
      for (const int socket : open_) ::shutdown(socket, SHUT_RDWR);
    }
    for (std::thread& thread : threads_) thread.join();
  }

  uint16_t port() const { return port_; }
  int connections() const { return connections_; }

 private:
  void accept_all() {
    while (true) {
      const int socket = ::accept(listening_, nullptr, nullptr);
      if (socket < 0) return;
      const int number = ++connections_;
      {
        const std::lock_guard lock(mutex_);
        open_.push_back(socket);
      }
      threads_.emplace_back([this, socket, number] {
        Peer peer(socket, number);
        play_(peer);
        const std::lock_guard lock(mutex_);
        open_.remove(socket);
        ::close(socket);
      });
    }
  }

  const Play play_;
  int listening_ = -1;
  uint16_t port_ = 0;
  std::atomic<int> connections_{0};
  std::thread accepting_;
  std::list<std::thread> threads_;  // used by accepting_, then by the destructor
  std::mutex mutex_;
  std::list<int> open_;  // guarded by mutex_
};

// Answers every request on a connection with the same bytes.
inline FakeUpstream::Play always(std::string answer) {
  return [answer = std::move(answer)](FakeUpstream::Peer& peer) {
    while (peer.read()) {
      if (!peer.send(answer)) return;
    }
  };
}

inline std::string with_length(const std::string& first_line, const std::string& body,
                               const std::string& fields = "Content-Type: application/json\r\n") {
  return first_line + "\r\n" + fields + "Content-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

inline std::string chunked(const std::string& body) {
  if (body.empty()) return "";
  char size[32];
  std::snprintf(size, sizeof size, "%zx\r\n", body.size());
  return size + body + "\r\n";
}

inline const std::string kEventHead =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

struct TestProxy {
  using Adjust = std::function<void(ProxyOptions&, HttpOptions&)>;

  explicit TestProxy(const std::string& url, const Adjust& adjust = nullptr,
                     std::shared_ptr<BodyRewriter> rewriter = nullptr) {
    ProxyOptions options;
    HttpOptions front;
    front.port = 0;
    options.access_log = AccessLog::off;
    auto parsed = parse_upstream_url(url);
    EXPECT_TRUE(parsed.ok());
    options.upstream.url = std::move(parsed).value();
    if (adjust) adjust(options, front);
    auto made = ProxyApp::create(std::move(options), std::move(rewriter));
    EXPECT_TRUE(made.ok());
    app = std::move(made).value();
    auto started = HttpServer::start(front, app->handlers());
    EXPECT_TRUE(started.ok());
    http = std::move(started).value();
  }
  explicit TestProxy(uint16_t upstream_port, const Adjust& adjust = nullptr,
                     std::shared_ptr<BodyRewriter> rewriter = nullptr)
      : TestProxy("http://127.0.0.1:" + std::to_string(upstream_port), adjust,
                  std::move(rewriter)) {}
  ~TestProxy() {
    http->stop();
    app->stop();
  }
  uint16_t port() const { return http->port(); }
  // A generous wait for what follows without a message.
  template <typename Holds>
  static bool waits_for(Holds holds) {
    for (int i = 0; i < 4000; ++i) {
      if (holds()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  std::unique_ptr<ProxyApp> app;
  std::unique_ptr<HttpServer> http;
};

}  // namespace braid::server
