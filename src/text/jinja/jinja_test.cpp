// jinja_test.cpp -- the template engine against results of Python's Jinja, and hostile input.
// tests/goldens/jinja has one feature per file; the rest is limits, cost, lines, corner cases.
#include "text/jinja/jinja.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace braid::jinja {
namespace {

using Json = nlohmann::ordered_json;

std::string render(std::string_view text, const Json& context = Json::object(),
                   RenderOptions options = {}) {
  const auto parsed = Template::parse(text);
  if (!parsed.ok()) return "ERROR " + parsed.error().message;
  const auto result = parsed->render(context, options);
  return result.ok() ? *result : "ERROR " + result.error().message;
}

std::tm clock_of(const std::string& iso) {
  std::tm tm{};
  std::sscanf(iso.c_str(), "%d-%d-%dT%d:%d:%d", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour,
              &tm.tm_min, &tm.tm_sec);
  tm.tm_year -= 1900;
  tm.tm_mon -= 1;
  std::tm normal = tm;
  const std::time_t seconds = timegm(&normal);  // sets the days of week and year
  gmtime_r(&seconds, &normal);
  return normal;
}

TEST(Jinja, EveryGoldenRendersAsRecorded) {
  int ran = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(BRAID_SOURCE_DIR "/tests/goldens/jinja")) {
    const Json golden = Json::parse(std::ifstream(file.path()));
    SCOPED_TRACE(file.path().filename().string());
    RenderOptions options;
    if (golden["now"].is_string()) options.now = clock_of(golden["now"]);
    const auto parsed = Template::parse(golden["template"].get<std::string>());
    const auto result = parsed.ok() ? parsed->render(golden["context"], options)
                                    : Result<std::string>(parsed.error());
    ++ran;
    if (golden["expected_error"].is_null()) {
      ASSERT_TRUE(result.ok()) << result.error().message;
      EXPECT_EQ(*result, golden["expected"].get<std::string>());
    } else {
      ASSERT_FALSE(result.ok()) << *result;
      const std::string expected = golden["expected_error"];
      if (expected != "*") {
        EXPECT_EQ(result.error().message, expected);
      }
    }
  }
  std::printf("[          ] %d template goldens\n", ran);
  EXPECT_EQ(ran, 96);
}

TEST(Jinja, ErrorsNameTheLine) {
  EXPECT_EQ(render("a\nb {{ x.y }}"), "ERROR template line 2: 'x' is undefined");
  EXPECT_EQ(render("a\n\n{% if %}"), "ERROR template line 3: an expression is missing");
  EXPECT_EQ(render("{{ 1 }\n}"), "ERROR template line 1: unexpected '}'");
  EXPECT_EQ(render("{# a\n #}\n{%- raw -%}\n\n x {% endraw %}\n{{ 'a\n' + 1 }}"),
            "ERROR template line 7: a str and a int cannot be combined with +");
  EXPECT_EQ(render("{% for x in y %}\n"), "ERROR template line 1: 'for' is not closed by 'endfor'");
  EXPECT_EQ(render("x {{ 'abc"), "ERROR template line 1: a string is not closed");
  EXPECT_EQ(render("{{ 1 | nope }}"), "ERROR template line 1: there is no filter 'nope'");
  EXPECT_EQ(render("{% break %}"),
            "ERROR template line 1: 'break' and 'continue' belong inside a 'for'");
}

TEST(Jinja, RaisedMessagesComeBackWordForWord) {
  EXPECT_EQ(render("{{ raise_exception('no: ' ~ x) }}", {{"x", 3}}), "ERROR no: 3");
  EXPECT_EQ(render("{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{{ 'a' ~ m() }}"),
            "ERROR deep");
}

TEST(Jinja, UnknownFiltersInBranchesNotTakenAreHarmless) {
  EXPECT_EQ(render("{% if false %}{{ 1 | nope }}{% endif %}ok"), "ok");
}

