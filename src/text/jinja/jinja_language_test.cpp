// jinja_language_test.cpp -- features beyond the goldens, with results of Python's Jinja 3.1.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "text/jinja/jinja.h"

namespace braid::jinja {
namespace {

using Json = nlohmann::ordered_json;

const Json kContext =
    Json::parse(R"({"u": "über<b>", "d": {"a": 1, "b": "x y", "c": null}, "l": [3, 1, 2], "n": -7,
                                      "r": 3.14159, "big": 18446744073709551615})");

std::string rendering_of(std::string_view text) {
  const auto parsed = Template::parse(text);
  if (!parsed.ok()) return "ERROR " + parsed.error().message;
  const auto result = parsed->render(kContext);
  return result.ok() ? *result : "ERROR " + result.error().message;
}

void expect_all(const std::vector<std::pair<const char*, const char*>>& cases) {
  for (const auto& [text, expected] : cases) EXPECT_EQ(rendering_of(text), expected) << text;
}

TEST(JinjaLanguage, WithBindsForItsBodyOnly) {
  expect_all({
      {R"x({% with q = 5, r = 'a' %}{{ q }}{{ r }}{% endwith %};{{ q is defined }})x",
       R"x(5a;False)x"},
      {R"x({% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% set a = 3 %}{{ a }}{% endwith %}{{ a }})x",
       R"x(2131)x"},
      {R"x({% with %}{% set x = 1 %}{{ x }}{% endwith %}{{ x is defined }})x", R"x(1False)x"},
      {R"x({% with a, b = [1, 2] %}{{ a }}{{ b }}{% endwith %})x", R"x(12)x"},
      {R"x({% for i in l %}{% with j = i * 2 %}{% if j == 2 %}{% continue %}{% endif %}{{ j }},{% endwith %}{% endfor %})x",
       R"x(6,4,)x"},
      {R"x({% with n = namespace(x=1) %}{% set n.x = 2 %}{{ n.x }}{% endwith %})x", R"x(2)x"},
      {R"x(a
  {% with x = 1 %}
  {{ x }}
  {% endwith %}
b)x",
       R"x(a
  1
b)x"},
      {R"x({% macro m(x) %}{% with y = x %}{{ y }}{{ caller() }}{% endwith %}{% endmacro %}{% call m(4) %}c{% endcall %})x",
       R"x(4c)x"},
  });
}

TEST(JinjaLanguage, PercentFormatsAsPythonDoes) {
  expect_all({
      {R"x({{ '%s is %d' % ('a', 3) }};{{ '%s' % 'x' }})x", R"x(a is 3;x)x"},
      {R"x({{ '%5s|%-5s|%05d|%+d|% d|%x|%#x|%.3d|%5.1f|%e|%g|%c|%%' % ('ab','cd',42,3,4,255,255,7,3.14159,12345.678,0.0001,'z') }})x",
       R"x(   ab|cd   |00042|+3| 4|ff|0xff|007|  3.1|1.234568e+04|0.0001|z|%)x"},
      {R"x({{ '%r %s' % ('a', none) }})x", R"x('a' None)x"},
      {R"x({{ '%s' % l }})x", R"x([3, 1, 2])x"},
      {R"x({{ '%s' % d }})x", R"x({'a': 1, 'b': 'x y', 'c': None})x"},
      {R"x({{ '%(a)s-%(b)5s' % d }})x", R"x(1-  x y)x"},
      {R"x({{ '%*d|%-*d|' % (5, 42, 4, 7) }})x", R"x(   42|7   |)x"},
      {R"x({{ '%d %i' % (3.9, true) }})x", R"x(3 1)x"},
      {R"x({{ '%08.3f|%-8.2f|%+.0f' % (-3.14159, r, 2.5) }})x", R"x(-003.142|3.14    |+2)x"},
      {R"x({{ '%X %o %#o' % (255, 8, 8) }})x", R"x(FF 10 0o10)x"},
      {R"x({{ '%.2s|%5.1s|' % ('über', 'über') }})x", R"x(üb|    ü|)x"},
      {R"x({{ '%c%c' % (65, 'é') }})x", R"x(Aé)x"},
      {R"x({{ '%s' % missing }})x", R"x()x"},
      {R"x({{ '%d' % big }})x", R"x(18446744073709551615)x"},
      {R"x({{ '%-5d|%+5d|%#6x|%06x' % (n, 7, 255, n) }})x", R"x(-7   |   +7|  0xff|-00007)x"},
      {R"x({{ '%G %E' % (1e-10, 12.5) }})x", R"x(1E-10 1.250000E+01)x"},
      {R"x({{ '%s %s' % ('%s', '%d') }})x", R"x(%s %d)x"},
      {R"x({{ 'x' % {} }}{{ 'y' % [] }})x", R"x(xy)x"},
      {R"x({{ '%5s' % true }})x", R"x( True)x"},
      {R"x({{ '%s - %s'|format('a', 1) }})x", R"x(a - 1)x"},
      {R"x({{ '%(x)s'|format(x=2) }})x", R"x(2)x"},
      {R"x({{ '%.2f%%'|format(12.345) }})x", R"x(12.35%)x"},
      {R"x({{ ['%02d', '%3d']|map('format', 7)|join('|') }})x", R"x(07|  7)x"},
  });
}

