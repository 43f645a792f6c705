// safetensors.cpp -- parses the header by events, without storing nested, repeated or large parts.
#include "gguf/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>

#include "base/checked.h"
#include "gguf/gguf_text.h"

namespace braid {

namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxRecords = 1 << 20;
constexpr size_t kMaxRank = 8;

struct DtypeInfo {
  std::string_view name;
  uint32_t bytes;
};
constexpr DtypeInfo kDtypes[] = {{"BOOL", 1},    {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1},
                                 {"F8_E5M2", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
                                 {"BF16", 2},    {"U32", 4}, {"I32", 4}, {"F32", 4},
                                 {"U64", 8},     {"I64", 8}, {"F64", 8}};

struct Record {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> offsets;
  bool has_dtype = false, has_shape = false, has_offsets = false;
};

class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<Record> records;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::string error;

  bool start_object(size_t) override {
    if (depth_ == 0) return depth_ = 1, true;
    if (depth_ == 1) return depth_ = 2, true;
    return stop("an unexpected object");
  }
  bool end_object() override {
    --depth_;
    return true;
  }

  bool key(std::string& key) override {
    if (depth_ == 1) {
      in_metadata_ = key == "__metadata__";
      if (in_metadata_) return true;
      if (records.size() >= kMaxRecords) return stop("too many tensors");
      records.emplace_back().name = key;
      return true;
    }
    field_ = Field::other;
    if (in_metadata_) {
      metadata.emplace_back(key, "");
      return true;
    }
    Record& record = records.back();
    if (key == "dtype") return claim(Field::dtype, record.has_dtype);
    if (key == "shape") return claim(Field::shape, record.has_shape);
    if (key == "data_offsets") return claim(Field::offsets, record.has_offsets);
    return stop("an unknown field " + braid::quoted(key));
  }

  bool string(std::string& text) override {
    if (depth_ == 2 && in_metadata_) {
      metadata.back().second = text;
      return true;
    }
    if (depth_ != 2 || field_ != Field::dtype) return stop("an unexpected string");
    records.back().dtype = text;
    return true;
  }

  bool start_array(size_t) override {
    if (depth_ != 2 || in_metadata_ || (field_ != Field::shape && field_ != Field::offsets)) {
      return stop("an unexpected array");
    }
    depth_ = 3;
    return true;
  }
  bool end_array() override {
    depth_ = 2;
    return true;
  }

  bool number_unsigned(uint64_t value) override {
    if (depth_ != 3) return stop("an unexpected number");
    std::vector<uint64_t>& list =
        field_ == Field::shape ? records.back().shape : records.back().offsets;
    if (list.size() >= kMaxRank)
      return stop(fmt::format("a list of more than {} numbers", kMaxRank));
    list.push_back(value);
    return true;
  }

  bool null() override { return stop("a null"); }
  bool boolean(bool) override { return stop("a truth value"); }
  bool number_integer(int64_t) override { return stop("a negative number"); }
  bool number_float(double, const std::string&) override {
    return stop("a fractional or huge number");
  }
  bool binary(nlohmann::json::binary_t&) override { return stop("binary data"); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return stop(fmt::format("something that is not JSON, near its byte {}", position));
  }

 private:
  enum class Field { other, dtype, shape, offsets };

  bool stop(const std::string& what) {
    if (error.empty()) {
      error = records.empty() ? what
                              : fmt::format("{}, at or after tensor {}", what,
                                            braid::quoted(records.back().name));
    }
    return false;
  }
  bool claim(Field field, bool& seen) {
    if (seen) return stop("a field twice");
    seen = true;
    field_ = field;
    return true;
  }

  int depth_ = 0;  // 0 nothing, 1 the object, 2 a tensor or the metadata, 3 a list of numbers
  bool in_metadata_ = false;
  Field field_ = Field::other;
};

Error bad(const std::string& name, const std::string& what, ErrorKind kind = ErrorKind::corrupt) {
  return Error{kind, fmt::format("{}: {}", name, what)};
}

Result<SafetensorsDtype> check_record(const std::string& file, const Record& record,
                                      uint64_t data_bytes) {
  const std::string what = "tensor " + braid::quoted(record.name);
  if (!record.has_dtype || !record.has_shape || !record.has_offsets) {
    return bad(file, what + " lacks its dtype, shape or data_offsets");
  }
  const auto* dtype =
      std::find_if(std::begin(kDtypes), std::end(kDtypes),
                   [&](const DtypeInfo& info) { return info.name == record.dtype; });
  if (dtype == std::end(kDtypes)) {
    return bad(file, fmt::format("{} has the unknown dtype {}", what, braid::quoted(record.dtype)),
               ErrorKind::unsupported);
  }
  if (record.offsets.size() != 2)
    return bad(file, what + " has data_offsets that are not two numbers");
  const uint64_t begin = record.offsets[0];
  const uint64_t end = record.offsets[1];
  if (begin > end || end > data_bytes) {
    return bad(
        file,
        fmt::format("{} lies at {} to {} of {} bytes of data: the file is incomplete or damaged",
                    what, begin, end, data_bytes));
  }
  std::optional<uint64_t> size = dtype->bytes;
  for (const uint64_t dim : record.shape) size = size ? checked_mul(*size, dim) : size;
  if (!size || *size != end - begin) {
    return bad(file, fmt::format("{} has {} bytes of data, which is not the size of its shape",
                                 what, end - begin));
  }
  return static_cast<SafetensorsDtype>(dtype - std::begin(kDtypes));
}

}  // namespace

