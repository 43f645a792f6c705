// sizes.cpp -- see sizes.h. Library parsers would accept signs, spaces, "nan" and locale formats.
#include "cli/options/sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/checked.h"

namespace braid::cli {
namespace {

// The power of 1024 of "", "K", "kB", "MiB"; -1 for anything else.
int power_of(std::string suffix) {
  for (char& c : suffix) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (suffix.empty() || suffix == "B") return 0;
  const std::string rest = suffix.substr(1);
  if (!rest.empty() && rest != "B" && rest != "IB") return -1;
  const size_t at = std::string("KMGT").find(suffix[0]);
  return at == std::string::npos ? -1 : static_cast<int>(at) + 1;
}

}  // namespace

Result<uint64_t> parse_size(const std::string& text) {
  const Error bad{
      ErrorKind::invalid_argument,
      fmt::format("'{}' is not a size; write 8G, 512M, 1.5G or a number of bytes", text)};
  std::optional<uint64_t> whole = 0;
  size_t i = 0;
  for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) {
    whole = checked_mul(*whole, 10);
    if (whole) whole = checked_add(*whole, static_cast<uint64_t>(text[i] - '0'));
    if (!whole) return bad;
  }
  if (i == 0) return bad;
  double fraction = 0;
  const bool fractional = i < text.size() && text[i] == '.';
  if (fractional) {
    double digit = 0.1;
    size_t begin = ++i;
    for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i, digit /= 10)
      fraction += digit * (text[i] - '0');
    if (i == begin) return bad;
  }
  const int power = power_of(text.substr(i));
  if (power < 0 || (fractional && power == 0)) return bad;
  const uint64_t unit = uint64_t{1} << (10 * power);
  const auto bytes = checked_mul(*whole, unit);
  const auto sum =
      bytes ? checked_add(*bytes,
                          static_cast<uint64_t>(std::llround(fraction * static_cast<double>(unit))))
            : bytes;
  if (!sum) return bad;
  return *sum;
}

Status read_sizes(const char* option, const std::string& text, std::vector<uint64_t>* sizes) {
  for (size_t begin = 0; begin <= text.size() && !text.empty();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    uint64_t bytes = 0;
    const std::string one = text.substr(begin, end - begin);
    if (one.empty())
      return Error{ErrorKind::invalid_argument,
                   fmt::format("{}: a size is missing in '{}'", option, text)};
    BRAID_TRY(read_size(option, one, &bytes));
    sizes->push_back(bytes);
    begin = end + 1;
  }
  return {};
}

}  // namespace braid::cli
