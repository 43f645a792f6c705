// two_servers_test.cpp -- two servers on one cache directory, which are killed repeatedly.
// Conversations have known answers from a server without a cache. Each turn goes to either server,
// and again if it is killed. With files of any server and life, answers equal the known ones, log
// probabilities bit by bit.
// TWO_SERVERS_REQUESTS: number of turns, default 300. TWO_SERVERS_KILL_EVERY: answers per kill.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>

#include "engine/prefix/disk_format.h"
#include "engine/prefix/disk_store.h"
#include "served.h"

namespace {

using namespace braid;
using namespace braid::test;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr int kClients = 4, kTurns = 3;
constexpr int kSystemWords = 300;    // above the minimum for a file
constexpr int kCachedTokens = 256;   // not shared by two conversations
constexpr uint64_t kLimitMiB = 128;  // less than all conversations take

int from_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::max(1, std::atoi(text));
}

std::string prose(uint32_t seed, int words) {
  static const char* const kWords[] = {"harbor", "engine", "river",  "signal", "window", "garden",
                                       "ledger", "paper",  "copper", "meadow", "winter", "lantern",
                                       "bridge", "summer", "market", "kernel"};
  std::mt19937 random(seed);
  std::string out;
  for (; words > 0; --words) out += std::string(out.empty() ? "" : " ") + kWords[random() >> 28];
  return out;
}

struct Turn {
  std::string body;
  std::string choice;
};
using Conversation = std::vector<Turn>;

// Null if the connection ended early.
Json ask(uint16_t port, const std::string& body) {
  Connection connection(port);
  if (!connection.connected) return nullptr;
  connection.send("POST", "/v1/chat/completions", body);
  connection.read_all();
  const Json answer = Json::parse(connection.body(), nullptr, false);
  return connection.status() == 200 && answer.contains("choices") ? answer : Json(nullptr);
}

int cached_tokens(const Json& answer) {
  return answer["usage"]["prompt_tokens_details"]["cached_tokens"];
}

Conversation hold(uint16_t port, int number) {
  Conversation out;
  const auto seed = static_cast<uint32_t>(number);
  Json messages = Json::array({{{"role", "system"}, {"content", prose(seed, kSystemWords)}}});
  for (int turn = 0; turn < kTurns; ++turn) {
    const uint32_t question = 1'000'000 + seed * kTurns + static_cast<uint32_t>(turn);
    messages.push_back({{"role", "user"}, {"content", prose(question, 20) + "?"}});
    Json body{{"messages", messages}, {"max_tokens", 4}, {"logprobs", true}, {"top_logprobs", 2}};
    const std::string asked = body.dump();
    body["cache_prompt"] = false;
    const Json answer = ask(port, body.dump());
    if (answer.is_null()) return {};
    out.push_back({asked, answer["choices"][0].dump()});
    messages.push_back(answer["choices"][0]["message"]);
  }
  return out;
}

std::vector<std::string> options() {
  return {"-c", "1024", "-np", "2", "-t", "1", "--think", "off", "--temp", "0"};
}

// A value of a /metrics page; `label`: last label of the sample.
double metric(const std::string& page, const std::string& name, const std::string& label = "") {
  for (size_t at = 0; (at = page.find("\n" + name + "{", at)) != std::string::npos; ++at) {
    const size_t end = page.find("} ", at);
    if (page.substr(at, end - at).ends_with(label)) return std::stod(page.substr(end + 2));
  }
  ADD_FAILURE() << name << " " << label;
  return -1;
}

std::string metrics(uint16_t port) {
  Connection connection(port);
  connection.send("GET", "/metrics");
  return connection.read_all();
}

// Whether a file matches its header and table. A file may vanish at any time; that counts as whole.
bool is_whole(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return true;
  const std::string bytes(std::istreambuf_iterator<char>(in), {});
  DiskHeader header;
  if (bytes.size() < sizeof header) return false;
  std::memcpy(&header, bytes.data(), sizeof header);
  const DiskKind kind{header.fingerprint, header.state_bytes, header.block_bytes,
                      header.guess_bytes, header.guess_kind};
  if (judge_header(header, bytes.size(), kind) != DiskVerdict::ours) return false;
  const DiskLayout layout = *disk_layout(header);
  const auto all = std::as_bytes(std::span(bytes));
  const auto table =
      read_disk_table(header, all.subspan(sizeof header, layout.images_at - sizeof header));
  if (!table) return false;
  const auto is_sound = [&](uint64_t at, uint64_t size, uint64_t checksum) {
    return disk_checksum(all.data() + at, size) == checksum;
  };
  for (uint32_t b = 0; b < header.block_count; ++b)
    if (!is_sound(layout.images_at + b * header.block_bytes, header.block_bytes,
                  table->checksums[b]))
      return false;
  if (header.tail_tokens > 0 && !is_sound(layout.tail_at, header.block_bytes, header.tail_checksum))
    return false;
  return !header.has_state() ||
         is_sound(layout.state_at, header.state_bytes, header.state_checksum);
}