std::string_view safetensors_dtype_name(SafetensorsDtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)].name;
}
uint32_t safetensors_dtype_bytes(SafetensorsDtype dtype) {
  return kDtypes[static_cast<size_t>(dtype)].bytes;
}

uint64_t SafetensorsTensor::elems() const { return data.size() / safetensors_dtype_bytes(dtype); }

std::optional<GgmlType> SafetensorsTensor::ggml_type() const {
  switch (dtype) {
    case SafetensorsDtype::F32:
      return GgmlType::F32;
    case SafetensorsDtype::F16:
      return GgmlType::F16;
    case SafetensorsDtype::BF16:
      return GgmlType::BF16;
    case SafetensorsDtype::F64:
      return GgmlType::F64;
    case SafetensorsDtype::I8:
      return GgmlType::I8;
    case SafetensorsDtype::I16:
      return GgmlType::I16;
    case SafetensorsDtype::I32:
      return GgmlType::I32;
    case SafetensorsDtype::I64:
      return GgmlType::I64;
    default:
      return std::nullopt;
  }
}

Result<SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> bytes, std::string name) {
  uint64_t header_bytes = 0;
  if (bytes.size() < 8) return bad(name, "is not a safetensors file: it is shorter than 8 bytes");
  std::memcpy(&header_bytes, bytes.data(), 8);
  if (header_bytes > kMaxHeaderBytes || header_bytes > bytes.size() - 8) {
    return bad(name,
               fmt::format("is not a safetensors file, or is cut: it claims a header of {} bytes",
                           header_bytes));
  }
  const auto header = bytes.subspan(8, header_bytes);
  const auto data = bytes.subspan(8 + header_bytes);

  // The parser would take a NUL byte for the end of the text.
  if (std::find(header.begin(), header.end(), std::byte{0}) != header.end()) {
    return bad(name, "its header contains a NUL byte");
  }
  HeaderReader reader;
  bool complete = false;
  try {  // the parser may throw when out of memory
    const char* text = reinterpret_cast<const char*>(header.data());
    complete = nlohmann::json::sax_parse(text, text + header.size(), &reader);
  } catch (const std::exception&) {
    return bad(name, "its header cannot be read", ErrorKind::exhausted);
  }
  if (!complete) return bad(name, fmt::format("its header contains {}", reader.error));

  SafetensorsFile file;
  std::sort(reader.records.begin(), reader.records.end(),
            [](const Record& a, const Record& b) { return a.offsets < b.offsets; });
  uint64_t expected = 0;
  for (Record& record : reader.records) {
    BRAID_ASSIGN(const SafetensorsDtype dtype, check_record(name, record, data.size()));
    if (record.offsets[0] != expected) {
      return bad(
          name,
          fmt::format(
              "tensor {} starts at byte {} of the data, not at {} where the one before it ends",
              braid::quoted(record.name), record.offsets[0], expected));
    }
    expected = record.offsets[1];
    file.tensors_.push_back(
        {std::move(record.name), dtype, std::move(record.shape),
         data.subspan(record.offsets[0], record.offsets[1] - record.offsets[0])});
  }
  if (expected != data.size())
    return bad(name, fmt::format("{} bytes follow the last tensor", data.size() - expected));

  file.by_name_.resize(file.tensors_.size());
  for (uint32_t i = 0; i < file.tensors_.size(); ++i) file.by_name_[i] = i;
  std::sort(file.by_name_.begin(), file.by_name_.end(),
            [&](uint32_t a, uint32_t b) { return file.tensors_[a].name < file.tensors_[b].name; });
  for (size_t i = 1; i < file.by_name_.size(); ++i) {
    const std::string& twice = file.tensors_[file.by_name_[i]].name;
    if (twice == file.tensors_[file.by_name_[i - 1]].name) {
      return bad(name, fmt::format("the tensor {} occurs twice", braid::quoted(twice)));
    }
  }
  file.metadata_ = std::move(reader.metadata);
  file.name_ = std::move(name);
  return file;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  BRAID_ASSIGN(MappedFile mapping, MappedFile::open(path));
  BRAID_ASSIGN(SafetensorsFile file, parse(mapping.bytes(), path));
  file.mapping_ = std::move(mapping);
  return file;
}

const SafetensorsTensor* SafetensorsFile::find_tensor(std::string_view name) const {
  const auto at = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [&](uint32_t i, std::string_view wanted) { return tensors_[i].name < wanted; });
  return at != by_name_.end() && tensors_[*at].name == name ? &tensors_[*at] : nullptr;
}

Result<const SafetensorsTensor*> SafetensorsFile::tensor(std::string_view name) const {
  const SafetensorsTensor* found = find_tensor(name);
  if (found == nullptr)
    return bad(name_, fmt::format("the tensor {} is missing", braid::quoted(name)));
  return found;
}

}  // namespace braid
