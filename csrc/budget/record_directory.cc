#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "budget/record_file.h"

namespace kvcached::budget {

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

void fail(const std::string& path, const std::string& verb, int error, const std::string& hint) {
  const bool none_left = error == EMFILE || error == ENFILE;
  const std::string advice =
      none_left ? "Raise the limit of open files (`ulimit -n`) or close some." : hint;
  throw BudgetError(path + ": cannot " + verb + " it: " + std::strerror(error) + "." +
                    (advice.empty() ? "" : " " + advice));
}

std::string escape_device(const std::string& device) {
  static const char* const kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  std::string out;
  for (const char c : device) {
    if (c != '\0' && std::strchr(kPlain, c) != nullptr) {
      out += c;
      continue;
    }
    char hex[4];
    std::snprintf(hex, sizeof(hex), "%%%02X", static_cast<unsigned char>(c));
    out += hex;
  }
  return out;
}

namespace {

constexpr char kOtherDirectory[] = "Use another budget_dir.";

void make_directories(const std::string& path) {
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string prefix = path.substr(0, end);
    if (::mkdir(prefix.c_str(), 0700) != 0 && errno != EEXIST) {
      const int error = errno;
      struct stat found;
      // A parent on a read-only or foreign file system may answer before it says EEXIST.
      if (::stat(prefix.c_str(), &found) != 0) fail(prefix, "make", error, kOtherDirectory);
    }
    if (end == std::string::npos) return;
  }
}

std::string octal(mode_t mode) {
  char text[8];
  std::snprintf(text, sizeof(text), "%04o", static_cast<unsigned>(mode & 07777));
  return text;
}

}  // namespace

Descriptor open_directory(const std::string& path) {
  if (path.empty()) throw BudgetError("the budget's directory is empty. Name one as budget_dir.");
  make_directories(path);
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (fd.get() < 0) {
    fail(path, "open", errno,
         "It must be a directory, not a symbolic link. Use another budget_dir.");
  }
  struct stat found;
  if (::fstat(fd.get(), &found) != 0) fail(path, "stat", errno);
  if (found.st_uid != ::geteuid()) {
    throw BudgetError(path + ": owned by uid " + std::to_string(found.st_uid) +
                      ", allowed is uid " + std::to_string(::geteuid()) + ", who runs this. " +
                      kOtherDirectory);
  }
  if ((found.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    throw BudgetError(path + ": has mode " + octal(found.st_mode) +
                      ", writable by others; allowed is 0700 to 0755. Run `chmod 0700 " + path +
                      "` or use another budget_dir.");
  }
  return fd;
}

}  // namespace kvcached::budget