class TwoServers : public testing::Test {
 protected:
  struct Slot {
    std::mutex mutex;
    std::unique_ptr<Served> server;  // null: between two lives
    int life = 0;
    std::set<int> seen, seen_in_life;  // conversations sent to it
  };

  TwoServers()
      : folder_(fs::temp_directory_path() / ("braid-two-servers-" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~TwoServers() override { fs::remove_all(folder_); }

  std::unique_ptr<Served> start() {
    std::vector<std::string> all = options();
    all.insert(all.end(), {"--cache-dir", (folder_ / "cache").string(), "--cache-dir-size",
                           std::to_string(kLimitMiB) + "M"});
    auto server = std::make_unique<Served>(all);
    EXPECT_NE(server->port, 0) << server->log();
    if (server->port == 0) stop_ = true;
    return server;
  }

  void hold_conversations(uint32_t seed) {
    std::mt19937 random(seed);
    while (!stop_) {
      const auto number = static_cast<int>(random() % conversations_.size());
      for (int turn = 0; turn < kTurns && !stop_; ++turn) {
        if (sent_++ >= requests_) return;
        const Turn& wanted = conversations_[static_cast<size_t>(number)][static_cast<size_t>(turn)];
        const std::string choice = answer_to(number, wanted.body, random);
        if (stop_) return;
        wrong_ += choice == wanted.choice ? 0 : 1;
        EXPECT_EQ(choice, wanted.choice) << "conversation " << number << ", turn " << turn;
        const int answered = ++answered_;
        last_answers_[static_cast<size_t>(number)] = answered;
        if (answered % kill_every_ == 0) kill_one(random);
      }
    }
  }

  // Sends it until a server answers without being killed.
  std::string answer_to(int number, const std::string& body, std::mt19937& random) {
    while (!stop_) {
      Slot& slot = slots_[random() % 2];
      uint16_t port = 0;
      int life = 0;
      bool is_new = false, is_new_in_life = false;
      {
        const std::lock_guard lock(slot.mutex);
        if (!slot.server) continue;  // the other one runs
        port = slot.server->port;
        life = slot.life;
        is_new = slot.seen.insert(number).second;
        is_new_in_life = slot.seen_in_life.insert(number).second;
      }
      const Json answer = ask(port, body);
      if (!answer.is_null()) {
        const bool found = cached_tokens(answer) >= kCachedTokens;
        second_hand_ += found && is_new_in_life ? 1 : 0;
        from_the_other_ += found && is_new ? 1 : 0;
        return answer["choices"][0].dump();
      }
      ++sent_again_;
      const std::lock_guard lock(slot.mutex);
      if (slot.life != life) continue;
      ADD_FAILURE() << "no answer of a server that was not killed";
      stop_ = true;
    }
    return "";
  }

  void kill_one(std::mt19937& random) {
    const std::lock_guard one_at_a_time(kill_mutex_);
    Slot& slot = slots_[random() % 2];
    count(*slot.server);
    std::unique_ptr<Served> victim;
    {
      const std::lock_guard lock(slot.mutex);
      ++slot.life;
      slot.seen_in_life.clear();
      victim = std::move(slot.server);
    }
    victim = nullptr;  // SIGKILL
    ++kills_;
    expect_whole_files();
    auto next = start();
    const std::lock_guard lock(slot.mutex);
    slot.server = std::move(next);
  }

  void count(Served& server) {
    const std::string page = metrics(server.port);
    loads_ += metric(page, "braid_disk_cache_hits_total");
    failed_loads_ += metric(page, "braid_disk_cache_failed_reads_total");
    evicted_ += metric(page, "braid_disk_cache_removed_total", "reason=\"limit\"");
    EXPECT_EQ(metric(page, "braid_disk_cache_read_errors_total"), 0);
    EXPECT_EQ(metric(page, "braid_disk_cache_write_errors_total"), 0);
    EXPECT_EQ(server.log().find("prefix cache on disk"), std::string::npos) << server.log();
  }

  void expect_whole_files() const {
    for (const auto& entry : fs::directory_iterator(folder_ / "cache")) {
      const fs::path& path = entry.path();
      EXPECT_TRUE(path.extension() != kDiskSuffix || is_whole(path)) << path;
    }
  }

  std::vector<size_t> latest_first() const {
    std::vector<size_t> out(conversations_.size());
    std::iota(out.begin(), out.end(), size_t{0});
    std::sort(out.begin(), out.end(),
              [&](size_t a, size_t b) { return last_answers_[a] > last_answers_[b]; });
    return out;
  }

  fs::path folder_;
  const int requests_ = from_environment("TWO_SERVERS_REQUESTS", 300);
  const int kill_every_ = from_environment("TWO_SERVERS_KILL_EVERY", 30);
  std::vector<Conversation> conversations_;
  std::vector<std::atomic<int>> last_answers_;  // of each
  Slot slots_[2];
  std::mutex kill_mutex_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> sent_ = 0, answered_ = 0, wrong_ = 0, sent_again_ = 0, second_hand_ = 0,
                   from_the_other_ = 0;
  int kills_ = 0;  // from here on: guarded by kill_mutex_
  double loads_ = 0, failed_loads_ = 0, evicted_ = 0;
};

TEST_F(TwoServers, KilledAtAnyTimeTheyGiveTheAnswersOfOneWithoutACache) {
  {
    Served alone(options());
    ASSERT_NE(alone.port, 0) << alone.log();
    for (int number = 0; number < std::clamp(requests_ / 20, 8, 40); ++number) {
      conversations_.push_back(hold(alone.port, number));
      ASSERT_EQ(conversations_.back().size(), size_t{kTurns}) << alone.log();
    }
  }
  last_answers_ = std::vector<std::atomic<int>>(conversations_.size());
  const auto begin = std::chrono::steady_clock::now();
  for (Slot& slot : slots_) slot.server = start();
  std::vector<std::thread> clients;
  for (uint32_t c = 0; c < kClients; ++c)
    clients.emplace_back([this, c] { hold_conversations(c + 1); });
  for (std::thread& client : clients) client.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  ASSERT_FALSE(stop_);
  EXPECT_EQ(answered_, requests_) << "nothing is lost";
  EXPECT_EQ(wrong_, 0);

  for (Slot& slot : slots_) {
    count(*slot.server);
    slot.server->signal(SIGTERM);  // cached prefixes are written
    EXPECT_EQ(slot.server->wait(), 0);
  }
  expect_whole_files();
  const auto last = start();
  uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder_ / "cache")) {
    const std::string name = entry.path().filename().string();
    EXPECT_FALSE(DiskDirectory::is_partial(name)) << name;
    if (name.ends_with(kDiskSuffix) || name.ends_with(kIndexSuffix)) bytes += entry.file_size();
  }
  EXPECT_LE(bytes, kLimitMiB << 20);
  EXPECT_EQ(metric(metrics(last->port), "braid_disk_cache_removed_total", "reason=\"unusable\""),
            0);
  // A new server finds the files of both, above all the last used ones.
  int found = 0;
  for (const size_t number : latest_first()) {
    const Conversation& conversation = conversations_[number];
    const Json answer = ask(last->port, conversation.back().body);
    ASSERT_FALSE(answer.is_null()) << last->log();
    EXPECT_EQ(answer["choices"][0].dump(), conversation.back().choice);
    found += cached_tokens(answer) >= kCachedTokens ? 1 : 0;
  }
  EXPECT_GT(found, 0);
  count(*last);
  std::printf(
      "[report] %d requests to two servers in %.0f s: %d wrong answers, %d kills, %d sent again; "
      "prefixes "
      "found in "
      "files of an earlier life or the other server %d, of the other %d, of both at the end %d of "
      "%d; %.0f "
      "loads, "
      "%.0f given up, %.0f files removed for the limit\n",
      answered_.load(), took.count(), wrong_.load(), kills_, sent_again_.load(),
      second_hand_.load(), from_the_other_.load(), found, static_cast<int>(conversations_.size()),
      loads_, failed_loads_, evicted_);
}

}  // namespace
