// catalog.h -- the models a server may load, by name: files it was told of, files found in folders and in the
// caches of other programs, and presets.
//
// Names are only ever looked up in this list, so no name that a client sends can reach a file that is not in
// it. Folders are read once, at the start; nothing is downloaded. What looks like no model is left out
// silently, what looks like one and cannot be used is told by load().
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
  std::string source;  // who listed it: a folder, "hugging face", ...
  int64_t bytes = 0;
};

// What a name brings along; requests go before it, the server's and the model's own settings behind it.
struct Preset {
  SamplingOverrides sampling;
  std::optional<int64_t> max_tokens;
  std::optional<bool> think;
  std::optional<std::string> effort;
  std::string system_prompt;  // for conversations that bring none
  Json template_variables = Json::object();
};

// Fills in what a request leaves open.
void apply_preset(const Preset& preset, Generation& generation);

struct CatalogEntry {
  std::vector<std::string> names;  // the first is the one shown
  size_t file = 0;
  Preset preset;
};

class Catalog {
 public:
  static constexpr size_t kMaxEntries = 10'000;
  static constexpr size_t kMaxNameBytes = 256;

  // Adds what another catalog has, as far as its names are free.
  void add_all(const Catalog& other);
  // Adds a name; false if it is taken or no name.
  bool add(const std::string& name, ModelFile file, Preset preset = {});
  // GGUF files below a folder, as "sub/folder/file" without ".gguf". Errors: not_found, io.
  Status add_folder(const std::string& folder, const std::string& source = "");
  // Files in the caches of other programs; a cache that is not there adds nothing.
  void add_hugging_face(const std::string& hub);  // "org/repo/file"
  void add_ollama(const std::string& models);     // "name:tag", "namespace/name:tag"
  void add_lm_studio(const std::string& models);  // "publisher/repo/file"
  // The places where these programs keep them, for this user.
  void discover();
  // {"NAME": {"model": "a name of the list, or a path", "temperature": 0.7, ...}}; paths are relative to
  // `folder`. Errors: invalid_argument, with the name and the field.
  Status add_presets(const std::string& json, const std::string& folder, const std::string& shown);
  // "NAME=TARGET": another name for a listed model. Errors: invalid_argument.
  Status add_alias(const std::string& assignment);
  // Another name for an entry.
  Status add_name(size_t entry, const std::string& name);

  const std::vector<CatalogEntry>& entries() const { return entries_; }
  const std::vector<ModelFile>& files() const { return files_; }
  std::optional<size_t> find(std::string_view name) const;
  // Names close to one that is not there, for messages.
  std::string nearest(std::string_view name) const;
  // What a client is told that asks for it.
  std::string unknown_model(std::string_view name) const;

 private:
  size_t file_index(ModelFile file);

  std::vector<ModelFile> files_;
  std::vector<CatalogEntry> entries_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

// Letters, digits and what model names are written with; no control characters, no "..".
bool is_model_name(std::string_view name);

}  // namespace braid::server
