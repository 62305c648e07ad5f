#include "vmm/machine_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "vmm/text.h"

namespace kvcached::vmm {
namespace {

constexpr Bytes kKiB = 1024;
// cgroup v1 writes "no limit" as the largest page-aligned signed number; nothing real is near it.
constexpr Bytes kNoLimit = Bytes{1} << 62;

// The number after `key` at the start of a line, for files of lines "key number ...".
std::optional<Bytes> number_after(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string name;
  Bytes value = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

std::optional<Bytes> number_in(const std::string& path) {
  std::ifstream file(path);
  Bytes value = 0;
  if (file >> value) return value;
  return std::nullopt;  // no such file, or "max"
}

bool lists(const std::string& comma_separated, const std::string& word) {
  std::istringstream words(comma_separated);
  for (std::string w; std::getline(words, w, ',');) {
    if (w == word) return true;
  }
  return false;
}

// The process's path in the hierarchy that carries `controller` ("" for v2), from proc/self/cgroup.
std::optional<std::string> cgroup_path(const std::string& proc, const std::string& controller) {
  std::ifstream file(proc + "/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controller.empty() ? controllers.empty() : lists(controllers, controller)) {
      return line.substr(second + 1);
    }
  }
  return std::nullopt;
}

struct Mount {
  std::string root, point;
};

// Where that hierarchy is mounted, from proc/self/mountinfo.
std::optional<Mount> cgroup_mount(const std::string& proc, const std::string& controller) {
  std::ifstream file(proc + "/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const auto dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream left(line), right(line.substr(dash + 3));
    std::string skip, type, options;
    Mount mount;
    left >> skip >> skip >> skip >> mount.root >> mount.point;
    right >> type >> skip >> options;
    const bool wanted =
        controller.empty() ? type == "cgroup2" : type == "cgroup" && lists(options, controller);
    if (wanted) return mount;
  }
  return std::nullopt;
}

// From the process's own cgroup up to the mount point. A path that is not below the mounted root
// (another namespace's) says nothing here: then only the mount point itself counts.
std::vector<std::string> directories(const Mount& mount, std::string path) {
  if (mount.root != "/") {
    const bool below = path.compare(0, mount.root.size(), mount.root) == 0;
    path = below ? path.substr(mount.root.size()) : "";
  }
  if (path.find("/..") != std::string::npos || path == "/") path.clear();
  std::vector<std::string> found;
  while (!path.empty()) {
    found.push_back(mount.point + path);
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
  found.push_back(mount.point);
  return found;
}

}  // namespace

MachineMemory::MachineMemory(const std::string& proc) : meminfo_(proc + "/meminfo") {
  find_cgroups(proc);
}

void MachineMemory::find_cgroups(const std::string& proc) {
  struct Version {
    const char *controller, *limit, *usage, *cache_key;
  };
  constexpr Version kVersions[] = {
      {"", "/memory.max", "/memory.current", "inactive_file"},
      {"memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file"},
  };
  for (const Version& version : kVersions) {
    const auto path = cgroup_path(proc, version.controller);
    const auto mount = cgroup_mount(proc, version.controller);
    if (!path || !mount) continue;
    for (const std::string& directory : directories(*mount, *path)) {
      Cgroup group{directory + version.limit, directory + version.usage, directory + "/memory.stat",
                   version.cache_key};
      if (std::ifstream(group.limit).good()) cgroups_.push_back(std::move(group));
    }
  }
}

Bytes MachineMemory::available() const {
  const auto machine = number_after(meminfo_, "MemAvailable:");
  if (!machine) {
    throw DriverError(text("no line MemAvailable in ", meminfo_,
                           ": cannot tell how much memory is free; is /proc mounted?"));
  }
  Bytes least = *machine * kKiB;
  for (const Cgroup& group : cgroups_) {
    const auto limit = number_in(group.limit);
    if (!limit || *limit >= kNoLimit) continue;
    const Bytes usage = number_in(group.usage).value_or(0);
    const Bytes cache = std::min(usage, number_after(group.stat, group.cache_key).value_or(0));
    const Bytes taken = usage - cache;
    least = std::min(least, *limit > taken ? *limit - taken : 0);
  }
  return least;
}

}  // namespace kvcached::vmm
