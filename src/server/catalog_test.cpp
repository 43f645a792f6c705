// catalog_test.cpp -- names come only from folders, caches of other programs, presets, aliases.
#include "server/catalog.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace braid::server {
namespace {

namespace fs = std::filesystem;

class CatalogTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / ("braid-catalog-" + std::to_string(::getpid()));
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string model(const std::string& path, const std::string& magic = "GGUF") {
    return text(path, magic + std::string(60, 'x'));
  }
  std::string text(const std::string& path, const std::string& content) {
    const fs::path whole = root_ / path;
    fs::create_directories(whole.parent_path());
    std::ofstream(whole, std::ios::binary) << content;
    return whole.string();
  }
  std::string at(const std::string& path) const { return (root_ / path).string(); }

  static std::vector<std::string> names(const Catalog& catalog) {
    std::vector<std::string> out;
    for (const CatalogEntry& entry : catalog.entries()) out.push_back(entry.names.front());
    return out;
  }
  using Names = std::vector<std::string>;

  fs::path root_;
};

TEST_F(CatalogTest, AFolderGivesItsModelsByRelativePath) {
  model("m/b.gguf");
  model("m/qwen/a-Q4_K_M.gguf");
  model("m/mmproj-a.gguf");
  model("m/big-00001-of-00002.gguf");
  model("m/big-00002-of-00002.gguf");
  model("m/other.bin");
  model("m/false.gguf", "NOPE");
  text("m/empty.gguf", "");
  text("m/bad\nname.gguf", "GGUF" + std::string(60, 'x'));
  model("m/1/2/3/4/5/6/7/8/deep.gguf");
  model("outside.gguf");
  fs::create_symlink(at("outside.gguf"), root_ / "m/link.gguf");  // links may leave the folder
  fs::create_directory_symlink(root_, root_ / "m/loop");
  Catalog catalog;
  ASSERT_TRUE(catalog.add_folder(at("m")).ok());
  EXPECT_EQ(names(catalog), (Names{"b", "big-00001-of-00002", "link", "qwen/a-Q4_K_M"}));
  EXPECT_EQ(catalog.files()[0].bytes, 64);
  EXPECT_EQ(catalog.files()[0].shown, "b.gguf");
  EXPECT_FALSE(catalog.add_folder(at("absent")).ok());
  model("n/b.gguf");
  ASSERT_TRUE(catalog.add_folder(at("n")).ok());
  EXPECT_EQ(catalog.files()[catalog.entries()[*catalog.find("b")].file].path, at("m/b.gguf"));
}

TEST_F(CatalogTest, NamesThatAreNotListedReachNothing) {
  model("m/a.gguf");
  model("secret.gguf");
  Catalog catalog;
  ASSERT_TRUE(catalog.add_folder(at("m")).ok());
  const std::vector<std::string> kTricks = {"../secret",
                                            "m/../secret",
                                            "../secret.gguf",
                                            at("secret"),
                                            at("m/a.gguf"),
                                            "a.gguf",
                                            "./a",
                                            "a/",
                                            "A",
                                            std::string("a\0b", 3),
                                            "%2e%2e/secret",
                                            ""};
  for (const std::string& name : kTricks) {
    EXPECT_FALSE(catalog.find(name)) << name;
  }
  for (const char* name : {"..", "a/../b", "/a", "a b", "a\tb", "", "a\\b"}) {
    EXPECT_FALSE(is_model_name(name)) << name;
    EXPECT_FALSE(catalog.add(name, {at("secret.gguf"), "s", "", 1})) << name;
  }
  EXPECT_FALSE(is_model_name(std::string(257, 'a')));
}

