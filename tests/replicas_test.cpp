// replicas_test.cpp -- three replicas of `braid serve` behind HAProxy (deploy/proxy/haproxy.cfg).
//
// Promises of docs/replicas.md: conversations find their caches, events pass without delay, and
// refusals unchanged; a rolling restart fails no request.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "proxy.h"
#include "served.h"

namespace {

using namespace braid::test;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr int kReplicas = 3;
constexpr int kUsers = 8, kTurns = 12;  // of the agents
const std::vector<std::string> kOptions = {"-t",      "1",       "-np",      "4",      "-c",
                                           "4096",    "--think", "off",      "--temp", "0",
                                           "--alias", "coder",   "--no-page"};

// Text that differs by seed.
std::string prose(uint32_t seed, int words) {
  static const char* const kWords[] = {"harbor", "engine",  "river",  "signal", "window",
                                       "garden", "ledger",  "paper",  "copper", "meadow",
                                       "winter", "lantern", "bridge", "summer", "market",
                                       "kernel", "buffer",  "thread", "socket", "vector"};
  uint32_t state = seed * 2654435761u;
  std::string out;
  for (; words > 0; --words) {
    state = state * 1664525u + 1013904223u;
    out += std::string(out.empty() ? "" : " ") + kWords[(state >> 16) % 20];
  }
  return out;
}

// What all agents have in common: a system message and five tools, about 930 tokens.
std::string system_message() {
  std::string out = "You are an agent that works on a C++ project. ";
  for (int i = 1; i <= 8; ++i)
    out += "Rule " + std::to_string(i) +
           ": read a file before you change it, keep the change small, and say in one sentence "
           "what you did and "
           "why it is right. ";
  return out;
}
Json tools() {
  Json out = Json::array();
  for (const std::string name :
       {"read_file", "write_file", "list_files", "run_command", "search"}) {
    const Json path{{"type", "string"}, {"description", "a path below the root of the project"}};
    const Json text{{"type", "string"}, {"description", "what to write, to look for or to run"}};
    out.push_back({{"type", "function"},
                   {"function",
                    {{"name", name},
                     {"description",
                      "The tool " + name +
                          " works on the files of the project that is open; paths are relative "
                          "to its root folder and may not leave it."},
                     {"parameters",
                      {{"type", "object"},
                       {"properties", {{"path", path}, {"text", text}}},
                       {"required", Json::array({"path"})}}}}}});
  }
  return out;
}

Json stream_body(const std::string& text, int tokens) {
  return {{"messages", Json::array({{{"role", "user"}, {"content", text}}})},
          {"stream", true},
          {"min_tokens", tokens},
          {"max_tokens", tokens}};
}

std::string session_header(const std::string& session) {
  return "X-Session-Id: " + session + "\r\n";
}

// The value of a header of an answer, whatever the case of its name; empty without one.
std::string header_of(const Connection& connection, std::string name) {
  std::string head = connection.received.substr(0, connection.received.find("\r\n\r\n"));
  const auto lower = [](unsigned char c) { return static_cast<char>(std::tolower(c)); };
  std::transform(head.begin(), head.end(), head.begin(), lower);
  const size_t at = head.find("\r\n" + name + ": ");
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size() + 4;
  return head.substr(begin, head.find("\r\n", begin) - begin);
}

class Replicas : public testing::Test {
 protected:
  Replicas() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ =
        fs::temp_directory_path() / ("braid-" + std::to_string(::getpid()) + "-" + info->name());
    fs::create_directories(folder_);
  }
  ~Replicas() override {
    proxy_.reset();
    fs::remove_all(folder_);
  }
  void SetUp() override {
    if (have_program("haproxy")) return;
    std::puts("[report] skipped: no haproxy; tools/setup.sh --test installs it");
    GTEST_SKIP() << "no haproxy; tools/setup.sh --test installs it";
  }

  void start(std::vector<std::string> more = {}) {
    more.insert(more.begin(), kOptions.begin(), kOptions.end());
    options_ = more;
    std::vector<uint16_t> ports;
    for (int i = 0; i < kReplicas; ++i) {
      ports.push_back(free_port());
      replicas_.push_back(run_replica(ports.back()));
      ASSERT_EQ(replicas_.back()->port, ports.back()) << replicas_.back()->log();
    }
    const std::string config = text_of(fs::path(BRAID_SOURCE_DIR) / "deploy/proxy/haproxy.cfg");
    proxy_ = std::make_unique<HaProxy>(config, folder_, ports);
    ASSERT_NE(proxy_->port, 0) << text_of(folder_ / "haproxy.log");
  }
  std::unique_ptr<Served> run_replica(uint16_t port) const {
    std::vector<std::string> all = options_;
    all.insert(all.end(), {"--port", std::to_string(port)});
    return std::make_unique<Served>(all);
  }

