// proxy.h -- HAProxy with the configuration of deploy/proxy, before replicas on this machine.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace braid::test {

// A free port of 127.0.0.1 outside the range that the system gives to connections, so a program can
// take it again after a restart.
inline uint16_t free_port() {
  static int next = 0;
  for (int tries = 0; tries < 8000; ++tries) {
    const auto port = static_cast<uint16_t>(21000 + (::getpid() * 16 + next++) % 8000);
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool free = ::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    ::close(socket);
    if (free) return port;
  }
  return 0;
}

inline bool have_program(const std::string& name) {
  return std::system(("PATH=$PATH:/usr/sbin command -v " + name + " >/dev/null 2>&1").c_str()) == 0;
}

inline std::string text_of(const std::filesystem::path& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

// `config` with `line`, which may be several lines or none, in place of each line that begins with
// `begin` after blanks. `count` gets the number of replaced lines.
inline std::string with_lines(const std::string& config, const std::string& begin,
                              const std::string& line, int* count) {
  std::istringstream in(config);
  std::string out;
  *count = 0;
  for (std::string one; std::getline(in, one);) {
    const size_t text = one.find_first_not_of(" \t");
    if (text == std::string::npos || one.compare(text, begin.size(), begin) != 0) {
      out += one + "\n";
    } else if ((*count)++ == 0) {
      out += line + "\n";
    }
  }
  return out;
}

class HaProxy {
 public:
  // `folder` holds its files. port is 0 if the configuration is not as expected or HAProxy ended.
  HaProxy(const std::string& config, const std::filesystem::path& folder,
          const std::vector<uint16_t>& replicas)
      : socket_(folder / "haproxy.sock") {
    const uint16_t listens = free_port();
    std::string servers;
    for (size_t i = 0; i < replicas.size(); ++i)
      servers += "    server r" + std::to_string(i + 1) +
                 " 127.0.0.1:" + std::to_string(replicas[i]) + "\n";
    int binds = 0, sockets = 0, named = 0;
    std::string text =
        with_lines(config, "bind ", "    bind 127.0.0.1:" + std::to_string(listens), &binds);
    text = with_lines(text, "stats socket ",
                      "    stats socket " + socket_.string() + " level admin", &sockets);
    text = with_lines(text, "server ", servers, &named);
    if (binds != 1 || sockets != 1 || named != 3) return;
    const std::filesystem::path path = folder / "haproxy.cfg", log = folder / "haproxy.log";
    std::ofstream(path) << text;
    child_ = ::fork();
    if (child_ == 0) {
      const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      ::dup2(out, 1);
      ::dup2(out, 2);
      ::setenv("PATH", "/usr/sbin:/usr/bin:/bin", 1);
      ::execlp("haproxy", "haproxy", "-db", "-f", path.c_str(), static_cast<char*>(nullptr));
      ::_exit(127);
    }
    for (size_t i = 1; i <= replicas.size(); ++i)
      if (!wait_for("r" + std::to_string(i), true)) return;
    port = listens;
  }
  ~HaProxy() {
    if (child_ <= 0) return;
    ::kill(child_, SIGTERM);
    ::waitpid(child_, nullptr, 0);
  }
  HaProxy(const HaProxy&) = delete;
  HaProxy& operator=(const HaProxy&) = delete;

  // Until the replica is in use, or is not; false after two minutes.
  bool wait_for(const std::string& replica, bool up) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (std::chrono::steady_clock::now() < end) {
      const std::string state = status(replica);
      if (!state.empty() && (state == "UP") == up) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }

  uint16_t port = 0;

 private:
  // "UP", "DOWN", "UP 1/2" (a check has failed); empty if HAProxy does not say.
  std::string status(const std::string& replica) const {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socket_.string().copy(address.sun_path, sizeof address.sun_path - 1);
    std::string text;
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
      const std::string question = "show stat replicas 4 -1\n";
      (void)!::send(fd, question.data(), question.size(), MSG_NOSIGNAL);
      char buffer[4096];
      for (ssize_t n; (n = ::recv(fd, buffer, sizeof buffer, 0)) > 0;)
        text.append(buffer, static_cast<size_t>(n));
    }
    ::close(fd);
    size_t at = text.find("replicas," + replica + ",");
    if (at == std::string::npos) return "";
    for (int column = 0; column < 17; ++column) at = text.find(',', at) + 1;
    return text.substr(at, text.find(',', at) - at);
  }

  std::filesystem::path socket_;
  pid_t child_ = -1;
};

}  // namespace braid::test
