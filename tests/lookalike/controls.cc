// What a test tells a look-alike and asks it: no part of the vendor's interface.
#include <cstdio>

#include "machine.h"

using namespace lookalike;

extern "C" {

void lookalike_configure(std::size_t granularity, std::size_t memory) {
  machine().granularity = granularity;
  machine().memory = memory;
}

// The n-th call of that name from now on returns that status and has no effect.
void lookalike_fail(const char* name, std::uint64_t n, int status) {
  const std::lock_guard lock(machine().mutex);
  machine().plans.push_back({name, machine().counts[name] + n, status});
}

void lookalike_block(const char* name) { machine().block(name); }
int lookalike_waiting() { return machine().waiting(); }

// Every call returns it from now on, or none any more (0).
void lookalike_lose(int status) {
  const std::lock_guard lock(machine().mutex);
  machine().sticky = status;
}

// "name count" a line; returns the bytes that it needs.
std::size_t lookalike_counts(char* out, std::size_t size) {
  const std::lock_guard lock(machine().mutex);
  std::string lines;
  for (const auto& [name, count] : machine().counts)
    lines += name + " " + std::to_string(count) + "\n";
  std::snprintf(out, size, "%s", lines.c_str());
  return lines.size() + 1;
}

void* lookalike_stream(int blocking) {
  const std::lock_guard lock(machine().mutex);
  return machine().add_stream(blocking != 0);
}

// The last one that anybody made.
void* lookalike_last_stream() { return machine().last_stream(); }

void lookalike_hold(void* stream, int held) {
  const std::lock_guard lock(machine().mutex);
  machine().hold(*machine().stream(stream), held != 0);
}

void lookalike_touch(void* stream, Address address, std::size_t size) {
  const std::lock_guard lock(machine().mutex);
  machine().touch(*machine().stream(stream), address, size);
}

std::uint64_t lookalike_violations() { return machine().violations; }
std::size_t lookalike_used() { return machine().used; }
int lookalike_retained(int device) { return machine().retained[device]; }
int lookalike_live_streams() { return machine().live_streams; }
int lookalike_live_events() { return machine().live_events; }

}  // extern "C"
