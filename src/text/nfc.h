// nfc.h -- Unicode's Normalization Form C: a letter and its accents as one code point, where one exists.
//
// The properties of code points are those of the utf8proc library. Text that is in the form already is found to be so by
// Unicode's quick check and is not copied.
//
// Cost: linear for text in the form; else O(n log n) in the longest run of marks, which is bounded.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.h"

namespace braid {

// More bytes of marks on one letter than this are refused, if they are not in order already.
inline constexpr size_t kMaxNfcRunBytes = size_t{1} << 20;

// `text`, or its normal form in `buffer`. REQUIRES: text is well-formed UTF-8.
// Errors: invalid_argument (kMaxNfcRunBytes).
Result<std::string_view> nfc(std::string_view text, std::string& buffer);

}  // namespace braid
