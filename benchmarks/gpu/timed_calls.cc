// The device's own library, which tells how long the calls that map memory took. Zeroing does
// nothing: memory holds what was in it. For measurements only.
//
// g++ -shared -fPIC -DLIBRARY='"libcuda.so.1"' -o timed_calls.so benchmarks/gpu/timed_calls.cc
//     -ldl -Wl,--no-as-needed PATH/libcuda.so.1
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace {

using Clock = std::chrono::steady_clock;
using Number = unsigned long long;

std::atomic<std::int64_t> nanoseconds{0};

template <typename Function>
Function* own(const char* name) {
  static void* const library = ::dlopen(LIBRARY, RTLD_NOW);
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

template <typename Call>
int timed(const Call& call) {
  const auto begin = Clock::now();
  const int status = call();
  nanoseconds += std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
  return status;
}

}  // namespace

extern "C" {

int cuMemCreate(Number* handle, std::size_t size, const void* prop, Number flags) {
  static auto* const call = own<decltype(cuMemCreate)>("cuMemCreate");
  return timed([&] { return call(handle, size, prop, flags); });
}

int cuMemMap(Number at, std::size_t size, std::size_t offset, Number handle, Number flags) {
  static auto* const call = own<decltype(cuMemMap)>("cuMemMap");
  return timed([&] { return call(at, size, offset, handle, flags); });
}

int cuMemSetAccess(Number at, std::size_t size, const void* access, std::size_t count) {
  static auto* const call = own<decltype(cuMemSetAccess)>("cuMemSetAccess");
  return timed([&] { return call(at, size, access, count); });
}

int cuMemsetD8Async(Number, unsigned char, std::size_t, void*) { return 0; }

// Seconds in create, map and set access since the last question, of all threads.
double timed_calls() { return 1e-9 * static_cast<double>(nanoseconds.exchange(0)); }
}
