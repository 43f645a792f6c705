// expert_policy.h -- which experts of a layer have slots: the table, and one step's changes.
//
// An expert's score is the number of rows that chose it, halved with time (half_life_of). A chosen
// expert without a slot is read from host memory in any case; it then takes the slot of the
// resident expert with the lowest score, if its own is clearly higher and no row of the step needs
// the other. Else it lies in a staging slot for the step alone. (Recency with decay reads less than
// all-time counts and than a fixed list; the margin keeps experts from displacing each other.)
//
// Slots 0 .. slots - 1 are the layer's own; `slots` + i is staging slot i, shared with other
// layers. Experts and slots together have `experts` numbers, so all missing experts always fit.
//
// Threads of the host may compute some of the missing experts (expert_share.h): those with the
// lowest scores, as what is read may be kept. In the table these are missing still, and for the
// step they lie in slot 0 with weights of zero, so that product kernels need no other form.
//
// By the threads of one block, or by one thread of the host (tests).
#pragma once

#include <cstdint>

#include "ops/cuda/both.h"

namespace braid::cuda {

inline constexpr int kMostSlotExperts = 1024;
inline constexpr float kMostHalfLife = 16;  // steps
inline constexpr float kMargin = 1.1f;
inline constexpr int kNoSlot = -1;
// steps, chosen, admitted, passed by, computed, waited
inline constexpr int kCounts = 6;
inline constexpr int kToldByTable = 5;  // all but the last
// Steps with hits alone between two copies of the counts: a write to host memory delays the next
// kernel.
inline constexpr uint32_t kToldSteps = 16;

// Half of the steps in which new experts would fill all slots once, if a step chooses `chosen`. So
// with few slots recency counts, and with many frequency does, too.
BRAID_BOTH inline float half_life_of(int slots, int chosen) {
  const float steps = static_cast<float>(slots) / static_cast<float>(2 * chosen);
  return steps < 1 ? 1 : steps > kMostHalfLife ? kMostHalfLife : steps;
}

// Of a layer, in device memory.
struct SlotTable {
  int layer = 0;  // of `layers` with slots
  int layers = 1;
  int experts = 0;
  int slots = 0;
  float half_life = kMostHalfLife;  // steps
  int32_t* place = nullptr;         // [experts]: slot, or kNoSlot
  int32_t* owner = nullptr;         // [slots]: expert, or kNoSlot
  float* score = nullptr;           // [experts], at step `last`
  uint32_t* last = nullptr;         // [experts]
  uint32_t* clock = nullptr;        // [1]: steps with certain rows
  // [experts]: where each expert lies for this step; any slot if it was not chosen
  int32_t* slot_of = nullptr;
  // [1]: experts of the last step without a slot of their own: slot_of must be written again
  int32_t* staged = nullptr;
  unsigned* arrived = nullptr;           // [1]: of the filling kernel, zero between launches
  unsigned long long* counts = nullptr;  // [kCounts]
  // A copy in host memory, at most kToldSteps older; null: none.
  unsigned long long* told = nullptr;
};

// In shared memory.
struct ExpertChoice {
  static constexpr int kWords = kMostSlotExperts / 32;
  uint32_t uses[kMostSlotExperts];       // rows, and above kAdmits those that admit
  float score[kMostSlotExperts];         // now, with this step's uses
  float victim[kMostSlotExperts];        // score of each slot's owner
  int32_t dest[kMostSlotExperts];        // slot of a missing expert
  int16_t missing_id[kMostSlotExperts];  // of those that are read
  int16_t by_rank[kMostSlotExperts];     // slots by ascending score
  uint32_t missing[kWords];
  uint32_t wanting[kWords];  // missing, to be read, and certain rows chose them
  uint32_t by_host[kWords];  // missing, and computed by the host
  uint32_t chosen[kWords];
  uint32_t admits;  // not zero: there are certain rows
  uint32_t eager;   // not zero: there is an expert that is worth being kept
  float lowest;     // score of an owner whose slot may be taken
};
inline constexpr uint32_t kAdmits = 1u << 16;
inline constexpr float kNever = 3e38f;  // of slots that this step needs

#if defined(__CUDA_ARCH__)
struct Team {
  int thread, threads;
  bool block = true;  // else one warp
  __device__ void sync() const {
    if (block) {
      __syncthreads();
    } else {
      __syncwarp();
    }
  }
  __device__ void set_bits(uint32_t* word, uint32_t bits) const { atomicOr(word, bits); }
  __device__ void add(uint32_t* to, uint32_t n) const { atomicAdd(to, n); }
  __device__ void count(unsigned long long* to, unsigned long long n) const { atomicAdd(to, n); }
  // Of numbers from 0 on, whose bits have their order.
  __device__ void lower(float* to, float x) const {
    atomicMin(reinterpret_cast<int*>(to), __float_as_int(x));
  }
};
BRAID_BOTH inline int bits_in(uint32_t word) { return __popc(word); }
#else
struct Team {
  int thread = 0, threads = 1;
  bool block = true;
  BRAID_BOTH void sync() const {}
  BRAID_BOTH void set_bits(uint32_t* word, uint32_t bits) const { *word |= bits; }
  BRAID_BOTH void add(uint32_t* to, uint32_t n) const { *to += n; }
  BRAID_BOTH void count(unsigned long long* to, unsigned long long n) const { *to += n; }
  BRAID_BOTH void lower(float* to, float x) const { *to = x < *to ? x : *to; }
};
BRAID_BOTH inline int bits_in(uint32_t word) {
  int n = 0;
  for (; word != 0; word &= word - 1) ++n;
  return n;
}
#endif

BRAID_BOTH inline bool has_bit(const uint32_t* words, int i) {
  return (words[i / 32] >> i % 32 & 1) != 0;
}
// Set bits below bit i.
BRAID_BOTH inline int bits_below(const uint32_t* words, int i) {
  int n = 0;
  for (int w = 0; w < i / 32; ++w) n += bits_in(words[w]);
  return i % 32 == 0 ? n : n + bits_in(words[i / 32] & ((1u << i % 32) - 1));
}
BRAID_BOTH inline int all_bits(const uint32_t* words, const SlotTable& b) {
  return bits_below(words, (b.experts + 31) / 32 * 32);
}

BRAID_BOTH inline void clear_choice(const Team& team, ExpertChoice& c) {
  for (int i = team.thread; i < kMostSlotExperts; i += team.threads) c.uses[i] = 0;
  for (int i = team.thread; i < ExpertChoice::kWords; i += team.threads)
    c.missing[i] = c.wanting[i] = c.by_host[i] = c.chosen[i] = 0;
  if (team.thread == 0) {
    c.admits = c.eager = 0;
    c.lowest = kNever;
  }
  team.sync();
}

BRAID_BOTH inline void count_use(const Team& team, ExpertChoice& c, const SlotTable& b, int id,
                                 bool admits) {
  if (id < 0 || id >= b.experts) return;
  team.add(&c.uses[id], admits ? kAdmits + 1 : 1);
  if (admits) c.admits = 1;
}

// After all uses. Returns the number of missing experts; missing_id lists them ascending.
BRAID_BOTH inline int find_missing(const Team& team, ExpertChoice& c, const SlotTable& b) {
  team.sync();
  for (int e = team.thread; e < b.experts; e += team.threads) {
    if (c.uses[e] == 0) continue;
    team.set_bits(&c.chosen[e / 32], 1u << e % 32);
    if (b.place[e] != kNoSlot) continue;
    team.set_bits(&c.missing[e / 32], 1u << e % 32);
    if (c.uses[e] >= kAdmits) team.set_bits(&c.wanting[e / 32], 1u << e % 32);
  }
  team.sync();
  for (int e = team.thread; e < b.experts; e += team.threads)
    if (has_bit(c.missing, e)) c.missing_id[bits_below(c.missing, e)] = static_cast<int16_t>(e);
  team.sync();
  return all_bits(c.missing, b);
}

BRAID_BOTH inline void score_all(const Team& team, ExpertChoice& c, const SlotTable& b) {
  const uint32_t now = *b.clock;
  for (int e = team.thread; e < b.experts; e += team.threads) {
    const auto age = static_cast<float>(now - b.last[e]);
    c.score[e] = b.score[e] * exp2f(-age / b.half_life) + static_cast<float>(c.uses[e] / kAdmits);
  }
  team.sync();
}

// Times of a layer's missing experts, in ns. Some are read while others are computed. `ahead`: from
// the call until the host computes, less what the GPU does between reading and the use of the
// answer.
struct ShareTimes {
  float read = 0;
  float compute = 0;
  float ahead = 0;
};
// How many of `missing` experts to read so that the later of the two ends first.
BRAID_BOTH inline int experts_to_read(int missing, const ShareTimes& t) {
  const auto end = [&](int read) {
    const int computed = missing - read;
    const float reading = static_cast<float>(read) * t.read;
    const float computing = computed == 0 ? 0 : t.ahead + static_cast<float>(computed) * t.compute;
    return reading > computing ? reading : computing;
  };
  const float even = (t.ahead + static_cast<float>(missing) * t.compute) / (t.read + t.compute);
  int read = even < 0 ? 0 : even > static_cast<float>(missing) ? missing : static_cast<int>(even);
  return read < missing && end(read + 1) < end(read) ? read + 1 : read;
}

// Uses from which on reading an expert, to keep it, costs less than to compute it each time. Its
// score has the past ones; as many again are likely.
BRAID_BOTH inline float worth_keeping(const ShareTimes& t) {
  const float uses = t.read / (2 * t.compute);
  return uses < 1 ? 1 : uses > 4 ? 4 : uses;
}

// In a few of every kRetrySteps steps, some neighboring layers send one expert the way that none
// went, so that its time is known. They are neighbors because the host's threads are slow when they
// were asleep. If the host was far slower, it is tried less often.
inline constexpr uint32_t kRetrySteps = 256;
inline constexpr uint32_t kRetries = 3;
inline constexpr int kRetryLayers = 8;
inline constexpr uint32_t kRareRetries = 8;
inline constexpr float kFarSlower = 8;
BRAID_BOTH inline bool tries_both(const SlotTable& b, const ShareTimes& t) {
  const auto steps = static_cast<uint32_t>(b.counts[0]);
  const uint32_t window = steps / kRetrySteps;
  const auto groups = static_cast<uint32_t>((b.layers + kRetryLayers - 1) / kRetryLayers);
  if (steps % kRetrySteps >= kRetries ||
      b.layer / kRetryLayers != static_cast<int>(window % groups))
    return false;
  return t.compute < kFarSlower * t.read || window / groups % kRareRetries == 0;
}

// Whether the host gets some of the missing experts: then choose_read() says how many are read.
BRAID_BOTH inline bool host_helps(const SlotTable& b, int missing, const ShareTimes& t) {
  return missing > 0 && (experts_to_read(missing, t) < missing || tries_both(b, t));
}

// The same number for all threads. After score_all(), if host_helps().
BRAID_BOTH inline int choose_read(const Team& team, ExpertChoice& c, const SlotTable& b,
                                  int missing, const ShareTimes& t) {
  for (int s = team.thread; s < b.slots; s += team.threads) {
    const int owner = b.owner[s];
    if (owner == kNoSlot || c.uses[owner] == 0)
      team.lower(&c.lowest, owner == kNoSlot ? 0.0f : c.score[owner]);
  }
  team.sync();
  for (int i = team.thread; i < missing; i += team.threads) {
    const int e = c.missing_id[i];
    if (has_bit(c.wanting, e) && c.score[e] >= worth_keeping(t) && c.score[e] > kMargin * c.lowest)
      c.eager = 1;
  }
  team.sync();
  const int read = experts_to_read(missing, t);
  if (read == missing) return missing - 1;  // of tries_both()
  return read == 0 && (tries_both(b, t) || c.eager != 0) ? 1 : read;
}

// The host computes all but `read` of the missing experts. After score_all().
BRAID_BOTH inline void give_to_host(const Team& team, ExpertChoice& c, const SlotTable& b,
                                    int missing, int read) {
  for (int i = team.thread; i < missing; i += team.threads) {
    const int e = c.missing_id[i];
    int rank = 0;
    for (int j = 0; j < missing; ++j) {
      const float other = c.score[c.missing_id[j]];
      rank += other > c.score[e] || (other == c.score[e] && j < i) ? 1 : 0;
    }
    if (rank >= read) team.set_bits(&c.by_host[e / 32], 1u << e % 32);
  }
  team.sync();
  for (int w = team.thread; w < ExpertChoice::kWords; w += team.threads)
    c.wanting[w] &= ~c.by_host[w];
  for (int e = team.thread; e < b.experts; e += team.threads)
    if (has_bit(c.missing, e) && !has_bit(c.by_host, e))
      c.missing_id[bits_below(c.missing, e) - bits_below(c.by_host, e)] = static_cast<int16_t>(e);
  team.sync();
}

// Sets dest of the missing experts. After score_all().
BRAID_BOTH inline void choose_slots(const Team& team, ExpertChoice& c, const SlotTable& b) {
  for (int s = team.thread; s < b.slots; s += team.threads) {
    const int owner = b.owner[s];
    c.victim[s] = owner == kNoSlot ? -1.0f : c.uses[owner] > 0 ? kNever : c.score[owner];
    c.by_rank[s] = kNoSlot;
  }
  team.sync();
  const int wanting = all_bits(c.wanting, b);
  for (int s = team.thread; s < b.slots; s += team.threads) {
    const float own = c.victim[s];
    if (own == kNever) continue;
    int rank = 0;
    for (int other = 0; other < b.slots; ++other)
      rank += c.victim[other] < own || (c.victim[other] == own && other < s) ? 1 : 0;
    if (rank < wanting) c.by_rank[rank] = static_cast<int16_t>(s);
  }
  team.sync();
  for (int e = team.thread; e < b.experts; e += team.threads) {
    if (!has_bit(c.missing, e)) continue;
    int to = b.slots + bits_below(c.missing, e);
    if (has_bit(c.wanting, e)) {
      const int rank = bits_below(c.wanting, e);
      const int slot = rank < b.slots ? c.by_rank[rank] : kNoSlot;
      if (slot != kNoSlot && c.score[e] > kMargin * c.victim[slot]) to = slot;
    }
    c.dest[e] = to;
  }
  team.sync();
}

// By one block alone, when all others have read the table. After score_all(), and choose_slots() if
// experts are missing.
BRAID_BOTH inline void publish(const Team& team, ExpertChoice& c, const SlotTable& b) {
  const uint32_t now = *b.clock;
  team.sync();
  for (int e = team.thread; e < b.experts; e += team.threads) {
    const bool missing = has_bit(c.missing, e);
    if (!missing) {
      // An evicted expert was not chosen, so any slot of the layer will do for it.
      const int place = b.place[e];
      b.slot_of[e] = place == kNoSlot ? 0 : place;
    } else if (has_bit(c.by_host, e)) {
      b.slot_of[e] = 0;
    } else {
      const int to = c.dest[e];
      b.slot_of[e] = to;
      if (to < b.slots) {
        const int evicted = b.owner[to];
        if (evicted != kNoSlot) b.place[evicted] = kNoSlot;
        b.owner[to] = e;
        b.place[e] = to;
      }
    }
    if (c.uses[e] < kAdmits) continue;
    b.score[e] = c.score[e];
    b.last[e] = now;
  }
  if (team.thread != 0) return;
  if (c.admits != 0) *b.clock = now + 1;
  int admitted = 0;
  const int computed = all_bits(c.by_host, b);
  const int read = all_bits(c.missing, b) - computed;
  for (int i = 0; i < read; ++i) admitted += c.dest[c.missing_id[i]] < b.slots ? 1 : 0;
  *b.staged = read - admitted + computed;
  b.counts[0] += 1;
  b.counts[1] += static_cast<unsigned long long>(all_bits(c.chosen, b));
  b.counts[2] += static_cast<unsigned long long>(admitted);
  b.counts[3] += static_cast<unsigned long long>(read - admitted);
  b.counts[4] += static_cast<unsigned long long>(computed);
  for (int i = 0; b.told != nullptr && i < kToldByTable; ++i) b.told[i] = b.counts[i];
}

// Instead of all that, if every chosen expert has a slot and none was left in staging: slot_of is
// right, and only scores change. ids [count], -1: none; bit i of `admits`: of a certain row.
// `distinct` is zero before.
BRAID_BOTH inline void count_hits(const Team& team, const SlotTable& b, const int32_t* ids,
                                  uint32_t admits, int count, uint32_t* distinct) {
  const uint32_t now = *b.clock;
  for (int i = team.thread; i < count; i += team.threads) {
    const int id = ids[i];
    bool first = id >= 0;
    int uses = 0;
    for (int j = 0; j < count; ++j) {
      if (ids[j] != id) continue;
      if (j < i) first = false;
      uses += (admits >> j & 1) != 0 ? 1 : 0;
    }
    if (!first) continue;
    team.add(distinct, 1);
    if (uses == 0) continue;
    b.score[id] = b.score[id] * exp2f(-static_cast<float>(now - b.last[id]) / b.half_life) +
                  static_cast<float>(uses);
    b.last[id] = now;
  }
  team.sync();
  if (team.thread != 0) return;
  if (admits != 0) *b.clock = now + 1;
  team.count(b.counts, 1);
  team.count(b.counts + 1, *distinct);
  if (b.told == nullptr || now % kToldSteps != 0) return;
  for (int i = 0; i < 2; ++i) b.told[i] = b.counts[i];
}

}  // namespace braid::cuda
