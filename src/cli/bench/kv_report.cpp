// kv_report.cpp -- `braid kv-report`: the loss of each KV cache format on a model and a text.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/output_file.h"
#include "cli/bench/ask.h"
#include "cli/bench/attention_part.h"
#include "cli/bench/kv_rows.h"
#include "cli/bench/needle_case.h"
#include "cli/bench/prompt_sets.h"
#include "cli/bench/report.h"
#include "cli/bench/report_plot.h"
#include "cli/bench/runs.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/load_model.h"
#include "cli/terminal.h"
#include "ops/kv/kv_tail.h"

namespace braid::cli {

namespace {

constexpr int32_t kFewestTokens = 256;
constexpr int32_t kShortestNeedle = 128, kFirstNeedle = 1024, kLastNeedle = 16384;
constexpr const char* kParts[] = {"attention", "text", "needles", "answers"};

struct KvReportFlags {
  std::string model;
  std::string file;
  int32_t tokens = 4096;
  KvTail tail;
  int threads = 0;
  std::string device = "cpu";
  std::string activations = "f32";
  std::vector<std::string> formats, parts;
  std::vector<int32_t> needles;  // prompt lengths
  int32_t depths = 8;
  std::string prompts;
  int32_t answer_tokens = 64;
  std::string output = "text";
  std::string svg;