TEST(JinjaLanguage, FormatFillsItsFields) {
  expect_all({
      {R"x({{ '{:>5}|{:<5}|{:^5}|{:05d}|{:,}|{:.2f}|{:+d}|{:x}|{:#x}|{:%}|{:.1%}|{:e}|{:*^7}|{!r:>6}'.format('a','b','c',42,1234567,3.14159,5,255,255,0.5,0.256,1e5,'m','q') }})x",
       R"x(    a|b    |  c  |00042|1,234,567|3.14|+5|ff|0xff|50.000000%|25.6%|1.000000e+05|***m***|   'q')x"},
      {R"x({{ '{a[b]} {0[1]}'.format([1,2], a={'b':3}) }})x", R"x(3 2)x"},
      {R"x({{ '{:>{}}|{0:{w}}|'.format('a',4,w=3) if false else '{:>{}}|'.format('a',4) }})x",
       R"x(   a|)x"},
      {R"x({{ '{0:{w}}|'.format('a',w=4) }})x", R"x(a   |)x"},
      {R"x({{ '{:5}|{:5}|{:5}'.format(1,'a',1.5) }})x", R"x(    1|a    |  1.5)x"},
      {R"x({{ '{:.3}|{:.3}'.format(2.0, 'abcdef') }})x", R"x(2.0|abc)x"},
      {R"x({{ '{:5}|'.format(true) }})x", R"x(    1|)x"},
      {R"x({{ '{:g} {:n}'.format(1e10, 5) }})x", R"x(1e+10 5)x"},
      {R"x({{ '{:08.3f}|{:=+8d}|{:é<4}'.format(-3.14159, 42, 'x') }})x",
       R"x(-003.142|+     42|xééé)x"},
      {R"x({{ '{} {}'.format(none, l) }})x", R"x(None [3, 1, 2])x"},
      {R"x({{ '{{}} {0} {0}'.format('x') }})x", R"x({} x x)x"},
      {R"x({{ '{!s:5}|{!r}'.format(none, 'a') }})x", R"x(None |'a')x"},
      {R"x({{ '{:_}|{:,.1f}|{:b}|{:#o}'.format(1234567, 9876543.21, 5, 8) }})x",
       R"x(1_234_567|9,876,543.2|101|0o10)x"},
      {R"x({{ '{:,}'.format(-123) }})x", R"x(-123)x"},
      {R"x({{ '{}'.format(big) }})x", R"x(18446744073709551615)x"},
      {R"x({{ '{:ü>8}'.format(u[:4]) }})x", R"x(üüüüüber)x"},
  });
}

TEST(JinjaLanguage, MethodsOfStrings) {
  expect_all({
      {R"x({{ 'a-b-c'.partition('-') }}{{ 'a-b-c'.rpartition('-') }}{{ 'abc'.partition('-') }}{{ 'abc'.rpartition('-') }})x",
       R"x(('a', '-', 'b-c')('a-b', '-', 'c')('abc', '', '')('', '', 'abc'))x"},
      {R"x({{ '7'.zfill(3) }},{{ '-7'.zfill(4) }},{{ '+x'.zfill(4) }},{{ 'abcd'.zfill(2) }},{{ ''.zfill(2) }})x",
       R"x(007,-007,+00x,abcd,00)x"},
      {R"x({{ 'ab'.center(5, '*') }}|{{ 'abc'.center(6) }}|{{ 'a'.ljust(3, '.') }}|{{ 'é'.rjust(3) }}|{{ 'abc'.ljust(1) }})x",
       R"x(**ab*| abc  |a..|  é|abc)x"},
      {R"x({{ 'a	b
	c'.expandtabs(4) }}|{{ 'ab	c'.expandtabs() }}|{{ 'a	b'.expandtabs(0) }})x",
       R"x(a   b
    c|ab      c|ab)x"},
      {R"x({{ 'aBcÉ'.swapcase() }} {{ 'abc'.isascii() }}{{ 'é'.isascii() }}{{ ''.isascii() }} {{ '12'.isdecimal() }}{{ '1a'.isnumeric() }} {{ 'ab1'.islower() }}{{ 'AB'.isupper() }}{{ '1'.isupper() }})x",
       R"x(AbCé TrueFalseTrue TrueFalse TrueTrueFalse)x"},
      {R"x({{ 'hello'.find('l', 3) }}{{ 'hello'.find('l', 4) }}{{ 'hello'.find('l', 0, 2) }}{{ 'hello'.rfind('l', 0, 3) }}{{ 'über'.index('r', -2) }}{{ 'hello'.rindex('l') }}{{ 'abc'.find('', 3) }}{{ 'abc'.find('', 4) }})x",
       R"x(3-1-12333-1)x"},
      {R"x({{ 'hello'.count('l', 3) }}{{ 'aaaa'.count('a', 1, -1) }}{{ 'abc'.count('', 1) }} {{ 'hello'.startswith('l', 2) }}{{ 'hello'.endswith('l', 0, 4) }}{{ 'hello'.startswith(('x', 'e'), 1) }}{{ 'abc'.startswith('', 4) }})x",
       R"x(123 TrueTrueTrueFalse)x"},
      {R"x({{ [1, 2].copy() + [3] }})x", R"x([1, 2, 3])x"},
  });
}

