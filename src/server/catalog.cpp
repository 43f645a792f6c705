// catalog.cpp -- see catalog.h.
#include "server/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/json.h"
#include "base/log.h"
#include "server/api/fields.h"

namespace braid::server {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxDepth = 6;             // of nested folders
constexpr size_t kMaxVisited = 200'000;  // files and folders per tree
constexpr size_t kMaxManifestBytes = 1 << 20;

bool is_gguf(const fs::path& path, int64_t* bytes) {
  std::error_code error;
  if (!fs::is_regular_file(path, error) || error) return false;
  const auto size = fs::file_size(path, error);
  if (error || size < 24) return false;
  std::ifstream file(path, std::ios::binary);
  char magic[4] = {};
  if (!file.read(magic, 4) || std::string_view(magic, 4) != "GGUF") return false;
  *bytes = static_cast<int64_t>(size);
  return true;
}

// A split model is listed by its first part. Image projectors are not models.
bool is_model_file(const std::string& name) {
  if (!name.ends_with(".gguf") || name.starts_with("mmproj")) return false;
  const size_t of = name.rfind("-of-");
  return of == std::string::npos || of < 6 || name.compare(of - 6, 6, "-00001") == 0;
}

// Files below `root`, as relative paths. Follows links to files only, so the search ends.
std::vector<fs::path> files_below(const fs::path& root) {
  std::vector<fs::path> out;
  std::error_code error;
  size_t visited = 0;
  fs::recursive_directory_iterator at(root, fs::directory_options::skip_permission_denied, error),
      end;
  while (!error && at != end && ++visited < kMaxVisited) {
    std::error_code ignored;
    if (at.depth() >= kMaxDepth) at.disable_recursion_pending();
    if (!at->is_directory(ignored)) out.push_back(at->path().lexically_relative(root));
    at.increment(error);
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::optional<std::string> small_file(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error) || fs::file_size(path, error) > kMaxManifestBytes || error)
    return {};
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return {};
  return std::move(text).str();
}

std::string without_suffix(std::string name) {
  if (name.ends_with(".gguf")) name.resize(name.size() - 5);
  return name;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// "sha256:" and 64 hex digits, as a blob's file name. Other digests could be paths to other files.
std::optional<std::string> blob_name(const std::string& digest) {
  constexpr std::string_view kPrefix = "sha256:";
  if (digest.size() != kPrefix.size() + 64 || !digest.starts_with(kPrefix)) return {};
  const std::string hex = digest.substr(kPrefix.size());
  if (hex.find_first_not_of("0123456789abcdef") != std::string::npos) return {};
  return "sha256-" + hex;
}

Status wrong(const std::string& shown, const std::string& name, const std::string& what) {
  return Error{ErrorKind::invalid_argument,
               fmt::format("{}: preset \"{}\": {}", shown, name, what)};
}

}  // namespace

bool is_model_name(std::string_view name) {
  if (name.empty() || name.size() > Catalog::kMaxNameBytes) return false;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x21 || byte == 0x7F || c == '\\' || c == '"') return false;
  }
  return !name.starts_with('/') && name.find("..") == std::string_view::npos;
}

void apply_preset(const Preset& preset, Generation& generation) {
  SamplingOverrides& overrides = generation.sampling;
  const SamplingOverrides& given = preset.sampling;
  const auto fill = [](auto& field, const auto& preset_value) {
    if (!field) field = preset_value;
  };
  fill(overrides.temperature, given.temperature);
  fill(overrides.top_p, given.top_p);
  fill(overrides.top_k, given.top_k);
  fill(overrides.min_p, given.min_p);
  fill(overrides.repetition_penalty, given.repetition_penalty);
  fill(overrides.presence_penalty, given.presence_penalty);
  fill(overrides.frequency_penalty, given.frequency_penalty);
  fill(overrides.penalty_last_n, given.penalty_last_n);
  fill(overrides.seed, given.seed);
  fill(generation.max_tokens, preset.max_tokens);
  fill(generation.reasoning.think, preset.think);
  fill(generation.reasoning.effort, preset.effort);
  for (const auto& [name, value] : preset.template_variables.items()) {
    if (!generation.template_variables.contains(name)) generation.template_variables[name] = value;
  }
  if (preset.system_prompt.empty() || generation.endpoint == Endpoint::completions) return;
  const auto is_system = [](const Message& message) {
    return message.role == Message::Role::system;
  };
  Messages& messages = generation.messages;
  if (std::any_of(messages.begin(), messages.end(), is_system)) return;
  Message system;
  system.role = Message::Role::system;
  system.text = preset.system_prompt;
  messages.insert(messages.begin(), std::move(system));
}

