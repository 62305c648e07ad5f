// The ledger: the state of every block and page of one pool, and the choice of what is handed out,
// grown and given back. Pure: no clock, driver, socket, thread or Python object.
//
// Block ids are 0 .. num_blocks-1; page p holds the blocks_per_page consecutive ids from
// p * blocks_per_page on; the last page may hold fewer. Block 0 is the null block: never handed
// out, never freed; its page is owned from construction, never counts as empty and never retires.
//
//   page    virtual -> preparing -> owned -> retiring -> virtual     quarantined is for good
//                         |  |                 |
//             virtual <---+  +------> quarantined
//   block   free -> used -> cached -> used | free;  used -> free
//
// A block that is not free lies on an owned page. What the architecture calls a used page is an
// owned one with a used or cached block in it.
//
// Errors: std::invalid_argument for an argument or edge that is not allowed; it names the call, the
// block or page and its state. Every call is all or nothing: after an error nothing has changed.
// An id named twice in one call counts as an illegal second edge, but for uncache() and pages_of().
//
// Threads: one at a time; the caller sees to it. No copies: there is one truth about a pool.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "pool/bit_set.h"
#include "pool/lru_list.h"

namespace kvcached::pool {

using Id = std::int32_t;  // of a block or a page
using Ids = std::vector<Id>;

enum class BlockState : std::uint8_t {
  kNull,
  kUsed,    // held by a request
  kCached,  // held by none, but holds an indexed prefix; in order of use
  kFree,    // content dead
};
enum class PageState : std::uint8_t { kVirtual, kPreparing, kOwned, kRetiring, kQuarantined };
constexpr std::size_t kPageStates = 5;

const char* name(BlockState state);
const char* name(PageState state);

class Ledger {
 public:
  // Both at least 1, num_blocks at most 2^31 - 1. All pages but the null block's are virtual.
  Ledger(std::int64_t num_blocks, std::int64_t blocks_per_page);
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // ---- blocks. O(1) a block.
  // Hands out n <= available() blocks. As long as a whole page of them is wanted and one is empty,
  // that one, the lowest first: what is asked for together is mostly given back together, and then
  // its pages are empty again. The rest comes, page by page, from pages that have a used block,
  // since these cannot be given back anyway; then from pages that only the cache holds; of either
  // kind the page with the fewest free blocks first; then from empty pages. Ties go to the lowest
  // page id, and in a page to the lowest block id. When none is free: cached ones, least recently
  // used first. The engine drops the hash of a cached one by itself.
  Ids pop(std::int64_t n);
  void push_free(const Ids& ids);    // used -> free
  void push_cached(const Ids& ids);  // used -> cached; the last id is the most recently used
  void take(Id block);               // cached or free, on an owned page -> used: a prefix hit
  // cached -> free: the hash was dropped. Any other state is left alone, since a hash can be
  // dropped from a used block too.
  void uncache(const Ids& ids);
  void reset_cached();  // all cached -> free

  // ---- growth
  Ids plan_growth(std::int64_t max_pages);  // virtual -> preparing, lowest ids first
  void grown(const Ids& pages);             // preparing -> owned
  void growth_failed(const Ids& pages);     // preparing -> virtual

  // ---- shrinking
  // owned and empty -> retiring, highest ids first, so that the pool compacts downwards.
  Ids retire_empty(std::int64_t max_pages);
  void released(const Ids& pages);    // retiring -> virtual
  void kept(const Ids& pages);        // retiring -> owned: a rank could not give it back
  void quarantine(const Ids& pages);  // preparing or retiring -> quarantined
  // The cached blocks to evict so that up to n_pages more pages become empty, page by page: the
  // page with the fewest cached blocks first, then the one whose latest cached block is the least
  // recent. Changes nothing: the engine evicts, which comes back as uncache(). O(num_blocks).
  Ids victims_for_pages(std::int64_t n_pages) const;
  // The same for as many pages as cached_only_pages() exceeds max_pages; O(1) if it does not. For
  // max_pages 0 every cached block, also one beside used blocks: nothing unreferenced is kept.
  Ids victims_over_bound(std::int64_t max_pages) const;
  bool is_over_bound(std::int64_t max_pages) const;  // whether that gives any; O(1)

