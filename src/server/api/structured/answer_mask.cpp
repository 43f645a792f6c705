// answer_mask.cpp -- see answer_mask.h.
#include "server/api/structured/answer_mask.h"

#include <algorithm>

#include "server/api/structured/form_mask.h"
#include "server/api/structured/schema_grammar.h"
#include "text/blanks.h"
#include "text/unicode.h"

namespace braid::server {
namespace {

class AnswerMask : public TokenMask {
 public:
  AnswerMask(std::shared_ptr<const MaskRules> rules, std::shared_ptr<ThoughtEndCell> end)
      : rules_(std::move(rules)), end_(std::move(end)) {
    if (rules_->thought_loops) loops_.emplace(*rules_->thought_loops);
    State start;
    start.in_thought = rules_->starts_in_thought;
    spend(start);
    if (rules_->grammar != nullptr) {
      form_.emplace(rules_->grammar, rules_->tokenizer, rules_->workers);
      form_->wait();  // the first mask is computed off the engine's thread
    }
    path_.push_back(start);
  }

  bool ready(int64_t& allowance) override {
    return path_.back().in_thought || !form_ || form_->ready(allowance);
  }

  void allowed(std::span<uint64_t> bits) override {
    const State& now = path_.back();
    if (now.in_thought) {
      if (const int32_t forced = forced_at(now); forced >= 0) {
        set(bits, rules_->closing[static_cast<size_t>(forced)]);
        return;
      }
      set_all(bits);
    } else {
      allow_content(now, bits);
    }
    const bool too_early = now.generated < rules_->min_tokens;
    if (too_early) {
      for (const int32_t id : rules_->stop_ids) clear(bits, id);
    }
    if (rules_->suppress_end || too_early) {
      for (const int32_t id : rules_->end_ids) clear(bits, id);
      // At least one token must be allowed, so the end is.
      if (std::all_of(bits.begin(), bits.end(), [](uint64_t word) { return word == 0; }))
        set_end(bits);
    }
  }

  std::optional<std::span<const int32_t>> all_but() override {
    const State& now = path_.back();
    if (rules_->suppress_end || now.generated < rules_->min_tokens) return std::nullopt;
    if (!now.in_thought) return form_ ? std::nullopt : std::optional(std::span(forbidden(now)));
    return forced_at(now) >= 0 ? std::nullopt : std::optional(std::span<const int32_t>());
  }

  void advance(int32_t token) override {
    State now = path_.back();
    ++now.generated;
    const std::string_view piece = rules_->tokenizer->piece(token);
    if (now.in_thought) {
      const int32_t forced = forced_at(now);
      ++now.used;
      now.forced = forced >= 0 ? forced + 1 : -1;
      now.partial_bytes = partial_after(now.partial_bytes, piece);
      look_for_loop(now, token);
      spend(now);
      const bool closed = forced >= 0 ? now.forced == static_cast<int32_t>(rules_->closing.size())
                                      : token == rules_->think_close;
      // Set from the first forced token, before the closing text ends.
      if (forced >= 0) now.end = now.due;
      if (closed) {
        // The model closed the thought before the forced text began.
        if (forced < 0) now.end = ThoughtEnd::model;
        now.in_thought = false;
        now.forced = -1;
      }
    } else if (now.fresh && token == rules_->think_open) {
      now.in_thought = true;
      now.spelled = -1;
      now.section = now.text;
    } else {
      now.fresh = now.fresh && all_blank(piece);
      if (!form_) spell(now, piece);
      // A token outside the grammar breaks it, and then nothing is allowed.
      if (form_) {
        form_->advance(token);
        now.form = static_cast<uint32_t>(form_->depth());
      }
    }
    if (now.end != path_.back().end) tell(now.end);
    path_.push_back(now);
  }

  void rewind(int32_t tokens) override {
    const ThoughtEnd end = path_.back().end;
    path_.resize(path_.size() - static_cast<size_t>(tokens));
    if (path_.back().end != end) tell(path_.back().end);
    if (form_) form_->rewind_to(path_.back().form);
  }

