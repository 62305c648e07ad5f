#include "budget/lock_rows.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <utility>

#include "budget/record_file.h"
#include "vmm/own_process.h"

namespace kvcached::budget {
namespace {

constexpr int kPinByte = kRows;
constexpr char kLockHint[] = "Put budget_dir on a file system with record locks.";

// Lives as long as the process: locks must outlast every static destructor.
struct Registry {
  vmm::OwnProcess process;
  std::mutex mutex;
  std::map<std::pair<dev_t, ino_t>, std::shared_ptr<RowLocks>> files;
};

// A forked child holds nothing of what its parent's registry says, and finds that one's mutex in
// any state: it starts a new one.
Registry& registry() {
  static std::atomic<Registry*> current{new Registry};
  Registry* found = current.load();
  if (!found->process.is_here()) {
    auto* fresh = new Registry;
    if (current.compare_exchange_strong(found, fresh)) return *fresh;
    delete fresh;
  }
  return *found;
}

struct flock request(short type, int row) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = row;
  lock.l_len = 1;
  return lock;
}

}  // namespace

RowLocks::RowLocks(int fd, std::uint64_t inode, std::string path)
    : fd_(fd), inode_(inode), path_(std::move(path)) {}

std::shared_ptr<RowLocks> RowLocks::open(int directory, const std::string& name,
                                         const std::string& path, bool create) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> guard(all.mutex);
  struct stat found;
  if (::fstatat(directory, name.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0) {
    const auto known = all.files.find({found.st_dev, found.st_ino});
    if (known != all.files.end()) return known->second;
  }
  const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT : 0);
  const int fd = ::openat(directory, name.c_str(), flags, 0600);
  if (fd < 0 && errno == ENOENT && !create) return nullptr;
  if (fd < 0) fail(path, "open the row locks beside", errno, "Use another budget_dir.");
  if (::fstat(fd, &found) != 0) fail(path, "stat the row locks beside", errno);
  auto& entry = all.files[{found.st_dev, found.st_ino}];
  if (entry == nullptr) entry = std::make_shared<RowLocks>(fd, found.st_ino, path);
  return entry;
}

bool RowLocks::try_hold(int row) {
  if (held_[row].exchange(true)) return false;
  struct flock lock = request(F_WRLCK, row);
  if (::fcntl(fd_, F_SETLK, &lock) == 0) return true;
  const int error = errno;
  held_[row].store(false);
  if (error != EAGAIN && error != EACCES) fail(path_, "lock a row of", error, kLockHint);
  return false;
}

void RowLocks::release(int row) {
  struct flock lock = request(F_UNLCK, row);
  ::fcntl(fd_, F_SETLK, &lock);
  held_[row].store(false);
}

bool RowLocks::alive(int row) const {
  if (held_[row].load()) return true;
  struct flock lock = request(F_WRLCK, row);
  if (::fcntl(fd_, F_GETLK, &lock) != 0) fail(path_, "test a row lock of", errno, kLockHint);
  return lock.l_type != F_UNLCK;
}

void RowLocks::pin() {
  const std::lock_guard<std::mutex> guard(mutex_);
  struct flock lock = request(F_RDLCK, kPinByte);
  if (pins_ == 0 && ::fcntl(fd_, F_SETLK, &lock) != 0)
    fail(path_, "pin the capacity of", errno, kLockHint);
  ++pins_;
}

void RowLocks::unpin() {
  const std::lock_guard<std::mutex> guard(mutex_);
  struct flock lock = request(F_UNLCK, kPinByte);
  if (--pins_ == 0) ::fcntl(fd_, F_SETLK, &lock);
}

bool RowLocks::pinned() const {
  if (pins_ > 0) return true;
  struct flock lock = request(F_WRLCK, kPinByte);
  if (::fcntl(fd_, F_GETLK, &lock) != 0) fail(path_, "test the pin of", errno, kLockHint);
  return lock.l_type != F_UNLCK;
}

}  // namespace kvcached::budget