size_t Catalog::file_index(ModelFile file) {
  if (!file.path.empty()) file.path = fs::absolute(file.path).lexically_normal().string();
  for (size_t i = 0; i < files_.size(); ++i) {
    if (files_[i].path == file.path) return i;
  }
  files_.push_back(std::move(file));
  return files_.size() - 1;
}

bool Catalog::add(const std::string& name, ModelFile file, Preset preset) {
  if (!is_model_name(name)) {
    spdlog::warn("{}: its name cannot be a model's name; it is left out", file.path);
    return false;
  }
  if (entries_.size() >= kMaxEntries || by_name_.contains(name)) return false;
  by_name_[name] = entries_.size();
  entries_.push_back({{name}, file_index(std::move(file)), std::move(preset)});
  return true;
}

void Catalog::add_all(const Catalog& other) {
  for (const CatalogEntry& entry : other.entries()) {
    if (!add(entry.names.front(), other.files()[entry.file], entry.preset)) continue;
    for (size_t i = 1; i < entry.names.size(); ++i)
      (void)add_name(entries_.size() - 1, entry.names[i]);
  }
}

Status Catalog::add_folder(const std::string& folder, const std::string& source) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return Error{ErrorKind::not_found, folder + ": is not a folder that can be read"};
  }
  for (const fs::path& path : files_below(folder)) {
    const std::string file = path.filename().string();
    int64_t bytes = 0;
    if (!is_model_file(file) || !is_gguf(fs::path(folder) / path, &bytes)) continue;
    add(without_suffix(path.generic_string()),
        {(fs::path(folder) / path).string(), file, source.empty() ? folder : source, bytes});
  }
  return {};
}

void Catalog::add_hugging_face(const std::string& hub) {
  std::error_code error;
  std::vector<fs::path> repositories;
  for (fs::directory_iterator at(hub, error), end; !error && at != end; at.increment(error)) {
    if (at->path().filename().string().starts_with("models--")) repositories.push_back(at->path());
  }
  std::sort(repositories.begin(), repositories.end());
  for (const fs::path& repository : repositories) {
    std::string name = repository.filename().string().substr(8);
    if (const size_t cut = name.find("--"); cut != std::string::npos) name.replace(cut, 2, "/");
    // The snapshot of "main" first. Files only in older snapshots are listed too.
    std::vector<fs::path> snapshots;
    const fs::path all = repository / "snapshots";
    auto main = small_file(repository / "refs" / "main").value_or("");
    main.erase(std::find_if_not(main.begin(), main.end(),
                                [](unsigned char c) { return std::isxdigit(c); }),
               main.end());
    if (!main.empty()) snapshots.push_back(all / main);
    for (fs::directory_iterator at(all, error), end; !error && at != end; at.increment(error)) {
      if (main.empty() || at->path() != all / main) snapshots.push_back(at->path());
    }
    for (const fs::path& snapshot : snapshots) {
      for (const fs::path& path : files_below(snapshot)) {
        const std::string file = path.filename().string();
        int64_t bytes = 0;
        if (!is_model_file(file) || !is_gguf(snapshot / path, &bytes)) continue;
        add(name + "/" + without_suffix(path.generic_string()),
            {(snapshot / path).string(), file, "hugging face", bytes});
      }
    }
  }
}

void Catalog::add_ollama(const std::string& models) {
  const fs::path manifests = fs::path(models) / "manifests";
  for (const fs::path& path : files_below(manifests)) {
    // REGISTRY/NAMESPACE/NAME/TAG
    std::vector<std::string> parts;
    for (const auto& part : path) parts.push_back(part.string());
    if (parts.size() != 4) continue;
    const auto text = small_file(manifests / path);
    if (!text) continue;
    const auto manifest = parse_json(*text);
    if (!manifest.ok() || !manifest->is_object() || !manifest->contains("layers")) continue;
    const Json& layers = (*manifest)["layers"];
    if (!layers.is_array()) continue;
    for (const Json& layer : layers) {
      if (!layer.is_object() ||
          layer.value("mediaType", Json()) != "application/vnd.ollama.image.model")
        continue;
      const Json digest = layer.value("digest", Json());
      if (!digest.is_string()) continue;
      const auto blob = blob_name(digest.get<std::string>());
      const fs::path file = fs::path(models) / "blobs" / blob.value_or("-");
      int64_t bytes = 0;
      if (!blob || !is_gguf(file, &bytes)) continue;
      std::string name = parts[2] + ":" + parts[3];
      if (parts[1] != "library") name = parts[1] + "/" + name;
      add(name, {file.string(), name, "ollama", bytes});
      break;
    }
  }
}

