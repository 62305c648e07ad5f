#include "budget/record_new.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <vector>

namespace kvcached::budget {
namespace {

constexpr char kBootId[] = "/proc/sys/kernel/random/boot_id";
constexpr char kTemporary[] = ".tmp";
constexpr std::chrono::milliseconds kOneTry{0};

std::string read_boot_id() {
  std::string text;
  errno = 0;
  std::ifstream file(kBootId);
  if (!file.is_open()) fail(kBootId, "open", errno, "Mount /proc.");
  file >> text;
  if (text.empty() || text.size() >= kBootIdBytes) {
    throw BudgetError(std::string(kBootId) + ": found '" + text +
                      "', a boot id is needed. Mount /proc.");
  }
  return text;
}

std::string random_hex() {
  std::uint64_t bits = 0;
  if (::getrandom(&bits, sizeof(bits), 0) != sizeof(bits)) bits = ::getpid();
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(bits));
  return text;
}

int create(int directory, const std::string& name, const std::string& path) {
  const int fd = ::openat(directory, name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) fail(path, "make", errno, "Use another budget_dir.");
  return fd;
}

// The temporaries of `name`, and those of names that begin with it: a lock tells whose lives.
std::vector<std::string> temporaries(int directory, const std::string& name) {
  std::vector<std::string> found;
  const int own = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* stream = own < 0 ? nullptr : ::fdopendir(own);
  if (stream == nullptr) {
    if (own >= 0) ::close(own);
    return found;
  }
  const std::string start = "." + name + ".";
  constexpr std::size_t kEnd = sizeof(kTemporary) - 1;
  while (const dirent* entry = ::readdir(stream)) {
    const std::string text = entry->d_name;
    if (text.size() > start.size() + kEnd && text.compare(0, start.size(), start) == 0 &&
        text.compare(text.size() - kEnd, kEnd, kTemporary) == 0) {
      found.push_back(text);
    }
  }
  ::closedir(stream);
  return found;
}

}  // namespace

const std::string& boot_id() {
  static const std::string id = read_boot_id();
  return id;
}

NewRecord::NewRecord(int directory, const std::string& name, const std::string& path,
                     const NewRecordTerms& terms)
    : directory_(directory),
      record_(name + ".record"),
      path_(path),
      temporary_("." + name + "." + random_hex() + kTemporary),
      fd_(create(directory, temporary_, path)) {
  try {
    // Who sweeps may have been faster than this lock: then link() or replace() find no name.
    file_ = std::make_unique<TableLockFile>(fd_.get(), path_);
    lock_ = std::make_unique<TableLock>(*file_, kOneTry);
    write(terms);
  } catch (...) {
    ::unlinkat(directory_, temporary_.c_str(), 0);
    throw;
  }
}

NewRecord::~NewRecord() { ::unlinkat(directory_, temporary_.c_str(), 0); }

void NewRecord::write(const NewRecordTerms& terms) const {
  auto fresh = std::make_unique<Record>();
  Header& header = fresh->header;
  header.magic = kMagic;
  header.version = kVersion;
  header.row_count = kRows;
  header.rows_inode = terms.rows_inode;
  std::strncpy(header.boot_id, boot_id().c_str(), kBootIdBytes - 1);
  header.capacity.store(terms.capacity);
  header.headroom.store(terms.headroom);
  int error = ::posix_fallocate(fd_.get(), 0, sizeof(Record));
  if (error == 0) {
    const ssize_t written = ::pwrite(fd_.get(), fresh.get(), sizeof(Record), 0);
    if (written != static_cast<ssize_t>(sizeof(Record))) error = written < 0 ? errno : ENOSPC;
  }
  if (error != 0) {
    fail(path_, "make", error,
         "It needs " + std::to_string(sizeof(Record)) +
             " bytes. Free some space there or use another budget_dir.");
  }
}

void NewRecord::link() {
  if (::linkat(directory_, temporary_.c_str(), directory_, record_.c_str(), 0) == 0) return;
  if (errno != EEXIST && errno != ENOENT) fail(path_, "link", errno, "Use another budget_dir.");
}

void NewRecord::replace() {
  if (::renameat(directory_, temporary_.c_str(), directory_, record_.c_str()) == 0) return;
  if (errno != ENOENT) fail(path_, "replace", errno);
}

void sweep_new_records(int directory, const std::string& name, const std::string& path) {
  for (const std::string& found : temporaries(directory, name)) {
    const Descriptor fd(::openat(directory, found.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (fd.get() < 0) continue;
    try {
      TableLockFile file(fd.get(), path);
      if (const TableLock lock(file, kOneTry); lock) ::unlinkat(directory, found.c_str(), 0);
    } catch (const BudgetError&) {
      continue;  // no descriptor left: another opener's turn
    }
  }
}

}  // namespace kvcached::budget
