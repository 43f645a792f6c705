// gemm.h -- launching products, for linear, logits and the experts.
#pragma once

#include <span>
#include <vector>

#include "ops/cuda/gemm/gemm_kernels.h"
#include "ops/cuda/ordered_rows.h"
#include "ops/device.h"
#include "ops/ops.h"

namespace braid::cuda {

constexpr int rows_per_expert_tile(int64_t pairs, int64_t experts) {
  const int64_t mean = pairs / (experts > 0 ? experts : 1);
  return mean <= 6    ? 8
         : mean <= 12 ? 16
         : mean <= 26 ? 32
         : mean <= 52 ? 64
         : mean <= 76 ? 96
                      : 128;
}
constexpr int64_t most_expert_tiles(int64_t pairs, int64_t experts, int64_t rows) {
  return pairs / rows + (experts < pairs ? experts : pairs) + 1;
}

int32_t padded_rows(const Context& context, int32_t rows);

// Made for one op. `work`: scratch of gemm_bytes(), zero-filled once, not kept between ops. Calls
// queue kernels on the context's stream and return. Wrong shapes are bugs (BRAID_CHECK).
class Gemm {
 public:
  Gemm(Context& context, const Device::WorkspaceNeeds& needs, std::byte* work,
       AnnouncedProduct* announced = nullptr);

  // Empty if the product will not read OrderedRows.
  AnnouncedProduct announce(std::span<const LinearPart> parts, Tensor x) const;

  // norm: x still has to be normed, and written. Only if norms_inside().
  void linear(std::span<const LinearPart> parts, Tensor x, const SkinnyNorm& norm = {});
  bool norms_inside(std::span<const LinearPart> parts, Tensor h, Tensor residual,
                    const float* weight) const;
  // h = norm(residual) * weight, and the copy of h that linear() would make.
  void norm_for(std::span<const LinearPart> parts, Tensor h, Tensor residual, const float* weight,
                float eps);

  // Copies x if the kernel reads another form. The next call overwrites the copy.
  GemmLaunch launch_for(Tensor x, Columns columns, const ExpertList& list);
  static GemmPart part_for(const Weight& w, Tensor y, Store store);
  static void add_up(GemmPart& part, const Weight& up);
  static void add_shared(GemmPart& part, const Weight& w, const Weight* up);
  static bool same_form(const Weight& a, const Weight& b);
  // `beside`: the preceding kernel is a product of the same x, whose results are not needed.
  void launch(const Weight& like, Columns columns, GemmLaunch call, std::span<const GemmPart> parts,
              bool beside = false);
  // Whether one kernel can multiply both: q6k, and q4k or q5.
  static bool mix(const Weight& a, const Weight& b);

 private:
  bool wide(std::span<const LinearPart> parts, int64_t rows) const;
  void narrow(Columns& columns, std::span<const LinearPart> parts, int64_t rows) const;
  bool small(std::span<const LinearPart> parts, int64_t rows) const;
  bool linear_small(std::span<const LinearPart> parts, Tensor x, const SkinnyNorm& norm);
  void order_y(GemmPart& part, Tensor y, int64_t x_cols);
  bool launch_mixed(const Weight& like, Columns columns, GemmLaunch call,
                    std::span<const GemmPart> q6k, std::span<const GemmPart> second,
                    Pack second_pack, bool beside);

  Context& context_;
  const Device::WorkspaceNeeds& needs_;
  unsigned* counters_ = nullptr;
  float* partials_ = nullptr;
  float* looked_ = nullptr;  // partials that are zero between launches
  Act* padded_ = nullptr;
  int64_t padded_elements_ = 0;
  AnnouncedProduct* announced_ = nullptr;
  OrderedRows ordered_;  // x of the next launch, if already ordered
};

}  // namespace braid::cuda
