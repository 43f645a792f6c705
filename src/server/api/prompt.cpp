// prompt.cpp -- see prompt.h.
#include "server/api/prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <set>
#include <utility>

#include "server/api/json_memory.h"
#include "server/api/structured/answer_mask.h"
#include "text/blanks.h"

namespace braid::server {
namespace {

using Role = Message::Role;

// Placeholder for text that templates must not trim.
constexpr std::string_view kSentinel =
    "\x01"
    "braid-continues-here"
    "\x01";
constexpr size_t kMaxCheckpoints = 64;
// Maximum of log probabilities that one request may keep until they are sent.
constexpr int64_t kMaxKeptLogprobs = 1 << 20;

// A render goes beyond its limits because the conversation is long, or because the template loops.
ApiError template_error(const Error& error, const Messages& messages) {
  constexpr size_t kLongBytes = size_t{1} << 20;
  size_t bytes = 0;
  for (const Message& message : messages) bytes += message.text.size();
  const bool too_long = error.kind == ErrorKind::exhausted && bytes >= kLongBytes;
  return {.code = too_long ? "context_length_exceeded" : "chat_template_error",
          .param = "messages",
          .message = "the chat template refused the conversation: " + error.message};
}

std::optional<bool> wanted_thinking(const Generation& generation, const AnswerPolicy& policy) {
  if (generation.reasoning.think) return generation.reasoning.think;
  if (policy.thinking == Thinking::automatic) return std::nullopt;
  return policy.thinking == Thinking::on;
}

// The template's nearest effort, or the higher of two. Thinking off without a switch: the lowest.
void set_effort(ChatOptions& options, const Generation& generation,
                const TemplateAbilities& abilities) {
  const std::vector<std::string>& known = abilities.efforts;
  if (!generation.reasoning.effort || known.empty()) return;
  if (options.enable_thinking == false && abilities.thinking_switch) {
    options.variables.erase("reasoning_effort");
    return;
  }
  const auto rank = [](const std::string& effort) {
    return std::find(kEfforts.begin(), kEfforts.end(), effort) - kEfforts.begin();
  };
  const auto wanted = rank(*generation.reasoning.effort);
  const auto nearer = [&](const std::string& a, const std::string& b) {
    const auto of_a = std::abs(rank(a) - wanted), of_b = std::abs(rank(b) - wanted);
    return of_a != of_b ? of_a < of_b : rank(a) > rank(b);
  };
  options.variables["reasoning_effort"] = *std::min_element(known.begin(), known.end(), nearer);
}

// Whether thoughts of earlier turns stay in the prompt. Empty: the template's default.
std::optional<bool> keeps_thinking(const Generation& generation, const ServedModel& model,
                                   const AnswerPolicy& policy) {
  if (!model.abilities.preserve_thinking) return std::nullopt;
  if (policy.preserve_thinking) return policy.preserve_thinking;
  const bool sent =
      std::any_of(generation.messages.begin(), generation.messages.end(),
                  [](const Message& message) { return message.reasoning.has_value(); });
  return generation.keep_thinking || sent ? std::optional(true) : std::nullopt;
}

// Renders the text before the last message and appends that message unchanged.
ApiResult<RenderedText> render_continued(const Generation& generation, const ServedModel& model,
                                         Messages messages, ChatOptions options) {
  Message& last = messages.back();
  const bool in_thought = last.text.empty() && last.reasoning && !last.reasoning->empty();
  const std::string text =
      std::exchange(in_thought ? *last.reasoning : last.text, std::string(kSentinel));
  options.add_generation_prompt = false;
  auto rendered =
      model.chat->render(template_messages(messages, model.abilities), generation.tools, options);
  if (!rendered.ok()) return template_error(rendered.error(), messages);
  const size_t at = rendered->text.rfind(kSentinel);
  if (at == std::string::npos) {
    return unsupported("messages",
                       "messages: the template of this model cannot continue an assistant message");
  }
  RenderedText out = rendered->prefix(at);
  out.append(text, Origin::answer);
  return out;
}

// Positions to resume from: ends of messages and of the list of tools. Those before the first
// message of the conversation are shared with other conversations.
std::vector<ResumePoint> checkpoints_of(const std::vector<int32_t>& ids,
                                        const RenderedPrompt& prompt, const ServedModel& model) {
  std::vector<ResumePoint> out;
  if (!prompt.stable.text.empty()) {
    const auto head = model.tokenizer->encode_rendered(prompt.stable);
    if (head.ok()) {
      const auto [a, b] = std::mismatch(head->begin(), head->end(), ids.begin(), ids.end());
      if (a - head->begin() > 16)
        out.push_back({static_cast<int32_t>(a - head->begin()), ResumeKind::shared});
    }
  }
  bool in_head = prompt.has_head;
  // The first token never ends a message: in some vocabularies it may also be an end token.
  for (size_t i = 1; i + 1 < ids.size(); ++i) {
    if (!model.tokenizer->is_end(ids[i])) continue;
    // The line feed after the end of a turn belongs to the turn.
    const bool line = model.tokenizer->piece(ids[i + 1]) == "\n";
    const auto position = static_cast<int32_t>(i + (line ? 2 : 1));
    const ResumeKind kind = std::exchange(in_head, false) ? ResumeKind::shared : ResumeKind::turn;
    if (position < static_cast<int32_t>(ids.size()) &&
        (out.empty() || position > out.back().position))
      out.push_back({position, kind});
  }
  if (out.size() <= kMaxCheckpoints) return out;
  const auto first_turn = std::find_if(
      out.begin(), out.end(), [](const ResumePoint& p) { return p.kind == ResumeKind::turn; });
  out.erase(first_turn, first_turn + static_cast<std::ptrdiff_t>(out.size() - kMaxCheckpoints));
  return out;
}

// Expands texts to their tokens, each once. Counts while expanding, to bound long lists.
ApiResult<std::vector<std::pair<int32_t, float>>> biases_of(const SamplingOverrides& overrides,
                                                            const Tokenizer& tokenizer) {
  std::vector<std::pair<int32_t, float>> out = overrides.logit_bias;
  for (const auto& [id, bias] : out) {
    if (id >= tokenizer.size()) {
      return invalid_value(
          "logit_bias", fmt::format("logit_bias: {} is not one of the {} tokens of the vocabulary",
                                    id, tokenizer.size()));
    }
  }
  for (const auto& [text, bias] : overrides.logit_bias_texts) {
    auto ids = tokenizer.encode(text, {.add_special = false, .parse_special = true});
    if (!ids.ok()) return invalid_value("logit_bias", "logit_bias: " + ids.error().message);
    std::sort(ids->begin(), ids->end());
    ids->erase(std::unique(ids->begin(), ids->end()), ids->end());
    if (out.size() + ids->size() > kMaxLogitBiases) {
      return invalid_value(
          "logit_bias",
          fmt::format("logit_bias: its entries are more than {} tokens", kMaxLogitBiases));
    }
    for (const int32_t id : *ids) out.emplace_back(id, bias);
  }
  merge_biases(out);
  return out;
}

ApiResult<SamplingParams> sampling_of(const Generation& generation, const ServedModel& model,
                                      uint64_t random_seed) {
  const SamplingOverrides& overrides = generation.sampling;
  SamplingParams out = model.defaults;
  const auto set = [](float& value, const std::optional<double>& asked) {
    if (asked) value = static_cast<float>(*asked);
  };
  set(out.temperature, overrides.temperature);
  set(out.top_p, overrides.top_p);
  set(out.min_p, overrides.min_p);
  set(out.repetition_penalty, overrides.repetition_penalty);
  set(out.presence_penalty, overrides.presence_penalty);
  set(out.frequency_penalty, overrides.frequency_penalty);
  if (overrides.top_k) out.top_k = *overrides.top_k;
  if (overrides.penalty_last_n) out.penalty_last_n = *overrides.penalty_last_n;
  out.seed = overrides.seed.value_or(random_seed);
  auto biases = biases_of(overrides, *model.tokenizer);
  if (!biases.ok()) return biases.error();
  out.logit_bias = std::move(*biases);
  return out;
}

// The requested limit, reduced to what the context allows. Never an error.
int32_t max_tokens_of(const Generation& generation, const AnswerPolicy& policy, int64_t prompt,
                      int64_t context) {
  int64_t most = generation.max_tokens.value_or(policy.default_max_tokens);
  if (most < 0) most = context;
  return static_cast<int32_t>(std::min(most, context - prompt));
}

// Tokenizes only the beginning of a text far beyond the context. Empty if the text may fit.
template <typename Encode>
std::optional<ApiError> far_too_long(std::string_view text, int64_t context,
                                     Encode encode_beginning) {
  size_t bytes = 16 * static_cast<size_t>(context);
  if (text.size() / 2 < bytes) return std::nullopt;
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) --bytes;
  const auto ids = encode_beginning(bytes);
  // Cutting the text changes at most its last word.
  if (!ids.ok() || static_cast<int64_t>(ids->size()) < context + context / 8) return std::nullopt;
  const double tokens_per_byte = static_cast<double>(ids->size()) / static_cast<double>(bytes);
  return too_long(static_cast<int64_t>(tokens_per_byte * static_cast<double>(text.size())),
                  context);
}

ApiResult<std::vector<int32_t>> completion_tokens(const Generation& generation,
                                                  const PromptInput& input,
                                                  const ServedModel& model) {
  const Tokenizer& tokenizer = *model.tokenizer;
  if (const auto* given = std::get_if<std::vector<int32_t>>(&input)) {
    for (const int32_t id : *given) {
      if (id >= tokenizer.size()) {
        return invalid_value(
            "prompt", fmt::format("prompt: {} is not one of the {} tokens of the vocabulary", id,
                                  tokenizer.size()));
      }
    }
    return *given;
  }
  const bool fill = generation.suffix && !generation.suffix->empty();
  if (fill && !(tokenizer.fim_prefix() && tokenizer.fim_suffix() && tokenizer.fim_middle())) {
    return unsupported("suffix",
                       "suffix: this model's vocabulary has no fill-in-the-middle tokens");
  }
  const std::string& text = std::get<std::string>(input);
  const EncodeOptions options{.add_special = generation.add_special && !fill,
                              .parse_special = true};
  const auto beginning = [&](size_t bytes) {
    return tokenizer.encode(text.substr(0, bytes), options);
  };
  if (const auto error = far_too_long(text, model.backend->context_tokens(), beginning))
    return *error;
  auto ids = tokenizer.encode(text, options);
  if (!ids.ok()) return invalid_value("prompt", "prompt: " + ids.error().message);
  if (fill) {
    const auto tail =
        tokenizer.encode(*generation.suffix, {.add_special = false, .parse_special = true});
    if (!tail.ok()) return invalid_value("suffix", "suffix: " + tail.error().message);
    ids->insert(ids->begin(), *tokenizer.fim_prefix());
    ids->push_back(*tokenizer.fim_suffix());
    ids->insert(ids->end(), tail->begin(), tail->end());
    ids->push_back(*tokenizer.fim_middle());
  }
  if (ids->empty()) return invalid_value("prompt", "prompt must not be empty");
  return std::move(*ids);
}

Json callable_tools(const Generation& generation) {
  const std::set<std::string>& names = generation.tool_choice.names;
  if (names.empty()) return generation.tools;
  Json out = Json::array();
  for (const Json& tool : generation.tools) {
    if (names.contains(tool["function"]["name"].get_ref<const std::string&>())) out.push_back(tool);
  }
  return out;
}

ApiResult<Request> request_of(const Generation& generation, const ServedModel& model,
                              const AnswerPolicy& policy, std::vector<int32_t> ids,
                              const SamplingParams& sampling) {
  const int64_t context = model.backend->context_tokens();
  const auto prompt = static_cast<int64_t>(ids.size());
  if (prompt >= context) return too_long(prompt, context);
  Request request;
  request.prompt = std::move(ids);
  request.sampling = sampling;
  request.max_tokens = max_tokens_of(generation, policy, prompt, context);
  if (!generation.ignore_eos) request.stop_ids = model.tokenizer->end_ids();
  for (const int32_t id : generation.stop_token_ids) {
    if (id >= model.tokenizer->size()) {
      return invalid_value("stop_token_ids",
                           fmt::format("stop_token_ids: there is no token {}", id));
    }
    request.stop_ids.push_back(id);
  }
  request.priority = policy.low_priority_first ? -generation.priority : generation.priority;
  request.cache_salt = generation.cache_salt;
  request.use_cache = generation.cache_prompt;
  request.top_logprobs = generation.top_logprobs;
  return request;
}

// An unstreamed answer keeps its log probabilities to its end, and an echo to its first token.
// Without a requested length, the answer is limited to what fits.
std::optional<ApiError> bound_logprobs(const Generation& generation,
                                       std::vector<Request>& prompts) {
  if (generation.top_logprobs < 0) return std::nullopt;
  const bool open_end = generation.max_tokens.value_or(-1) < 0;
  const int64_t each = (int64_t{1} + generation.top_logprobs) * generation.n;
  int64_t left = kMaxKeptLogprobs / each;  // tokens of all prompts and one answer each
  for (const Request& request : prompts) {
    if (generation.echo) left -= static_cast<int64_t>(request.prompt.size());
  }
  const int64_t most = left / static_cast<int64_t>(prompts.size());
  for (Request& request : prompts) {
    if (generation.stream) break;
    if (open_end) {
      request.max_tokens =
          static_cast<int32_t>(std::min<int64_t>(request.max_tokens, std::max<int64_t>(most, 1)));
    }
    left -= request.max_tokens;
  }
  if (left >= 0) return std::nullopt;
  const char* field = generation.endpoint == Endpoint::completions ? "logprobs" : "top_logprobs";
  return invalid_value(
      field, fmt::format("{}: this request could have more than {} log probabilities; ask for "
                         "fewer of each token, for fewer tokens or for a stream",
                         field, kMaxKeptLogprobs));
}

// Log probabilities of a prompt cost a softmax per token and bypass the prefix cache.
EchoedPrompt echo_of(const PromptInput& input, const Tokenizer& tokenizer, Request& request) {
  EchoedPrompt out;
  const auto* text = std::get_if<std::string>(&input);
  out.text = text != nullptr ? *text : tokenizer.decode(request.prompt, SpecialText::show);
  if (request.top_logprobs < 0) return out;
  const auto scores = std::make_shared<std::vector<TokenEvent>>();
  scores->push_back({request.prompt[0], std::numeric_limits<float>::quiet_NaN(), {}});
  request.score = [scores, prompt = request.prompt, top = request.top_logprobs,
                   scratch = SamplerScratch()](int32_t position,
                                               std::span<const float> logits) mutable {
    const size_t next = static_cast<size_t>(position) + 1;
    if (next >= prompt.size()) return;
    TokenEvent& event = scores->emplace_back();
    event.id = prompt[next];
    const double sum = log_sum(logits);
    event.logprob = log_probability(logits, sum, event.id);
    top_log_probabilities(logits, sum, top, scratch, event.top);
  };
  out.scores = scores;
  return out;
}

}  // namespace

