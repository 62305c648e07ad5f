#include "budget/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>

#include "budget/futex.h"

namespace kvcached::budget {
namespace {

constexpr std::uint64_t kMagic = 0x4745534341564b00;  // "\0KVACSEG"
constexpr std::uint32_t kVersion = 1;

// Page ids and distances in the ring are signed 32-bit numbers.
constexpr std::uint32_t kMaxPages = 1U << 30;

std::uint32_t power_of_two(std::uint32_t n) {
  std::uint32_t p = 1;
  while (p < n) p <<= 1;
  return p;
}

std::size_t aligned(std::size_t n) { return (n + 63) / 64 * 64; }

std::size_t ring_offset() { return aligned(sizeof(SegmentHeader)); }

std::size_t parts_offset(std::uint32_t ring_size) {
  return ring_offset() + aligned(ring_size * sizeof(std::uint32_t));
}

std::size_t part_stride(std::uint32_t ring_size, std::uint32_t num_pages) {
  return aligned(sizeof(RankPart)) + aligned(ring_size) + aligned(num_pages);
}

std::size_t total_size(std::uint32_t pages, std::uint32_t ranks, std::uint32_t ring) {
  return parts_offset(ring) + ranks * part_stride(ring, pages);
}

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

// Whether `done` lies behind `sequence`, also where the 32 bits wrap.
bool passed(std::uint32_t done, std::uint32_t sequence) {
  return static_cast<std::int32_t>(done - sequence) > 0;
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
  header->magic = kMagic;
  header->version = kVersion;
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
  if (header->magic != kMagic || header->version != kVersion || header->num_pages > kMaxPages ||
      header->ring_size != power_of_two(header->num_pages) ||
      size != total_size(header->num_pages, header->num_ranks, header->ring_size)) {
    const std::uint32_t version = header->version;
    munmap(base, size);
    throw std::runtime_error(path + " is no segment of version " + std::to_string(kVersion) +
                             " (found version " + std::to_string(version) +
                             "): use one release of kvcached-core for all parts of an engine");
  }
  return std::shared_ptr<Segment>(new Segment(path, base, size));
}

Segment::Segment(std::string path, void* base, std::size_t size)
    : path_(std::move(path)),
      base_(base),
      size_(size),
      header_(static_cast<SegmentHeader*>(base)),
      head_(header_->grow_head.load()),
      tail_(head_) {}

Segment::~Segment() { munmap(base_, size_); }

std::atomic<std::uint32_t>* Segment::ring() const {
  return reinterpret_cast<std::atomic<std::uint32_t>*>(static_cast<char*>(base_) + ring_offset());
}

RankPart& Segment::part(std::uint32_t rank) const {
  if (rank >= header_->num_ranks)
    throw std::out_of_range("rank " + std::to_string(rank) + " of " +
                            std::to_string(header_->num_ranks));
  return *reinterpret_cast<RankPart*>(static_cast<char*>(base_) + parts_offset(header_->ring_size) +
                                      rank * part_stride(header_->ring_size, header_->num_pages));
}

std::atomic<std::uint8_t>* Segment::results(std::uint32_t rank) const {
  return reinterpret_cast<std::atomic<std::uint8_t>*>(reinterpret_cast<char*>(&part(rank)) +
                                                      aligned(sizeof(RankPart)));
}

std::atomic<std::uint8_t>* Segment::states(std::uint32_t rank) const {
  return results(rank) + aligned(header_->ring_size);
}

void Segment::request(const std::vector<std::int32_t>& pages) {
  for (std::int32_t page : pages) check_page(page);
  if (outstanding() + pages.size() > header_->ring_size)
    throw std::logic_error(std::to_string(pages.size()) + " entries on top of " +
                           std::to_string(outstanding()) + " unresolved do not fit a ring of " +
                           std::to_string(header_->ring_size) + ": poll() before asking for more");
  if (pages.empty()) return;
  const std::uint32_t mask = header_->ring_size - 1;
  for (std::int32_t page : pages) {
    for (std::uint32_t r = 0; r < header_->num_ranks; ++r)
      results(r)[head_ & mask].store(static_cast<std::uint8_t>(Result::kPending));
    ring()[head_++ & mask].store(static_cast<std::uint32_t>(page), std::memory_order_relaxed);
  }
  header_->grow_head.store(head_, std::memory_order_release);
  futex_bump(header_->doorbell);
}

Resolved Segment::poll() {
  Resolved resolved;
  std::uint32_t done = head_;
  for (std::uint32_t r = 0; r < header_->num_ranks; ++r) {
    std::uint32_t theirs = part(r).grow_done.load(std::memory_order_acquire);
    if (passed(done, theirs)) done = theirs;
  }
  const std::uint32_t mask = header_->ring_size - 1;
  for (; tail_ != done; ++tail_) {
    const auto page = static_cast<std::int32_t>(ring()[tail_ & mask].load());
    std::uint32_t owned = 0;
    for (std::uint32_t r = 0; r < header_->num_ranks; ++r)
      owned += results(r)[tail_ & mask].load() == static_cast<std::uint8_t>(Result::kOwned);
    auto& list = owned == header_->num_ranks           ? resolved.owned
                 : owned == 0 && !is_quarantined(page) ? resolved.refused
                                                       : resolved.partial;
    list.push_back(page);
  }
  return resolved;
}

std::uint64_t Segment::released_epoch() const {
  std::uint64_t least = UINT64_MAX;
  for (std::uint32_t r = 0; r < header_->num_ranks; ++r) {
    std::uint64_t theirs = part(r).released_epoch.load(std::memory_order_acquire);
    least = theirs < least ? theirs : least;
  }
  return least;
}

void Segment::check_page(std::int32_t page) const {
  if (page < 0 || static_cast<std::uint32_t>(page) >= header_->num_pages)
    throw std::out_of_range("there is no page " + std::to_string(page) + " in " + path_ +
                            ": pages are 0 to " + std::to_string(header_->num_pages - 1));
}

bool Segment::is_quarantined(std::int32_t page) const {
  for (std::uint32_t r = 0; r < header_->num_ranks; ++r)
    if (page_state(r, page) == PageState::kQuarantined) return true;
  return false;
}

PageState Segment::page_state(std::uint32_t rank, std::int32_t page) const {
  check_page(page);
  return static_cast<PageState>(states(rank)[page].load(std::memory_order_acquire));
}

void Segment::set_wish(std::uint32_t pages) {
  if (header_->wish_pages.exchange(pages) != pages) futex_bump(header_->doorbell);
}

void Segment::set_idle(std::uint32_t pages) {
  if (header_->idle_pages.exchange(pages) != pages) futex_bump(header_->doorbell);
}

std::string Segment::failure() const {
  for (std::uint32_t r = 0; r < header_->num_ranks; ++r)
    if (part(r).failed.load(std::memory_order_acquire) != 0)
      return "rank " + std::to_string(r) + ": " + part(r).failure;
  return {};
}

std::uint32_t Segment::progress() const { return header_->progress.load(); }

std::uint32_t Segment::wait_progress(std::uint32_t seen, Milliseconds deadline) const {
  if (header_->progress.load() == seen) futex_wait(header_->progress, seen, deadline);
  return header_->progress.load();
}

std::int32_t Segment::entry(std::uint32_t sequence) const {
  return static_cast<std::int32_t>(ring()[sequence & (header_->ring_size - 1)].load());
}

void Segment::resolve(std::uint32_t rank, std::uint32_t sequence, Result result) {
  results(rank)[sequence & (header_->ring_size - 1)].store(static_cast<std::uint8_t>(result));
  part(rank).grow_done.store(sequence + 1, std::memory_order_release);
  ring_scheduler();
}

void Segment::set_page_state(std::uint32_t rank, std::int32_t page, PageState state) {
  states(rank)[page].store(static_cast<std::uint8_t>(state), std::memory_order_release);
}

void Segment::ring_scheduler() { futex_bump(header_->progress); }

void Segment::fail(std::uint32_t rank, const std::string& text) {
  RankPart& mine = part(rank);
  if (mine.failed.load() != 0) return;
  std::strncpy(mine.failure, text.c_str(), kFailureText - 1);
  mine.failed.store(1, std::memory_order_release);
  ring_scheduler();
}

}  // namespace kvcached::budget
