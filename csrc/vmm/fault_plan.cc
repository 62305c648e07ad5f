#include "vmm/fault_plan.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "vmm/text.h"

namespace kvcached::vmm {
namespace {

constexpr std::array<const char*, 4> kFaultNames = {"error", "oom", "lost", "die"};

template <std::size_t n>
std::size_t index_of(const std::array<const char*, n>& names, const std::string& name,
                     const char* what) {
  std::string known;
  for (std::size_t i = 0; i < n; ++i) {
    if (name == names[i]) return i;
    known += text(i ? ", " : "", names[i]);
  }
  throw InvalidArgument(text("no ", what, " is named '", name, "'; there are ", known));
}

[[noreturn]] void die() {
  for (;;) {
    ::kill(::getpid(), SIGKILL);
    ::pause();
  }
}

void wait(FaultPlan::Wait time) {
  if (time.count() > 0) std::this_thread::sleep_for(time);
}

}  // namespace

Call call_named(const std::string& name) {
  return static_cast<Call>(index_of(kCallNames, name, "driver call"));
}

Fault fault_named(const std::string& name) {
  return static_cast<Fault>(index_of(kFaultNames, name, "fault"));
}

void FaultPlan::Turn::before() const {
  wait(wait_before);
  if (!fault) return;
  const std::string what =
      text("injected fault in call ", number, " of ", kCallNames[static_cast<std::size_t>(call)]);
  switch (*fault) {
    case Fault::kError:
      throw InjectedFault(what);
    case Fault::kOutOfMemory:
      throw OutOfMemory(what);
    case Fault::kLost:
      throw DeviceLost(what);
    case Fault::kDie:
      die();
  }
}

void FaultPlan::Turn::after() const {
  wait(wait_after);
  if (dies_after) die();
}

void FaultPlan::fail_at(Call call, std::uint64_t n, Fault fault, Moment moment) {
  if (moment == Moment::kAfter && fault != Fault::kDie) {
    throw InvalidArgument(
        text("fault '", kFaultNames[static_cast<std::size_t>(fault)],
             "' may not strike after the effect: the state after an error is that before the call;"
             " only 'die' may"));
  }
  const std::lock_guard lock(mutex_);
  if (n > 0) {
    strikes_.push_back({call, kind(call).calls + n, fault, Wait(0), moment});
    return;
  }
  kind(call).always.reset();
  const auto lifted = [call](const Strike& s) { return s.call == call && s.fault; };
  strikes_.erase(std::remove_if(strikes_.begin(), strikes_.end(), lifted), strikes_.end());
}

void FaultPlan::fail_always(Call call, Fault fault) {
  const std::lock_guard lock(mutex_);
  kind(call).always = fault;
}

void FaultPlan::delay(Call call, Wait wait) {
  const std::lock_guard lock(mutex_);
  kind(call).wait = wait;
}

void FaultPlan::delay_at(Call call, std::uint64_t n, Wait wait, Moment moment) {
  if (n == 0) throw InvalidArgument("delay_at: calls count from 1, and 0 was given");
  const std::lock_guard lock(mutex_);
  strikes_.push_back({call, kind(call).calls + n, std::nullopt, wait, moment});
}

std::map<std::string, std::uint64_t> FaultPlan::counts() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::uint64_t> found;
  for (std::size_t i = 0; i < kCallNames.size(); ++i) found[kCallNames[i]] = kinds_[i].calls;
  return found;
}

void FaultPlan::reset() {
  const std::lock_guard lock(mutex_);
  kinds_.fill(Kind{});
  strikes_.clear();
  lost_ = false;
}

bool FaultPlan::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

FaultPlan::Turn FaultPlan::count(Call call) {
  const std::lock_guard lock(mutex_);
  Turn turn{call, ++kind(call).calls, kind(call).always, false, Wait(0), Wait(0)};
  ++kind(Call::kAny).calls;
  if (!turn.fault) turn.fault = kind(Call::kAny).always;
  turn.wait_before = kind(call).wait + kind(Call::kAny).wait;
  const auto struck = [&](const Strike& strike) {
    if (strike.call != call && strike.call != Call::kAny) return false;
    if (strike.at != kind(strike.call).calls) return false;
    const bool after = strike.moment == Moment::kAfter;
    (after ? turn.wait_after : turn.wait_before) += strike.wait;
    if (after) turn.dies_after |= strike.fault.has_value();
    if (!after && !turn.fault) turn.fault = strike.fault;
    return true;
  };
  std::vector<Strike> left;
  for (const Strike& strike : strikes_)
    if (!struck(strike)) left.push_back(strike);
  strikes_ = std::move(left);
  if (lost_) turn.fault = Fault::kLost;
  lost_ = turn.fault == Fault::kLost;
  return turn;
}

}  // namespace kvcached::vmm