ApiResult<RenderedPrompt> render_prompt(const Generation& generation, const ServedModel& model,
                                        const AnswerPolicy& policy) {
  if (!model.chat) {
    return ApiError{
        .status = 501,
        .type = "not_supported_error",
        .code = "not_supported",
        .message = "this model has no chat template that can be used; /v1/completions works"};
  }
  ChatOptions options;
  options.add_generation_prompt = generation.add_generation_prompt;
  options.enable_thinking = wanted_thinking(generation, policy);
  options.variables = generation.template_variables;
  if (options.enable_thinking) options.variables.erase("enable_thinking");
  set_effort(options, generation, model.abilities);
  const std::optional<bool> keep = keeps_thinking(generation, model, policy);
  if (keep && !options.variables.contains("preserve_thinking")) {
    options.variables["preserve_thinking"] = *keep;
  }
  Messages messages = normalise(generation.messages, model.abilities, policy.late_system);
  options.instruction_bytes = instruction_bytes(messages);
  RenderedPrompt out;
  out.thinking = options.enable_thinking.value_or(true);
  out.has_head =
      !generation.tools.empty() || (!messages.empty() && messages[0].role == Role::system);
  if (generation.continue_final && !messages.empty() && messages.back().role == Role::assistant) {
    auto text = render_continued(generation, model, messages, options);
    if (!text.ok()) return text.error();
    out.text = std::move(*text);
    return out;
  }
  auto text =
      model.chat->render(template_messages(messages, model.abilities), generation.tools, options);
  if (!text.ok()) return template_error(text.error(), messages);
  out.text = std::move(*text);
  if (!generation.tools.empty() && messages[0].role == Role::system) {
    // Templates of the family print tools before the system text.
    std::string_view head = messages[0].text;
    head = head.substr(0, std::min<size_t>(64, head.size()));
    head = trimmed_start(head);
    const size_t at = head.empty() ? std::string::npos : out.text.text.find(head);
    if (at != std::string::npos) out.stable = out.text.prefix(at);
  }
  return out;
}

