// cuda_absent.cpp -- make_cuda_device() of a build without CUDA.
#ifndef BRAID_HAS_CUDA
#include "ops/device.h"

namespace braid {

Result<std::unique_ptr<Device>> make_cuda_device(const DeviceOptions&) {
  return Error{ErrorKind::unsupported, "this braid was built without CUDA, so it cannot use a GPU"};
}

int cuda_device_count() { return 0; }

}  // namespace braid
#endif
