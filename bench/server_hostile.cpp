// server_hostile.cpp -- hostile requests beside a reading client, one by one and in sets.
#include "server_load.h"

#include <array>

namespace server_load {
namespace {

constexpr double kLongestPauseS = 0.05;
constexpr double kMemoryMargin = 1.2;
constexpr size_t kSentBytes = 65536;  // per turn, so that the reader is served in between

std::string post(const std::string& path, const std::string& body) {
  return "POST " + path +
         " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
         "Content-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

std::string chat_text(const std::string& schema) {
  return post(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"q"}],"max_tokens":24,"reasoning_effort":"none",)"
      R"("response_format":{"type":"json_schema","json_schema":{"name":"s","schema":)" +
          schema + "}}}");
}

template <typename Part>
std::string listed(int count, const Part& part) {
  std::string out;
  for (int i = 0; i < count; ++i) out += (i > 0 ? "," : "") + part(i);
  return out;
}

std::string number(int i) { return std::to_string(i); }

std::string repeated(const std::string& part, size_t bytes) {
  std::string out;
  while (out.size() < bytes) out += part;
  return out;
}

std::vector<std::pair<std::string, std::string>> hostile_schemas() {
  const auto pattern = [](const std::string& text) {
    return R"({"type":"string","pattern":")" + text + R"("})";
  };
  std::string words = "a";
  for (int i = 0; i < 6000; ++i) words += "|word" + number(i * 7919);
  return {
      {"optional characters", pattern("^(.?){1000}$")},
      {"6,000 alternatives", pattern("^(" + words + ")$")},
      {"4,000 brackets", pattern("^" + std::string(4000, '(') + std::string(4000, ')') + "$")},
      {"repeats of repeats", pattern("^((a{0,200}b?){0,200}c?){0,200}$")},
      {"exponential", pattern("(a|b)*a(a|b){40}")},
      {"any text", pattern("x")},
      {"bounds", R"({"type":"string","minLength":9000,"maxLength":9400})"},
      {"2,000 optional properties", R"({"type":"object","properties":{)" +
                                        listed(2000,
                                               [](int i) {
                                                 return "\"p" + number(i) +
                                                        R"(":{"type":"string","maxLength":5})";
                                               }) +
                                        "}}"},
      {"2,000 patterns of names",
       R"({"type":"object","patternProperties":{)" +
           listed(2000, [](int i) { return "\"^p" + number(i) + R"(.*x":{"type":"integer"})"; }) +
           "}}"},
      {"10,000 words", R"({"enum":[)" +
                           listed(10000, [](int i) { return "\"word" + number(i * 7919) + "\""; }) +
                           "]}"},
      {"200 objects",
       R"({"anyOf":[)" +
           listed(
               200,
               [](int i) {
                 return R"({"type":"object","properties":{"p":{"type":"string","pattern":"^[a-z ]+)" +
                        number(i) + R"($"}},"required":["p"]})";
               }) +
           "]}"},
      {"allOf that doubles",
       R"({"$ref":"#/$defs/x0","$defs":{"x30":{"type":"object"},)" +
           listed(30,
                  [](int i) {
                    const std::string next = R"({"$ref":"#/$defs/x)" + number(i + 1) + "\"}";
                    return "\"x" + number(i) + R"(":{"allOf":[)" + next + "," + next + "]}";
                  }) +
           "}}"},
      {"allOf of 200 patterns",
       R"({"type":"string","allOf":[)" +
           listed(200, [](int i) { return R"({"pattern":"a.{)" + number(i % 40) + R"(}b"})"; }) +
           "]}"},
      {"any JSON", "{}"},
  };
}

std::string forced_call(int members, int fresh) {
  return post(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"call it"}],"max_tokens":200,"stream":true,)"
      R"("reasoning_effort":"none","tool_choice":"required","tools":[{"type":"function","function":{)"
      R"("name":"t)" +
          number(fresh) + R"(","strict":true,"parameters":{"type":"object","properties":{)" +
          listed(members,
                 [](int i) {
                   return "\"parameter_" + number(i * 7919) + R"(":{"type":["integer","null"]})";
                 }) +
          "}}}}]}");
}

