#include "vmm/shared_library.h"

#include <dlfcn.h>

#include "vmm/errors.h"
#include "vmm/text.h"

namespace kvcached::vmm {

SharedLibrary::SharedLibrary(const std::vector<std::string>& names, const std::string& advice) {
  std::string tried;
  for (const std::string& name : names) {
    library_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ != nullptr) {
      name_ = name;
      return;
    }
    const char* const why = ::dlerror();
    tried +=
        text(tried.empty() ? "" : "; ", name, " (", why == nullptr ? "unknown error" : why, ")");
  }
  throw DeviceUnavailable(
      text("no library of the device's driver could be opened; tried: ", tried, ". ", advice));
}

void* SharedLibrary::symbol(const char* name) const {
  void* const found = ::dlsym(library_, name);
  if (found != nullptr) return found;
  throw DeviceUnavailable(text(name_, " has no ", name,
                               ": the device's driver is too old for memory that comes and goes;"
                               " update it"));
}

}  // namespace kvcached::vmm