TEST(Jinja, WhitespaceFollowsTheBlockOptions) {
  EXPECT_EQ(render("a\r\n{% if true %}\r\nb\r\n{% endif %}\r\nc\r\n"), "a\nb\nc");
  EXPECT_EQ(render("  {%- if true %} x {%- endif %}\n y"), " x y");
  EXPECT_EQ(render("{{ 1 }}\n  {# c #}\nz"), "1\nz");
  EXPECT_EQ(render("{{ 1 }}  {% if true %}\n\nz{% endif %}"), "1  \nz");
  EXPECT_EQ(render("{% raw %}\n a {% endraw %}\nb"), "\n a b");
}

TEST(Jinja, LookupOfNamesAndScopes) {
  EXPECT_EQ(render("{% for x in [1] %}{% generation %}{% set y = x %}{% endgeneration %}[{{ y "
                   "}}]{% endfor %}"),
            "[]");
  EXPECT_EQ(render("{% macro m(a, b=a ~ '!') %}{{ b }}{% endmacro %}{{ m('x') }}"), "x!");
  EXPECT_EQ(render("{% for a in [[1,[2]]] recursive %}{{ loop.depth }}{% endfor %}"), "1");
  EXPECT_EQ(
      render(
          "{% for n in t recursive %}{{ n.v }}{% if n.c %}({{ loop(n.c) }}){% endif %}{% endfor %}",
          Json::parse(R"({"t": [{"v": 1, "c": [{"v": 2}, {"v": 3}]}, {"v": 4}]})")),
      "1(23)4");
  EXPECT_EQ(render("{% macro w(t) %}<{{ caller(t) }}>{% endmacro %}{% call(x) w('q') %}{{ x }}{{ x "
                   "}}{% endcall %}"),
            "<qq>");
  EXPECT_EQ(
      render("{% set ns = namespace(a=1) %}{% macro m() %}{% set ns.a = ns.a + 1 %}{% endmacro %}"
             "{{ m() }}{{ m() }}{{ ns.a }}"),
      "3");
  EXPECT_EQ(render("{{ range }}", {{"range", "mine"}}), "mine");
}

TEST(Jinja, MacroCallsAreChecked) {
  const std::string macro = "{% macro m(a) %}{{ a }}{% endmacro %}";
  EXPECT_EQ(render(macro + "{{ m(1, 2) }}"),
            "ERROR template line 1: macro 'm' takes at most 1 arguments");
  EXPECT_EQ(render(macro + "{{ m(b=2) }}"),
            "ERROR template line 1: macro 'm' has no parameter 'b'");
  EXPECT_EQ(render(macro + "{{ m(1, a=2) }}"), "ERROR template line 1: 'a' is given twice");
  EXPECT_EQ(render(macro + "[{{ m() }}]"), "[]");
}

TEST(Jinja, NumbersKeepTheirSpelling) {
  EXPECT_EQ(render("{{ x | tojson }} {{ x }}",
                   Json::parse(R"({"x": [18446744073709551615, -1, 1.0, 2.50]})")),
            "[18446744073709551615, -1, 1.0, 2.5] [18446744073709551615, -1, 1.0, 2.5]");
  EXPECT_EQ(render("{{ 9223372036854775807 + 1 }}"),
            "ERROR template line 1: the number is too large");
  EXPECT_EQ(render("{{ (0 - 9223372036854775807 - 1) // -1 }}"),
            "ERROR template line 1: the number is too large");
  EXPECT_EQ(render("{{ 1 // 0 }}"), "ERROR template line 1: division by zero");
  EXPECT_EQ(
      render("{{ 0x1f }} {{ 1_000 }} {{ 1.5e3 }} {{ 5e-324 }} {{ 1e22 }} {{ 123456789012345.6 }}"),
      "31 1000 1500.0 5e-324 1e+22 123456789012345.6");
}