// Keys with the same 64-bit Murmur hash; libstdc++ uses this hash with a fixed seed.
std::string colliding_key(uint64_t& counter) {
  constexpr uint64_t kMultiplier = 0xc6a4a7935bd1e995u, kTarget = 0x123456789abcdefu;
  constexpr uint64_t kBegin = 0xc70f6907u ^ (16 * kMultiplier);
  uint64_t inverse = kMultiplier;
  for (int i = 0; i < 6; ++i) inverse *= 2 - kMultiplier * inverse;
  const auto folded = [](uint64_t v) { return v ^ (v >> 47); };
  for (;;) {
    std::array<char, 16> key{};
    uint64_t rest = ++counter, first = 0;
    for (size_t i = 0; i < 8; ++i, rest /= 62) key[i] = static_cast<char>('0' + rest % 62);
    std::replace(key.begin(), key.begin() + 8, '\\', 'z');
    std::memcpy(&first, key.data(), 8);
    const uint64_t state = (kBegin ^ (folded(first * kMultiplier) * kMultiplier)) * kMultiplier;
    const uint64_t second = folded((state ^ (kTarget * inverse)) * inverse) * inverse;
    std::memcpy(key.data() + 8, &second, 8);
    if (std::all_of(key.begin(), key.end(),
                    [](char c) { return c > 0x20 && c < 0x7f && c != '"' && c != '\\'; }))
      return std::string(key.data(), key.size());
  }
}

struct Harm {
  std::string name;
  std::vector<std::string> requests;  // sent together
};

std::string user_text(const std::string& content, const std::string& more = "") {
  return R"({"max_tokens":4,"messages":[{"role":"user","content":)" + content + "}]" + more + "}";
}

std::vector<Harm> hostile_bodies() {
  const std::string chat = "/v1/chat/completions", messages = "/v1/messages",
                    responses = "/v1/responses";
  std::vector<Harm> out;
  const auto times = [&](std::string name, int count, const std::string& request) {
    out.push_back({std::move(name), std::vector<std::string>(static_cast<size_t>(count), request)});
  };
  for (const char* kind :
       {"redacted_thinking", "server_tool_use", "container_upload", "compaction"}) {
    const std::string body = user_text(R"([{"type":")" + std::string(kind) + R"("}])");
    out.push_back({std::string("only ") + kind,
                   {post(messages, body), post(messages + "/count_tokens", body)}});
  }
  uint64_t counter = 0;
  times("2 x 40,000 keys of one hash", 2,
        post(chat, user_text("\"q\"", R"(,"metadata":{)" + listed(40'000, [&](int) {
                                        return "\"" + colliding_key(counter) + R"(":0)";
                                      }) + "}")));
  const std::string deep = std::string(120, '[') + std::string(120, ']');
  const std::string nested = "[" + listed(8000, [&](int) { return deep; }) + "]";
  times("16 x 1.9 MB of brackets, ignored", 16,
        post(chat, user_text("\"q\"", R"(,"x":)" + nested)));
  times("16 x 1.9 MB of brackets, echoed", 16,
        post(responses, R"({"input":"q","max_output_tokens":4,"metadata":{"a":)" + nested + "}}"));
  times("8 x 1.9 MB of brackets, a schema", 8,
        post(chat,
             user_text("\"q\"",
                       R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"x":)" +
                           nested + "}}}]")));
  const auto tool = [](int i) {
    return R"({"type":"function","function":{"name":"tool_with_a_name_)" + number(i) + "\"}}";
  };
  const auto call = [](int i) {
    return R"({"id":"c)" + number(i) +
           R"(","type":"function","function":{"name":"t","arguments":"{}"}})";
  };
  const std::string turn = R"({"role":"assistant","tool_calls":[)" + listed(1000, call) + "]}";
  times("2 x 43,000 calls, 1,024 tools", 2,
        post(chat, R"({"max_tokens":4,"tools":[)" + listed(1024, tool) +
                       R"(],"messages":[{"role":"user","content":"q"},)" +
                       listed(43, [&](int) { return turn; }) + "]}"));
  times("4 x 2.5 MB of metadata, streamed", 4,
        post(responses, R"({"input":"q","stream":true,"max_output_tokens":4,"metadata":{"a":")" +
                            std::string(2'500'000, 'x') + "\"}}"));
  times("4 x 1 MB of one letter", 4,
        post(chat, user_text("\"" + std::string(1'000'000, 'a') + "\"")));
  times("4 x 1 MB of accents", 4,
        post(chat, user_text("\"" + repeated("\xcc\x81\xcc\xa7", 1'000'000) + "\"")));
  times("4 x 1 MB of blanks", 4,
        post(chat, user_text("\"" + repeated("\\n \\t", 1'000'000) + "\"")));
  times("4 x 20,000 messages", 4,
        post(chat, R"({"max_tokens":4,"messages":[)" + listed(20'000, [](int) {
                     return std::string(R"({"role":"user","content":"q"})");
                   }) + "]}"));
  times("8 choices, all biased", 4,
        post(chat,
             user_text("\"q\"", R"(,"n":8,"logprobs":true,"top_logprobs":20,"logit_bias":{)" +
                                    listed(1000, [](int i) { return "\"" + number(i) + "\":-1"; }) +
                                    "}")));
  for (const int members : {400, 1000, 1900}) {
    Harm harm{"3 forced calls, " + number(members) + " members", {}};
    for (int i = 0; i < 3; ++i) harm.requests.push_back(forced_call(members, members + i));
    out.push_back(std::move(harm));
  }
  for (const auto& [name, schema] : hostile_schemas())
    out.push_back({"schema: " + name, std::vector<std::string>(3, chat_text(schema))});
  return out;
}

