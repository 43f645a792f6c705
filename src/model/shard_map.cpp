// shard_map.cpp -- see shard_map.h.
#include "model/shard_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>

namespace braid {
namespace {

constexpr int64_t kPieceColumns = 256;  // of a hidden row: a packed unit of a GPU
constexpr int64_t kLeastColumns = 32;
constexpr int64_t kVocabularyRows = 32;

using Ratio = std::span<const double>;

// Units of each rank: at least one, and so that the largest count for its ratio is least.
std::vector<int64_t> deal(int64_t units, Ratio ratio) {
  BRAID_CHECK(units >= std::ssize(ratio));
  std::vector<int64_t> counts(ratio.size(), 1);
  for (int64_t left = units - std::ssize(ratio); left > 0; --left) {
    size_t next = 0;
    for (size_t r = 1; r < ratio.size(); ++r)
      if (static_cast<double>(counts[r] + 1) / ratio[r] <
          static_cast<double>(counts[next] + 1) / ratio[next])
        next = r;
    ++counts[next];
  }
  return counts;
}

// Adjacent runs of these counts of units.
std::vector<RowRun> adjacent(const std::vector<int64_t>& counts, int64_t unit) {
  std::vector<RowRun> runs;
  int64_t at = 0;
  for (const int64_t count : counts) {
    runs.push_back({at, count * unit});
    at += count * unit;
  }
  return runs;
}

RowRun scaled(RowRun run, int64_t factor) { return {run.first * factor, run.count * factor}; }

// Joins runs that touch.
void append(std::vector<RowRun>& runs, RowRun run) {
  if (!runs.empty() && runs.back().first + runs.back().count == run.first) {
    runs.back().count += run.count;
  } else if (run.count > 0) {
    runs.push_back(run);
  }
}

std::vector<RowRun> all_scaled(const std::vector<RowRun>& runs, int64_t factor, int64_t first = 0) {
  std::vector<RowRun> all;
  for (const RowRun& run : runs) append(all, {first + run.first * factor, run.count * factor});
  return all;
}

// Columns that are never cut.
int64_t block_columns(int64_t block) { return std::max(block, kLeastColumns); }

// The most columns, up to kPieceColumns, in whole blocks, of which there are at least `pieces`;
// 0: there are never that many.
int64_t piece_columns(int64_t width, int64_t block, int64_t pieces) {
  for (int64_t columns = kPieceColumns; columns >= block_columns(block); columns /= 2)
    if (width % columns == 0 && width / columns >= pieces) return columns;
  return 0;
}

// The least number of heads, out of `heads`, that are whole blocks; 0: not even all are.
int64_t heads_of_blocks(int64_t heads, int64_t width, int64_t block) {
  for (int64_t count = 1; count <= heads; ++count)
    if (heads % count == 0 && count * width % block_columns(block) == 0) return count;
  return 0;
}

double mixer_weights(const LayerConfig& c, int64_t width) {
  int64_t rows = 0;
  if (c.kind == LayerKind::attention) {
    const AttentionConfig& a = c.attention;
    rows = a.query_rows() + a.gate_rows() + 2 * a.kv_width() + a.query_width();
  } else {
    rows = c.delta.channels() + 2 * c.delta.value_width() + int64_t{2} * c.delta.value_heads;
  }
  return static_cast<double>(rows * width);
}

// The part of a rank, of a layer's experts: what each chosen one costs it, and the shared one.
struct ExpertLoad {
  RowRun experts;
  double each = 0;
  double shared = 0;
};

// The expected load of the fullest rank if a token chooses `used` of all experts at random.
double expected_most(int32_t used, const std::vector<ExpertLoad>& ranks) {
  constexpr int32_t kMostExact = 64;  // of more, each rank has its share
  struct Group {
    double experts = 0;
    std::vector<double> load;  // of the fullest rank with n of them chosen, [used + 1]
  };
  const bool exact = used <= kMostExact;
  double experts = 0;
  std::vector<Group> groups;
  int64_t last = -1;
  for (const ExpertLoad& rank : ranks) {
    if (rank.experts.first != last) {
      groups.push_back({static_cast<double>(rank.experts.count), {}});
      groups.back().load.resize(static_cast<size_t>(exact ? used : 0) + 1);
      experts += groups.back().experts;
      last = rank.experts.first;
    }
    for (size_t n = 0; n < groups.back().load.size(); ++n)
      groups.back().load[n] =
          std::max(groups.back().load[n], rank.shared + static_cast<double>(n) * rank.each);
  }
  if (!exact) {
    double most = 0;
    for (const ExpertLoad& rank : ranks)
      most = std::max(
          most, rank.shared + rank.each * used * static_cast<double>(rank.experts.count) / experts);
    return most;
  }
  std::vector<double> limits;
  for (const Group& group : groups)
    limits.insert(limits.end(), group.load.begin(), group.load.end());
  std::ranges::sort(limits);
  // Ways to choose so that no group is above a limit, of all ways.
  const auto ways = [&](double limit) {
    std::vector<double> chosen(static_cast<size_t>(used) + 1);  // ways to choose n so far
    chosen[0] = 1;
    for (const Group& group : groups) {
      std::vector<double> more(chosen.size());
      double of_group = 1;  // group.experts over n
      for (size_t n = 0; n < group.load.size() && group.load[n] <= limit; ++n) {
        for (size_t before = 0; before + n < more.size(); ++before)
          more[before + n] += chosen[before] * of_group;
        of_group *=
            std::max(0.0, group.experts - static_cast<double>(n)) / static_cast<double>(n + 1);
      }
      chosen = std::move(more);
    }
    return chosen.back();
  };
  const double all = ways(limits.back());
  double expected = 0;
  double before = 0;
  double below = 0;  // probability of at most `before`
  for (const double limit : limits) {
    expected += (limit - before) * (1 - below);
    before = limit;
    below = ways(limit) / all;
  }
  return expected;
}

}  // namespace

// Makes a map, part by part.
class ShardDealer {
 public:
  ShardDealer(ShardMap& map, const ColumnBlocks& blocks)
      : map_(map), blocks_(blocks), shared_load_(map.ratio_.size(), 0) {}

