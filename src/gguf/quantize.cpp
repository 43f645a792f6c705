// quantize.cpp -- converts every tensor as a stream.
// A tensor can be cut at any multiple of 256 elements. Threads convert pieces into a fixed buffer,
// which is written in order, so bytes do not depend on the threads.
#include "gguf/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <thread>

#include "gguf/block_layouts.h"
#include "gguf/gguf_text.h"
#include "gguf/gguf_writer.h"

namespace braid {

namespace {

constexpr uint64_t kPieceElems = 16384;  // one thread's piece; a multiple of every block length
constexpr uint64_t kBatchPieces = 256;   // converted together, then written
constexpr uint64_t kMaxThreads = 64;

const MappedFile* mapping_of(const GgufFile& file, const GgufTensor& tensor) {
  return tensor.shard < file.mappings().size() ? &file.mappings()[tensor.shard] : nullptr;
}

template <typename Work>
void for_each_piece(uint64_t count, uint64_t threads, Work work) {
  std::atomic<uint64_t> next{0};
  const auto take = [&] {
    for (uint64_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::thread> helpers;
  for (uint64_t t = 1; t < std::min(threads, count); ++t) helpers.emplace_back(take);
  take();
  for (std::thread& helper : helpers) helper.join();
}

class Converter {
 public:
  Converter(const GgufFile& file, const GgufTensor& tensor, GgmlType to, uint64_t threads)
      : file_(file), tensor_(tensor), to_(to), threads_(threads) {}

  Status produce(const ByteSink& sink) const {
    std::vector<std::byte> out(
        std::min(bytes_of(to_, tensor_.elems()), bytes_of(to_, kPieceElems * kBatchPieces)));
    const uint64_t pieces = (tensor_.elems() + kPieceElems - 1) / kPieceElems;
    for (uint64_t first = 0; first < pieces; first += kBatchPieces) {
      const uint64_t count = std::min(kBatchPieces, pieces - first);
      std::atomic<uint64_t> bad_piece{std::numeric_limits<uint64_t>::max()};
      std::atomic<bool> bad_source{false};
      for_each_piece(count, threads_, [&](uint64_t i) {
        const Outcome outcome = convert(first + i, out.data() + bytes_of(to_, i * kPieceElems));
        if (outcome == Outcome::fine) return;
        bad_piece = first + i;
        if (outcome == Outcome::bad_source) bad_source = true;
      });
      if (bad_piece != std::numeric_limits<uint64_t>::max()) return refused(bad_source);
      const uint64_t begin = first * kPieceElems;
      const uint64_t end = std::min((first + count) * kPieceElems, tensor_.elems());
      BRAID_TRY(sink({out.data(), bytes_of(to_, end - begin)}));
      release(begin, end);
    }
    return {};
  }

 private:
  enum class Outcome { fine, bad_source, bad_result };

  static uint64_t bytes_of(GgmlType type, uint64_t elems) {
    return elems / block_elems(type) * block_bytes(type);
  }

  Outcome convert(uint64_t piece, std::byte* out) const {
    const uint64_t begin = piece * kPieceElems;
    const auto count = static_cast<int64_t>(std::min(kPieceElems, tensor_.elems() - begin));
    const std::byte* source = tensor_.data.data() + bytes_of(tensor_.type, begin);
    if (to_ == tensor_.type) {
      if (find_invalid_block(to_, source, count)) return Outcome::bad_source;
      std::copy_n(source, bytes_of(to_, static_cast<uint64_t>(count)), out);
      return Outcome::fine;
    }
    std::vector<float> values(static_cast<size_t>(count));
    decode_row(tensor_.type, source, values.data(), count);
    if (!all_finite(values.data(), count)) return Outcome::bad_source;
    encode_row(to_, values.data(), out, count);
    return find_invalid_block(to_, out, count) ? Outcome::bad_result : Outcome::fine;
  }

  Error refused(bool bad_source) const {
    return Error{
        ErrorKind::corrupt,
        fmt::format("{}: tensor {} {}", file_.name(), quoted(tensor_.name),
                    bad_source ? "holds values that are infinite or not numbers"
                               : fmt::format("holds values too large for {}", type_name(to_)))};
  }

  void release(uint64_t begin, uint64_t end) const {
    const MappedFile* mapping = mapping_of(file_, tensor_);
    if (mapping == nullptr) return;
    const uint64_t first = bytes_of(tensor_.type, begin);
    mapping->release(tensor_.data.subspan(first, bytes_of(tensor_.type, end) - first));
  }

  const GgufFile& file_;
  const GgufTensor& tensor_;
  GgmlType to_;
  uint64_t threads_;
};

struct Hyper {
  std::string prefix;  // "qwen35."
  uint32_t n_layer = 0;
  uint32_t n_expert = 0;
  uint32_t n_mtp = 0;
};

// Files without these keys (vocabularies, adapters) count as having no layers.
Result<Hyper> read_hyper(const GgufFile& file) {
  Hyper hyper;
  BRAID_ASSIGN(const auto architecture, file.find_string("general.architecture"));
  if (!architecture) return hyper;
  hyper.prefix = std::string(*architecture) + ".";
  BRAID_ASSIGN(const auto n_layer, file.find_u32(hyper.prefix + "block_count"));
  BRAID_ASSIGN(const auto n_expert, file.find_u32(hyper.prefix + "expert_count"));
  BRAID_ASSIGN(const auto n_mtp, file.find_u32(hyper.prefix + "nextn_predict_layers"));
  hyper.n_layer = n_layer.value_or(0);
  hyper.n_expert = n_expert.value_or(0);
  hyper.n_mtp = n_mtp.value_or(0);
  if (hyper.n_mtp > hyper.n_layer) {
    return Error{ErrorKind::corrupt, fmt::format("{}: {} prediction layers among {} layers",
                                                 file.name(), hyper.n_mtp, hyper.n_layer)};
  }
  return hyper;
}

// Keys set by quantization go to the end, as in llama.cpp's quantizer.
Status set_metadata(GgufWriter& writer, const GgufFile& in, const Hyper& hyper,
                    const QuantizeMix& mix, bool drop_mtp) {
  writer.copy_metadata(in);
  for (const char* key : {"split.no", "split.count", "split.tensors.count",
                          "general.quantization_version", "general.file_type"}) {
    writer.remove(key);
  }
  writer.set_u32("general.quantization_version", 2);
  writer.set_u32("general.file_type", mix.file_type);
  if (!drop_mtp || hyper.n_mtp == 0) return {};
  const uint32_t kept = hyper.n_layer - hyper.n_mtp;
  writer.set_u32(hyper.prefix + "block_count", kept);
  writer.remove(hyper.prefix + "nextn_predict_layers");
  for (const GgufEntry& entry : in.entries()) {  // arrays with a value per layer
    GgufValue value = entry.value;
    const uint32_t size = value.is_array() ? gguf_value_bytes(value.elem_type) : 0;
    if (size == 0 || value.count != hyper.n_layer || !entry.key.starts_with(hyper.prefix)) continue;
    value.count = kept;
    value.bytes = value.bytes.first(uint64_t{kept} * size);
    writer.set_value(entry.key, value);
  }
  return {};
}

}  // namespace

Result<QuantizeReport> quantize_file(const GgufFile& in, const std::string& path,
                                     const QuantizeMix& mix, const QuantizeOptions& options,
                                     const std::function<bool(const QuantizeProgress&)>& progress) {
  BRAID_ASSIGN(const Hyper hyper, read_hyper(in));
  QuantizeReport report;
  std::vector<const GgufTensor*> kept;
  for (const GgufTensor& tensor : in.tensors()) {
    const int64_t layer = tensor_layer(tensor.name);
    if (options.drop_mtp && layer >= hyper.n_layer - hyper.n_mtp && layer < hyper.n_layer) {
      ++report.dropped;
    } else {
      kept.push_back(&tensor);
      report.source_bytes += tensor.data.size();
    }
  }
  std::sort(kept.begin(), kept.end(), [](const GgufTensor* a, const GgufTensor* b) {
    return tensor_comes_before(a->name, b->name);
  });
  std::vector<MixTensor> shapes;
  for (const GgufTensor* tensor : kept) shapes.push_back({tensor->name, tensor->type, tensor->ne});
  const uint32_t n_layer = options.drop_mtp ? hyper.n_layer - hyper.n_mtp : hyper.n_layer;
  const std::vector<GgmlType> types = tensor_types_for(mix, shapes, n_layer, hyper.n_expert);

  GgufWriter writer;
  BRAID_TRY(set_metadata(writer, in, hyper, mix, options.drop_mtp));
  const uint64_t threads =
      std::clamp<uint64_t>(static_cast<uint64_t>(std::max(options.threads, 1)), 1, kMaxThreads);
  uint64_t done_bytes = 0;
  for (size_t i = 0; i < kept.size(); ++i) {
    const GgufTensor& tensor = *kept[i];
    uint32_t n_dims = 4;
    while (n_dims > 1 && tensor.ne[n_dims - 1] == 1) --n_dims;
    writer.add_tensor(tensor.name, types[i], n_dims, tensor.ne,
                      [&, i](const ByteSink& sink) -> Status {
                        const GgufTensor& source = *kept[i];
                        if (progress && !progress({i, kept.size(), source.name, source.type,
                                                   types[i], done_bytes, report.source_bytes})) {
                          return Error{ErrorKind::cancelled, "quantizing was stopped"};
                        }
                        done_bytes += source.data.size();
                        return Converter(in, source, types[i], threads).produce(sink);
                      });
  }
  report.tensors = kept.size();
  report.result_bytes = writer.file_bytes();
  BRAID_TRY(writer.write_file(path));
  return report;
}

}  // namespace braid
