// agent_trace.cpp -- see agent_trace.h.
#include "cli/bench/agent_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "cli/bench/needle_grammar.h"

namespace braid::cli {
namespace {

using TraceWords = std::string_view[];

constexpr int kTraceAttempts = 8;  // with other facts, if an answer is in the filler by chance
constexpr int64_t kLeastOutputTokens = 250, kMostOutputTokens = 2000, kTraceSlackTokens = 16;

constexpr TraceWords kTraceModules = {
    "storage/compact_index", "net/session_pool", "core/merge_table",  "runtime/worker_queue",
    "index/lookup_cache",    "api/render_page",  "tools/rotate_keys", "core/parse_header"};
constexpr TraceWords kTraceFaults = {"is slow after a restart",   "loses the last record",
                                     "counts some entries twice", "fails on empty input",
                                     "keeps files open",          "blocks when the disk is full",
                                     "returns stale values",      "ignores its time limit"};
constexpr TraceWords kTraceWishes = {"Please find out why $m $f.",
                                     "It looks as if $m $f. Can you fix that?",
                                     "One more report says that $m $f. Please have a look.",
                                     "Before the release: $m $f. What is the cause?",
                                     "The last change did not help, $m still $f. Go on."};
constexpr TraceWords kTraceThoughts = {
    "I look at the source first.", "The next step is the caller.", "I want to see what was logged.",
    "This needs a closer look.",   "That explains a part of it.",  "I compare both versions."};
constexpr TraceWords kTraceEnds = {
    "The cause is in $m: the limit was checked after the write. I changed the order.",
    "I found it in $m. The state was not reset between two calls, and now it is.",
    "The fault is not in $m itself but in its caller, which passed the old size. It is corrected.",
    "I added the missing check to $m. All tests pass."};

enum class ToolOutput { python_file, c_file, log, change };
constexpr ToolOutput kTraceOutputs[] = {ToolOutput::python_file, ToolOutput::c_file,
                                        ToolOutput::log, ToolOutput::change};

// Lines of a file as a change: most are context, some are added or removed.
std::string as_change(std::string_view path, std::string_view code, NeedleRandom& random) {
  std::string out = fmt::format("--- a/{0}\n+++ b/{0}\n@@ -1,40 +1,40 @@\n", path);
  while (!code.empty()) {
    const std::string_view line = code.substr(0, code.find('\n'));
    code.remove_prefix(std::min(code.size(), line.size() + 1));
    const uint64_t kind = random.below(8);
    out += kind == 0 ? '-' : kind == 1 ? '+' : ' ';
    out += line;
    out += '\n';
  }
  return out;
}

class TraceWriter {
 public:
  TraceWriter(const TraceShape& shape, const EncodeText& encode, uint64_t attempt)
      : shape_(shape),
        encode_(encode),
        counter_(encode),
        random_(shape.seed, 'a'),
        fact_random_(shape.seed, 'f' + attempt) {}

  Result<AgentTrace> make();

 private:
  struct Planned {
    int32_t turn = 0;
    Fact fact;
  };

  Status make_turn(int32_t turn);
  // `fact`: to stand in the middle of the output.
  Status call_tool(ToolOutput output, int64_t room, std::optional<size_t> fact);
  Result<std::string> output_text(ToolOutput output, const std::string& path, int64_t room,
                                  std::optional<size_t> fact);
  Status add(std::string_view role, std::string content);
  // Notes where a fact is in the content that comes next.
  void place_fact(size_t fact, const std::string& content, const std::string& text);
  std::string about_module(std::string_view pattern);

