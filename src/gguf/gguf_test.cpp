// gguf_test.cpp -- good files read back as written, and each kind of damage gives an error message.
#include "gguf/gguf.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "gguf/gguf_writer.h"
#include "gguf/test_hashes_test.h"

namespace braid {
namespace {

using Bytes = std::vector<std::byte>;

constexpr const char* kToyHex =
    "474755460300000002000000000000000400000000000000140000000000000067656e6572616c2e61726368697465"
    "6374757265"
    "080000000300000000"
    "000000746f79110000000000000067656e6572616c2e616c69676e6d656e7404000000200000000700000000000000"
    "746f792e69"
    "647309000000050000"
    "00020000000000000007000000ffffffff0600000000000000746f792e6f6e07000000010800000000000000612e77"
    "6569676874"
    "010000000200000000"
    "00000000000000000000000000000008"
    "00000000000000622e7765696768740200000020000000000000000100000000000000080000002000000000000000"
    "0000000000"
    "00000000000000803f"
    "000000c0000000000000000000000000000000000000000000000000002c81b40c5ec68e04a3406c97d63cfbdc53ae"
    "88371a1251"
    "21b5956143c0ee2d55"
    "fb000000000000000000000000000000000000000000000000000000000000";

Bytes toy() {
  Bytes out;
  const std::string hex = kToyHex;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    out.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return out;
}

template <typename T>
void put(Bytes& bytes, size_t at, T value) {
  ASSERT_LE(at + sizeof(T), bytes.size());
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

size_t position_of(const Bytes& bytes, const std::string& text) {
  const std::string all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const size_t at = all.find(text);
  EXPECT_NE(at, std::string::npos) << text;
  return at;
}

size_t b_record(const Bytes& bytes) { return position_of(bytes, "b.weight") + 8; }
constexpr size_t kDim0 = 4, kDim1 = 12, kType = 20, kOffset = 24;

std::string error_of(const Bytes& bytes) {
  const auto file = GgufFile::parse(bytes, "toy");
  return file.ok() ? "" : file.error().message;
}

void expect_refused(const std::string& words, const std::function<void(Bytes&)>& change) {
  Bytes bytes = toy();
  change(bytes);
  const std::string message = error_of(bytes);
  EXPECT_NE(message.find(words), std::string::npos) << "wanted: " << words << "\ngot: " << message;
  EXPECT_EQ(message.rfind("toy: ", 0), 0u) << message;
}

std::string temporary(const std::string& name) {
  return ::testing::TempDir() + "braid_gguf_test_" + name;
}

void write_bytes(const std::string& path, const Bytes& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
}

TEST(Gguf, ReadsTheToyFile) {
  const Bytes bytes = toy();
  ASSERT_EQ(bytes.size(), 352u);
  ASSERT_EQ(crc32(bytes.data(), bytes.size()), 0x56d9c7c6u);
  const auto file = GgufFile::parse(bytes, "toy");
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->version(), 3u);
  EXPECT_EQ(file->alignment(), 32u);
  ASSERT_EQ(file->entries().size(), 4u);
  EXPECT_EQ(file->entries()[2].key, "toy.ids");
  EXPECT_EQ(file->get_string("general.architecture").value(), "toy");
  EXPECT_EQ(file->get_i32s("toy.ids").value(), (std::vector<int32_t>{7, -1}));
  EXPECT_TRUE(file->get_bool("toy.on").value());
  ASSERT_EQ(file->tensors().size(), 2u);
  const GgufTensor* a = file->tensor("a.weight").value();
  EXPECT_EQ(a->type, GgmlType::F32);
  EXPECT_EQ(a->n_dims, 1u);
  float values[2];
  std::memcpy(values, a->data.data(), 8);
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[1], -2.0f);
  const GgufTensor* b = file->tensor("b.weight").value();
  EXPECT_EQ(b->type, GgmlType::Q8_0);
  EXPECT_EQ(b->n_dims, 2u);
  EXPECT_EQ(b->ne[0], 32u);
  EXPECT_EQ(b->data.size(), 34u);
  EXPECT_EQ(b->data.data(), bytes.data() + 288);
  EXPECT_EQ(file->find_tensor("c.weight"), nullptr);
}

TEST(Gguf, WritingWhatWasReadGivesTheSameBytes) {
  const Bytes bytes = toy();
  const auto file = GgufFile::parse(bytes, "toy");
  ASSERT_TRUE(file.ok());
  GgufWriter writer;
  writer.copy_metadata(*file);
  for (const GgufTensor& t : file->tensors())
    writer.add_tensor(t.name, t.type, t.n_dims, t.ne, t.data);
  EXPECT_EQ(writer.file_bytes(), 352u);
  EXPECT_EQ(writer.to_bytes(), bytes);
}

TEST(Gguf, Version2IsTheSame) {
  Bytes bytes = toy();
  put<uint32_t>(bytes, 4, 2);
  EXPECT_EQ(error_of(bytes), "");
}

TEST(Gguf, BrokenFilesAreRefusedWithAReason) {
  expect_refused("is not a GGUF file", [](Bytes& b) { b[0] = std::byte{'g'}; });
  expect_refused("is not a GGUF file", [](Bytes& b) { b.clear(); });
  for (const uint32_t version : {0u, 1u, 4u}) {
    expect_refused("is not supported", [&](Bytes& b) { put(b, 4, version); });
  }
  expect_refused("big-endian", [](Bytes& b) { put<uint32_t>(b, 4, 0x03000000); });
  expect_refused("tensors, more than fit", [](Bytes& b) { put<uint64_t>(b, 8, 14); });
  expect_refused("tensors, more than fit",
                 [](Bytes& b) { put<uint64_t>(b, 8, uint64_t{1} << 63); });
  expect_refused("keys, more than fit", [](Bytes& b) { put<uint64_t>(b, 16, ~uint64_t{0}); });
  expect_refused("\"a.weight\" occurs twice",
                 [](Bytes& b) { b[position_of(b, "b.weight")] = std::byte{'a'}; });
  expect_refused("\"toy.on\" occurs twice", [](Bytes& b) {
    GgufWriter writer;
    writer.set_u8("toy.on", 1);
    writer.set_u8("toy.xn", 1);
    b = writer.to_bytes();
    b[position_of(b, "toy.xn") + 4] = std::byte{'o'};
  });
  expect_refused("is empty", [](Bytes& b) {
    GgufWriter writer;
    writer.set_u8("a", 1);
    b = writer.to_bytes();
    put<uint64_t>(b, 24, 0);
  });
  expect_refused("NUL", [](Bytes& b) { b[position_of(b, "toy.on")] = std::byte{0}; });
  expect_refused("NUL", [](Bytes& b) { b[position_of(b, "b.weight")] = std::byte{0}; });
  expect_refused("unknown type 13",
                 [](Bytes& b) { put<uint32_t>(b, position_of(b, "toy.on") + 6, 13); });
  expect_refused("neither 0 nor 1",
                 [](Bytes& b) { b[position_of(b, "toy.on") + 10] = std::byte{2}; });
  expect_refused("claims", [](Bytes& b) {
    put<uint64_t>(b, position_of(b, "general.architecture") - 8, 400);
  });
  expect_refused("elements, more than fit", [](Bytes& b) {
    put<uint64_t>(b, position_of(b, "toy.ids") + 7 + 4 + 4, uint64_t{1} << 62);
  });
}

TEST(Gguf, BrokenAlignmentsAreRefused) {
  for (const uint32_t alignment : {0u, 1u, 4u, 24u, 33u, 1u << 21, ~0u}) {
    expect_refused("not a power of two from 8", [&](Bytes& b) {
      put(b, position_of(b, "general.alignment") + 17 + 4, alignment);
    });
  }
  expect_refused("is not a u32",
                 [](Bytes& b) { put<uint32_t>(b, position_of(b, "general.alignment") + 17, 5); });
}

TEST(Gguf, BrokenTensorsAreRefused) {
  for (const uint32_t type : {4u, 5u, 31u, 36u, 43u, 99u, ~0u}) {
    expect_refused("unknown type", [&](Bytes& b) { put(b, b_record(b) + kType, type); });
  }
  for (const uint64_t offset : {uint64_t{0}, uint64_t{33}, uint64_t{64}, ~uint64_t{31}}) {
    expect_refused("is stored at offset", [&](Bytes& b) { put(b, b_record(b) + kOffset, offset); });
  }
  expect_refused("not a multiple of the 32",
                 [](Bytes& b) { put<uint64_t>(b, b_record(b) + kDim0, 33); });
  expect_refused("more than 4", [](Bytes& b) { put<uint32_t>(b, b_record(b), 5); });
  expect_refused("a dimension of 0", [](Bytes& b) { put<uint64_t>(b, b_record(b) + kDim1, 0); });
  expect_refused("a dimension of",
                 [](Bytes& b) { put<uint64_t>(b, b_record(b) + kDim1, uint64_t{1} << 63); });
  expect_refused("64 bits can count", [](Bytes& b) {
    put(b, b_record(b) + kDim0, uint64_t{1} << 40);
    put(b, b_record(b) + kDim1, uint64_t{1} << 40);
  });
  expect_refused("is incomplete", [](Bytes& b) { put<uint64_t>(b, b_record(b) + kDim1, 1000); });
  expect_refused("is incomplete", [](Bytes& b) { b.resize(256); });
  expect_refused("1 to 63", [](Bytes& b) { put<uint64_t>(b, position_of(b, "b.weight") - 8, 64); });
  expect_refused("1 to 63", [](Bytes& b) { put<uint64_t>(b, position_of(b, "b.weight") - 8, 0); });
}

TEST(Gguf, TheLastPaddingMayBeMissing) {
  Bytes bytes = toy();
  bytes.resize(352 - 30);
  EXPECT_EQ(error_of(bytes), "");
  bytes.resize(352 - 31);
  EXPECT_NE(error_of(bytes), "");
}

TEST(Gguf, EveryTruncationIsRefused) {
  const Bytes bytes = toy();
  for (size_t size = 0; size < 352 - 30; ++size) {
    const Bytes cut(bytes.begin(),
                    // exact size, for the sanitizer
                    bytes.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_NE(error_of(cut), "") << size;
  }
}

// For sanitizer builds.
TEST(Gguf, RandomDamageNeverCrashes) {
  const Bytes good = toy();
  uint32_t state = 7;
  const auto random = [&] { return (state = state * 1664525u + 1013904223u) >> 8; };
  size_t accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    Bytes bytes = good;
    for (uint32_t flips = random() % 4 + 1; flips > 0; --flips) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random() & 255);
    }
    const auto file = GgufFile::parse(bytes, "toy");
    if (!file.ok()) continue;
    ++accepted;
    for (const GgufTensor& t : file->tensors())
      EXPECT_EQ(t.data.size(), t.bytes_per_row() * t.rows());
    for (const GgufEntry& e : file->entries()) (void)file->get_strings(e.key);
  }
  EXPECT_GT(accepted, 1000u);  // changed values leave the structure valid
  EXPECT_LT(accepted, 19000u);
}

