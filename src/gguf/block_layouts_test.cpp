// block_layouts_test.cpp -- block formats equal the reference implementation bit for bit.
#include "gguf/block_layouts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gguf/block_vectors_test.h"
#include "gguf/half.h"
#include "gguf/iq_grids.h"
#include "gguf/test_hashes_test.h"

namespace braid {
namespace {

std::vector<uint8_t> lcg(uint32_t seed, size_t count) {
  std::vector<uint8_t> out(count);
  for (auto& byte : out) {
    seed = seed * 1664525u + 1013904223u;
    byte = static_cast<uint8_t>(seed >> 24);
  }
  return out;
}

std::vector<uint8_t> from_hex(const std::string& hex) {
  std::vector<uint8_t> out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    out.push_back(static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return out;
}

std::string to_hex(const std::vector<uint8_t>& bytes) {
  std::string out;
  for (const uint8_t b : bytes) {
    out += "0123456789abcdef"[b >> 4];
    out += "0123456789abcdef"[b & 15];
  }
  return out;
}

GgmlType type_named(const char* name) {
  const GgmlTypeInfo* info = find_ggml_type(std::string_view(name));
  EXPECT_NE(info, nullptr) << name;
  return info->type;
}

std::vector<float> decode(GgmlType type, const std::vector<uint8_t>& row) {
  std::vector<float> out(row.size() / block_bytes(type) * block_elems(type));
  decode_row(type, row.data(), out.data(), static_cast<int64_t>(out.size()));
  return out;
}

std::vector<uint8_t> encode(GgmlType type, const std::vector<float>& row) {
  std::vector<uint8_t> out(row.size() / block_elems(type) * block_bytes(type));
  encode_row(type, row.data(), out.data(), static_cast<int64_t>(row.size()));
  return out;
}

struct ScaleFields {
  int d = -1;
  int min = -1;
};
ScaleFields scale_fields(GgmlType type) {
  switch (type) {
    case GgmlType::Q4_1:
    case GgmlType::Q5_1:
    case GgmlType::Q4_K:
    case GgmlType::Q5_K:
      return {0, 2};
    case GgmlType::Q2_K:
      return {80, 82};
    case GgmlType::Q3_K:
      return {108, -1};
    case GgmlType::Q6_K:
      return {208, -1};
    case GgmlType::TQ1_0:
      return {52, -1};
    case GgmlType::TQ2_0:
      return {64, -1};
    case GgmlType::Q8_K:
    case GgmlType::MXFP4:
    case GgmlType::NVFP4:
    case GgmlType::IQ1_M:
      return {};
    default:
      return {0, -1};
  }
}

void put16(std::vector<uint8_t>& block, int at, uint16_t value) {
  std::memcpy(block.data() + at, &value, 2);
}

std::vector<uint8_t> vector_block(GgmlType type) {
  std::vector<uint8_t> block = lcg(1, block_bytes(type));
  const ScaleFields fields = scale_fields(type);
  if (fields.d >= 0) put16(block, fields.d, 0x2c00);
  if (fields.min >= 0) put16(block, fields.min, 0x3000);
  const float d = 0.0625f;
  if (type == GgmlType::Q8_K) std::memcpy(block.data(), &d, 4);
  if (type == GgmlType::MXFP4) block[0] = 0x7d;
  if (type == GgmlType::NVFP4) {
    const uint8_t scales[] = {0x38, 0x41, 0x2f, 0x07};
    std::memcpy(block.data(), scales, 4);
  }
  if (type == GgmlType::IQ1_M) {
    for (int k = 0; k < 4; ++k) {
      uint8_t& high = block[static_cast<size_t>(49 + 2 * k)];
      high = static_cast<uint8_t>((high & 15) | (0x2c00 >> 4 * k & 15) << 4);
    }
  }
  return block;
}

TEST(Decode, EveryBlockTypeMatchesItsReference) {
  for (const DecodeVector& v : kDecodeVectors) {
    const GgmlType type = type_named(v.type);
    const std::vector<uint8_t> block = vector_block(type);
    EXPECT_EQ(crc32(block.data(), block.size()), v.crc_in) << v.type;
    std::vector<float> y = decode(type, block);
    double sum = 0;
    for (float& value : y) {
      value += 0.0f;
      sum += value;
    }
    EXPECT_EQ(crc32(y.data(), y.size() * 4), v.crc_out) << v.type;
    EXPECT_EQ(sum, v.sum) << v.type;
    EXPECT_EQ(y.front(), v.first) << v.type;
    EXPECT_EQ(y.back(), v.last) << v.type;
  }
}

TEST(Decode, ElementsOfExplicitBlocks) {
  for (const ElementVector& v : kElementVectors) {
    const GgmlType type = type_named(v.type);
    const std::vector<uint8_t> block = from_hex(v.block);
    ASSERT_EQ(block.size(), block_bytes(type)) << v.type;
    const std::vector<float> y = decode(type, block);
    for (const auto& [at, value] : v.values)
      EXPECT_EQ(y[static_cast<size_t>(at)], value) << v.type << " [" << at << "]";
  }
}

TEST(Decode, ZeroBlocksAreZeroOrTheirLowestCode) {
  for (const GgmlTypeInfo& info : ggml_types()) {
    const std::vector<float> y = decode(info.type, std::vector<uint8_t>(info.block_bytes));
    for (const float value : y) {
      // Zero bytes mean scale 0, except in mxfp4, whose scale 2^-127 multiplies code 0.
      EXPECT_EQ(value, 0.0f) << info.name;
    }
  }
}

TEST(Decode, PlainTypes) {
  const int16_t shorts[] = {-3, 32767};
  float y[2];
  decode_row(GgmlType::I16, shorts, y, 2);
  EXPECT_EQ(y[0], -3.0f);
  EXPECT_EQ(y[1], 32767.0f);
  const double doubles[] = {0.1, -2.5};
  decode_row(GgmlType::F64, doubles, y, 2);
  EXPECT_EQ(y[0], 0.1f);
  EXPECT_EQ(y[1], -2.5f);
}

TEST(Grids, MembershipMatchesTheirHashes) {
  const IqGrids& g = iq_grids();
  EXPECT_EQ(sha256_hex(&g.g2xxs, sizeof(g.g2xxs)),
            "05826b5d3e472a3a78f196be62ac78acf81df0f909626e12ab9fa2a5d490dd54");
  EXPECT_EQ(sha256_hex(&g.g2xs, sizeof(g.g2xs)),
            "06e47aaca60b4dc1d9b5a3f34540437058a6b142b4d7a59d5ded769b4d1bf1de");
  EXPECT_EQ(sha256_hex(&g.g2s, sizeof(g.g2s)),
            "e1aa1473412b0552c2174c30ef22ab4073f6a181b85a17056e8249bd2932fd88");
  EXPECT_EQ(sha256_hex(&g.g3xxs, sizeof(g.g3xxs)),
            "46e35f5a997efdee6c99ce57854c8a0d4f0ff8ca57e5e8a60c0793ea580acf5d");
  EXPECT_EQ(sha256_hex(&g.g3s, sizeof(g.g3s)),
            "bd1af4945a1717c65610b0284e4628b9a1ba3b306fae3a06f6e5f597356e349f");
  EXPECT_EQ(sha256_hex(&g.g1, sizeof(g.g1)),
            "07540ffc1aeaf6ad4d97e96b0fcc765aae39671d4ae4a27bbd0e796fde167c6a");
}

TEST(Encode, BlocksMatchTheReference) {
  std::vector<float> input(256);
  for (int i = 0; i < 256; ++i)
    input[static_cast<size_t>(i)] = static_cast<float>((i * 37 + 11) % 101 - 50) / 16.0f;
  ASSERT_EQ(crc32(input.data(), 1024), 0x2babe2e0u);
  for (const EncodeVector& v : kEncodeVectors) {
    const GgmlType type = type_named(v.type);
    const std::vector<float> x(input.begin(), input.begin() + block_elems(type));
    EXPECT_EQ(to_hex(encode(type, x)), v.block) << v.type;
  }
}

std::vector<float> row_of_4096() {
  const std::vector<uint8_t> bytes = lcg(12345, 4 * 4096);
  std::vector<float> x(4096);
  for (size_t i = 0; i < x.size(); ++i) {
    const int sum = bytes[4 * i] + bytes[4 * i + 1] + bytes[4 * i + 2] + bytes[4 * i + 3];
    x[i] = static_cast<float>(sum - 510) / 4096.0f;
  }
  return x;
}

double rms_error(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

TEST(Encode, RowsMatchTheReferenceAndItsError) {
  const std::vector<float> x = row_of_4096();
  ASSERT_EQ(crc32(x.data(), x.size() * 4), 0x340a29abu);
  int compared = 0;
  for (const RowVector& v : kRowVectors) {
    const GgmlType type = type_named(v.type);
    if (!can_encode(type)) continue;
    const std::vector<uint8_t> row = encode(type, x);
    EXPECT_EQ(row.size(), v.bytes) << v.type;
    EXPECT_EQ(crc32(row.data(), row.size()), v.crc) << v.type;
    EXPECT_LE(rms_error(decode(type, row), x), v.rmse * 1.01) << v.type;
    ++compared;
  }
  EXPECT_EQ(compared, 16);
}

TEST(Encode, EdgeInputsGiveBlocksThatDecodeOrAreRefused) {
  for (const GgmlTypeInfo& info : ggml_types()) {
    if (!can_encode(info.type)) continue;
    for (const float edge :
         {0.0f, 1.0f, -1.0f, 65504.0f, -65504.0f, 1e-7f, -3e-8f, 1e-40f, -1e-45f, 3.4e38f}) {
      for (const bool spike : {false, true}) {
        std::vector<float> x(info.block_elems, spike ? 0.0f : edge);
        x[x.size() / 2] = edge;
        const std::vector<uint8_t> row = encode(info.type, x);
        if (find_invalid_block(info.type, row.data(), static_cast<int64_t>(x.size()))) continue;
        for (const float y : decode(info.type, row))
          EXPECT_TRUE(std::isfinite(y)) << info.name << " " << edge;
      }
    }
  }
}

TEST(Encode, ConstantsAndSpikesKeepTheirValue) {
  for (const GgmlType type : {GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::Q5_0, GgmlType::Q4_K,
                              GgmlType::Q5_K, GgmlType::Q6_K, GgmlType::IQ4_NL, GgmlType::MXFP4,
                              GgmlType::NVFP4, GgmlType::Q4_1, GgmlType::Q5_1}) {
    for (const float value : {0.0f, 2.0f, -2.0f}) {
      const std::vector<float> x(block_elems(type), value);
      for (const float y : decode(type, encode(type, x)))
        EXPECT_NEAR(y, value, 0.05 * std::fabs(value)) << type_name(type);
      std::vector<float> spike(block_elems(type));
      spike[5] = value;
      const std::vector<float> y = decode(type, encode(type, spike));
      EXPECT_NEAR(y[5], value, 0.05 * std::fabs(value)) << type_name(type);
      EXPECT_NEAR(y[6], 0.0f, 0.05 * std::fabs(value)) << type_name(type);
    }
  }
}

TEST(Encode, EncodingDecodedQ8BlocksChangesNothing) {
  const std::vector<uint8_t> once = encode(GgmlType::Q8_0, row_of_4096());
  EXPECT_EQ(encode(GgmlType::Q8_0, decode(GgmlType::Q8_0, once)), once);
}

TEST(Encode, ATensorScaleKeepsSmallNvfp4WeightsAccurate) {
  const std::vector<float> base = row_of_4096();  // rms 0.0358
  for (const float rms : {0.1f, 0.01f, 0.001f}) {
    std::vector<float> x = base;
    float most = 0;
    for (float& v : x) {
      v *= rms / 0.035831f;
      most = std::max(most, std::fabs(v));
    }
    const float scale = nvfp4_tensor_scale(most);
    std::vector<uint8_t> row(4096 / 64 * 36);
    encode_nvfp4_scaled(x.data(), row.data(), 4096, scale);
    std::vector<float> y = decode(GgmlType::NVFP4, row);
    for (float& v : y) v *= scale;
    EXPECT_LE(rms_error(x, y), 0.1 * rms) << rms;
  }
}

TEST(Validate, InfiniteAndNanScalesAreFound) {
  for (const GgmlTypeInfo& info : ggml_types()) {
    if (info.block_elems == 1) continue;
    const int64_t n = 3 * static_cast<int64_t>(info.block_elems);
    const std::vector<uint8_t> good = vector_block(info.type);
    std::vector<uint8_t> row;
    for (int i = 0; i < 3; ++i) row.insert(row.end(), good.begin(), good.end());
    const ScaleFields fields = scale_fields(info.type);
    EXPECT_FALSE(find_invalid_block(info.type, row.data(), n)) << info.name;
    for (const int field : {fields.d, fields.min}) {
      for (const uint16_t bad : {0x7c00, 0xfc00, 0x7e01}) {
        if (field < 0) continue;
        std::vector<uint8_t> broken = row;
        put16(broken, static_cast<int>(info.block_bytes) + field, bad);
        EXPECT_EQ(find_invalid_block(info.type, broken.data(), n), 1) << info.name;
      }
    }
  }
  const float floats[] = {1.0f, 2.0f, std::numeric_limits<float>::infinity()};
  EXPECT_EQ(find_invalid_block(GgmlType::F32, floats, 3), 2);
  EXPECT_FALSE(all_finite(floats, 3));
  EXPECT_TRUE(all_finite(floats, 2));
  const uint16_t bf16[] = {0x3f80, 0x7fc0};
  EXPECT_EQ(find_invalid_block(GgmlType::BF16, bf16, 2), 1);
  uint8_t mxfp4[17] = {0xff};
  EXPECT_EQ(find_invalid_block(GgmlType::MXFP4, mxfp4, 32), 0);
  uint8_t iq1_m[56] = {};
  iq1_m[53] = 0xc0;  // third and fourth nibble of 0x7c00
  iq1_m[55] = 0x70;
  EXPECT_EQ(find_invalid_block(GgmlType::IQ1_M, iq1_m, 256), 0);
}

TEST(Types, TableMatchesItself) {
  for (const GgmlTypeInfo& info : ggml_types()) {
    EXPECT_EQ(find_ggml_type(static_cast<uint32_t>(info.type)), &info);
    EXPECT_EQ(find_ggml_type(info.name), &info);
  }
  for (const uint32_t removed : {4u, 5u, 31u, 32u, 33u, 36u, 37u, 38u, 43u, 99u, 0xffffffffu}) {
    EXPECT_EQ(find_ggml_type(removed), nullptr) << removed;
  }
  EXPECT_EQ(find_ggml_type("Q4_k")->type, GgmlType::Q4_K);
  EXPECT_EQ(row_bytes(GgmlType::Q6_K, 512), 420u);
  EXPECT_FALSE(row_bytes(GgmlType::Q6_K, 511));
  EXPECT_FALSE(row_bytes(GgmlType::F64, uint64_t{1} << 62));
}

}  // namespace
}  // namespace braid
