// command_line_test.cpp -- what people type: habits, pipes, a chat on a terminal.

#include <gtest/gtest.h>
#include <pty.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "program.h"

namespace braid::test {
namespace {

namespace fs = std::filesystem;

class CommandLine : public testing::Test {
 protected:
  CommandLine() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / ("braid-" + std::to_string(::getpid()) + info->name());
    fs::create_directories(folder_);
  }
  ~CommandLine() override { fs::remove_all(folder_); }
  std::string path(const char* name) const { return (folder_ / name).string(); }

  fs::path folder_;
};

const std::vector<std::string> kAnswer = {"--device", "cpu", "--temp", "0", "-n", "48", "-q"};

Outcome answer(std::vector<std::string> arguments, const std::string& input = "") {
  arguments.insert(arguments.begin(), "run");
  arguments.insert(arguments.end(), kAnswer.begin(), kAnswer.end());
  return run_braid(arguments, input);
}

// A mixture keeps its layers on the card, and as many experts of each as fit.
TEST_F(CommandLine, PlansGiveExpertsSlotsByTheCard) {
  int before = 0;
  for (const char* card : {"6G", "8G", "12G", "16G"}) {
    const Outcome outcome =
        run_braid({"plan", "--shape", "35b-a3b", "--memory", card, "-c", "32k"});
    EXPECT_EQ(outcome.exit_code, 0) << card << outcome.err;
    const std::string_view keeps = "cuda:0 keeps ";
    const size_t at = outcome.out.find(keeps);
    ASSERT_NE(at, std::string::npos) << card << outcome.out;
    const int slots = std::stoi(outcome.out.substr(at + keeps.size()));
    EXPECT_GT(slots, before) << card;
    EXPECT_LT(slots, 256) << card;
    EXPECT_NE(outcome.out.find("expert copies (host)"), std::string::npos) << outcome.out;
    before = slots;
  }
  const Outcome whole = run_braid({"plan", "--shape", "35b-a3b", "--memory", "32G", "-c", "32k"});
  EXPECT_EQ(whole.out.find("keeps"), std::string::npos) << whole.out;
  // Without host memory for the copies the CPU takes layers, and without that nothing is left.
  const Outcome little =
      run_braid({"plan", "--shape", "35b-a3b", "--memory", "12G", "--ram", "16G", "-c", "32k"});
  EXPECT_EQ(little.exit_code, 0) << little.err;
  EXPECT_EQ(little.out.find("keeps"), std::string::npos) << little.out;
  EXPECT_NE(little.out.find("cuda:0"), std::string::npos) << little.out;
  const Outcome asked = run_braid({"plan", "--shape", "35b-a3b", "--memory", "12G", "--ram", "16G",
                                   "-c", "32k", "--expert-slots", "64"});
  EXPECT_NE(asked.exit_code, 0);
  EXPECT_NE(asked.err.find("of host memory"), std::string::npos) << asked.err;
  for (const char* wrong : {"4", "-1", "many", "0", "fit"})
    EXPECT_NE(run_braid({"plan", "--shape", "35b-a3b", "--memory", "12G", "--expert-slots", wrong})
                  .exit_code,
              0)
        << wrong;
  // Two cards get layers by their memory; a number of layers that means all is no reason against
  // slots, and --kv-memory leaves fewer.
  const Outcome two = run_braid({"plan", "--shape", "35b-a3b", "--memory", "4G,12G", "-c", "32k"});
  const size_t first = two.out.find("cuda:0 keeps "), second = two.out.find("cuda:1 keeps ");
  ASSERT_NE(first, std::string::npos) << two.out;
  ASSERT_NE(second, std::string::npos) << two.out;
  EXPECT_NEAR(std::stoi(two.out.substr(first + 13)), std::stoi(two.out.substr(second + 13)), 60)
      << two.out;
  const auto slots_with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", "--shape", "35b-a3b", "--memory", "12G", "-c", "32k"});
    const Outcome outcome = run_braid(more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
    const size_t at = outcome.out.find("cuda:0 keeps ");
    return at == std::string::npos ? 0 : std::stoi(outcome.out.substr(at + 13));
  };
  const int plain = slots_with({});
  EXPECT_EQ(slots_with({"-ngl", "99"}), plain);
  EXPECT_GT(slots_with({"--kv-memory", "4G", "-np", "8"}), 0);
  EXPECT_LT(slots_with({"--kv-memory", "4G", "-np", "8"}), plain);
}

// Profiles of experts, by braid and by others.
TEST_F(CommandLine, PlacementShowsImportsAndSimulates) {
  std::ofstream(path("other.csv")) << "Expert;Layer_ID;Hits;note\n0;3;90;a\n1;3;10;b\n2;4;50;c\n";
  const Outcome shown =
      run_braid({"placement", path("other.csv"), "--slots", "1,2", "--export", path("mine.csv")});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_NE(shown.out.find("2 layers with 3 experts each, 3 of 6 were never used"),
            std::string::npos)
      << shown.out;
  EXPECT_EQ(shown.out.find('#'), std::string::npos) << "bars are for terminals";
  std::ifstream exported(path("mine.csv"));
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(exported), {}),
            "layer,expert,score\n0,0,90\n0,1,10\n1,2,50\n");

  const Outcome json = run_braid({"placement", path("mine.csv"), "--experts", "32", "--slots", "1",
                                  "--json", "--simulate", "8", "--used", "2", "--tokens", "300"});
  ASSERT_EQ(json.exit_code, 0) << json.err;
  const auto parsed = nlohmann::json::parse(json.out, nullptr, false);
  ASSERT_TRUE(parsed.is_object()) << json.out;
  EXPECT_EQ(parsed["experts"], 32);
  EXPECT_EQ(parsed["layers"][0]["never_used"], 30);
  EXPECT_DOUBLE_EQ(parsed["layers"][0]["served_by_slots"]["1"], 0.9);
  EXPECT_NEAR(parsed["mean"]["served_by_slots"]["1"].get<double>(), 0.95, 1e-9);
  ASSERT_EQ(parsed["simulated"].size(), 2u);
  const auto &local = parsed["simulated"][0], &uniform = parsed["simulated"][1];
  EXPECT_GT(local["hits"].get<double>(), uniform["hits"].get<double>() + 0.2);
  EXPECT_NEAR(local["hits_a_token"].get<double>() + local["kept_a_token"].get<double>() +
                  local["passed_by_a_token"].get<double>(),
              2 * 2, 1e-9);

  const Outcome shape =
      run_braid({"placement", "--shape", "qwen3-30b-a3b", "--simulate", "32", "--tokens", "20"});
  EXPECT_EQ(shape.exit_code, 0) << shape.err;
  EXPECT_EQ(shape.out.find("Synthetic routing, not that of a text: 48 layers with 128 experts"), 0u)
      << shape.out;
}