TEST(Gguf, AFileWithoutTensorsNeedsNoPadding) {
  GgufWriter writer;
  writer.set_string("general.architecture", "toy");
  Bytes bytes = writer.to_bytes();
  bytes.resize(24 + 8 + 20 + 4 + 8 + 3);
  EXPECT_EQ(error_of(bytes), "");
}

Bytes nested(int depth) {
  GgufWriter writer;
  writer.set_u8("a", 1);
  Bytes bytes = writer.to_bytes();
  bytes.resize(24 + 8 + 1);
  const auto append = [&](auto value) {
    const size_t at = bytes.size();
    bytes.resize(at + sizeof(value));
    std::memcpy(bytes.data() + at, &value, sizeof(value));
  };
  append(uint32_t{9});
  for (int i = 1; i < depth; ++i) {
    append(uint32_t{9});
    append(uint64_t{1});
  }
  append(uint32_t{0});
  append(uint64_t{1});
  append(uint8_t{42});
  return bytes;
}

TEST(Gguf, ArraysOfArraysAreReadToDepthFourAndNotWritten) {
  for (int depth = 1; depth <= 4; ++depth) EXPECT_EQ(error_of(nested(depth)), "") << depth;
  EXPECT_NE(error_of(nested(5)).find("more than 4 deep"), std::string::npos);
  EXPECT_NE(error_of(nested(1000)).find("more than 4 deep"), std::string::npos);
  const Bytes bytes = nested(2);
  const auto file = GgufFile::parse(bytes, "nested");
  EXPECT_FALSE(file->get_u32s("a").ok());
  EXPECT_FALSE(file->get_strings("a").ok());
  GgufWriter writer;
  writer.copy_metadata(*file);
  EXPECT_FALSE(writer.has("a"));
}