  const TraceShape& shape_;
  const EncodeText& encode_;
  TokenCounter counter_;
  NeedleRandom random_, fact_random_;
  std::string_view module_;  // of this turn
  std::vector<Planned> planned_;
  AgentTrace out_;
};

std::string TraceWriter::about_module(std::string_view pattern) {
  return expand_pattern(pattern, [&](char name) -> std::string_view {
    return name == 'm' ? module_ : random_.pick(kTraceFaults);
  });
}

Status TraceWriter::add(std::string_view role, std::string content) {
  BRAID_ASSIGN(const int64_t tokens, counter_.count(content));
  out_.tokens += tokens + shape_.message_tokens;
  out_.messages.push_back({std::string(role), std::move(content)});
  return {};
}

void TraceWriter::place_fact(size_t fact, const std::string& content, const std::string& text) {
  TraceQuestion& question = out_.questions[fact];
  const size_t from = text.find_first_not_of(" \n"), to = text.find_last_not_of(" \n") + 1;
  question.message = out_.messages.size();
  question.begin = content.find(text) + from;
  question.end = question.begin + to - from;
}

Result<std::string> TraceWriter::output_text(ToolOutput output, const std::string& path,
                                             int64_t room, std::optional<size_t> fact) {
  const uint64_t seed = random_.next();
  std::unique_ptr<FillerSource> source;
  if (output == ToolOutput::log) {
    source = make_log_filler(seed);
  } else {
    source =
        make_code_filler(seed, output == ToolOutput::c_file ? CodeFiles::c : CodeFiles::python);
  }
  FillerStock stock(std::move(source), encode_);
  if (output == ToolOutput::change) room = room * 3 / 5;  // the marks of lines take the rest
  if (fact) {
    BRAID_TRY(stock.cut(0, 0));
    BRAID_ASSIGN(const int64_t tokens,
                 counter_.count(write_fact(planned_[*fact].fact, stock.unit(0))));
    room -= tokens + kTraceSlackTokens;  // in the middle it may be indented
  }
  BRAID_ASSIGN(const std::vector<FillerUnit> units, fill_units(stock, room, kTraceSlackTokens));
  std::string text;
  for (size_t i = 0; i < units.size(); ++i) {
    if (fact && i == units.size() / 2) {
      const std::string written = write_fact(planned_[*fact].fact, units[i]);
      text += written;
      place_fact(*fact, text, written);
    }
    text += units[i].text;
  }
  return output == ToolOutput::change ? as_change(path, text, random_) : text;
}

Status TraceWriter::call_tool(ToolOutput output, int64_t room, std::optional<size_t> fact) {
  const std::string_view ending = output == ToolOutput::c_file ? ".c"
                                  : output == ToolOutput::log  ? ".log"
                                                               : ".py";
  const std::string path = std::string(module_) + std::string(ending);
  const std::string call = output == ToolOutput::log ? fmt::format("run(\"tail {}\")", path)
                           : output == ToolOutput::change
                               ? fmt::format("run(\"git diff -- {}\")", path)
                               : fmt::format("read_file(\"{}\")", path);
  const int64_t before = out_.tokens;
  BRAID_TRY(add("assistant", fmt::format("{}\n\n{}", random_.pick(kTraceThoughts), call)));
  room -= out_.tokens - before + shape_.message_tokens;
  BRAID_ASSIGN(std::string text, output_text(output, path, room, fact));
  return add("tool", std::move(text));
}

Status TraceWriter::make_turn(int32_t turn) {
  module_ = random_.pick(kTraceModules);
  std::string wish = about_module(random_.pick(kTraceWishes));
  if (planned_[0].turn == turn) {
    const std::string sentence = " " + planned_[0].fact.sentence;
    wish += " Keep this for later:" + sentence;
    place_fact(0, wish, sentence);
  }
  BRAID_TRY(add("user", std::move(wish)));
  std::string closing = about_module(random_.pick(kTraceEnds));
  BRAID_ASSIGN(int64_t closing_tokens, counter_.count(closing));
  closing_tokens += shape_.message_tokens;
  const int64_t end = shape_.tokens * (turn + 1) / shape_.turns;
  const bool last_turn = turn + 1 == shape_.turns;
  for (bool more = true, first = true; more; first = false) {
    const int64_t left = end - closing_tokens - out_.tokens;
    const int64_t wanted =
        kLeastOutputTokens +
        static_cast<int64_t>(random_.below(kMostOutputTokens - kLeastOutputTokens));
    more = left >= wanted + kLeastOutputTokens;
    std::optional<size_t> fact;
    // A change misses its size by a few tokens, for which later outputs make up.
    auto output = random_.pick(kTraceOutputs);
    if (!more && last_turn && output == ToolOutput::change) output = ToolOutput::log;
    if (first && planned_[1].turn == turn) {
      fact = 1;
      output = ToolOutput::python_file;
    } else if (first && planned_[2].turn == turn) {
      fact = 2;
      output = ToolOutput::log;
    }
    BRAID_TRY(call_tool(output, more ? wanted : left, fact));
  }
  return add("assistant", std::move(closing));
}

Result<AgentTrace> TraceWriter::make() {
  out_.shape = shape_;
  out_.id = trace_id(shape_);
  const int32_t late = shape_.turns - (shape_.turns > 4 ? 2 : 1);
  const std::pair<Needle, int32_t> kinds[] = {{Needle::number, shape_.turns / 8},
                                              {Needle::identifier, shape_.turns / 2},
                                              {Needle::uuid, late}};
  for (const auto& [needle, turn] : kinds) {
    FactSet drawn = draw_facts(needle, fact_random_);
    planned_.push_back({turn, drawn.facts.front()});
    out_.questions.push_back(
        {.text = drawn.question, .answers = drawn.answers, .needle = needle, .turn = turn});
  }
  for (int32_t turn = 0; turn < shape_.turns; ++turn) BRAID_TRY(make_turn(turn));
  return std::move(out_);
}

bool trace_leaks(const AgentTrace& trace) {
  std::string all;
  for (const TraceMessage& message : trace.messages) all += message.content + "\n";
  for (const TraceQuestion& question : trace.questions) all += question.text + "\n";
  return std::any_of(
      trace.questions.begin(), trace.questions.end(), [&](const TraceQuestion& question) {
        return std::any_of(
            question.answers.begin(), question.answers.end(),
            [&](const std::string& answer) { return count_texts(all, answer) != 1; });
      });
}

}  // namespace

std::string trace_id(const TraceShape& shape) {
  return fmt::format("agent-t{}-n{}-s{}", shape.tokens, shape.turns, shape.seed);
}

Result<AgentTrace> make_agent_trace(const TraceShape& shape, const EncodeText& encode) {
  if (shape.turns < 3 || shape.tokens / shape.turns < kLeastTurnTokens)
    return Error{ErrorKind::invalid_argument,
                 fmt::format("{} turns of {} tokens: there must be three, of {} tokens each",
                             shape.turns, shape.tokens, kLeastTurnTokens)};
  for (uint64_t attempt = 0; attempt < kTraceAttempts; ++attempt) {
    BRAID_ASSIGN(AgentTrace made, TraceWriter(shape, encode, attempt).make());
    if (made.tokens > shape.tokens)
      return Error{ErrorKind::unsupported,
                   fmt::format("{} cannot be made of this tokenizer's tokens: it takes {}", made.id,
                               made.tokens)};
    if (!trace_leaks(made)) return made;
  }
  return Error{ErrorKind::invalid_argument,
               fmt::format("the texts of {} have the answers in them", trace_id(shape))};
}

bool contains_answers(std::string_view text, const TraceQuestion& question) {
  return contains_all(text, question.answers, question.needle);
}

}  // namespace braid::cli