  // ---- first use
  // The pages that had a block handed out (pop, take) for the first time since they became owned;
  // each is told once an ownership, in ascending order. One that retired before it was told is not.
  Ids take_first_used();

  // ---- counts, O(1). owned pages = used_pages() + empty_pages().
  Id num_blocks() const { return num_blocks_; }
  Id blocks_per_page() const { return blocks_per_page_; }
  Id num_pages() const { return num_pages_; }
  Id num_free() const { return num_free_; }  // on owned pages
  Id num_cached() const { return num_cached_; }
  Id num_used() const { return num_used_; }  // without the null block
  Id available() const { return num_free_ + num_cached_; }
  // Blocks that could be handed out once coming_pages have grown, and virtual ones until
  // most_pages are owned.
  std::int64_t obtainable(std::int64_t most_pages, std::int64_t coming_pages) const;
  Id pages(PageState state) const { return pages_in_[static_cast<std::size_t>(state)]; }
  // Owned pages without a used block, the null page never among them: all free, or some cached.
  Id empty_pages() const { return empty_pages_; }
  Id cached_only_pages() const { return cached_only_pages_; }
  Id used_pages() const { return pages(PageState::kOwned) - empty_pages_; }

  // ---- views
  BlockState state_of(Id block) const;
  PageState page_state(Id page) const;
  Id block_page(Id block) const;
  Ids pages_of(const Ids& blocks) const;  // sorted, each once
  Ids free_ids() const;                   // what pop(available()) would return, in that order

  // Recomputes everything from the states of blocks and pages; std::logic_error with the values of
  // the first thing that does not agree. O(num_blocks).
  void check_integrity() const;

 private:
  class PageEdit;

  static std::size_t at(Id id) { return static_cast<std::size_t>(id); }
  Id page_at(Id block) const { return block / blocks_per_page_; }  // unchecked
  std::int64_t begin_of(Id page) const { return std::int64_t{page} * blocks_per_page_; }
  std::int64_t end_of(Id page) const;
  Id room(Id page) const;                         // its free blocks
  std::int64_t room_key(Id page, Id room) const;  // its place in by_room_: the order of pop()
  void index(Id page);                            // enters an owned page into counts and sets
  void unindex(Id page);                          // the reverse, before its blocks change
  void note_use(Id page);
  Ids lru_ids() const;  // cached blocks, least recently used first

  void check_block(const char* call, Id block) const;
  void check_page(const char* call, Id page) const;
  void push(const char* call, const Ids& ids, BlockState to);
  void move_pages(const char* call, const Ids& pages, std::initializer_list<PageState> from,
                  PageState to);
  void set_page_state(Id page, PageState from, PageState to);
  void check_states() const;
  void check_pages() const;
  void check_lru() const;
  void check_totals() const;

  const Id num_blocks_, blocks_per_page_, num_pages_;

  std::vector<BlockState> state_;
  BitSet free_;  // blocks in state free, on whatever page
  LruList lru_;  // blocks in state cached

  std::vector<PageState> page_state_;
  std::vector<Id> used_, cached_;  // blocks of each page, the null block not counted
  BitSet by_room_;                 // room_key() of owned pages with room: the least comes first
  BitSet empty_;                   // owned pages that may retire
  BitSet virtual_;
  BitSet first_used_;           // pages to be told by take_first_used()
  std::vector<char> was_told_;  // pages told since they became owned

  std::array<Id, kPageStates> pages_in_{};
  Id num_free_ = 0, num_cached_ = 0, num_used_ = 0, empty_pages_ = 0, cached_only_pages_ = 0;
};

}  // namespace kvcached::pool
