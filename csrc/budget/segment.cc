#include "budget/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>

#include "budget/futex.h"

namespace kvcached::budget {
namespace {

constexpr std::uint64_t kMagic = 0x4745534341564b00;  // "\0KVACSEG"
constexpr std::uint32_t kVersion = 1;

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
  ~File() { ::close(fd_); }
  int get() const { return fd_; }

 private:
  int fd_;
};

void* map_shared(int fd, std::size_t size, const std::string& path) {
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) raise_errno("cannot map " + path);
  return base;
}

// This instance's word, seen `wraps`-safely: whether `done` has passed `sequence`.
bool passed(std::uint32_t done, std::uint32_t sequence) {
  return static_cast<std::int32_t>(done - sequence) > 0;
}

}  // namespace

std::shared_ptr<Segment> Segment::create(const std::string& path, std::uint32_t num_pages,
                                         std::uint32_t num_ranks) {
  if (num_pages == 0 || num_ranks == 0 || num_ranks > kMaxRanks)
    throw std::invalid_argument("a segment needs 1 page or more and 1 to 64 ranks, not " +
                                std::to_string(num_pages) + " pages and " +
                                std::to_string(num_ranks) + " ranks");
  const std::uint32_t ring = power_of_two(num_pages);
  const std::size_t size = total_size(num_pages, num_ranks, ring);
  const std::string temporary = path + "." + std::to_string(getpid());
  int fd = ::open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) raise_errno("cannot make " + temporary);
  File file(fd);
  if (int error = posix_fallocate(fd, 0, static_cast<off_t>(size)); error != 0) {
    ::unlink(temporary.c_str());
    throw std::system_error(error, std::generic_category(),
                            "no room for " + std::to_string(size) + " bytes at " + temporary);
  }
  void* base = map_shared(fd, size, temporary);
  auto* header = new (base) SegmentHeader{};
  header->magic = kMagic;
  header->version = kVersion;
  header->num_pages = num_pages;
  header->num_ranks = num_ranks;
  header->ring_size = ring;
  std::shared_ptr<Segment> segment(new Segment(path, base, size));
  for (std::uint32_t r = 0; r < num_ranks; ++r) new (&segment->part(r)) RankPart{};
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    int error = errno;
    ::unlink(temporary.c_str());
    throw std::system_error(error, std::generic_category(), "cannot name " + path);
  }
  return segment;
}

std::shared_ptr<Segment> Segment::open(const std::string& path) {
  int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) raise_errno("cannot open the instance's segment " + path);
  File file(fd);
  struct stat info {};
  if (fstat(fd, &info) != 0) raise_errno("cannot read the size of " + path);
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size < sizeof(SegmentHeader)) throw std::runtime_error(path + " is too short for a segment");
  void* base = map_shared(fd, size, path);
  auto* header = static_cast<SegmentHeader*>(base);
  if (header->magic != kMagic || header->version != kVersion ||
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
  if (outstanding() + pages.size() > header_->ring_size)
    throw std::logic_error(std::to_string(pages.size()) + " entries on top of " +
                           std::to_string(outstanding()) + " unresolved do not fit a ring of " +
                           std::to_string(header_->ring_size));
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
    auto& list = owned == header_->num_ranks ? resolved.owned
                 : owned == 0                ? resolved.refused
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

PageState Segment::page_state(std::uint32_t rank, std::int32_t page) const {
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

void Segment::unlink() { ::unlink(path_.c_str()); }

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
