// The driver over an NVIDIA device.
#pragma once

#include <memory>
#include <string>

#include "vmm/device_driver.h"

namespace kvcached::vmm {

// `device` as this process counts them; `library` is opened at run time. Retains the device's
// primary context, as every user of the runtime API does, for as long as the driver lives. Its
// granularity is the device's smallest. Raises DeviceUnavailable, naming what was tried, if there
// is no such library or device or it cannot map memory under addresses.
std::shared_ptr<DeviceDriver> make_cuda_driver(int device, const std::string& library);

}  // namespace kvcached::vmm
