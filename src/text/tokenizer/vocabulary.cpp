// vocabulary.cpp -- see vocabulary.h.
#include "text/tokenizer/vocabulary.h"

#include "base/log.h"

namespace braid {
namespace {

std::optional<int32_t> read_id(const GgufFile& file, std::string_view name) {
  const std::string key = "tokenizer.ggml." + std::string(name) + "_token_id";
  const auto id = file.find_i32(key);
  if (id.ok()) return *id;
  spdlog::warn("{}; it is ignored", id.error().message);
  return std::nullopt;
}

std::optional<int32_t> read_id(const GgufFile& file, std::string_view name,
                               std::string_view older_name) {
  const auto id = read_id(file, name);
  return id ? id : read_id(file, older_name);
}

}  // namespace

Result<VocabularyData> read_vocabulary(const GgufFile& file) {
  VocabularyData data;
  BRAID_ASSIGN(const std::string_view model, file.get_string("tokenizer.ggml.model"));
  data.model = model;
  BRAID_ASSIGN(const auto pre, file.find_string("tokenizer.ggml.pre"));
  data.pre = pre.value_or("");
  BRAID_ASSIGN(const auto tokens, file.get_strings("tokenizer.ggml.tokens"));
  data.tokens.assign(tokens.begin(), tokens.end());
  if (file.has("tokenizer.ggml.token_type")) {
    BRAID_ASSIGN(data.types, file.get_i32s("tokenizer.ggml.token_type"));
  } else {
    spdlog::warn(
        "{}: has no tokenizer.ggml.token_type, so the marks of its turns may be read as letters; "
        "convert the "
        "model again",
        file.name());
  }
  if (file.has("tokenizer.ggml.merges")) {
    BRAID_ASSIGN(const auto merges, file.get_strings("tokenizer.ggml.merges"));
    data.merges.assign(merges.begin(), merges.end());
  } else if (data.model == "gpt2") {
    return Error{ErrorKind::corrupt,
                 file.name() +
                     ": has no tokenizer.ggml.merges, so text would be cut into single "
                     "bytes, which the model never learned; convert it again"};
  }
  BRAID_ASSIGN(data.add_bos, file.find_bool("tokenizer.ggml.add_bos_token"));
  BRAID_ASSIGN(data.add_eos, file.find_bool("tokenizer.ggml.add_eos_token"));
  data.bos = read_id(file, "bos");
  data.eos = read_id(file, "eos");
  data.eot = read_id(file, "eot");
  data.eom = read_id(file, "eom");
  data.unknown = read_id(file, "unknown");
  data.separator = read_id(file, "seperator");  // the key is misspelled in GGUF
  data.padding = read_id(file, "padding");
  data.mask = read_id(file, "mask");
  data.fim_prefix = read_id(file, "fim_pre", "prefix");
  data.fim_suffix = read_id(file, "fim_suf", "suffix");
  data.fim_middle = read_id(file, "fim_mid", "middle");
  data.fim_padding = read_id(file, "fim_pad");
  data.fim_repository = read_id(file, "fim_rep");
  data.fim_separator = read_id(file, "fim_sep");
  return data;
}

}  // namespace braid
