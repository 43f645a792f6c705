// lattice_test.cpp -- trees hold a lattice's most probable paths, compared with exhaustive search.
#include "engine/draft/lattice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "engine/noise.h"

namespace braid {
namespace {

// Some probability of each row is outside its candidates.
Lattice random_lattice(LatticeKind kind, int32_t depths, int32_t width, std::mt19937& random) {
  std::uniform_real_distribution<float> uniform(0.01f, 1.0f);
  Lattice lattice;
  lattice.reset(kind, depths, width);
  for (int32_t d = 0; d < depths; ++d) {
    for (int32_t c = 0; c < width; ++c) lattice.token(d, c) = 100 * d + (c * 7 + 3) % 100;
    lattice.chosen(d) = static_cast<int32_t>(random() % static_cast<uint32_t>(width));
    const int32_t parents = kind == LatticeKind::conditional && d > 0 ? width : 1;
    for (int32_t parent = 0; parent < parents; ++parent) {
      float sum = 0.1f;
      for (float& x : lattice.log_q(d, parent)) {
        x = uniform(random) * uniform(random);
        sum += x;
      }
      for (float& x : lattice.log_q(d, parent)) x = std::log(x / sum);
    }
  }
  return lattice;
}

struct Path {
  std::vector<int32_t> tokens;
  double score = 0;
};
void all_paths(const Lattice& lattice, int32_t d, int32_t parent, const Path& before,
               std::vector<Path>& out) {
  const int32_t row = lattice.kind() == LatticeKind::conditional ? parent : 0;
  for (int32_t c = 0; c < lattice.width(); ++c) {
    Path path = before;
    path.tokens.push_back(lattice.token(d, c));
    path.score += lattice.log_q(d, row)[static_cast<size_t>(c)];
    out.push_back(path);
    if (lattice.has_children(d, c)) all_paths(lattice, d + 1, c, path, out);
  }
}
std::vector<Path> paths_of(const Drafts& tree) {
  std::vector<Path> paths;
  for (const Draft& draft : tree) {
    EXPECT_LT(draft.parent, static_cast<int32_t>(paths.size()));
    Path path = draft.parent < 0 ? Path() : paths[static_cast<size_t>(draft.parent)];
    path.tokens.push_back(draft.token);
    path.score += draft.log_q;
    paths.push_back(path);
  }
  return paths;
}

TEST(TreeBuilder, GivesTheBestPathsOfEveryKindOfLattice) {
  std::mt19937 random(1);
  TreeBuilder builder;
  Drafts tree;
  for (const LatticeKind kind :
       {LatticeKind::independent, LatticeKind::conditional, LatticeKind::chain}) {
    for (int round = 0; round < 100; ++round) {
      const auto depths = static_cast<int32_t>(1 + random() % 4);
      const auto width = static_cast<int32_t>(1 + random() % 5);
      const Lattice lattice = random_lattice(kind, depths, width, random);
      std::vector<Path> wanted;
      all_paths(lattice, 0, 0, {}, wanted);
      std::sort(wanted.begin(), wanted.end(),
                [](const Path& a, const Path& b) { return a.score > b.score; });
      const auto budget = static_cast<int32_t>(random() % 40);
      builder.build(lattice, budget, tree);
      const std::vector<Path> got = paths_of(tree);
      ASSERT_EQ(got.size(), std::min(wanted.size(), static_cast<size_t>(budget)));
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].tokens, wanted[i].tokens) << "round " << round << " node " << i;
        EXPECT_NEAR(got[i].score, wanted[i].score, 1e-5);
      }
    }
  }
}

TEST(TreeBuilder, WorkedByHand) {
  Lattice lattice;
  lattice.reset(LatticeKind::independent, 2, 2);
  const float first[] = {-0.1f, -2.4f};
  const float second[] = {-0.5f, -0.93f};
  for (int32_t c = 0; c < 2; ++c) {
    lattice.token(0, c) = 10 + c;
    lattice.token(1, c) = 20 + c;
    lattice.log_q(0, 0)[static_cast<size_t>(c)] = first[c];
    lattice.log_q(1, 0)[static_cast<size_t>(c)] = second[c];
  }
  TreeBuilder builder;
  Drafts tree;
  builder.build(lattice, 4, tree);
  ASSERT_EQ(tree.size(), 4u);
  const int32_t tokens[] = {10, 20, 21, 11};
  const int32_t parents[] = {-1, 0, 0, -1};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(tree[i].token, tokens[i]) << i;
    EXPECT_EQ(tree[i].parent, parents[i]) << i;
  }
}