 private:
  struct State {
    bool in_thought = false;
    bool fresh = true;          // content has only blanks so far
    uint8_t partial_bytes = 0;  // missing bytes of the last character of a thought
    int32_t forced = -1;        // tokens of the closing text so far; -1: not begun
    int32_t generated = 0;
    int64_t used = 0;       // reasoning tokens
    int64_t due_since = 0;  // reasoning tokens when `due` was set
    uint32_t form = 0;      // depth of the grammar's matcher
    uint32_t text = 0;      // tokens of text_
    uint32_t section = 0;   // its tokens before the thought, or before the end of its last call
    bool in_call = false;   // inside the thought
    int8_t spelled = 0;     // bytes of think_tag at the start of content; -1: other text
    ThoughtEnd due = ThoughtEnd::none;  // the reason to close the thought now
    ThoughtEnd end = ThoughtEnd::none;  // of the last thought
  };

  void tell(ThoughtEnd end) {
    if (end_ != nullptr) end_->store(end, std::memory_order_relaxed);
  }

  // Marks a looping thought to be closed. Calls inside it are not examined.
  void look_for_loop(State& now, int32_t token) {
    if (!loops_ || now.due != ThoughtEnd::none) return;
    text_.resize(now.text++);  // drops rewound tokens
    text_.push_back(token);
    if (token == rules_->call_open || token == rules_->call_close) {
      now.in_call = token == rules_->call_open;
      now.section = now.text;
    }
    if (!now.in_call && loops_->find(std::span(text_).subspan(now.section))) {
      now.due = ThoughtEnd::loop;
      now.due_since = now.used;
    }
  }
  // Models also spell the tag in letters. Then the closing token must be allowed.
  void spell(State& now, std::string_view piece) const {
    for (size_t i = 0; i < piece.size() && now.spelled >= 0 && !rules_->think_tag.empty(); ++i) {
      if (now.spelled == 0 &&
          (piece[i] == ' ' || piece[i] == '\t' || piece[i] == '\r' || piece[i] == '\n'))
        continue;
      now.spelled = piece[i] == rules_->think_tag[static_cast<size_t>(now.spelled)]
                        ? static_cast<int8_t>(now.spelled + 1)
                        : int8_t{-1};
      if (now.spelled != static_cast<int8_t>(rules_->think_tag.size())) continue;
      now.spelled = -1;
      now.in_thought = true;
      now.section = now.text;
      return;
    }
  }
  void spend(State& now) const {
    if (now.due != ThoughtEnd::none || rules_->thought_budget < 0 ||
        now.used < rules_->thought_budget)
      return;
    now.due = ThoughtEnd::budget;
    now.due_since = now.used;
  }

  static uint8_t partial_after(uint8_t before, std::string_view piece) {
    if (before > 0 && piece.size() < 4) {
      // Continuation bytes only. An approximate count suffices.
      const bool continues = std::all_of(piece.begin(), piece.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
      });
      if (continues) return before > piece.size() ? static_cast<uint8_t>(before - piece.size()) : 0;
    }
    for (size_t length = 1; length <= std::min<size_t>(3, piece.size()); ++length) {
      const std::string_view tail = piece.substr(piece.size() - length);
      if (utf8_step(tail).kind != Utf8Kind::incomplete) continue;
      const auto lead = static_cast<unsigned char>(tail[0]);
      const size_t whole = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
      return static_cast<uint8_t>(whole - length);
    }
    return 0;
  }

  // Index of the next forced token of the closing text, or -1.
  int32_t forced_at(const State& now) const {
    if (now.forced >= 0) return now.forced;
    if (now.due == ThoughtEnd::none || rules_->closing.empty()) return -1;
    const bool wait = now.partial_bytes > 0 && now.used < now.due_since + rules_->character_tokens;
    return wait ? -1 : 0;
  }

