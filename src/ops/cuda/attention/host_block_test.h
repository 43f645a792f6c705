// host_block_test.h -- a block of threads on the host (primitives/both.h). Between barriers its
// threads run one by one, in ascending, descending or shuffled order, so that data races show.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace braid::cuda {

template <int kThreads>
class HostBlock {
 public:
  static constexpr int kSize = kThreads;
  explicit HostBlock(int order)
      : order_(order), random_(static_cast<unsigned>(order)), threads_(kThreads) {
    std::iota(threads_.begin(), threads_.end(), 0);
  }
  template <typename Run>
  void each(Run run) {
    if (order_ == 1) std::reverse(threads_.begin(), threads_.end());
    if (order_ > 1) std::shuffle(threads_.begin(), threads_.end(), random_);
    for (const int thread : threads_) run(thread);
  }

 private:
  int order_;
  std::minstd_rand random_;
  std::vector<int> threads_;
};

}  // namespace braid::cuda
