// catalog.h -- the models a server may load, by name: listed files, files in folders and in the
// caches of other programs, presets. Client names are only looked up in this list, so they cannot
// reach other files. Folders are read once, at the start; nothing is downloaded. Other files are
// skipped silently; an unusable model fails in load().
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "server/api/generation.h"

namespace braid::server {

struct ModelFile {
  std::string path;    // empty: the model inside the binary
  std::string shown;   // for clients: without its folder
  std::string source;  // origin: a folder, "hugging face", ...
  int64_t bytes = 0;
};

// Defaults of a name. Requests override them; they override the server's and the model's.
struct Preset {
  SamplingOverrides sampling;
  std::optional<int64_t> max_tokens;
  std::optional<bool> think;
  std::optional<std::string> effort;
  std::string system_prompt;  // for conversations without one
  Json template_variables = Json::object();
};

void apply_preset(const Preset& preset, Generation& generation);

struct CatalogEntry {
  std::vector<std::string> names;  // the first is shown
  size_t file = 0;
  Preset preset;
};

class Catalog {
 public:
  static constexpr size_t kMaxEntries = 10'000;
  static constexpr size_t kMaxNameBytes = 256;

  // Adds entries of another catalog whose names are free.
  void add_all(const Catalog& other);
  // False if the name is taken or invalid.
  bool add(const std::string& name, ModelFile file, Preset preset = {});
  // Adds GGUF files as "sub/folder/file" without ".gguf". Errors: not_found, io.
  Status add_folder(const std::string& folder, const std::string& source = "");
  // Add files of other programs' caches; a missing cache adds nothing.
  void add_hugging_face(const std::string& hub);  // "org/repo/file"
  void add_ollama(const std::string& models);     // "name:tag", "namespace/name:tag"
  void add_lm_studio(const std::string& models);  // "publisher/repo/file"
  // Adds these programs' default caches of the current user.
  void discover();
  // {"NAME": {"model": "a listed name, or a path", "temperature": 0.7, ...}}. Paths are relative to
  // `folder`. Errors: invalid_argument, with name and field.
  Status add_presets(const std::string& json, const std::string& folder, const std::string& shown);
  // "NAME=TARGET" adds a name to a listed model. Errors: invalid_argument.
  Status add_alias(const std::string& assignment);
  Status add_name(size_t entry, const std::string& name);

  const std::vector<CatalogEntry>& entries() const { return entries_; }
  const std::vector<ModelFile>& files() const { return files_; }
  std::optional<size_t> find(std::string_view name) const;
  // "; there is "NAME"": a name that contains `name` or that `name` contains; else empty.
  std::string contained_name_hint(std::string_view name) const;
  // The message for a client that asks for an unknown model.
  std::string unknown_model(std::string_view name) const;

 private:
  size_t file_index(ModelFile file);

  std::vector<ModelFile> files_;
  std::vector<CatalogEntry> entries_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

// Characters of model names; no control characters, no "..".
bool is_model_name(std::string_view name);

}  // namespace braid::server
