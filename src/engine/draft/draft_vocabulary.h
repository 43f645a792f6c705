// draft_vocabulary.h -- the tokens that the head may guess: those seen last in the engine's texts.
//
// The head's output matrix is most of the cost of a guess, and a text uses few of 250,000 tokens. A
// new token takes the row of the least recently seen one. With 40,960 rows under 1 % of the tokens
// of code and English are missing (docs/design/speculation.md). The contents affect only speed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "model/model.h"

namespace braid {

class DraftVocabulary {
 public:
  // Rows start with the first ids; lower ids are replaced later.
  DraftVocabulary(int32_t rows, int32_t vocabulary)
      : row_of_(static_cast<size_t>(vocabulary), -1), rows_(static_cast<size_t>(rows)) {
    BRAID_CHECK(rows > 0 && rows <= vocabulary);
    for (int32_t i = 0; i < rows; ++i) {
      rows_[static_cast<size_t>(i)] = {i, i - 1, i + 1 < rows ? i + 1 : -1, false};
      row_of_[static_cast<size_t>(i)] = i;
    }
    newest_ = 0;
    oldest_ = rows - 1;
  }

  void see(std::span<const int32_t> tokens) {
    for (const int32_t token : tokens) {
      if (token < 0 || token >= std::ssize(row_of_)) continue;
      int32_t& row = row_of_[static_cast<size_t>(token)];
      if (row < 0) {
        row = oldest_;
        Row& taken = at(row);
        row_of_[static_cast<size_t>(taken.token)] = -1;
        taken.token = token;
        if (!taken.changed) changed_.push_back(row);
        taken.changed = true;
      }
      make_newest(row);
    }
  }

  // Rows whose token take_changes() has not returned yet.
  int32_t changes() const { return static_cast<int32_t>(changed_.size()); }
  // At most `most`, the oldest changes first; valid until the next call.
  std::span<const DraftRow> take_changes(int32_t most) {
    const auto count = std::min(changed_.size(), static_cast<size_t>(most));
    taken_.clear();
    for (size_t i = 0; i < count; ++i) {
      at(changed_[i]).changed = false;
      taken_.push_back({changed_[i], at(changed_[i]).token});
    }
    changed_.erase(changed_.begin(), changed_.begin() + static_cast<std::ptrdiff_t>(count));
    return taken_;
  }

 private:
  struct Row {
    int32_t token;
    int32_t newer, older;  // rows; -1: none
    bool changed;
  };
  Row& at(int32_t row) { return rows_[static_cast<size_t>(row)]; }
  void make_newest(int32_t row) {
    if (row == newest_) return;
    Row& own = at(row);
    at(own.newer).older = own.older;
    (own.older < 0 ? oldest_ : at(own.older).newer) = own.newer;
    own.newer = -1;
    own.older = newest_;
    at(newest_).newer = row;
    newest_ = row;
  }

  std::vector<int32_t> row_of_;  // [token]; -1: none
  std::vector<Row> rows_;
  int32_t newest_ = 0, oldest_ = 0;
  std::vector<int32_t> changed_;
  std::vector<DraftRow> taken_;
};

}  // namespace braid
