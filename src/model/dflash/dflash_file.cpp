// dflash_file.cpp -- see dflash_file.h.
#include "model/dflash/dflash_file.h"

#include <fmt/format.h>

#include <filesystem>

#include "gguf/gguf_text.h"

namespace braid {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostConfigBytes = 1 << 20;

// Tensors that any program may add.
bool is_metadata(std::string_view name) { return name == "rope_freqs.weight"; }

}  // namespace

Result<DflashFile> DflashFile::open(const std::string& path) {
  std::error_code ignored;
  const bool folder = fs::is_directory(path, ignored);
  const fs::path tensors = folder ? fs::path(path) / "model.safetensors" : fs::path(path);
  if (tensors.extension() != ".safetensors") {
    BRAID_ASSIGN(GgufFile file, GgufFile::open(path));
    return of_gguf(std::move(file));
  }
  const std::string config_path = (tensors.parent_path() / "config.json").string();
  BRAID_ASSIGN(const MappedFile config, MappedFile::open(config_path));
  if (config.bytes().size() > kMostConfigBytes)
    return Error{ErrorKind::corrupt, fmt::format("{}: has {} bytes, which no configuration needs",
                                                 config_path, config.bytes().size())};
  BRAID_ASSIGN(SafetensorsFile file, SafetensorsFile::open(tensors.string()));
  return of_safetensors(std::move(file), {reinterpret_cast<const char*>(config.bytes().data()),
                                          config.bytes().size()});
}

Result<DflashFile> DflashFile::of_gguf(GgufFile file) {
  DflashFile result;
  result.name_ = file.name();
  BRAID_ASSIGN(result.config_, read_dflash_gguf(file));
  result.gguf_ = std::move(file);
  return result;
}

Result<DflashFile> DflashFile::of_safetensors(SafetensorsFile file, std::string_view config) {
  DflashFile result;
  result.name_ = file.name();
  BRAID_ASSIGN(result.config_,
               read_dflash_json(config, fmt::format("config.json of {}", file.name())));
  result.safetensors_ = std::move(file);
  return result;
}

Result<std::optional<DflashTensor>> DflashFile::find(std::span<const std::string> names) {
  for (const std::string& name : names) {
    if (gguf_) {
      const GgufTensor* t = gguf_->find_tensor(name);
      if (t == nullptr) continue;
      found_.insert(name);
      return std::optional(DflashTensor{name, t->type, t->ne, t->data});
    }
    const SafetensorsTensor* t = safetensors_->find_tensor(name);
    if (t == nullptr) continue;
    found_.insert(name);
    const auto type = t->ggml_type();
    const bool is_float =
        type && (*type == GgmlType::F32 || *type == GgmlType::F16 || *type == GgmlType::BF16);
    if (!is_float && type != GgmlType::I64)
      return Error{
          ErrorKind::unsupported,
          fmt::format("{}: tensor {} has the type {}; braid takes F32, F16 and BF16 of safetensors",
                      name_, name, safetensors_dtype_name(t->dtype))};
    if (t->shape.empty() || t->shape.size() > 3 || t->elems() == 0)
      return Error{ErrorKind::corrupt,
                   fmt::format("{}: tensor {} does not have 1 to 3 dimensions", name_, name)};
    DflashTensor tensor{name, *type, {1, 1, 1, 1}, t->data};
    for (size_t i = 0; i < t->shape.size(); ++i) tensor.ne[i] = t->shape[t->shape.size() - 1 - i];
    return std::optional(std::move(tensor));
  }
  return std::optional<DflashTensor>();
}

std::string DflashFile::left_over() const {
  const auto is_left = [&](std::string_view name) {
    return !found_.contains(name) && !is_metadata(name);
  };
  if (gguf_) {
    for (const GgufTensor& t : gguf_->tensors())
      if (is_left(t.name)) return braid::quoted(t.name);
  } else {
    for (const SafetensorsTensor& t : safetensors_->tensors())
      if (is_left(t.name)) return braid::quoted(t.name);
  }
  return {};
}

uint64_t DflashFile::file_bytes() const {
  if (gguf_) return gguf_->file_bytes();
  uint64_t bytes = 0;
  for (const SafetensorsTensor& t : safetensors_->tensors()) bytes += t.data.size();
  return bytes;
}

}  // namespace braid
