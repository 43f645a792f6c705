// safetensors_test.cpp -- good headers are read, and all others give an error message.
#include "gguf/safetensors.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "gguf/block_layouts.h"

namespace braid {
namespace {

using Bytes = std::vector<std::byte>;

Bytes file_of(const std::string& header, size_t data_bytes) {
  Bytes out(8 + header.size() + data_bytes);
  const uint64_t length = header.size();
  std::memcpy(out.data(), &length, 8);
  std::memcpy(out.data() + 8, header.data(), header.size());
  for (size_t i = 0; i < data_bytes; ++i) out[8 + header.size() + i] = static_cast<std::byte>(i);
  return out;
}

constexpr const char* kGood =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
    R"("a":{"shape":[],"data_offsets":[0,4],"dtype":"F32"},"none":{"dtype":"I64","shape":[0,7],"data_offsets":[16,16]}}  )";

TEST(Safetensors, ReadsTensorsInTheOrderOfTheirData) {
  const Bytes bytes = file_of(kGood, 16);
  const auto file = SafetensorsFile::parse(bytes, "good");
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 3u);
  EXPECT_EQ(file->tensors()[0].name, "a");
  EXPECT_EQ(file->tensors()[0].elems(), 1u);
  const SafetensorsTensor* b = file->tensor("b").value();
  EXPECT_EQ(b->dtype, SafetensorsDtype::BF16);
  EXPECT_EQ(b->shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(b->elems(), 6u);
  EXPECT_EQ(b->data[0], std::byte{4});
  ASSERT_EQ(b->ggml_type(), GgmlType::BF16);
  EXPECT_EQ(file->tensor("none").value()->elems(), 0u);
  EXPECT_EQ(file->find_tensor("c"), nullptr);
  EXPECT_EQ(file->tensor("c").error().message, "good: the tensor \"c\" is missing");
  ASSERT_EQ(file->metadata().size(), 1u);
  EXPECT_EQ(file->metadata()[0].second, "pt");
}

void expect_refused(const std::string& words, const Bytes& bytes) {
  const auto file = SafetensorsFile::parse(bytes, "bad");
  ASSERT_FALSE(file.ok()) << words;
  EXPECT_NE(file.error().message.find(words), std::string::npos)
      << "wanted: " << words << "\ngot: " << file.error().message;
  EXPECT_EQ(file.error().message.rfind("bad: ", 0), 0u);
}

TEST(Safetensors, BrokenHeadersAreRefused) {
  expect_refused("shorter than 8", Bytes(7));
  expect_refused("claims a header of", Bytes(8, std::byte{0xff}));
  Bytes cut = file_of(kGood, 0);
  cut.resize(40);
  expect_refused("claims a header of", cut);
  expect_refused("not JSON", file_of("", 0));
  expect_refused("not JSON", file_of("{", 0));
  expect_refused("not JSON", file_of("{} x", 0));
  expect_refused("not JSON", file_of("{\"\xff\":1}", 0));
  expect_refused("a NUL byte", file_of(std::string("{}\0", 3), 0));
  expect_refused("an unexpected array", file_of("[]", 0));
  expect_refused("an unexpected array", file_of(std::string(100000, '['), 0));
  expect_refused("an unexpected number", file_of("3", 0));
  expect_refused("an unexpected string", file_of(R"("x")", 0));
  expect_refused("an unexpected number", file_of(R"({"a":3})", 0));
  expect_refused("an unexpected object", file_of(R"({"a":{"dtype":{}}})", 0));
  expect_refused("unknown field \"extra\"", file_of(R"({"a":{"extra":1}})", 0));
  expect_refused("a field twice", file_of(R"({"a":{"shape":[],"shape":[]}})", 0));
  expect_refused("an unexpected array", file_of(R"({"a":{"shape":[[1]]}})", 0));
  expect_refused("a negative number", file_of(R"({"a":{"shape":[-1]}})", 0));
  expect_refused("fractional or huge", file_of(R"({"a":{"shape":[1.5]}})", 0));
  expect_refused("fractional or huge", file_of(R"({"a":{"shape":[99999999999999999999]}})", 0));
  expect_refused("more than 8 numbers", file_of(R"({"a":{"shape":[1,1,1,1,1,1,1,1,1]}})", 0));
  expect_refused("a null", file_of(R"({"__metadata__":{"x":null}})", 0));
  expect_refused("an unexpected array", file_of(R"({"__metadata__":{"x":[]}})", 0));
}

TEST(Safetensors, BrokenTensorsAreRefused) {
  const auto one = [](const std::string& fields, size_t data_bytes = 4) {
    return file_of("{\"a\":{" + fields + "}}", data_bytes);
  };
  expect_refused("lacks", one(R"("dtype":"F32","shape":[1])"));
  expect_refused("lacks", file_of(R"({"a":{}})", 0));
  expect_refused("unknown dtype \"F99\"", one(R"("dtype":"F99","shape":[1],"data_offsets":[0,4])"));
  expect_refused("not two numbers", one(R"("dtype":"F32","shape":[1],"data_offsets":[0])"));
  expect_refused("lies at 4 to 0", one(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"));
  expect_refused("lies at 0 to 8", one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"));
  expect_refused("not the size of its shape",
                 one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"));
  expect_refused("not the size of its shape",
                 one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])", 0));
  expect_refused("starts at byte 4", one(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])", 8));
  expect_refused("4 bytes follow", one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])", 8));
  expect_refused("starts at byte 0",
                 file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                         R"("b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
                         4));
  expect_refused("\"a\" occurs twice",
                 file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                         R"("a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                         8));
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const Bytes good = file_of(kGood, 16);
  for (size_t size = 0; size < good.size(); ++size) {
    const Bytes cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_FALSE(SafetensorsFile::parse(cut, "cut").ok()) << size;
  }
}

TEST(Safetensors, OpenMapsAndKeeps) {
  const std::string path = ::testing::TempDir() + "braid_safetensors_test";
  const Bytes bytes = file_of(kGood, 16);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  auto opened = SafetensorsFile::open(path);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const SafetensorsFile file = std::move(opened).value();
  float values[6];
  const SafetensorsTensor* b = file.tensor("b").value();
  decode_row(*b->ggml_type(), b->data.data(), values, 6);
  EXPECT_EQ(values[0], std::bit_cast<float>(0x05040000u));  // data bytes count from 4: bf16 0x0504
  std::remove(path.c_str());
  EXPECT_EQ(SafetensorsFile::open(path).error().kind, ErrorKind::not_found);
}

}  // namespace
}  // namespace braid