  void allow_content(const State& now, std::span<uint64_t> bits) {
    if (!form_) {
      set_all(bits);
    } else if (form_->wait(); !form_->broken()) {
      const std::span<const uint64_t> form = form_->bits();
      std::copy_n(form.begin(), std::min(form.size(), bits.size()), bits.begin());
      if (form_->accepts()) set_end(bits);
      if (now.fresh && now.generated == 0 && rules_->think_open >= 0) set(bits, rules_->think_open);
    }
    for (const int32_t id : forbidden(now)) clear(bits, id);
  }

  // After a thought that looped, no other thought may begin.
  const std::vector<int32_t>& forbidden(const State& now) const {
    return now.fresh && now.end != ThoughtEnd::loop ? rules_->forbidden : rules_->forbidden_later;
  }

  void set_all(std::span<uint64_t> bits) const {
    const auto vocabulary = static_cast<size_t>(rules_->tokenizer->size());
    const size_t words = std::min(bits.size(), vocabulary / 64);
    std::fill_n(bits.begin(), words, ~uint64_t{0});
    if (words < bits.size() && vocabulary % 64 != 0)
      bits[words] = (uint64_t{1} << (vocabulary % 64)) - 1;
  }
  void set_end(std::span<uint64_t> bits) const {
    for (const int32_t id : rules_->end_ids) set(bits, id);
  }
  static void set(std::span<uint64_t> bits, int32_t id) {
    if (static_cast<size_t>(id) / 64 < bits.size())
      bits[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
  }
  static void clear(std::span<uint64_t> bits, int32_t id) {
    if (static_cast<size_t>(id) / 64 < bits.size())
      bits[static_cast<size_t>(id) / 64] &= ~(uint64_t{1} << (id % 64));
  }

  std::shared_ptr<const MaskRules> rules_;
  std::vector<State> path_;  // after every token, for cheap rewinding
  std::optional<FormMask> form_;
  std::optional<LoopDetector> loops_;
  std::vector<int32_t> text_;  // thoughts, with their calls
  std::shared_ptr<ThoughtEndCell> end_;
};

int32_t id_of(const Tokenizer& tokenizer, std::string_view text) {
  return tokenizer.find(text).value_or(-1);
}

}  // namespace

std::unique_ptr<TokenMask> make_mask(std::shared_ptr<const MaskRules> rules,
                                     std::shared_ptr<ThoughtEndCell> end) {
  return std::make_unique<AnswerMask>(std::move(rules), std::move(end));
}

LoopRules loop_rules(const Generation& generation, const AnswerPolicy& policy) {
  const LoopOptions& options = generation.loops;
  const LoopGuard guard = options.guard.value_or(policy.loop_guard);
  LoopRules out;
  if (options.rule) {
    out.thought = out.content = options.rule;
  } else if (guard != LoopGuard::off) {
    out.thought = kThoughtLoops;
    out.content = kAnswerLoops;
    out.content_after_loop = guard == LoopGuard::think;
  }
  if (!options.break_thoughts) out.thought.reset();
  // Structured data may repeat, and with ignore_eos the answer must not be ended.
  if (generation.format.kind != OutputFormat::Kind::text || generation.ignore_eos)
    out.content.reset();
  return out;
}

ApiResult<MaskFactory> MaskFactory::create(const Generation& generation, const ServedModel& model,
                                           const AnswerPolicy& policy, bool starts_in_thought,
                                           bool thinking) {
  MaskFactory out;
  MaskRules& rules = out.rules_;
  const Tokenizer& tokenizer = *model.tokenizer;
  const Dialect& dialect = model.abilities.dialect;
  rules.tokenizer = model.tokenizer;
  rules.end_ids = tokenizer.end_ids();
  rules.suppress_end = generation.ignore_eos;
  rules.stop_ids = generation.stop_token_ids;
  rules.min_tokens = generation.min_tokens;
  rules.starts_in_thought = starts_in_thought;
  const int32_t think_open = id_of(tokenizer, dialect.think.open);
  rules.think_close = id_of(tokenizer, dialect.think.close);
  if (thinking) rules.think_open = think_open;
  if (generation.tool_choice.mode == ToolChoice::Mode::none && !generation.tools.empty()) {
    if (const int32_t call = id_of(tokenizer, dialect.call.open); call >= 0)
      rules.forbidden.push_back(call);
  }

  // Reasoning is closed only if open, and opened only at the start. Completions have neither.
  const bool conversation = generation.endpoint != Endpoint::completions;
  if (conversation && rules.think_close >= 0) rules.forbidden.push_back(rules.think_close);
  rules.forbidden_later = rules.forbidden;
  if (conversation && think_open >= 0) {
    rules.forbidden_later.push_back(think_open);
    if (!thinking) rules.forbidden.push_back(think_open);
  }
  if (conversation && rules.think_close >= 0) rules.think_tag = dialect.think.open;

  out.thinking_ = thinking && rules.think_close >= 0;
  const ReasoningOptions& options = generation.reasoning;
  if (out.thinking_) {
    const auto tier =
        options.effort ? policy.effort_tokens.find(*options.effort) : policy.effort_tokens.end();
    if (options.budget_tokens) {
      rules.thought_budget = *options.budget_tokens;
    } else if (tier != policy.effort_tokens.end()) {
      rules.thought_budget = tier->second;
    }
    const int64_t most = policy.most_thought_tokens;
    if (most >= 0)
      rules.thought_budget = rules.thought_budget < 0 ? most : std::min(rules.thought_budget, most);
    rules.thought_loops = loop_rules(generation, policy).thought;
    if (!generation.tools.empty()) {
      rules.call_open = id_of(tokenizer, dialect.call.open);
      rules.call_close = id_of(tokenizer, dialect.call.close);
    }
    out.reserve_tokens_ = policy.reply_reserve_tokens;
    auto closing =
        tokenizer.encode(dialect.end_of_thought, {.add_special = false, .parse_special = true});
    if (closing.ok()) rules.closing = std::move(*closing);
  }
  auto grammar = answer_grammar(generation, model, policy);
  if (!grammar.ok()) return grammar.error();
  rules.grammar = std::move(*grammar);
  if (rules.grammar != nullptr) rules.workers = model.grammars->workers();
  return out;
}

std::set<std::string, std::less<>> MaskFactory::held_tools() const {
  return rules_.grammar == nullptr ? std::set<std::string, std::less<>>()
                                   : rules_.grammar->held_tools();
}

// Tokens kept for the visible answer.
int64_t MaskFactory::reserve_of(int32_t max_tokens) const {
  return thinking_ ? std::min<int64_t>(reserve_tokens_, max_tokens / 4) : 0;
}

std::shared_ptr<TokenMask> MaskFactory::make(int32_t max_tokens,
                                             std::shared_ptr<ThoughtEndCell> end) const {
  auto rules = std::make_shared<MaskRules>(rules_);
  if (const int64_t reserve = reserve_of(max_tokens); reserve > 0) {
    const auto closing = static_cast<int64_t>(rules->closing.size());
    const int64_t room = std::max<int64_t>(0, max_tokens - reserve - closing);
    if (rules->thought_budget < 0 || rules->thought_budget > room) rules->thought_budget = room;
    // Finishing a character must not use up the reserve.
    rules->character_tokens =
        static_cast<int32_t>(std::min<int64_t>(rules->character_tokens, reserve - 1));
  }
  const bool holds = rules->suppress_end || rules->min_tokens > 0 || rules->thought_budget >= 0 ||
                     rules->thought_loops || !rules->forbidden_later.empty() ||
                     rules->grammar != nullptr;
  return holds ? std::shared_ptr<TokenMask>(make_mask(std::move(rules), std::move(end))) : nullptr;
}

}  // namespace braid::server
