// What the device driver needs of a vendor's library. A vendor is an implementation of this.
//
// One method is one call of the library and returns its status, but for enter(), leave() and
// adopt(), which say how many calls they are. All may be called from any thread, between enter()
// and leave() or behind adopt(); outcome() and describe() anywhere.
#pragma once

#include <cstdint>
#include <string>

#include "vmm/address.h"
#include "vmm/driver.h"

namespace kvcached::vmm {

using Status = int;  // the vendor's own number; 0 is success
using NativeHandle = std::uint64_t;

// What a status means for the caller.
enum class Outcome {
  kDone,
  kPending,      // of a query: not yet
  kOutOfMemory,  // of the device
  kHostLimit,
  kTransient,  // the same call may succeed in a moment, and has had no effect
  kLost,
  kContract,
  kOther
};

class DeviceApi {
 public:
  // How a thread was found, and so is to be left.
  struct ThreadState {
    std::uintptr_t current = 0;  // context or device, the vendor's own meaning
    bool switched = false;
    int capture_mode = 0;
  };

  virtual ~DeviceApi() = default;  // makes no call; see close()

  virtual std::string name() const = 0;  // of the driver: "cuda", "hip"
  // Of the device, unique beyond this process, a valid file name: the budget's record has this key.
  virtual std::string key() const = 0;
  virtual int dlpack_device_type() const = 0;
  virtual int device() const = 0;  // index in this process
  virtual Bytes granularity() const = 0;
  virtual Outcome outcome(Status status) const = 0;
  virtual std::string describe(Status status) const = 0;

  // Makes the device current in this thread and its capture mode relaxed: a graph being captured in
  // another thread, in global mode, then neither forbids our calls nor is spoiled by them.
  virtual Status enter(ThreadState& before) = 0;
  virtual void leave(const ThreadState& before) = 0;
  // The same for the rest of the thread's life.
  virtual Status adopt() = 0;
  // Gives back what the constructor took. Nothing may be called afterwards.
  virtual void close() = 0;

  virtual Status reserve(Address& base, Bytes size) = 0;
  virtual Status unreserve(Address base, Bytes size) = 0;
  virtual Status create(NativeHandle& handle, Bytes size) = 0;
  virtual Status release(NativeHandle handle) = 0;
  virtual Status map(Address address, Bytes size, NativeHandle handle) = 0;
  virtual Status set_access(Address address, Bytes size) = 0;
  virtual Status unmap(Address address, Bytes size) = 0;
  virtual Status free_bytes(Bytes& free) = 0;

  // Streams and events are native handles too; a stream of ours does not wait for the default one,
  // and its work goes before work that waits elsewhere for a place on the device.
  virtual Status create_stream(std::uintptr_t& stream) = 0;
  virtual Status destroy_stream(std::uintptr_t stream) = 0;
  virtual Status zero(Address address, Bytes size, std::uintptr_t stream) = 0;  // queues it
  virtual Status create_event(std::uintptr_t& event) = 0;
  virtual Status destroy_event(std::uintptr_t event) = 0;
  virtual Status record(std::uintptr_t event, std::uintptr_t stream) = 0;
  virtual Status query(std::uintptr_t event) = 0;
};

}  // namespace kvcached::vmm
