// Making and opening a segment's file.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
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

void* map_shared(int fd, std::size_t size, const std::string& path) {
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) raise_errno("cannot map " + path);
  return base;
}

}  // namespace

std::shared_ptr<Segment> Segment::create(const std::string& path, std::uint32_t num_pages,
                                         std::uint32_t num_ranks) {
  if (num_pages == 0 || num_pages > kMaxPages || num_ranks == 0 || num_ranks > kMaxRanks)
    throw std::invalid_argument("a segment needs 1 to " + std::to_string(kMaxPages) +
                                " pages and 1 to " + std::to_string(kMaxRanks) + " ranks, not " +
                                std::to_string(num_pages) + " pages and " +
                                std::to_string(num_ranks) + " ranks");
  const std::uint32_t ring = power_of_two(num_pages);
  const std::size_t size = total_size(num_pages, num_ranks, ring);
  NewFile file(path);
  file.allocate(size);
  void* base = map_shared(file.fd(), size, path);
  auto* header = new (base) SegmentHeader{};
  header->magic = kSegmentMagic;
  header->version = kSegmentVersion;
  header->num_pages = num_pages;
  header->num_ranks = num_ranks;
  header->ring_size = ring;
  std::shared_ptr<Segment> segment(new Segment(path, base, size));
  for (std::uint32_t r = 0; r < num_ranks; ++r) new (&segment->part(r)) RankPart{};
  file.publish();
  return segment;
}

std::shared_ptr<Segment> Segment::open(const std::string& path) {
  int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) raise_errno("cannot open the instance's segment " + path);
  File file(fd);
  struct stat info{};
  if (fstat(fd, &info) != 0) raise_errno("cannot read the size of " + path);
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size < sizeof(SegmentHeader)) throw std::runtime_error(path + " is too short for a segment");
  void* base = map_shared(fd, size, path);
  auto* header = static_cast<SegmentHeader*>(base);
  if (header->magic != kSegmentMagic || header->version != kSegmentVersion ||
      header->num_pages > kMaxPages || header->ring_size != power_of_two(header->num_pages) ||
      size != total_size(header->num_pages, header->num_ranks, header->ring_size)) {
    const std::uint32_t version = header->version;
    munmap(base, size);
    throw std::runtime_error(path + " is no segment of version " + std::to_string(kSegmentVersion) +
                             " (found version " + std::to_string(version) +
                             "): use one release of kvcached-core for all parts of an engine");
  }
  return std::shared_ptr<Segment>(new Segment(path, base, size));
}

Segment::~Segment() { munmap(base_, size_); }

}  // namespace kvcached::budget
