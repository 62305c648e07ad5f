// The books of one driver: what is reserved, created and mapped, and what the contract allows next.
//
// A call first claims what it is about to change: that checks the caller's side of the contract,
// raises InvalidArgument before any effect, and keeps other calls off. What the claim covers is as
// before unless done() follows. So no lock is held while the kernel or a device works. Thread safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "vmm/address.h"
#include "vmm/driver.h"

namespace kvcached::vmm {

class RangeTable {
 private:
  struct Allocation {
    std::uint64_t native = 0;
    Bytes size = 0;
    Address mapped_at = 0;  // 0: nowhere
  };
  struct Mapping {
    std::uint64_t handle = 0;
    Bytes size = 0;
    bool accessible = false;
    bool busy = true;  // a call is under way
  };
  using Ranges = std::map<Address, Bytes>;
  using Allocations = std::unordered_map<std::uint64_t, Allocation>;
  using Mappings = std::map<Address, Mapping>;

 public:
  // `driver` is its name, for errors; `largest` the largest size that it can reckon with.
  RangeTable(std::string driver, Bytes granularity, Bytes largest);

  void check_multiple(const char* call, const char* what, Bytes value) const;

  void add_range(Address base, Bytes size);
  // A native handle, known by an id of ours from now on.
  Handle add_handle(std::uint64_t native, Bytes size);

  // A whole range that is about to be given back, or a handle that is about to be released. Nobody
  // else knows it meanwhile; without done() it is in the table again.
  template <class Table>
  class Removal {
   public:
    Removal(RangeTable& owner, Table& table, typename Table::node_type node)
        : owner_(&owner), table_(&table), node_(std::move(node)) {}
    Removal(const Removal&) = delete;
    Removal& operator=(const Removal&) = delete;
    ~Removal() {
      if (node_.empty()) return;
      const std::lock_guard lock(owner_->mutex_);
      table_->insert(std::move(node_));
    }
    const auto& value() const { return node_.mapped(); }
    void done() { node_ = {}; }

   private:
    RangeTable* owner_;
    Table* table_;
    typename Table::node_type node_;
  };
  Removal<Ranges> remove_range(void* base, Bytes size);
  Removal<Allocations> remove_handle(Handle handle);

  // A change of the mappings in a range.
  class Edit {
   public:
    Edit(const Edit&) = delete;
    Edit& operator=(const Edit&) = delete;
    ~Edit() { owner_.end(*this); }
    std::uint64_t native() const { return native_; }  // map: the handle's
    // set_access: the mappings that have none yet.
    const std::vector<std::pair<Address, Bytes>>& shut() const { return shut_; }
    void done() { done_ = true; }

   private:
    friend class RangeTable;
    enum class Kind { kMap, kSetAccess, kUnmap };
    Edit(RangeTable& owner, Kind kind, Address at, Bytes size, std::uint64_t native,
         std::vector<std::pair<Address, Bytes>> shut)
        : owner_(owner),
          kind_(kind),
          at_(at),
          size_(size),
          native_(native),
          shut_(std::move(shut)) {}

    RangeTable& owner_;
    const Kind kind_;
    const Address at_;
    const Bytes size_;
    const std::uint64_t native_;
    const std::vector<std::pair<Address, Bytes>> shut_;
    bool done_ = false;
  };
  Edit map(void* address, Handle handle);
  Edit set_access(void* address, Bytes size);
  Edit unmap(void* address, Bytes size);

  // The range is not empty, mapped, and accessible.
  void check_accessible(const char* call, void* address, Bytes size);

  // What is left, for the driver's end: (address, size), and (native, size).
  std::vector<std::pair<Address, Bytes>> mappings();
  std::vector<std::pair<Address, Bytes>> ranges();
  std::vector<std::pair<std::uint64_t, Bytes>> handles();

 private:
  void end(const Edit& edit);
  // These want mutex_ held.
  Allocations::iterator find(const char* call, Handle handle);
  Mappings::iterator mapping_over(Address address);  // that covers the address, or end()
  bool overlaps_mapping(Address address, Bytes size);
  void check_reserved(Address address, Bytes size);
  void untie(Mappings::iterator mapping);

  const std::string driver_;
  const Bytes granularity_, largest_;
  std::mutex mutex_;  // guards what follows
  Ranges ranges_;
  Allocations allocations_;
  Mappings mappings_;
};

}  // namespace kvcached::vmm
