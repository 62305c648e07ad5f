// The shared-memory implementation of Budget: budget.cc opens and shows, budget_members.cc joins,
// leaves and reaps, budget_lease.cc counts bytes, budget_events.cc tells who waits.
#pragma once

#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "budget/budget.h"
#include "budget/budget_formula.h"
#include "budget/fair_share.h"
#include "budget/record_file.h"
#include "vmm/own_process.h"

namespace kvcached::budget {

using std::chrono::milliseconds;

// For error texts.
inline std::string bytes(Bytes count) { return std::to_string(count) + " bytes"; }

class SharedBudget final : public Budget {
 public:
  SharedBudget(const std::string& directory, const std::string& device, Bytes capacity,
               Bytes headroom)
      : file_(directory, device, capacity, headroom) {
    if (capacity != 0) settle(capacity, headroom);
    agreed_capacity_ = record().header.capacity.load();
    agreed_headroom_ = record().header.headroom.load();
  }

  ~SharedBudget() override {
    if (!process_.is_here()) return;
    for (int row = 0; row < kRows; ++row) {
      if (joined_[row].load() && record().rows[row].lease.load() == 0) give_back(row);
    }
    if (pinned_) file_.locks().unpin();
  }

  Bytes capacity() const override { return record().header.capacity.load(); }
  Bytes headroom() const override { return record().header.headroom.load(); }
  Bytes created() const override { return sum_created(record()); }
  bool detached() const override { return file_.detached(); }
  std::uint32_t event() const override { return record().header.event.load(); }

  int join(const std::string& instance, std::uint32_t rank, Bytes limit, Bytes floor, Bytes claim,
           std::uint32_t weight) override;
  Grant set_terms(int row, Bytes limit, Bytes floor, Bytes claim, milliseconds deadline) override;
  void leave(int row) override;
  Grant lease(int row, Bytes bytes, Bytes device_free, milliseconds deadline,
              Bytes created_before) override;
  void unlease(int row, Bytes bytes) override;
  void mark_created(int row, Bytes bytes) override;
  void mark_released(int row, Bytes bytes) override;
  void set_want(int row, Bytes bytes) override;
  void set_idle(int row, Bytes bytes) override;
  int reap() override;
  std::vector<RowInfo> rows() const override;
  std::uint32_t wait_event(std::uint32_t seen, milliseconds deadline) const override;
  std::uint32_t wait_wanted(int row, std::uint32_t seen, milliseconds deadline) const override;

  Bytes available(int row, const Sample& sample) const override {
    return grantable(snapshot(record()), row, sample);
  }
  Bytes fair_share(int row, const Sample& sample) const override;
  Bytes reachable(int row, const Sample& sample) const override;
  Bytes reclaim_target(int row, const Sample& sample, Bytes own_idle) const override;
  bool others_want(int row) const override;

 private:
  Record& record() const { return file_.record(); }
  Row& own(int row) const;
  bool same_instance(int row, int other) const;
  void check_process() const;
  void check_terms(const std::string& who, Bytes limit, Bytes floor) const;
  std::string guarantees(const Snapshot& all, Bytes floor) const;
  void settle(Bytes capacity, Bytes headroom);
  void pin();
  void check_agreed() const;
  [[noreturn]] void conflict(Bytes capacity, Bytes headroom, const std::string& advice) const;
  int take_row();
  int reap_locked();
  void give_back(int row);
  void bump();      // whoever waits for memory looks again
  void bump_all();  // and whoever could give some
  static void bump(EventWord& word);

  RecordFile file_;
  const vmm::OwnProcess process_;
  std::array<std::atomic<bool>, kRows> joined_{};
  Bytes agreed_capacity_ = 0, agreed_headroom_ = 0;  // as they were when it was opened
  bool pinned_ = false;
};

}  // namespace kvcached::budget