  // Names of sessions of which each replica has its share, so that none overflows to another one.
  std::vector<std::string> spread_sessions(int count) const {
    const int most = (count + kReplicas - 1) / kReplicas;
    std::map<std::string, int> held;
    std::vector<std::string> out;
    for (int i = 0; i < 200 && static_cast<int>(out.size()) < count; ++i) {
      const std::string session = "session-" + std::to_string(i);
      Connection asked(proxy_->port);
      asked.send("GET", "/health", "", session_header(session));
      asked.read_all();
      if (int& number = held[header_of(asked, "x-served-by")]; number < most) {
        ++number;
        out.push_back(session);
      }
    }
    return out;
  }

  fs::path folder_;
  std::vector<std::string> options_;
  std::vector<std::unique_ptr<Served>> replicas_;
  std::unique_ptr<HaProxy> proxy_;
};

// Tokens of an agent's prompts, and how many of them were found.
struct Found {
  int64_t prompt = 0, cached = 0;
  int failed = 0;
};

Found run_agent(uint16_t port, int user, const std::string& session) {
  Found out;
  Json messages = Json::array({{{"role", "system"}, {"content", system_message()}}});
  for (int turn = 0; turn < kTurns; ++turn) {
    const auto seed = static_cast<uint32_t>(user);
    const std::string said = turn == 0 ? "User " + std::to_string(user) +
                                             " asks about the project " + prose(seed + 1, 40) + "."
                                       : "Result of step " + std::to_string(turn) + ": " +
                                             prose(seed * 100 + static_cast<uint32_t>(turn), 60) +
                                             ". What is next?";
    messages.push_back({{"role", "user"}, {"content", said}});
    const Json body{
        {"messages", messages}, {"tools", tools()}, {"tool_choice", "none"}, {"max_tokens", 24}};
    Connection connection(port);
    connection.send("POST", "/v1/chat/completions", body.dump(), session_header(session));
    connection.read_all();
    const Json answer = Json::parse(connection.body(), nullptr, false);
    if (connection.status() != 200 || !answer.contains("usage")) {
      ++out.failed;
      continue;
    }
    out.prompt += answer["usage"]["prompt_tokens"].get<int64_t>();
    out.cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"].get<int64_t>();
    messages.push_back(
        {{"role", "assistant"}, {"content", answer["choices"][0]["message"]["content"]}});
  }
  return out;
}

