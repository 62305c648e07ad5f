// One device of one process: how its vendor's library is called, and what becomes of its statuses.
//
// Every call is made with the device current in the calling thread and its capture mode relaxed,
// and the thread is left as it was found. A thread that adopt() was called in keeps that state:
// each call there is one call of the library. Thread safe. In another process than the one that
// made it, calls raise InvalidArgument and the destructor does nothing.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "vmm/device_api.h"
#include "vmm/own_process.h"

namespace kvcached::vmm {

class Device {
 public:
  explicit Device(std::unique_ptr<DeviceApi> api);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  DeviceApi& api() const { return *api_; }
  // "cuda device 0"
  std::string name() const;
  bool is_ours() const;  // this process is the one that made it

  void adopt_thread();
  void check_process(const char* call) const;
  // DeviceLost if it is.
  void check_alive() const;
  // From now on it is lost; raises.
  [[noreturn]] void lose(const std::string& why);

  // Sets the thread's state where nobody has, and back. run() makes one for each try; who makes
  // several calls in a row may hold one over them.
  class Visit {
   public:
    explicit Visit(Device& device);
    ~Visit();
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;
    Status status() const { return status_; }

   private:
    Device& device_;
    const std::uint64_t set_before_;
    bool entered_ = false;
    Status status_ = 0;
    DeviceApi::ThreadState before_;
  };

  // Has `work` done, a function of no arguments that makes one call of the library and returns its
  // status: again, a few times, while that is transient. Raises what the status means, for `call`
  // of `size` bytes at `address`; returns whether the work is done, not pending.
  template <class Work>
  bool run(const char* call, Address address, Bytes size, const Work& work) {
    check_process(call);
    check_alive();
    for (int tries = 1;; ++tries) {
      const Status status = attempt(work);
      switch (api_->outcome(status)) {
        case Outcome::kDone:
          return true;
        case Outcome::kPending:
          return false;
        case Outcome::kTransient:
          if (pause(tries)) continue;
          break;
        default:
          break;
      }
      fail({call, address, size, tries}, status);
    }
  }

 private:
  struct Attempt {
    const char* call;
    Address address;
    Bytes size;
    int tries;
  };
  template <class Work>
  Status attempt(const Work& work) {
    const Visit visit(*this);
    return visit.status() != 0 ? visit.status() : work();
  }
  static bool pause(int tries);  // false after the last try
  [[noreturn]] void fail(const Attempt& attempt, Status status);

  const std::unique_ptr<DeviceApi> api_;
  const OwnProcess process_;
  const std::uint64_t id_;
  std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;
  std::string why_lost_;  // under the lock
};

}  // namespace kvcached::vmm
