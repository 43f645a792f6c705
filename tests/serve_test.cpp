// serve_test.cpp -- `braid serve` for operators: TLS, a config file, signals, several models.

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "program.h"
#include "served.h"

namespace {

using namespace braid::test;
using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

const std::string kRoot = BRAID_SOURCE_DIR;
const std::string kDemo = kRoot + "/models/braid-demo-q8_0.gguf";
const std::string kMoe = kRoot + "/tests/goldens/braid-tiny-moe-q4_k_m.gguf";
const std::vector<std::string> kSmall = {"-c", "1024",    "-np", "2",      "-t",
                                         "1",  "--think", "off", "--temp", "0"};

class ServeTest : public testing::Test {
 protected:
  ServeTest() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ =
        fs::temp_directory_path() / ("braid-" + std::to_string(::getpid()) + "-" + info->name());
    fs::create_directories(folder_);
  }
  ~ServeTest() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string file(const std::string& name, const std::string& text) {
    fs::create_directories(fs::path(path(name)).parent_path());
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  void make_certificate() {
    EVP_PKEY* key = EVP_EC_gen("P-256");
    ASSERT_NE(key, nullptr);
    X509* certificate = X509_new();
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -86400);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 86400);
    X509_set_pubkey(certificate, key);
    X509_NAME* name = X509_get_subject_name(certificate);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("braid test"), -1, -1, 0);
    X509_set_issuer_name(certificate, name);
    X509_EXTENSION* names =
        X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "DNS:localhost");
    X509_add_ext(certificate, names, -1);
    X509_EXTENSION_free(names);
    ASSERT_GT(X509_sign(certificate, key, EVP_sha256()), 0);
    FILE* out = std::fopen(path("cert.pem").c_str(), "w");
    PEM_write_X509(out, certificate);
    std::fclose(out);
    out = std::fopen(path("key.pem").c_str(), "w");
    PEM_write_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr);
    std::fclose(out);
    X509_free(certificate);
    EVP_PKEY_free(key);
  }

  static std::vector<std::string> with_small(std::vector<std::string> more) {
    more.insert(more.begin(), kSmall.begin(), kSmall.end());
    return more;
  }
  static Json ask(uint16_t port, const std::string& path, const Json& body, int expected = 200) {
    Connection connection(port);
    connection.send("POST", path, body.dump());
    connection.read_all();
    EXPECT_EQ(connection.status(), expected) << connection.received;
    return Json::parse(connection.body(), nullptr, false);
  }
  static Json get(uint16_t port, const std::string& path) {
    Connection connection(port);
    connection.send("GET", path);
    connection.read_all();
    return Json::parse(connection.body(), nullptr, false);
  }
  static std::string complete(uint16_t port, const std::string& model) {
    const Json answer =
        ask(port, "/v1/completions",
            {{"model", model}, {"prompt", "The harbor"}, {"max_tokens", 12}, {"ignore_eos", true}});
    return answer.contains("choices") ? answer["choices"][0]["text"].get<std::string>()
                                      : answer.dump();
  }
  static void begin_long(Connection& connection) {
    connection.send("POST", "/v1/completions",
                    Json{{"prompt", "The harbor"}, {"stream", true}, {"ignore_eos", true}}.dump());
    EXPECT_TRUE(connection.read_until("data: {"));
  }

  fs::path folder_;
};

TEST_F(ServeTest, TlsWithACertificate) {
  make_certificate();
  Served server(with_small({"--tls-cert", path("cert.pem"), "--tls-key", path("key.pem")}));
  ASSERT_NE(server.port, 0) << server.log();
  EXPECT_NE(server.log().find("https://127.0.0.1"), std::string::npos);
  {
    Connection client(server.port, path("cert.pem"));
    ASSERT_TRUE(client.connected);
    client.send("GET", "/health");
    client.read_all();
    EXPECT_EQ(client.status(), 200);
    EXPECT_TRUE(client.closed_cleanly) << "a cut connection looks like an attack";
  }
  Connection client(server.port, path("cert.pem"));
  client.send("POST", "/v1/completions", R"({"prompt":"The harbor","max_tokens":8,"stream":true})");
  EXPECT_TRUE(client.read_until("[DONE]"));
  Connection plain(server.port);
  plain.send("GET", "/health");
  plain.read_all();
  EXPECT_NE(plain.status(), 200);
  file("other.pem", "");
  EXPECT_FALSE(Connection(server.port, path("other.pem")).connected);
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0);
}

