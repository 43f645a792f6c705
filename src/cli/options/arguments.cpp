// arguments.cpp -- see arguments.h.
#include "cli/options/arguments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "cli/options/listing.h"

namespace braid::cli {
namespace {

constexpr std::string_view kAttention = "is not needed: attention is always the fast one";
constexpr std::string_view kMapping = "is not needed: weights are read once and stay in memory";
constexpr std::string_view kTemplates = "is not needed: the model's template is always used";
constexpr std::string_view kBatching = "is not needed: requests always run together";
constexpr std::string_view kDownload =
    "is not known: braid downloads nothing. Give a GGUF file with -m; `braid serve --discover` "
    "offers what "
    "Hugging Face, Ollama and LM Studio have downloaded";
constexpr std::string_view kExperts =
    "is not needed: experts that do not fit the GPU lie in host memory (--expert-slots, "
    "--gpu-memory)";
constexpr std::string_view kWhichGpu =
    "is not known: name the GPUs, as in --device cuda:1 or --device cuda:0,cuda:1";
constexpr std::string_view kMedia = "is not known: braid reads text alone";

constexpr Habit kHabits[] = {
    {"--n-gpu-layers", Habit::renamed, "--gpu-layers", 1},
    {"-fa", Habit::ignored, kAttention, Habit::kMaybe},
    {"--flash-attn", Habit::ignored, kAttention, Habit::kMaybe},
    {"--no-mmap", Habit::ignored, kMapping},
    {"--mmap", Habit::ignored, kMapping},
    {"--mlock", Habit::ignored, kMapping},
    {"--jinja", Habit::ignored, kTemplates},
    {"-cnv", Habit::ignored, "is not needed: without -p and -f, run is a conversation"},
    {"--conversation", Habit::ignored, "is not needed: without -p and -f, run is a conversation"},
    {"-cb", Habit::ignored, kBatching},
    {"--cont-batching", Habit::ignored, kBatching},
    {"--no-warmup", Habit::ignored, "is not needed: there is no warm-up"},
    {"--metrics", Habit::ignored, "is not needed: /metrics is always there"},
    {"--slots", Habit::ignored, "is not needed: /slots is always there"},
    {"--color", Habit::ignored, "is not needed: a terminal has colors unless NO_COLOR is set"},
    {"-tb", Habit::ignored, "is not needed: prompts use the threads of -t", 1},
    {"--threads-batch", Habit::ignored, "is not needed: prompts use the threads of -t", 1},
    {"--enable-prefix-caching", Habit::ignored, "is not needed: prefixes are always cached"},
    {"--reasoning-format", Habit::ignored, "is not needed: thoughts are always apart from answers",
     1},
    {"-hf", Habit::refused, kDownload, 1},
    {"-hfr", Habit::refused, kDownload, 1},
    {"-hff", Habit::refused, kDownload, 1},
    {"--hf-repo", Habit::refused, kDownload, 1},
    {"--hf-file", Habit::refused, kDownload, 1},
    {"-mu", Habit::refused, kDownload, 1},
    {"--model-url", Habit::refused, kDownload, 1},
    {"-no-cnv", Habit::refused, "is not known: a text is continued without a template with --raw"},
    {"-mg", Habit::refused, kWhichGpu, 1},
    {"--main-gpu", Habit::refused, kWhichGpu, 1},
    {"-ot", Habit::experts, kExperts, 1},
    {"--override-tensor", Habit::experts, kExperts, 1},
    {"-cmoe", Habit::ignored, kExperts},
    {"--cpu-moe", Habit::ignored, kExperts},
    {"-ncmoe", Habit::ignored, kExperts, 1},
    {"--n-cpu-moe", Habit::ignored, kExperts, 1},
    {"--experts-slots", Habit::renamed, "--expert-slots", 1},
    {"--spark", Habit::ignored, "is not needed: the GPU keeps the experts that are used most"},
    {"--spark-vram", Habit::gibibytes, "--gpu-memory", 1},
    {"--tensor-parallel-size", Habit::refused, kWhichGpu, 1},
    {"--pipeline-parallel-size", Habit::refused, kWhichGpu, 1},
    {"-np", Habit::ignored, "is not needed: this command has one request at a time", 1},
    {"--parallel", Habit::ignored, "is not needed: this command has one request at a time", 1},
    {"--mmproj", Habit::refused, kMedia, 1},
    {"--image", Habit::refused, kMedia, 1},
    {"--embedding", Habit::refused, "is not known: braid makes no embeddings"},
    {"--embeddings", Habit::refused, "is not known: braid makes no embeddings"},
    {"--lora", Habit::refused, "is not known: merge the adapter into the model file", 1},
    {"--grammar", Habit::refused, "is not known: a request names its JSON schema (response_format)",
     1},
    {"--json-schema", Habit::refused, "is not known: a request names its schema (response_format)",
     1},
    {"--temperature", Habit::renamed, "--temp", 1},
    {"--n-predict", Habit::renamed, "--predict", 1},
    {"--max-tokens", Habit::renamed, "--predict", 1},
    {"--system-prompt", Habit::renamed, "--system", 1},
    {"-dev", Habit::renamed, "--device", 1},
    {"--split-mode", Habit::renamed, "--split", 1},
    {"--tensor-split", Habit::renamed, "--split-ratio", 1},
    {"--chat-template-file", Habit::renamed, "--chat-template", 1},
    {"--max-model-len", Habit::renamed, "--ctx-size", 1},
    {"--max-num-seqs", Habit::renamed, "--parallel", 1},
    {"--served-model-name", Habit::renamed, "--alias", 1},
    {"--no-webui", Habit::renamed, "--no-page"},
    {"--draft", Habit::renamed, "--spec-draft-n-max", 1},
    {"--draft-max", Habit::renamed, "--spec-draft-n-max", 1},
    {"--draft-p-min", Habit::renamed, "--spec-draft-p-min", 1},
    {"--ssl-cert-file", Habit::renamed, "--tls-cert", 1},
    {"--ssl-key-file", Habit::renamed, "--tls-key", 1},
};

// Commands of other programs.
constexpr std::pair<std::string_view, std::string_view> kCommandHabits[] = {
    {"pull",
     "it downloads nothing. Give a GGUF file with -m; `braid serve --discover` offers what Hugging "
     "Face, Ollama and LM Studio have downloaded"},
    {"list", "`braid serve --discover --list-models` lists what other programs have downloaded"},
    {"ls", "`braid serve --discover --list-models` lists what other programs have downloaded"},
    {"show", "`braid inspect FILE` shows a model file"},
    {"chat", "`braid run` without -p and -f is a chat"},
    {"cli", "`braid run` answers a message or chats"},
    {"server", "it is `braid serve`"},
    {"ps", "/metrics and the page of `braid serve` show what runs"},
};

// Edit distance with swaps of neighbors.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      now[j] =
          std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1] ? 1 : 0)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        now[j] = std::min(now[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(now);
  }
  return last[b.size()];
}

