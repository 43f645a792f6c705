// server_load.h -- shared parts of the server loads: connections, a stream reader, metrics.
#pragma once

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace server_load {

using Clock = std::chrono::steady_clock;

inline double now_s() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

[[noreturn]] inline void give_up(const std::string& why) {
  std::fprintf(stderr, "server_load: %s\n", why.c_str());
  std::exit(2);
}

inline int g_port = 0, g_pid = 0, g_epoll = -1;

inline int connect_to_server() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (fd < 0) give_up(std::string("socket: ") + std::strerror(errno));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(g_port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0 && errno != EINPROGRESS)
    give_up(std::string("connect: ") + std::strerror(errno));
  const int one = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

inline std::string request_text(const std::string& prompt, int tokens, bool stream) {
  const std::string body = R"({"prompt":")" + prompt +
                           R"(","temperature":0,"ignore_eos":true,"max_tokens":)" +
                           std::to_string(tokens) + (stream ? R"(,"stream":true})" : "}");
  return "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

inline const std::vector<std::string>& prompts() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> out;
    for (const char* word : {"The river", "A lighthouse", "In winter", "def main", "Paris is",
                             "She opened", "Numbers are", "Once"})
      for (const char* more : {" and the", " which", " that was", " of"})
        out.push_back(std::string(word) + more);
    return out;
  }();
  return all;
}

// A connection that asks repeatedly. An event's text is between `"text":"` and the next quote.
class Client {
 public:
  explicit Client(int index) : index_(index) {}
  ~Client() { shut(); }
  Client(const Client&) = delete;

  void ask(size_t prompt, int tokens) {
    ask(prompt, request_text(prompts()[prompt], tokens, true));
  }
  void ask(size_t prompt, std::string request) {
    prompt_ = prompt;
    request_ = std::move(request);
    sent_ = 0;
    done_ = finished_ = false;
    fault_.clear();
    answer_.clear();
    events_ = 0;
    parsed_ = 0;
    busy_ = true;
    text_.clear();
    if (fd_ < 0) {
      fd_ = connect_to_server();
      epoll_event event{};
      event.events = EPOLLIN | EPOLLOUT | EPOLLET;
      event.data.ptr = this;
      ::epoll_ctl(g_epoll, EPOLL_CTL_ADD, fd_, &event);
    } else {
      write_some();
    }
  }

  // Call it when the socket is ready. `gaps`, unless null, gets the seconds between tokens.
  void ready(std::vector<float>* gaps) {
    write_some();
    char buffer[16384];
    for (;;) {
      const ssize_t n = ::recv(fd_, buffer, sizeof buffer, 0);
      if (n > 0) {
        answer_.append(buffer, static_cast<size_t>(n));
        parse(gaps);
        continue;
      }
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (busy_) fault_ = "the connection ended: " + answer_.substr(0, 300);
      busy_ = false;
      shut();
      return;
    }
  }

  void shut() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  // Leaves in the middle of an answer, with FIN or RST.
  void leave(bool reset) {
    const linger now_gone{1, 0};
    if (reset) ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now_gone, sizeof now_gone);
    shut();
    busy_ = false;
  }
  bool busy() const { return busy_; }
  int index() const { return index_; }
  int events() const { return events_; }
  size_t prompt() const { return prompt_; }
  const std::string& text() const { return text_; }
  const std::string& fault() const { return fault_; }

 private:
  void write_some() {
    while (sent_ < request_.size()) {
      const ssize_t n = ::send(fd_, request_.data() + sent_, request_.size() - sent_, MSG_NOSIGNAL);
      if (n <= 0) return;
      sent_ += static_cast<size_t>(n);
    }
  }

  void parse(std::vector<float>* gaps) {
    static constexpr std::string_view kBegin = R"("text":")", kEnd = "\r\n0\r\n\r\n";
    if (answer_.size() >= 12 && answer_.compare(0, 12, "HTTP/1.1 200") != 0) {
      fault_ = answer_.substr(0, 400);
      busy_ = false;
      shut();
      return;
    }
    for (;;) {  // one event at a time
      const size_t end = answer_.find("\n\n", parsed_);
      if (end == std::string::npos) break;
      const std::string_view event(answer_.data() + parsed_, end - parsed_);
      parsed_ = end + 2;
      if (const size_t at = event.find(kBegin); at != event.npos) {
        size_t stop = at + kBegin.size();
        while (stop < event.size() && event[stop] != '"') stop += event[stop] == '\\' ? 2 : 1;
        text_ += event.substr(at + kBegin.size(), stop - at - kBegin.size());
        const double now = now_s();
        if (events_++ > 0 && gaps != nullptr) gaps->push_back(static_cast<float>(now - last_));
        last_ = now;
        finished_ = event.find(R"("finish_reason":null)") == event.npos;
      }
      if (event.find(R"("error")") != event.npos) fault_ = std::string(event);
      if (event.find("data: [DONE]") != event.npos) done_ = true;
    }
    if (done_ && answer_.size() >= kEnd.size() &&
        answer_.compare(answer_.size() - kEnd.size(), kEnd.size(), kEnd) == 0) {
      if (!finished_) fault_ = "no finish_reason before [DONE]";
      busy_ = done_ = finished_ = false;
    }
  }

  int index_, fd_ = -1, events_ = 0;
  size_t prompt_ = 0, sent_ = 0, parsed_ = 0;
  std::string request_, answer_, text_, fault_;
  bool busy_ = false, done_ = false, finished_ = false;
  double last_ = 0;
};