ApiResult<std::vector<int32_t>> prompt_tokens(const RenderedPrompt& prompt,
                                              const ServedModel& model) {
  auto ids = model.tokenizer->encode_rendered(prompt.text);
  if (!ids.ok()) return invalid_value("messages", "messages: " + ids.error().message);
  if (ids->empty())
    return invalid_value("messages", "messages: the template made an empty prompt of them");
  return std::move(*ids);
}

void drop_prompt(Generation& generation) {
  Messages().swap(generation.messages);
  generation.tools = Json();
  generation.template_variables = Json();
  for (PromptInput& prompt : generation.prompts) prompt = PromptInput();  // writers use the count
  generation.suffix.reset();
  generation.format = {};
  generation.sampling = {};
}

size_t prepared_bytes(const PreparedAnswer& prepared) {
  size_t bytes = 0;
  for (const Request& request : prepared.requests) {
    bytes += sizeof(Request) + request.prompt.capacity() * sizeof(int32_t) +
             request.checkpoints.capacity() * sizeof(ResumePoint) +
             request.sampling.logit_bias.capacity() * sizeof(request.sampling.logit_bias[0]);
    if (!request.score) continue;
    const auto top = static_cast<size_t>(std::max(0, request.top_logprobs));
    // request.score holds a copy of the prompt.
    bytes += request.prompt.size() * (sizeof(int32_t) + sizeof(TokenEvent) +
                                      block_bytes(top * sizeof(TokenEvent().top[0])));
  }
  for (const EchoedPrompt& echoed : prepared.echoed) bytes += string_bytes(echoed.text);
  return bytes;
}