class Reader {
 public:
  Reader() { client_.ask(0, 100'000); }
  void read(int ms) {
    if (!client_.busy()) {
      if (!client_.fault().empty()) give_up(client_.fault());
      client_.ask(0, 100'000);
    }
    wait_for_events(ms, &gaps_);
  }
  void alone(double seconds, const char* what) {
    for (const double until = now_s() + seconds; now_s() < until;) read(1);
    std::printf("%s: alone: longest pause %.1f ms of %zu\n", what, longest_ms(), gaps_.size());
    gaps_.clear();
  }
  std::vector<float>& gaps() { return gaps_; }
  double longest_ms() { return gaps_.empty() ? 0 : quantile(gaps_, 1); }

 private:
  Client client_{0};
  std::vector<float> gaps_;
};

class Visitors {
 public:
  // Counts HTTP statuses; 0: the connection ended without one. Calls `look` repeatedly meanwhile.
  template <typename Look>
  static std::map<int, int> send(const std::vector<std::string>& requests, Reader& reader,
                                 const Look& look) {
    std::vector<Visitor> all;
    for (const std::string& request : requests)
      all.push_back({connect_to_server(), &request, 0, "", false});
    std::map<int, int> statuses;
    double next_look = 0;
    for (size_t open = all.size(); open > 0; reader.read(1)) {
      for (Visitor& visitor : all) {
        if (!visitor.ended && step(visitor)) {
          --open;
          ++statuses[status(visitor)];
        }
        reader.read(0);  // time of one step() is not a pause of the server
      }
      if (now_s() > next_look) look(), next_look = now_s() + 0.05;
    }
    return statuses;
  }

 private:
  struct Visitor {
    int fd;
    const std::string* request;
    size_t sent;
    std::string answer;
    bool ended;
  };

  static bool step(Visitor& visitor) {
    static char buffer[65536];
    const std::string& request = *visitor.request;
    if (visitor.sent < request.size()) {
      const size_t bytes = std::min(request.size() - visitor.sent, kSentBytes);
      const ssize_t n = ::send(visitor.fd, request.data() + visitor.sent, bytes, MSG_NOSIGNAL);
      if (n > 0) visitor.sent += static_cast<size_t>(n);
    }
    const ssize_t n = ::recv(visitor.fd, buffer, sizeof buffer, 0);
    if (n > 0) visitor.answer.append(buffer, static_cast<size_t>(n));
    const bool waits = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOTCONN);
    if (n > 0 || waits) return false;
    ::close(visitor.fd);
    return visitor.ended = true;
  }

  static int status(const Visitor& visitor) {
    if (visitor.answer.find(R"("finish_reason":"error")") != std::string::npos) return 500;
    return visitor.answer.size() > 12 ? std::atoi(visitor.answer.c_str() + 9) : 0;
  }
};

bool is_fine(const std::map<int, int>& statuses) {
  return std::all_of(statuses.begin(), statuses.end(), [](const auto& entry) {
    return entry.first == 200 || (entry.first >= 400 && entry.first < 500) || entry.first == 503;
  });
}

std::string told(const std::map<int, int>& statuses) {
  std::string out;
  for (const auto& [status, count] : statuses)
    out += (out.empty() ? "" : ", ") + std::to_string(count) + " x " + std::to_string(status);
  return out;
}

double engine_memory_mb(const std::string& page, const std::string& use) {
  const std::string label = "use=\"" + use + "\"} ";
  const size_t at = page.find(label);
  return at == std::string::npos ? 0 : std::atof(page.c_str() + at + label.size()) / 1e6;
}

}  // namespace

// Each grammar contains a number of its own, so that none is cached.
int schemas(double seconds) {
  Reader reader;
  reader.alone(3, "schemas");
  double worst = 0;
  bool kept = true;
  const double until = now_s() + seconds;
  for (int round = 0; round == 0 || now_s() < until; ++round) {
    for (const auto& [name, schema] : hostile_schemas()) {
      const std::string fresh =
          R"({"description":")" + std::to_string(round) + "\"," + schema.substr(1);
      reader.gaps().clear();
      const double begin = now_s();
      const auto statuses =
          Visitors::send({chat_text(schema == "{}" ? schema : fresh)}, reader, [] {});
      worst = std::max(worst, reader.longest_ms());
      kept = kept && is_fine(statuses);
      if (round == 0 || !is_fine(statuses))
        std::printf("schemas: %-26s %s after %6.0f ms; the reader's longest pause %.1f ms of %zu\n",
                    name.c_str(), told(statuses).c_str(), 1e3 * (now_s() - begin),
                    reader.longest_ms(), reader.gaps().size());
      std::fflush(stdout);
    }
  }
  std::printf("schemas: longest pause beside them %.1f ms\n", worst);
  return kept && worst < 1e3 * kLongestPauseS ? 0 : 1;
}

