// needle_code.cpp -- the filler of Python and C (needle_filler.h).
#include "cli/bench/needle_filler.h"
#include "cli/bench/needle_grammar.h"

namespace braid::cli {
namespace {

using CodeWords = std::string_view[];

constexpr CodeWords kCodeVerbs = {"load",   "merge", "parse",  "flush",  "resolve",  "rotate",
                                  "encode", "drain", "filter", "commit", "schedule", "collect",
                                  "verify", "split", "attach", "render", "compact",  "lookup"};
constexpr CodeWords kCodeNouns = {"table",  "packet", "cursor", "session", "record", "buffer",
                                  "branch", "window", "header", "bucket",  "vector", "journal",
                                  "region", "handle", "queue",  "segment", "worker", "snapshot"};
constexpr CodeWords kCodeTraits = {"pending", "shared", "stale",  "remote", "active", "partial",
                                   "sorted",  "cached", "nested", "atomic", "local",  "sparse"};
constexpr CodeWords kCodeFolders = {"core", "storage", "net", "index", "tools", "runtime", "api"};
constexpr CodeWords kCodeNotes = {"the caller holds the lock",
                                  "order matters here",
                                  "empty input is common",
                                  "kept for older clients",
                                  "values above the limit are dropped",
                                  "this runs once a minute",
                                  "the first entry is the root",
                                  "sizes are in bytes",
                                  "errors are counted, not raised",
                                  "must stay in step with the writer"};
constexpr CodeWords kCodeTexts = {"no such entry", "limit reached",  "checksum differs",
                                  "timed out",     "already closed", "unexpected state",
                                  "retry later"};

// $p, $q: parameters; $v: a variable; $f: a function; $n: a number; $x: words of a message or note;
// $a: a field.
constexpr CodeWords kPythonStatements = {
    "$v = $p.get(\"$a\", $n)\n",
    R"(for index, item in enumerate($p):
    if item is None:
        continue
    $v = $f(item, $n)
)",
    R"(if not $p:
    return None
)",
    R"(try:
    $v = $f($p, $q)
except ValueError as error:
    logger.warning("$x: %s", error)
    raise
)",
    R"(while len($q) > $n:
    $q.pop()
)",
    "$v = [$f(item) for item in $p if item != $q]\n",
    "# $x\n",
    "assert isinstance($p, dict), \"$x\"\n",
    "logger.debug(\"$a %s\", $p)\n",
    "$v = sorted($p, key=lambda item: item.$a)[:$n]\n",
    R"(with open($q, "rb") as stream:
    $v = stream.read($n)
)",
    R"(if $p.$a > $n:
    $v = $f($q)
else:
    $v = $f($p, $n)
)",
    "$q[\"$a\"] = $f($p)\n",
    "yield $p, $q\n",
};
constexpr CodeWords kCStatements = {
    R"(if ($p == NULL) {
    return -1;
}
)",
    R"(for (size_t i = 0; i < $q; ++i) {
    $v += $p[i] * $n;
}
)",
    R"(if ($f($p, $q) != 0) {
    log_error("$x");
    return -1;
}
)",
    "/* $x */\n",
    "$v = $f($p + $n, $q - 1);\n",
    R"(while ($v > $n) {
    $v >>= 1;
    $f($p, $v);
}
)",
    R"(if ($q > $n) {
    $v = $p[$n];
} else {
    $v = $p[0];
}
)",
    "$v ^= ($v << 13) | $n;\n",
    "$v = (uint32_t)($q / $n) + 1;\n",
    "assert($q <= $n);\n",
    R"(switch ($v & 3) {
    case 0: $v += $n; break;
    case 1: $f($p, $q); break;
    default: break;
}
)",
};

class CodeFiller : public FillerSource {
 public:
  CodeFiller(uint64_t seed, CodeFiles files) : random_(seed, 'c'), files_(files) {}