TEST_F(ServeTest, WrongCertificatesAreOneSentence) {
  make_certificate();
  file("junk.pem", "junk");
  const std::pair<std::vector<std::string>, const char*> kCases[] = {
      {{"--tls-cert", path("cert.pem")}, "--tls-cert has no effect without --tls-key"},
      {{"--tls-key", path("key.pem")}, "--tls-key has no effect without --tls-cert"},
      {{"--tls-cert", path("junk.pem"), "--tls-key", path("key.pem")}, "junk.pem"},
      {{"--tls-cert", path("cert.pem"), "--tls-key", path("junk.pem")}, "junk.pem"},
      {{"--tls-cert", path("absent.pem"), "--tls-key", path("key.pem")}, "absent.pem"},
  };
  for (const auto& [options, what] : kCases) {
    auto arguments = with_small(options);
    arguments.insert(arguments.begin(), {"serve", "--port", "0"});
    const Outcome outcome = run_braid(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_NE(outcome.err.find(what), std::string::npos) << outcome.err;
  }
}

TEST_F(ServeTest, AnEmptyKeyOpensNothing) {
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{"--api-key", ""},
        std::vector<std::string>{"--api-key", "one", "--api-key", ""},
        std::vector<std::string>{"--config", file("empty.conf", "api-key = [\"one\", \"\"]\n")},
        std::vector<std::string>{"--api-key-file", file("empty.keys", "# none\n\n")}}) {
    auto arguments = with_small(options);
    arguments.insert(arguments.begin(), {"serve", "--port", "0"});
    const Outcome outcome = run_braid(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_TRUE(outcome.err.find("is empty") != std::string::npos ||
                outcome.err.find("no key") != std::string::npos)
        << outcome.err;
  }
  ::setenv("BRAID_API_KEY", "", 1);
  const Outcome outcome = run_braid({"serve", "--port", "0", "-c", "512"});
  ::unsetenv("BRAID_API_KEY");
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_NE(outcome.err.find("is empty"), std::string::npos) << outcome.err;
}

TEST_F(ServeTest, OptionsFromAFile) {
  const std::string config = file("braid.conf",
                                  "# of this test\n"
                                  "alias = \"from-file\"\n"
                                  "predict = 3\n"
                                  "api-key = [\"one\", \"two\"]\n"
                                  "ctx-size = 512\n"
                                  "threads = 1\n"
                                  "strict-model = true\n");
  Served server({"--config", config, "--ctx-size", "640"});
  ASSERT_NE(server.port, 0) << server.log();
  EXPECT_NE(server.log().find("from-file on http://"), std::string::npos) << server.log();
  EXPECT_NE(server.log().find("640 tokens of context"), std::string::npos)
      << "the command line goes first";
  const std::string body = R"({"prompt":"The harbor","ignore_eos":true,"model":"from-file"})";
  Connection refused(server.port);
  refused.send("POST", "/v1/completions", body);
  refused.read_all();
  EXPECT_EQ(refused.status(), 401);
  for (const char* key : {"one", "two"}) {
    Connection client(server.port);
    client.send("POST", "/v1/completions", body,
                std::string("Authorization: Bearer ") + key + "\r\n");
    client.read_all();
    EXPECT_EQ(client.status(), 200);
    EXPECT_EQ(Json::parse(client.body())["usage"]["completion_tokens"], 3);
  }
  Connection strict(server.port);
  strict.send("POST", "/v1/completions", R"({"prompt":"x","model":"another"})",
              "x-api-key: one\r\n");
  strict.read_all();
  EXPECT_EQ(strict.status(), 404);
}

// As in a container: all addresses, no key.
TEST_F(ServeTest, NamesAreGuardedOnEveryAddress) {
  const auto status = [](const Served& server, const std::string& host) {
    Connection client(server.port);
    client.host = host;
    client.send("GET", "/v1/models");
    client.read_all();
    return client.status();
  };
  for (const bool listed : {false, true}) {
    std::vector<std::string> options = with_small({"--host", "0.0.0.0"});
    if (listed) options.insert(options.end(), {"--allowed-host", "box,braid"});
    Served server(options);
    ASSERT_NE(server.port, 0) << server.log();
    EXPECT_EQ(status(server, "evil.example"), 403);
    EXPECT_EQ(status(server, "192.168.1.5:8080"), 200);
    EXPECT_EQ(status(server, "localhost:8080"), 200);
    for (const char* name : {"box", "braid:8080"})
      EXPECT_EQ(status(server, name), listed ? 200 : 403);
  }
}

