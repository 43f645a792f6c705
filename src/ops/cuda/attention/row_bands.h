// row_bands.h -- rows of a batch that read the same cells sealed, and the image of a step's cells.
//
// How far a row reads units depends on its position (KvTail), but attention kernels read all cells
// of a sequence through one table. So they get a batch whose sequences are bands: rows of a
// sequence that read the same cells sealed. Certain rows form bands of up to 32 consecutive rows.
// Uncertain rows see their ancestors: if they read differently, each border has a band with all of
// them, which stores the rows of that border (AttentionArgs::exact_from).
//
// Tiles of queries are filled better by 64 rows, so two bands of certain rows may form a pair. Its
// table has the block between the two borders twice, sealed and then exact. Each row has a hole of
// one block from its border on, and sees 32 cells more if its position lies after the border.
//
// The image is one layer's cells as f16 blocks. Block j of sequence s is at s * stride + j,
// expanded from its unit, or copied if no row reads it sealed. Exact copies of blocks that are also
// read sealed follow, from `extra` on.
#pragma once

#include "ops/batch.h"
#include "ops/cuda/both.h"
#include "ops/kv/kv_tail.h"

namespace braid::cuda {

inline constexpr int kBandThreads = 256;
// Pairs need more rows than the kernels for few rows take.
inline constexpr int32_t kFewestPairedRows = 25;

struct BandRows {
  const int32_t* position;
  const int32_t* sequence;
  const int32_t* first_row;
  const int32_t* rows;
  const int32_t* certain;
  const int32_t* context;
  int32_t tokens, sequences;
};

// Blocks [sealed_begin, sealed_end) are units; those below, and from exact_begin on, are exact.
struct SealedSequence {
  int32_t sealed_begin, sealed_end, exact_begin;
  int32_t blocks;  // of the sequence
  int32_t band;    // the first one
  int32_t extra;   // image block of exact_begin, if it is sealed too
  int32_t entry;   // the first entry: image blocks to be made
};

struct Bands {
  // [bands], like a batch's arrays of [S]; the rest are empty.
  int32_t* first_row;
  int32_t* rows;
  int32_t* certain;
  int32_t* context;
  int32_t* form_rows;   // of the whole sequence; selects the kernel form
  int32_t* exact_from;  // cell; of a pair ~(cell of its first rows)
  int32_t* of_sequence;
  int32_t* of_row;         // [tokens]: the band that stores a row
  SealedSequence* sealed;  // [S + 1]; of the last only `entry`, the total
  int32_t bands;           // capacity
  bool pairs = false;      // whether pairs are allowed
};
BRAID_BOTH inline bool is_pair(int32_t exact_from) { return exact_from < 0; }
BRAID_BOTH inline int32_t first_exact(int32_t exact_from) {
  return is_pair(exact_from) ? ~exact_from : exact_from;
}

BRAID_BOTH inline int32_t sealed_entries(const SealedSequence& q) {
  return q.sealed_end - q.sealed_begin;
}
BRAID_BOTH inline int32_t sink_entries(const SealedSequence& q) {
  return lesser(q.sealed_begin, q.blocks);
}
BRAID_BOTH inline int32_t entries_of(const SealedSequence& q) {
  return sealed_entries(q) + sink_entries(q) + greater(q.blocks - q.exact_begin, 0);
}
BRAID_BOTH inline int32_t extra_blocks(const SealedSequence& q) {
  return greater(lesser(q.sealed_end, q.blocks) - q.exact_begin, 0);
}

// Block of the sequence, whether from a unit, and place in the image.
struct ImageEntry {
  int32_t block;
  bool sealed;
  int32_t to;
};
BRAID_BOTH inline int32_t exact_place(const SealedSequence& q, int32_t s, int32_t stride,
                                      int32_t block) {
  const bool both = block >= q.exact_begin && block < q.sealed_end && block >= q.sealed_begin;
  return both ? q.extra + block - q.exact_begin : s * stride + block;
}
BRAID_BOTH inline ImageEntry image_entry(const SealedSequence& q, int32_t s, int32_t stride,
                                         int32_t entry) {
  const int32_t sealed = sealed_entries(q);
  if (entry < sealed) return {q.sealed_begin + entry, true, s * stride + q.sealed_begin + entry};
  const int32_t own = entry - sealed, sinks = sink_entries(q);
  const int32_t block = own < sinks ? own : q.exact_begin + own - sinks;
  return {block, false, exact_place(q, s, stride, block)};
}
BRAID_BOTH inline int32_t image_block(const SealedSequence& q, int32_t s, int32_t stride,
                                      int32_t exact_from, int32_t block) {
  int32_t sealed_end = first_exact(exact_from) / kBlockTokens;
  if (is_pair(exact_from)) {
    ++sealed_end;
    if (block >= sealed_end) return exact_place(q, s, stride, block - 1);
  }
  const bool sealed = block >= q.sealed_begin && block < sealed_end;
  return sealed ? s * stride + block : exact_place(q, s, stride, block);
}

constexpr int32_t most_bands(int32_t tokens, int32_t sequences, int32_t most_rows,
                             int32_t most_certain, int32_t most_uncertain) {
  if (most_rows == 1) return sequences;
  const int32_t run = tokens / kBlockTokens + 2 * sequences;
  const int32_t certain = most_certain == 1 ? sequences : run;
  const int32_t all = certain + (most_uncertain == 0 ? 0 : run);
  return std::max(std::min(all, tokens), sequences);
}
// Each 32 rows move the border by one block.
constexpr int32_t most_extra_blocks(int32_t tokens, int32_t sequences) {
  return tokens / kBlockTokens + 2 * sequences;
}

struct SequenceBorders {
  int32_t certain_first, certain_last;      // borders of certain rows, in blocks
  int32_t uncertain_first, uncertain_last;  // of uncertain rows
  bool paired;                              // bands of certain rows have two borders
  BRAID_BOTH int32_t lowest() const { return lesser(certain_first, uncertain_first); }
  BRAID_BOTH int32_t highest() const { return greater(certain_last, uncertain_last); }
  BRAID_BOTH bool alike() const { return lowest() == highest(); }
  BRAID_BOTH int32_t borders_of_band() const { return paired ? 2 : 1; }
  BRAID_BOTH int32_t certain_bands() const {
    return certain_last < certain_first ? 0
                                        : (certain_last - certain_first) / borders_of_band() + 1;
  }
  BRAID_BOTH int32_t bands() const {
    if (alike()) return 1;
    return certain_bands() +
           (uncertain_last < uncertain_first ? 0 : uncertain_last - uncertain_first + 1);
  }
};
BRAID_BOTH inline int32_t border_of(const KvTail& tail, int32_t position) {
  return greater(tail.sink_blocks, position / kBlockTokens - tail.tail_blocks);
}
BRAID_BOTH inline SequenceBorders borders_of(const BandRows& b, const KvTail& tail, int32_t s,
                                             bool pairs) {
  constexpr int32_t kNone = 1 << 30;
  SequenceBorders q{kNone, -1, kNone, -1, pairs && b.rows[s] >= kFewestPairedRows};
  const int32_t first = b.first_row[s], uncertain = first + b.certain[s], end = first + b.rows[s];
  if (uncertain > first) {
    q.certain_first = border_of(tail, b.position[first]);
    q.certain_last = border_of(tail, b.position[uncertain - 1]);
  }
  for (int32_t t = uncertain; t < end; ++t) {
    const int32_t border = border_of(tail, b.position[t]);
    q.uncertain_first = lesser(q.uncertain_first, border);
    q.uncertain_last = greater(q.uncertain_last, border);
  }
  return q;
}

BRAID_BOTH inline void write_bands(const BandRows& b, const KvTail& tail, int32_t s,
                                   const SequenceBorders& q, int32_t first_band, const Bands& to) {
  const int32_t first = b.first_row[s], certain = b.certain[s], rows = b.rows[s],
                context = b.context[s];
  const auto put = [&](int32_t band, int32_t row, int32_t count, int32_t certain_count,
                       int32_t held, int32_t border, bool pair) {
    to.first_row[band] = row;
    to.rows[band] = count;
    to.certain[band] = certain_count;
    to.context[band] = pair ? held + kBlockTokens : held;
    to.form_rows[band] = rows;
    to.exact_from[band] = pair ? ~(border * kBlockTokens) : border * kBlockTokens;
    to.of_sequence[band] = s;
  };
  if (q.alike()) return put(first_band, first, rows, certain, context, q.lowest(), false);
  int32_t row = first;
  for (int32_t i = 0; i < q.certain_bands(); ++i) {
    const int32_t border = q.certain_first + i * q.borders_of_band();
    const bool last = i + 1 == q.certain_bands();
    // The next band begins at the first position of its border.
    const int32_t next = border + q.borders_of_band();
    const int32_t end = last ? first + certain
                             : first + (next + tail.tail_blocks) * kBlockTokens - b.position[first];
    put(first_band + i, row, end - row, end - row, last ? context : b.position[end - 1] + 1, border,
        q.paired && border < q.certain_last);
    row = end;
  }
  for (int32_t border = q.uncertain_first; border <= q.uncertain_last; ++border) {
    put(first_band + q.certain_bands() + border - q.uncertain_first, first + certain,
        rows - certain, 0, context, border, false);
  }
}
BRAID_BOTH inline int32_t band_of_row(const BandRows& b, const KvTail& tail, int32_t t,
                                      const SequenceBorders& q, int32_t first_band) {
  const int32_t s = b.sequence[t];
  if (q.alike()) return first_band;
  const int32_t border = border_of(tail, b.position[t]);
  const bool certain = t - b.first_row[s] < b.certain[s];
  return first_band + (certain ? (border - q.certain_first) / q.borders_of_band()
                               : q.certain_bands() + border - q.uncertain_first);
}

// counts [3][S], borders [S]: shared memory.
template <typename Block>
BRAID_BOTH void plan_bands(Block& block, const BandRows& b, const KvTail& tail, int32_t stride,
                           SequenceBorders* borders, int32_t* counts, const Bands& to) {
  const int32_t n = b.sequences;
  const auto sealed_of = [&](int32_t s) {
    SealedSequence q{};
    if (b.rows[s] == 0) return q;
    const SequenceBorders& own = borders[s];
    q.sealed_begin = tail.sink_blocks;
    q.sealed_end = own.highest();
    q.exact_begin = own.lowest();
    q.blocks = (b.context[s] + b.rows[s] - b.certain[s] + kBlockTokens - 1) / kBlockTokens;
    return q;
  };
  block.each([&](int thread) {
    for (int32_t s = thread; s < n; s += Block::kSize) {
      borders[s] = borders_of(b, tail, s, to.pairs);
      const SealedSequence q = sealed_of(s);
      counts[s] = b.rows[s] == 0 ? 0 : borders[s].bands();
      counts[n + s] = extra_blocks(q);
      counts[2 * n + s] = entries_of(q);
    }
  });
  block.each([&](int thread) {
    for (int32_t s = thread; s <= n; s += Block::kSize) {
      int32_t band = 0, extra = n * stride, entry = 0;
      for (int32_t i = 0; i < s; ++i) {
        band += counts[i];
        extra += counts[n + i];
        entry += counts[2 * n + i];
      }
      SealedSequence q = s < n ? sealed_of(s) : SealedSequence{};
      q.band = band;
      q.extra = extra;
      q.entry = entry;
      to.sealed[s] = q;
      if (s < n && b.rows[s] > 0) write_bands(b, tail, s, borders[s], band, to);
      if (s < n) continue;
      for (int32_t i = band; i < to.bands; ++i) {
        to.first_row[i] = to.rows[i] = to.certain[i] = to.context[i] = to.form_rows[i] =
            to.exact_from[i] = 0;
        to.of_sequence[i] = -1;
      }
    }
  });
  block.each([&](int thread) {
    for (int32_t t = thread; t < b.tokens; t += Block::kSize) {
      const int32_t s = b.sequence[t];
      to.of_row[t] = s < 0 ? -1 : band_of_row(b, tail, t, borders[s], to.sealed[s].band);
    }
  });
}

}  // namespace braid::cuda