void Catalog::add_lm_studio(const std::string& models) {
  std::error_code error;
  if (fs::is_directory(models, error)) (void)add_folder(models, "lm studio");
}

void Catalog::discover() {
  const std::string home = environment("HOME");
  std::string hub = environment("HF_HUB_CACHE");
  if (hub.empty() && !environment("HF_HOME").empty()) hub = environment("HF_HOME") + "/hub";
  if (hub.empty() && !home.empty()) hub = home + "/.cache/huggingface/hub";
  if (!hub.empty()) add_hugging_face(hub);
  if (const std::string models = environment("OLLAMA_MODELS"); !models.empty()) {
    add_ollama(models);
  } else {
    if (!home.empty()) add_ollama(home + "/.ollama/models");
    add_ollama("/usr/share/ollama/.ollama/models");
  }
  if (home.empty()) return;
  add_lm_studio(home + "/.lmstudio/models");
  add_lm_studio(home + "/.cache/lm-studio/models");
}

namespace {

// An unknown field is an operator's mistake, and thus an error.
Status read_preset(const Json& fields, const std::string& shown, const std::string& name,
                   Preset* out) {
  for (const auto& member : fields.items()) {
    const std::string& field = member.key();
    const Json& value = member.value();
    const auto number = [&](double low, double high, std::optional<double>* target) -> Status {
      const bool fits =
          value.is_number() && value.get<double>() >= low && value.get<double>() <= high;
      if (!fits)
        return wrong(shown, name,
                     fmt::format("{} must be a number from {} to {}", field, low, high));
      *target = value.get<double>();
      return {};
    };
    const auto whole = [&](int64_t low, int64_t high, auto* target) -> Status {
      const auto read = as_integer(value);
      if (!read || *read < low || *read > high) {
        return wrong(shown, name,
                     fmt::format("{} must be a whole number from {} to {}", field, low, high));
      }
      *target = static_cast<typename std::decay_t<decltype(*target)>::value_type>(*read);
      return {};
    };
    SamplingOverrides& overrides = out->sampling;
    if (field == "model" || field == "aliases") {
      continue;
    } else if (field == "temperature") {
      BRAID_TRY(number(0, 5, &overrides.temperature));
    } else if (field == "top_p") {
      BRAID_TRY(number(0, 1, &overrides.top_p));
    } else if (field == "min_p") {
      BRAID_TRY(number(0, 1, &overrides.min_p));
    } else if (field == "repetition_penalty") {
      BRAID_TRY(number(0.01, 10, &overrides.repetition_penalty));
    } else if (field == "presence_penalty") {
      BRAID_TRY(number(-2, 2, &overrides.presence_penalty));
    } else if (field == "frequency_penalty") {
      BRAID_TRY(number(-2, 2, &overrides.frequency_penalty));
    } else if (field == "top_k") {
      BRAID_TRY(whole(0, INT32_MAX, &overrides.top_k));
    } else if (field == "repeat_last_n") {
      BRAID_TRY(whole(-1, INT32_MAX, &overrides.penalty_last_n));
    } else if (field == "seed") {
      BRAID_TRY(whole(0, INT64_MAX, &overrides.seed));
    } else if (field == "max_tokens") {
      BRAID_TRY(whole(1, INT32_MAX, &out->max_tokens));
    } else if (field == "enable_thinking") {
      if (!value.is_boolean()) return wrong(shown, name, "enable_thinking must be true or false");
      out->think = value.get<bool>();
    } else if (field == "reasoning_effort") {
      if (!value.is_string()) return wrong(shown, name, "reasoning_effort must be a string");
      out->effort = value.get<std::string>();
    } else if (field == "system_prompt") {
      if (!value.is_string()) return wrong(shown, name, "system_prompt must be a string");
      out->system_prompt = value.get<std::string>();
    } else if (field == "chat_template_kwargs") {
      if (!value.is_object()) return wrong(shown, name, "chat_template_kwargs must be an object");
      out->template_variables = value;
    } else {
      return wrong(shown, name, fmt::format("there is no field \"{}\"", field));
    }
  }
  return {};
}

}  // namespace

