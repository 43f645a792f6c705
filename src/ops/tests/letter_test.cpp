// letter_test.cpp -- letters between ranks: sums, the best of all, mailboxes in turn.
//
// Ranks are devices of one kind on this machine; GPUs of a mirror share one card. All sends of a
// letter are called before its first collect, as the reference and the CPU require.
#include "ops/letter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "gguf/half.h"
#include "ops/tests/op_test.h"

namespace braid {
namespace {

using namespace test;

class Ranks {
 public:
  Ranks(const DeviceCase& device, int32_t count, std::vector<LaneNeeds> lanes) {
    std::vector<Device*> devices;
    for (int32_t rank = 0; rank < count; ++rank) {
      worlds_.push_back(std::make_unique<World>(device));
      devices.push_back(&worlds_.back()->device());
    }
    auto made = devices[0]->connect(devices, lanes);
    EXPECT_TRUE(made.ok()) << device.name << ": " << (made.ok() ? "" : made.error().message);
    exchange_ = std::move(made).value();
  }

  int32_t count() const { return static_cast<int32_t>(worlds_.size()); }
  World& world(int32_t rank) { return *worlds_[static_cast<size_t>(rank)]; }
  Ops& ops(int32_t rank) { return world(rank).ops(); }
  Exchange& exchange() { return *exchange_; }

  Batch batch(int32_t turn) {
    turns_.push_back(std::make_unique<int32_t>(turn));
    Batch batch;
    batch.turn = turns_.back().get();
    return batch;
  }
  Batch next() { return batch(exchange_->next_turn()); }

  // One tensor for each rank.
  std::vector<Tensor> tensors(int64_t rows, int64_t cols) {
    std::vector<Tensor> made;
    for (int32_t rank = 0; rank < count(); ++rank) made.push_back(world(rank).tensor(rows, cols));
    return made;
  }
  void send(const Batch& batch, int32_t lane, int32_t number, const std::vector<Tensor>& x,
            DType type = DType::f32) {
    for (int32_t rank = 0; rank < count(); ++rank) {
      const Tensor& own = x[static_cast<size_t>(rank)];
      ops(rank).send(exchange_->letter(lane, rank, number, own.rows, own.cols, type), own, batch);
    }
  }
  void collect(const Batch& batch, int32_t lane, int32_t number, const std::vector<Tensor>& y,
               Tail tail, DType type = DType::f32) {
    for (int32_t rank = 0; rank < count(); ++rank) {
      const Tensor& own = y[static_cast<size_t>(rank)];
      ops(rank).collect(own, exchange_->letter(lane, rank, number, own.rows, own.cols, type), tail,
                        batch);
    }
  }
  void empty(const Batch& batch, int32_t lane, int32_t number) {
    const std::vector<Tensor> none(worlds_.size());
    send(batch, lane, number, none);
    collect(batch, lane, number, none, Tail::store);
  }
  void synchronize() {
    for (auto& world : worlds_) {
      world->device().synchronize();
      const Status health = world->device().health();
      EXPECT_TRUE(health.ok()) << (health.ok() ? "" : health.error().message);
    }
  }

