// kv_quality_test.cpp -- formats on keys and values of the demo model's longest golden prompt.
// Another program made the reference figures. Its query weights in the output error are unknown.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>

#include "cli/bench/kv_quality.h"
#include "cli/bench/kv_rows.h"
#include "engine/engine.h"
#include "engine/tests/demo_test.h"

namespace braid {
namespace {

constexpr size_t kCase = 9;
constexpr int32_t kFirstQuery = 600;
constexpr int32_t kNewest = 32;

struct QuietSink : Sink {
  void token(RequestId, const TokenEvent&) override {}
  void finished(RequestId, const Finished&) override {}
};

const std::vector<LayerRows>& demo_rows() {
  static const std::vector<LayerRows> kRows = [] {
    auto file = GgufFile::open(testing_demo::kDemoModel);
    EXPECT_TRUE(file.ok());
    EngineOptions options;
    options.device = "cpu";
    options.activations = Activations::f32;
    options.k_format = options.v_format = KvFormat::f32;
    options.context_tokens = 2048;
    auto engine = Engine::create(*file, options);
    EXPECT_TRUE(engine.ok());
    KvRows rows((*engine)->config());
    (*engine)->observe(&rows);
    Request request;
    request.prompt = testing_demo::golden_prompt(kCase);
    request.max_tokens = 0;
    QuietSink sink;
    EXPECT_TRUE((*engine)->submit(std::move(request), sink).ok());
    (*engine)->run_until_idle();
    return rows.layers();
  }();
  return kRows;
}

TEST(KvQuality, RowsAreThoseOfThePrompt) {
  const auto& layers = demo_rows();
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[0].layer, 3);
  EXPECT_EQ(layers[1].layer, 7);
  for (const LayerRows& rows : layers) {
    ASSERT_EQ(rows.positions, 1514);
    EXPECT_EQ(rows.k.size(), 1514u * 256);
    EXPECT_EQ(rows.q.size(), 1514u * 1024);
  }
}

TEST(KvQuality, ExactFormatsLoseNothing) {
  KvQualityOptions options;
  options.first_query = 1400;
  options.query_step = 16;
  options.sealed = [](int32_t p) { return std::pair(0, p + 1 - kNewest); };
  const LayerRows& rows = demo_rows()[0];
  const KvCodec& f32 = **find_kv_codec("f32");
  const KvQuality halves = measure_kv_quality(rows, f32, f32, options);
  EXPECT_LT(halves.k_error, 3e-4);
  EXPECT_LT(halves.divergence, 1e-6);
  options.sealed = [](int32_t) { return std::pair(0, 0); };
  const KvCodec& tq3 = **find_kv_codec("tq3_0");
  const KvQuality tail = measure_kv_quality(rows, tq3, tq3, options);
  EXPECT_GT(tail.k_error, 0.1);
  EXPECT_EQ(tail.divergence, 0);
  EXPECT_EQ(tail.output_error, 0);
}

struct Figures {
  double k_error, v_error;  // percent
  double divergence;        // 1e-3 nats
  double output_error;      // percent; 0: not compared
};
struct Row {
  const char* format;
  bool subtract_k_mean;
  std::array<Figures, 2> layers;
};

void expect_near(double got, double want, double tolerance, const Row& row, const char* what) {
  EXPECT_NEAR(got, want, tolerance * want + (want < 1 ? 0.006 : 0.06)) << row.format << " " << what;
}

TEST(KvQuality, FormatsAreWithinTheirTable) {
  const Row table[] = {
      {"q8_0", false, {{{0.58, 0.55, 0.03, 0.16}, {0.54, 0.54, 0.04, 0.18}}}},
      {"q5_0", false, {{{4.7, 4.4, 2.1, 1.3}, {4.3, 4.3, 2.5, 1.4}}}},
      {"q4_1", false, {{{8.4, 8.0, 6.6, 2.6}, {7.9, 7.8, 8.2, 2.6}}}},
      {"q4_0", false, {{{9.4, 8.9, 8.3, 2.8}, {8.7, 8.6, 10.5, 3.3}}}},
      {"tbq4_0", false, {{{9.6, 9.7, 6.8, 3.0}, {9.7, 9.7, 11.2, 4.2}}}},
      {"tbq4_0", true, {{{7.3, 9.7, 3.8, 0}, {8.3, 9.7, 9.1, 0}}}},
      {"c5", false, {{{2.5, 3.2, 0.6, 0.9}, {3.0, 3.2, 1.3, 1.1}}}},
      {"c4", false, {{{5.0, 6.3, 2.5, 1.9}, {6.0, 6.4, 5.0, 2.1}}}},
      {"tq3_0", false, {{{18.4, 18.6, 26.9, 6.9}, {18.5, 18.5, 41.6, 10.1}}}},
  };
  KvQualityOptions options;
  options.first_query = kFirstQuery;
  options.query_step = 4;
  options.sealed = [](int32_t p) { return std::pair(0, p + 1 - kNewest); };
  std::printf("[report] format       K %%            V %%            KL 1e-3         out %%\n");
  for (const Row& row : table) {
    options.subtract_k_mean = row.subtract_k_mean;
    const KvCodec& codec = **find_kv_codec(row.format);
    for (size_t i = 0; i < 2; ++i) {
      const KvQuality q = measure_kv_quality(demo_rows()[i], codec, codec, options);
      const Figures& want = row.layers[i];
      std::printf("[report] %-7s%s %5.2f (%5.2f)  %5.2f (%5.2f)  %6.3f (%5.2f)  %5.2f (%5.2f)\n",
                  row.format, row.subtract_k_mean ? " - c" : "    ", 100 * q.k_error, want.k_error,
                  100 * q.v_error, want.v_error, 1e3 * q.divergence, want.divergence,
                  100 * q.output_error, want.output_error);
      expect_near(100 * q.k_error, want.k_error, 0.02, row, "K");
      expect_near(100 * q.v_error, want.v_error, 0.02, row, "V");
      expect_near(1e3 * q.divergence, want.divergence, 0.1, row, "divergence");
      if (want.output_error > 0)
        expect_near(100 * q.output_error, want.output_error, 0.2, row, "output");
    }
  }
}

}  // namespace
}  // namespace braid
