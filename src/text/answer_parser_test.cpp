// answer_parser_test.cpp -- recorded outputs of models, each cut in all ways, and damaged ones.
#include "text/answer_parser.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include "text/detokenizer.h"
#include "text/unicode.h"

namespace braid {
namespace {

using Json = nlohmann::ordered_json;

struct Call {
  std::string name, arguments;
  bool complete = false;
  bool operator==(const Call&) const = default;
};

struct Parts {
  std::string reasoning, content;
  std::vector<Call> calls;
  bool operator==(const Parts&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Parts& parts) {
  out << "\n reasoning " << Json(parts.reasoning).dump() << "\n content "
      << Json(parts.content).dump();
  for (const Call& call : parts.calls) {
    out << "\n call " << call.name << " " << call.arguments << (call.complete ? "" : " (open)");
  }
  return out;
}

Parts joined(const AnswerEvents& events) {
  Parts parts;
  for (const AnswerEvent& event : events) {
    switch (event.kind) {
      case AnswerEvent::Kind::reasoning:
        parts.reasoning += event.text;
        break;
      case AnswerEvent::Kind::content:
        parts.content += event.text;
        break;
      case AnswerEvent::Kind::call:
        parts.calls.push_back({event.text, "", false});
        break;
      case AnswerEvent::Kind::arguments:
        parts.calls.at(event.call).arguments += event.text;
        break;
      case AnswerEvent::Kind::call_end:
        parts.calls.at(event.call).complete = true;
        break;
    }
  }
  return parts;
}

struct Case {
  std::string output;
  AnswerFormat format;
  bool cut = false;
};

Parts run(const Case& c, const std::vector<size_t>& cuts) {
  AnswerParser parser(c.format);
  Utf8Stream joiner;
  AnswerEvents events;
  size_t at = 0;
  for (const size_t cut : cuts) {
    parser.push(joiner.push(std::string_view(c.output).substr(at, cut - at)), events);
    at = cut;
  }
  parser.push(joiner.push(std::string_view(c.output).substr(at)), events);
  parser.push(joiner.flush(), events);
  parser.finish(c.cut, events);
  return joined(events);
}

std::vector<size_t> every(size_t bytes, const std::string& text) {
  std::vector<size_t> cuts;
  for (size_t at = bytes; at < text.size(); at += bytes) cuts.push_back(at);
  return cuts;
}

void expect_valid_arguments(const Parts& parts) {
  for (const Call& call : parts.calls) {
    if (!call.complete) continue;
    const Json parsed = Json::parse(call.arguments, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(parsed.is_object()) << call.arguments;
  }
}

Case case_of(const Json& golden) {
  Case c;
  c.output = golden["output"].get<std::string>();
  c.format.starts_in_thought = golden["starts_in_reasoning"].get<bool>();
  c.format.dialect.calls =
      golden["dialect"] == "argkv" ? Dialect::Calls::argkv : Dialect::Calls::xml;
  c.format.tools = std::make_shared<OfferedTools>(golden["tools"]);
  c.cut = golden["end"] == "length";
  return c;
}

Parts parts_of(const Json& expected) {
  Parts parts{expected["reasoning"].get<std::string>(), expected["content"].get<std::string>(), {}};
  for (const Json& call : expected["tool_calls"]) {
    parts.calls.push_back({call["name"].get<std::string>(), call["arguments"].get<std::string>(),
                           call["complete"].get<bool>()});
  }
  return parts;
}

TEST(AnswerParser, EveryRecordedCaseComesOutAsRecordedHoweverItIsCut) {
  int ran = 0;
  std::mt19937 random(7);
  for (const auto& file :
       std::filesystem::directory_iterator(BRAID_SOURCE_DIR "/tests/goldens/parse")) {
    const Json golden = Json::parse(std::ifstream(file.path()));
    SCOPED_TRACE(file.path().filename().string());
    const Case c = case_of(golden);
    const Parts want = parts_of(golden["expected"]);
    EXPECT_EQ(run(c, {}), want);
    for (const size_t bytes : {1, 2, 3, 4, 5, 6, 7, 8, 13, 21})
      ASSERT_EQ(run(c, every(bytes, c.output)), want);
    for (int round = 0; round < 40; ++round) {
      std::vector<size_t> cuts;
      for (size_t at = random() % 30; at < c.output.size(); at += 1 + random() % 30)
        cuts.push_back(at);
      ASSERT_EQ(run(c, cuts), want);
    }
    expect_valid_arguments(want);
    ++ran;
  }
  std::printf("[          ] %d recorded outputs\n", ran);
  EXPECT_EQ(ran, 88);
}

std::shared_ptr<const OfferedTools> tools(const char* properties) {
  return std::make_shared<OfferedTools>(Json::parse(
      std::string(
          R"([{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":)") +
      properties + "}}}]"));
}

std::string random_output(std::mt19937& random) {
  static const std::vector<std::string> kPieces = {"<think>",
                                                   "</think>",
                                                   "<tool_call>",
                                                   "</tool_call>",
                                                   "<function=f>",
                                                   "<function=x>",
                                                   "</function>",
                                                   "<parameter=i>",
                                                   "<parameter=s>",
                                                   "<parameter=o>",
                                                   "<parameter=zz>",
                                                   "</parameter>",
                                                   "\n",
                                                   "\n",
                                                   "\n",
                                                   " ",
                                                   "a",
                                                   "7",
                                                   "{",
                                                   "}",
                                                   "[",
                                                   "]",
                                                   "{\"name\": \"f\"}",
                                                   "\"",
                                                   "\\",
                                                   "<",
                                                   "</",
                                                   "<function=",
                                                   "<parameter=",
                                                   "\u00e9",
                                                   "\r\n",
                                                   "<arg_key>",
                                                   "</arg_key>",
                                                   "<arg_value>",
                                                   "</arg_value>",
                                                   "f",
                                                   "{\"a\": 1}",
                                                   "\xf0\x9f",
                                                   "\xff",
                                                   "'",
                                                   ",",
                                                   ":",
                                                   "True",
                                                   "null",
                                                   "```",
                                                   "\n```\n",
                                                   "`",
                                                   "<function name=\"f\">",
                                                   "<parameter name=s>",
                                                   "<tool_call>\n<function=f>\n<parameter=s>\n"};
  std::string out;
  for (size_t n = 1 + random() % 24; n > 0; --n) out += kPieces[random() % kPieces.size()];
  return out;
}

TEST(AnswerParser, DamagedStreamsNeverCrashAndNeverDependOnTheCut) {
  const auto offered =
      tools(R"({"i":{"type":"integer"},"s":{"type":"string"},"o":{"type":["object","array"]}})");
  std::mt19937 random(11);
  // BRAID_TEST_ROUNDS=1000000 is the long manual run.
  const char* wanted = std::getenv("BRAID_TEST_ROUNDS");
  const int rounds = wanted != nullptr ? std::atoi(wanted) : 15'000;
  for (int round = 0; round < rounds; ++round) {
    Case c{random_output(random), {}, random() % 2 == 0};
    c.format.tools = offered;
    c.format.starts_in_thought = random() % 3 == 0;
    c.format.dialect.calls = random() % 2 == 0 ? Dialect::Calls::xml : Dialect::Calls::argkv;
    if (random() % 8 == 0) c.format.max_value_bytes = 8;
    c.format.may_think = random() % 2 == 0;
    if (random() % 4 == 0) c.format.held = {"f"};
    const Parts want = run(c, {});
    ASSERT_EQ(run(c, every(1, c.output)), want)
        << Json(repaired_utf8(c.output, Utf8Repair::maximal_subpart));
    std::vector<size_t> cuts;
    for (size_t at = 1 + random() % 9; at < c.output.size(); at += 1 + random() % 9)
      cuts.push_back(at);
    ASSERT_EQ(run(c, cuts), want) << Json(repaired_utf8(c.output, Utf8Repair::maximal_subpart));
    expect_valid_arguments(want);
    ASSERT_FALSE(HasFatalFailure());
  }
}

TEST(AnswerParser, DamagedRecordingsStillGiveValidArguments) {
  std::mt19937 random(13);
  for (const auto& file :
       std::filesystem::directory_iterator(BRAID_SOURCE_DIR "/tests/goldens/parse")) {
    const Case original = case_of(Json::parse(std::ifstream(file.path())));
    for (int round = 0; round < 40; ++round) {
      Case c = original;
      for (size_t edits = 1 + random() % 3; edits > 0 && !c.output.empty(); --edits) {
        const size_t at = random() % c.output.size();
        switch (random() % 3) {
          case 0:
            c.output.erase(at, 1 + random() % 12);
            break;
          case 1:
            c.output.insert(at, 1, "<>{}\"\n/="[random() % 8]);
            break;
          default:
            c.output.insert(at, c.output.substr(random() % c.output.size(), random() % 20));
        }
      }
      const Parts want = run(c, {});
      ASSERT_EQ(run(c, every(1, c.output)), want) << c.output;
      expect_valid_arguments(want);
      ASSERT_FALSE(HasFatalFailure()) << c.output;
    }
  }
}

TEST(AnswerParser, WithoutToolsNoTextIsLost) {
  std::mt19937 random(17);
  const auto solid = [](const std::string& text) {  // blanks at the edges of parts are layout
    std::string out;
    for (const char c : text) {
      if (std::string_view(" \t\r\n").find(c) == std::string_view::npos) out += c;
    }
    return out;
  };
  for (int round = 0; round < 2000; ++round) {
    Case c{repaired_utf8(random_output(random), Utf8Repair::maximal_subpart), {}, false};
    const Parts parts = run(c, {});
    std::string want = c.output, got = parts.reasoning + parts.content;
    for (const char* marker : {"<think>", "</think>"}) {  // may be markers or text
      for (std::string* text : {&want, &got}) {
        for (size_t at; (at = text->find(marker)) != std::string::npos;)
          text->erase(at, std::string(marker).size());
      }
    }
    if (parts.reasoning.empty()) {
      ASSERT_EQ(solid(got), solid(want)) << c.output;
    }
    ASSERT_TRUE(parts.calls.empty());
  }
}

TEST(AnswerParser, TextBehindACallThatNeverEndsIsGivenBack) {
  const auto offered = tools(R"({"s":{"type":"string"}})");
  const struct {
    const char *output, *content;
    size_t calls;
  } kCases[] = {
      {"Write\n<function=f>\nand then close it. Here is more to say.",
       "Write\nand then close it. Here is more to say.", 1},
      {"<tool_call>\n<function=f>\nnothing but text", "nothing but text", 1},
      {"<tool_call>\n<function=f>\n{\"s\": \"Os", "{\"s\": \"Os", 1},
      {"<tool_call>\n<function=f>\ntext <b>bold</b>  and \n\n more",
       "text <b>bold</b>  and \n\n more", 1},
      // A continued call drops it.
      {"<tool_call>\n<function=f>\nhm\n<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>",
       "", 1},
  };
  for (const auto& [output, content, calls] : kCases) {
    Case c{output, {}, false};
    c.format.tools = offered;
    const Parts parts = run(c, {});
    EXPECT_EQ(run(c, every(1, c.output)), parts) << output;
    EXPECT_EQ(parts.content, content) << output;
    EXPECT_EQ(parts.calls.size(), calls) << output;
    expect_valid_arguments(parts);
    // In a cut answer prose is emitted; the beginning of an argument is not prose.
    c.cut = true;
    EXPECT_EQ(run(c, every(1, c.output)), run(c, {})) << output;
  }
  Case cut{"<tool_call>\n<function=f>\nsome text <parameter=s", {}, true};
  cut.format.tools = offered;
  EXPECT_EQ(run(cut, {}).content, "some text");
}

Parts parts_of_output(const std::string& output, const std::function<void(Case&)>& edit = {}) {
  Case c{output, {}, false};
  c.format.tools = tools(R"({"s":{"type":"string"},"n":{"type":"integer"},"o":{"type":"object"}})");
  if (edit) edit(c);
  const Parts parts = run(c, {});
  std::mt19937 random(5);
  EXPECT_EQ(run(c, every(1, c.output)), parts) << output;
  for (int round = 0; round < 10; ++round) {
    std::vector<size_t> cuts;
    for (size_t at = 1 + random() % 9; at < c.output.size(); at += 1 + random() % 9)
      cuts.push_back(at);
    EXPECT_EQ(run(c, cuts), parts) << output;
  }
  expect_valid_arguments(parts);
  return parts;
}
std::string shown(const Parts& parts) {
  std::string out = parts.content;
  for (const Call& call : parts.calls) out += "[" + call.name + call.arguments + "]";
  return out;
}
const std::string kCall =
    "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>";

TEST(AnswerParser, CallsThatAreShownInCodeAreText) {
  for (const std::string& text : std::vector<std::string>{
           "Write it so:\n```xml\n" + kCall + "\n```\nThat is all.", "~~~\n" + kCall + "\n~~~\nSo.",
           "1. So:\n   ```\n   " + kCall + "\n   ```", "> ```\n> " + kCall + "\n> ```\n\nSo.",
           "````md\n```xml\n" + kCall + "\n```\n````\nSo.", "- ```xml\n" + kCall + "\n```\nSo.",
           "```\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n```",
           "```\nA </think> tag:\n</think>\n```\nSo.",
           std::string("```\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n```"),
           std::string("A call opens with `<tool_call>` and ends with `</tool_call>`, as it says."),
           std::string("Write `<tool_call><function=f></function></tool_call>` in one line."),
           std::string("Or ``<tool_call>{\"name\": \"f\"}</tool_call>`` so."),
           std::string("```<tool_call>\n<function=f>```, or so."),
           "Two:\n```\n" + kCall + "\n" + kCall + "\n```"}) {
    EXPECT_EQ(shown(parts_of_output(text)), text);
  }
  EXPECT_EQ(shown(parts_of_output("As `f`:\n```\nls\n```\n\n" + kCall)),
            "As `f`:\n```\nls\n```[f{\"s\": \"x\"}]");
  EXPECT_EQ(shown(parts_of_output("```\n" + kCall + "\n```\nNow:\n" + kCall)),
            "```\n" + kCall + "\n```\nNow:[f{\"s\": \"x\"}]");
  EXPECT_EQ(shown(parts_of_output("```\nls\n```" + kCall)), "```\nls\n```[f{\"s\": \"x\"}]");
  // Unclosed backticks end with the line.
  EXPECT_EQ(shown(parts_of_output("I use ` here.\n" + kCall)), "I use ` here.[f{\"s\": \"x\"}]");
  EXPECT_EQ(shown(parts_of_output("I use ` here. " + kCall)), "I use ` here.[f{\"s\": \"x\"}]");
}

TEST(AnswerParser, ACallBehindAFenceThatIsLeftOpenIsOne) {
  EXPECT_EQ(shown(parts_of_output("```bash\nls\n" + kCall)), "```bash\nls[f{\"s\": \"x\"}]");
  EXPECT_EQ(shown(parts_of_output("```xml\n" + kCall + "\n" + kCall + "\n")),
            "```xml[f{\"s\": \"x\"}][f{\"s\": \"x\"}]");
  const std::string told = "```xml\n" + kCall + "\nThat is all.";
  EXPECT_EQ(shown(parts_of_output(told)), told);
  const std::string cut = "```xml\n" + kCall;
  EXPECT_EQ(shown(parts_of_output(cut, [](Case& c) { c.cut = true; })), cut);
  const std::string other = "```xml\n<tool_call>\n<function=g>\n</function>\n</tool_call>";
  EXPECT_EQ(shown(parts_of_output(other, [](Case& c) { c.format.offered_only = true; })), other);
}

TEST(AnswerParser, TextAroundCallsKeepsItsBreaks) {
  EXPECT_EQ(shown(parts_of_output("First.\n" + kCall + "\nBetween.\n\n" + kCall + "\nAfter.\n")),
            "First.\n\nBetween.\n\n\nAfter.[f{\"s\": \"x\"}][f{\"s\": \"x\"}]");
  EXPECT_EQ(parts_of_output("\n\n" + kCall + "\n\nAfter.").content, "After.");
  EXPECT_EQ(parts_of_output("First. " + kCall + "\n").content, "First.");
  EXPECT_EQ(parts_of_output("One" + kCall + "Two").content, "OneTwo");
}

TEST(AnswerParser, TagsThatAreWrittenTwiceAreSwallowed) {
  const auto twice = [](std::string_view tag) {
    std::string out = kCall;
    out.insert(out.find(tag), std::string(tag) + "\n");
    return out;
  };
  for (const char* tag : {"<tool_call>", "</parameter>", "</function>", "</tool_call>"}) {
    EXPECT_EQ(shown(parts_of_output(twice(tag))), "[f{\"s\": \"x\"}]") << tag;
    EXPECT_EQ(shown(parts_of_output("Hm.\n" + twice(tag) + "\nSo.")), "Hm.\n\nSo.[f{\"s\": \"x\"}]")
        << tag;
    EXPECT_EQ(shown(parts_of_output(twice(tag) + "\n" + kCall)),
              "[f{\"s\": \"x\"}][f{\"s\": \"x\"}]")
        << tag;
  }
  EXPECT_EQ(shown(parts_of_output(
                "<tool_call>\n<function=f>\n<parameter=s>\n/srv/x\n</parameter>\n</parameter>\n"
                "<parameter=n>\n3\n</parameter>\n</parameter>\n</function>\n</tool_call>")),
            "[f{\"s\": \"/srv/x\", \"n\": 3}]");
  EXPECT_EQ(shown(parts_of_output(
                "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}}\n</tool_call>")),
            "[f{\"n\": 1}]");
  EXPECT_EQ(shown(parts_of_output(
                "<tool_call>\n<function=f>\n<parameter=s>\n<parameter=a>\n1\n</parameter>\n"
                "</parameter>\n</function>\n</tool_call>")),
            R"([f{"s": "<parameter=a>\n1\n</parameter>"}])");
  const std::string prose = "It ends with </tool_call> or </function>.";
  EXPECT_EQ(shown(parts_of_output(prose)), prose);
  AnswerFormat format;
  format.tools = tools(R"({"s":{"type":"string"}})");
  AnswerParser parser(std::move(format));
  AnswerEvents events;
  parser.push(twice("</parameter>") + twice("</tool_call>"), events);
  parser.finish(false, events);
  EXPECT_EQ(parser.repairs().doubled_tag, 2);
  EXPECT_EQ(parser.repairs().missing_end, 0);
}

TEST(AnswerParser, NamesInTagsMayBeQuotedOrAttributes) {
  for (const char* open : {"<function=f>", "<function=\"f\">", "<function='f'>", "<function = f>",
                           "<function =\"f\" >", "<function name=f>", "<function name=\"f\">",
                           "<function name = 'f' id=\"1\">"}) {
    for (const char* parameter :
         {"<parameter=s>", "<parameter=\"s\">", "<parameter = s >", "<parameter name=\"s\">"}) {
      const std::string body = std::string(parameter) + "\nx\n</parameter>\n";
      EXPECT_EQ(shown(parts_of_output(std::string("<tool_call>\n") + open + "\n" + body +
                                      "</function>\n</tool_call>")),
                "[f{\"s\": \"x\"}]")
          << open << parameter;
      const std::string second =
          std::string(parameter).replace(std::string(parameter).find('s'), 1, "n");
      EXPECT_EQ(shown(parts_of_output(std::string("<tool_call>\n") + open + "\n" + body + second +
                                      "\n3\n</parameter>\n</function>\n</tool_call>")),
                "[f{\"s\": \"x\", \"n\": 3}]")
          << open << second;
    }
  }
  // In a value of the usual form, tags with attributes are text.
  EXPECT_EQ(
      shown(parts_of_output(
          "<tool_call>\n<function=f>\n<parameter=s>\n<parameter name=\"n\">1</parameter>\n"
          "<parameter name=\"o\">2</parameter>\n</parameter>\n</function>\n</tool_call>")),
      R"([f{"s": "<parameter name=\"n\">1</parameter>\n<parameter name=\"o\">2</parameter>"}])");
  const std::string prose = "<tool_call> <functional> and <function of x>.";
  EXPECT_EQ(shown(parts_of_output(prose)), prose);
  EXPECT_EQ(shown(parts_of_output(
                "<tool_call>\n{\"name\": 'f', \"arguments\": {\"n\": 1,},}\n</tool_call>")),
            "[f{\"n\": 1}]");
}

TEST(AnswerParser, ParametersComeAsTheyWereWritten) {
  const auto parameter = [](const std::string& name, const std::string& value) {
    return "<parameter=" + name + ">\n" + value + "\n</parameter>\n";
  };
  EXPECT_EQ(shown(parts_of_output("<tool_call>\n<function=f>\n" + parameter("zz", "1") +
                                  parameter("n", "2") + parameter("s", "[") + parameter("n", "3") +
                                  parameter("y", "{\"a\":1}") + "</function>\n</tool_call>")),
            R"([f{"zz": "1", "n": 2, "s": "[", "y": {"a": 1}}])");
}

TEST(AnswerParser, AThoughtThatNobodyAskedForNeverTakesTheAnswer) {
  const auto off = [](Case& c) { c.format.may_think = false; };
  const Parts split = parts_of_output("<think>\nhm\n</think>\n\nFour.", off);
  EXPECT_EQ(split.reasoning, "hm");
  EXPECT_EQ(split.content, "Four.");
  for (const std::string& text : {std::string("<think>\nFour, as I see it."),
                                  std::string("<think> is a tag. It ends with </think>."),
                                  std::string("<think>"), std::string("<think>\n")}) {
    const Parts parts = parts_of_output(text, off);
    EXPECT_EQ(parts.reasoning, "");
    EXPECT_EQ(parts.content, text);
    const Parts cut = parts_of_output(text, [&](Case& c) { off(c), c.cut = true; });
    EXPECT_EQ(cut.content, text);
  }
  EXPECT_EQ(shown(parts_of_output("<think>\nhm\n</think>\n" + kCall, off)), "[f{\"s\": \"x\"}]");
}

TEST(AnswerParser, ValuesOfHeldCallsEndAtTheFirstTagInItsPlace) {
  const auto held = [](Case& c) { c.format.held = {"f"}; };
  const auto call = [](const std::string& value) {
    return "<tool_call>\n<function=f>\n<parameter=s>\n" + value +
           "\n</parameter>\n</function>\n</tool_call>";
  };
  for (const std::string value : {"a</parameter><parameter=n>x", "a </parameter> </function>",
                                  "a\n<parameter=n>\n3", "a\n</tool_call>", "</parameter"}) {
    EXPECT_EQ(shown(parts_of_output(call(value), held)), "[f{\"s\": " + Json(value).dump() + "}]");
  }
  EXPECT_EQ(shown(parts_of_output("<function=f>\n<parameter=s>\nx\n</function>", held)),
            "[f{\"s\": \"x\"}]");
}

TEST(AnswerParser, TheCallIsReportedAsSoonAsItsNameIsKnown) {
  AnswerFormat format;
  format.tools = tools(R"({"s":{"type":"string"}})");
  AnswerParser parser(std::move(format));
  AnswerEvents events;
  parser.push("Hi.\n<tool_call>\n<function=f>", events);
  EXPECT_EQ(events, (AnswerEvents{{AnswerEvent::Kind::content, 0, "Hi."},
                                  {AnswerEvent::Kind::call, 0, "f"}}));
  events.clear();
  parser.push("\n<parameter=s>\nab", events);
  EXPECT_EQ(events, (AnswerEvents{{AnswerEvent::Kind::arguments, 0, "{\"s\": \"ab"}}));
  EXPECT_FALSE(parser.in_content());
  EXPECT_FALSE(parser.in_thought());
}

TEST(AnswerParser, TextsOfArgkvAreReportedWhileTheyAreWritten) {
  AnswerFormat format;
  format.tools = tools(R"({"s":{"type":"string"},"n":{"type":"integer"}})");
  format.dialect.calls = Dialect::Calls::argkv;
  AnswerParser parser(std::move(format));
  const auto pushed = [&](std::string_view text) {
    AnswerEvents events;
    parser.push(text, events);
    std::string out;
    for (const AnswerEvent& event : events) out += event.text;
    return out;
  };
  EXPECT_EQ(pushed("<tool_call>f<arg_key>s</arg_key><arg_value>\none\n"), "f{\"s\": \"\\none\\n");
  EXPECT_EQ(pushed("two</arg_val"), "two");
  EXPECT_EQ(pushed("ue> three</arg_value>"), "</arg_value> three");
  EXPECT_EQ(pushed("\n<arg_key>n</arg_key><arg_value>1"), "\"");
  EXPECT_EQ(pushed("2</arg_value></tool_call>"), ", \"n\": 12}");
}

TEST(AnswerParser, ValuesOverTheLimitBecomeStrings) {
  Case c{"<tool_call><function=f><parameter=o>\n[1, 2, 3, 4]\n</parameter></function></tool_call>",
         {},
         false};
  c.format.tools = tools(R"({"o":{"type":"array"}})");
  EXPECT_EQ(run(c, {}).calls.at(0).arguments, R"({"o": [1, 2, 3, 4]})");
  c.format.max_value_bytes = 11;
  EXPECT_EQ(run(c, {}).calls.at(0).arguments, R"({"o": "[1, 2, 3, 4]"})");
  EXPECT_EQ(run(c, every(1, c.output)).calls.at(0).arguments, R"({"o": "[1, 2, 3, 4]"})");
}

TEST(AnswerParser, NumbersKeepTheirSpelling) {
  Case c{
      R"(<tool_call>{"name": "f", "arguments": {"a": 2.50, "b": 123456789012345678901234567890, "c": 1e400}}</tool_call>)",
      {},
      false};
  c.format.tools = tools("{}");
  EXPECT_EQ(run(c, {}).calls.at(0).arguments,
            R"({"a": 2.50, "b": 123456789012345678901234567890, "c": 1e400})");
}

TEST(AnswerParser, LineFeedsInsideJsonStringsAreRepaired) {
  Case c{"<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"a\nb\"}}</tool_call>", {}, false};
  c.format.tools = tools("{}");
  EXPECT_EQ(run(c, {}).calls.at(0).arguments, R"({"s": "a\nb"})");
}

TEST(AnswerParser, LongAndHostileOutputsTakeLinearWork) {
  const auto offered = tools(R"({"o":{"type":"object"},"s":{"type":"string"}})");
  const auto repeat = [](const char* text, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += text;
    return out;
  };
  for (const std::string& body :
       {repeat("{", 200'000), repeat("<function=f>", 20'000),
        "<parameter=o>" + repeat("</parameter> ", 20'000),
        "<parameter=s>\n" + repeat("<parameter=\n", 20'000), repeat("<tool_call>{", 20'000),
        "<tool_call>{" + repeat("[", 200'000), repeat(" ", 200'000),
        "<parameter=" + repeat("x", 200'000)}) {
    Case c{"<tool_call><function=f>" + body, {}, false};
    c.format.tools = offered;
    const Parts parts = run(c, {});
    EXPECT_EQ(run(c, every(3, c.output)), parts);
    expect_valid_arguments(parts);
  }
}

TEST(JsonText, ReadsWhatJsonAllowsAndWritesNothingElse) {
  EXPECT_EQ(read_json(" {\"a\" : [1,-2.5e3 , \"x\\u00e9\\ud83d\\ude00\\/\"]} ")->text,
            "{\"a\": [1, -2.5e3, \"x\u00e9\U0001f600/\"]}");
  EXPECT_EQ(read_json("\"\\ud800x\"")->text, "\"\ufffdx\"");
  for (const char* bad : {"", "{", "[1,]", "{\"a\":}", "01", "1.", ".5", "+1", "'a'", "nul",
                          "{a:1}", "[1] 2", "\"\\x41\"", "\"\\u12\"", "True", "-"}) {
    EXPECT_FALSE(read_json(bad)) << bad;
  }
  std::string wide = "{", merged = "{";
  for (int i = 0; i < 3000; ++i)
    wide += "\"k" + std::to_string(i % 2000) + "\":" + std::to_string(i) + ",";
  for (int i = 0; i < 2000; ++i)
    merged += "\"k" + std::to_string(i) + "\": " + std::to_string(i < 1000 ? i + 2000 : i) + ", ";
  wide.back() = '}';
  merged.replace(merged.size() - 2, 2, "}");
  EXPECT_EQ(read_json(wide)->text, merged);
  EXPECT_EQ(read_python_literal("{'a': (1,), 2: 'it\\'s \\x41',}")->text,
            R"({"a": [1], "2": "it's A"})");
  EXPECT_EQ(json_string("\x01\"\\\n\x7f"), "\"\\u0001\\\"\\\\\\n\x7f\"");
  std::string ascii;
  append_json_string(ascii, "\b\f\v\x7f\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 \xff\xe2\x82",
                     JsonLetters::ascii);
  EXPECT_EQ(ascii, R"("\b\f\u000b\u007f\u00e9\u20ac\ud83d\ude00 \ufffd\ufffd\ufffd")");
  EXPECT_EQ(json_string("\xff\xe2\x82"), "\"\xff\xe2\x82\"");  // invalid bytes stay
}

}  // namespace
}  // namespace braid
