// served.h -- runs the real `braid serve` as a process, and a client for it, with and without TLS.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace braid::test {

// Starts `braid serve --port 0 ...`, or another command that listens, and waits until it does. The
// destructor kills it.
class Served {
 public:
  explicit Served(std::vector<std::string> arguments)
      : Served("serve", " tokens of context", std::move(arguments)) {}
  // `ready`: of the line with the address, which has " on http" before it.
  Served(const char* command, const char* ready, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {command, "--port", "0"});
    int pipe[2];
    // CLOEXEC: another server that inherits the pipe would keep the log open.
    if (::pipe2(pipe, O_CLOEXEC) != 0) std::abort();
    child_ = ::fork();
    if (child_ == 0) {
      ::dup2(pipe[1], 2);
      std::vector<char*> argv{const_cast<char*>(BRAID_PROGRAM)};
      for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
      argv.push_back(nullptr);
      ::execv(BRAID_PROGRAM, argv.data());
      ::_exit(127);
    }
    ::close(pipe[1]);
    reader_ = std::thread([this, fd = pipe[0]] {
      char buffer[4096];
      ssize_t count;
      while ((count = ::read(fd, buffer, sizeof buffer)) > 0) {
        const std::lock_guard lock(mutex_);
        log_.append(buffer, static_cast<size_t>(count));
        changed_.notify_all();
      }
      ::close(fd);
      const std::lock_guard lock(mutex_);
      closed_ = true;
      changed_.notify_all();
    });
    if (!wait_log(ready)) return;
    const std::string text = log();
    const size_t at = text.find("://", text.find(" on http"));
    const size_t colon = text.find(':', at + 3);
    if (at != std::string::npos && colon != std::string::npos) {
      port = static_cast<uint16_t>(std::stoi(text.substr(colon + 1)));
    }
  }
  ~Served() {
    if (!ended_) {
      ::kill(child_, SIGKILL);
      wait();
    }
    reader_.join();
  }

  void signal(int number) { ::kill(child_, number); }
  // The exit code, or 128 plus the signal.
  int wait() {
    int status = 0;
    ::waitpid(child_, &status, 0);
    ended_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  // Waits until stderr contains `text` or ends.
  bool wait_log(const std::string& text) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::minutes(2),
                      [&] { return closed_ || log_.find(text) != std::string::npos; });
    return log_.find(text) != std::string::npos;
  }
  std::string log() {
    const std::lock_guard lock(mutex_);
    return log_;
  }

  uint16_t port = 0;  // 0: it did not start

 private:
  pid_t child_ = -1;
  bool ended_ = false;
  std::thread reader_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string log_;
  bool closed_ = false;
};

class Connection {
 public:
  // With `certificate` (a PEM file to trust): TLS with a check of the server's name.
  explicit Connection(uint16_t port, const std::string& certificate = "")
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected = ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    if (!connected || certificate.empty()) return;
    context_ = SSL_CTX_new(TLS_client_method());
    SSL_CTX_load_verify_locations(context_, certificate.c_str(), nullptr);
    SSL_CTX_set_verify(context_, SSL_VERIFY_PEER, nullptr);
    tls_ = SSL_new(context_);
    SSL_set1_host(tls_, "localhost");
    SSL_set_fd(tls_, socket_);
    connected = SSL_connect(tls_) == 1;
  }
  ~Connection() {
    SSL_free(tls_);
    SSL_CTX_free(context_);
    ::close(socket_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void send(const std::string& method, const std::string& path, const std::string& body = "",
            const std::string& headers = "") {
    const std::string text = method + " " + path + " HTTP/1.1\r\nHost: " + host +
                             "\r\nConnection: close\r\n" + headers +
                             "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
    if (tls_ != nullptr) {
      (void)SSL_write(tls_, text.data(), static_cast<int>(text.size()));
    } else {
      (void)!::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
    }
  }
  // Returns false if the connection ends before `text` arrives.
  bool read_until(const std::string& text) {
    while (received.find(text) == std::string::npos) {
      if (!read_some()) return false;
    }
    return true;
  }
  std::string read_all() {
    while (read_some()) {
    }
    return received;
  }
  // The next bytes; false when the connection has ended.
  bool read_some() {
    char buffer[16384];
    int count = 0;
    if (tls_ != nullptr) {
      count = SSL_read(tls_, buffer, sizeof buffer);
      closed_cleanly = count <= 0 && SSL_get_error(tls_, count) == SSL_ERROR_ZERO_RETURN;
    } else {
      pollfd watched{socket_, POLLIN, 0};
      if (::poll(&watched, 1, 120'000) <= 0) return false;
      count = static_cast<int>(::recv(socket_, buffer, sizeof buffer, 0));
    }
    if (count <= 0) return false;
    received.append(buffer, static_cast<size_t>(count));
    return true;
  }
  int status() const { return received.size() < 12 ? 0 : std::stoi(received.substr(9, 3)); }
  std::string body() const {
    const size_t at = received.find("\r\n\r\n");
    return at == std::string::npos ? "" : received.substr(at + 4);
  }

  std::string host = "localhost";  // of the Host field
  bool connected = false;
  bool closed_cleanly = false;  // TLS: received close_notify
  std::string received;

 private:
  int socket_;
  SSL_CTX* context_ = nullptr;
  SSL* tls_ = nullptr;
};

}  // namespace braid::test