TEST_F(CatalogTest, HuggingFaceSnapshotsAreListedByRepository) {
  const std::string repo = "hub/models--Qwen--Qwen3.6-27B-GGUF/";
  model(repo + "blobs/1111");
  text(repo + "refs/main", "abc123\n");
  fs::create_directories(root_ / (repo + "snapshots/abc123/sub"));
  fs::create_symlink("../../blobs/1111", root_ / (repo + "snapshots/abc123/x-Q4_K_M.gguf"));
  fs::create_symlink("../../../blobs/1111", root_ / (repo + "snapshots/abc123/sub/y.gguf"));
  model(repo + "snapshots/000old/x-Q4_K_M.gguf");
  model(repo + "snapshots/000old/z.gguf");
  text("hub/models--no--refs/snapshots/q/readme.md", "text");
  text("hub/datasets--a--b/snapshots/q/x.gguf", "GGUF" + std::string(60, 'x'));
  Catalog catalog;
  catalog.add_hugging_face(at("hub"));
  EXPECT_EQ(names(catalog), (Names{"Qwen/Qwen3.6-27B-GGUF/sub/y", "Qwen/Qwen3.6-27B-GGUF/x-Q4_K_M",
                                   "Qwen/Qwen3.6-27B-GGUF/z"}));
  EXPECT_NE(catalog.files()[1].path.find("abc123"), std::string::npos);
  Catalog empty;
  empty.add_hugging_face(at("absent"));
  text(repo + "refs/main", "../../../..");
  empty.add_hugging_face(at("hub"));
  EXPECT_EQ(empty.entries().size(), 3u);
}

TEST_F(CatalogTest, OllamaManifestsLeadToTheirBlobsAndNowhereElse) {
  const std::string hex(64, 'a'), other(64, 'b');
  model("o/blobs/sha256-" + hex);
  model("secret.gguf");
  const auto manifest = [](const std::string& digest) {
    return R"({"schemaVersion": 2, "layers": [{"mediaType": "application/vnd.ollama.image.license",
      "digest": "sha256:00"}, {"mediaType": "application/vnd.ollama.image.model", "digest": ")" +
           digest + R"("}]})";
  };
  const std::string base = "o/manifests/registry.ollama.ai/";
  text(base + "library/qwen3/8b", manifest("sha256:" + hex));
  text(base + "someone/mine/latest", manifest("sha256:" + hex));
  text(base + "library/absent/x", manifest("sha256:" + other));
  text(base + "library/trick/x", manifest("sha256:../../secret.gguf" + std::string(47, 'a')));
  text(base + "library/trick/y", manifest("../../../secret.gguf"));
  text(base + "library/broken/x", "{\"layers\": [3, {\"mediaType\": 1}, null");
  text(base + "library/types/x", "{\"layers\": [3, {\"mediaType\": 1}, null]}");
  text(base + "library/types/y", "[]");
  text(base + "library/deep/a/b", manifest("sha256:" + hex));
  Catalog catalog;
  catalog.add_ollama(at("o"));
  EXPECT_EQ(names(catalog), (Names{"qwen3:8b", "someone/mine:latest"}));
  EXPECT_EQ(catalog.files().size(), 1u);  // one blob, two names
  EXPECT_EQ(catalog.files()[0].shown, "qwen3:8b");
}

TEST_F(CatalogTest, LmStudioIsPublisherRepositoryFile) {
  model("s/unsloth/Qwen3.6-27B-GGUF/Qwen3.6-27B-Q4_K_M.gguf");
  Catalog catalog;
  catalog.add_lm_studio(at("s"));
  catalog.add_lm_studio(at("absent"));
  EXPECT_EQ(names(catalog), Names{"unsloth/Qwen3.6-27B-GGUF/Qwen3.6-27B-Q4_K_M"});
}