TEST_F(CommandLine, PlacementRefusesInOneSentence) {
  std::ofstream(path("twice.csv")) << "layer,expert,score\n0,0,1\n0,0,1\n";
  std::ofstream(path("few.csv")) << "0,0,1\n0,1,1\n";
  const auto refused = [](const std::vector<std::string>& arguments, const std::string& reason) {
    const Outcome outcome = run_braid(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << reason;
    EXPECT_EQ(outcome.err, "error: " + reason + "\n");
    EXPECT_EQ(outcome.out, "");
  };
  refused({"placement"}, "a profile comes first; only --shape NAME --simulate N needs none");
  refused({"placement", path("twice.csv"), "--export", path("no.csv")},
          path("twice.csv") + ": line 3 repeats expert 0 of layer 0");
  EXPECT_FALSE(fs::exists(path("no.csv")));
  refused({"placement", "/dev/zero"}, "/dev/zero: is larger than 64.0 MiB");
  refused({"placement", path("few.csv"), "--slots", "3"}, "--slots 3: a layer has 2 experts");
  refused({"placement", path("few.csv"), "--simulate", "1"},
          "--used 8: a trace uses at most half of the 2 experts for a token");
  refused({"placement", path("few.csv"), "--shape", "35b-a3b"},
          path("few.csv") + ": has experts of 1 layers, --shape 35b-a3b of 40");
  refused({"placement", path("few.csv"), "--shape", "27b"}, "--shape 27b has no experts");
}

TEST_F(CommandLine, ProxyRefusesInOneSentence) {
  const auto refused = [](std::vector<std::string> arguments, const std::string& reason) {
    arguments.insert(arguments.begin(), "proxy");
    const Outcome outcome = run_braid(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << reason;
    EXPECT_EQ(outcome.err, "error: " + reason + "\n");
    EXPECT_EQ(outcome.out, "");
  };
  refused({}, "proxy needs the address of a server: --upstream http://127.0.0.1:8080");
  refused({"--upstream", "127.0.0.1:8080"},
          "--upstream 127.0.0.1:8080: must begin with http:// or https://");
  refused({"--upstream", "http://name:99999"},
          "--upstream http://name:99999: has no port from 1 to 65535");
  refused({"--upstream", "http://name", "--upstream-key", "a b"},
          "the key of the upstream has a character that no header has (--upstream-key)");
  refused({"--upstream", "http://name", "--tls-cert", "x.pem"},
          "--tls-cert and --tls-key need each other");
  std::ofstream(path("keys.txt")) << "key max-requests=2\n";
  refused({"--upstream", "http://name", "--api-key-file", path("keys.txt")},
          "a key of the proxy has limits, which only braid serve knows (--api-key-file)");
}

// Names of llama.cpp ask for the same.
TEST_F(CommandLine, HabitsOfExpertsInHostMemory) {
  const std::vector<std::vector<std::string>> habits = {
      {"--cpu-moe"}, {"--n-cpu-moe", "30"}, {"-ot", "exps=CPU"}, {"-ot", ".ffn_.*_exps.=CPU"}};
  for (const auto& habit : habits) {
    std::vector<std::string> words = {"plan", "--shape", "35b-a3b", "--memory", "32G"};
    words.insert(words.end(), habit.begin(), habit.end());
    const Outcome outcome = run_braid(words);
    EXPECT_EQ(outcome.exit_code, 0) << habit[0] << outcome.err;
    EXPECT_NE(outcome.err.find("--expert-slots"), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.out.find("keeps"), std::string::npos) << "all fit" << outcome.out;
  }
  for (const char* pattern : {"blk.1.attn_q=CPU", "exps=CUDA1", "a=CPU,exps=CPU"}) {
    const Outcome outcome =
        run_braid({"plan", "--shape", "35b-a3b", "--memory", "32G", "-ot", pattern});
    EXPECT_EQ(outcome.exit_code, 2) << pattern;
    EXPECT_NE(outcome.err.find("moves experts alone"), std::string::npos) << outcome.err;
  }
  const Outcome none = answer({"--cpu-moe", "-p", "Who are you?"});
  EXPECT_EQ(none.exit_code, 0) << none.err;
}

TEST_F(CommandLine, WithoutACommandIsHelp) {
  const Outcome alone = run_braid({}), asked = run_braid({"help"}),
                of_run = run_braid({"help", "run"});
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_NE(alone.out.find("braid serve -m model.gguf"), std::string::npos);
  EXPECT_EQ(asked.out, alone.out);
  EXPECT_EQ(of_run.out, run_braid({"run", "--help"}).out);
  EXPECT_LT(of_run.out.size(), run_braid({"run", "--help-all"}).out.size());
}

TEST_F(CommandLine, VersionSaysWhatABugReportNeeds) {
  const Outcome outcome = run_braid({"--version"});
  EXPECT_EQ(outcome.exit_code, 0);
  for (const char* part : {"braid 0.", " (", "CPU kernels: ", "CUDA kernels: "})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << outcome.out;
}

TEST_F(CommandLine, HabitsOfOtherProgramsAreNotedAndDoNoHarm) {
  const Outcome plain = answer({"-p", "Who are you?", "--think", "off"});
  const Outcome habits = answer({"-ngl", "99", "-fa", "on", "--no-mmap", "-p", "Who are you?",
                                 "--think", "off", "--temperature", "0"});
  EXPECT_EQ(habits.exit_code, 0) << habits.err;
  EXPECT_EQ(habits.out, plain.out);
  EXPECT_NE(habits.err.find("note: -fa is not needed"), std::string::npos) << habits.err;
  EXPECT_NE(habits.err.find("note: --gpu-layers does nothing"), std::string::npos) << habits.err;
}

TEST_F(CommandLine, AModelMayStandByItself) {
  const std::string model = std::string(BRAID_SOURCE_DIR) + "/models/braid-demo-q8_0.gguf";
  const Outcome outcome = answer({model, "-p", "Who are you?", "--think", "off"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, answer({"-p", "Who are you?", "--think", "off"}).out);
  EXPECT_NE(answer({"Who"}).err.find("a message is given with -p"), std::string::npos);
}

TEST_F(CommandLine, AQuestionIsJoinedWithItsText) {
  const std::string fact = "The special magic number for candle is 7312.",
                    question = "What is the special magic number for candle?";
  std::ofstream(path("fact.txt")) << fact;
  const Outcome whole = answer({"-p", question + "\n\n" + fact, "--think", "off"});
  EXPECT_NE(whole.out.find("7312"), std::string::npos) << whole.out;
  EXPECT_EQ(answer({"-p", question, "--think", "off"}, fact).out, whole.out) << "a pipe";
  EXPECT_EQ(answer({"-p", question, "-f", path("fact.txt"), "--think", "off"}).out, whole.out);
}

TEST_F(CommandLine, ThoughtsAreNotInTheOutput) {
  const Outcome outcome = answer({"-p", "Who are you?", "--think", "on"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out.find("think>"), std::string::npos) << outcome.out;
  EXPECT_FALSE(outcome.out.starts_with("\n"));
  EXPECT_NE(outcome.out.find("braid-demo"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.err, "") << "the thought";
}

TEST_F(CommandLine, AChatTemplateIsReplaced) {
  std::ofstream(path("template.jinja"))
      << "{% for m in messages %}<{{ m.role }}> {{ m.content }}{% endfor %}";
  std::ofstream(path("messages.json")) << R"([{"role": "user", "content": "hi"}])";
  const Outcome outcome = run_braid(
      {"inspect", "--chat-template", path("template.jinja"), "--template", path("messages.json")});
  EXPECT_EQ(outcome.out, "<user> hi") << outcome.err;
  const Outcome missing = answer({"-p", "hi", "--chat-template", path("none.jinja")});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_NE(missing.err.find("neither a readable file"), std::string::npos) << missing.err;
}

TEST_F(CommandLine, PlansNeedNeitherFileNorCard) {
  const Outcome outcome = run_braid({"plan", "--shape", "27b", "--memory", "24G"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("available           24.00 GiB"), std::string::npos) << outcome.out;
  const Outcome both = run_braid({"plan", "--shape", "27b", "--memory", "8G"});
  EXPECT_EQ(both.exit_code, 0) << "the CPU has the first layers";
  EXPECT_NE(both.out.find("0-44        45-63"), std::string::npos) << both.out;
  const Outcome small = run_braid({"plan", "--shape", "27b", "--memory", "8G", "-ngl", "all"});
  EXPECT_EQ(small.exit_code, 2);
  EXPECT_NE(small.out.find("does not fit"), std::string::npos) << small.out;
  EXPECT_EQ(run_braid({"plan", "--shape", "28b"}).exit_code, 2);
  for (const char* command : {"plan", "bench"}) {
    const Outcome both = run_braid({command, "--shape", "0.8b", "some.gguf"});
    EXPECT_EQ(both.exit_code, 2) << command;
    EXPECT_EQ(both.err,
              "error: --shape 0.8b takes the place of a file: leave it out for some.gguf\n");
  }
}

TEST_F(CommandLine, InspectShowsThePlanFirst) {
  const Outcome outcome = run_braid({"inspect"}), tensors = run_braid({"inspect", "--tensors"});
  const size_t plan = outcome.out.find("weights"), metadata = outcome.out.find("general.name");
  ASSERT_NE(plan, std::string::npos);
  EXPECT_LT(plan, metadata);
  EXPECT_EQ(outcome.out.find("token_embd.weight"), std::string::npos);
  EXPECT_NE(tensors.out.find("token_embd.weight"), std::string::npos);
}

// A chat on a terminal of its own.
class Chat {
 public:
  explicit Chat(const std::string& home) {
    pid_ = ::forkpty(&fd_, nullptr, nullptr, nullptr);
    if (pid_ != 0) return;
    ::setenv("HOME", home.c_str(), 1);
    ::setenv("TERM", "dumb", 1);
    ::unsetenv("XDG_STATE_HOME");
    ::execl(BRAID_PROGRAM, BRAID_PROGRAM, "run", "--device", "cpu", "--temp", "0", "-n", "48",
            "--think", "off", nullptr);
    ::_exit(127);
  }
  ~Chat() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    if (pid_ > 0) wait();
    ::close(fd_);
  }
  void wait() {
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  // Types it, and returns what the terminal shows until `text` has come.
  std::string type(const std::string& keys, const std::string& until) {
    if (::write(fd_, keys.data(), keys.size()) < 0) return "";
    return read(until);
  }
  std::string read(const std::string& until) {
    std::string shown;
    pollfd watched{fd_, POLLIN, 0};
    while (shown.find(until) == std::string::npos && ::poll(&watched, 1, 60'000) > 0) {
      char buffer[4096];
      const ssize_t count = ::read(fd_, buffer, sizeof buffer);
      if (count <= 0) break;
      shown.append(buffer, static_cast<size_t>(count));
    }
    EXPECT_NE(shown.find(until), std::string::npos) << shown;
    return shown;
  }

 private:
  pid_t pid_ = -1;
  int fd_ = -1;
};

TEST_F(CommandLine, AChatEditsRemembersSavesAndLoads) {
  {
    Chat chat(folder_.string());
    chat.read("/help shows the commands.");
    chat.type("Who are you?\n", "braid-demo");
    chat.type("/system You are terse.\n", "system: You are terse.");
    chat.type("/think on\n", "thinking: on");
    chat.type("/think off\n", "thinking: off");
    chat.type("/nothing\n", "unknown command /nothing");
    chat.type("/stats\n", "generated");
    chat.type("/save " + path("chat.json") + "\n", "3 messages");
    chat.type("/clear\n", "empty");
    chat.type("/load " + path("chat.json") + "\n", "3 messages");
    chat.type("/load " + path("none.json") + "\n", "No such file");
    // A message of two lines, and a command that was corrected before Enter.
    chat.type("Who are you?\\\nTell me.\n", "braid-demo");
    chat.type(
        "/savx\x7f"
        "e " +
            path("second.json") + "\n",
        "5 messages");
    chat.type("\x04", "");
  }
  const auto saved = nlohmann::json::parse(std::ifstream(path("chat.json")));
  ASSERT_EQ(saved.size(), 3u);
  EXPECT_EQ(saved[0]["role"], "system");
  EXPECT_EQ(saved[1]["content"], "Who are you?");
  const auto second = nlohmann::json::parse(std::ifstream(path("second.json")));
  EXPECT_EQ(second[3]["content"], "Who are you?\nTell me.");
}

TEST_F(CommandLine, AChatKeepsItsHistoryForItsOwnerAlone) {
  {
    Chat chat(folder_.string());
    chat.read("/help shows the commands.");
    chat.type("/think off\n", "thinking: off");
    chat.type("/quit\n", "");
    chat.wait();
  }
  const fs::path file = folder_ / ".local/state/braid/history";
  EXPECT_EQ(fs::status(file).permissions() & fs::perms::mask,
            fs::perms::owner_read | fs::perms::owner_write);
  std::ifstream in(file);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  EXPECT_NE(text.find("think"), std::string::npos) << text;
}

}  // namespace
}  // namespace braid::test
