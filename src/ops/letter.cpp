// letter.cpp -- letters and turns of an Exchange.
#include "ops/letter.h"

namespace braid {

Letter Exchange::letter(int32_t lane, int32_t rank, int32_t number, int64_t rows, int64_t width,
                        DType type) const {
  BRAID_CHECK(lane >= 0 && lane < std::ssize(lanes_) && rank >= 0 && rank < ranks_);
  BRAID_CHECK(number >= 0 && number < kMostLetters && rows >= 0 && width >= 0);
  BRAID_CHECK(type == DType::f32 || type == DType::f16);
  const Lane& of = lanes_[static_cast<size_t>(lane)];
  Letter letter = of.form;
  letter.own = rank;
  letter.number = number;
  letter.rows = rows;
  letter.width = width;
  letter.type = type;
  const int64_t words = rows * letter.pitch();
  BRAID_CHECK(words <= letter.words);
  letter.few = words > 0 && words <= of.most_few_words;
  return letter;
}

int32_t Exchange::next_turn() {
  turn_ = turn_ == kLastTurn ? 1 : turn_ + 1;
  // Twice in all turns: what an interleaved step writes after the first time goes the second time.
  constexpr int32_t kHalfWay = (kLastTurn + 1) / 2;
  if (turn_ == kHalfWay || (turn_ == 1 && cleared_)) {
    clear();
    cleared_ = true;
  }
  return turn_;
}

}  // namespace braid
