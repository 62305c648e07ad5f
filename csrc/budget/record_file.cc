#include "budget/record_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "budget/record_new.h"

namespace kvcached::budget {
namespace {

// Each turn that does not end means that somebody else made or replaced the record meanwhile.
constexpr int kOpenTurns = 32;
// NAME_MAX is 255; the temporary name (record_new.h) adds the most to it.
constexpr std::size_t kLongestName = 200;

}  // namespace

RecordFile::RecordFile(const std::string& directory, const std::string& device, Bytes capacity,
                       Bytes headroom)
    : name_(escape_device(device)), capacity_(capacity), headroom_(headroom) {
  if (device.empty() || name_.size() > kLongestName) {
    throw BudgetError("device '" + device + "': a name of 1 to " + std::to_string(kLongestName) +
                      " characters is needed once it is escaped.");
  }
  if (capacity != 0 && headroom >= capacity) {
    throw BudgetError("device '" + device + "': headroom of " + std::to_string(headroom) +
                      " bytes leaves nothing of a capacity of " + std::to_string(capacity) +
                      " bytes. Lower the headroom.");
  }
  if (directory.find('\0') != std::string::npos) {
    throw BudgetError("budget_dir: has a NUL behind '" + std::string(directory.c_str()) +
                      "'; allowed is any other path.");
  }
  path_ = directory + "/" + name_ + ".record";
  directory_ = open_directory(directory);
  for (int turn = 0; turn < kOpenTurns; ++turn) {
    if (!open_existing()) continue;
    sweep_new_records(directory_.get(), name_, path_);
    return;
  }
  unmap();
  throw BudgetError(path_ + ": made and replaced by others " + std::to_string(kOpenTurns) +
                    " times while it was opened. Start again.");
}

RecordFile::~RecordFile() { unmap(); }

bool RecordFile::open_existing() {
  unmap();
  fd_ = Descriptor(
      ::openat(directory_.get(), (name_ + ".record").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (fd_.get() < 0) {
    if (errno != ENOENT) fail(path_, "open", errno, "Use another budget_dir.");
    make();
    return false;
  }
  try {
    table_ = std::make_unique<TableLockFile>(fd_.get(), path_);
    map();
    check_layout();
    if (!open_locks(false)) return false;
    if (std::strncmp(record_->header.boot_id, boot_id().c_str(), kBootIdBytes) == 0) return true;
    replace_stale();
  } catch (...) {
    unmap();
    throw;
  }
  return false;
}

void RecordFile::map() {
  struct stat found;
  if (::fstat(fd_.get(), &found) != 0) fail(path_, "stat", errno);
  if (found.st_uid != ::geteuid()) {
    throw BudgetError(path_ + ": owned by uid " + std::to_string(found.st_uid) +
                      ", allowed is uid " + std::to_string(::geteuid()) +
                      ", who runs this. Use another budget_dir, or remove it once nobody uses it.");
  }
  // Version and magic come first in any version: too short for these is no record at all.
  Header start{};
  if (::pread(fd_.get(), &start, sizeof(start), 0) < 16 || start.magic != kMagic) {
    throw BudgetError(path_ + ": is not a budget record. Remove it or use another budget_dir.");
  }
  if (start.version != kVersion) {
    throw BudgetError(path_ + ": is a record of version " + std::to_string(start.version) +
                      ", this build reads version " + std::to_string(kVersion) +
                      ". Use another budget_dir, or stop the engines of the other version and "
                      "remove the file.");
  }
  if (found.st_size != static_cast<off_t>(sizeof(Record))) {
    throw BudgetError(path_ + ": has " + std::to_string(found.st_size) +
                      " bytes, a record of version " + std::to_string(kVersion) + " has " +
                      std::to_string(sizeof(Record)) +
                      ". Stop the engines that use it and remove it.");
  }
  void* at = ::mmap(nullptr, sizeof(Record), PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (at == MAP_FAILED) fail(path_, "map", errno);
  record_ = static_cast<Record*>(at);
}

void RecordFile::unmap() {
  if (record_ != nullptr) ::munmap(record_, sizeof(Record));
  record_ = nullptr;
}

void RecordFile::check_layout() const {
  if (record_->header.row_count != kRows) {
    throw BudgetError(path_ + ": has " + std::to_string(record_->header.row_count) +
                      " rows, this build reads " + std::to_string(kRows) +
                      ". Stop the engines that use it and remove it.");
  }
}

bool RecordFile::open_locks(bool create) {
  locks_ = RowLocks::open(directory_.get(), name_ + ".rows", path_, create);
  if (create || (locks_ != nullptr && locks_->inode() == record_->header.rows_inode)) return true;
  if (detached()) return false;  // a newer record may have newer locks
  throw BudgetError(
      path_ + ": the file of its row locks, `" + name_ + ".rows`, was " +
      (locks_ == nullptr ? "removed" : "replaced") +
      ", so nobody can tell who lives. Stop the engines that use it and remove both.");
}

bool RecordFile::detached() const {
  struct stat named, own;
  return ::fstat(fd_.get(), &own) != 0 || ::stat(path_.c_str(), &named) != 0 ||
         named.st_ino != own.st_ino || named.st_dev != own.st_dev;
}

void RecordFile::replace_stale() {
  const TableLock lock(*table_, kStartDeadline);
  if (!lock) throw BudgetError(TableLock::held_message(path_, kStartDeadline));
  if (detached()) return;
  for (int row = 0; row < kRows; ++row) {
    if (record_->rows[row].taken.load() == 0 || !locks_->alive(row)) continue;
    throw BudgetError(
        path_ + ": was made in boot " + std::string(record_->header.boot_id) + ", this is boot " +
        boot_id() + ", yet row " + std::to_string(row) + " ('" + record_->rows[row].instance() +
        "') lives: the directory is shared between machines. Use a local budget_dir.");
  }
  if (capacity_ == 0) {
    capacity_ = record_->header.capacity.load();
    headroom_ = record_->header.headroom.load();
  }
  NewRecord(directory_.get(), name_, path_, {locks_->inode(), capacity_, headroom_}).replace();
}

void RecordFile::make() {
  if (capacity_ == 0) {
    throw BudgetError(path_ +
                      ": there is no record yet and no capacity was given. Start an engine "
                      "first or name a capacity.");
  }
  open_locks(true);
  NewRecord(directory_.get(), name_, path_, {locks_->inode(), capacity_, headroom_}).link();
}

}  // namespace kvcached::budget
