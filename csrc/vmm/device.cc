#include "vmm/device.h"

#include <unistd.h>

#include <chrono>
#include <thread>

namespace kvcached::vmm {
namespace {

constexpr int kTries = 5;
constexpr std::chrono::milliseconds kFirstPause{1};  // doubled each time: 15 ms in all

// The device that this thread's state is set for, by its id; 0: none of ours.
thread_local std::uint64_t set_for = 0;

std::uint64_t next_device() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

Device::Device(std::unique_ptr<DeviceApi> api) : api_(std::move(api)), id_(next_device()) {}

Device::~Device() {
  if (is_ours() && !lost_) api_->close();
}

std::string Device::name() const { return text(api_->name(), " device ", api_->device()); }

bool Device::is_ours() const { return process_.is_here(); }

void Device::check_process(const char* call) const {
  if (is_ours()) return;
  throw InvalidArgument(text(api_->name(), " ", call, ": this driver belongs to process ",
                             process_.pid(), ", this is process ", ::getpid(),
                             "; make a driver after the fork"));
}

void Device::check_alive() const {
  if (!lost_) return;
  const std::lock_guard lock(mutex_);
  throw DeviceLost(why_lost_);
}

void Device::lose(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (!lost_) {
      why_lost_ = text(name(), " (", api_->key(), ") is lost: ", why,
                       ". What lay on it is gone: end this process and start it again; if it"
                       " happens again, see the kernel's log and the device's own tools");
    }
    lost_ = true;
  }
  check_alive();
  throw DeviceLost(why);  // not reached
}

Device::Visit::Visit(Device& device) : device_(device), set_before_(set_for) {
  if (set_for == device.id_ || device.lost_ || !device.is_ours()) return;
  status_ = device.api_->enter(before_);
  entered_ = status_ == 0;
  if (entered_) set_for = device.id_;
}

Device::Visit::~Visit() {
  if (!entered_) return;
  device_.api_->leave(before_);
  set_for = set_before_;
}

void Device::adopt_thread() {
  if (set_for == id_) return;
  check_process("adopt_thread");
  check_alive();
  if (const Status status = api_->adopt(); status != 0) fail({"adopt_thread", 0, 0, 1}, status);
  set_for = id_;
}

bool Device::pause(int tries) {
  if (tries == kTries) return false;
  std::this_thread::sleep_for(kFirstPause * (1 << (tries - 1)));
  return true;
}

void Device::fail(const Attempt& attempt, Status status) {
  const std::string what = text(api_->name(), " ", attempt.call, " of ", attempt.size, " bytes at ",
                                hex(attempt.address), " on ", name(), " failed",
                                attempt.tries > 1 ? text(" ", attempt.tries, " times") : "", ": ",
                                api_->describe(status));
  switch (api_->outcome(status)) {
    case Outcome::kOutOfMemory:
      throw OutOfMemory(what + "; lower the KV-cache limit, or free memory of the device");
    case Outcome::kHostLimit:
      throw HostLimit(what +
                      "; the process or machine is short of descriptors (ulimit -n), mappings"
                      " (vm.max_map_count), addresses or host memory: raise that limit, or use"
                      " larger pages");
    case Outcome::kLost:
      lose(what);
    case Outcome::kContract:
      throw InvalidArgument(what);
    default:
      throw DriverError(what);
  }
}

}  // namespace kvcached::vmm