bool is_number(std::string_view text) {
  return text.find_first_of("0123456789") != text.npos &&
         text.find_first_not_of("0123456789.eE+-") == text.npos;
}

// "15" and "15,7.5" in GiB: "15G" and "15G,7.5G". Other text stays.
std::string with_gibibytes(std::string_view text) {
  std::string out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view one = text.substr(begin, end - begin);
    const bool number = !one.empty() && one.find_first_not_of("0123456789.") == one.npos;
    out += fmt::format("{}{}{}", begin > 0 ? "," : "", one, number ? "G" : "");
    begin = end + 1;
  }
  return out;
}

Error wrong(std::string message) { return {ErrorKind::invalid_argument, std::move(message)}; }

class Reader {
 public:
  Reader(const CLI::App& command, std::string name) : command_(command), name_(std::move(name)) {
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& each : option->get_lnames()) names_.push_back("--" + each);
      for (const std::string& each : option->get_snames()) names_.push_back("-" + each);
    }
  }

  Result<Arguments> read(std::span<const std::string> typed) {
    for (size_t i = 0; i < typed.size(); ++i) {
      const std::string& word = typed[i];
      if (word == "--") {
        out_.words.insert(out_.words.end(), typed.begin() + static_cast<ptrdiff_t>(i), typed.end());
        break;
      }
      if (word.size() < 2 || word[0] != '-' || is_number(word)) {
        out_.words.push_back(word);
        continue;
      }
      const size_t equals = word.starts_with("--") ? word.find('=') : word.npos;
      BRAID_ASSIGN(const int values,
                   option(word.substr(0, equals), word, equals, typed.subspan(i + 1)));
      // Values are taken as they are, even if they look like options.
      for (int v = 0; v < values && equals == word.npos && i + 1 < typed.size(); ++v) {
        ++i;
        if (keep_values_) out_.words.push_back(typed[i]);
      }
    }
    if (scaled_ != nullptr && typed_.contains(scaled_->text))
      return wrong(fmt::format("{} and {} are the same limit: give one of them", scaled_->name,
                               scaled_->text));
    return std::move(out_);
  }

 private:
  const CLI::Option* find(const std::string& name) const {
    return command_.get_option_no_throw(name);
  }

  static int values_of(const CLI::Option& option) { return option.get_expected_max() > 0 ? 1 : 0; }

  Result<int> option(const std::string& name, const std::string& word, size_t equals,
                     std::span<const std::string> rest) {
    keep_values_ = true;
    const std::string value = equals == word.npos ? std::string() : word.substr(equals);
    for (const ShortName& known : kShortNames) {
      if (name != known.name) continue;
      if (const CLI::Option* option = find(std::string(known.option))) {
        out_.words.push_back(std::string(known.option) + value);
        return values_of(*option);
      }
    }
    const bool is_long = name.starts_with("--");
    if (const CLI::Option* option = is_long || name.size() == 2 ? find(name) : nullptr) {
      out_.words.push_back(word);
      typed_.insert(name);
      return values_of(*option);
    }
    for (const Habit& habit : kHabits)
      if (habit.name == name) return follow(habit, value, rest);
    // -t4: a short option with its number.
    if (!is_long && is_number(name.substr(2)) && find(name.substr(0, 2)) != nullptr) {
      out_.words.push_back(word);
      return 0;
    }
    const std::string near = nearest_option(name);
    return wrong(fmt::format("braid {} has no option {}{} (braid {} --help-all)", name_, name,
                             near.empty() ? "" : fmt::format("; did you mean {}?", near), name_));
  }

  // Searches braid's names and those of other programs that braid renames.
  std::string nearest_option(const std::string& name) const {
    std::vector<std::string> all = names_;
    for (const Habit& habit : kHabits)
      if (habit.kind == Habit::renamed && find(std::string(habit.text)) != nullptr)
        all.emplace_back(habit.name);
    const std::string_view near = nearest(name, all);
    for (const Habit& habit : kHabits)
      if (habit.name == near) return std::string(habit.text);
    for (const ShortName& known : kShortNames)  // --ctk
      if (name == "-" + std::string(known.name)) return std::string(known.name);
    return std::string(near);
  }

  Result<int> follow(const Habit& habit, const std::string& value,
                     std::span<const std::string> rest) {
    int values = habit.values;
    if (values == Habit::kMaybe) {
      const auto is_word = [&](const char* word) { return !rest.empty() && rest.front() == word; };
      values = is_word("on") || is_word("off") || is_word("auto") || is_word("0") || is_word("1")
                   ? 1
                   : 0;
    }
    if (habit.kind == Habit::refused) return wrong(fmt::format("{} {}", habit.name, habit.text));
    if (habit.kind == Habit::ignored) {
      out_.notes.push_back(fmt::format("{} {}", habit.name, habit.text));
      keep_values_ = false;
      return values;
    }
    if (habit.kind == Habit::experts) return check_pattern(habit, value, rest);
    if (find(std::string(habit.text)) == nullptr)
      return wrong(fmt::format("braid {} has no option {}", name_, habit.name));
    if (habit.kind == Habit::gibibytes) return scale(habit, value, rest);
    out_.words.push_back(std::string(habit.text) + value);
    return values;
  }

  Result<int> scale(const Habit& habit, const std::string& value,
                    std::span<const std::string> rest) {
    scaled_ = &habit;
    keep_values_ = false;
    if (!value.empty()) {
      out_.words.push_back(
          fmt::format("{}={}", habit.text, with_gibibytes(std::string_view(value).substr(1))));
    } else {
      out_.words.emplace_back(habit.text);
      if (!rest.empty()) out_.words.push_back(with_gibibytes(rest.front()));
    }
    return habit.values;
  }

  // Patterns of tensors: those of experts alone.
  Result<int> check_pattern(const Habit& habit, const std::string& value,
                            std::span<const std::string> rest) {
    const std::string pattern = !value.empty() ? value : rest.empty() ? "" : rest.front();
    if (pattern.find("exps") == pattern.npos || !pattern.ends_with("=CPU") ||
        pattern.find(',') != pattern.npos)
      return wrong(
          fmt::format("{} moves experts alone, as in {} exps=CPU; whole layers: "
                      "--gpu-layers",
                      habit.name, habit.name));
    out_.notes.push_back(fmt::format("{} {}", habit.name, habit.text));
    keep_values_ = false;
    return value.empty() ? habit.values : 0;
  }

  const CLI::App& command_;
  std::string name_;
  std::vector<std::string> names_;
  Arguments out_;
  std::set<std::string, std::less<>> typed_;  // braid's own names
  const Habit* scaled_ = nullptr;             // the last of Habit::gibibytes
  bool keep_values_ = true;
};

}  // namespace

