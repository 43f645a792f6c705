// disk_opened.h -- a file of the disk tier whose header and table have been read and validated.
#pragma once

#include <string>

#include "engine/prefix/disk.h"

namespace braid {

struct DiskTier::Opened {
  std::string name;
  DiskInput input;
  DiskHeader header;
  DiskLayout layout;
  DiskTable table;
  size_t tokens_agree = 0;  // number of leading tokens that match the loaded prefix
};

}  // namespace braid