Status Catalog::add_presets(const std::string& json, const std::string& folder,
                            const std::string& shown) {
  const auto presets = parse_json(json);
  if (!presets.ok())
    return Error{ErrorKind::invalid_argument, shown + ": " + presets.error().message};
  if (!presets->is_object()) {
    return Error{ErrorKind::invalid_argument, shown + ": is not a JSON object of presets by name"};
  }
  for (const auto& [name, fields] : presets->items()) {
    if (!is_model_name(name)) return wrong(shown, name, "this cannot be a model's name");
    if (!fields.is_object()) return wrong(shown, name, "must be an object");
    const Json model = fields.value("model", Json());
    if (!model.is_string())
      return wrong(shown, name, "model must be the name or the file of a model");
    const auto text = model.get<std::string>();
    Preset preset;
    BRAID_TRY(read_preset(fields, shown, name, &preset));
    ModelFile file;
    if (const auto known = find(text)) {
      file = files_[entries_[*known].file];
    } else {
      const fs::path path = fs::path(text).is_absolute() ? fs::path(text) : fs::path(folder) / text;
      int64_t bytes = 0;
      if (!is_gguf(path, &bytes)) {
        return wrong(shown, name,
                     fmt::format("\"{}\" is neither a listed model nor a GGUF file", text));
      }
      file = {path.lexically_normal().string(), path.filename().string(), shown, bytes};
    }
    if (!add(name, std::move(file), std::move(preset)))
      return wrong(shown, name, "the name is taken");
    const size_t entry = entries_.size() - 1;
    const Json aliases = fields.value("aliases", Json::array());
    if (!aliases.is_array()) return wrong(shown, name, "aliases must be an array of names");
    for (const Json& alias : aliases) {
      if (!alias.is_string()) return wrong(shown, name, "aliases must be an array of names");
      BRAID_TRY(add_name(entry, alias.get<std::string>()));
    }
  }
  return {};
}

Status Catalog::add_name(size_t entry, const std::string& name) {
  if (!is_model_name(name)) {
    return Error{ErrorKind::invalid_argument, fmt::format("\"{}\" cannot be a model's name", name)};
  }
  if (by_name_.contains(name)) {
    return Error{ErrorKind::invalid_argument, fmt::format("two models have the name \"{}\"", name)};
  }
  by_name_[name] = entry;
  entries_[entry].names.push_back(name);
  return {};
}

Status Catalog::add_alias(const std::string& assignment) {
  const size_t cut = assignment.find('=');
  BRAID_CHECK(cut != std::string::npos);
  const std::string target = assignment.substr(cut + 1);
  const auto entry = find(target);
  if (!entry) {
    return Error{ErrorKind::invalid_argument,
                 fmt::format("--alias {}: there is no model \"{}\"{}", assignment, target,
                             contained_name_hint(target))};
  }
  return add_name(*entry, assignment.substr(0, cut));
}

std::optional<size_t> Catalog::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return std::nullopt;
  return found->second;
}

std::string Catalog::contained_name_hint(std::string_view name) const {
  for (const auto& [known, entry] : by_name_) {
    if (!name.empty() &&
        (known.find(name) != std::string::npos || name.find(known) != std::string_view::npos)) {
      return fmt::format("; there is \"{}\"", known);
    }
  }
  return "";
}

// Begins as Anthropic's message does.
std::string Catalog::unknown_model(std::string_view name) const {
  constexpr size_t kShown = 5;
  std::string names;
  size_t count = 0;
  for (const auto& [known, entry] : by_name_)
    if (count++ < kShown) names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", known);
  return fmt::format(
      "model: {}: there is no model of this name; there {} {}{}", name.substr(0, 256),
      count == 1 ? "is" : "are", names,
      count > kShown ? fmt::format(" and {} more (/v1/models)", count - kShown) : "");
}

}  // namespace braid::server
