// gguf_fuzz.cpp -- any bytes as a GGUF file: parsed, read by every getter, decoded, written back.
// Checks: a parsed file holds the invariants of gguf.h; a file rebuilt from it parses to the same.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "gguf/block_layouts.h"
#include "gguf/gguf.h"
#include "gguf/gguf_writer.h"
#include "gguf/quantize.h"

namespace {

constexpr uint64_t kMostElems = 256;  // decoded per tensor, for speed

void read_all_values(const braid::GgufFile& file) {
  for (const braid::GgufEntry& entry : file.entries()) {
    BRAID_CHECK(file.find(entry.key) == &entry.value);
    (void)file.get_u32(entry.key);
    (void)file.get_i32(entry.key);
    (void)file.get_u64(entry.key);
    (void)file.get_f32(entry.key);
    (void)file.get_bool(entry.key);
    (void)file.get_string(entry.key);
    (void)file.get_strings(entry.key);
    (void)file.get_u32s(entry.key);
    (void)file.get_i32s(entry.key);
    (void)file.get_f32s(entry.key);
    (void)file.get_u32_each(entry.key, 3);
    (void)file.get_f32_each(entry.key, 3);
  }
}

void decode_some(const braid::GgufTensor& tensor) {
  BRAID_CHECK(tensor.data.size() == tensor.bytes_per_row() * tensor.rows());
  const uint64_t block = braid::block_elems(tensor.type);
  const auto count = static_cast<int64_t>(std::min(tensor.elems(), kMostElems) / block * block);
  std::vector<float> values(static_cast<size_t>(count));
  braid::decode_row(tensor.type, tensor.data.data(), values.data(), count);
  (void)braid::find_invalid_block(tensor.type, tensor.data.data(), count);
  if (!braid::all_finite(values.data(), count)) return;
  // One encoder per tensor, chosen by its bytes; all of them would take most of the time.
  constexpr braid::GgmlType kTypes[] = {
      braid::GgmlType::Q4_K,   braid::GgmlType::Q5_K,  braid::GgmlType::Q6_K,
      braid::GgmlType::Q8_0,   braid::GgmlType::Q4_0,  braid::GgmlType::Q5_1,
      braid::GgmlType::IQ4_NL, braid::GgmlType::MXFP4, braid::GgmlType::NVFP4};
  const braid::GgmlType type = kTypes[std::to_integer<size_t>(tensor.data[0]) % std::size(kTypes)];
  const int64_t whole = count / braid::block_elems(type) * braid::block_elems(type);
  std::vector<std::byte> out(*braid::row_bytes(type, static_cast<uint64_t>(whole)));
  braid::encode_row(type, values.data(), out.data(), whole);
  braid::decode_row(type, out.data(), values.data(), whole);
}

void rebuild(const braid::GgufFile& file) {
  braid::GgufWriter writer;
  writer.copy_metadata(file);
  for (const braid::GgufTensor& t : file.tensors())
    writer.add_tensor(t.name, t.type, t.n_dims, t.ne, t.data);
  const std::vector<std::byte> bytes = writer.to_bytes();
  const auto again = braid::GgufFile::parse(bytes, "rebuilt");
  BRAID_CHECK(again.ok());
  BRAID_CHECK(again->tensors().size() == file.tensors().size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file =
      braid::GgufFile::parse({reinterpret_cast<const std::byte*>(data), size}, "input");
  if (!file.ok()) {
    BRAID_CHECK(file.error().message.rfind("input: ", 0) == 0);
    return 0;
  }
  read_all_values(*file);
  std::vector<braid::MixTensor> tensors;
  for (const braid::GgufTensor& tensor : file->tensors()) {
    decode_some(tensor);
    tensors.push_back({tensor.name, tensor.type, tensor.ne});
  }
  (void)braid::tensor_types_for(*braid::find_quantize_mix("Q4_K_M"), tensors, 24,
                                size % 3 == 0 ? 8 : 0);
  rebuild(*file);
  return 0;
}