TEST(TreeBuilder, ABudgetOfOnePathIsTheChainAndImpossibleTokensNeverCome) {
  std::mt19937 random(2);
  TreeBuilder builder;
  Drafts tree;
  Lattice lattice = random_lattice(LatticeKind::chain, 5, 1, random);
  builder.build(lattice, 100, tree);
  ASSERT_EQ(tree.size(), 5u);
  for (int32_t i = 0; i < 5; ++i) EXPECT_EQ(tree[static_cast<size_t>(i)].parent, i - 1);

  lattice.reset(LatticeKind::independent, 3, 4);  // all start impossible
  builder.build(lattice, 100, tree);
  EXPECT_TRUE(tree.empty());
  lattice.log_q(0, 0)[2] = -0.5f;
  builder.build(lattice, 100, tree);
  EXPECT_EQ(tree.size(), 1u);
  lattice.reset(LatticeKind::independent, 0, 0);
  builder.build(lattice, 100, tree);
  EXPECT_TRUE(tree.empty());
}

TEST(TreeBuilder, TheSpineComesFirst) {
  std::mt19937 random(4);
  TreeBuilder builder;
  Drafts tree;
  for (const LatticeKind kind : {LatticeKind::independent, LatticeKind::conditional}) {
    for (int round = 0; round < 50; ++round) {
      const Lattice lattice = random_lattice(kind, 6, 4, random);
      const float least = std::log(0.3f);
      builder.build(lattice, 12, tree, least);
      ASSERT_EQ(tree.size(), 12u);
      int32_t row = 0, spine = 0;
      for (; spine < 6; ++spine) {
        const auto log_q = lattice.log_q(spine, row);
        const auto best = std::max_element(log_q.begin(), log_q.end());
        if (*best < least) break;
        const auto c = static_cast<int32_t>(best - log_q.begin());
        EXPECT_EQ(tree[static_cast<size_t>(spine)].token, lattice.token(spine, c));
        EXPECT_EQ(tree[static_cast<size_t>(spine)].parent, spine - 1);
        if (kind == LatticeKind::conditional) row = c;
      }
      const std::vector<Path> paths = paths_of(tree);
      for (size_t i = static_cast<size_t>(spine) + 1; i < paths.size(); ++i)
        EXPECT_LE(paths[i].score, paths[i - 1].score + 1e-5) << i;
    }
  }
}

// A drafter with the model's distribution proposes the sampled tokens at every depth.
TEST(Lattice, NoisePicksTheTokensThatWillBeDrawn) {
  std::mt19937 random(3);
  TreeBuilder builder;
  Drafts tree;
  std::vector<int> changed(2, 0);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    for (const LatticeKind kind : {LatticeKind::independent, LatticeKind::conditional}) {
      Lattice lattice = random_lattice(kind, 3, 6, random);
      const Lattice plain = lattice;
      const auto position = static_cast<int32_t>(50 + seed);
      for (int32_t d = 0; d < 3; ++d) {
        const int32_t parents = kind == LatticeKind::conditional && d > 0 ? 6 : 1;
        for (int32_t parent = 0; parent < parents; ++parent)
          lattice.add_noise(seed, position, d, parent);
      }
      builder.build(lattice, 40, tree);
      int32_t parent = 0, node = -1;
      for (int32_t d = 0; d < 3; ++d) {
        const int32_t row = kind == LatticeKind::conditional ? parent : 0;
        TokenNoise noise(seed, position + d);
        int32_t drawn = 0, likely = 0;
        double largest = -INFINITY, total = 0, noisy = 0;
        for (int32_t c = 0; c < 6; ++c) {
          const auto at = static_cast<size_t>(c);
          const float log_q = plain.log_q(d, row)[at];
          const double score = log_q + noise.gumbel(plain.token(d, c));
          if (score > largest) drawn = c;
          largest = std::max(largest, score);
          if (log_q > plain.log_q(d, row)[static_cast<size_t>(likely)]) likely = c;
          total += std::exp(log_q);
          noisy += std::exp(lattice.log_q(d, row)[at]);
        }
        EXPECT_NEAR(total, noisy, 1e-5);
        changed[drawn == likely ? 0 : 1] += 1;
        const auto child = std::find_if(tree.begin(), tree.end(),
                                        [&](const Draft& t) { return t.parent == node; });
        if (child == tree.end()) break;
        EXPECT_EQ(child->token, plain.token(d, drawn));
        node = static_cast<int32_t>(child - tree.begin());
        parent = drawn;
      }
    }
  }
  EXPECT_GT(changed[1], 200);
}

}  // namespace
}  // namespace braid