  Status run();

 private:
  using Block = ColumnBlocks::Layer;
  size_t ranks() const { return map_.ratio_.size(); }
  Error refused(const std::string& reason) const;
  Error too_few(const std::string& what, int64_t block) const;
  Status block(const LayerConfig& whole, const Block& block, const std::string& name, bool is_mtp,
               size_t index);
  Status attention(const AttentionConfig& whole, int64_t block, const std::string& name);
  Status split_kv_heads(const AttentionConfig& whole, int64_t block, const std::string& name);
  Status delta(const DeltaShape& whole, int64_t block, const std::string& name);
  Status hidden(const FeedForwardConfig& whole, int64_t block, const std::string& name);
  Status experts(const FeedForwardConfig& whole, int64_t block, const std::string& name);
  void shared_expert(const FeedForwardConfig& whole, int64_t block);
  Status vocabulary();

  LayerConfig& config(size_t rank) { return *configs_[rank]; }
  LayerShard& shard(size_t rank) { return *layers_[rank]; }

  ShardMap& map_;
  const ColumnBlocks& blocks_;
  std::vector<double> shared_load_;  // pieces of shared experts so far
  // Of the current layer, for each rank.
  std::vector<LayerConfig*> configs_;
  std::vector<LayerShard*> layers_;
};

Error ShardDealer::refused(const std::string& reason) const {
  return {ErrorKind::unsupported,
          fmt::format("layers of this model cannot be divided among {} devices: {}; use fewer "
                      "devices",
                      ranks(), reason)};
}

Error ShardDealer::too_few(const std::string& what, int64_t block) const {
  return refused(
      fmt::format("{} make too few parts of whole blocks of {}", what, block_columns(block)));
}

Status ShardDealer::run() {
  const ModelConfig& whole = map_.whole_;
  BRAID_CHECK(blocks_.layers.size() == whole.layers.size() &&
              blocks_.mtp.size() == whole.mtp.size());
  for (ShardMap::Shard& s : map_.shards_) {
    s.config = whole;
    s.layers.resize(whole.layers.size());
    s.mtp.resize(whole.mtp.size());
  }
  for (size_t i = 0; i < whole.layers.size(); ++i)
    BRAID_TRY(block(whole.layers[i], blocks_.layers[i], fmt::format("layer {}", i), false, i));
  for (size_t i = 0; i < whole.mtp.size(); ++i)
    BRAID_TRY(block(whole.mtp[i], blocks_.mtp[i], "the MTP head", true, i));
  return vocabulary();
}

Status ShardDealer::block(const LayerConfig& whole, const Block& block, const std::string& name,
                          bool is_mtp, size_t index) {
  configs_.clear();
  layers_.clear();
  for (ShardMap::Shard& s : map_.shards_) {
    configs_.push_back(&(is_mtp ? s.config.mtp : s.config.layers)[index]);
    layers_.push_back(&(is_mtp ? s.mtp : s.layers)[index]);
  }
  if (whole.kind == LayerKind::attention) {
    BRAID_TRY(attention(whole.attention, block.output, name));
  } else {
    BRAID_TRY(delta(whole.delta, block.output, name));
  }
  if (whole.feed_forward.is_moe()) {
    BRAID_TRY(experts(whole.feed_forward, block.down, name));
    shared_expert(whole.feed_forward, block.shared);
  } else {
    BRAID_TRY(hidden(whole.feed_forward, block.down, name));
  }
  if (!is_mtp) return {};
  const int64_t joined = 2 * map_.whole_.width;
  const int64_t columns = ranks() == 1 ? joined : piece_columns(joined, block.eh_proj, ranks());
  if (columns == 0) return too_few(fmt::format("the {} columns of eh_proj", joined), block.eh_proj);
  const std::vector<RowRun> runs = adjacent(deal(joined / columns, map_.ratio_), columns);
  for (size_t r = 0; r < ranks(); ++r) shard(r).joined_columns = {runs[r]};
  return {};
}

Status ShardDealer::attention(const AttentionConfig& whole, int64_t block,
                              const std::string& name) {
  const int64_t group = whole.heads / whole.kv_heads;
  const int64_t unit = ranks() == 1
                           ? whole.kv_heads
                           : heads_of_blocks(whole.kv_heads, group * whole.head_dim, block);
  const int64_t units = unit == 0 ? 0 : whole.kv_heads / unit;
  if (units < std::ssize(map_.ratio_)) {
    BRAID_TRY(split_kv_heads(whole, block, name));
  } else {
    const std::vector<RowRun> heads = adjacent(deal(units, map_.ratio_), unit);
    for (size_t r = 0; r < ranks(); ++r) {
      shard(r).kv_heads = heads[r];
      shard(r).query_columns = {scaled(heads[r], group)};  // heads so far
    }
  }
  for (size_t r = 0; r < ranks(); ++r) {
    LayerShard& s = shard(r);
    const RowRun heads = s.query_columns[0];
    AttentionConfig& local = config(r).attention;
    local.heads = static_cast<int32_t>(heads.count);
    local.kv_heads = static_cast<int32_t>(s.kv_heads.count);
    s.query_columns = {scaled(heads, whole.head_dim)};
    s.query_rows = {scaled(heads, whole.gate.query_stride(whole.head_dim))};
    s.kv_rows = {scaled(s.kv_heads, whole.head_dim)};
    if (whole.gate.separate()) s.gate_rows = {scaled(heads, whole.gate_rows() / whole.heads)};
  }
  return {};
}

// More ranks than units: ranks share KV heads. The best of all ways to give each head some.
Status ShardDealer::split_kv_heads(const AttentionConfig& whole, int64_t block,
                                   const std::string& name) {
  const int64_t group = whole.heads / whole.kv_heads;
  const int64_t unit = heads_of_blocks(group, whole.head_dim, block);
  const auto count = static_cast<int>(ranks());
  std::vector<RowRun> best;  // query heads
  double least = INFINITY;
  for (unsigned ends = 0; unit > 0 && ends < 1u << (count - 1); ++ends) {  // bit r: after rank r
    if (std::popcount(ends) != whole.kv_heads - 1) continue;
    std::vector<RowRun> heads;
    double most = 0;
    for (int first = 0, kv = 0, last = 0; first < count; first = last, ++kv) {
      last = first + 1 + std::countr_zero(ends >> first | 1u << (count - 1 - first));
      const auto ratio = Ratio(map_.ratio_).subspan(first, last - first);
      if (group / unit < std::ssize(ratio)) break;
      for (RowRun run : adjacent(deal(group / unit, ratio), unit)) {
        most = std::max(most, static_cast<double>(run.count) / map_.ratio_[heads.size()]);
        run.first += kv * group;
        heads.push_back(run);
      }
    }
    if (heads.size() < ranks() || most >= least) continue;
    least = most;
    best = heads;
  }
  if (best.empty())
    return too_few(fmt::format("the {} KV heads of {} with {} query heads of {} columns each",
                               whole.kv_heads, name, group, whole.head_dim),
                   block);
  for (size_t r = 0; r < ranks(); ++r) {
    shard(r).query_columns = {best[r]};
    shard(r).kv_heads = {best[r].first / group, 1};
  }
  return {};
}

Status ShardDealer::delta(const DeltaShape& whole, int64_t block, const std::string& name) {
  const int64_t value_width = int64_t{whole.grouped ? whole.heads_per_key() : 1} * whole.value_dim;
  const int64_t unit =
      ranks() == 1 ? whole.key_heads : heads_of_blocks(whole.key_heads, value_width, block);
  const int64_t units = unit == 0 ? 0 : whole.key_heads / unit;
  if (units < std::ssize(map_.ratio_))
    return too_few(fmt::format("the {} key heads of {} with values of {} columns each",
                               whole.key_heads, name, whole.heads_per_key() * whole.value_dim),
                   block);
  const std::vector<RowRun> heads = adjacent(deal(units, map_.ratio_), unit);
  for (size_t r = 0; r < ranks(); ++r) {
    LayerShard& s = shard(r);
    const RowRun keys = heads[r];
    DeltaShape& local = config(r).delta;
    local.key_heads = static_cast<int32_t>(keys.count);
    local.value_heads = local.key_heads * whole.heads_per_key();
    if (whole.grouped) {
      s.value_heads = {scaled(keys, whole.heads_per_key())};
    } else {
      for (int64_t j = 0; j < whole.heads_per_key(); ++j)
        append(s.value_heads, {keys.first + j * whole.key_heads, keys.count});
    }
    s.value_rows = all_scaled(s.value_heads, whole.value_dim);
    const RowRun q = scaled(keys, whole.key_dim);
    append(s.qkv_rows, q);
    append(s.qkv_rows, {whole.key_width() + q.first, q.count});
    for (const RowRun& run : all_scaled(s.value_heads, whole.value_dim, 2 * whole.key_width()))
      append(s.qkv_rows, run);
  }
  return {};
}

Status ShardDealer::hidden(const FeedForwardConfig& whole, int64_t block, const std::string& name) {
  const int64_t columns =
      ranks() == 1 ? whole.width : piece_columns(whole.width, block, std::ssize(map_.ratio_));
  if (columns == 0)
    return too_few(fmt::format("the {} columns of the feed-forward of {}", whole.width, name),
                   block);
  const std::vector<RowRun> runs = adjacent(deal(whole.width / columns, map_.ratio_), columns);
  for (size_t r = 0; r < ranks(); ++r) {
    config(r).feed_forward.width = runs[r].count;
    shard(r).hidden = {runs[r]};
  }
  return {};
}

// Groups of adjacent ranks have some experts each, and the ranks of a group their columns. The
// division with the least imbalance, of equal ones that with the fewest groups, as few rows choose
// experts unevenly.
Status ShardDealer::experts(const FeedForwardConfig& whole, int64_t block,
                            const std::string& name) {
  struct Part {
    RowRun experts, columns;
  };
  const size_t count = ranks();
  const int64_t width = whole.expert_width;
  const bool wide = width % kPieceColumns == 0;
  std::vector<Part> best;
  double least = INFINITY;
  for (size_t size = count; size > 0; --size) {  // ranks of a group
    if (count % size != 0 || whole.experts < static_cast<int64_t>(count / size)) continue;
    const int64_t columns =
        size == 1 ? width
                  : piece_columns(width, wide ? kPieceColumns : block, static_cast<int64_t>(size));
    if (columns == 0) continue;
    std::vector<double> groups;
    for (size_t r = 0; r < count; r += size)
      groups.push_back(std::accumulate(map_.ratio_.begin() + static_cast<std::ptrdiff_t>(r),
                                       map_.ratio_.begin() + static_cast<std::ptrdiff_t>(r + size),
                                       0.0));
    const std::vector<RowRun> ids = adjacent(deal(whole.experts, groups), 1);
    std::vector<Part> parts;
    double most = 0;
    for (size_t r = 0; r < count; r += size) {
      const auto ratio = Ratio(map_.ratio_).subspan(r, size);
      for (const RowRun& run : adjacent(deal(width / columns, ratio), columns)) {
        const RowRun experts = ids[r / size];
        most = std::max(most,
                        static_cast<double>(experts.count * run.count) / map_.ratio_[parts.size()]);
        parts.push_back({experts, run});
      }
    }
    if (most >= least * (1 - 1e-9)) continue;
    least = most;
    best = std::move(parts);
  }
  if (best.empty())
    return too_few(
        fmt::format("the {} experts of {} with {} columns each", whole.experts, name, width),
        block);
  for (size_t r = 0; r < count; ++r) {
    config(r).feed_forward.expert_width = best[r].columns.count;
    shard(r).experts = best[r].experts;
    shard(r).hidden = {best[r].columns};
  }
  return {};
}

void ShardDealer::shared_expert(const FeedForwardConfig& whole, int64_t block) {
  const int64_t width = whole.shared_width;
  if (width == 0) return;
  const auto count = std::ssize(map_.ratio_);
  const bool wide = width % kPieceColumns == 0;
  int64_t columns = count == 1 ? width : piece_columns(width, wide ? kPieceColumns : block, count);
  // Too few pieces for all: the most there can be, or the whole on one rank.
  if (columns == 0 && wide) columns = kPieceColumns;
  if (columns == 0 && width % block_columns(block) == 0) columns = block_columns(block);
  if (columns == 0) columns = width;
  const int64_t pieces = width / columns;
  std::vector<int64_t> counts(ranks(), 0);
  if (pieces >= count) {
    counts = deal(pieces, map_.ratio_);
  } else {
    for (int64_t i = 0; i < pieces; ++i) {
      size_t next = 0;
      for (size_t r = 1; r < ranks(); ++r)
        if ((shared_load_[r] + 1) / map_.ratio_[r] < (shared_load_[next] + 1) / map_.ratio_[next])
          next = r;
      ++counts[next];
      shared_load_[next] += 1;
    }
  }
  const std::vector<RowRun> runs = adjacent(counts, columns);
  for (size_t r = 0; r < ranks(); ++r) {
    config(r).feed_forward.shared_width = runs[r].count;
    if (runs[r].count > 0) shard(r).shared_hidden = {runs[r]};
  }
}

Status ShardDealer::vocabulary() {
  const int64_t rows = map_.whole_.vocabulary;
  const auto count = std::ssize(map_.ratio_);
  const int64_t units = (rows + kVocabularyRows - 1) / kVocabularyRows;
  if (units < count)
    return refused(
        fmt::format("its vocabulary has {} tokens, fewer than {} each", rows, kVocabularyRows));
  // A slot more than ranks: every rank's rows are a list.
  const int64_t drafts = map_.whole_.draft_vocabulary;
  if (drafts > 0 && drafts < 2 * count)
    return refused(fmt::format("a draft vocabulary of {} tokens is too small", drafts));
  const std::vector<RowRun> runs = adjacent(deal(units, map_.ratio_), kVocabularyRows);
  for (size_t r = 0; r < ranks(); ++r) {
    ShardMap::Shard& s = map_.shards_[r];
    s.vocabulary = {runs[r].first, std::min(runs[r].count, rows - runs[r].first)};
    s.config.vocabulary = s.vocabulary.count;
    s.config.draft_vocabulary = (drafts + count - 1 - static_cast<int64_t>(r)) / count;
  }
  return {};
}

Result<ShardMap> ShardMap::make(const ModelConfig& whole, const ColumnBlocks& blocks, int ranks,
                                std::span<const double> ratio) {
  if (ranks < 1 || ranks > kMostRanks)
    return Error{
        ErrorKind::unsupported,
        fmt::format("a layer is divided among 1 to {} devices, not {}", kMostRanks, ranks)};
  if (!ratio.empty() && std::ssize(ratio) != ranks)
    return Error{ErrorKind::invalid_argument,
                 fmt::format("a ratio of {} numbers does not fit {} devices", ratio.size(), ranks)};
  for (const double part : ratio)
    if (!(part > 0 && part < 1e9))
      return Error{ErrorKind::invalid_argument,
                   fmt::format("a ratio consists of positive numbers below 1e9, not {}", part)};
  ShardMap map;
  map.whole_ = whole;
  map.ratio_.assign(ratio.begin(), ratio.end());
  if (ratio.empty()) map.ratio_.assign(static_cast<size_t>(ranks), 1.0);
  map.shards_.resize(map.ratio_.size());
  BRAID_TRY(ShardDealer(map, blocks).run());
  return map;
}

double ShardMap::imbalance(std::span<const double> rates) const {
  if (rates.empty()) rates = ratio_;
  BRAID_CHECK(rates.size() == ratio_.size());
  const double sum = std::accumulate(rates.begin(), rates.end(), 0.0);
  const auto width = static_cast<double>(whole_.width);
  double ideal = 0;
  double real = 0;
  const auto add = [&](double whole, const auto& part_of) {
    double most = 0;
    for (size_t r = 0; r < rates.size(); ++r)
      most = std::max(most, part_of(shards_[r]) * sum / rates[r]);
    ideal += whole;
    real += most;
  };
  for (size_t i = 0; i < whole_.layers.size(); ++i) {
    const LayerConfig& layer = whole_.layers[i];
    add(mixer_weights(layer, whole_.width),
        [&](const Shard& s) { return mixer_weights(s.config.layers[i], whole_.width); });
    const FeedForwardConfig& f = layer.feed_forward;
    if (!f.is_moe()) {
      add(3 * width * static_cast<double>(f.width), [&](const Shard& s) {
        return 3 * width * static_cast<double>(s.config.layers[i].feed_forward.width);
      });
      continue;
    }
    std::vector<ExpertLoad> loads;
    for (size_t r = 0; r < rates.size(); ++r) {
      const FeedForwardConfig& local = shards_[r].config.layers[i].feed_forward;
      const double column = 3 * width * sum / rates[r];
      loads.push_back({shards_[r].layers[i].experts,
                       column * static_cast<double>(local.expert_width),
                       column * static_cast<double>(local.shared_width)});
    }
    ideal += 3 * width * static_cast<double>(f.experts_used * f.expert_width + f.shared_width);
    real += expected_most(f.experts_used, loads);
  }
  add(static_cast<double>(whole_.vocabulary) * width,
      [&](const Shard& s) { return static_cast<double>(s.vocabulary.count) * width; });
  return 100 * (real / ideal - 1);
}

}  // namespace braid