TEST(GgufValues, EveryTypeComesBack) {
  GgufWriter writer;
  writer.set_u8("u8", 200);
  writer.set_i8("i8", -100);
  writer.set_u16("u16", 60000);
  writer.set_i16("i16", -30000);
  writer.set_u32("u32", 4000000000);
  writer.set_i32("i32", -2000000000);
  writer.set_u64("u64", 5);
  writer.set_i64("i64", -5);
  writer.set_f32("f32", 0.5f);
  writer.set_f64("f64", 0.1);
  writer.set_bool("bool", false);
  writer.set_string("string", std::string_view("a\0b", 3));
  const std::string_view strings[] = {"x", "", "long enough to be different"};
  writer.set_strings("strings", strings);
  const float floats[] = {1.5f, -2.5f};
  writer.set_f32s("floats", floats);
  const uint32_t numbers[] = {1, 4000000000};
  writer.set_u32s("numbers", numbers);
  writer.set_u32s("empty", {});
  const Bytes bytes = writer.to_bytes();
  const auto file = GgufFile::parse(bytes, "values");
  ASSERT_TRUE(file.ok()) << file.error().message;

  EXPECT_EQ(file->get_u32("u8").value(), 200u);
  EXPECT_EQ(file->get_i32("i8").value(), -100);
  EXPECT_EQ(file->get_u32("u16").value(), 60000u);
  EXPECT_EQ(file->get_i32("i16").value(), -30000);
  EXPECT_EQ(file->get_u32("u32").value(), 4000000000u);
  EXPECT_EQ(file->get_i32("i32").value(), -2000000000);
  EXPECT_EQ(file->get_u32("u64").value(), 5u);
  EXPECT_EQ(file->get_u64("u64").value(), 5u);
  EXPECT_EQ(file->get_i32("i64").value(), -5);
  EXPECT_EQ(file->get_f32("f32").value(), 0.5f);
  EXPECT_EQ(file->get_f32("f64").value(), 0.1f);
  EXPECT_FALSE(file->get_bool("bool").value());
  EXPECT_EQ(file->get_string("string").value(), std::string_view("a\0b", 3));
  EXPECT_EQ(file->get_strings("strings").value(),
            std::vector<std::string_view>(std::begin(strings), std::end(strings)));
  EXPECT_EQ(file->get_f32s("floats").value(), (std::vector<float>{1.5f, -2.5f}));
  EXPECT_EQ(file->get_u32s("numbers").value(), (std::vector<uint32_t>{1, 4000000000}));
  EXPECT_TRUE(file->get_u32s("empty").value().empty());

  EXPECT_FALSE(file->get_u32("i8").ok());
  EXPECT_FALSE(file->get_i32("u32").ok());
  EXPECT_FALSE(file->get_u32("f32").ok());
  EXPECT_FALSE(file->get_f32("u32").ok());
  EXPECT_FALSE(file->get_bool("u8").ok());
  EXPECT_FALSE(file->get_string("strings").ok());
  EXPECT_FALSE(file->get_strings("string").ok());
  EXPECT_FALSE(file->get_i32s("numbers").ok());
  EXPECT_FALSE(file->get_u32s("u32").ok());
  EXPECT_FALSE(file->get_u32s("strings").ok());
}

