// sparse_choice.h -- which key blocks the query blocks of long prompts read (sparse_prefill.h).
//
// attention() fills `means`, then chooses per (query block, KV head), then skips in its tiles what
// is not chosen. The products of rows and means cost 1/256 of full attention. A choice depends on
// the rows of the query block in the batch, their sequence and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/ops.h"
#include "ops/sparse_prefill.h"

namespace braid::cpu {

// A sequence of a batch that takes part, and the beginning of its part of the room.
struct SparseSequence {
  int32_t sequence = 0;
  int32_t first_block = 0;  // query block of its first row
  int32_t last_block = 0;   // of its last row; key blocks below it have means
  int64_t means = 0;
  int64_t chosen = 0;

  int32_t query_blocks() const { return last_block - first_block + 1; }
};

// Memory for the sequences of one batch.
struct SparseRoom {
  bool reserved = false;   // WorkspaceNeeds::sparse_prefill
  int32_t key_blocks = 0;  // whole ones of a sequence
  // Per sequence [KV heads][key blocks, a multiple of 32][padded_dim].
  float* means = nullptr;
  int64_t mean_floats = 0;
  // Bits of key blocks; per sequence [query blocks][KV heads][sparse_words(last_block)].
  uint32_t* chosen = nullptr;
  int64_t chosen_words = 0;
  std::vector<SparseSequence> sequences;  // the most of a batch
  size_t used = 0;
  SparseCounts counts;
};

// For WorkspaceNeeds; the last one is of a worker.
int64_t sparse_sequences(int64_t max_tokens);
int64_t sparse_mean_floats(int64_t max_tokens, int64_t max_context, int64_t kv_heads,
                           int64_t head_dim);
int64_t sparse_chosen_words(int64_t max_tokens, int64_t max_context, int64_t kv_heads);
int64_t sparse_scratch_floats(int64_t max_context, int64_t head_dim);

// Key blocks of 128 are a bit each.
constexpr int64_t sparse_words(int32_t last_block) { return last_block / 32 + 1; }
constexpr bool is_chosen(const uint32_t* chosen, int32_t key_block) {
  return (chosen[key_block / 32] >> key_block % 32 & 1) != 0;
}

// One attention() call with a threshold, in a layer without window and first_cell.
class SparseChoice {
 public:
  // Places the sequences that take part.
  SparseChoice(Tensor q, const AttentionParams& params, const KvLayer& kv, const Batch& batch,
               SparseRoom& room);

  // Index among the sequences that take part, or -1.
  int32_t find(int32_t sequence) const;

  // Tasks of the first phase: (sequence, key block, KV head).
  struct Mean {
    int32_t sequence;
    int32_t last_position;  // reads the keys
    int32_t key_block;
    int32_t kv_head;
    float* out;  // [head_dim]
  };
  int64_t mean_tasks() const;
  Mean mean(int64_t task) const;

  // Tasks of the second phase, with all means: (sequence, query block, KV head), longest first.
  int64_t choice_tasks() const;
  void choose(int64_t task, float* scratch) const;

  // After the second phase: the set of sequence `index`, and the counts of the batch.
  const uint32_t* chosen(int32_t index, int32_t position, int32_t kv_head) const;
  void count() const;

 private:
  std::span<const SparseSequence> sequences() const {
    return std::span(room_.sequences).first(room_.used);
  }
  uint32_t* set_of(const SparseSequence& s, int32_t query_block, int32_t kv_head) const;
  const float* means_of(const SparseSequence& s, int32_t kv_head) const;
  void add_head(const SparseSequence& s, int32_t query_block, int32_t head, float* scratch,
                uint32_t* set) const;

  Tensor q_;
  const AttentionParams& params_;
  const KvLayer& kv_;
  const Batch& batch_;
  SparseRoom& room_;
  int32_t kv_heads_;
  int64_t head_dim_;
};

// sum [head_dim] += the 32 rows of an expanded block (expand_block), or = if `first`.
void sum_block(float* sum, const float* rows, int64_t head_dim, bool first);

}  // namespace braid::cpu