TEST_F(Replicas, AgentsFindWhatTheyHaveSaidBefore) {
  ASSERT_NO_FATAL_FAILURE(start());
  const std::vector<std::string> sessions = spread_sessions(kUsers);
  ASSERT_EQ(sessions.size(), size_t{kUsers});
  std::vector<Found> found(kUsers);
  std::vector<std::thread> users;
  for (int i = 0; i < kUsers; ++i)
    users.emplace_back([&, i] { found[i] = run_agent(proxy_->port, i, sessions[i]); });
  for (std::thread& user : users) user.join();
  Found all;
  for (const Found& one : found) {
    all.prompt += one.prompt;
    all.cached += one.cached;
    all.failed += one.failed;
  }
  EXPECT_EQ(all.failed, 0);
  EXPECT_GT(all.prompt, 100'000);
  const double share = 100.0 * static_cast<double>(all.cached) / static_cast<double>(all.prompt);
  std::printf("[report] 3 replicas, 8 agents by session: %.1f %% of %ld prompt tokens cached\n",
              share, static_cast<long>(all.prompt));
  EXPECT_GE(share, 88.0);
}

// How often something came, of a stream of 300 tokens with an event for each.
int arrivals(uint16_t port) {
  Connection connection(port);
  connection.send("POST", "/v1/chat/completions",
                  stream_body("Count to three hundred.", 300).dump());
  int out = 0;
  while (connection.received.find("data: [DONE]") == std::string::npos && connection.read_some())
    ++out;
  EXPECT_EQ(connection.status(), 200);
  EXPECT_NE(connection.received.find("data: [DONE]"), std::string::npos);
  return out;
}

// A proxy that holds events back lets several arrive at once.
TEST_F(Replicas, EventsPassAsTheyAreMade) {
  ASSERT_NO_FATAL_FAILURE(start({"--spec-type", "none"}));
  const int direct = arrivals(replicas_[0]->port), passed = arrivals(proxy_->port);
  std::printf("[report] events of 300 tokens came in %d parts directly, in %d through HAProxy\n",
              direct, passed);
  EXPECT_GT(passed, direct / 2);
}

// Clients open streams until one is refused: 24 are as many as all replicas take.
TEST_F(Replicas, ARefusalPassesUnchanged) {
  ASSERT_NO_FATAL_FAILURE(start({"--client-max-requests", "8"}));
  std::vector<std::unique_ptr<Connection>> open;
  while (open.size() < 25 && (open.empty() || open.back()->status() == 200)) {
    open.push_back(std::make_unique<Connection>(proxy_->port));
    open.back()->send("POST", "/v1/chat/completions", stream_body("Count on and on.", 4000).dump());
    open.back()->read_until("\r\n\r\n");
  }
  Connection& refused = *open.back();
  refused.read_all();
  EXPECT_EQ(refused.status(), 429);
  EXPECT_NE(header_of(refused, "retry-after"), "") << refused.received;
  EXPECT_NE(header_of(refused, "x-request-id"), "") << refused.received;
  EXPECT_EQ(header_of(refused, "x-served-by").substr(0, 1), "r");
  EXPECT_EQ(Json::parse(refused.body(), nullptr, false)["error"]["code"], "client_requests")
      << refused.received;
}

// Streams of a session, one after the other, until `on` is false. Returns what failed.
std::vector<std::string> keep_asking(uint16_t port, int user, const std::string& session,
                                     const std::atomic<bool>& on, std::atomic<int>& asked) {
  std::vector<std::string> failed;
  for (uint32_t turn = 0; on; ++turn) {
    Connection connection(port);
    const std::string question = prose(static_cast<uint32_t>(user) * 100 + turn % 6, 60) + "?";
    connection.send("POST", "/v1/chat/completions", stream_body(question, 48).dump(),
                    session_header(session));
    connection.read_all();
    const bool whole = connection.received.find("data: [DONE]") != std::string::npos;
    if (connection.status() != 200 || !whole)
      failed.push_back(session + ": " + connection.received.substr(0, 300));
    ++asked;
  }
  return failed;
}

// As systemd or Kubernetes: SIGTERM, wait for the end, start again on the same port, wait until the
// proxy uses it.
TEST_F(Replicas, ARollingRestartFailsNoRequest) {
  ASSERT_NO_FATAL_FAILURE(start({"--drain-delay", "5", "--late-head", "5"}));
  const std::vector<std::string> sessions = spread_sessions(kUsers);
  ASSERT_EQ(sessions.size(), size_t{kUsers});
  std::atomic<bool> on{true};
  std::atomic<int> asked{0};
  std::vector<std::vector<std::string>> failed(kUsers);
  std::vector<std::thread> users;
  for (int i = 0; i < kUsers; ++i)
    users.emplace_back(
        [&, i] { failed[i] = keep_asking(proxy_->port, i, sessions[i], on, asked); });
  for (int i = 0; i < kReplicas; ++i) {
    const std::string name = "r" + std::to_string(i + 1);
    const uint16_t port = replicas_[i]->port;
    replicas_[i]->signal(SIGTERM);
    EXPECT_TRUE(proxy_->wait_for(name, false)) << name << " was not taken out";
    EXPECT_EQ(replicas_[i]->wait(), 0) << replicas_[i]->log();
    replicas_[i] = run_replica(port);
    EXPECT_EQ(replicas_[i]->port, port) << replicas_[i]->log();
    EXPECT_TRUE(proxy_->wait_for(name, true)) << name << " did not come back";
  }
  // Some more with all of them.
  const int before = asked;
  while (asked < before + 3 * kUsers) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  on = false;
  for (std::thread& user : users) user.join();
  size_t failures = 0;
  for (const auto& of_user : failed) {
    failures += of_user.size();
    for (const std::string& one : of_user) ADD_FAILURE() << one;
  }
  std::printf("[report] a rolling restart of 3 replicas: %zu of %d requests failed\n", failures,
              asked.load());
}

}  // namespace
