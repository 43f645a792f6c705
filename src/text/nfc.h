// nfc.h -- Unicode's Normalization Form C: composes letters and accents where possible.
// Properties come from utf8proc. Text already in the form is found by the quick check and not
// copied, in linear time; otherwise O(n log n) in the longest run of marks, which is bounded.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"

namespace braid {

// More bytes of unordered marks on one letter are refused.
inline constexpr size_t kMaxNfcRunBytes = size_t{1} << 20;

// Returns `text`, or its normal form in `buffer`. REQUIRES: text is well-formed UTF-8. Errors:
// invalid_argument (kMaxNfcRunBytes).
Result<std::string_view> nfc(std::string_view text, std::string& buffer);

}  // namespace braid
