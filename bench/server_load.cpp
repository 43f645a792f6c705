// server_load.cpp -- load on a running `braid serve`, from one cheap thread (epoll, no JSON).
//
//   server_load PORT PID streams N SECONDS    N clients; each answer must equal its solo answer.
//   server_load PORT PID churn N SECONDS      Leaving clients, preemption (server_churn.cpp).
//   server_load PORT PID crowd SECONDS R      4 readers, R rounds without and with 2,000 idle
//                                             connections and 200 slow senders: 99th percentile
//                                             between tokens.
//   server_load PORT PID leave N              N clients leave at random; memory before and after.
//   server_load PORT PID flood MB             Endless requests: MB of chunk extension, MB / 3 of
//                                             trailer, MB of bodies; growth of memory.
//   server_load PORT PID schemas SECONDS      A reader beside expensive grammars; longest pause.
//   server_load PORT PID hostile SECONDS      A reader, hostile requests (server_hostile.cpp).
//   server_load PORT PID cost N SECONDS       CPU time of server threads per token at N streams.
//
// PID is the server's. bench/server_load.sh runs all loads. Exit code 1: a check failed.
#include "server_load.h"

#include <signal.h>
#include <sys/resource.h>

#include <memory>
#include <random>
#include <sstream>

namespace {

using namespace server_load;

std::vector<std::string> solo_answers(int tokens) {
  std::vector<std::string> out;
  Client client(0);
  for (size_t i = 0; i < prompts().size(); ++i) {
    client.ask(i, tokens);
    while (client.busy()) wait_for_events(100, nullptr);
    if (!client.fault().empty()) give_up("alone: " + client.fault());
    out.push_back(client.text());
  }
  return out;
}

struct Outcome {
  long answers = 0, tokens = 0, different = 0, failed = 0;
  std::string first_fault;
  std::vector<float> gaps;
};

Outcome run_streams(int count, double seconds, int tokens, const std::vector<std::string>& solo) {
  Outcome out;
  std::mt19937 random(7);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < count; ++i) {
    clients.push_back(std::make_unique<Client>(i));
    clients.back()->ask(random() % prompts().size(), tokens);
  }
  const double until = now_s() + seconds;
  for (size_t busy = clients.size(); busy > 0;) {
    wait_for_events(50, &out.gaps);
    busy = 0;
    for (auto& client : clients) {
      if (client->busy()) {
        ++busy;
        continue;
      }
      // already counted, asks no more
      if (client->events() == 0 && client->fault().empty()) continue;
      ++out.answers;
      out.tokens += client->events();
      if (!client->fault().empty()) {
        if (out.first_fault.empty()) out.first_fault = client->fault();
        ++out.failed;
      } else if (!solo.empty() && client->text() != solo[client->prompt()]) {
        ++out.different;
      }
      const int index = client->index();
      if (!client->fault().empty()) client = std::make_unique<Client>(index);
      if (now_s() < until) {
        client->ask(random() % prompts().size(), tokens);
        ++busy;
      } else {
        client = std::make_unique<Client>(index);
      }
    }
  }
  return out;
}

int streams(int count, double seconds) {
  const int tokens = 64;
  const auto solo = solo_answers(tokens);
  const double begin = now_s();
  Outcome out = run_streams(count, seconds, tokens, solo);
  std::printf(
      "streams: %d clients, %.1f s: %ld answers, %ld tokens, %.0f tokens/s; %ld failed, %ld unlike "
      "alone; "
      "between tokens ms p50 %.2f p99 %.2f\n",
      count, now_s() - begin, out.answers, out.tokens,
      static_cast<double>(out.tokens) / (now_s() - begin), out.failed, out.different,
      quantile(out.gaps, 0.5), quantile(out.gaps, 0.99));
  if (!out.first_fault.empty()) std::printf("first fault: %s\n", out.first_fault.c_str());
  return out.failed + out.different > 0 ? 1 : 0;
}

