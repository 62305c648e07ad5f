// What the numbers of the CUDA driver's CUresult mean here.
#pragma once

#include "vmm/device_api.h"

namespace kvcached::vmm {

Outcome cuda_outcome(Status status);

}  // namespace kvcached::vmm
