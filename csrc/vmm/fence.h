// Work that was queued on a device, and whether it has finished.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace kvcached::vmm {

// Thread safe; the last copy may go on any thread, makes no driver call and needs no lock of
// anybody's.
class Fence {
 public:
  virtual ~Fence() = default;
  // Whether everything that was queued when the fence was made is done; once true, for ever.
  // Raises DeviceLost; InvalidArgument in another process than the one that made it.
  virtual bool passed() = 0;
  // Whose work, for the error of who waited in vain.
  virtual std::string describe() const = 0;
  // Polls until it has passed; false after the deadline.
  bool wait(std::chrono::milliseconds deadline);
};

// Of a driver whose work is done when the call returns.
std::shared_ptr<Fence> passed_fence();

}  // namespace kvcached::vmm
