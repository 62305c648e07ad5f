// A vendor's library, opened at run time.
#pragma once

#include <string>
#include <vector>

namespace kvcached::vmm {

class SharedLibrary {
 public:
  // Opens the first of these that can be, for the life of the process: such libraries run threads
  // of their own and do not survive being closed. DeviceUnavailable, naming all that were tried,
  // why each failed, and `advice`.
  SharedLibrary(const std::vector<std::string>& names, const std::string& advice);

  // Sets a function pointer. DeviceUnavailable, naming library and function, where it has none.
  template <class Function>
  void find(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(symbol(name));
  }

 private:
  void* symbol(const char* name) const;

  std::string name_;
  void* library_ = nullptr;
};

}  // namespace kvcached::vmm
