// server_churn.cpp -- the load `churn`: streams on a server with too little memory for all of them.
// Some clients leave. Every complete answer must equal its solo answer, and nothing may leak.
#include <memory>
#include <random>

#include "server_load.h"

namespace server_load {
namespace {

struct Question {
  std::string request;
  int tokens = 0;
};

// Sentences that the built-in model was trained on.
std::string sentences(std::mt19937& random, int count) {
  static constexpr const char* kThings[] = {"hammer",  "island", "kettle",
                                            "lantern", "falcon", "glacier"};
  static constexpr const char* kLooks[] = {"dusty", "brave", "calm", "eager", "jolly", "pale"};
  static constexpr const char* kNames[] = {"Kira", "Liam", "Olga", "Paul", "Rosa", "Tess"};
  static constexpr const char* kCities[] = {"Berlin", "Lima", "Cairo", "Boston", "Zurich", "Delhi"};
  std::string out;
  for (int i = 0; i < count; ++i) {
    out += std::string("The ") + kLooks[random() % 6] + " " + kThings[random() % 6];
    out += std::string(" was carried by ") + kNames[random() % 6] + " in " + kCities[random() % 6] +
           ". ";
  }
  return out;
}

std::string user_text(std::mt19937& random, size_t number) {
  static constexpr const char* kCode[] = {"def count_words(text):", "class Stack:", "def main():",
                                          "import os", "def read_lines(path):"};
  const int key = static_cast<int>(100 + random() % 900);
  switch (number % 4) {
    case 0:
      return "Repeat exactly: " + sentences(random, 1);
    case 1:
      return sentences(random, 6) + "The secret number for calm-lantern is " + std::to_string(key) +
             ". " + sentences(random, 6) + "What is the secret number for calm-lantern?";
    case 2:
      return std::string("Complete the following Python function.\\n\\n") + kCode[random() % 5] +
             "\\n";
    default:
      return "Please find a lantern: count " + std::to_string(key) + " and user Olga.";
  }
}

std::vector<Question> questions() {
  std::mt19937 random(29);
  const std::string shared = "<|im_start|>system\\n" + sentences(random, 12) + "<|im_end|>\\n";
  std::vector<Question> out;
  for (size_t i = 0; i < 40; ++i) {
    Question q;
    q.tokens = static_cast<int>(48 + 16 * (i % 11));
    const std::string prompt = (i % 3 == 0 ? shared : "") + "<|im_start|>user\\n" +
                               user_text(random, i) +
                               "<|im_end|>\\n<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n";
    const std::string sampling = i % 5 < 3
                                     ? R"("temperature":0)"
                                     : R"("temperature":0.8,"seed":)" + std::to_string(1000 + i);
    const std::string body = R"({"prompt":")" + prompt + R"(",)" + sampling +
                             R"(,"ignore_eos":true,"stream":true,"max_tokens":)" +
                             std::to_string(q.tokens) + "}";
    q.request = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                std::to_string(body.size()) + "\r\n\r\n" + body;
    out.push_back(std::move(q));
  }
  return out;
}

std::vector<std::string> alone(const std::vector<Question>& asked) {
  std::vector<std::string> out;
  Client client(0);
  for (size_t i = 0; i < asked.size(); ++i) {
    client.ask(i, asked[i].request);
    while (client.busy()) wait_for_events(100, nullptr);
    if (!client.fault().empty()) give_up("alone: " + client.fault());
    out.push_back(client.text());
  }
  return out;
}

// FNV-1a, to compare the answers of two servers.
uint64_t hash_of(const std::vector<std::string>& texts) {
  uint64_t hash = 14695981039346656037u;
  for (const std::string& text : texts)
    for (const char c : text + "\n") hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

struct Outcome {
  long answers = 0, tokens = 0, left = 0, different = 0, failed = 0;
  bool stuck = false;
  std::string first_fault, first_difference;

  bool kept() const { return answers > 0 && left > 0 && different == 0 && failed == 0 && !stuck; }
};

// A server that sends nothing for this long is stuck, not slow. A step of 200 sequences with
// sixteen rows each takes about two seconds on two slow cores.
constexpr double kPatienceSeconds = 60;

class Watch {
 public:
  // `heard`: any number that changes while clients receive tokens.
  bool stands_still(long heard) {
    if (heard != heard_) {
      heard_ = heard;
      since_ = now_s();
    }
    return now_s() - since_ > kPatienceSeconds;
  }

 private:
  long heard_ = -1;
  double since_ = 0;
};

struct Visitor {
  std::unique_ptr<Client> client;
  double until = 0;  // 0: never
  int events = 0;    // 0: never

  void ask(const std::vector<Question>& asked, std::mt19937& random) {
    const size_t which = random() % asked.size();
    const auto kind = random() % 10;
    until = kind < 2 ? now_s() + 1e-3 * static_cast<double>(random() % 3000) : 0;
    events = kind == 2 || kind == 3 ? 1 + static_cast<int>(random() % asked[which].tokens) : 0;
    client->ask(which, asked[which].request);
  }
  bool leaves() const {
    return (until > 0 && now_s() >= until) || (events > 0 && client->events() >= events);
  }
};

void compare(const Client& client, const std::vector<std::string>& solo, Outcome& out) {
  ++out.answers;
  out.tokens += client.events();
  if (!client.fault().empty()) {
    if (out.first_fault.empty()) out.first_fault = client.fault();
    ++out.failed;
    return;
  }
  const std::string& expected = solo[client.prompt()];
  if (client.text() == expected) return;
  ++out.different;
  if (out.first_difference.empty())
    out.first_difference = "prompt " + std::to_string(client.prompt()) +
                           "\n  alone:    " + expected + "\n  together: " + client.text();
}

// Half of the clients get long answers. All run together at first; then most are preempted, more
// than swap has room for. More sequences run here than under the load, so that their slots,
// activations and logits do not look like a leak later.
Outcome all_at_once(int count, const std::vector<Question>& asked,
                    const std::vector<std::string>& solo) {
  std::vector<size_t> short_ones;
  for (size_t i = 0; i < asked.size(); ++i)
    if (i % 4 != 1 && i % 3 != 0 && asked[i].tokens >= 128) short_ones.push_back(i);
  Outcome out;
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < count / 2; ++i) {
    const size_t which = short_ones[static_cast<size_t>(i) % short_ones.size()];
    clients.push_back(std::make_unique<Client>(i));
    clients.back()->ask(which, asked[which].request);
  }
  Watch watch;
  for (long busy = 1; busy > 0 && !out.stuck;) {
    wait_for_events(100, nullptr);
    long heard = busy = 0;
    for (const auto& client : clients) {
      busy += client->busy() ? 1 : 0;
      heard += client->events();
    }
    out.stuck = watch.stands_still(heard);
  }
  for (const auto& client : clients) compare(*client, solo, out);
  return out;
}

// Runs `count` clients for `seconds`. Then started answers are read to their end; other clients
// leave, because with memory for a third of them waiting would take too long.
Outcome run(int count, double seconds, const std::vector<Question>& asked,
            const std::vector<std::string>& solo, std::mt19937& random) {
  Outcome out;
  std::vector<Visitor> visitors(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    visitors[static_cast<size_t>(i)].client = std::make_unique<Client>(i);
    visitors[static_cast<size_t>(i)].ask(asked, random);
  }
  const double stop = now_s() + seconds;
  Watch watch;
  for (size_t open = visitors.size(); open > 0 && !out.stuck;) {
    wait_for_events(20, nullptr);
    open = 0;
    long hearing = 0;
    for (Visitor& v : visitors) {
      if (v.client == nullptr) continue;
      ++open;
      hearing += v.client->events();
      const bool over = now_s() >= stop && v.client->events() == 0;
      if (v.client->busy() && (over || v.leaves())) {
        v.client->leave(random() % 2 == 0);
        ++out.left;
      } else if (v.client->busy()) {
        continue;
      } else {
        compare(*v.client, solo, out);
      }
      if (now_s() < stop) {
        v.ask(asked, random);
      } else {
        v.client.reset();
      }
    }
    out.stuck = open > 0 && watch.stands_still(out.answers + out.left + hearing);
  }
  return out;
}

void print(const char* when, const Held& h) {
  std::printf(
      "churn: %s: %.1f MB, %d files, %.0f connections, %.0f running, %.0f waiting, %.0f state "
      "slots, blocks "
      "in "
      "use %.4f\n",
      when, h.memory_mb, h.files, h.connections, h.running, h.waiting, h.slots, h.blocks);
}

bool is_empty(const Held& h) {
  return h.running == 0 && h.waiting == 0 && h.slots == 0 && h.blocks == 0 && h.connections <= 1;
}

double sum_of(const std::string& text, const std::string& name) {
  double sum = 0;
  for (size_t at = text.find("\n" + name + "{"); at != std::string::npos;
       at = text.find("\n" + name + "{", at + 1))
    sum += std::atof(text.c_str() + text.find("} ", at) + 2);
  return sum;
}

}  // namespace

int churn(int count, double seconds) {
  const std::vector<Question> asked = questions();
  const std::vector<std::string> solo = alone(asked);
  std::printf("churn: %zu prompts alone, hash of their texts %016llx\n", solo.size(),
              static_cast<unsigned long long>(hash_of(solo)));
  std::fflush(stdout);
  std::mt19937 random(31);
  std::string before = get("/metrics"), after;
  const auto grown = [&](const char* name) { return sum_of(after, name) - sum_of(before, name); };
  const Outcome crowd = all_at_once(count, asked, solo);
  after = get("/metrics");
  double preempted = grown("braid_num_preemptions_total");
  std::printf("churn: %ld at once: %ld failed, %ld unlike alone; %.0f preempted\n", crowd.answers,
              crowd.failed, crowd.different, preempted);
  // Lets allocators and caches reach their full size.
  Outcome warm_up;
  if (!crowd.stuck) warm_up = run(count, seconds / 4, asked, solo, random);
  if (crowd.stuck || warm_up.stuck) give_up("churn: nobody has heard anything for a minute");
  const Held first = held();
  print("after the warm-up", first);
  before = get("/metrics");
  const double begin = now_s();
  const Outcome out = run(count, seconds, asked, solo, random);
  const double took = now_s() - begin;
  const Held last = held();
  print("at the end", last);
  after = get("/metrics");
  preempted += grown("braid_num_preemptions_total");
  std::printf(
      "churn: %d clients, %.1f s: %ld answers, %ld left, %ld failed, %ld unlike alone; %.0f "
      "preempted, %.0f "
      "guesses, %.0f accepted, %.0f steps; %+.1f MB\n",
      count, took, out.answers, out.left, out.failed + warm_up.failed,
      out.different + warm_up.different, grown("braid_num_preemptions_total"),
      grown("braid_spec_decode_num_draft_tokens_total"),
      grown("braid_spec_decode_num_accepted_tokens_total"), grown("braid_decode_steps_total"),
      last.memory_mb - first.memory_mb);
  bool kept = out.kept() && preempted > 0;
  for (const Outcome* o : std::initializer_list<const Outcome*>{&crowd, &warm_up, &out}) {
    if (o->stuck) std::printf("churn: nobody has heard anything for a minute\n");
    if (!o->first_fault.empty()) std::printf("churn: first fault: %s\n", o->first_fault.c_str());
    if (!o->first_difference.empty())
      std::printf("churn: first difference: %s\n", o->first_difference.c_str());
    kept = kept && o->different + o->failed == 0;
  }
  const bool flat = is_empty(first) && is_empty(last) && last.files <= first.files + 1 &&
                    last.memory_mb < first.memory_mb * 1.05 + 5;
  return kept && flat ? 0 : 1;
}

}  // namespace server_load