 private:
  std::vector<std::unique_ptr<World>> worlds_;
  std::vector<std::unique_ptr<int32_t>> turns_;
  std::unique_ptr<Exchange> exchange_;
};

// Of very different sizes, so that the order of a sum shows.
void fill(Tensor t, Random& random) {
  for (int64_t row = 0; row < t.rows; ++row)
    for (int64_t i = 0; i < t.cols; ++i)
      t.f32(row)[i] = random.uniform(-1, 1) * static_cast<float>(1 << random.between(0, 24));
}

std::vector<float> sum_of(const std::vector<Tensor>& x, DType type = DType::f32) {
  std::vector<float> sum;
  for (size_t rank = 0; rank < x.size(); ++rank) {
    std::vector<float> part = values_of(x[rank]);
    if (type == DType::f16)
      for (float& v : part) v = f16_to_f32(f32_to_f16(std::clamp(v, -65504.0f, 65504.0f)));
    if (rank == 0) {
      sum = part;
    } else {
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    }
  }
  return sum;
}

std::vector<Tensor> cut(const std::vector<Tensor>& whole, int64_t rows, int64_t first,
                        int64_t cols) {
  std::vector<Tensor> parts;
  for (const Tensor& t : whole) parts.push_back(t.top(rows).columns(first, cols));
  return parts;
}

constexpr float kCanary = 12345.0f;

class LetterOf : public ::testing::TestWithParam<int32_t> {};

TEST_P(LetterOf, AnyRowsIsThePlainSumInTheOrderOfRanks) {
  constexpr int64_t kRows = 300, kWidth = 132;
  for (const DeviceCase& device : exact_devices()) {
    Random random(901);
    Ranks ranks(device, GetParam(), {{kRows, kWidth}});
    const std::vector<Tensor> x = ranks.tensors(kRows, kWidth + 8);
    const std::vector<Tensor> y = ranks.tensors(kRows, kWidth + 8);
    int32_t number = 0;
    Batch batch = ranks.next();
    for (int64_t rows = 1; rows <= kRows; rows += device.gpu ? random.between(1, 40) : 1) {
      // All few rows; of many, each number of rows with one number of ranks.
      if (!device.gpu && rows > 40 && rows % kMostRanks + 1 != ranks.count()) continue;
      // Whole and odd widths, aligned and not.
      const int64_t width = rows % 3 == 0 ? kWidth : random.between(1, kWidth);
      const int64_t first = rows % 3 == 0 ? 4 : random.between(0, 8);
      const Tail tail = rows % 2 == 0 ? Tail::add : Tail::store;
      const DType type = rows % 5 == 4 ? DType::f16 : DType::f32;
      const auto sent = cut(x, rows, first, width), got = cut(y, rows, first, width);
      for (const Tensor& t : sent) fill(t, random);
      for (const Tensor& t : y) std::fill_n(t.f32(), rows * t.stride, kCanary);
      std::vector<float> expected = sum_of(sent, type);
      if (tail == Tail::add) {
        fill(got[0], random);
        const std::vector<float> before = values_of(got[0]);
        for (const Tensor& t : got)
          for (int64_t row = 0; row < rows; ++row)
            std::copy_n(&before[static_cast<size_t>(row * width)], width, t.f32(row));
        for (size_t i = 0; i < expected.size(); ++i) expected[i] = before[i] + expected[i];
      }
      ranks.send(batch, 0, number, sent, type);
      ranks.collect(batch, 0, number, got, tail, type);
      ranks.synchronize();
      const std::string what = device.name + ", " + std::to_string(rows) + " x " +
                               std::to_string(width) + " of " + std::to_string(ranks.count());
      for (size_t rank = 0; rank < got.size(); ++rank) {
        expect_same(values_of(got[rank]), expected, what + ", rank " + std::to_string(rank));
        EXPECT_EQ(first == 0 || y[rank].f32()[first - 1] == kCanary, true) << what;
        EXPECT_EQ(y[rank].f32(rows - 1)[first + width], kCanary) << what;
      }
      if (++number == kMostLetters) {
        number = 0;
        batch = ranks.next();
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, LetterOf, ::testing::Range(1, kMostRanks + 1));

TEST(Letters, KeepZerosNansAndInfinities) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  // Each column: what two ranks send, and the sum.
  constexpr float kCases[][3] = {{-0.0f, -0.0f, -0.0f}, {-0.0f, 0.0f, 0.0f},  {0.0f, -0.0f, 0.0f},
                                 {kNan, 1.0f, kNan},    {1.0f, kNan, kNan},   {kInf, -kInf, kNan},
                                 {kInf, 1.0f, kInf},    {-1.0f, -kInf, -kInf}};
  constexpr int64_t kWidth = std::size(kCases);
  for (const DeviceCase& device : exact_devices()) {
    for (const int64_t rows : {1, 40}) {
      for (const DType type : {DType::f32, DType::f16}) {
        Ranks ranks(device, 2, {{rows, kWidth}});
        const auto x = ranks.tensors(rows, kWidth), y = ranks.tensors(rows, kWidth);
        for (int64_t row = 0; row < rows; ++row)
          for (int64_t i = 0; i < kWidth; ++i)
            for (int rank : {0, 1}) x[rank].f32(row)[i] = kCases[i][rank];
        const Batch batch = ranks.next();
        ranks.send(batch, 0, 0, x, type);
        ranks.collect(batch, 0, 0, y, Tail::store, type);
        ranks.synchronize();
        for (const Tensor& t : y) {
          for (int64_t i = 0; i < kWidth; ++i) {
            float expected = kCases[i][2];
            // Halves have no infinities here: they saturate.
            if (type == DType::f16 && i == 5) expected = 0;
            if (type == DType::f16 && i == 6) expected = 65505;
            if (type == DType::f16 && i == 7) expected = -65505;
            const float got = t.f32(rows - 1)[i];
            EXPECT_EQ(std::isnan(got), std::isnan(expected)) << device.name << ", " << i;
            if (std::isnan(expected)) continue;
            EXPECT_EQ(got, expected) << device.name << ", " << i;
            EXPECT_EQ(std::signbit(got), std::signbit(expected)) << device.name << ", " << i;
          }
        }
      }
    }
  }
}

// Whether the number of letters of a step is even or odd, each letter carries its own step's rows.
TEST(Letters, UseTheirMailboxesAgainInEveryTurn) {
  constexpr int64_t kMostRows = 20, kWidth = 6;
  for (const DeviceCase& device : exact_devices()) {
    Random random(907);
    Ranks ranks(device, 3, {{kMostRows, kWidth}});
    const auto x = ranks.tensors(kMostRows, kWidth), y = ranks.tensors(kMostRows, kWidth);
    const int turns = device.gpu ? 200 : 10'000;
    for (int turn = 0; turn < turns; ++turn) {
      const Batch batch = ranks.next();
      const auto letters = static_cast<int32_t>(random.between(0, 5));
      for (int32_t number = 0; number < letters; ++number) {
        const int64_t rows = random.between(0, 3) == 0 ? kMostRows : random.between(1, 4);
        const auto sent = cut(x, rows, 0, kWidth), got = cut(y, rows, 0, kWidth);
        for (const Tensor& t : sent) fill(t, random);
        ranks.send(batch, 0, number, sent);
        ranks.collect(batch, 0, number, got, Tail::store);
        ranks.synchronize();
        const std::vector<float> expected = sum_of(sent);
        for (const Tensor& t : got)
          ASSERT_EQ(values_of(t), expected) << device.name << ", turn " << turn;
      }
      if (letters % 2 != 0) ranks.empty(batch, 0, letters);
    }
  }
}

// A step whose parts lie between whole steps: its turn is older than theirs.
TEST(Letters, OfTwoLanesDoNotMeet) {
  constexpr int64_t kRows = 18, kWidth = 10;
  for (const DeviceCase& device : exact_devices()) {
    Random random(911);
    Ranks ranks(device, 2, {{kRows, kWidth}, {kRows, kWidth}});
    const auto x = ranks.tensors(kRows, kWidth), y = ranks.tensors(kRows, kWidth);
    const auto exchange = [&](const Batch& batch, int32_t lane, int32_t number, int64_t rows) {
      const auto sent = cut(x, rows, 0, kWidth), got = cut(y, rows, 0, kWidth);
      for (const Tensor& t : sent) fill(t, random);
      ranks.send(batch, lane, number, sent);
      // The other lane works between sending and collecting, too.
      if (lane == 1 && number % 4 == 2) {
        const Batch whole = ranks.next();
        const auto x0 = ranks.tensors(2, kWidth), y0 = ranks.tensors(2, kWidth);
        for (int32_t n : {0, 1}) {
          for (const Tensor& t : x0) fill(t, random);
          ranks.send(whole, 0, n, x0);
          ranks.collect(whole, 0, n, y0, Tail::store);
          for (const Tensor& t : y0) EXPECT_EQ(values_of(t), sum_of(x0)) << device.name;
        }
      }
      ranks.collect(batch, lane, number, got, Tail::store);
      ranks.synchronize();
      for (const Tensor& t : got) EXPECT_EQ(values_of(t), sum_of(sent)) << device.name;
    };
    for (int step = 0; step < 5; ++step) {
      const Batch interleaved = ranks.next();
      for (int32_t part = 0; part < 4; ++part) {
        for (int32_t i = 0; i < 2; ++i) exchange(interleaved, 1, 2 * part + i, kRows);
        const Batch whole = ranks.next();
        for (int32_t number = 0; number < 6; ++number)
          exchange(whole, 0, number, number % 3 == 0 ? kRows : 1);
      }
    }
  }
}

TEST(Letters, TurnsBeginAgain) {
  constexpr int64_t kRows = 20, kWidth = 4;
  for (const DeviceCase& device : exact_devices()) {
    Random random(919);
    Ranks ranks(device, 2, {{kRows, kWidth}});
    const auto x = ranks.tensors(kRows, kWidth), y = ranks.tensors(kRows, kWidth);
    const auto step = [&](int32_t turn) {
      const Batch batch = ranks.batch(turn);
      for (int32_t number = 0; number < 4; ++number) {
        const int64_t rows = number < 2 ? 1 : kRows;
        const auto sent = cut(x, rows, 0, kWidth), got = cut(y, rows, 0, kWidth);
        for (const Tensor& t : sent) fill(t, random);
        ranks.send(batch, 0, number, sent);
        ranks.collect(batch, 0, number, got, Tail::store);
        ranks.synchronize();
        for (const Tensor& t : got) ASSERT_EQ(values_of(t), sum_of(sent)) << turn;
      }
    };
    EXPECT_EQ(ranks.exchange().next_turn(), 1);
    step(1);
    for (int32_t turn = 2; turn <= kLastTurn; ++turn) {
      ASSERT_EQ(ranks.exchange().next_turn(), turn);
      if (turn == kLastTurn / 2 || turn > kLastTurn - 2) step(turn);
    }
    for (int32_t turn = 1; turn < 4; ++turn) {
      ASSERT_EQ(ranks.exchange().next_turn(), turn);
      step(turn);
    }
  }
}

struct BestOfRows {
  std::vector<float> values, log_sums;
  std::vector<int32_t> ids;
};

// Ids of a rank are its columns' numbers in the whole vocabulary.
TEST(Letters, MergeTheBestOfAllRanks) {
  struct Case {
    int32_t ranks;
    int64_t rows, columns, k;  // columns of a rank
  };
  for (const Case& c :
       {Case{1, 3, 40, 5}, Case{2, 1, 100, 64}, Case{2, 70, 300, 64}, Case{3, 4, 64, 64},
        Case{4, 9, 200, 20}, Case{8, 33, 128, 128}, Case{5, 2, 50, 1}}) {
    for (const DeviceCase& device : exact_devices()) {
      Random random(929);
      const int64_t vocabulary = c.columns * c.ranks, width = BestRows::width(c.k);
      std::vector<float> logits = random.normals(c.rows * vocabulary, 6.0f);
      for (float& v : logits) v = std::round(v);  // many ties
      for (int64_t i = 0; i < vocabulary; i += 3) logits[static_cast<size_t>(i)] = 50.0f;
      Ranks ranks(device, c.ranks, {{c.rows, width}});
      const Batch batch = ranks.next();
      std::vector<Tensor> sent;
      for (int32_t rank = 0; rank < c.ranks; ++rank) {
        World& world = ranks.world(rank);
        world.prepare({}, {});
        const Tensor own = world.tensor(c.rows, c.columns);
        for (int64_t row = 0; row < c.rows; ++row)
          std::copy_n(&logits[static_cast<size_t>(row * vocabulary + rank * c.columns)], c.columns,
                      own.f32(row));
        const Tensor names = world.tensor(1, c.columns, DType::i32);
        std::iota(static_cast<int32_t*>(names.data), static_cast<int32_t*>(names.data) + c.columns,
                  static_cast<int32_t>(rank * c.columns));
        const BestRows best{world.tensor(c.rows, width), c.k};
        world.ops().top_k(best.values(), best.ids(), best.log_sum(), own,
                          static_cast<const int32_t*>(names.data));
        sent.push_back(best.rows);
      }
      ranks.send(batch, 0, 0, sent);

      World reference(reference_device());
      const Tensor all = reference.tensor(c.rows, vocabulary, logits);
      const Tensor values = reference.tensor(c.rows, c.k), sums = reference.tensor(c.rows, 1);
      const Tensor ids = reference.tensor(c.rows, c.k, DType::i32);
      reference.ops().top_k(values, ids, sums, all);
      const auto* expected = static_cast<const int32_t*>(ids.data);

      std::vector<float> first_sums;
      for (int32_t rank = 0; rank < c.ranks; ++rank) {
        World& world = ranks.world(rank);
        const Tensor own_values = world.tensor(c.rows, c.k), own_sums = world.tensor(c.rows, 1);
        const Tensor own_ids = world.tensor(c.rows, c.k, DType::i32);
        ranks.ops(rank).merge_best(own_values, own_ids, own_sums,
                                   ranks.exchange().letter(0, rank, 0, c.rows, width), batch);
        const std::string what = device.name + ", rank " + std::to_string(rank) + " of " +
                                 std::to_string(c.ranks) + ", k " + std::to_string(c.k);
        expect_same(values_of(own_values), values_of(values), what);
        const auto* got = static_cast<const int32_t*>(own_ids.data);
        EXPECT_TRUE(std::equal(got, got + c.rows * c.k, expected)) << what;
        expect_close(values_of(own_sums), values_of(sums), 1e-5, 1e-6, what);
        if (rank == 0) first_sums = values_of(own_sums);
        expect_same(values_of(own_sums), first_sums, what);  // all ranks have the same bytes
      }
    }
  }
}

TEST(Letters, MergeNansLast) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const DeviceCase& device : exact_devices()) {
    Ranks ranks(device, 2, {{1, BestRows::width(3)}});
    const auto x = ranks.tensors(1, BestRows::width(3));
    for (int32_t rank : {0, 1}) {
      const BestRows best{x[static_cast<size_t>(rank)], 3};
      const float values[2][3] = {{kNan, kNan, kNan}, {2.0f, -kInf, -kInf}};
      for (int32_t j = 0; j < 3; ++j) {
        best.values().f32()[j] = values[rank][j];
        static_cast<int32_t*>(best.ids().data)[j] = 10 * rank + j;
      }
      *best.log_sum().f32() = rank == 0 ? kNan : 2.0f;
    }
    const Batch batch = ranks.next();
    ranks.send(batch, 0, 0, x);
    for (int32_t rank : {0, 1}) {
      World& world = ranks.world(rank);
      const Tensor values = world.tensor(1, 3), sum = world.tensor(1, 1);
      const Tensor ids = world.tensor(1, 3, DType::i32);
      ranks.ops(rank).merge_best(values, ids, sum,
                                 ranks.exchange().letter(0, rank, 0, 1, BestRows::width(3)), batch);
      EXPECT_EQ(values.f32()[0], 2.0f) << device.name;
      EXPECT_EQ(static_cast<const int32_t*>(ids.data)[0], 10) << device.name;
      // NaN counts as the lowest number, and ties go to the lowest id.
      EXPECT_EQ(static_cast<const int32_t*>(ids.data)[1], 0) << device.name;
      EXPECT_TRUE(std::isnan(*sum.f32())) << device.name;
    }
  }
}

TEST(Letters, TellWhatTheyTake) {
  for (const DeviceCase& device : plain_devices()) {
    Ranks ranks(device, 2, {{40, 64}, {2, 8, DType::f16}});
    // Two halves of each lane, at least.
    EXPECT_GE(ranks.exchange().bytes(1) + ranks.exchange().host_bytes(),
              2 * (40 * 64 * 4 + 2 * 4 * 4))
        << device.name;
    EXPECT_EQ(ranks.exchange().ranks(), 2);
    EXPECT_FALSE(ranks.exchange().description().empty());
  }
}

TEST(Letters, RefuseTooManyRanks) {
  for (const DeviceCase& device : plain_devices()) {
    std::vector<std::unique_ptr<World>> worlds;
    std::vector<Device*> devices;
    for (int32_t rank = 0; rank < kMostRanks + 1; ++rank) {
      worlds.push_back(std::make_unique<World>(device));
      devices.push_back(&worlds.back()->device());
    }
    const LaneNeeds lane{1, 8};
    EXPECT_FALSE(devices[0]->connect(devices, {&lane, 1}).ok()) << device.name;
    EXPECT_FALSE(devices[0]->connect({}, {&lane, 1}).ok()) << device.name;
  }
}

// The reference and the CPU check the rules of letter.h.
TEST(LettersDeathTest, BrokenRulesStopTheProgram) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  for (const DeviceCase& device : plain_devices()) {
    if (device.gpu) continue;
    Ranks ranks(device, 2, {{4, 8}});
    const auto x = ranks.tensors(2, 8), y = ranks.tensors(2, 8);
    const auto letter = [&](int32_t rank, int32_t number) {
      return ranks.exchange().letter(0, rank, number, 2, 8);
    };
    const Batch batch = ranks.next();
    ranks.send(batch, 0, 0, x);
    ranks.collect(batch, 0, 0, y, Tail::store);
    EXPECT_DEATH(ranks.collect(batch, 0, 0, y, Tail::store), "a_letter_is_collected_once");
    EXPECT_DEATH(ranks.send(batch, 0, 2, x), "letters_take_halves_in_turn");
    ranks.ops(0).send(letter(0, 1), x[0], batch);
    EXPECT_DEATH(ranks.ops(0).send(letter(0, 2), x[0], batch), "the_letter_before_is_collected");
    EXPECT_DEATH(ranks.ops(0).collect(y[0], letter(0, 1), Tail::store, batch),
                 "all_ranks_have_sent_this_letter");
    const Batch other = ranks.next();
    ranks.ops(1).send(letter(1, 1), x[1], other);
    EXPECT_DEATH(ranks.ops(0).collect(y[0], letter(0, 1), Tail::store, batch),
                 "all_ranks_have_sent_this_letter");
    EXPECT_DEATH(ranks.exchange().letter(0, 0, 0, 5, 8), "broken promise");
  }
}

}  // namespace
}  // namespace braid
