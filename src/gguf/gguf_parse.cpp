// gguf_parse.cpp -- bytes to a GgufFile, and a path to its shards, in one pass.
// Sizes use checked arithmetic. Counts are compared with the smallest possible records, so the
// file's size bounds loops and vectors.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "gguf/gguf.h"
#include "gguf/gguf_text.h"

namespace braid {

namespace {

constexpr uint64_t kMaxKeys = 1 << 20;
constexpr uint64_t kMaxTensors = 1 << 20;
constexpr uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;         // one-letter key, one-byte value
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 4 + 8;  // one-letter name, no dimensions
constexpr uint64_t kMaxKeyLength = 65535;
constexpr uint64_t kMaxTensorNameLength = 63;
constexpr uint64_t kMaxStringLength = uint64_t{1} << 30;
constexpr uint64_t kMaxArrayLength = uint64_t{1} << 30;
constexpr uint32_t kMaxAlignment = 1 << 20;
constexpr uint32_t kDefaultAlignment = 32;
constexpr int kMaxArrayDepth = 4;
constexpr uint32_t kMaxShards = 99999;

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

class GgufParser {
 public:
  GgufParser(std::span<const std::byte> bytes, GgufFile& file) : bytes_(bytes), file_(file) {}

  Status parse() {
    BRAID_TRY(header());
    for (uint64_t i = 0; i < key_count_; ++i) BRAID_TRY(entry());
    BRAID_TRY(file_.index_entries());
    BRAID_TRY(alignment());
    for (uint64_t i = 0; i < tensor_count_; ++i) BRAID_TRY(tensor_record());
    BRAID_TRY(file_.index_tensors());
    return place_tensors();
  }

 private:
  uint64_t left() const { return bytes_.size() - position_; }

  Error bad_at(uint64_t offset, const std::string& reason,
               ErrorKind kind = ErrorKind::corrupt) const {
    return Error{kind, fmt::format("{}: at byte {}: {}", file_.name_, offset, reason)};
  }
  Error bad(const std::string& reason) const { return bad_at(position_, reason); }

