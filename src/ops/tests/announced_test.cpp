// announced_test.cpp -- announced products give the same bytes as others, on every device.
#include <algorithm>
#include <iterator>
#include <tuple>

#include "ops/tests/mirror_test.h"
#include "ops/tests/op_test.h"

namespace braid {
namespace {

using namespace test;

struct Case {
  GgmlType in, out;
  int64_t hidden;
};

// Twice, as the first run must not change the second.
std::vector<float> results(const DeviceCase& device, const Case& c, int64_t rows, bool announced) {
  constexpr int64_t kWidth = 512;
  Random random(801);
  const auto gate = random_weight(random, c.in, c.hidden, kWidth);
  const auto up = random_weight(random, c.in, c.hidden, kWidth);
  const auto down = random_weight(random, c.out, 320, c.hidden);
  World world(device);
  world.prepare({&gate->weight, &up->weight, &down->weight},
                {.max_width = std::max(kWidth, c.hidden), .model_width = kWidth});
  const Tensor residual = world.tensor(rows, kWidth, random.normals(rows * kWidth));
  const Tensor h = world.tensor(rows, kWidth), x = world.tensor(rows, c.hidden),
               y = world.tensor(rows, 320);
  const float* norm = world.array(random.normals(kWidth));
  const LinearPart first{&gate->weight, &up->weight, x, Tail::silu_mul};
  const LinearPart second{&down->weight, nullptr, y, Tail::add};
  mirrors_announce = announced;
  for (int i = 0; i < 2; ++i) {
    world.ops().announce_product({&second, 1}, x);
    world.ops().norm_linear({&first, 1}, h, residual, norm, 1e-6f);
    world.ops().linear({&second, 1}, x);
  }
  mirrors_announce = true;
  world.device().synchronize();
  return values_of(y);
}

constexpr Case kCases[] = {{GgmlType::Q4_K, GgmlType::Q6_K, 768},
                           {GgmlType::Q4_K, GgmlType::Q4_K, 768},
                           {GgmlType::Q8_0, GgmlType::Q5_K, 512},
                           {GgmlType::BF16, GgmlType::MXFP4, 768},
                           {GgmlType::Q4_K, GgmlType::Q8_0, 800}};  // not a whole number of units

class AnnouncedProduct : public ::testing::TestWithParam<std::tuple<size_t, int64_t>> {};
TEST_P(AnnouncedProduct, GivesTheBytesOfOneThatIsNot) {
  const auto [which, rows] = GetParam();
  const Case& c = kCases[which];
  for (const DeviceCase& device : all_devices()) {
    if (!device.gpu && rows != 9) continue;
    expect_same(
        results(device, c, rows, true), results(device, c, rows, false),
        device.name + ", rows " + std::to_string(rows) + ", hidden " + std::to_string(c.hidden));
  }
}
INSTANTIATE_TEST_SUITE_P(All, AnnouncedProduct,
                         ::testing::Combine(::testing::Range<size_t>(0, std::size(kCases)),
                                            ::testing::Values<int64_t>(1, 9, 17, 64, 65, 96, 128,
                                                                       130, 192, 300, 512)));

}  // namespace
}  // namespace braid
