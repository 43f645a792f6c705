// drafter_fuzz.cpp -- DFlash2 and DSpark drafters with changed keys and tensors.
// One byte chooses the file: DSpark or DFlash2 as GGUF, DFlash2 as config.json and safetensors, or
// any config.json; the rest is a list of changes. Checks: errors name the file; opened drafters
// hold the invariants of dflash_config.h and draft a block.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "base/check.h"
#include "changes.h"
#include "engine/prefix/sequence_cache.h"
#include "gguf/safetensors.h"
#include "model/dflash/dflash.h"
#include "model/dflash/dflash_target_test.h"
#include "ops/devices.h"

namespace {

using namespace braid;
using namespace braid::fuzz;
using namespace braid::testing_dflash;
using Json = nlohmann::json;

constexpr int32_t kContext = 9, kMostRows = 64;

std::vector<std::byte> read_file(const std::string& name) {
  std::ifstream in(kFolder + name, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  const std::string bytes = text.str();
  const auto span = std::as_bytes(std::span(bytes));
  return {span.begin(), span.end()};
}

struct Base {
  std::vector<std::byte> dspark = read_file("dspark.gguf");
  std::vector<std::byte> tensors = read_file("dflash2/model.safetensors");
  std::vector<std::byte> dflash2;  // as GGUF
  Json config;
  std::vector<std::string> gguf_keys, json_keys;

  Base() {
    const auto text = read_file("dflash2/config.json");
    config = Json::parse(reinterpret_cast<const char*>(text.data()),
                         reinterpret_cast<const char*>(text.data()) + text.size());
    const auto file = GgufFile::parse(dspark, "dspark");
    const auto safetensors = SafetensorsFile::parse(tensors, "dflash2");
    BRAID_CHECK(file.ok() && safetensors.ok());
    GgufWriter writer;
    writer.copy_metadata(*file);
    for (const auto& [key, value] : {std::pair{"conv_kernel_size", 2u},
                                     {"conv_group_size", 8u},
                                     {"selector_rank", 8u},
                                     {"selector_top_k", 6u}})
      writer.set_u32(std::string("dflash.") + key, value);
    for (const SafetensorsTensor& t : safetensors->tensors()) {
      std::array<uint64_t, 4> ne = {1, 1, 1, 1};
      for (size_t i = 0; i < t.shape.size(); ++i) ne[i] = t.shape[t.shape.size() - 1 - i];
      writer.add_tensor(t.name, GgmlType::BF16, static_cast<uint32_t>(t.shape.size()), ne, t.data);
    }
    dflash2 = writer.to_bytes();
    const auto both = GgufFile::parse(dflash2, "keys");
    for (const GgufEntry& entry : both->entries())
      if (entry.key != "general.architecture") gguf_keys.emplace_back(entry.key);
    for (const char* key :
         {"logit_scale", "embedding_scale", "final_logit_softcapping", "vocab_size",
          "sample_from_anchor", "markov_head_type", "markov_rank", "attention.sliding_window",
          "attention.sliding_window_pattern", "rope.scaling.type", "noise_token_id",
          "mask_token_id", "attention.value_length"})
      gguf_keys.push_back(std::string("dflash.") + key);
    for (const auto& [key, value] : config.items()) json_keys.push_back(key);
    for (const auto& [key, value] : config["dflash_config"].items()) json_keys.push_back(key);
    for (const char* key :
         {"sample_from_anchor", "markov_head_type", "markov_rank", "enable_confidence_head",
          "causal", "use_swa", "swa_window_size", "rope_parameters", "rope_scaling"})
      json_keys.emplace_back(key);
  }
};
const Base& base() {
  static const Base all;
  return all;
}

Json any_value(Input& in) {
  switch (in.byte() % 9) {
    case 0:
      return nullptr;
    case 1:
      return in.byte() % 2 == 1;
    case 2:
      return (in.byte() - 128.0) / 16;
    case 3:
      return Json::array({in.number(), in.number()});
    case 4:
      return in.byte() % 2 == 1 ? "vanilla" : "full_attention";
    case 5:
      return Json::object({{"rope_theta", in.number()}, {"type", "yarn"}});
    case 6:
      return -static_cast<int64_t>(in.number());
    case 7:
      return (uint64_t{in.number()} << 32) + in.number();
    default:
      return in.number();
  }
}

// Changes shapes and types of the header; data stay in place.
std::vector<std::byte> changed_safetensors(Input& in) {
  const std::vector<std::byte>& bytes = base().tensors;
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  const char* text = reinterpret_cast<const char*>(bytes.data()) + sizeof length;
  Json header = Json::parse(text, text + length);
  for (int changes = in.byte() % 3; changes > 0; --changes) {
    auto at = header.begin();
    std::advance(at, in.number() % header.size());
    Json& shape = (*at)["shape"];
    switch (in.byte() % 4) {
      case 0:
        header.erase(at);
        break;
      case 1:
        (*at)["dtype"] = in.byte() % 2 == 1 ? "F16" : "I64";
        break;
      case 2:
        std::reverse(shape.begin(), shape.end());
        break;
      default:
        if (shape.size() > 1 && shape.back().get<uint64_t>() % 2 == 0) {
          shape.front() = shape.front().get<uint64_t>() * 2;
          shape.back() = shape.back().get<uint64_t>() / 2;
        }
    }
    if (header.empty()) break;
  }
  const std::string out_text = header.dump();
  const uint64_t out_length = out_text.size();
  std::vector<std::byte> out(sizeof out_length);
  std::memcpy(out.data(), &out_length, sizeof out_length);
  const auto head = std::as_bytes(std::span(out_text));
  out.insert(out.end(), head.begin(), head.end());
  out.insert(out.end(), bytes.begin() + static_cast<std::ptrdiff_t>(sizeof length + length),
             bytes.end());
  return out;
}

std::vector<std::byte> changed_gguf(const std::vector<std::byte>& bytes, Input& in) {
  const auto file = GgufFile::parse(bytes, "base");
  GgufWriter writer;
  writer.copy_metadata(*file);
  std::vector<GgufTensor> tensors(file->tensors().begin(), file->tensors().end());
  for (int i = 0; i < 6 && !in.empty(); ++i) {
    if (in.byte() % 4 != 0) {
      change_key(writer, base().gguf_keys[in.number() % base().gguf_keys.size()], in);
      continue;
    }
    const size_t index = in.number() % tensors.size();
    GgufTensor& t = tensors[index];
    switch (in.byte() % 3) {
      case 0:
        if (tensors.size() > 1) tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(index));
        break;
      case 1:
        std::swap(t.ne[0], t.ne[1]);
        break;
      default:
        if (t.ne[0] % 2 == 0) {
          t.ne[0] /= 2;
          t.ne[1 + in.byte() % 2] *= 2;
        }
    }
  }
  for (const GgufTensor& t : tensors) {
    uint32_t dims = 4;
    while (dims > 1 && t.ne[dims - 1] == 1) --dims;
    writer.add_tensor(t.name, t.type, dims, t.ne, t.data);
  }
  return writer.to_bytes();
}

void check_config(const DflashConfig& c, const Dflash& drafter) {
  BRAID_CHECK(c.width == kWidth && c.block >= 2 && c.block <= DflashConfig::kMaxBlock &&
              !c.layers.empty());
  BRAID_CHECK(c.mask_token >= 0 && c.mask_token < kVocabulary && !c.taps.empty() &&
              c.ffn_width > 0);
  for (const int32_t tap : c.taps) BRAID_CHECK(tap >= 0 && tap < 4);
  for (const DflashLayer& l : c.layers) {
    const AttentionConfig& a = l.attention;
    BRAID_CHECK(a.heads > 0 && a.kv_heads > 0 && a.heads % a.kv_heads == 0 && a.head_dim > 0 &&
                a.window >= 0);
  }
  BRAID_CHECK(c.guesses() > 0 && c.guesses() <= c.block);
  if (c.conv_taps > 0) BRAID_CHECK(c.conv_group > 0 && c.width % c.conv_group == 0);
  if (drafter.has_pairs())
    BRAID_CHECK(c.candidates > 0 && c.candidates <= kVocabulary && c.pair_rank > 0);
}

struct Rows {
  std::vector<int32_t> token, position, zeros, minus, last, output, table;
  int32_t rows = 0, context = 0;
  Rows(int32_t start, int32_t count, int32_t first_output) : rows(count), context(start + count) {
    token.assign(static_cast<size_t>(count), 1);
    position.resize(token.size());
    std::iota(position.begin(), position.end(), start);
    zeros.assign(token.size(), 0);
    minus.assign(token.size(), -1);
    last.assign(token.size(), context - 1);
    for (int32_t i = first_output; i < count; ++i) output.push_back(i);
    table = {0, 1, 2};
  }
  Batch batch() const {
    Batch b;
    b.tokens = rows;
    b.sequences = 1;
    b.outputs = static_cast<int32_t>(output.size());
    b.token = token.data();
    b.position = b.cell = position.data();
    b.sequence = b.first_row = b.slot = zeros.data();
    b.parent = minus.data();
    b.rows = b.certain = &rows;
    b.context = &context;
    b.block_table = table.data();
    b.blocks_per_sequence = 3;
    b.output_row = output.data();
    return b;
  }
};

void run(Dflash& drafter) {
  const DflashConfig& c = drafter.config();
  Devices devices(make_ref_device({}));
  const std::vector<std::byte> nothing = GgufWriter().to_bytes();
  const auto no_file = GgufFile::parse(nothing, "nothing");
  static const std::vector<float> zeros(static_cast<size_t>(kVocabulary * kWidth));
  ModelWeights weights(*no_file);
  weights.embedding.n = kVocabulary;
  weights.embedding.k = kWidth;
  weights.embedding.file = std::as_bytes(std::span(zeros));
  weights.embedding.is_table = true;
  Weight* const lent[] = {&weights.embedding};
  BRAID_CHECK(devices.first().load_weights(lent, nullptr).ok());
  const Dflash::Sizes sizes = {{kMostRows, kMostRows, 0}, c.block};
  ModelConfig config = target();
  if (!drafter.load(devices.all(), config, weights, sizes).ok()) return;
  config.drafter = drafter.kv_layers();
  SequenceCache cache;
  CacheSizes cells;
  cells.blocks[0] = 3;
  cells.k_format = cells.v_format = KvFormat::f32;
  BRAID_CHECK(cache.allocate(devices, config, cells).ok());
  std::vector<float> residual(static_cast<size_t>(kContext * kWidth), 0.5f);
  for (const int32_t tap : c.taps)
    drafter.layer_output(tap, {residual.data(), DType::f32, kContext, kWidth, kWidth}, false);
  const Rows context(0, kContext, kContext);
  drafter.step_output(context.batch(), cache.memory(), false);
  const Rows block(kContext, c.block, c.first_guess());
  drafter.forward(block.batch(), block.last.data(), cache.memory());
  const int64_t rows = block.batch().outputs, few = drafter.has_pairs() ? c.candidates : 1;
  std::vector<float> memory(
      static_cast<size_t>(rows * (drafter.head_tokens() + few * few + 4 * few + 1)));
  float* at = memory.data();
  const auto take = [&](int64_t cols, DType type = DType::f32) {
    const Tensor t{at, type, rows, cols, cols};
    at += rows * cols;
    return t;
  };
  const Tensor logits = take(drafter.head_tokens());
  drafter.logits(logits, 0, static_cast<int32_t>(rows));
  const Dflash::Guesses g = {take(few, DType::i32), take(few), take(1), take(few * few), take(few)};
  drafter.guess(g, logits, block.batch());
  for (int64_t i = 0; i < rows * few; ++i)
    (void)drafter.token(static_cast<const int32_t*>(g.ids.data)[i]);
}

void open(Result<DflashFile> file) {
  if (!file.ok()) {
    BRAID_CHECK(file.error().message.find("input") != std::string::npos);
    return;
  }
  auto drafter = Dflash::open(std::move(file).value(), target());
  if (!drafter.ok()) {
    BRAID_CHECK(drafter.error().message.find("input") != std::string::npos);
    return;
  }
  check_config((*drafter)->config(), **drafter);
  run(**drafter);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input in(data, size);
  const uint8_t kind = in.byte() % 4;
  if (kind == 3) {
    (void)read_dflash_json({reinterpret_cast<const char*>(data) + 1, size > 0 ? size - 1 : 0},
                           "input");
    return 0;
  }
  if (kind == 2) {
    Json config = base().config;
    const std::vector<std::byte> tensors = changed_safetensors(in);
    for (int i = 0; i < 6 && !in.empty(); ++i) {
      const std::string& key = base().json_keys[in.number() % base().json_keys.size()];
      Json& object = in.byte() % 2 == 1 && config["dflash_config"].is_object()
                         ? config["dflash_config"]
                         : config;
      object[key] = any_value(in);
    }
    auto file = SafetensorsFile::parse(tensors, "input");
    if (file.ok()) open(DflashFile::of_safetensors(std::move(file).value(), config.dump()));
    return 0;
  }
  const std::vector<std::byte> bytes = changed_gguf(kind == 0 ? base().dspark : base().dflash2, in);
  auto file = GgufFile::parse(bytes, "input");
  if (file.ok()) open(DflashFile::of_gguf(std::move(file).value()));
  return 0;
}
