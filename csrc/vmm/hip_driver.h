// The driver over an AMD device.
#pragma once

#include <memory>
#include <string>

#include "vmm/device_driver.h"

namespace kvcached::vmm {

// As make_cuda_driver(), but that HIP has no contexts to retain: the device's is there as long as
// the process. `library` "" means the newest that is installed.
std::shared_ptr<DeviceDriver> make_hip_driver(int device, const std::string& library);

}  // namespace kvcached::vmm
