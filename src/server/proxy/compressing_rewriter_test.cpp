// compressing_rewriter_test.cpp -- bodies that a small model shortens, and those that pass.
#include "server/proxy/compressing_rewriter.h"

#include <gtest/gtest.h>

#include <future>
#include <nlohmann/json.hpp>

#include "server/endpoints/compression.h"

namespace braid::server {
namespace {

using Json = nlohmann::ordered_json;

std::shared_ptr<BodyRewriter> rewriter() {
  auto file = GgufFile::open(BRAID_SOURCE_DIR "/models/braid-demo-q8_0.gguf");
  EXPECT_TRUE(file.ok());
  CompressionOptions options;
  options.device = "cpu";
  options.threads = 2;
  options.context_tokens = 4096;
  options.compressor.threshold_tokens = 1500;
  options.compressor.keep = *KeepCurve::parse("0.15");
  auto made = make_compressing_rewriter(std::move(*file), options);
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
  return *made;
}

std::string chat(int words) {
  std::string text;
  for (int i = 0; i < words; ++i)
    text += (i % 9 == 8 ? "rain.\n" : "the old street ") + std::to_string(i % 13) + " ";
  return Json{{"model", "m"},
              {"messages",
               {{{"role", "system"}, {"content", "Be brief."}},
                {{"role", "user"},
                 {"content", text + "\n\nThe code word is heron.\n\n" + text +
                                 "\n\nWhat is the code word?"}}}},
              {"stream", true}}
      .dump();
}

RewrittenBody rewritten(BodyRewriter& rewriter, std::string body, Headers headers = {},
                        std::string path = "/v1/chat/completions") {
  std::promise<RewrittenBody> done;
  rewriter.rewrite({std::move(path), std::move(headers), "", std::move(body)},
                   [&](RewrittenBody out) { done.set_value(std::move(out)); });
  return done.get_future().get();
}

TEST(CompressingRewriter, ShortensWhatIsLongAndPassesTheRest) {
  const auto r = rewriter();
  const std::string brief = chat(5), longer = chat(500);
  const RewrittenBody same = rewritten(*r, brief);
  EXPECT_FALSE(same.changed);
  EXPECT_EQ(same.body, brief);
  const RewrittenBody shorter = rewritten(*r, longer);
  ASSERT_TRUE(shorter.changed);
  EXPECT_LT(shorter.body.size(), longer.size() / 2);
  const Json json = Json::parse(shorter.body);
  const auto text = json["messages"][1]["content"].get<std::string>();
  EXPECT_TRUE(text.ends_with("What is the code word?"));
  EXPECT_NE(text.find("The code word is heron."), std::string::npos);
  EXPECT_EQ(json["messages"][0]["content"], "Be brief.");
  ASSERT_EQ(shorter.answer_headers.size(), 1u);
  EXPECT_TRUE(shorter.answer_headers[0].second.starts_with("read="));
  // The same again is found; another client's key finds nothing, and both are the same text.
  const RewrittenBody again = rewritten(*r, longer);
  EXPECT_EQ(again.body, shorter.body);
  EXPECT_TRUE(again.answer_headers[0].second.ends_with("reused=yes"));
  const RewrittenBody other = rewritten(*r, longer, {{"Authorization", "Bearer other"}});
  EXPECT_TRUE(other.answer_headers[0].second.ends_with("reused=no"));
}

TEST(CompressingRewriter, ObeysTheHeaderAndRefusesNonsense) {
  const auto r = rewriter();
  const std::string longer = chat(500);
  const std::string header(kCompressionHeader);
  const RewrittenBody off = rewritten(*r, longer, {{header, "off"}});
  EXPECT_EQ(off.body, longer);
  EXPECT_TRUE(off.answer_headers.empty());
  const RewrittenBody bad = rewritten(*r, longer, {{header, "2"}});
  ASSERT_TRUE(bad.refusal);
  EXPECT_EQ(bad.refusal->status, 400);
  for (const char* body : {"", "{", "not json", R"({"messages":[{"role":"user"}]})"})
    EXPECT_EQ(rewritten(*r, body).body, body);
}

TEST(CompressingRewriter, ManyAtOnceWithSomeThatLeaveAndAnEndInBetween) {
  std::atomic<int> called{0};
  {
    const auto r = rewriter();
    std::vector<BodyRewriter::Ticket> tickets;
    for (int i = 0; i < 12; ++i)
      tickets.push_back(
          r->rewrite({"/v1/chat/completions", {}, std::to_string(i % 3), chat(300 + 20 * i)},
                     [&called](const RewrittenBody&) { ++called; }));
    for (int i = 0; i < 12; i += 3) r->cancel(tickets[static_cast<size_t>(i)]);
    r->cancel(999);
    EXPECT_TRUE(rewritten(*r, chat(5)).refusal == std::nullopt);
  }
  EXPECT_LE(called, 12);
}

}  // namespace
}  // namespace braid::server