TEST(Jinja, TextIsCountedInCharactersAndBrokenBytesSurvive) {
  EXPECT_EQ(render("{{ s | length }} {{ s[1] }} {{ s[::-1] }} {{ s[-1:] }} {{ s | upper }} {{ "
                   "s.find('日') }}",
                   {{"s", "äé日😀"}}),
            "4 é 😀日éä 😀 ÄÉ日😀 2");
  EXPECT_EQ(render("{{ 'a\xff\xe4z'[1:] }}{{ 'a\xff'|length }}"), "\xff\xe4z2");
  EXPECT_EQ(render("{{ s }}|{{ [s] }}|{{ s | tojson }}", {{"s", "it's \"q\" \x01 \t é"}}),
            "it's \"q\" \x01 \t é|['it\\'s \"q\" \\x01 \\t é']|\"it's \\\"q\\\" \\u0001 \\t é\"");
}

TEST(Jinja, StringsThatShareBytesStayApart) {
  // `a` grows twice from one base; the first, in-place growth must not show in the second.
  EXPECT_EQ(render("{% set a = 'x' ~ 'y' %}{% set b = a ~ '1' %}{% set c = a ~ '2' %}{{ a }} {{ b "
                   "}} {{ c }}"),
            "xy xy1 xy2");
  EXPECT_EQ(render("{% set a = 'ab' ~ 'cd' %}{% set a = a ~ a %}{% set a = a ~ a[1:3] %}{{ a }}"),
            "abcdabcdbc");
}

TEST(Jinja, SafeTextEscapesWhatIsAddedToIt) {
  EXPECT_EQ(render("{{ ('<a>' | safe) + '<b>' }} {{ ('<a>' | safe) ~ '<b>' }} {{ '<' | e | e }}"),
            "<a>&lt;b&gt; <a><b> &lt;");
}

TEST(Jinja, ListsCanGrowAndHoldThemselves) {
  EXPECT_EQ(
      render("{% set l = [] %}{% for x in [1,2] %}{{ l.append(x) or '' }}{% endfor %}{{ l }}"),
      "[1, 2]");
  EXPECT_EQ(render("{% set l = [] %}{{ l.append(l) }}{{ l }}"),
            "ERROR template line 1: nested too deeply");
  EXPECT_EQ(render("{% set l = [] %}{{ l.append(l) }}{{ l == l[0] }}{{ l | tojson }}"),
            "ERROR template line 1: nested too deeply");
  EXPECT_EQ(render("{{ {}.update({}) }}"),
            "ERROR template line 1: a method that would change a dict is not allowed");
}

TEST(Jinja, WhatDoesNotFitIsUndefinedOrEmpty) {
  EXPECT_EQ(render("[{{ none[1:] }}{{ 5['a'] }}{{ [1][7] }}{{ 'abc'[9] }}]"), "[]");
  EXPECT_EQ(render("{{ none | selectattr('x') | list }}{{ none | map('upper') | list }}"), "[][]");
  EXPECT_EQ(render("{{ [{'a': 1}, {'a': 2}] | sort(attribute='b') }} {{ 7 | round(1) }}"),
            "[{'a': 1}, {'a': 2}] 7");
}

Json conversation(int messages, size_t bytes_each) {
  Json list = Json::array();
  std::string text;
  while (text.size() < bytes_each) text += "some words, <b>markup</b> & a line\n";
  for (int i = 0; i < messages; ++i) {
    list.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", text}});
  }
  return list;
}

constexpr char kChat[] =
    "{%- set ns = namespace(last=0, all='') -%}"
    "{%- for m in messages[::-1] -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 "
    "-%}{%- endif "
    "-%}{%- endfor -%}"
    "{%- for m in messages -%}"
    "{%- set text = m.content | trim -%}"
    "{%- set think = text.split('</think>')[0].rstrip('\\n').split('<think>')[-1] -%}"
    "{{- '<|im_start|>' + m.role + '\\n' + text + '<|im_end|>\\n' -}}"
    "{%- set ns.all = ns.all + text -%}"
    "{%- endfor -%}{{ ns.all | length }}";