TEST_F(ServeTest, OptionsWithoutEffectAreRefused) {
  const std::pair<std::vector<std::string>, const char*> kCases[] = {
      {{"--api-key", "one", "--allowed-host", "good.example"},
       "--allowed-host has no effect with API keys"},
      {{"--public-metrics"}, "--public-metrics has no effect without API keys"},
      {{"--config", file("c.conf", "share-cache = true\n")}, "--share-cache has no effect without"},
      {{"--cors-origin", "https://good.example/"}, "is not an origin"},
      {{"--config", file("h.conf", "allowed-host = [\"localhost\"]\n")}, "has no effect"},
  };
  for (const auto& [options, what] : kCases) {
    auto arguments = with_small(options);
    arguments.insert(arguments.begin(), {"serve", "--port", "0"});
    const Outcome outcome = run_braid(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_NE(outcome.err.find(what), std::string::npos) << outcome.err;
  }
}

// Order of precedence, lowest first: environment, file, earlier option, later option.
TEST_F(ServeTest, TheLastOptionWins) {
  const std::string config =
      file("braid.conf", "ctx-size = 600\nctx-size = 640\nshare-cache = false\n");
  const auto context = [](std::vector<std::string> options) {
    Served server(std::move(options));
    const std::string log = server.log();
    const size_t end = log.find(" tokens of context");
    return end == std::string::npos
               ? log
               : log.substr(log.rfind(' ', end - 1) + 1, end - log.rfind(' ', end - 1) - 1);
  };
  ::setenv("BRAID_CTX_SIZE", "576", 1);
  EXPECT_EQ(context({"-t", "1"}), "576");
  EXPECT_EQ(context({"-t", "1", "--config", config}), "640") << "the file's last";
  EXPECT_EQ(context({"-t", "1", "--config", config, "-c", "704"}), "704");
  EXPECT_EQ(context({"-t", "1", "-c", "704", "--config", config, "--ctx-size", "736"}), "736");
  ::unsetenv("BRAID_CTX_SIZE");
  EXPECT_EQ(context({"-t", "1", "-c", "704", "--no-page", "--no-page", "-c", "576"}), "576");
  const Outcome run = run_braid(
      {"run", "-p", "The", "-n", "1", "-n", "2", "--temp", "1", "--temp", "0", "-t", "1"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
}

TEST_F(ServeTest, WrongFilesOfOptionsAreRefused) {
  const std::pair<std::string, const char*> kCases[] = {
      {file("value.conf", "max-queue = many\n"), "max-queue"},
      {file("range.conf", "max-n = 0\n"), "max-n"},
      {file("name.conf", "max-quue = 5\n"), "max-quue"},
      {path("absent.conf"), "absent.conf"},
  };
  for (const auto& [config, what] : kCases) {
    const Outcome outcome = run_braid({"serve", "--port", "0", "-c", "512", "--config", config});
    EXPECT_NE(outcome.exit_code, 0) << config;
    EXPECT_NE(outcome.err.find(what), std::string::npos) << outcome.err;
  }
}

TEST_F(ServeTest, TheFirstSignalLetsAnswersEnd) {
  for (const int number : {SIGTERM, SIGINT}) {
    Served server(with_small({}));
    ASSERT_NE(server.port, 0) << server.log();
    Connection stream(server.port), idle(server.port);
    begin_long(stream);
    server.signal(number);
    ASSERT_TRUE(server.wait_log("shutting down"));
    EXPECT_TRUE(stream.read_until("data: [DONE]")) << stream.received.substr(0, 300);
    EXPECT_NE(stream.received.find("\"finish_reason\":\"length\""), std::string::npos);
    EXPECT_EQ(stream.received.find("\"error\""), std::string::npos);
    EXPECT_EQ(server.wait(), 0);
    EXPECT_FALSE(Connection(server.port).connected);
    EXPECT_EQ(idle.read_all(), "");
  }
}

TEST_F(ServeTest, ProbesSeeThatItDrains) {
  Served server(with_small({"--drain-delay", "2"}));
  ASSERT_NE(server.port, 0) << server.log();
  server.signal(SIGTERM);
  ASSERT_TRUE(server.wait_log("shutting down"));
  // The port stays open: /health reports draining, and clients that missed it are served.
  std::string status;
  while (status != "draining") {
    const Json health = get(server.port, "/health");
    ASSERT_TRUE(health.contains("status")) << "the port is closed";
    status = health["status"];
  }
  ask(server.port, "/v1/completions", {{"prompt", "The harbor"}, {"max_tokens", 1}});
  EXPECT_EQ(server.wait(), 0);
  EXPECT_FALSE(Connection(server.port).connected);
}

TEST_F(ServeTest, WhileAnswersEndNewOnesAreRefusedOverNewConnections) {
  Served server({"-c", "0", "-np", "2", "-t", "1", "--drain-timeout", "1000"});
  ASSERT_NE(server.port, 0) << server.log();
  auto stream = std::make_unique<Connection>(server.port);
  begin_long(*stream);
  server.signal(SIGTERM);
  ASSERT_TRUE(server.wait_log("shutting down"));
  Json health;
  while (health != Json{{"status", "draining"}}) {
    Connection connection(server.port);
    ASSERT_TRUE(connection.connected) << "the port is closed";
    connection.send("GET", "/health");
    // Draining closes connections that are idle, and this one may be so for a moment.
    if (!connection.read_all().empty()) health = Json::parse(connection.body(), nullptr, false);
  }
  Json refused;
  while (refused["error"]["code"] != "shutting_down") {
    Connection connection(server.port);
    connection.send("POST", "/v1/completions", R"({"prompt":"x","max_tokens":1})");
    refused = Json::parse(connection.read_all().empty() ? "{}" : connection.body(), nullptr, false);
    ASSERT_TRUE(refused.is_object()) << connection.received;
  }
  stream.reset();  // the last one leaves
  EXPECT_EQ(server.wait(), 0);
}

TEST_F(ServeTest, LimitsOfKeysAreReadFromTheirFile) {
  const std::string keys = file("keys", "ops admin\nteam name=team-a max-requests=1\n");
  for (const auto& [line, what] :
       {std::pair{"k max-request=1\n", "keys:1: a key can be followed by"},
        std::pair{"k max-requests=0\n", "keys:1: \"0\" is not a number from 1"},
        std::pair{"k models=absent\n", "may load the model absent"},
        std::pair{"k\nk\n", "given twice"}}) {
    const std::string wrong = file("wrong/keys", line);
    const Outcome outcome =
        run_braid({"serve", "--port", "0", "-c", "512", "--api-key-file", wrong});
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_NE(outcome.err.find(what), std::string::npos) << outcome.err;
  }
  Served server(with_small({"--api-key-file", keys, "--client-priority", "0..5"}));
  ASSERT_NE(server.port, 0) << server.log();
  const auto status = [&](const std::string& key, const std::string& more = "") {
    Connection connection(server.port);
    connection.send("POST", "/v1/completions", R"({"prompt":"The","max_tokens":1)" + more + "}",
                    "x-api-key: " + key + "\r\n");
    connection.read_all();
    return connection.status();
  };
  EXPECT_EQ(status("team"), 200);
  EXPECT_EQ(status("ops"), 200);
  EXPECT_EQ(status("ops", R"(,"priority":6)"), 400);
  EXPECT_TRUE(server.wait_log("key=team-a method=POST")) << server.log();
  file("keys", "ops\nnobody max-requests=1\n");
  server.signal(SIGHUP);
  ASSERT_TRUE(server.wait_log("reloaded 2 API keys")) << server.log();
  EXPECT_EQ(status("team"), 401);
  file("keys", "ops\nteam models=absent\n");
  server.signal(SIGHUP);
  ASSERT_TRUE(server.wait_log("stay as they were")) << server.log();
  EXPECT_EQ(status("nobody"), 200);
}

TEST_F(ServeTest, ProbesHaveNoLineInTheLog) {
  Served server(with_small({}));
  ASSERT_NE(server.port, 0) << server.log();
  for (const char* path : {"/health", "/livez", "/readyz", "/healthz", "/ping", "/metrics"}) {
    Connection probe(server.port);
    probe.send("GET", path);
    probe.read_all();
    EXPECT_EQ(probe.status(), 200) << path;
  }
  get(server.port, "/v1/models");
  ASSERT_TRUE(server.wait_log("path=\"/v1/models\"")) << server.log();
  for (const char* path : {"health", "livez", "readyz", "ping", "metrics"})
    EXPECT_EQ(server.log().find(std::string("path=\"/") + path), std::string::npos) << server.log();
  const size_t line = server.log().find("access id=");
  const std::string text = server.log().substr(0, line);
  EXPECT_EQ(text.substr(text.rfind('\n') + 1).find("20"), 0u) << "a line begins with its time";
}

TEST_F(ServeTest, AHangupReadsKeysAgain) {
  const std::string keys = file("keys", "one\n");
  Served server(with_small({"--api-key", "always", "--api-key-file", keys}));
  ASSERT_NE(server.port, 0) << server.log();
  const auto status = [&](const std::string& key) {
    Connection connection(server.port);
    connection.send("GET", "/v1/models", "", "x-api-key: " + key + "\r\n");
    connection.read_all();
    return connection.status();
  };
  EXPECT_EQ(status("one"), 200);
  Connection stream(server.port);
  stream.send("POST", "/v1/completions",
              R"({"prompt":"The harbor","stream":true,"ignore_eos":true})", "x-api-key: one\r\n");
  EXPECT_TRUE(stream.read_until("data: {"));
  file("keys", "# new\ntwo\nthree\n");
  server.signal(SIGHUP);
  ASSERT_TRUE(server.wait_log("SIGHUP: reloaded 3 API keys")) << server.log();
  EXPECT_EQ(status("one"), 401);
  for (const char* key : {"two", "three", "always"}) EXPECT_EQ(status(key), 200) << key;
  EXPECT_TRUE(stream.read_until("data: [DONE]")) << "what runs is not disturbed";
  file("keys", "# none\n");
  server.signal(SIGHUP);
  ASSERT_TRUE(server.wait_log("contains no key; keys and certificate stay as they were"))
      << server.log();
  fs::remove(keys);
  server.signal(SIGHUP);
  ASSERT_TRUE(server.wait_log("keys: No such file")) << server.log();
  EXPECT_EQ(status("two"), 200);
  EXPECT_EQ(status("one"), 401);
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0);
}

TEST_F(ServeTest, AHangupReadsTheCertificateAgain) {
  make_certificate();
  Served server(with_small({"--tls-cert", path("cert.pem"), "--tls-key", path("key.pem")}));
  ASSERT_NE(server.port, 0) << server.log();
  fs::copy_file(path("cert.pem"), path("old.pem"));
  Connection old(server.port, path("old.pem"));
  ASSERT_TRUE(old.connected);
  make_certificate();
  server.signal(SIGHUP);
  ASSERT_TRUE(server.wait_log("SIGHUP: reloaded the certificate")) << server.log();
  EXPECT_TRUE(Connection(server.port, path("cert.pem")).connected);
  EXPECT_FALSE(Connection(server.port, path("old.pem")).connected);
  old.send("GET", "/health");
  old.read_all();
  EXPECT_EQ(old.status(), 200) << "connections keep what they began with";
  fs::copy_file(path("cert.pem"), path("good.pem"));
  make_certificate();
  fs::copy_file(path("good.pem"), path("cert.pem"), fs::copy_options::overwrite_existing);
  server.signal(SIGHUP);
  ASSERT_TRUE(server.wait_log("key.pem: ")) << server.log();
  EXPECT_TRUE(Connection(server.port, path("good.pem")).connected);
  file("cert.pem", "junk");
  server.signal(SIGHUP);
  ASSERT_TRUE(server.wait_log("cert.pem: ")) << server.log();
  EXPECT_TRUE(Connection(server.port, path("good.pem")).connected);
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0);
}

TEST_F(ServeTest, AHangupWithNothingToReadIsNoEnd) {
  Served server(with_small({}));
  ASSERT_NE(server.port, 0) << server.log();
  server.signal(SIGHUP);
  ASSERT_TRUE(server.wait_log("no keys and no certificate to reload")) << server.log();
  EXPECT_EQ(get(server.port, "/health")["status"], "ok");
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0);
}