// /metrics is read before and after the process's memory; the larger value counts. Blocks, states
// and checkpoints count whole, because first prompts make them resident.
int hostile(double seconds) {
  // built first: this takes seconds, during which the reader would stall
  const auto sets = hostile_bodies();
  Reader reader;
  reader.alone(3, "hostile");
  const auto told_mb = [] {
    const std::string page = get("/metrics");
    return (std::max(0.0, metric(page, "braid_http_request_bytes")) +
            std::max(0.0, metric(page, "braid_grammar_cache_bytes")) +
            std::max(0.0, metric(page, "braid_grammar_remembered_bytes"))) /
           1e6;
  };
  double rest_mb = resident_mb() - told_mb();
  for (const char* use : {"kv_blocks", "state_slots", "checkpoints"})
    rest_mb += engine_memory_mb(get("/metrics"), use);
  double worst = 0, most_mb = 0, most_over = 0;
  bool kept = true;
  const double until = now_s() + seconds;
  for (int round = 0; round == 0 || now_s() < until; ++round) {
    for (const Harm& harm : sets) {
      reader.gaps().clear();
      const double begin = now_s();
      double peak_mb = 0, over = 0, told_before = told_mb();
      const auto statuses = Visitors::send(harm.requests, reader, [&] {
        const double resident = resident_mb(), told_after = told_mb();
        peak_mb = std::max(peak_mb, resident);
        over = std::max(over, resident / (rest_mb + std::max(told_before, told_after)));
        told_before = told_after;
      });
      const double pause = reader.longest_ms();
      worst = std::max(worst, pause), most_mb = std::max(most_mb, peak_mb),
      most_over = std::max(most_over, over);
      kept = kept && is_fine(statuses);
      if (round == 0 || !is_fine(statuses) || pause > 1e3 * kLongestPauseS || over > kMemoryMargin)
        std::printf(
            "hostile: %-36s %-22s %6.0f ms; pause %5.1f ms of %zu; memory %.0f MB, %.2f of told\n",
            harm.name.c_str(), told(statuses).c_str(), 1e3 * (now_s() - begin), pause,
            reader.gaps().size(), peak_mb, over);
      std::fflush(stdout);
    }
  }
  const bool serves = get("/health").find(" 200 ") != std::string::npos;
  std::printf(
      "hostile: longest pause %.1f ms; at rest %.0f MB, at most %.0f MB, %.2f of what /metrics "
      "told; %s\n",
      worst, rest_mb, most_mb, most_over, serves ? "serves on" : "DOES NOT SERVE ON");
  return kept && serves && worst < 1e3 * kLongestPauseS && most_over < kMemoryMargin ? 0 : 1;
}

}  // namespace server_load
