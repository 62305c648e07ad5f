// What a driver call can fail with. The state is what it was before the call, unless it says
// otherwise here, and this is what the caller must do:
//
//   OutOfMemory        wait for memory to be given back, or do with less
//   HostLimit          the same; more of it needs the administrator, so tell him
//   InvalidArgument    mend the program
//   DeviceLost         nothing: end the process
//   DeviceUnavailable  tell the user; there is no driver
//   DriverError        try again later, or do without this memory
#pragma once

#include <stdexcept>

namespace kvcached::vmm {

class DriverError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Physical memory is exhausted: in create(), or a device's memory for its own page tables in map()
// and set_access().
class OutOfMemory : public DriverError {
 public:
  using DriverError::DriverError;
};

// The process or machine is short of something else that a call needs: descriptors, mappings,
// addresses, host memory.
class HostLimit : public DriverError {
 public:
  using DriverError::DriverError;
};

// The caller broke the contract: unknown handle, range mapped already, wrong multiple.
class InvalidArgument : public DriverError {
 public:
  using DriverError::DriverError;
};

// The device, or this process's context on it, is gone: a fault of a kernel, a memory error, a
// reset. What lay on it is undefined. Every later call of the driver raises it at once and reaches
// no library; see Driver::check_alive().
class DeviceLost : public DriverError {
 public:
  using DriverError::DriverError;
};

// There is no such device here, or no library that knows it; only of a driver's constructor.
class DeviceUnavailable : public DriverError {
 public:
  using DriverError::DriverError;
};

}  // namespace kvcached::vmm