TEST_F(ServeTest, AnswersThatTakeTooLongEndWithAnError) {
  // 262144 tokens take more than a second on any machine.
  Served server({"-c", "0", "-np", "1", "--drain-timeout", "0.2"});
  ASSERT_NE(server.port, 0) << server.log();
  Connection stream(server.port);
  begin_long(stream);
  server.signal(SIGTERM);
  stream.read_all();
  EXPECT_NE(stream.received.find("shutting_down"), std::string::npos);
  EXPECT_EQ(server.wait(), 0);
}

TEST_F(ServeTest, TheSecondSignalEndsAtOnce) {
  Served server({"-c", "0", "-np", "1", "--drain-timeout", "1000"});
  ASSERT_NE(server.port, 0) << server.log();
  Connection stream(server.port);
  begin_long(stream);
  server.signal(SIGTERM);
  ASSERT_TRUE(server.wait_log("shutting down"));
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 130);
  stream.read_all();
  EXPECT_EQ(stream.received.find("[DONE]"), std::string::npos);
}

TEST_F(ServeTest, SeveralModelsByName) {
  fs::create_directories(path("models/tiny"));
  fs::create_symlink(kMoe, path("models/tiny/moe.gguf"));
  const Outcome made = run_braid({"quantize", kDemo, path("models/demo-q4.gguf"), "Q4_K_M"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  std::ifstream whole(kDemo, std::ios::binary);
  std::string half(100'000, '\0');
  whole.read(half.data(), static_cast<std::streamsize>(half.size()));
  file("models/half.gguf", half);
  file("secret.gguf", half);
  const std::string presets =
      file("presets.json", R"({"short": {"model": "tiny/moe", "max_tokens": 2}})");
  Served server(with_small({"--models-dir", path("models"), "--presets", presets, "--alias", "demo",
                            "--alias", "gpt-4=demo-q4"}));
  ASSERT_NE(server.port, 0) << server.log();

  const Json list = get(server.port, "/v1/models");
  std::vector<std::string> names;
  for (const Json& model : list["data"]) names.push_back(model["id"]);
  EXPECT_EQ(names,
            (std::vector<std::string>{"demo", "demo-q4", "gpt-4", "half", "tiny/moe", "short"}));

  EXPECT_EQ(list["data"][0]["meta"]["size"], fs::file_size(kDemo)) << "the one inside the program";
  EXPECT_EQ(list["data"][0]["meta"]["n_params"], 30'733'616);
  EXPECT_EQ(list["data"][4]["meta"]["size"], fs::file_size(kMoe));

  const std::string demo = complete(server.port, "demo"), moe = complete(server.port, "tiny/moe");
  EXPECT_NE(demo, moe);
  EXPECT_EQ(get(server.port, "/v1/models/tiny%2Fmoe")["status"]["value"], "loaded");
  EXPECT_EQ(get(server.port, "/v1/models/demo")["status"]["value"], "unloaded");
  EXPECT_EQ(complete(server.port, "demo"), demo);
  const std::string q4 = complete(server.port, "gpt-4");
  EXPECT_EQ(complete(server.port, "demo-q4"), q4);
  EXPECT_EQ(complete(server.port, "tiny/moe"), moe);
  EXPECT_EQ(ask(server.port, "/v1/completions",
                {{"model", "short"},
                 {"prompt", "The"},
                 {"ignore_eos", true}})["usage"]["completion_tokens"],
            2);
  EXPECT_EQ(complete(server.port, "nobody"), moe);

  const Json broken =
      ask(server.port, "/v1/completions", {{"model", "half"}, {"prompt", "x"}}, 400);
  EXPECT_EQ(broken["error"]["code"], "model_load_failed");
  const std::string sentence = broken["error"]["message"];
  EXPECT_NE(sentence.find("half.gguf: "), std::string::npos) << sentence;
  EXPECT_EQ(sentence.find(path("models")), std::string::npos) << sentence;
  EXPECT_EQ(sentence.find('\n'), std::string::npos);
  EXPECT_EQ(get(server.port, "/v1/models/half")["status"]["value"], "failed");
  EXPECT_EQ(get(server.port, "/v1/models/tiny%2fmoe")["status"]["value"], "loaded")
      << "it cost nobody anything";
  const std::vector<std::string> kTricks = {"../secret", "secret.gguf", path("secret"),
                                            path("secret.gguf")};
  for (const std::string& trick : kTricks) {
    EXPECT_EQ(complete(server.port, trick), moe) << trick;
  }

  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      const std::string name = t == 0 ? "demo" : t == 1 ? "tiny/moe" : "demo-q4";
      for (int i = 0; i < 2; ++i)
        right += complete(server.port, name) == (t == 0 ? demo : t == 1 ? moe : q4);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 6);
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0);
}

TEST_F(ServeTest, TheCacheInFilesIsCounted) {
  const auto metric = [](uint16_t port, const std::string& name) {
    Connection connection(port);
    connection.send("GET", "/metrics");
    const std::string text = "\n" + connection.read_all();
    const size_t at = text.find("\n" + name + "{");
    EXPECT_NE(at, std::string::npos) << name;
    return at == std::string::npos ? -1.0 : std::stod(text.substr(text.find("} ", at) + 2));
  };
  std::string prompt;
  for (int i = 0; i < 120; ++i) prompt += "The harbor is quiet at " + std::to_string(i) + ". ";
  const Json body{{"prompt", prompt}, {"max_tokens", 4}, {"ignore_eos", true}};
  const std::vector<std::string> options = {"-c", "2048",   "-np", "2",           "-t",
                                            "1",  "--temp", "0",   "--cache-dir", path("cache")};
  std::string text;
  {
    Served server(options);
    ASSERT_NE(server.port, 0) << server.log();
    EXPECT_EQ(metric(server.port, "braid_disk_cache_files"), 0);
    text = ask(server.port, "/v1/completions", body)["choices"][0]["text"];
    // Files are written after the answer; pending ones are written before the end.
    server.signal(SIGTERM);
    EXPECT_EQ(server.wait(), 0);
  }
  uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(path("cache")))
    bytes += entry.is_regular_file() ? entry.file_size() : 0;
  ASSERT_GT(bytes, 100'000u);
  Served server(options);
  ASSERT_NE(server.port, 0) << server.log();
  EXPECT_GT(metric(server.port, "braid_disk_cache_files"), 0);
  EXPECT_EQ(metric(server.port, "braid_disk_cache_hits_total"), 0);
  const Json again = ask(server.port, "/v1/completions", body);
  EXPECT_EQ(again["choices"][0]["text"], text);
  EXPECT_GT(again["usage"]["prompt_tokens_details"]["cached_tokens"], 300);
  EXPECT_GT(metric(server.port, "braid_disk_cache_hits_total"), 0);
  EXPECT_GT(metric(server.port, "braid_disk_cache_read_bytes_total"), 100'000);
  EXPECT_EQ(metric(server.port, "braid_disk_cache_failed_reads_total"), 0);
  EXPECT_EQ(metric(server.port, "braid_disk_cache_write_errors_total"), 0);
}

// Conversations of many turns, interleaved: earlier turns are still cached at the next one.
TEST_F(ServeTest, ConversationsFindTheirPrefixes) {
  constexpr int kConversations = 8, kTurns = 12;
  static const char* const kWords[] = {"harbor", "engine", "river",  "signal", "window", "garden",
                                       "ledger", "paper",  "copper", "meadow", "winter", "lantern",
                                       "bridge", "summer", "market", "kernel"};
  const auto prose = [](uint32_t seed, int words) {
    std::string out;
    for (uint32_t state = seed * 2654435761u; words > 0; --words) {
      state = state * 1664525u + 1013904223u;
      out += std::string(out.empty() ? "" : " ") + kWords[state >> 28];
    }
    return out;
  };
  Json tools = Json::array();
  for (const char* name : {"read_file", "write_file", "list_files", "run_command", "search"}) {
    const Json text{{"type", "string"}, {"description", "a path or a text, " + prose(7, 12)}};
    tools.push_back(
        {{"type", "function"},
         {"function",
          {{"name", name},
           {"description", std::string(name) + " works on the open project: " + prose(3, 16)},
           {"parameters",
            {{"type", "object"}, {"properties", {{"path", text}, {"text", text}}}}}}}});
  }
  Served server({"-t", "1", "--think", "off", "--temp", "0"});
  ASSERT_NE(server.port, 0) << server.log();
  EXPECT_NE(server.log().find(" checkpoints of prefixes"), std::string::npos) << server.log();
  std::atomic<int64_t> prompt{0}, cached{0};
  std::vector<std::thread> threads;
  for (uint32_t c = 0; c < kConversations; ++c) {
    threads.emplace_back([&, c] {
      Json messages =
          Json::array({{{"role", "system"}, {"content", "You are an agent. " + prose(1, 300)}}});
      for (uint32_t turn = 0; turn < kTurns; ++turn) {
        messages.push_back({{"role", "user"}, {"content", prose(100 * c + turn + 10, 60) + "?"}});
        const Json answer = ask(server.port, "/v1/chat/completions",
                                {{"messages", messages},
                                 {"tools", tools},
                                 {"tool_choice", "none"},
                                 {"max_tokens", 24}});
        prompt += answer["usage"]["prompt_tokens"].get<int64_t>();
        cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"].get<int64_t>();
        messages.push_back(answer["choices"][0]["message"]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double share = 100.0 * static_cast<double>(cached) / static_cast<double>(prompt);
  std::printf("[report] %d conversations of %d turns: %.1f %% of %lld prompt tokens cached\n",
              kConversations, kTurns, share, static_cast<long long>(prompt));
  EXPECT_GE(share, 88);
}

// Chats over one system message, in sequence: each computes only its question, whatever its length.
TEST_F(ServeTest, ASystemMessageIsComputedOnce) {
  Served server({"-c", "10240", "-np", "1", "-t", "2", "--think", "off", "--temp", "0"});
  ASSERT_NE(server.port, 0) << server.log();
  const auto text = [](int words, int seed) {
    std::string out;
    for (int i = 0; i < words; ++i)
      out += std::string(i == 0 ? "" : " ") + (((i * 7 + seed) % 11) < 5 ? "harbor" : "quiet");
    return out;
  };
  const auto chat = [&](const std::string& salt, const std::string& system,
                        const std::string& question) {
    const Json usage = ask(server.port, "/v1/chat/completions",
                           {{"messages", Json::array({{{"role", "system"}, {"content", system}},
                                                      {{"role", "user"}, {"content", question}}})},
                            {"max_tokens", 2},
                            {"cache_salt", salt}})["usage"];
    return std::pair<int, int>(usage["prompt_tokens"],
                               usage["prompt_tokens_details"]["cached_tokens"]);
  };
  std::string table;
  for (const int words : {500, 1000, 2000, 4000, 8000}) {
    const std::string salt = std::to_string(words), system = text(words, words);
    const auto [first, none] = chat(salt, system, text(5, 1));
    EXPECT_EQ(none, 0);
    const int head = first - 5;  // without the message marks, which the question has too
    table += "[report] system message of about " + std::to_string(words) + " tokens:";
    for (const int question : {5, 20, 100, 400}) {
      const auto [prompt, cached] = chat(salt, system, text(question, question + 2));
      // Marks around the question, those that begin the answer, and a block.
      EXPECT_LE(prompt - cached, prompt - head + 16 + 32) << words << " " << question;
      table += "  " + std::to_string(cached) + " of " + std::to_string(prompt);
    }
    table += " cached\n";
  }
  std::fputs(table.c_str(), stdout);
}

TEST_F(ServeTest, APromptIsScoredAsItWasWritten) {
  Served server({"-c", "1024", "-np", "2", "-t", "1", "--temp", "0", "--act", "f32"});
  ASSERT_NE(server.port, 0) << server.log();
  // Generated tokens, sent back as a prompt, keep their log probabilities.
  const Json written = ask(server.port, "/v1/completions",
                           {{"prompt", "The harbor"},
                            {"max_tokens", 24},
                            {"ignore_eos", true},
                            {"logprobs", 3}})["choices"][0];
  const std::string text = written["text"];
  const Json read = ask(server.port, "/v1/completions",
                        {{"prompt", "The harbor" + text},
                         {"max_tokens", 0},
                         {"echo", true},
                         {"logprobs", 3}})["choices"][0];
  EXPECT_EQ(read["text"], "The harbor" + text);
  const Json &as_written = written["logprobs"], &as_read = read["logprobs"];
  const size_t count = as_written["tokens"].size();
  ASSERT_GE(as_read["tokens"].size(), count);
  const size_t prompt = as_read["tokens"].size() - count;
  for (size_t i = 0; i < count; ++i) {
    ASSERT_EQ(as_read["tokens"][prompt + i], as_written["tokens"][i])
        << "the text is cut into other tokens";
    EXPECT_NEAR(as_read["token_logprobs"][prompt + i].get<double>(),
                as_written["token_logprobs"][i].get<double>(), 1e-3);
    EXPECT_EQ(as_read["top_logprobs"][prompt + i].size(), 3u);
  }
  EXPECT_EQ(read["finish_reason"], "length");
}

// A model repeats one token, in its thought and after it: the thought is closed, then the answer
// ends. Any limit, however small, leaves a visible part.
TEST_F(ServeTest, AModelThatGoesRoundIsStopped) {
  Served server({"--ctx-size", "640"});
  ASSERT_NE(server.port, 0) << server.log();
  const Json round{{"messages", Json::array({{{"role", "user"}, {"content", "hi"}}})},
                   {"enable_thinking", true},
                   {"logit_bias", Json::array({Json::array({"x", 100})})},
                   {"repetition_detection", {{"max_pattern_size", 4}, {"min_count", 8}}}};
  const Json answer = ask(server.port, "/v1/chat/completions", round);
  const Json& choice = answer["choices"][0];
  EXPECT_EQ(choice["message"]["reasoning_content"], "xxxxxxxx") << answer;
  EXPECT_EQ(choice["message"]["content"], "xxxxxxxx");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], "repetition_detected");
  EXPECT_EQ(answer["braid"]["thinking"]["closed_by"], "loop");
  for (const int most : {4, 5, 8, 16, 64}) {
    Json limited = round;
    limited.erase("repetition_detection");
    limited["max_tokens"] = most;
    const Json cut = ask(server.port, "/v1/chat/completions", limited);
    EXPECT_NE(cut["choices"][0]["message"]["content"], "") << most;
    EXPECT_EQ(cut["choices"][0]["finish_reason"], "length") << most;
    EXPECT_EQ(cut["usage"]["completion_tokens"], most);
  }
  for (const char* wrong : {"low", "low=", "low=x", "none=5", "lower=5", "low=1=2", "=5"}) {
    const Outcome outcome = run_braid({"serve", "--port", "0", "--effort", wrong});
    EXPECT_EQ(outcome.exit_code, 2) << wrong;
    EXPECT_NE(outcome.err.find("--effort takes"), std::string::npos) << outcome.err;
  }
}

TEST_F(ServeTest, ModelsByNameOnTheCommandLine) {
  fs::create_directories(path("models"));
  fs::create_symlink(kMoe, path("models/moe.gguf"));
  const Outcome list = run_braid({"serve", "--models-dir", path("models"), "--list-models"});
  EXPECT_EQ(list.exit_code, 0) << list.err;
  EXPECT_NE(list.out.find("\nmoe\t"), std::string::npos) << list.out;
  const Outcome wrong = run_braid({"serve", "--models-dir", path("models"), "-m", "mo"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_NE(wrong.err.find("there is \"moe\""), std::string::npos) << wrong.err;
  EXPECT_EQ(run_braid({"serve", "--models-dir", path("absent")}).exit_code, 2);
  EXPECT_EQ(run_braid({"serve", "--alias", "a=b"}).exit_code, 2);
  Served server(with_small({"--models-dir", path("models"), "-m", "moe"}));
  ASSERT_NE(server.port, 0) << server.log();
  EXPECT_NE(server.log().find("moe on http://"), std::string::npos) << server.log();
  EXPECT_EQ(get(server.port, "/v1/models")["data"].size(), 1u);
}

}  // namespace