TEST_F(CatalogTest, PresetsNameAModelAndWhatItStartsWith) {
  model("m/a.gguf");
  model("presets/own.gguf");
  Catalog catalog;
  ASSERT_TRUE(catalog.add_folder(at("m")).ok());
  const std::string json = R"({
    "coder": {"model": "a", "temperature": 0.2, "top_k": 20, "max_tokens": 100, "enable_thinking": false,
              "system_prompt": "You write code.", "chat_template_kwargs": {"style": "x"},
              "aliases": ["claude-sonnet-4-5"]},
    "mine": {"model": "own.gguf", "seed": 7}})";
  const Status added = catalog.add_presets(json, at("presets"), "presets.json");
  ASSERT_TRUE(added.ok()) << added.error().message;
  EXPECT_EQ(names(catalog), (Names{"a", "coder", "mine"}));
  const CatalogEntry& coder = catalog.entries()[*catalog.find("claude-sonnet-4-5")];
  EXPECT_EQ(coder.names.front(), "coder");
  EXPECT_EQ(coder.file, catalog.entries()[0].file);
  ASSERT_TRUE(catalog.add_alias("default=mine").ok());
  EXPECT_EQ(catalog.find("default"), catalog.find("mine"));

  Generation generation;
  generation.sampling.top_k = 5;
  generation.template_variables["style"] = "own";
  generation.messages.push_back({.role = Message::Role::user, .text = "hi"});
  apply_preset(coder.preset, generation);
  EXPECT_EQ(generation.sampling.temperature, 0.2);
  EXPECT_EQ(generation.sampling.top_k, 5);  // the request takes precedence
  EXPECT_EQ(generation.max_tokens, 100);
  EXPECT_EQ(generation.reasoning.think, false);
  EXPECT_EQ(generation.template_variables["style"], "own");
  ASSERT_EQ(generation.messages.size(), 2u);
  EXPECT_EQ(generation.messages[0].text, "You write code.");
  apply_preset(coder.preset, generation);
  EXPECT_EQ(generation.messages.size(), 2u);  // a conversation's own system message stays
}

TEST_F(CatalogTest, WrongPresetsAndAliasesAreNamed) {
  model("m/a.gguf");
  Catalog catalog;
  ASSERT_TRUE(catalog.add_folder(at("m")).ok());
  const std::pair<const char*, const char*> kCases[] = {
      {"[]", "not a JSON object"},
      {"{", "not valid JSON"},
      {R"({"x": 3})", "must be an object"},
      {R"({"../x": {"model": "a"}})", "cannot be a model's name"},
      {R"({"x": {}})", "model must be"},
      {R"({"x": {"model": "b"}})", "neither a listed model"},
      {R"({"x": {"model": "a", "temperature": "hot"}})", "temperature must be a number"},
      {R"({"x": {"model": "a", "temperature": 50}})", "temperature must be a number"},
      {R"({"x": {"model": "a", "repetition_penalty": 50}})", "repetition_penalty must be a number"},
      {R"({"x": {"model": "a", "top_k": 1.5}})", "top_k must be a whole number"},
      {R"({"x": {"model": "a", "temprature": 1}})", "there is no field \"temprature\""},
      {R"({"x": {"model": "a", "system_prompt": 1}})", "system_prompt must be a string"},
      {R"({"x": {"model": "a", "enable_thinking": 1}})", "true or false"},
      {R"({"x": {"model": "a", "chat_template_kwargs": []}})", "must be an object"},
      {R"({"a": {"model": "a"}})", "taken"},
  };
  for (const auto& [json, sentence] : kCases) {
    const Status status = Catalog(catalog).add_presets(json, root_.string(), "p.json");
    ASSERT_FALSE(status.ok()) << json;
    EXPECT_NE(status.error().message.find(sentence), std::string::npos) << status.error().message;
    EXPECT_EQ(status.error().message.rfind("p.json: ", 0), 0u);
  }
  EXPECT_NE(catalog.add_alias("x=aa").error().message.find("there is \"a\""), std::string::npos);
  EXPECT_FALSE(catalog.add_alias("a=a").ok());
  EXPECT_FALSE(catalog.add_alias("=a").ok());
}

}  // namespace
}  // namespace braid::server