inline void wait_for_events(int ms, std::vector<float>* gaps) {
  epoll_event events[256];
  const int n = ::epoll_wait(g_epoll, events, 256, ms);
  for (int i = 0; i < n; ++i) {
    if (events[i].data.ptr != nullptr) static_cast<Client*>(events[i].data.ptr)->ready(gaps);
  }
}

inline std::string get(const std::string& path) {
  const int fd = connect_to_server();
  const std::string request =
      "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  std::string out;
  const double until = now_s() + 10;
  size_t sent = 0;
  char buffer[65536];
  while (now_s() < until) {
    if (sent < request.size()) {
      const ssize_t n = ::send(fd, request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
      if (n > 0) sent += static_cast<size_t>(n);
    }
    const ssize_t n = ::recv(fd, buffer, sizeof buffer, 0);
    if (n > 0) out.append(buffer, static_cast<size_t>(n));
    if (n == 0) break;
    if (n < 0) ::usleep(500);
  }
  ::close(fd);
  return out;
}

inline double metric(const std::string& text, const std::string& name) {
  const size_t at = text.find("\n" + name + "{");
  if (at == std::string::npos) return -1;
  return std::atof(text.c_str() + text.find("} ", at) + 2);
}

inline double resident_mb() {
  std::ifstream file("/proc/" + std::to_string(g_pid) + "/statm");
  double all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE)) / 1e6;
}

inline int open_files() {
  int n = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(g_pid) + "/fd"))
    n += entry.is_symlink();
  return n;
}

inline std::map<std::string, double> thread_seconds() {
  std::map<std::string, double> out;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(g_pid) + "/task")) {
    std::string name;
    std::getline(std::ifstream(entry.path() / "comm") >> std::ws, name);
    double nanoseconds = 0;
    std::ifstream(entry.path() / "schedstat") >> nanoseconds;
    out[name] += nanoseconds / 1e9;
  }
  return out;
}

inline double quantile(std::vector<float>& values, double q) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<long>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return 1e3 * *at;
}

// blocks: share of the KV cache that sequences hold; cached blocks without a holder do not count.
struct Held {
  double memory_mb = 0, blocks = 0, slots = 0, running = 0, waiting = 0, connections = 0;
  int files = 0;
};

inline Held held() {
  Held out;
  for (int i = 0; i < 20; ++i) {
    const std::string text = get("/metrics");
    out = {resident_mb(),
           metric(text, "braid_kv_cache_usage_perc"),
           metric(text, "braid_state_slots_used"),
           metric(text, "braid_num_requests_running"),
           metric(text, "braid_num_requests_waiting"),
           metric(text, "braid_http_open_connections"),
           open_files()};
    if (out.running == 0 && out.waiting == 0 && out.connections <= 1) break;
    ::usleep(1'500'000);  // a closed connection lingers briefly, including the one of the last poll
  }
  return out;
}

int churn(int count, double seconds);
int schemas(double seconds);
int hostile(double seconds);

}  // namespace server_load
