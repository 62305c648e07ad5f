// What a look-alike of a vendor's library is made of: device memory over a memfd, and the rules.
//
// Nothing is kinder than a device: new memory holds a pattern, mapped memory faults until access is
// set, a handle that is released keeps its memory while it is mapped, only whole mappings are
// unmapped, work on a stream that a test holds is done when the test lets go, and finds then what is
// mapped then. The numbers of statuses are those that CUDA and HIP have in common.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace lookalike {

using Address = std::uintptr_t;

enum Status {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kNotReady = 600,
  kIllegalAddress = 700,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
};

constexpr int kDevices = 2;
enum CaptureMode { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };

// What a call of the library may be refused for.
enum Needs : unsigned {
  kNothing = 0,
  kStarted = 1,     // the library is initialised
  kDevice = 2,      // and a device current in this thread
  kNoCapture = 4,   // no graph is captured in global mode, unless this thread's mode is relaxed
  kEverything = 7,
};

struct Stream {
  explicit Stream(bool blocks) : blocking(blocks) {}
  const bool blocking;  // waited for by the default stream
  bool held = false;
  std::uint64_t queued = 0, done = 0;
  std::deque<std::function<void()>> work;
};

struct Event {
  std::vector<std::pair<Stream*, std::uint64_t>> behind;
};

class Machine {
 public:
  Machine();

  // `current` says whether a device is current in this thread.
  template <class Work>
  int call(const char* name, unsigned needs, bool current, const Work& work) {
    wait_while_blocked(name);
    const std::lock_guard lock(mutex);
    if (const int refused = refuse(name, needs, current); refused != 0) return refused;
    return work();
  }

  // A call of that name waits, before it has any effect, until it is let go; "" lets all go. Another
  // one does not wait beside it.
  void block(const std::string& name);
  int waiting();  // calls

  // All below want the mutex, which call() holds.
  int reserve(Address& base, std::size_t size, std::size_t alignment);
  int unreserve(Address base, std::size_t size);
  int create(std::uint64_t& handle, std::size_t size);
  int release(std::uint64_t handle);
  int map(Address address, std::size_t size, std::uint64_t handle);
  int set_access(Address address, std::size_t size);
  int get_access(unsigned long long& flags, Address address);
  int unmap(Address address, std::size_t size);
  std::size_t free_bytes() const { return memory - used; }
  int copy(void* to, const void* from, std::size_t size, Address device_side);
  int fill(Address address, int value, std::size_t size, Stream* stream);
  Stream* add_stream(bool blocking);
  Stream* stream(void* handle);  // also of the default one
  Stream* last_stream() const { return streams_.back(); }
  int record(Event& event, void* stream);
  int query(const Event& event) const;
  void submit(Stream& stream, std::function<void()> work);
  void hold(Stream& stream, bool held);
  int begin_capture(int mode);
  int end_capture();  // an error, if a call of another thread spoiled it
  // Work that reads and writes the range when the stream gets to it.
  void touch(Stream& stream, Address address, std::size_t size);

  std::mutex mutex;
  bool started = false;
  std::size_t granularity = 2 << 20;
  std::size_t memory = std::size_t{8} << 30;
  std::size_t used = 0;
  int sticky = 0;               // what every call returns from now on
  int captures = 0;             // under way in global mode
  bool spoiled = false;         // a call of another thread broke one
  std::uint64_t violations = 0;  // edits under queued work
  int retained[kDevices] = {};  // by device
  int live_streams = 0, live_events = 0;
  std::map<std::string, std::uint64_t> counts;
  struct Plan {
    std::string name;
    std::uint64_t at;
    int status;
  };
  std::vector<Plan> plans;

 private:
  struct Allocation {
    std::uint64_t offset;
    std::size_t size;
    int mapped = 0;
    bool released = false;
  };
  struct Mapping {
    std::size_t size;
    std::uint64_t handle;
    bool accessible = false;
  };
  struct Range {
    Address address;
    std::size_t size;
  };
  void wait_while_blocked(const char* name);
  int refuse(const char* name, unsigned needs, bool current);
  bool accessible(Address address, std::size_t size) const;
  // Calls `edit` on each of the whole mappings that make up the range; false if they do not.
  template <class Edit>
  bool each_mapping(Address address, std::size_t size, const Edit& edit);
  void note_edit(Address address, std::size_t size);
  void drop_if_unused(std::uint64_t handle);

  std::mutex gate_;  // guards these three
  std::condition_variable opened_;
  std::string blocked_;
  int waiting_ = 0;

  const int file_;
  std::uint64_t end_ = 0;  // of the file; offsets are never used again
  std::uint64_t last_handle_ = 0;
  std::map<Address, std::size_t> ranges_;
  std::map<std::uint64_t, Allocation> allocations_;
  std::map<Address, Mapping> mappings_;
  std::vector<Range> touched_;  // by work that is queued
  Stream default_{true};
  std::vector<Stream*> streams_;
};

Machine& machine();
// Of this thread: in what mode it would capture, and so what it may call while others do.
int& capture_mode();

}  // namespace lookalike