  void append(std::vector<FillerUnit>& out) override {
    if (left_ == 0) {
      begin_file(out);
      return;
    }
    --left_;
    if (style_ == FactStyle::c) {
      random_.one_in(6) ? c_struct(out) : c_function(out);
    } else {
      random_.one_in(4) ? python_class(out) : python_function(out, 0, "");
    }
  }

  std::vector<FillerUnit> pads(const FillerUnit& place) const override {
    const std::string indent(static_cast<size_t>(place.indent), ' '),
        mark(place.style == FactStyle::c ? "// " : "# ");
    std::vector<FillerUnit> out = {{"\n", place.style, place.indent}};
    for (const std::string_view text :
         {"ok", "see below", "not used here", "the order matters", "kept for old clients",
          "this part is cheap", "sizes are in bytes here", "no lock is held at this point",
          "errors are counted and then ignored"})
      out.push_back({indent + mark + std::string(text) + "\n", place.style, place.indent});
    return out;
  }

 private:
  struct Scope {
    std::string p, q, v;
  };

  std::string join(std::initializer_list<std::string_view> words) {
    std::string out;
    for (const std::string_view word : words) out += (out.empty() ? "" : "_") + std::string(word);
    return out;
  }
  std::string function_name() {
    const std::string_view verb = random_.pick(kCodeVerbs), trait = random_.pick(kCodeTraits),
                           noun = random_.pick(kCodeNouns);
    return random_.one_in(2) ? join({verb, noun}) : join({verb, trait, noun});
  }
  std::string variable() {
    const std::string_view trait = random_.pick(kCodeTraits), noun = random_.pick(kCodeNouns);
    return random_.one_in(3) ? join({trait, noun}) : std::string(noun);
  }
  std::string type_name() {
    std::string out;
    for (std::string word :
         {std::string(random_.pick(kCodeTraits)), std::string(random_.pick(kCodeNouns))}) {
      word[0] = static_cast<char>(word[0] - 'a' + 'A');
      out += word;
    }
    return out;
  }
  Scope scope() {
    Scope out{variable(), variable(), variable()};
    if (out.q == out.p) out.q += "_size";
    if (out.v == out.p || out.v == out.q) out.v += "_sum";
    return out;
  }
  std::string filled(std::string_view pattern, const Scope& scope) {
    return expand_pattern(pattern, [&](char name) -> std::string {
      switch (name) {
        case 'p':
          return scope.p;
        case 'q':
          return scope.q;
        case 'v':
          return scope.v;
        case 'f':
          return function_name();
        case 'n':
          return random_.digits(1 + static_cast<int>(random_.below(3)));
        case 'a':
          return variable();
        case 'x':
          return std::string(random_.one_in(2) ? random_.pick(kCodeNotes)
                                               : random_.pick(kCodeTexts));
        case 't':
          return type_name();
        default:
          return {};
      }
    });
  }

  // A unit for each line, except for lines before which no statement may stand.
  void add_lines(std::vector<FillerUnit>& out, int32_t indent, std::string_view lines) {
    while (!lines.empty()) {
      const std::string_view line = lines.substr(0, lines.find('\n') + 1);
      lines.remove_prefix(line.size());
      const auto inner = static_cast<int32_t>(line.find_first_not_of(' '));
      const std::string_view code = line.substr(static_cast<size_t>(inner));
      const bool bound = code.starts_with("else") || code.starts_with("except") ||
                         code.starts_with("}") || code.starts_with("case") ||
                         code.starts_with("default");
      const std::string text = std::string(static_cast<size_t>(indent), ' ') + std::string(line);
      if (bound) {
        out.back().text += text;
      } else {
        out.push_back({.text = text, .style = style_, .indent = indent + inner});
      }
    }
  }
  void add_unit(std::vector<FillerUnit>& out, int32_t indent, std::string text) {
    out.push_back({.text = std::move(text), .style = style_, .indent = indent});
  }