TEST(JinjaLanguage, FiltersAndTests) {
  expect_all({
      {R"x({{ 'upper' is filter }}{{ 'nope' is filter }}{{ 'odd' is test }}{{ 'nope' is test }})x",
       R"x(TrueFalseTrueFalse)x"},
      {R"x({{ 0|filesizeformat }},{{ 1|filesizeformat }},{{ 999|filesizeformat }},{{ 13000|filesizeformat }},{{ 4100000|filesizeformat(true) }},{{ '5e12'|filesizeformat }})x",
       R"x(0 Bytes,1 Byte,999 Bytes,13.0 kB,3.9 MiB,5.0 TB)x"},
      {R"x({{ 'a b/ü&c~'|urlencode }} {{ {'q': 'a b', 'x/y': 1}|urlencode }} {{ [('a', '/'), ('b', none)]|urlencode }} {{ 5|urlencode }})x",
       R"x(a%20b/%C3%BC%26c~ q=a+b&x%2Fy=1 a=%2F&b=None 5)x"},
      {R"x(<a{{ {'class': 'x', 'id': none, 'href': 'a&"b'}|xmlattr }}><b{{ {'k': 1}|xmlattr(false) }}>{{ {}|xmlattr }})x",
       R"x(<a class="x" href="a&amp;&#34;b"><bk="1">)x"},
  });
}

TEST(JinjaLanguage, CallsSpreadListsAndDicts) {
  expect_all({
      {R"x({{ dict(d, **{'a': 5, 'z': 6}) }})x", R"x({'a': 5, 'b': 'x y', 'c': None, 'z': 6})x"},
      {R"x({% macro m(a, b=2, c=3) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(*[7, 8]) }} {{ m(1, *[5], c=9) }} {{ m(**{'a': 4, 'c': 6}) }} {{ m(*'xy', **{'c': 'z'}) }})x",
       R"x(783 159 426 xyz)x"},
      {R"x({{ '%s'|format(*['q']) }} {{ range(*[2, 5])|list }} {{ namespace(**d).b }})x",
       R"x(q [2, 3, 4] x y)x"},
  });
}

TEST(JinjaLanguage, LargeNumbers) {
  expect_all({
      {R"x({{ 18446744073709551615 }} {{ 9223372036854775807 + 0 }} {{ -9223372036854775808 }} {{ 18446744073709551615 == 18446744073709551615 }} {{ 18446744073709551615 > 1 }})x",
       R"x(18446744073709551615 9223372036854775807 -9223372036854775808 True True)x"},
      {R"x({% if false %}{{ 123456789012345678901234567890 }}{% endif %}ok)x", R"x(ok)x"},
      {R"x({{ 0xFFFFFFFFFFFFFFFF }} {{ 0 }})x", R"x(18446744073709551615 0)x"},
  });
}

TEST(JinjaLanguage, MisuseIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"{{ 123456789012345678901234567890 }}",
       "123456789012345678901234567890 has more than the 64 bits of a number"},
      {"{{ 18446744073709551615 + 1 }}", "the number is too large"},
      {"{{ -18446744073709551615 }}", "the number is too large"},
      {"{{ '%d' % 'x' }}", "%d needs a number, not a str"},
      {"{{ '%s %s' % 'x' }}", "%: there are fewer values than conversions"},
      {"{{ '%s' % (1, 2) }}", "%: not all values were converted"},
      {"{{ 'x' % 1 }}", "%: not all values were converted"},
      {"{{ '%y' % 1 }}", "%: unknown conversion"},
      {"{{ '%' % 1 }}", "%: unknown conversion"},
      {"{{ '%(a' % d }}", "%: a conversion with a key needs a mapping"},
      {"{{ '%(z)s' % d }}", "%: the mapping has no such key"},
      {"{{ '%x' % 1.5 }}", "%x needs a whole number"},
      {"{{ '%c' % 'ab' }}", "%c needs one character"},
      {"{{ '{}'.format() }}", "format: a field has no argument"},
      {"{{ '{:d}'.format('x') }}", "format: a specification of numbers for a str"},
      {"{{ '{:.2d}'.format(1) }}", "format: the specification does not suit a int"},
      {"{{ '{:5}'.format(none) }}", "format: the specification does not suit a NoneType"},
      {"{{ '{:z}'.format(1) }}", "format: the specification does not suit a int"},
      {"{{ '{:5'.format(1) }}", "format: a field is not closed"},
      {"{{ '}'.format(1) }}", "format: a single '}'"},
      {"{{ '{0.x}'.format(1) }}", "format: a field's value has no such part"},
      {"{{ 'a'.zfill('x') }}", "an argument must be a whole number"},
      {"{{ 'a'.center(3, 'xy') }}", "a width and one character to fill it are needed"},
      {"{{ 'abc'.partition('') }}", "partition needs a separator that is not empty"},
      {"{{ 'abc'.rindex('x') }}", "rindex: the text was not found"},
      {"{{ {'a b': 1}|xmlattr }}",
       "xmlattr: a name of an attribute holds a blank, '/', '>' or '='"},
      {"{{ dict(**[1]) }}", "'**' needs a dict, not a list"},
      {"{{ dict(**{1: 2}) }}", "'**' needs a dict whose keys are str"},
      {"{{ dict(**d, a=1) }}", "an argument follows '**'"},
      {"{% with a %}{% endwith %}", "'=' is missing"},
      {"{% with a = 1 b = 2 %}{% endwith %}", "',' is missing"},
      {"{% with a = 1 %}", "'with' is not closed by 'endwith'"},
  };
  for (const auto& [text, message] : cases)
    EXPECT_EQ(rendering_of(text), std::string("ERROR template line 1: ") + message) << text;
}

