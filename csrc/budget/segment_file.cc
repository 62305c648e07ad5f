// Making and opening a segment's file.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <system_error>

#include "budget/segment_layout.h"

namespace kvcached::budget {
namespace {

[[noreturn]] void raise_errno(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// A file under a name of its own until it is renamed to `path`; removed if it never is.
class NewFile {
 public:
  explicit NewFile(const std::string& path)
      : path_(path), name_(path + ".XXXXXX"), file_(mkostemp(name_.data(), O_CLOEXEC)) {
    if (file_.get() < 0) raise_errno("cannot make " + name_);
  }
  ~NewFile() {
    if (!name_.empty()) ::unlink(name_.c_str());
  }
  int fd() const { return file_.get(); }
  void allocate(std::size_t size) {
    if (int error = posix_fallocate(fd(), 0, static_cast<off_t>(size)); error != 0)
      throw std::system_error(error, std::generic_category(),
                              "no room for " + std::to_string(size) + " bytes at " + name_);
  }
  void publish() {
    if (::rename(name_.c_str(), path_.c_str()) != 0) raise_errno("cannot name " + path_);
    name_.clear();
  }

 private:
  const std::string path_;
  std::string name_;
  File file_;
};

void* map_shared(int fd, std::size_t size, const std::string& path, int access) {
  void* base = mmap(nullptr, size, access, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) raise_errno("cannot map " + path);
  return base;
}

void check_path(const std::string& path) {
  if (path.find('\0') != std::string::npos)
    throw std::invalid_argument("a segment's path has a NUL behind '" + std::string(path.c_str()) +
                                "'; allowed is any other");
}

// Empty, or why these bytes are no segment of ours.
std::string fault_of(const SegmentHeader& header, std::size_t size) {
  if (header.magic != kSegmentMagic) return " is no segment";
  if (header.version != kSegmentVersion)
    return " is a segment of version " + std::to_string(header.version) + ", this build reads " +
           std::to_string(kSegmentVersion) +
           ": use one release of kvcached-core for all parts of an engine";
  const bool sound = header.num_pages > 0 && header.num_pages <= kMaxPages &&
                     header.num_ranks > 0 && header.num_ranks <= kMaxRanks &&
                     header.ring_size == power_of_two(header.num_pages);
  const std::size_t due =
      sound ? total_size(header.num_pages, header.num_ranks, header.ring_size) : 0;
  if (size == due) return "";
  return " is a torn segment: it has " + std::to_string(size) + " bytes, its header speaks of " +
         std::to_string(due) + " (" + std::to_string(header.num_pages) + " pages, " +
         std::to_string(header.num_ranks) + " ranks)";
}

std::uint64_t wall_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

}  // namespace

std::shared_ptr<Segment> Segment::create(const std::string& path, std::uint32_t num_pages,
                                         std::uint32_t num_ranks) {
  if (num_pages == 0 || num_pages > kMaxPages || num_ranks == 0 || num_ranks > kMaxRanks)
    throw std::invalid_argument("a segment needs 1 to " + std::to_string(kMaxPages) +
                                " pages and 1 to " + std::to_string(kMaxRanks) + " ranks, not " +
                                std::to_string(num_pages) + " pages and " +
                                std::to_string(num_ranks) + " ranks");
  check_path(path);
  const std::uint32_t ring = power_of_two(num_pages);
  const std::size_t size = total_size(num_pages, num_ranks, ring);
  NewFile file(path);
  file.allocate(size);
  void* base = map_shared(file.fd(), size, path, PROT_READ | PROT_WRITE);
  auto* header = new (base) SegmentHeader{};
  header->magic = kSegmentMagic;
  header->version = kSegmentVersion;
  header->num_pages = num_pages;
  header->num_ranks = num_ranks;
  header->ring_size = ring;
  header->pid = getpid();
  header->made_wall_ns = wall_ns();
  header->made_monotonic_ns = monotonic_ns();
  std::shared_ptr<Segment> segment(new Segment(path, base, size));
  for (std::uint32_t r = 0; r < num_ranks; ++r) new (&segment->part(r)) RankPart{};
  file.publish();
  return segment;
}

std::shared_ptr<Segment> Segment::open(const std::string& path) { return attach(path, true); }

std::shared_ptr<const Segment> Segment::view(const std::string& path) {
  return attach(path, false);
}

std::shared_ptr<Segment> Segment::attach(const std::string& path, bool writable) {
  check_path(path);
  const File file(::open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC));
  if (file.get() < 0) raise_errno("cannot open the instance's segment " + path);
  struct stat info{};
  if (fstat(file.get(), &info) != 0) raise_errno("cannot read the size of " + path);
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size < sizeof(SegmentHeader)) throw std::runtime_error(path + " is too short for a segment");
  void* base = map_shared(file.get(), size, path, PROT_READ | (writable ? PROT_WRITE : 0));
  const std::string fault = fault_of(*static_cast<SegmentHeader*>(base), size);
  if (!fault.empty()) {
    munmap(base, size);
    throw std::runtime_error(path + fault);
  }
  return std::shared_ptr<Segment>(new Segment(path, base, size));
}

Segment::~Segment() { munmap(base_, size_); }

}  // namespace kvcached::budget