  void begin_file(std::vector<FillerUnit>& out) {
    left_ = 5 + random_.below(10);
    const bool c = files_ == CodeFiles::c || (files_ == CodeFiles::mixed && random_.one_in(2));
    style_ = c ? FactStyle::c : FactStyle::python;
    const std::string_view folder = random_.pick(kCodeFolders);
    const std::string name = function_name(), note(random_.pick(kCodeNotes));
    const std::string path = std::string(folder) + "/" + name;
    const std::string gap = out.empty() ? "" : "\n";
    if (c) {
      add_unit(out, 0, gap + "// " + path + ".c: " + note + "\n");
      add_lines(out, 0, "#include <stdint.h>\n#include <string.h>\n");
      add_unit(out, 0, filled("#include \"$a.h\"\n", {}));
    } else {
      add_unit(out, 0, gap + "# " + path + ".py: " + note + "\n");
      add_lines(out, 0, "import logging\nimport os\n");
      add_unit(out, 0, filled("from $a import $f, $f\n", {}));
      add_unit(out, 0, "\nlogger = logging.getLogger(__name__)\n");
    }
  }

  void python_function(std::vector<FillerUnit>& out, int32_t indent, std::string_view self) {
    const Scope names = scope();
    const std::string blanks(static_cast<size_t>(indent), ' ');
    std::string head = (indent == 0 ? "\n\n" : "\n") + blanks + "def " + function_name() + "(" +
                       std::string(self) + names.p + ", " + names.q + "=None):\n";
    if (random_.one_in(2)) head += blanks + filled("    \"\"\"$x; $x.\"\"\"\n", names);
    add_unit(out, indent, std::move(head));
    const uint64_t statements = 2 + random_.below(5);
    for (uint64_t i = 0; i < statements; ++i)
      add_lines(out, indent + 4, filled(random_.pick(kPythonStatements), names));
    add_lines(out, indent + 4, filled("return $f($p, $q)\n", names));
  }

  void python_class(std::vector<FillerUnit>& out) {
    add_unit(out, 0, filled("\n\nclass $t:\n    \"\"\"$x.\"\"\"\n", {}));
    const Scope names = scope();
    add_unit(out, 4,
             filled("\n    def __init__(self, $p, $q=$n):\n        self.$a = $p\n"
                    "        self.$a = $q\n",
                    names));
    const uint64_t methods = 1 + random_.below(3);
    for (uint64_t i = 0; i < methods; ++i) python_function(out, 4, "self, ");
  }

  void c_function(std::vector<FillerUnit>& out) {
    const Scope names = scope();
    std::string head = "\n";
    if (random_.one_in(2)) head += filled("// $x; $x.\n", names);
    head += filled("static int $f(const uint32_t *$p, size_t $q) {\n", names);
    add_unit(out, 0, std::move(head));
    add_lines(out, 4, filled("uint32_t $v = $n;\n", names));
    const uint64_t statements = 2 + random_.below(5);
    for (uint64_t i = 0; i < statements; ++i)
      add_lines(out, 4, filled(random_.pick(kCStatements), names));
    add_lines(out, 4, filled("return (int)$v;\n", names));
    out.back().text += "}\n";
  }

  void c_struct(std::vector<FillerUnit>& out) {
    const Scope names = scope();
    add_unit(out, 0,
             filled("\nstruct $a {\n    uint32_t $p;  // $x\n    uint64_t $q;\n"
                    "    char $v[$n];\n};\n",
                    names));
  }

  NeedleRandom random_;
  CodeFiles files_;
  FactStyle style_ = FactStyle::python;
  uint64_t left_ = 0;  // functions and classes of this file
};

}  // namespace

std::unique_ptr<FillerSource> make_code_filler(uint64_t seed, CodeFiles files) {
  return std::make_unique<CodeFiller>(seed, files);
}

}  // namespace braid::cli
