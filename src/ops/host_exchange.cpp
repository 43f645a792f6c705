// host_exchange.cpp -- see host_exchange.h.
#include "ops/host_exchange.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <vector>

#include <fmt/format.h>

#include "gguf/half.h"
#include "ops/ops.h"

namespace braid::host {
namespace {

// What Mailbox::flags is here.
struct SentFlags {
  uint32_t in_half[2];
  uint32_t last_sent, last_collected;
};
SentFlags& flags_of(const Letter& letter, int32_t rank) {
  return *reinterpret_cast<SentFlags*>(letter.boxes[rank].flags);
}
uint32_t flag_of(const Letter& letter, const Batch& batch) {
  BRAID_CHECK(batch.turn != nullptr && *batch.turn > 0 && *batch.turn <= kLastTurn);
  return letter_flag(*batch.turn, letter.number);
}

class HostExchange final : public Exchange {
 public:
  explicit HostExchange(int32_t ranks) : Exchange(ranks, "mailboxes in host memory") {}

  Status allocate(std::span<Device* const> ranks, std::span<const LaneNeeds> lanes) {
    for (const LaneNeeds& needs : lanes) {
      Lane lane;
      lane.form.senders = ranks_;
      lane.form.words = needs.rows * Letter::pitch_of(needs.width, needs.type);
      const size_t words_bytes = static_cast<size_t>(lane.form.words) * 2 * sizeof(uint32_t);
      for (int32_t rank = 0; rank < ranks_; ++rank) {
        constexpr size_t kFlagBytes = 64;
        BRAID_ASSIGN(Buffer buffer, ranks[static_cast<size_t>(rank)]->allocate(
                                        kFlagBytes + words_bytes, "mailboxes"));
        auto* at = static_cast<std::byte*>(buffer.data());
        lane.form.boxes[rank] = {nullptr, at + kFlagBytes, reinterpret_cast<uint32_t*>(at)};
        bytes_[static_cast<size_t>(rank)] += buffer.size_bytes();
        buffers_.push_back(std::move(buffer));
      }
      lanes_.push_back(lane);
    }
    return {};
  }

 private:
  void clear() override {
    for (const Lane& lane : lanes_) {
      for (int32_t rank = 0; rank < ranks_; ++rank) {
        SentFlags& flags = flags_of(lane.form, rank);
        flags.in_half[0] = flags.in_half[1] = 0;
      }
    }
  }

  std::deque<Buffer> buffers_;
};

uint16_t as_f16(float x) {
  constexpr float kMost = 65504.0f;
  return f32_to_f16(x > kMost ? kMost : x < -kMost ? -kMost : x);
}

}  // namespace

Result<std::unique_ptr<Exchange>> connect(std::span<Device* const> ranks,
                                          std::span<const LaneNeeds> lanes) {
  if (ranks.empty() || ranks.size() > kMostRanks)
    return Error{ErrorKind::invalid_argument,
                 fmt::format("{} devices cannot share a model by its tensors (1 to {} can)",
                             ranks.size(), kMostRanks)};
  auto exchange = std::make_unique<HostExchange>(static_cast<int32_t>(ranks.size()));
  BRAID_TRY(exchange->allocate(ranks, lanes));
  return std::unique_ptr<Exchange>(std::move(exchange));
}

void send(const Letter& letter, Tensor x, const Batch& batch) {
  const uint32_t flag = flag_of(letter, batch);
  SentFlags& flags = flags_of(letter, letter.own);
  const bool the_letter_before_is_collected = flags.last_collected == flags.last_sent;
  BRAID_CHECK(the_letter_before_is_collected);
  const bool letters_take_halves_in_turn = flags.last_sent == 0 || (flags.last_sent ^ flag) & 1;
  BRAID_CHECK(letters_take_halves_in_turn);
  BRAID_CHECK(letter.rows == 0 || (x.rows >= letter.rows && x.cols == letter.width));
  for (int64_t row = 0; row < letter.rows; ++row) {
    auto* to = const_cast<uint32_t*>(row_of(letter, letter.own, row));
    if (letter.type == DType::f32) {
      std::memcpy(to, x.f32(row), static_cast<size_t>(letter.width) * sizeof(float));
    } else {
      auto* halves = reinterpret_cast<uint16_t*>(to);
      for (int64_t i = 0; i < letter.width; ++i) halves[i] = as_f16(x.f32(row)[i]);
    }
  }
  flags.in_half[letter.half()] = flags.last_sent = flag;
}

void begin_collect(const Letter& letter, const Batch& batch) {
  const uint32_t flag = flag_of(letter, batch);
  for (int32_t rank = 0; rank < letter.senders; ++rank) {
    const bool all_ranks_have_sent_this_letter =
        flags_of(letter, rank).in_half[letter.half()] == flag;
    BRAID_CHECK(all_ranks_have_sent_this_letter);
  }
  SentFlags& own = flags_of(letter, letter.own);
  const bool a_letter_is_collected_once = own.last_collected != flag;
  BRAID_CHECK(a_letter_is_collected_once);
  own.last_collected = flag;
}

void merge_best(Tensor values, Tensor ids, Tensor log_sum, const Letter& letter,
                const Batch& batch) {
  const int64_t k = values.cols;
  BRAID_CHECK(k > 0 && k <= kMostTopK && letter.type == DType::f32 &&
              letter.width == BestRows::width(k));
  BRAID_CHECK(ids.cols == k && ids.type == DType::i32 && log_sum.cols == 1);
  BRAID_CHECK(values.rows >= letter.rows && ids.rows >= letter.rows && log_sum.rows >= letter.rows);
  begin_collect(letter, batch);
  struct Best {
    float value;
    int32_t id;
  };
  std::vector<Best> all;
  for (int64_t row = 0; row < letter.rows; ++row) {
    all.clear();
    float most = -INFINITY;
    for (int32_t rank = 0; rank < letter.senders; ++rank) {
      const uint32_t* words = row_of(letter, rank, row);
      for (int64_t j = 0; j < k; ++j)
        all.push_back({std::bit_cast<float>(words[j]), static_cast<int32_t>(words[k + j])});
      most = std::fmax(most, std::bit_cast<float>(words[2 * k]));
    }
    const auto number = [](float x) { return std::isnan(x) ? -INFINITY : x; };
    std::stable_sort(all.begin(), all.end(), [&](const Best& a, const Best& b) {
      const float x = number(a.value), y = number(b.value);
      return x != y ? x > y : a.id < b.id;
    });
    for (int64_t j = 0; j < k; ++j) {
      values.f32(row)[j] = all[static_cast<size_t>(j)].value;
      (static_cast<int32_t*>(ids.data) + row * ids.stride)[j] = all[static_cast<size_t>(j)].id;
    }
    double sum = 0;
    for (int32_t rank = 0; rank < letter.senders; ++rank) {
      const float part = std::bit_cast<float>(row_of(letter, rank, row)[2 * k]);
      if (part != -INFINITY) sum += std::exp(double{part} - most);
    }
    *log_sum.f32(row) = static_cast<float>(most + std::log(sum));
  }
}

}  // namespace braid::host
