// What transactions ask of a rank's background thread, and what became of it.
//
// Both are queues: orders come from any thread and are carried out in their order; outcomes wait
// for whoever reads them, who may sleep on a descriptor. Nobody who does not open it is told.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

namespace kvcached::budget {

struct Order {
  enum class Kind : std::uint8_t { kTake, kUnmap, kSettle };
  Kind kind;
  std::uint64_t id;
  std::vector<std::int32_t> pages;    // to take or unmap; of kSettle those that are owned then
  std::vector<std::int32_t> release;  // kSettle
};

struct Outcome {
  enum class Kind : std::uint8_t { kAttempted, kSettled, kFenced };
  Kind kind;
  std::uint64_t id;                // of the order; of kFenced the epoch
  std::vector<std::int32_t> held;  // kAttempted: prepared or retained now
  std::vector<std::int32_t> lost;  // in quarantine now
};

class RankOrders {
 public:
  RankOrders() = default;
  ~RankOrders();
  RankOrders(const RankOrders&) = delete;
  RankOrders& operator=(const RankOrders&) = delete;

  void add(Order order);
  std::optional<Order> next();
  void tell(Outcome outcome);
  // Raises std::system_error if there is none to be had. Closed by the destructor.
  int open_fd();
  std::vector<Outcome> take_outcomes();

 private:
  std::mutex mutex_;  // guards all
  std::deque<Order> orders_;
  std::vector<Outcome> outcomes_;
  std::atomic<int> fd_{-1};
};

}  // namespace kvcached::budget
