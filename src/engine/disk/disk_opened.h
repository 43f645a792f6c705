// disk_opened.h -- a file of the disk tier whose header and table have been read and are right.
#pragma once

#include <string>

#include "engine/disk/disk.h"

namespace braid {

struct DiskTier::Opened {
  std::string name;
  DiskInput input;
  DiskHeader header;
  DiskLayout layout;
  DiskTable table;
  size_t tokens_agree = 0;  // so many of its first tokens are those of the prefix that is loaded
};

}  // namespace braid