TEST(GgufValues, MessagesNameFileAndKey) {
  const Bytes bytes = toy();
  const auto file = GgufFile::parse(bytes, "toy");
  EXPECT_EQ(file->get_u32("toy.heads").error().message,
            "toy: the metadata key \"toy.heads\" is missing");
  EXPECT_EQ(file->get_u32("toy.on").error().message,
            "toy: the metadata key \"toy.on\" is a bool, not an unsigned 32-bit integer");
  EXPECT_EQ(file->get_u32s("toy.ids").error().message,
            "toy: the metadata key \"toy.ids\" has an element (1) out of range for unsigned 32-bit "
            "integers");
  EXPECT_EQ(file->tensor("c.weight").error().message, "toy: the tensor \"c.weight\" is missing");
  EXPECT_EQ(file->get_u32("evil\x1b[31m").error().message,
            "toy: the metadata key \"evil?[31m\" is missing");
}

TEST(GgufValues, OptionalKeysMayBeAbsentButNotWrong) {
  const Bytes bytes = toy();
  const auto file = GgufFile::parse(bytes, "toy");
  EXPECT_FALSE(file->find_u32("toy.heads").value().has_value());
  EXPECT_EQ(file->find_bool("toy.on").value(), true);
  EXPECT_EQ(file->find_string("general.architecture").value(), "toy");
  EXPECT_FALSE(file->find_u32("toy.on").ok());
}