  // Without --parts: attention, text, and the parts that other options ask for.
  bool part(const std::string& name) const {
    if (name == "answers" && prompts.empty()) return false;
    if (parts.empty()) return name != "needles" || !needles.empty();
    return std::find(parts.begin(), parts.end(), name) != parts.end();
  }
};

Result<std::vector<KvPair>> chosen_formats(const std::vector<std::string>& names) {
  std::vector<KvPair> formats;
  for (const std::string& name : names) {
    const size_t slash = name.find('/');
    BRAID_ASSIGN(const KvCodec* k, find_kv_codec(name.substr(0, slash)));
    const KvCodec* v = k;
    if (slash != name.npos) {
      BRAID_ASSIGN(v, find_kv_codec(name.substr(slash + 1)));
    }
    formats.push_back({k, v});
  }
  if (!formats.empty()) return formats;
  // Blocks are encoded from f16 rows, so f32 would repeat the figures of f16.
  for (const KvCodec* codec : kv_codecs())
    if (codec->name != "f32") formats.push_back({codec, codec});
  return formats;
}

std::vector<int32_t> needle_lengths(const KvReportFlags& flags) {
  if (!flags.needles.empty()) return flags.needles;
  std::vector<int32_t> lengths;
  for (int32_t length = kFirstNeedle; length <= std::min(flags.tokens, kLastNeedle); length *= 2)
    lengths.push_back(length);
  return lengths;
}

// For each length (most tokens of the text with its question) and each place of the fact: the text
// of -f, repeated if it is too short, with a number in it. Every second prompt has a similar fact
// with another number, too. Sets are named "needle LENGTH".
Result<std::vector<ReportPrompt>> needle_prompts(const KvReportFlags& flags,
                                                 const std::string& text, const GgufFile& file,
                                                 const Tokenizer& tokenizer) {
  const EncodeText encode = [&](std::string_view part) {
    return tokenizer.encode(part, {.add_special = false, .parse_special = false});
  };
  std::vector<ReportPrompt> prompts;
  for (const int32_t length : needle_lengths(flags))
    for (int32_t i = 0; i < flags.depths; ++i) {
      NeedleShape shape;
      shape.seed = static_cast<uint64_t>(i) + 1;
      shape.tokens = length;
      shape.depth = (i + 0.5) / flags.depths;
      shape.filler = Filler::file;
      shape.needle = i % 2 == 1 ? Needle::distractor : Needle::number;
      BRAID_ASSIGN(const NeedleCase made, make_needle_case(shape, encode, text));
      BRAID_ASSIGN(std::vector<int32_t> tokens,
                   question_tokens(needle_prompt(made), file, tokenizer));
      prompts.push_back(
          {fmt::format("needle {}", length), std::move(tokens), made.answers.front()});
    }
  return prompts;
}

struct Subject {
  std::string name;
  int32_t head_dim = 0;  // of attention; 0: no attention layers
  std::vector<int32_t> text;
  ReportWork work;
};

Result<Subject> prepare(const KvReportFlags& flags) {
  Subject out;
  BRAID_ASSIGN(const std::string text, read_text(flags.file));
  BRAID_ASSIGN(const GgufFile file, open_model_file(flags.model));
  BRAID_ASSIGN(const Tokenizer tokenizer, make_tokenizer(file));
  BRAID_ASSIGN(const ModelConfig config, read_model_config(file));
  out.name = config.name;
  for (const LayerConfig& layer : config.layers)
    if (layer.kind == LayerKind::attention) out.head_dim = layer.attention.head_dim;
  BRAID_ASSIGN(out.text, tokenizer.encode(text, {.add_special = true, .parse_special = true}));
  if (out.text.size() < static_cast<size_t>(kFewestTokens))
    return Error{ErrorKind::invalid_argument,
                 fmt::format("{}: has {} tokens, fewer than {}", flags.file, out.text.size(),
                             kFewestTokens)};
  if (flags.part("needles")) {
    BRAID_ASSIGN(out.work.prompts, needle_prompts(flags, text, file, tokenizer));
  }
  if (flags.part("answers")) {
    BRAID_ASSIGN(const std::vector<PromptSet> sets,
                 read_prompt_sets(flags.prompts, file, tokenizer));
    for (const PromptSet& set : sets)
      for (const auto& prompt : set.prompts) out.work.prompts.push_back({set.name, prompt, ""});
  }
  out.text.resize(std::min(out.text.size(), static_cast<size_t>(flags.tokens)));
  if (flags.part("text")) out.work.text = out.text;
  out.work.answer_tokens = flags.answer_tokens;
  return out;
}

ModelFlags run_flags(const KvReportFlags& flags, const ReportWork& work) {
  ModelFlags out;
  out.model = flags.model;
  size_t most = work.text.size() + 1;
  for (const ReportPrompt& prompt : work.prompts)
    most = std::max(most, prompt.tokens.size() + static_cast<size_t>(work.answer_tokens) + 1);
  out.context = static_cast<int>(most);
  out.threads = flags.threads;
  out.device = flags.device;
  out.activations = flags.activations;
  out.kv_tail = flags.tail.tail_blocks;
  out.kv_sink = flags.tail.sink_blocks;
  out.spec_type = "none";
  return out;
}

// Runs f16, f16 in other chunk sizes ("floor"), and each format. False: interrupted.
Result<bool> run_all(const KvReportFlags& flags, const ReportWork& work,
                     const std::vector<KvPair>& formats, std::vector<FormatFigures>& figures) {
  if (work.text.empty() && work.prompts.empty()) return true;
  ModelFlags model = run_flags(flags, work);
  print_status("f16\n");
  BRAID_ASSIGN(const auto reference, run_reference(model, work));
  if (!reference) return false;
  figures.insert(figures.begin(), FormatFigures{"floor", 16, 16, {}, {}, 0, {}, {}});
  ModelFlags pieces = model;
  pieces.ubatch = 96;
  print_status("floor: f16 in prompt chunks of {} tokens\n", pieces.ubatch);
  BRAID_ASSIGN(bool whole, run_format(pieces, work, *reference, figures[0]));
  for (size_t i = 0; whole && i < formats.size(); ++i) {
    print_status("{} ({} of {})\n", formats[i].name(), i + 1, formats.size());
    model.cache_k = formats[i].k->name;
    model.cache_v = formats[i].v->name;
    BRAID_ASSIGN(whole, run_format(model, work, *reference, figures[i + 1]));
  }
  return whole;
}

std::string percent(double share) { return fmt::format("{:.2f}", 100 * share); }

void print_attention(const std::vector<FormatFigures>& figures) {
  print_result(
      "\nAttention: errors of K, V and the output in %, KL divergence of the weights in 1e-3 "
      "nats\n");
  print_result("{:<14} {:>7} {:>7} {:>8} {:>8} {:>10} {:>10} {:>9}\n", "format", "K bits", "V bits",
               "K err %", "V err %", "KL 1e-3", "worst", "out err %");
  for (const FormatFigures& f : figures) {
    if (!f.attention) continue;
    const AttentionFigures& a = *f.attention;
    print_result("{:<14} {:>7.3f} {:>7.3f} {:>8.3f} {:>8.3f} {:>10.4f} {:>10.4f} {:>9.3f}\n",
                 f.name, f.k_bits, f.v_bits, 100 * a.k_error, 100 * a.v_error, 1e3 * a.divergence,
                 1e3 * a.worst_divergence, 100 * a.output_error);
  }
}

void print_logits(const std::vector<FormatFigures>& figures, const char* title,
                  std::optional<LogitSummary> FormatFigures::*what, bool perplexity) {
  print_result("\n{}: KL divergence in 1e-6 nats, best tokens that changed in %\n", title);
  print_result("{:<14} {:>10} {:>10} {:>10} {:>10} {:>8} {:>11}{}\n", "format", "mean", "median",
               "p99", "max", "changed", "clear ones", perplexity ? "  perplexity" : "");
  for (const FormatFigures& f : figures) {
    const auto& s = f.*what;
    if (!s) continue;
    print_result("{:<14} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.1f} {:>8} {:>11}{}\n", f.name,
                 1e6 * s->mean, 1e6 * s->median, 1e6 * s->p99, 1e6 * s->most, percent(s->flips),
                 percent(s->clear_flips),
                 perplexity ? fmt::format("  {:10.4f}", f.perplexity) : "");
  }
}

void print_sets(const std::vector<FormatFigures>& figures) {
  print_result(
      "\nAnswers: right ones (+, by depth of the fact), and those that are the same as with f16\n");
  for (const FormatFigures& f : figures) {
    if (f.sets.empty()) continue;
    print_result("{:<14}", f.name);
    for (const AnswerFigures& s : f.sets) {
      print_result("  {}:", s.set);
      if (s.right >= 0) print_result(" {}/{} {}", s.right, s.prompts, s.marks);
      print_result(" same {}/{}", s.same, s.prompts);
    }
    print_result("\n");
  }
}

nlohmann::ordered_json json_of(const LogitSummary& s) {
  return {{"rows", s.rows}, {"mean", s.mean},   {"median", s.median},          {"p99", s.p99},
          {"most", s.most}, {"flips", s.flips}, {"clear_flips", s.clear_flips}};
}

nlohmann::ordered_json json_of(const FormatFigures& f) {
  nlohmann::ordered_json out = {{"format", f.name}, {"k_bits", f.k_bits}, {"v_bits", f.v_bits}};
  if (f.attention) {
    const AttentionFigures& a = *f.attention;
    out["attention"] = {{"k_error", a.k_error},
                        {"v_error", a.v_error},
                        {"divergence", a.divergence},
                        {"worst_divergence", a.worst_divergence},
                        {"output_error", a.output_error}};
  }
  if (f.text) {
    out["text"] = json_of(*f.text);
    out["text"]["perplexity"] = f.perplexity;
  }
  if (f.answers) out["answers"] = json_of(*f.answers);
  for (const AnswerFigures& s : f.sets) {
    nlohmann::ordered_json set = {{"set", s.set}, {"prompts", s.prompts}, {"same", s.same}};
    if (s.right >= 0) {
      set["right"] = s.right;
      set["marks"] = s.marks;
    }
    out["sets"].push_back(std::move(set));
  }
  return out;
}

void print_text(const KvReportFlags& flags, const Subject& subject,
                const std::vector<FormatFigures>& figures) {
  print_result("{}: {} tokens of {}, newest {} KV blocks exact\n", subject.name,
               subject.text.size(), flags.file, flags.tail.tail_blocks);
  if (flags.part("attention")) print_attention(figures);
  if (flags.part("text"))
    print_logits(figures, "Next tokens of the text", &FormatFigures::text, true);
  if (subject.work.prompts.empty()) return;
  print_logits(figures, "Next tokens of the answers of f16", &FormatFigures::answers, false);
  print_sets(figures);
}

void print_json(const KvReportFlags& flags, const Subject& subject,
                const std::vector<FormatFigures>& figures) {
  nlohmann::ordered_json out = {{"model", subject.name},
                                {"text", flags.file},
                                {"tokens", subject.text.size()},
                                {"kv_tail", flags.tail.tail_blocks},
                                {"kv_sink", flags.tail.sink_blocks}};
  for (const FormatFigures& f : figures) out["formats"].push_back(json_of(f));
  print_result("{}\n", out.dump(2));
}

int run_kv_report(const KvReportFlags& flags) {
  auto formats = chosen_formats(flags.formats);
  if (!formats.ok()) return fail(formats.error());
  auto subject = prepare(flags);
  if (!subject.ok()) return fail(subject.error());
  if (subject->head_dim == 0)
    return fail({ErrorKind::unsupported, subject->name + ": has no attention layers"});
  std::vector<FormatFigures> figures;
  for (auto pair = formats->begin(); pair != formats->end();) {
    Status fits = kv_codec_accepts(*pair->k, subject->head_dim);
    if (fits.ok()) fits = kv_codec_accepts(*pair->v, subject->head_dim);
    if (!fits.ok() && !flags.formats.empty()) return fail(fits.error());
    if (!fits.ok()) {
      pair = formats->erase(pair);
      continue;
    }
    FormatFigures& f = figures.emplace_back();
    f.name = pair->name();
    f.k_bits = pair->k->bits_per_value(subject->head_dim, KvSide::k);
    f.v_bits = pair->v->bits_per_value(subject->head_dim, KvSide::v);
    ++pair;
  }
  const InterruptScope interrupt;
  if (flags.part("attention")) {
    const auto measured =
        measure_attention({flags.model, flags.threads, flags.tail}, subject->text, *formats);
    if (!measured.ok()) return fail(measured.error());
    if (interrupted()) return 130;
    for (size_t i = 0; i < figures.size(); ++i) figures[i].attention = (*measured)[i];
  }
  const auto whole = run_all(flags, subject->work, *formats, figures);
  if (!whole.ok()) return fail(whole.error());
  if (!*whole || interrupted()) return 130;
  flags.output == "json" ? print_json(flags, *subject, figures)
                         : print_text(flags, *subject, figures);
  if (flags.svg.empty()) return 0;
  const Status drawn = write_output_file(
      flags.svg, report_plot("Loss of KV cache formats: " + subject->name, figures));
  return drawn.ok() ? 0 : fail(drawn.error());
}

void add_run_options(CLI::App& command, KvReportFlags& flags) {
  command.add_option("-m,--model", flags.model, "GGUF file; without it the toy model inside braid")
      ->group("Model")
      ->type_name("FILE")
      ->envname("BRAID_MODEL");
  command.add_option("-t,--threads", flags.threads, "CPU threads (default: physical cores)")
      ->group("Model")
      ->check(CLI::Range(0, 1024));
  command
      .add_option("--device", flags.device,
                  "device of the runs; attention is always measured on the CPU")
      ->group("Model")
      ->check(CLI::IsMember({"auto", "cuda", "cpu", "ref"}))
      ->capture_default_str();
  command
      .add_option("--act", flags.activations, "on a CPU, the precision of activations of the runs")
      ->group("Model")
      ->check(CLI::IsMember({"i8", "i16", "f32"}))
      ->capture_default_str();
  command
      .add_option("--kv-tail", flags.tail.tail_blocks,
                  "newest KV blocks of 32 tokens that a query reads exactly")
      ->group("KV cache")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command
      .add_option("--kv-sink", flags.tail.sink_blocks,
                  "first KV blocks of the context that every query reads exactly")
      ->group("KV cache")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
}

void add_input_options(CLI::App& command, KvReportFlags& flags) {
  constexpr const char* kGroup = "Input";
  command.add_option("-f,--file", flags.file, "text to measure; - for stdin")
      ->group(kGroup)
      ->type_name("FILE")
      ->required();
  command.add_option("-c,--ctx-size", flags.tokens, "tokens of the text, at most")
      ->group(kGroup)
      ->check(CLI::Range(kFewestTokens, 1 << 20))
      ->capture_default_str();
  command
      .add_option("--needles", flags.needles,
                  "lengths of prompts that hide a fact, comma-separated (with --parts needles: "
                  "1024, 2048, ... up to -c)")
      ->group(kGroup)
      ->delimiter(',')
      ->check(CLI::Range(kShortestNeedle, 1 << 20));
  command
      .add_option("--depths", flags.depths,
                  "with --needles: number of places of the fact, each in a prompt of its own")
      ->group(kGroup)
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command
      .add_option("--prompts", flags.prompts,
                  "prompts as for bench --spec; answers are compared with those of f16")
      ->group(kGroup)
      ->type_name("FILE");
  command.add_option("-n,--predict", flags.answer_tokens, "tokens of an answer, at most")
      ->group(kGroup)
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
}

void add_report_options(CLI::App& command, KvReportFlags& flags) {
  constexpr const char* kGroup = "Report";
  command
      .add_option("--formats", flags.formats,
                  "formats to compare, comma-separated; q8_0/c4: keys in q8_0, values in c4 "
                  "(default: all that fit the model)")
      ->group(kGroup)
      ->type_name("TYPES")
      ->delimiter(',');
  command
      .add_option("--parts", flags.parts,
                  "parts to measure, comma-separated (default: attention and text; also needles "
                  "with --needles, answers with --prompts)")
      ->group(kGroup)
      ->delimiter(',')
      ->check(CLI::IsMember(std::set<std::string>(std::begin(kParts), std::end(kParts))));
  command.add_option("-o,--output", flags.output, "format of the report")
      ->group(kGroup)
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  command
      .add_option("--svg", flags.svg, "also plot bits per value against divergence into this file")
      ->group(kGroup)
      ->type_name("FILE");
}

}  // namespace

void add_kv_report(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<KvReportFlags>();
  auto* command =
      app.add_subcommand("kv-report", "Measure the loss of KV cache formats on a model and a text");
  add_run_options(*command, *flags);
  add_input_options(*command, *flags);
  add_report_options(*command, *flags);
  command->callback([flags, exit_code] { *exit_code = run_kv_report(*flags); });
}

}  // namespace braid::cli