std::span<const Habit> habits() { return kHabits; }

std::string_view nearest(std::string_view word, std::span<const std::string> names) {
  std::string_view best;
  // Short words are near to everything.
  size_t least = word.size() < 5 ? 2 : word.size() / 3 + 1;
  for (const std::string& name : names) {
    // A prefix counts as one edit.
    const size_t edits = word.size() > 4 && name.starts_with(word) ? 1 : distance(word, name);
    if (edits < least) {
      least = edits;
      best = name;
    }
  }
  return best;
}

Result<Arguments> read_arguments(const CLI::App& app, std::span<const std::string> typed) {
  Arguments out;
  if (typed.empty()) return out;
  const std::string& first = typed.front();
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == first) {
      BRAID_ASSIGN(out, Reader(*command, first).read(typed.subspan(1)));
      out.words.insert(out.words.begin(), first);
      return out;
    }
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  if (first.starts_with("-")) {
    const bool known =
        first == "-h" || first == "--help" || first == "--help-all" || first == "--version";
    if (!known)
      return wrong(fmt::format("a command comes before {}: braid run {} ...", first, first));
    out.words.assign(typed.begin(), typed.end());
    return out;
  }
  if (first.ends_with(".gguf"))
    return wrong(
        fmt::format("a command comes first: braid run {}, or braid serve {}", first, first));
  for (const auto& [name, text] : kCommandHabits)
    if (first == name) return wrong(fmt::format("braid has no command {}: {}", first, text));
  const std::string_view near = nearest(first, names);
  return wrong(fmt::format("braid has no command {}{}; there are {}", first,
                           near.empty() ? "" : fmt::format(" (did you mean {}?)", near),
                           fmt::join(names, ", ")));
}

}  // namespace braid::cli