TEST(GgufValues, OneValueOrOnePerLayer) {
  GgufWriter writer;
  const uint32_t per_layer[] = {1, 2, 3};
  writer.set_u32("one", 7);
  writer.set_u32s("each", per_layer);
  writer.set_f32("real", 0.5f);
  const Bytes bytes = writer.to_bytes();
  const auto file = GgufFile::parse(bytes, "layers");
  EXPECT_EQ(file->get_u32_each("one", 3).value(), (std::vector<uint32_t>{7, 7, 7}));
  EXPECT_EQ(file->get_u32_each("each", 3).value(), (std::vector<uint32_t>{1, 2, 3}));
  EXPECT_EQ(file->get_u32_each("each", 2).value(), (std::vector<uint32_t>{1, 2}));
  EXPECT_FALSE(file->get_u32_each("each", 4).ok());
  EXPECT_FALSE(file->get_u32_each("none", 3).ok());
  EXPECT_EQ(file->get_f32_each("real", 2).value(), (std::vector<float>{0.5f, 0.5f}));
  EXPECT_FALSE(file->get_u32_each("one", size_t{1} << 40).ok());
}

TEST(GgufValues, SettingAKeyAgainKeepsItsPlace) {
  GgufWriter writer;
  writer.set_u32("a", 1);
  writer.set_u32("b", 2);
  writer.set_string("a", "new");
  const Bytes bytes = writer.to_bytes();
  const auto file = GgufFile::parse(bytes, "set");
  EXPECT_EQ(file->entries()[0].key, "a");
  EXPECT_EQ(file->get_string("a").value(), "new");
  writer.remove("a");
  EXPECT_FALSE(writer.has("a"));
  EXPECT_TRUE(writer.has("b"));
}

TEST(GgufValues, AQuarterOfAMillionStrings) {
  std::vector<std::string> owned;
  for (int i = 0; i < 250000; ++i) owned.push_back("token" + std::to_string(i));
  const std::vector<std::string_view> views(owned.begin(), owned.end());
  GgufWriter writer;
  writer.set_strings("tokens", views);
  const Bytes bytes = writer.to_bytes();
  const auto file = GgufFile::parse(bytes, "tokens");
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->get_strings("tokens").value(), views);
}

TEST(GgufFiles, OpenMapsAndKeeps) {
  const std::string path = temporary("toy.gguf");
  write_bytes(path, toy());
  auto opened = GgufFile::open(path);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const GgufFile file = std::move(opened).value();  // views survive a move
  EXPECT_EQ(file.get_string("general.architecture").value(), "toy");
  EXPECT_EQ(file.tensor("b.weight").value()->data[0], std::byte{0x00});
  EXPECT_EQ(file.tensor("b.weight").value()->data[1], std::byte{0x2c});
  EXPECT_EQ(file.file_bytes(), 352u);
  std::remove(path.c_str());
  EXPECT_EQ(GgufFile::open(path).error().kind, ErrorKind::not_found);
}

