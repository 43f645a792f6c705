// program_test.cpp -- the real program on the built-in model.

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "gguf/gguf.h"
#include "gguf/gguf_writer.h"
#include "program.h"

namespace {

using braid::test::Outcome;
using braid::test::run_braid;
namespace fs = std::filesystem;

const std::string kRoot = BRAID_SOURCE_DIR;
const std::string kDemo = kRoot + "/models/braid-demo-q8_0.gguf";

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ProgramTest : public testing::Test {
 protected:
  ProgramTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ =
        fs::temp_directory_path() / ("braid-" + std::to_string(::getpid()) + "-" + info->name());
    fs::create_directories(folder_);
  }
  ~ProgramTest() override { fs::remove_all(folder_); }

  std::string file(const std::string& name, const std::string& bytes) {
    const std::string path = (folder_ / name).string();
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  fs::path folder_;
};

// One sentence about `what` on stderr, nothing on stdout, exit code 2.
void expect_refused(const Outcome& outcome, const std::string& what) {
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_NE(outcome.err.find(what), std::string::npos) << "stderr: " << outcome.err;
  EXPECT_EQ(outcome.err.substr(0, 7), "error: ");
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
}

using BadInput = ProgramTest;

TEST_F(BadInput, MissingFile) {
  expect_refused(run_braid({"run", "-m", path("none.gguf"), "-p", "hi"}), "No such file");
}

TEST_F(BadInput, NotGguf) {
  const auto page =
      file("page.gguf", "<!DOCTYPE html><html><body>Sign in to download</body></html>");
  expect_refused(run_braid({"run", "-m", page, "-p", "hi"}), "not a GGUF file");
}

TEST_F(BadInput, Truncated) {
  const auto half = file("half.gguf", read_file(kDemo).substr(0, 12'000'000));
  expect_refused(run_braid({"run", "-m", half, "-p", "hi"}), "it is incomplete");
}

TEST_F(BadInput, UnknownArchitecture) {
  std::string bytes = read_file(kDemo);
  const auto at = bytes.find("qwen35", bytes.find("general.architecture"));
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, 6, "mamba9");
  expect_refused(run_braid({"run", "-m", file("other.gguf", bytes), "-p", "hi"}), "mamba9");
}

TEST_F(BadInput, MissingTensor) {
  std::string bytes = read_file(kDemo);
  const auto at = bytes.find("blk.3.attn_q.weight");
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, 19, "blk.3.attn_x.weight");
  expect_refused(run_braid({"run", "-m", file("gap.gguf", bytes), "-p", "hi"}),
                 "blk.3.attn_q.weight");
}

TEST_F(BadInput, WrongShape) {
  // ssm_norm.weight is {128} f32; the dimension follows the name and n_dims.
  std::string bytes = read_file(kDemo);
  const std::string name = "blk.0.ssm_norm.weight";
  const auto at = bytes.find(name);
  ASSERT_NE(at, std::string::npos);
  uint64_t dim = 0;
  std::memcpy(&dim, bytes.data() + at + name.size() + 4, 8);
  ASSERT_EQ(dim, 128u);
  dim = 121;  // the same number of padded bytes, so the container is legal
  std::memcpy(bytes.data() + at + name.size() + 4, &dim, 8);
  expect_refused(run_braid({"run", "-m", file("shape.gguf", bytes), "-p", "hi"}), "ssm_norm");
}

TEST_F(BadInput, ContextLargerThanMemory) {
  expect_refused(run_braid({"run", "-p", "hi", "-c", "1000000000"}), "context");
}

TEST_F(BadInput, UnknownFlag) { expect_refused(run_braid({"run", "--tempo", "3"}), "--tempo"); }

