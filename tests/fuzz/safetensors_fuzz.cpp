// safetensors_fuzz.cpp -- any bytes as a safetensors file; parsed files are read.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "gguf/block_layouts.h"
#include "gguf/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file =
      braid::SafetensorsFile::parse({reinterpret_cast<const std::byte*>(data), size}, "input");
  if (!file.ok()) {
    BRAID_CHECK(file.error().message.rfind("input: ", 0) == 0);
    return 0;
  }
  uint64_t total_bytes = 0;
  for (const braid::SafetensorsTensor& tensor : file->tensors()) {
    BRAID_CHECK(file->find_tensor(tensor.name) == &tensor);
    BRAID_CHECK(tensor.elems() * braid::safetensors_dtype_bytes(tensor.dtype) ==
                tensor.data.size());
    total_bytes += tensor.data.size();
    if (!tensor.ggml_type()) continue;
    const auto count = static_cast<int64_t>(std::min<uint64_t>(tensor.elems(), 1024));
    std::vector<float> values(static_cast<size_t>(count));
    braid::decode_row(*tensor.ggml_type(), tensor.data.data(), values.data(), count);
  }
  BRAID_CHECK(total_bytes <= size);
  return 0;
}