RenderStats cost_of(int messages, size_t bytes_each) {
  RenderStats stats;
  const Json context = {{"messages", conversation(messages, bytes_each)}};
  RenderOptions options;
  options.limits.max_wall_ms = 0;
  const auto result = Template::parse(kChat)->render(context, options, &stats);
  EXPECT_TRUE(result.ok()) << result.error().message;
  EXPECT_GT(result->size(), static_cast<size_t>(messages) * bytes_each);
  return stats;
}

TEST(Jinja, AFiveMegabyteConversationCostsTwiceAHalf) {
  for (const auto& [messages, bytes] : {std::pair<int, size_t>{2500, 1000}, {10, 250'000}}) {
    const RenderStats half = cost_of(messages, bytes);
    const RenderStats whole = cost_of(messages * 2, bytes);
    std::printf(
        "[          ] %d x %zu bytes: %llu steps, %llu KiB; twice that: %llu steps, %llu KiB\n",
        messages, bytes, static_cast<unsigned long long>(half.steps),
        static_cast<unsigned long long>(half.memory_bytes >> 10),
        static_cast<unsigned long long>(whole.steps),
        static_cast<unsigned long long>(whole.memory_bytes >> 10));
    EXPECT_LT(static_cast<double>(whole.steps), 2.5 * static_cast<double>(half.steps));
    EXPECT_LT(static_cast<double>(whole.memory_bytes),
              3.0 * static_cast<double>(half.memory_bytes));
    EXPECT_LT(whole.memory_bytes, uint64_t{80} << 20);
  }
}

ErrorKind kind_of(std::string_view text, const Json& context = Json::object()) {
  const auto parsed = Template::parse(text);
  if (!parsed.ok()) return parsed.error().kind;
  RenderOptions options;
  options.limits.max_wall_ms = 0;  // the limits tested here count, they do not measure time
  options.limits.max_memory_bytes = uint64_t{40} << 20;
  const auto result = parsed->render(context, options);
  if (result.ok()) {
    ADD_FAILURE() << "rendered " << result->size() << " bytes";
    return ErrorKind::io;
  }
  return result.error().kind;
}

std::string repeated(const std::string& start, const std::string& body) {
  return "{% set n = namespace(v=" + start + ", w=" + start + ") %}{% for i in range(99999) %}" +
         body + "{% endfor %}";
}

TEST(JinjaHostile, EndlessWorkRunsOutOfSteps) {
  EXPECT_EQ(kind_of("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"),
            ErrorKind::exhausted);
  const std::string doubled =
      "{% set n = namespace(v=[1], w=[1]) %}{% for a in range(60) %}{% set n.v = [n.v, n.v] %}"
      "{% set n.w = [n.w, n.w] %}{% endfor %}";
  EXPECT_EQ(kind_of(doubled + "{{ n.v == n.w }}"), ErrorKind::exhausted);
  EXPECT_EQ(kind_of(doubled + "{{ n.v < n.w }}"), ErrorKind::exhausted);
  EXPECT_EQ(kind_of(doubled + "{{ n.v | tojson | length }}"), ErrorKind::exhausted);
  EXPECT_EQ(kind_of(doubled + "{{ n.v | string | length }}"), ErrorKind::exhausted);
  EXPECT_EQ(kind_of(doubled + "{{ [n.v, n.w, n.v] | sort }}"), ErrorKind::exhausted);
}

// Steps bound the time, so each operation must count a step per 64 bytes of text or per few
// elements. Runs `body` once over a text or list of `size` elements.
uint64_t steps_of(const std::string& start, const std::string& body, size_t size) {
  RenderOptions options;
  options.limits.max_wall_ms = 0;
  options.limits.max_steps = UINT64_MAX / 2;
  uint64_t steps[2] = {};
  for (const int run : {0, 1}) {
    const std::string text =
        "{% set n = " + std::to_string(size) + " %}{% set v = " + start + " %}" + (run ? body : "");
    RenderStats stats;
    const auto result = Template::parse(text)->render(Json::object(), options, &stats);
    EXPECT_TRUE(result.ok()) << body << ": " << result.error().message;
    steps[run] = stats.steps;
  }
  return steps[1] - steps[0];
}

TEST(JinjaHostile, StepsCountWhatIsRead) {
  constexpr size_t kSize = 64'000;
  for (const char* body : {"{{ (v | upper) == '' }}",
                           "{{ (v | lower) == '' }}",
                           "{{ (v | title) == '' }}",
                           "{{ (v | capitalize) == '' }}",
                           "{{ v.title() == '' }}",
                           "{{ v | length }}",
                           "{{ v[n - 1] }}",
                           "{{ v[1:2] }}",
                           "{{ v.strip() == '' }}",
                           "{{ (v | trim) == '' }}",
                           "{{ v.strip('bcd') == '' }}",
                           "{{ v.split(',') | length }}",
                           "{{ v.split() | length }}",
                           "{{ v.splitlines() | length }}",
                           "{{ v.replace('b', 'c') == '' }}",
                           "{{ v.find('b') }}",
                           "{{ v.rfind('b') }}",
                           "{{ v.count('b') }}",
                           "{{ 'b' in v }}",
                           "{{ (v | tojson) == '' }}",
                           "{{ (v | tojson(ensure_ascii=true)) == '' }}",
                           "{{ ([v] | string) == '' }}",
                           "{{ (v | e) == '' }}",
                           "{{ (v | indent) == '' }}",
                           "{{ v | wordcount }}",
                           "{{ (v | truncate(9)) == '' }}",
                           "{{ (v | center(9)) == '' }}",
                           "{{ v.isalpha() }}",
                           "{{ v | int }}",
                           "{{ v | float }}",
                           "{{ v.startswith(v) }}",
                           "{{ v.removeprefix(v) == '' }}",
                           "{{ v.removesuffix(v) == '' }}",
                           "{{ v == v ~ '' }}",
                           "{{ v < v ~ 'b' }}",
                           "{{ {v: 1}[v] }}",
                           "{{ v in {v: 1} }}",
                           "{{ {v: 1}.get(v) }}",
                           "{{ [v, v] | unique | length }}",
                           "{{ [v, v] | min == '' }}",
                           "{{ (v * 2) == '' }}",
                           "{{ (v | list) == [] }}",
                           "{{ v.format() == '' }}",
                           "{{ strftime_now(v) == '' }}"}) {
    EXPECT_GE(steps_of("'a' * n", body, kSize), kSize / 64) << body;
  }
  for (const char* body : {"{{ v | length }}{% for x in v %}{% endfor %}", "{{ (v | sort) == [] }}",
                           "{{ (v | unique) == [] }}", "{{ v | sum }}", "{{ v | max }}",
                           "{{ (v | map('string')) == [] }}", "{{ (v | select('odd')) == [] }}",
                           "{{ (v | batch(3)) == [] }}", "{{ (v | join) == '' }}", "{{ -1 in v }}",
                           "{{ v == v[:] }}", "{{ (v + v) == [] }}", "{{ (v | tojson) == '' }}",
                           "{{ (v | string) == '' }}", "{{ v.index(n - 1) }}", "{{ v.count(3) }}",
                           "{{ (v | reverse) == [] }}", "{{ v | last }}{{ (v | list) == [] }}",
                           "{{ (v | map('string') | list | groupby(0)) == [] }}"}) {
    EXPECT_GE(steps_of("range(n) | list", body, 9'000), 9'000u) << body;
  }
  EXPECT_GE(steps_of("'[' ~ '1,' * n ~ '1]'", "{{ v | from_json | length }}", 9'000), 2'000u);
}

TEST(JinjaHostile, FromJsonIsPaidFor) {
  const auto object = [](size_t members) {
    std::string out = "{";
    for (size_t i = 0; i < members; ++i)
      out += "\"k" + std::to_string(i * 7919 % members) + "\":1,";
    out.back() = '}';
    return out;
  };
  const auto used = [](const std::string& text, uint64_t max_steps) {
    RenderStats stats;
    RenderOptions options;
    options.limits.max_wall_ms = 0;
    options.limits.max_steps = max_steps;
    options.limits.input_steps = 0;
    const auto parsed = Template::parse("{{ x | from_json | length }}");
    const auto out = parsed->render(Json{{"x", text}}, options, &stats);
    EXPECT_TRUE(out.ok() || out.error().kind == ErrorKind::exhausted) << out.error().message;
    return std::pair(out.ok(), stats);
  };
  const auto [half_ok, half] = used(object(20'000), 10'000'000);
  const auto [whole_ok, whole] = used(object(40'000), 10'000'000);
  EXPECT_TRUE(half_ok && whole_ok);
  EXPECT_GT(half.steps, 3 * 20'000u);
  EXPECT_LT(static_cast<double>(whole.steps), 2.5 * static_cast<double>(half.steps));
  EXPECT_GT(half.memory_bytes, 20'000u * 200);
  EXPECT_FALSE(used(object(40'000), 100'000).first);
  std::string nested;
  for (int i = 0; i < 100'000; ++i) nested += std::string(160, '[') + std::string(160, ']') + ",";
  nested = "[" + nested + "1]";
  const auto [flood_ok, flood] = used(nested, 1'000'000);
  EXPECT_FALSE(flood_ok);
  EXPECT_LT(flood.memory_bytes, uint64_t{512} << 20);
  EXPECT_EQ(render("{{ x | from_json }}", {{"x", "{\"a\":tru}"}}),
            "ERROR template line 1: from_json: the text is not valid JSON (at byte 8)");
  EXPECT_EQ(render("{{ x | from_json }}", {{"x", R"({"a":1,"b":2,"a":3})"}}), "{'a': 3, 'b': 2}");
}

TEST(JinjaHostile, StepsGrowWithTheInputOnly) {
  const std::string endless =
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
  const auto steps = [&](const Json& context) {
    RenderStats stats;
    RenderOptions options;
    options.limits.max_wall_ms = 0;
    const auto result = Template::parse(endless + "{{ x }}")->render(context, options, &stats);
    EXPECT_EQ(result.error().kind, ErrorKind::exhausted);
    return stats.steps;
  };
  EXPECT_LT(steps(Json::object()), 1'200'000u);
  EXPECT_LT(steps({{"y", std::string(1 << 20, 'a')}}), 1'200'000u);
  const uint64_t with_text = steps({{"x", std::string(1 << 20, 'a')}});
  EXPECT_GT(with_text, 1'400'000u);
  EXPECT_LT(with_text, 1'800'000u);
  Json list = Json::array();
  for (int i = 0; i < 10'000; ++i) list.push_back(i);
  const uint64_t with_values = steps({{"x", list}});
  EXPECT_GT(with_values, 1'300'000u);
  EXPECT_LT(with_values, 1'600'000u);
}

TEST(JinjaHostile, GrowingValuesRunOutOfMemoryOrOutput) {
  EXPECT_EQ(kind_of(repeated("'aaaaaaaa'", "{% set n.v = n.v ~ n.v %}")), ErrorKind::exhausted);
  EXPECT_EQ(kind_of(repeated("'aaaaaaaa'", "{% set n.v = n.v + n.v %}")), ErrorKind::exhausted);
  EXPECT_EQ(kind_of(repeated("'aaaaaaaa'", "{% set n.v = n.v * 2 %}")), ErrorKind::exhausted);
  EXPECT_EQ(kind_of(repeated("'aaaaaaaa'", "{% set n.v = n.v.replace('', n.v) %}")),
            ErrorKind::exhausted);
  EXPECT_EQ(kind_of(repeated("'aaaaaaaa'", "{% set n.v = [n.v, n.v] | join(n.v) %}")),
            ErrorKind::exhausted);
  EXPECT_EQ(kind_of(repeated("'aaaaaaaa'", "{% set n.v = n.v.join(n.v) %}")), ErrorKind::exhausted);
  EXPECT_EQ(kind_of(repeated("'aaaaaaaa'", "{% set n.v = '{}{}'.format(n.v, n.v) %}")),
            ErrorKind::exhausted);
  EXPECT_EQ(
      kind_of(repeated("'aaaaaaaa'", "{% set x %}{{ n.v }}{{ n.v }}{% endset %}{% set n.v = x %}")),
      ErrorKind::exhausted);
  EXPECT_EQ(kind_of(repeated("[1]", "{% set n.v = n.v + n.v %}")), ErrorKind::exhausted);
  EXPECT_EQ(kind_of(repeated("[1]", "{% set n.v = n.v * 9 %}")), ErrorKind::exhausted);
  EXPECT_EQ(
      kind_of(repeated("'\x01'", "{% set n.v = [n.v] | string %}{% set n.v = n.v | tojson %}")),
      ErrorKind::exhausted);
  EXPECT_EQ(kind_of(repeated("[]", "{{ n.v.append(range(9999)) }}")), ErrorKind::exhausted);
  EXPECT_EQ(
      kind_of(repeated("'<'", "{% set n.v = (n.v | safe) + (('<' ~ n.v) | e | string | join) %}")),
      ErrorKind::exhausted);
  EXPECT_EQ(kind_of("{{ 'abc' * 9000000000000000000 }}"), ErrorKind::exhausted);
  EXPECT_EQ(kind_of("{{ [1] * 9000000000000000000 }}"), ErrorKind::exhausted);
  EXPECT_EQ(kind_of("{{ 'x' | indent(9000000000000000000, true) }}"), ErrorKind::exhausted);
  EXPECT_EQ(kind_of("{{ 'x' | center(9000000000000000000) }}"), ErrorKind::exhausted);
  EXPECT_EQ(kind_of("{{ [1] | batch(9000000000000000000, 0) }}"), ErrorKind::exhausted);
  EXPECT_EQ(kind_of("{{ [1] | slice(9000000000000000000) }}"), ErrorKind::exhausted);
  EXPECT_EQ(kind_of("{{ range(9000000000000000000) }}"), ErrorKind::exhausted);
  EXPECT_EQ(kind_of("{% set s = 'a' * 1000000 %}{% for a in range(99) %}{{ s }}{% endfor %}"),
            ErrorKind::exhausted);
}

TEST(JinjaHostile, OutputHasItsOwnLimit) {
  RenderOptions options;
  options.limits.max_output_bytes = 1000;
  EXPECT_EQ(render("{% for i in range(1000) %}x{% endfor %}", Json::object(), options),
            std::string(1000, 'x'));
  EXPECT_EQ(render("{% for i in range(1001) %}x{% endfor %}", Json::object(), options),
            "ERROR template line 1: the rendered text is longer than allowed");
}

TEST(JinjaHostile, RecursionIsBounded) {
  EXPECT_EQ(kind_of("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), ErrorKind::exhausted);
  EXPECT_EQ(kind_of("{% macro m(f) %}{{ f(f) }}{% endmacro %}{{ m(m) }}"), ErrorKind::exhausted);
  EXPECT_EQ(kind_of("{% macro m(a=m()) %}{% endmacro %}{{ m() }}"), ErrorKind::exhausted);
  EXPECT_EQ(kind_of("{% macro m() %}{{ caller() }}{% endmacro %}"
                    "{% macro n() %}{% call m() %}{{ n() }}{% endcall %}{% endmacro %}{{ n() }}"),
            ErrorKind::exhausted);
  EXPECT_EQ(kind_of("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}"),
            ErrorKind::exhausted);
  EXPECT_EQ(kind_of(repeated("[1]", "{% set n.v = [n.v] %}") + "{{ n.v }}"), ErrorKind::exhausted);
  EXPECT_EQ(kind_of(repeated("[1]", "{% set n.v = {'k': n.v} %}") + "{{ n.v | tojson }}"),
            ErrorKind::exhausted);
  EXPECT_EQ(
      kind_of(repeated("[1]", "{% set n.v = [n.v] %}{% set n.w = [n.w] %}") + "{{ n.v == n.w }}"),
      ErrorKind::exhausted);
}

TEST(JinjaHostile, RecursionLimitAllowsItsNumber) {
  const std::string down =
      "{% macro m(n) %}{% if n > 1 %}{{ m(n - 1) }}{% else %}end{% endif %}{% endmacro %}";
  EXPECT_EQ(render(down + "{{ m(200) }}"), "end");
  EXPECT_EQ(render(down + "{{ m(201) }}"),
            "ERROR template line 1: calls are nested deeper than allowed");
}

std::string many(std::string_view piece, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += piece;
  return out;
}

TEST(JinjaHostile, DeepSyntaxIsRefusedNotFollowed) {
  constexpr int kMany = 100'000;
  for (const std::string& text : {
           "{{ " + many("(", kMany) + "1" + many(")", kMany) + " }}",
           "{{ " + many("[", kMany) + many("]", kMany) + " }}",
           "{{ " + many("{1:", kMany) + "1" + many("}", kMany) + " }}",
           "{{ " + many("-", kMany) + "1 }}",
           "{{ " + many("not ", kMany) + "1 }}",
           "{{ 1" + many(" if 1 else 1", kMany) + " }}",
           "{{ 1" + many(" if 1", kMany) + " }}",
           "{{ 1" + many("|abs", kMany) + " }}",
           "{{ 1" + many(" is defined", kMany) + " }}",
           "{{ x" + many(".x", kMany) + " }}",
           "{{ x" + many("[0]", kMany) + " }}",
           "{{ x" + many("()", kMany) + " }}",
           "{{ x" + many("[x", kMany) + many("]", kMany) + " }}",
           "{{ 1" + many(" + 1", kMany) + " }}",
           "{{ 1" + many(" ** 1", kMany) + " }}",
           "{{ 1" + many(" or 1", kMany) + " }}",
           many("{% if 1 %}", kMany),
           many("{% for x in y %}", kMany),
           many("{% macro m() %}", kMany),
           many("{% set x %}", kMany),
           many("{% call m() %}", kMany),
           many("{% if 1 %}x{% else %}", kMany),
       }) {
    EXPECT_FALSE(Template::parse(text).ok()) << text.substr(0, 40);
  }
}

TEST(JinjaHostile, LongFlatSyntaxIsFine) {
  EXPECT_EQ(render("{{ [" + many("1,", 50'000) + "] | length }}"), "50000");
  EXPECT_EQ(render("{{ (''" + many(" ~ 'a'", 50'000) + ") | length }}"), "50000");
  EXPECT_EQ(render("{% if 0 %}" + many("{% elif 0 %}", 50'000) + "{% else %}x{% endif %}"), "x");
  EXPECT_EQ(render("{{ (''" + many(" 'a'", 50'000) + ") | length }}"), "50000");
  EXPECT_EQ(render(many("{# c #}", 50'000) + "x"), "x");
}

TEST(JinjaHostile, DeepDataIsRefused) {
  const Json deep = Json::parse(many("[", 2000) + many("]", 2000));
  EXPECT_EQ(render("{{ x }}", {{"x", deep}}),
            "ERROR template line 1: the data is nested too deeply");
  EXPECT_EQ(render("{{ ('" + many("[", 2000) + many("]", 2000) + "') | from_json }}"),
            "ERROR template line 1: the data is nested too deeply");
  EXPECT_EQ(render("ok", {{"x", deep}}), "ok");
}

TEST(JinjaHostile, SlowSearchesStayLinear) {
  RenderStats stats;
  RenderOptions options;
  options.limits.max_wall_ms = 0;
  const auto result = Template::parse(
                          "{% set h = 'a' * 4000000 %}{% set n = 'a' * 2000000 ~ 'b' %}"
                          "{{ n in h }}{{ h.split(n) | length }}{{ h.replace(n, '') | length }}")
                          ->render(Json::object(), options, &stats);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(*result, "False14000000");
  EXPECT_LT(stats.steps, 500'000u);
  EXPECT_EQ(kind_of("{% set h = 'a' * 4000000 %}{% set n = 'b' ~ 'a' * 2000000 %}{{ h.rfind(n) }}"),
            ErrorKind::exhausted);
}

}  // namespace
}  // namespace braid::jinja