TEST_F(BadInput, PromptWithoutItsFlag) {
  // The first word may be a model's file.
  const auto ran = run_braid({"run", "Who", std::string(50'000, 'x')});
  expect_refused(ran, "not expected: xxx");
  EXPECT_LT(ran.err.size(), 500u);
}
TEST_F(BadInput, InvalidUtf8Prompt) {
  expect_refused(run_braid({"run", "-p", "abc\xff\xfe"}), "not valid UTF-8");
}

TEST_F(BadInput, PromptLongerThanContext) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "word ";
  expect_refused(run_braid({"run", "-c", "512", "-f", file("long.txt", text)}), "context");
}

using RunCommand = ProgramTest;

TEST_F(RunCommand, FindsAFactInAPage) {
  const auto outcome = run_braid(
      {"run", "-f", kRoot + "/tools/demo/page.txt", "--think", "off", "--temp", "0", "-n", "64"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("48213"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.err.find("tok/s"), std::string::npos) << outcome.err;
}

TEST_F(RunCommand, CallsTheRightFunction) {
  const auto outcome =
      run_braid({"run", "-p", "What is the weather in Paris?", "--tools",
                 kRoot + "/tools/demo/tools.json", "--think", "off", "--temp", "0", "-n", "96"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("<function=get_weather>"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("Paris"), std::string::npos) << outcome.out;
}

TEST_F(RunCommand, TheSameSeedGivesTheSameText) {
  const std::vector<std::string> base = {"run",    "-p", "Tell me about the harbor.", "-n", "40",
                                         "--temp", "1.0"};
  auto with = [&](std::vector<std::string> more) {
    auto all = base;
    all.insert(all.end(), more.begin(), more.end());
    return run_braid(all).out;
  };
  const auto first = with({"-s", "7"});
  EXPECT_EQ(first, with({"-s", "7"}));
  EXPECT_EQ(first, with({"-s", "7", "-t", "1"})) << "threads must not matter";
  EXPECT_EQ(first, with({"-s", "7", "-ub", "16"})) << "the prompt's chunks must not matter";
  EXPECT_NE(first, with({"-s", "8"}));
}

TEST_F(RunCommand, RawPromptsRecogniseSpecialTokens) {
  const auto outcome = run_braid({"run", "--raw", "--temp", "0", "-n", "8", "-p",
                                  "<|im_start|>user\nHow many letters does window have?<|im_end|>\n"
                                  "<|im_start|>assistant\n<think>\n\n</think>\n\n"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "window has 6 letters.") << outcome.out;
}

TEST_F(RunCommand, StdinIsAMessageWhenThereIsNoTerminal) {
  const auto outcome =
      run_braid({"run", "--think", "off", "--temp", "0", "-n", "16"}, "Who are you?");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_FALSE(outcome.out.empty());
}

TEST_F(RunCommand, EnvironmentVariablesAreOptions) {
  ::setenv("BRAID_MODEL", path("none.gguf").c_str(), 1);
  const auto outcome = run_braid({"run", "-p", "hi"});
  ::unsetenv("BRAID_MODEL");
  expect_refused(outcome, "none.gguf");
}

using InspectCommand = ProgramTest;

TEST_F(InspectCommand, JsonDescribesTheFile) {
  const auto outcome = run_braid({"inspect", kDemo, "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["metadata"]["general.architecture"], "qwen35");
  EXPECT_GT(json["parameters"].get<uint64_t>(), 26'000'000u);
  EXPECT_GT(json["tensors"].size(), 100u);
  EXPECT_TRUE(json["memory_plan"].is_array());
}

TEST_F(InspectCommand, TokensOfTheGoldens) {
  const auto goldens = nlohmann::json::parse(read_file(kRoot + "/tests/goldens/demo.json"));
  int compared = 0;
  for (const auto& golden : goldens) {
    const auto outcome =
        run_braid({"inspect", kDemo, "--tokens", golden["prompt"].get<std::string>()});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(nlohmann::json::parse(outcome.out), golden["ids"]);
    ++compared;
  }
  EXPECT_EQ(compared, 12);
}

TEST_F(InspectCommand, RendersAConversation) {
  const auto messages = file("messages.json", R"([{"role": "user", "content": "Who are you?"}])");
  const auto outcome = run_braid({"inspect", kDemo, "--template", messages});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out,
            "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n<think>\n");
}

// Perplexity figures: docs/design/numerics.md.
double perplexity(const std::vector<std::string>& more) {
  std::vector<std::string> all = {"ppl", "-f", kRoot + "/tests/goldens/corpus-heldout.txt", "-c",
                                  "2048"};
  all.insert(all.end(), more.begin(), more.end());
  const auto outcome = run_braid(all);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto at = outcome.out.rfind("ppl ");
  EXPECT_NE(at, std::string::npos) << outcome.out;
  const double value = at == std::string::npos ? 0 : std::stod(outcome.out.substr(at + 4));
  std::string options;
  for (const auto& option : more) options += " " + fs::path(option).filename().string();
  std::printf("[report] braid ppl -c 2048%s: %.4f\n", options.c_str(), value);
  return value;
}

TEST_F(ProgramTest, PerplexityShowsWhatBlockSparsePromptsLose) {
  const std::string text = kRoot + "/tests/goldens/corpus-heldout.txt";
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"ppl", "-m", kDemo, "-f", text, "--device", "cpu"};
    all.insert(all.end(), more.begin(), more.end());
    return run_braid(all);
  };
  const auto outcome = run({"-c", "2048", "--prefill-sparse", "0.1"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto figure = [&](const std::string& after) {
    const auto at = outcome.out.find(after);
    EXPECT_NE(at, std::string::npos) << outcome.out;
    return at == std::string::npos ? 0 : std::stod(outcome.out.substr(at + after.size()));
  };
  EXPECT_NEAR(figure("full attention: ppl "), perplexity({"-m", kDemo, "--device", "cpu"}), 1e-4);
  EXPECT_GT(figure("threshold 0.1: ppl "), 1);
  EXPECT_GE(figure("predictions: mean "), 0);
  const double share = figure("share of key blocks read: ");
  EXPECT_GT(share, 0);
  EXPECT_LT(share, 100);
  expect_refused(run({"-c", "767", "--prefill-sparse", "0.1"}), "at least 768");
  expect_refused(run({"-ub", "256", "--prefill-sparse", "0.1"}), "at least 512 tokens");
  expect_refused(run({"--deterministic", "--prefill-sparse", "0.1"}), "not deterministic");
  expect_refused(run({"--prefill-sparse", "1.5"}), "--prefill-sparse");
}

TEST_F(ProgramTest, PerplexityOfTheHeldOutText) {
  EXPECT_NEAR(perplexity({"-m", kDemo, "--act", "f32"}), 10.508, 0.001);
  const double fast = perplexity({"-m", kDemo});
  EXPECT_GE(fast, 10.50);
  EXPECT_LE(fast, 10.525);
}

TEST_F(ProgramTest, FormatsThatAreSlowHereAreNamed) {
  const auto said = [&](const char* k, const char* v) {
    const auto outcome = run_braid({"run", "-m", kDemo, "--device", "cpu", "-ctk", k, "-ctv", v,
                                    "-p", "Who are you?", "-n", "2"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const size_t at = outcome.err.find("note:");
    return at == std::string::npos ? "" : outcome.err.substr(at, outcome.err.find('\n', at) - at);
  };
  EXPECT_NE(said("q4_1", "c4").find("no kernels for q4_1:"), std::string::npos);
  EXPECT_NE(said("q5_1", "tbq4_0").find("no kernels for q5_1 and tbq4_0:"), std::string::npos);
  EXPECT_EQ(said("q8_0", "c4"), "");
  EXPECT_EQ(said("q8_0", "q4_0"), "");
  EXPECT_EQ(said("f16", "f16"), "");
}

TEST_F(ProgramTest, PerplexityAfterQuantizing) {
  const auto out = path("demo-q4_k_m.gguf");
  const auto outcome = run_braid({"quantize", kDemo, out, "Q4_K_M"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NEAR(perplexity({"-m", out}), 10.557, 0.03);
}

TEST_F(ProgramTest, QuantizeDropsTheMtpLayer) {
  const auto out = path("trunk.gguf");
  const auto outcome = run_braid({"quantize", kDemo, out, "Q8_0", "--drop-mtp"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto opened = braid::GgufFile::open(out);
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened->get_u32("qwen35.block_count").value(), 8u);
  EXPECT_EQ(opened->find_tensor("blk.8.nextn.eh_proj.weight"), nullptr);
  EXPECT_EQ(run_braid({"run", "-m", out, "-p", "Who are you?", "-n", "4"}).exit_code, 0);
}

TEST_F(ProgramTest, BenchRowsAreMachineReadable) {
  const auto outcome =
      run_braid({"bench", "-m", kDemo, "-p", "32", "-n", "8", "-r", "1", "-o", "json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto rows = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["test"], "pp32");
  EXPECT_EQ(rows[1]["test"], "tg8");
  for (const auto& row : rows) {
    EXPECT_GT(row["tok_s"].get<double>(), 0);
    EXPECT_TRUE(row.contains("tok_s_sd"));
  }
}

TEST_F(ProgramTest, BenchSaysWhosePromptsAreFilled) {
  const std::vector<std::string> bench = {"bench",  "-m", kDemo, "--device", "cpu",
                                          "--fill", "64", "-ub", "64",       "-n",
                                          "8",      "-r", "1",   "-o",       "json"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), bench.begin(), bench.end());
    return run_braid(more);
  };
  auto outcome = with({"-p", "64,1000", "-d", "1000", "-ctk", "c4", "-ctv", "c4"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  auto rows = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0]["test"], "pp64");
  EXPECT_EQ(rows[1]["test"], "pp1000 filled from 64");
  EXPECT_EQ(rows[2]["test"], "tg8@d1000 filled from 64");
  EXPECT_GT(rows[2]["tok_s"].get<double>(), 0);

  outcome = with({"-p", "500", "--batch", "3"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  rows = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(rows.at(0)["filled_from"], 64);
  EXPECT_GT(rows.at(0)["decode_tok_s"].get<double>(), 0);

  for (const auto& [wrong, why] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--fit", "512"}, "--fill is for"},
           {{"--spec", "mtp"}, "--fill is for"},
           {{"--shared-prefix", "100"}, "--fill is for"},
           {{"-p", "0", "-d", "1000", "-c", "1000"}, "larger context"}}) {
    outcome = with(wrong);
    EXPECT_EQ(outcome.exit_code, 2) << wrong[0];
    EXPECT_NE(outcome.err.find(why), std::string::npos) << outcome.err;
  }
  outcome = run_braid({"bench", "-m", kDemo, "--fill", "65"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_NE(outcome.err.find("blocks of 32"), std::string::npos) << outcome.err;
}

TEST_F(ProgramTest, BenchComparesWaysToSpeculate) {
  const std::string prompts =
      file("prompts.jsonl", R"({"set": "echo", "messages": [{"role": "user", "content": )"
                            R"("Repeat after me: the quick brown fox"}]})"
                            "\n");
  const std::string svg = (folder_ / "plot.svg").string();
  const std::vector<std::string> bench = {"bench", "-m", kDemo, "--device", "cpu", "-n",
                                          "24",    "-r", "1",   "-o",       "json"};
  auto texts = bench;
  texts.insert(texts.end(), {"--spec", "mtp,ngram", "--spec-always", "--prompts", prompts,
                             "--draft-max", "2,3", "--batch", "1,2", "--svg", svg});
  const auto outcome = run_braid(texts);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto rows = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(rows.size(), 8u) << outcome.out;
  for (const auto& row : rows) {
    EXPECT_EQ(row["set"], "echo");
    EXPECT_EQ(row["differing"], 0) << row;
    EXPECT_GT(row["plain_tok_s"].get<double>(), 0);
    EXPECT_GT(row["tok_s"].get<double>(), 0);
    const double shares = row["draft_share"].get<double>() + row["verify_share"].get<double>() +
                          row["plain_share"].get<double>() + row["host_share"].get<double>();
    EXPECT_NEAR(shares, 1, 1e-6);
  }
  EXPECT_GT(rows[0]["tokens_per_round"].get<double>(), 1.5) << "the head knows how to repeat";
  EXPECT_EQ(rows[0]["accepted_by_depth"].size(), 2u);
  EXPECT_EQ(rows[2]["accepted_by_depth"].size(), 3u);
  EXPECT_TRUE(read_file(svg).starts_with("<svg"));

  // All drafts or none are accepted; answers of random tokens run to their end.
  auto forced = bench;
  forced.insert(forced.end(),
                {"--spec", "mtp", "--spec-always", "-p", "8", "--accept", "1", "--accept", "0"});
  const auto both = run_braid(forced);
  ASSERT_EQ(both.exit_code, 0) << both.err;
  const auto all_or_none = nlohmann::json::parse(both.out);
  ASSERT_EQ(all_or_none.size(), 2u) << both.out;
  EXPECT_GT(all_or_none[0]["tokens_per_round"].get<double>(), 3.4);
  EXPECT_EQ(all_or_none[1]["tokens_per_round"], 1.0);
  EXPECT_EQ(all_or_none[1]["accept"], "0");

  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"--spec", "mpt"},
                                                {"--accept", "0.5"},
                                                {"--spec", "mtp", "--accept", "2"}}) {
    auto arguments = bench;
    arguments.insert(arguments.end(), wrong.begin(), wrong.end());
    EXPECT_NE(run_braid(arguments).exit_code, 0) << wrong.back();
  }
}

// The first sequence done with its prompt decodes a token per chunk of the others.
TEST_F(ProgramTest, BenchTakesTheContextThatItsBatchNeeds) {
  const std::vector<std::string> batch = {"bench", "-m",  kDemo, "--batch", "8", "-p", "200", "-n",
                                          "4",     "-ub", "16",  "-r",      "1", "-o", "json"};
  const auto outcome = run_braid(batch);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_GT(nlohmann::json::parse(outcome.out).at(0).at("decode_tok_s").get<double>(), 0);
  auto too_short = batch;
  too_short.insert(too_short.end(), {"-c", "256"});
  EXPECT_EQ(run_braid(too_short).exit_code, 0);
}

// K bits, V bits, errors of K and V, divergence, the worst layer's, output.
std::vector<double> report_row(const std::string& out, const std::string& format) {
  const auto at = out.find("\n" + format + " ");
  EXPECT_NE(at, std::string::npos) << out;
  if (at == std::string::npos) return std::vector<double>(7);
  std::istringstream line(
      out.substr(at + 1 + format.size(), out.find('\n', at + 1) - at - 1 - format.size()));
  std::vector<double> numbers;
  for (double x; line >> x;) numbers.push_back(x);
  EXPECT_EQ(numbers.size(), 7u) << out;
  numbers.resize(7);
  return numbers;
}

TEST_F(ProgramTest, KvReportComparesFormats) {
  const auto outcome =
      run_braid({"kv-report", "-m", kDemo, "-f", kRoot + "/tests/goldens/corpus-heldout.txt", "-c",
                 "1024", "--formats", "f16,Q8_0,c4,q4_0", "--parts", "attention"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto f16 = report_row(outcome.out, "f16");
  const auto q8 = report_row(outcome.out, "q8_0");
  const auto c4 = report_row(outcome.out, "c4");
  const auto q4 = report_row(outcome.out, "q4_0");
  EXPECT_EQ(q4[0], 4.5);
  EXPECT_NEAR(q8[2], 0.55, 0.1);
  EXPECT_LT(f16[4], 1e-3);
  EXPECT_LT(f16[4], q8[4]);
  EXPECT_LT(10 * q8[4], c4[4]);
  EXPECT_LT(1.5 * c4[4], q4[4]);
  for (const auto& row : {q8, c4, q4}) EXPECT_GE(row[5], row[4]);
}

TEST_F(ProgramTest, KvReportRunsWhatAServerWouldRun) {
  const std::string svg = file("report.svg", "");
  const std::string prompts = file("prompts.jsonl", R"({"set": "words", "text": "one two three"})");
  std::vector<std::string> args = {"kv-report", "-m", kDemo, "-f",
                                   kRoot + "/tests/goldens/corpus-heldout.txt"};
  for (const char* more : {"-c", "256", "--formats", "q8_0,q8_0/tbq4_0", "--needles", "160",
                           "--depths", "2", "-n", "8", "-o", "json"})
    args.emplace_back(more);
  args.insert(args.end(), {"--prompts", prompts, "--svg", svg});
  const auto outcome = run_braid(args);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto report = nlohmann::json::parse(outcome.out, nullptr, false);
  ASSERT_EQ(report["formats"].size(), 3u) << outcome.out;
  const auto& floor = report["formats"][0];
  EXPECT_EQ(floor["format"], "floor");
  EXPECT_LT(floor["text"]["most"], 1e-12) << "on a CPU the pieces of a prompt change nothing";
  EXPECT_EQ(floor["sets"][0]["set"], "needle 160");
  EXPECT_EQ(floor["sets"][0]["same"], 2);
  EXPECT_EQ(floor["sets"][0]["marks"].get<std::string>().size(), 2u);
  EXPECT_EQ(floor["sets"][1]["set"], "words");
  EXPECT_EQ(floor["sets"][1]["same"], 1);
  const auto& mixed = report["formats"][2];
  EXPECT_EQ(mixed["format"], "q8_0/tbq4_0");
  EXPECT_EQ(mixed["k_bits"], 8.5);
  EXPECT_EQ(mixed["v_bits"], 4.125);
  EXPECT_GT(mixed["text"]["mean"], report["formats"][1]["text"]["mean"]);
  EXPECT_GT(mixed["attention"]["v_error"], 0.05);
  EXPECT_NEAR(mixed["text"]["perplexity"], floor["text"]["perplexity"], 0.2);
  const std::string picture = read_file(svg);
  EXPECT_NE(picture.find("q8_0/tbq4_0"), picture.npos);
}

TEST_F(ProgramTest, AnswersStandBesideWhatCompressionKeeps) {
  const std::vector<std::string> args = {"compress",  "-m",      kDemo,      "--needles", "512",
                                         "--fillers", "prose",   "--depths", "2",         "--keep",
                                         "0.3",       "--kinds", "number",   "--answers"};
  const auto table = run_braid(args);
  ASSERT_EQ(table.exit_code, 0) << table.err;
  EXPECT_NE(table.out.find("| fact kept | right uncompressed | right compressed |"),
            std::string::npos)
      << table.out;
  auto as_json = args;
  as_json.insert(as_json.end(), {"--json", "--answer-model", kDemo});
  const auto outcome = run_braid(as_json);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  int64_t cases = 0, kept = 0, right = 0;
  for (std::string line; std::getline(lines, line); ++cases) {
    const auto result = nlohmann::json::parse(line, nullptr, false);
    ASSERT_TRUE(result.is_object()) << line;
    EXPECT_FALSE(result["answer_uncompressed"].get<std::string>().empty());
    EXPECT_FALSE(result["answer_compressed"].get<std::string>().empty());
    kept += result["passed"].get<bool>() ? 1 : 0;
    right += result["right_compressed"].get<bool>() ? 1 : 0;
  }
  EXPECT_EQ(cases, 2);
  EXPECT_LE(right, kept) << "a fact that was dropped cannot be answered";
  // The same model answers alike whether it was loaded once or twice.
  EXPECT_NE(table.out.find("(" + std::to_string(right) + "/2)"), std::string::npos) << table.out;
}

TEST_F(ProgramTest, CompressReadsLongerTextsInWindows) {
  std::string text = "The secret number for calm-falcon is 512.\n";
  for (int i = 0; i < 300; ++i)
    text += "Rain fell on the roofs of village " + std::to_string(i) + ".\n";
  const std::string name = file("long.txt", text);
  const std::vector<std::string> args = {
      "compress", "-m", kDemo,
      "-f",       name, "-c",
      "1024",     "-q", "What is the secret number for calm-falcon?"};
  auto as_json = args;
  as_json.emplace_back("--json");
  const auto outcome = run_braid(as_json);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto result = nlohmann::json::parse(outcome.out, nullptr, false);
  const int windows = result["windows"];
  EXPECT_GE(windows, 3);
  EXPECT_NE(outcome.err.find(", " + std::to_string(windows) + " windows,"), std::string::npos)
      << outcome.err;
  EXPECT_NE(result["text"].get<std::string>().find("calm-falcon is 512."), std::string::npos);
  EXPECT_LT(result["ratio"].get<double>(), 0.6);
  auto shown = args;
  shown.emplace_back("--show");
  EXPECT_NE(run_braid(shown).out.find(" bytes ...]"), std::string::npos);
}

TEST_F(ProgramTest, MadeTextsMayBeLongerThanTheContext) {
  const auto outcome =
      run_braid({"compress", "-m", kDemo, "-c", "1024", "--needles", "2500", "--fillers", "prose",
                 "--depths", "2", "--keep", "0.2", "--answers", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::istringstream lines(outcome.out);
  int64_t cases = 0;
  for (std::string line; std::getline(lines, line); ++cases) {
    const auto result = nlohmann::json::parse(line, nullptr, false);
    ASSERT_TRUE(result.is_object()) << line;
    EXPECT_EQ(result["windows"], 3);
    EXPECT_TRUE(result["passed"].get<bool>());
    EXPECT_TRUE(result["answer_uncompressed"].is_null()) << "the model cannot read it";
    EXPECT_TRUE(result["answer_compressed"].is_string());
  }
  EXPECT_EQ(cases, 2);
  EXPECT_NE(outcome.err.find("in up to 3 windows"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("2 texts were too long"), std::string::npos) << outcome.err;
}

TEST_F(BadInput, CompressAnswersMadeTextsOnly) {
  const auto text = kRoot + "/tests/goldens/corpus-heldout.txt";
  expect_refused(run_braid({"compress", "-f", text, "--answers"}), "are for made texts");
  expect_refused(run_braid({"compress", "--needles", "512", "--answer-model", "/no/such.gguf"}),
                 "/no/such.gguf");
  expect_refused(run_braid({"compress", "-f", text, "-q", "Who?", "-c", "512"}), "too few for");
}

TEST_F(BadInput, KvReport) {
  const auto text = kRoot + "/tests/goldens/corpus-heldout.txt";
  expect_refused(run_braid({"kv-report", "-m", kDemo, "-f", text, "--formats", "q4_7"}),
                 "'q4_7' is no KV cache type");
  expect_refused(run_braid({"kv-report", "-m", kDemo, "-f", file("short.txt", "A few words.")}),
                 "fewer than 256");
  expect_refused(run_braid({"kv-report", "-m", kDemo, "-f", text, "--formats", "q8_0/"}),
                 "is no KV cache type");
  expect_refused(run_braid({"kv-report", "-m", kDemo, "-f", text, "--prompts", "/no/such/file"}),
                 "/no/such");
}

TEST_F(ProgramTest, HelpNamesEveryCommandAndOption) {
  const auto all = run_braid({"--help"});
  EXPECT_EQ(all.exit_code, 0);
  for (const char* command : {"run", "plan", "placement", "compress", "bench", "ppl", "kv-report",
                              "inspect", "quantize", "proxy"}) {
    EXPECT_NE(all.out.find(command), std::string::npos);
    EXPECT_EQ(run_braid({command, "--help"}).exit_code, 0);
  }
  const auto run = run_braid({"run", "--help-all"});
  for (const char* option : {"-m", "-p", "-f", "-n", "-c", "-t", "-b", "-ub", "--temp", "--top-k",
                             "--top-p", "--min-p", "--seed", "-s", "--raw", "BRAID_MODEL"}) {
    EXPECT_NE(run.out.find(option), std::string::npos) << option;
  }
}

}  // namespace