int crowd(double seconds, int rounds) {
  std::vector<double> without, with;
  for (int round = 0; round < rounds; ++round) {
    // The order alternates, so that a change of the machine's other load favors neither side.
    Outcome quiet;
    if (round % 2 == 0) quiet = run_streams(4, seconds, 256, {});
    std::vector<int> idle, slow;
    for (int i = 0; i < 2000; ++i) idle.push_back(connect_to_server());
    for (int i = 0; i < 200; ++i) slow.push_back(connect_to_server());
    ::usleep(500'000);
    const int connections =
        static_cast<int>(metric(get("/metrics"), "braid_http_open_connections"));
    // A child process sends the slow clients' bytes, so that this thread only reads.
    const pid_t child = ::fork();
    if (child == 0) {
      const std::string header =
          "GET /health HTTP/1.1\r\nHost: localhost\r\nX-Padding: " + std::string(400, 'x');
      std::vector<size_t> at(slow.size(), 0);
      for (size_t k = 0;; ++k) {
        const size_t i = k % slow.size();
        if (::send(slow[i], header.data() + at[i] % header.size(), 1, MSG_NOSIGNAL) != 1) {
          ::close(slow[i]);  // closed after the header timeout: reconnect
          slow[i] = connect_to_server();
          at[i] = 0;
        } else {
          ++at[i];
        }
        ::usleep(2500);  // each of the 200 sends two bytes a second
      }
    }
    Outcome crowded = run_streams(4, seconds, 256, {});
    ::kill(child, SIGKILL);
    for (const int fd : idle) ::close(fd);
    for (const int fd : slow) ::close(fd);
    ::usleep(500'000);
    if (round % 2 == 1) quiet = run_streams(4, seconds, 256, {});
    without.push_back(quantile(quiet.gaps, 0.99));
    with.push_back(quantile(crowded.gaps, 0.99));
    std::printf(
        "crowd: round %d: p99 between tokens %.2f ms, with %d connections %.2f ms (%+.1f %%); p50 "
        "%.2f and "
        "%.2f ms; %ld failed\n",
        round + 1, without.back(), connections, with.back(),
        100 * (with.back() / without.back() - 1), quantile(quiet.gaps, 0.5),
        quantile(crowded.gaps, 0.5), quiet.failed + crowded.failed);
    std::fflush(stdout);
  }
  std::sort(without.begin(), without.end());
  std::sort(with.begin(), with.end());
  const double change = 100 * (with[with.size() / 2] / without[without.size() / 2] - 1);
  std::printf("crowd: medians of p99: %.2f and %.2f ms, %+.1f %%\n", without[without.size() / 2],
              with[with.size() / 2], change);
  return change < 10 ? 0 : 1;
}

void print_held(const char* when, const Held& held) {
  std::printf(
      "leave: %s: %.1f MB, %d files, %.0f connections, %.0f running, %.0f waiting, blocks in use "
      "%.4f\n",
      when, held.memory_mb, held.files, held.connections, held.running, held.waiting, held.blocks);
  std::fflush(stdout);
}

int leave(int count) {
  std::mt19937 random(11);
  struct Visitor {
    int fd = -1;
    double until = 0;
    std::string request;
    size_t sent = 0;
  };
  std::vector<Visitor> visitors(40);
  char buffer[65536];
  Held first;
  double begin = 0;
  const int warm_up = count / 5;  // lets allocators and caches reach their full size
  for (int gone = 0; gone < count + warm_up;) {
    for (Visitor& visitor : visitors) {
      const double now = now_s();
      if (visitor.fd < 0) {
        visitor.fd = connect_to_server();
        visitor.request =
            request_text(prompts()[random() % prompts().size()], 200, random() % 4 != 0);
        if (random() % 5 == 0) visitor.request.resize(random() % visitor.request.size());
        visitor.sent = 0;
        visitor.until = now + 1e-3 * static_cast<double>(random() % 200);
      }
      if (visitor.sent < visitor.request.size()) {
        const ssize_t n = ::send(visitor.fd, visitor.request.data() + visitor.sent,
                                 visitor.request.size() - visitor.sent, MSG_NOSIGNAL);
        if (n > 0) visitor.sent += static_cast<size_t>(n);
      }
      while (::recv(visitor.fd, buffer, sizeof buffer, 0) > 0) {
      }
      if (now < visitor.until) continue;
      if (random() % 2 == 0) {  // RST instead of FIN
        const linger now_gone{1, 0};
        ::setsockopt(visitor.fd, SOL_SOCKET, SO_LINGER, &now_gone, sizeof now_gone);
      }
      ::close(visitor.fd);
      visitor.fd = -1;
      if (++gone == warm_up) {
        for (Visitor& other : visitors) {
          if (other.fd >= 0) ::close(other.fd);
          other.fd = -1;
        }
        first = held();
        print_held("after the warm-up", first);
        begin = now_s();
      }
    }
    ::usleep(1000);
  }
  for (Visitor& visitor : visitors) {
    if (visitor.fd >= 0) ::close(visitor.fd);
  }
  const Held last = held();
  print_held(("after " + std::to_string(count) + " more").c_str(), last);
  std::printf("leave: %.1f s, %+.1f MB\n", now_s() - begin, last.memory_mb - first.memory_mb);
  const bool flat = last.running == 0 && last.waiting == 0 && last.connections <= 1 &&
                    last.files <= first.files + 1 && last.blocks <= first.blocks &&
                    last.memory_mb < first.memory_mb * 1.05 + 5;
  return flat ? 0 : 1;
}

struct Flood {
  double taken_mb = 0, most_mb = 0;
  std::map<std::string, int> answers;  // by status line
};

// Sends `begin`, then `bytes` of repeated `piece`, over each connection, until the server stops.
Flood pour(int count, const std::string& begin, const std::string& piece, double bytes) {
  struct Source {
    int fd = -1;
    size_t at = 0;  // position in the data to send
    double left = 0;
    std::string answer;
  };
  std::vector<Source> sources(static_cast<size_t>(count));
  Flood out;
  for (Source& source : sources) source = {connect_to_server(), 0, bytes, ""};
  for (size_t open = sources.size(), round = 0; open > 0; ++round) {
    open = 0;
    bool moved = false;
    for (Source& source : sources) {
      if (source.fd < 0) continue;
      char buffer[4096];
      const ssize_t got = ::recv(source.fd, buffer, sizeof buffer, 0);
      if (got > 0) source.answer.append(buffer, static_cast<size_t>(got));
      const bool begun = source.at >= begin.size();
      const size_t offset = begun ? (source.at - begin.size()) % piece.size() : source.at;
      const std::string& from = begun ? piece : begin;
      const ssize_t sent =
          ::send(source.fd, from.data() + offset, from.size() - offset, MSG_NOSIGNAL);
      if (sent > 0) {
        source.at += static_cast<size_t>(sent);
        source.left -= begun ? static_cast<double>(sent) : 0;
        out.taken_mb += static_cast<double>(sent) / 1e6;
        moved = true;
      }
      const bool wants = errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOTCONN;
      if (source.left <= 0 || got == 0 || (sent < 0 && !wants)) {
        ++out.answers[source.answer.substr(0, source.answer.find('\r'))];
        if (source.left > 0) ::close(source.fd);
        source.fd = -1;  // a fully sent connection stays open and keeps its memory
      } else {
        ++open;
      }
    }
    if (round % 64 == 0 || open == 0) out.most_mb = std::max(out.most_mb, resident_mb());
    if (!moved) ::usleep(1000);
  }
  return out;
}

int flood(double mb) {
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n";
  const std::string chunked = head + "Transfer-Encoding: chunked\r\n\r\n";
  const std::string x(64 << 10, 'x');
  struct Kind {
    const char* what;
    int count;
    std::string begin;
    double mb;
    double most_mb;  // limit of memory growth
  };
  const std::vector<Kind> kinds = {
      {"a chunk extension", 1, chunked + "1;", mb, 8},
      {"a trailer", 1, chunked + "2\r\n{}\r\n0\r\nX: ", mb / 3, 8},
      {"32 bodies that do not end", 32, head + "Content-Length: 33554432\r\n\r\n",
       std::min(mb / 32, 33.0), 1.25 * 256 + 16},
  };
  get("/metrics");
  bool bounded = true;
  for (const Kind& kind : kinds) {
    const double before = resident_mb();
    const Flood out = pour(kind.count, kind.begin, x, 1e6 * kind.mb);
    std::printf("flood: %s: %.0f MB offered, %.1f taken, memory %.1f MB and at most %.1f (%+.1f)",
                kind.what, kind.count * kind.mb, out.taken_mb, before, out.most_mb,
                out.most_mb - before);
    for (const auto& [line, count] : out.answers)
      std::printf("; %d x %s", count, line.empty() ? "no answer" : line.c_str());
    const bool serves = get("/health").find(" 200 ") != std::string::npos;
    std::printf("; %s\n", serves ? "serves on" : "DOES NOT SERVE ON");
    std::fflush(stdout);
    bounded = bounded && serves && out.most_mb - before < kind.most_mb;
  }
  return bounded ? 0 : 1;
}

int cost(int count, double seconds) {
  run_streams(count, 2, 64, {});
  const auto before = thread_seconds();
  const double begin = now_s();
  Outcome out = run_streams(count, seconds, 256, {});
  const double wall = now_s() - begin;
  double all = 0, http = 0;
  for (const auto& [name, seconds_of] : thread_seconds()) {
    const auto had = before.find(name);
    const double used = seconds_of - (had == before.end() ? 0 : had->second);
    std::printf("cost: threads %-16s %6.2f s, %6.2f us per token\n", name.c_str(), used,
                1e6 * used / static_cast<double>(out.tokens));
    all += used;
    if (name == "http") http += used;
  }
  std::printf(
      "cost: %d streams, %.1f s: %ld tokens, %.0f tokens/s, %ld failed; HTTP, JSON and text %.1f "
      "us per "
      "token, all threads %.1f us\n",
      count, wall, out.tokens, static_cast<double>(out.tokens) / wall, out.failed,
      1e6 * http / static_cast<double>(out.tokens), 1e6 * all / static_cast<double>(out.tokens));
  return out.failed == 0 && http > 0 && 1e6 * http / static_cast<double>(out.tokens) < 60 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5)
    give_up(
        "PORT PID streams|churn|crowd|leave|flood|schemas|hostile|cost NUMBER...: see the head of "
        "bench/server_load.cpp");
  g_port = std::atoi(argv[1]);
  g_pid = std::atoi(argv[2]);
  g_epoll = ::epoll_create1(0);
  ::signal(SIGPIPE, SIG_IGN);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  const std::string what = argv[3];
  const auto number = [&](int i) { return i < argc ? std::atof(argv[i]) : 0; };
  if (what == "streams") return streams(static_cast<int>(number(4)), number(5));
  if (what == "churn") return churn(static_cast<int>(number(4)), number(5));
  if (what == "crowd") return crowd(number(4), std::max(1, static_cast<int>(number(5))));
  if (what == "leave") return leave(static_cast<int>(number(4)));
  if (what == "flood") return flood(number(4));
  if (what == "schemas") return schemas(number(4));
  if (what == "hostile") return hostile(number(4));
  if (what == "cost") return cost(static_cast<int>(number(4)), number(5));
  give_up("unknown load " + what);
}