TEST(GgufFiles, WritingReplacesAWholeFileOrLeavesIt) {
  const std::string path = temporary("write.gguf");
  GgufWriter writer;
  writer.set_string("general.architecture", "toy");
  writer.add_tensor("t", GgmlType::F32, 1, {8, 1, 1, 1}, [](const ByteSink& sink) -> Status {
    const Bytes half(16, std::byte{1});
    BRAID_TRY(sink(half));
    return sink(half);
  });
  ASSERT_TRUE(writer.write_file(path).ok());
  const auto before = GgufFile::open(path);
  ASSERT_TRUE(before.ok());
  EXPECT_EQ(before->tensors()[0].data.size(), 32u);

  writer.add_tensor("u", GgmlType::F32, 1, {8, 1, 1, 1}, [](const ByteSink&) -> Status {
    return Error{ErrorKind::cancelled, "stop"};
  });
  EXPECT_EQ(writer.write_file(path).error().message, "stop");
  EXPECT_EQ(GgufFile::open(path)->tensors().size(), 1u);
  EXPECT_EQ(writer.write_file("/nonexistent/x.gguf").error().kind, ErrorKind::io);
  std::remove(path.c_str());
}

struct Shards {
  std::string prefix = temporary("split");
  std::string first = prefix + "-00001-of-00002.gguf";
  std::string second = prefix + "-00002-of-00002.gguf";
  uint16_t first_number = 0, second_number = 1, second_count = 2;
  int32_t total = 2;
  const char* second_tensor = "b";

  ~Shards() {
    std::remove(first.c_str());
    std::remove(second.c_str());
  }

  Result<GgufFile> open() {
    const Bytes data(32);
    GgufWriter one;
    one.set_string("general.architecture", "toy");
    one.set_u16("split.no", first_number);
    one.set_u16("split.count", 2);
    one.set_i32("split.tensors.count", total);
    one.add_tensor("a", GgmlType::F32, 1, {8, 1, 1, 1}, data);
    GgufWriter two;
    two.set_u16("split.no", second_number);
    two.set_u16("split.count", second_count);
    two.set_i32("split.tensors.count", total);
    two.add_tensor(second_tensor, GgmlType::F32, 1, {8, 1, 1, 1}, data);
    EXPECT_TRUE(one.write_file(first).ok());
    EXPECT_TRUE(two.write_file(second).ok());
    return GgufFile::open(first);
  }
};

TEST(GgufFiles, SplitFilesAreJoined) {
  Shards shards;
  const auto file = shards.open();
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_EQ(file->tensors().size(), 2u);
  EXPECT_EQ(file->tensor("b").value()->shard, 1u);
  EXPECT_EQ(file->mappings().size(), 2u);
  EXPECT_NE(GgufFile::open(shards.second).error().message.find("open the first part"),
            std::string::npos);
}

TEST(GgufFiles, SplitFilesThatDoNotBelongTogetherAreRefused) {
  const auto message = [](const std::function<void(Shards&)>& change) {
    Shards shards;
    change(shards);
    const auto file = shards.open();
    return file.ok() ? std::string() : file.error().message;
  };
  EXPECT_NE(message([](Shards& s) { s.first_number = 1; }).find("open the first part"),
            std::string::npos);
  EXPECT_NE(message([](Shards& s) { s.second_number = 0; }).find("\"split.no\" is 0, not 1"),
            std::string::npos);
  EXPECT_NE(message([](Shards& s) { s.second_count = 3; }).find("\"split.count\" is 3, not 2"),
            std::string::npos);
  EXPECT_NE(message([](Shards& s) { s.total = 3; }).find("hold 2 tensors"), std::string::npos);
  EXPECT_NE(message([](Shards& s) { s.total = -1; }).find("hold 2 tensors"), std::string::npos);
  EXPECT_NE(message([](Shards& s) { s.second_tensor = "a"; }).find("\"a\" occurs twice"),
            std::string::npos);
  Shards shards;
  ASSERT_TRUE(shards.open().ok());
  std::remove(shards.second.c_str());
  EXPECT_EQ(GgufFile::open(shards.first).error().kind, ErrorKind::not_found);
  const std::string renamed = temporary("renamed.gguf");
  ASSERT_EQ(std::rename(shards.first.c_str(), renamed.c_str()), 0);
  EXPECT_NE(GgufFile::open(renamed).error().message.find("does not end in -00001-of-00002.gguf"),
            std::string::npos);
  std::remove(renamed.c_str());
}

}  // namespace
}  // namespace braid