  template <typename T>
  Status read(T& out, std::string_view what) {
    if (left() < sizeof(T)) return bad(fmt::format("the file ends inside {}", what));
    std::memcpy(&out, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return {};
  }

  Status read_string(std::span<const std::byte>& out, std::string_view what) {
    uint64_t length = 0;
    const uint64_t start = position_;
    BRAID_TRY(read(length, what));
    if (length > left()) {
      return bad_at(
          start, fmt::format("{} claims {} bytes, {} are left in the file", what, length, left()));
    }
    if (length > kMaxStringLength)
      return bad_at(start, fmt::format("{} is longer than 1 GiB", what));
    out = bytes_.subspan(position_, length);
    position_ += length;
    return {};
  }

  Status header() {
    if (bytes_.size() < 4 || std::memcmp(bytes_.data(), "GGUF", 4) != 0) {
      return Error{
          ErrorKind::corrupt,
          fmt::format("{}: is not a GGUF file (it does not start with \"GGUF\")", file_.name_)};
    }
    position_ = 4;
    BRAID_TRY(read(file_.version_, "the header"));
    if (file_.version_ != 0 && (file_.version_ & 0xffff) == 0) {
      return bad_at(4, "the file is big-endian; braid reads little-endian files only",
                    ErrorKind::unsupported);
    }
    if (file_.version_ != 2 && file_.version_ != 3) {
      return bad_at(4,
                    fmt::format("GGUF version {} is not supported (2 and 3 are)", file_.version_),
                    ErrorKind::unsupported);
    }
    BRAID_TRY(read(tensor_count_, "the header"));
    BRAID_TRY(read(key_count_, "the header"));
    if (tensor_count_ > kMaxTensors || tensor_count_ > left() / kMinTensorBytes) {
      return bad_at(
          8, fmt::format("the header claims {} tensors, more than fit in the file", tensor_count_));
    }
    if (key_count_ > kMaxKeys || key_count_ > left() / kMinKeyBytes) {
      return bad_at(16, fmt::format("the header claims {} metadata keys, more than fit in the file",
                                    key_count_));
    }
    return {};
  }

  Status entry() {
    GgufEntry entry;
    std::span<const std::byte> key;
    const uint64_t start = position_;
    BRAID_TRY(read_string(key, "a metadata key"));
    entry.key = text_of(key);
    if (key.empty()) return bad_at(start, "a metadata key is empty");
    if (key.size() > kMaxKeyLength)
      return bad_at(start, "a metadata key is longer than 65535 bytes");
    if (entry.key.find('\0') != std::string_view::npos)
      return bad_at(start, "a metadata key contains a NUL byte");
    const std::string what = "the value of " + quoted(entry.key);
    BRAID_TRY(value_type(entry.value.type, what));
    if (entry.value.is_array()) {
      BRAID_TRY(array(entry.value, what));
    } else if (entry.value.type == GgufValueType::STRING) {
      BRAID_TRY(read_string(entry.value.bytes, what));
    } else {
      BRAID_TRY(scalars(entry.value.type, 1, entry.value.bytes, what));
    }
    file_.entries_.push_back(entry);
    return {};
  }

  Status value_type(GgufValueType& out, const std::string& what) {
    uint32_t id = 0;
    BRAID_TRY(read(id, what));
    if (id > static_cast<uint32_t>(GgufValueType::F64)) {
      return bad_at(position_ - 4, fmt::format("{} has the unknown type {}", what, id));
    }
    out = static_cast<GgufValueType>(id);
    return {};
  }

  Status array(GgufValue& value, const std::string& what) {
    BRAID_TRY(value_type(value.elem_type, what));
    BRAID_TRY(read(value.count, what));
    const uint64_t start = position_;
    BRAID_TRY(elements(value.elem_type, value.count, what, 1));
    value.bytes = bytes_.subspan(start, position_ - start);
    return {};
  }

  // Linear in the bytes of the elements: each takes at least one.
  Status elements(GgufValueType type, uint64_t count, const std::string& what, int depth) {
    const uint64_t least = type == GgufValueType::STRING  ? 8
                           : type == GgufValueType::ARRAY ? 12
                                                          : gguf_value_bytes(type);
    if (count > kMaxArrayLength || count > left() / least) {
      return bad_at(position_ - 8,
                    fmt::format("{} claims {} elements, more than fit in the file", what, count));
    }
    std::span<const std::byte> ignored;
    if (type == GgufValueType::STRING) {
      for (uint64_t i = 0; i < count; ++i) BRAID_TRY(read_string(ignored, what));
    } else if (type == GgufValueType::ARRAY) {
      if (depth >= kMaxArrayDepth) {
        return bad(fmt::format("{} nests arrays more than {} deep", what, kMaxArrayDepth));
      }
      for (uint64_t i = 0; i < count; ++i) {
        GgufValueType inner;
        uint64_t inner_count = 0;
        BRAID_TRY(value_type(inner, what));
        BRAID_TRY(read(inner_count, what));
        BRAID_TRY(elements(inner, inner_count, what, depth + 1));
      }
    } else {
      BRAID_TRY(scalars(type, count, ignored, what));
    }
    return {};
  }

  // REQUIRES: type has a fixed size, and for count > 1 the elements fit in the remaining bytes.
  Status scalars(GgufValueType type, uint64_t count, std::span<const std::byte>& out,
                 const std::string& what) {
    const uint64_t length = gguf_value_bytes(type) * count;
    if (length > left()) return bad(fmt::format("the file ends inside {}", what));
    out = bytes_.subspan(position_, length);
    if (type == GgufValueType::BOOL) {
      for (uint64_t i = 0; i < count; ++i) {
        if (std::to_integer<int>(out[i]) > 1) {
          return bad_at(position_ + i, fmt::format("{} is a bool of neither 0 nor 1", what));
        }
      }
    }
    position_ += length;
    return {};
  }

  Status alignment() {
    file_.alignment_ = kDefaultAlignment;
    const GgufValue* value = file_.find("general.alignment");
    if (value == nullptr) return {};
    const uint64_t offset = static_cast<uint64_t>(value->bytes.data() - bytes_.data());
    if (value->type != GgufValueType::U32)
      return bad_at(offset, "\"general.alignment\" is not a u32");
    uint32_t alignment = 0;
    std::memcpy(&alignment, value->bytes.data(), 4);
    // At least 8, as the format requires; then all plain element types are aligned in any mapping.
    if (alignment < 8 || alignment > kMaxAlignment || (alignment & (alignment - 1)) != 0) {
      return bad_at(offset,
                    fmt::format("\"general.alignment\" is {}, not a power of two from 8 to 1 MiB",
                                alignment));
    }
    file_.alignment_ = alignment;
    return {};
  }

  Status tensor_record() {
    GgufTensor tensor;
    const uint64_t start = position_;
    std::span<const std::byte> name;
    BRAID_TRY(read_string(name, "a tensor name"));
    tensor.name = text_of(name);
    if (name.empty() || name.size() > kMaxTensorNameLength) {
      return bad_at(start, fmt::format("a tensor name has {} bytes, not 1 to {}", name.size(),
                                       kMaxTensorNameLength));
    }
    if (tensor.name.find('\0') != std::string_view::npos)
      return bad_at(start, "a tensor name contains a NUL byte");
    const std::string what = "tensor " + quoted(tensor.name);
    BRAID_TRY(read(tensor.n_dims, what));
    if (tensor.n_dims > 4)
      return bad_at(position_ - 4,
                    fmt::format("{} has {} dimensions, more than 4", what, tensor.n_dims));
    for (uint32_t i = 0; i < tensor.n_dims; ++i) {
      BRAID_TRY(read(tensor.ne[i], what));
      if (tensor.ne[i] == 0 || tensor.ne[i] >> 63 != 0) {
        return bad_at(position_ - 8, fmt::format("{} has a dimension of {}", what, tensor.ne[i]));
      }
    }
    uint32_t type_id = 0;
    BRAID_TRY(read(type_id, what));
    const GgmlTypeInfo* type = find_ggml_type(type_id);
    if (type == nullptr) {
      return bad_at(position_ - 4, fmt::format("{} has the unknown type {}", what, type_id),
                    ErrorKind::unsupported);
    }
    tensor.type = type->type;
    uint64_t offset = 0;
    BRAID_TRY(read(offset, what));
    BRAID_TRY(size_tensor(tensor, start, what));
    if (offset != next_offset_) {
      return bad_at(position_ - 8,
                    fmt::format("{} is stored at offset {}, not at {} where the one before it ends",
                                what, offset, next_offset_));
    }
    offsets_.push_back(offset);
    const auto end = checked_add(offset, sizes_.back());
    const auto next = end ? checked_align_up(*end, file_.alignment_) : std::nullopt;
    if (!next) return bad_at(start, fmt::format("{} does not fit in 64-bit offsets", what));
    next_offset_ = *next;
    file_.tensors_.push_back(tensor);
    return {};
  }

  Status size_tensor(const GgufTensor& tensor, uint64_t start, const std::string& what) {
    const uint32_t block = block_elems(tensor.type);
    if (tensor.ne[0] % block != 0) {
      return bad_at(
          start,
          fmt::format("{} has rows of {} elements, not a multiple of the {} in a block of {}", what,
                      tensor.ne[0], block, type_name(tensor.type)));
    }
    std::optional<uint64_t> elems = tensor.ne[0];
    std::optional<uint64_t> size = row_bytes(tensor.type, tensor.ne[0]);
    for (int i = 1; i < 4; ++i) {
      if (elems) elems = checked_mul(*elems, tensor.ne[i]);
      if (size) size = checked_mul(*size, tensor.ne[i]);
    }
    if (!elems || *elems >> 63 != 0 || !size || *size >> 63 != 0) {
      return bad_at(start, fmt::format("{} has more elements than 64 bits can count", what));
    }
    sizes_.push_back(*size);
    return {};
  }

  Status place_tensors() {
    if (file_.tensors_.empty()) return {};
    const auto data_start = checked_align_up(position_, file_.alignment_);
    for (size_t i = 0; i < file_.tensors_.size(); ++i) {
      GgufTensor& tensor = file_.tensors_[i];
      const auto start = data_start ? checked_add(*data_start, offsets_[i]) : std::nullopt;
      const auto end = start ? checked_add(*start, sizes_[i]) : std::nullopt;
      if (!end || *end > bytes_.size()) {
        return bad_at(bytes_.size(),
                      fmt::format("the file ends before the data of tensor {} ({} bytes from byte "
                                  "{}): it is incomplete",
                                  quoted(tensor.name), sizes_[i], start.value_or(0)));
      }
      tensor.data = bytes_.subspan(*start, sizes_[i]);
    }
    return {};
  }

  std::span<const std::byte> bytes_;
  GgufFile& file_;
  uint64_t position_ = 0;
  uint64_t tensor_count_ = 0;
  uint64_t key_count_ = 0;
  uint64_t next_offset_ = 0;
  std::vector<uint64_t> offsets_;  // per tensor, from the start of the data section
  std::vector<uint64_t> sizes_;    // per tensor, in bytes
};

// Sorted positions instead of a hash table: no choice of names makes it slow.
Status GgufFile::index_entries() {
  entries_by_key_.resize(entries_.size());
  for (uint32_t i = 0; i < entries_.size(); ++i) entries_by_key_[i] = i;
  std::sort(entries_by_key_.begin(), entries_by_key_.end(),
            [&](uint32_t a, uint32_t b) { return entries_[a].key < entries_[b].key; });
  for (size_t i = 1; i < entries_by_key_.size(); ++i) {
    const std::string_view key = entries_[entries_by_key_[i]].key;
    if (key == entries_[entries_by_key_[i - 1]].key) {
      return Error{ErrorKind::corrupt,
                   fmt::format("{}: the metadata key {} occurs twice", name_, quoted(key))};
    }
  }
  return {};
}

Status GgufFile::index_tensors() {
  tensors_by_name_.resize(tensors_.size());
  for (uint32_t i = 0; i < tensors_.size(); ++i) tensors_by_name_[i] = i;
  std::sort(tensors_by_name_.begin(), tensors_by_name_.end(),
            [&](uint32_t a, uint32_t b) { return tensors_[a].name < tensors_[b].name; });
  for (size_t i = 1; i < tensors_by_name_.size(); ++i) {
    const std::string_view name = tensors_[tensors_by_name_[i]].name;
    if (name == tensors_[tensors_by_name_[i - 1]].name) {
      return Error{ErrorKind::corrupt,
                   fmt::format("{}: the tensor {} occurs twice", name_, quoted(name))};
    }
  }
  return {};
}

Result<GgufFile> GgufFile::parse(std::span<const std::byte> bytes, std::string name) {
  GgufFile file;
  file.name_ = std::move(name);
  file.file_bytes_ = bytes.size();
  BRAID_TRY(GgufParser(bytes, file).parse());
  return file;
}

Result<GgufFile> GgufFile::open(const std::string& path) {
  BRAID_ASSIGN(MappedFile mapping, MappedFile::open(path));
  BRAID_ASSIGN(GgufFile file, parse(mapping.bytes(), path));
  file.mappings_.push_back(std::move(mapping));
  if (file.has("split.count")) BRAID_TRY(file.join_shards(path));
  return file;
}

// Opens the other shards and adds their tensors. REQUIRES: this is the first shard.
Status GgufFile::join_shards(const std::string& path) {
  BRAID_ASSIGN(const uint32_t count, get_u32("split.count"));
  if (count <= 1) return {};
  BRAID_ASSIGN(const uint32_t number, get_u32("split.no"));
  BRAID_ASSIGN(const int32_t total, get_i32("split.tensors.count"));
  if (number != 0) {
    return Error{ErrorKind::unsupported,
                 fmt::format("{}: is part {} of {} of a split file; open the first part", path,
                             number + 1, count)};
  }
  if (count > kMaxShards) return wrong("split.count", fmt::format("is {}", count));
  const std::string ending = fmt::format("-00001-of-{:05}.gguf", count);
  if (!path.ends_with(ending)) {
    return Error{ErrorKind::unsupported,
                 fmt::format("{}: is the first of {} parts, but its name does not end in {}", path,
                             count, ending)};
  }
  const std::string prefix = path.substr(0, path.size() - ending.size());
  for (uint32_t i = 1; i < count; ++i) {
    const std::string shard_path = fmt::format("{}-{:05}-of-{:05}.gguf", prefix, i + 1, count);
    BRAID_ASSIGN(MappedFile mapping, MappedFile::open(shard_path));
    BRAID_ASSIGN(GgufFile shard, parse(mapping.bytes(), shard_path));
    BRAID_ASSIGN(const uint32_t shard_number, shard.get_u32("split.no"));
    BRAID_ASSIGN(const uint32_t shard_count, shard.get_u32("split.count"));
    if (shard_number != i)
      return shard.wrong("split.no", fmt::format("is {}, not {}", shard_number, i));
    if (shard_count != count)
      return shard.wrong("split.count", fmt::format("is {}, not {}", shard_count, count));
    for (GgufTensor tensor : shard.tensors_) {
      tensor.shard = i;
      tensors_.push_back(tensor);
    }
    file_bytes_ += shard.file_bytes_;
    mappings_.push_back(std::move(mapping));
  }
  if (total < 0 || tensors_.size() != static_cast<uint64_t>(total)) {
    return wrong("split.tensors.count", fmt::format("is {}, but the {} parts hold {} tensors",
                                                    total, count, tensors_.size()));
  }
  return index_tensors();
}

}  // namespace braid