ApiResult<PreparedAnswer> prepare_answer(std::shared_ptr<const Generation> generation,
                                         const ServedModel& model, const AnswerPolicy& policy,
                                         uint64_t random_seed) {
  PreparedAnswer out;
  out.generation = generation;
  out.parsed = generation->endpoint != Endpoint::completions;
  auto sampling = sampling_of(*generation, model, random_seed);
  if (!sampling.ok()) return sampling.error();
  out.seed = sampling->seed;
  out.temperature = sampling->temperature;
  out.top_p = sampling->top_p;

  std::vector<Request> prompts;
  bool thinking = false;
  if (out.parsed) {
    // Each message renders to at least one token, so too many are refused before rendering.
    const int64_t context = model.backend->context_tokens();
    const auto count = static_cast<int64_t>(generation->messages.size());
    if (count > context) return too_long(count, context);
    auto rendered = render_prompt(*generation, model, policy);
    if (!rendered.ok()) return rendered.error();
    const auto beginning = [&](size_t bytes) {
      return model.tokenizer->encode_rendered(rendered->text.prefix(bytes));
    };
    if (const auto error =
            far_too_long(rendered->text.text, model.backend->context_tokens(), beginning)) {
      return *error;
    }
    auto ids = prompt_tokens(*rendered, model);
    if (!ids.ok()) return ids.error();
    std::vector<ResumePoint> checkpoints = checkpoints_of(*ids, *rendered, model);
    auto request = request_of(*generation, model, policy, std::move(*ids), *sampling);
    if (!request.ok()) return request.error();
    request->checkpoints = std::move(checkpoints);
    prompts.push_back(std::move(*request));
    // A continued thought does not end with the tag.
    const Dialect& dialect = model.abilities.dialect;
    const std::string& text = rendered->text.text;
    out.format.starts_in_thought =
        generation->continue_final ? dialect.is_in_thought(text) : dialect.opens_thought(text);
    thinking = out.format.starts_in_thought ||
               (rendered->thinking && model.abilities.reasoning && !dialect.closes_thought(text));
    if (!generation->tools.empty() && generation->tool_choice.mode != ToolChoice::Mode::none) {
      out.format.tools = std::make_shared<OfferedTools>(callable_tools(*generation));
      // Without a constraint on calls, the client must check the names.
      out.format.offered_only = policy.tool_form != AnswerPolicy::ToolForm::free ||
                                generation->tool_choice.mode == ToolChoice::Mode::required ||
                                !generation->tool_choice.names.empty();
    }
    out.format.may_think = thinking;
    out.format.dialect = dialect;
  } else {
    for (const PromptInput& input : generation->prompts) {
      auto ids = completion_tokens(*generation, input, model);
      if (!ids.ok()) return ids.error();
      auto request = request_of(*generation, model, policy, std::move(*ids), *sampling);
      if (!request.ok()) return request.error();
      prompts.push_back(std::move(*request));
    }
  }

  if (auto fault = bound_logprobs(*generation, prompts)) return *fault;
  out.loops = loop_rules(*generation, policy);
  out.loop_ends_as_length = policy.loop_ends_as_length;
  auto masks =
      MaskFactory::create(*generation, model, policy, out.format.starts_in_thought, thinking);
  if (!masks.ok()) return masks.error();
  out.format.held = masks->held_tools();
  for (size_t p = 0; p < prompts.size(); ++p) {
    const Request& prompt = prompts[p];
    out.prompt_tokens += static_cast<int64_t>(prompt.prompt.size());
    for (int32_t i = 0; i < generation->n; ++i) {
      Request request = prompt;
      request.sampling.seed += static_cast<uint64_t>(out.requests.size()) * 0x9E3779B97F4A7C15u;
      out.thought_ends.push_back(std::make_shared<ThoughtEndCell>(ThoughtEnd::none));
      request.mask = masks->make(request.max_tokens, out.thought_ends.back());
      out.echoed.push_back(generation->echo
                               ? echo_of(generation->prompts[p], *model.tokenizer, request)
                               : EchoedPrompt{});
      out.requests.push_back(std::move(request));
    }
  }
  return out;
}

}  // namespace braid::server
