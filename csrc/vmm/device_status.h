// What a vendor's statuses mean here. HIP has taken most of its numbers from CUDA.
#pragma once

#include "vmm/device_api.h"

namespace kvcached::vmm {

Outcome cuda_outcome(Status status);
Outcome hip_outcome(Status status);

}  // namespace kvcached::vmm