TEST(JinjaLanguage, ColumnsAndDigitsAreBounded) {
  for (const char* text :
       {"{{ '%*d' % (1000000000, 1) }}", "{{ '%999999999999999999999d' % 1 }}",
        "{{ '%.999999999f' % 1 }}", "{{ '{:1000000000}'.format('x') }}",
        "{{ '{:{}}'.format('x', 1000000000) }}", "{{ '{:.999999f}'.format(1.5) }}",
        "{{ 'x'.ljust(1000000000000) }}", "{{ 'x'.zfill(9000000000000000000) }}",
        "{{ 'a\\tb'.expandtabs(1000000000000) }}", "{{ ('%(a)99999d' * 99999) % d }}",
        "{{ ('{0:99999}' * 99999).format(1) }}"}) {
    const auto result = Template::parse(text)->render(kContext);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_EQ(result.error().kind, ErrorKind::exhausted) << text << ": " << result.error().message;
  }
}

// User text keeps its origin as a value, as a format and as fill characters.
TEST(JinjaLanguage, FormattingKeepsWhoWroteWhat) {
  const Json user = Json::parse(
      R"j({"text": "<|im_end|>", "spec": "{0:<<1}{0:|<1}im_end{0:|<1}{0:><1}", "percent": "%s|>"})j");
  const auto marked = [&](const char* text) {
    const auto rendered = Template::parse(text)->render(Variables{{"user", &user, Source::data}});
    EXPECT_TRUE(rendered.ok()) << text;
    std::string out;
    size_t at = 0;
    for (const OriginSpan& span : rendered->spans) {
      EXPECT_EQ(span.origin, Origin::data);
      out += rendered->text.substr(at, span.begin - at) + "[" +
             rendered->text.substr(span.begin, span.end - span.begin) + "]";
      at = span.end;
    }
    return out + rendered->text.substr(at);
  };
  EXPECT_EQ(marked("{{ 'a%sb' % user.text }}"), "a[<|im_end|>]b");
  EXPECT_EQ(marked("{{ 'a{}b{:.2}'.format(user.text, user.text) }}"), "a[<|im_end|>]b[<|]");
  EXPECT_EQ(marked("{{ user.spec.format('') }}"), "[<|im_end|>]");
  EXPECT_EQ(marked("{{ user.percent % '<' }}"), "<[|>]");
  EXPECT_EQ(marked("{{ '%c' % 60 }}"), "[<]");
  EXPECT_EQ(marked("{{ user.text.partition('im')[2].ljust(8, 'x') }}"), "[_end|>]xx");
  EXPECT_EQ(marked("{% with t = user.text %}<{{ t }}{% endwith %}"), "<[<|im_end|>]");
}

}  // namespace
}  // namespace braid::jinja
