// tensor.h -- views of numbers on a device, and the weights of a model.
// Shapes are row-major, slowest first. A weight matrix W [n, k] has n output and k input features,
// with rows of k contiguous elements as in the GGUF file ({k, n} there): y[n] = sum_k W[n][k] x[k].
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "gguf/types.h"

namespace braid {

// Activations are f32 on the CPU and in the reference, bf16 or f16 on a GPU.
enum class DType : uint8_t { f32, f16, bf16, i32 };

constexpr size_t size_bytes(DType type) { return type == DType::f32 || type == DType::i32 ? 4 : 2; }

// A view [rows, cols] into a Buffer, `stride` elements from row to row. Null data: no tensor.
struct Tensor {
  void* data = nullptr;
  DType type = DType::f32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  explicit operator bool() const { return data != nullptr; }

  float* f32(int64_t row = 0) const {
    BRAID_CHECK(type == DType::f32);
    return static_cast<float*>(data) + row * stride;
  }
  Tensor top(int64_t count) const {
    BRAID_CHECK(count <= rows);
    Tensor t = *this;
    t.rows = count;
    return t;
  }
  Tensor middle(int64_t first, int64_t count) const {
    BRAID_CHECK(first >= 0 && first + count <= rows);
    Tensor t = *this;
    t.data = static_cast<char*>(data) + static_cast<size_t>(first * stride) * size_bytes(type);
    t.rows = count;
    return t;
  }
  Tensor columns(int64_t first, int64_t count) const {
    BRAID_CHECK(first >= 0 && first + count <= cols);
    Tensor t = *this;
    t.data = static_cast<char*>(data) + static_cast<size_t>(first) * size_bytes(type);
    t.cols = count;
    return t;
  }
  Tensor shaped(int64_t count, int64_t width) const {
    BRAID_CHECK(count * width <= rows * stride);
    return Tensor{data, type, count, width, width};
  }
};

struct RowRun {
  int64_t first = 0;
  int64_t count = 0;
};
using ColumnRun = RowRun;  // in elements

// One weight matrix, or `experts` matrices of the same shape, in the layout of the loading device.
struct Weight {
  std::string name;               // tensor name in the file, for messages
  GgmlType type = GgmlType::F32;  // element format in the file
  int64_t n = 0;                  // output features (rows)
  int64_t k = 0;                  // input features (columns)
  int64_t experts = 1;
  std::span<const std::byte> file;  // [experts][n][row of k]; valid as long as the file
  size_t expert_stride_bytes = 0;   // from one expert's matrix to the next; 0: contiguous
  // If not empty: the rows are these of `file`, in this order. Not for experts.
  std::vector<RowRun> runs;
  // If not empty: a row is these of the file_k elements of its row in `file`, in this order, whole
  // blocks, k in all.
  std::vector<ColumnRun> columns;
  int64_t file_k = 0;
  // {}: 1; else one factor (or one per expert) that multiplies the product
  std::span<const float> scales;
  bool is_table = false;   // rows are looked up by embed()
  bool is_product = true;  // used by linear() / moe_ffn() / logits()
  // Its results are verified later (drafters), so a device may keep it in fewer bits.
  bool may_round = false;
  // Experts that lie on the device; it reads the others from host memory when they are chosen
  // (Ops::fetch_experts). 0: all. Below `experts`, and the same for gate, up and down of a layer.
  int32_t slots = 0;

  const void* device_data = nullptr;  // the device's layout; owned by the device
  size_t device_bytes = 0;            // size of that layout: the bytes of one full read

  explicit operator bool() const { return n > 0; }

  // Bytes of k elements as in the file, and from a row to the next there.
  size_t file_row_bytes() const { return bytes_of(k); }
  size_t file_pitch_bytes() const { return bytes_of(columns.empty() ? k : file_k); }
  // Rows as in the file. Files fuse matrices in several ways: read rows only through this, or with
  // copy_row() or decode_weight_row().
  struct FileRows {
    const std::byte* data = nullptr;
    int64_t count = 0;
  };
  // Up to `most` rows of one expert, from `row` on, that are contiguous in the file. Not with
  // `columns`.
  FileRows file_rows(int64_t expert, int64_t row, int64_t most) const {
    BRAID_CHECK(columns.empty());
    return whole_file_rows(expert, row, most);
  }
  // Joins the columns of a row: file_row_bytes() to `out`.
  void copy_row(int64_t expert, int64_t row, std::byte* out) const;

  size_t bytes_of(int64_t elements) const {
    return static_cast<size_t>(elements) / block_elems(type) * block_bytes(type);
  }
  // file_rows() with all columns of the file.
  FileRows whole_file_rows(int64_t expert, int64_t row, int64_t most) const {
    BRAID_CHECK(row >= 0 && most > 0 && row + most <= n);
    int64_t at = row;
    if (std::ssize(runs) == n) {  // each row by itself
      at = runs[static_cast<size_t>(row)].first;
      most = 1;
    } else {
      for (const RowRun& run : runs) {
        if (at < run.count) {
          most = std::min(most, run.count - at);
          at += run.first;
          break;
        }
        at -= run.count;
      }
    }
    const size_t pitch_bytes = file_pitch_bytes();
    const size_t matrix_bytes = static_cast<size_t>(n) * pitch_bytes;
    const size_t stride_bytes = expert_stride_bytes != 0 ? expert_stride_bytes : matrix_bytes;
    const size_t first_byte =
        static_cast<size_t>(expert) * stride_bytes + static_cast<size_t>(at) * pitch_bytes;
    const size_t bytes = static_cast<size_t>(most) * pitch_bytes;
    BRAID_CHECK(first_byte + bytes <= file.size());
    return {file.data() + first_byte, most};
  }
};

// A row of one expert as k numbers.
void decode_weight_row(const Weight& w, int64_t expert, int64_t row, float* out);

}  // namespace braid
