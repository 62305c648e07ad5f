// The fault-injecting driver. What only sets or reads keeps the interpreter lock.
#include "bind/vmm_faults.h"

#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <string>

#include "vmm/faulty_driver.h"

namespace py = pybind11;

namespace kvcached {
namespace {

using namespace vmm;
using MaybeCount = std::optional<std::uint64_t>;

Moment moment(bool after) { return after ? Moment::kAfter : Moment::kBefore; }

void fail_at(FaultyDriver& d, const std::string& kind, std::uint64_t n, const std::string& error,
             bool after) {
  d.plan().fail_at(call_named(kind), n, fault_named(error), moment(after));
}

void fail_always(FaultyDriver& d, const std::string& kind, const std::string& error) {
  d.plan().fail_always(call_named(kind), fault_named(error));
}

void delay(FaultyDriver& d, const std::string& kind, std::uint32_t microseconds) {
  d.plan().delay(call_named(kind), FaultPlan::Wait(microseconds));
}

void delay_at(FaultyDriver& d, const std::string& kind, std::uint64_t n, std::uint32_t microseconds,
              bool after) {
  d.plan().delay_at(call_named(kind), n, FaultPlan::Wait(microseconds), moment(after));
}

void set_quota(FaultyDriver& d, MaybeCount bytes, MaybeCount handles, MaybeCount descriptors,
               MaybeCount addresses) {
  d.set_quota({bytes, handles, descriptors, addresses});
}

}  // namespace

void bind_vmm_faults(py::module_& m) {
  py::register_exception<InjectedFault>(m, "InjectedFault", m.attr("DriverError"));
  py::register_exception<QuotaReached>(m, "QuotaReached", m.attr("DriverError"));
  py::register_exception<RangeInUse>(m, "RangeInUse", m.attr("InvalidArgument"));
  py::class_<FaultyDriver, Driver, std::shared_ptr<FaultyDriver>>(m, "FaultyDriver")
      .def(py::init<std::shared_ptr<Driver>>(), py::arg("driver").none(false))
      .def("fail_at", &fail_at, py::arg("kind"), py::arg("n"), py::arg("error") = "error",
           py::arg("after") = false)
      .def("fail_always", &fail_always, py::arg("kind"), py::arg("error") = "error")
      .def("delay", &delay, py::arg("kind"), py::arg("microseconds"))
      .def("delay_at", &delay_at, py::arg("kind"), py::arg("n"), py::arg("microseconds"),
           py::arg("after") = false)
      .def("quota", &set_quota, py::arg("bytes") = py::none(), py::kw_only(),
           py::arg("handles") = py::none(), py::arg("descriptors") = py::none(),
           py::arg("addresses") = py::none())
      .def(
          "begin_work",
          [](FaultyDriver& d, std::uintptr_t a, Bytes size) { d.work().begin_work(a, size); },
          py::arg("address"), py::arg("size"))
      .def(
          "end_work",
          [](FaultyDriver& d, std::uintptr_t a, Bytes size) { d.work().end_work(a, size); },
          py::arg("address"), py::arg("size"))
      .def("violations", [](FaultyDriver& d) { return d.work().violations(); })
      .def("counts", [](FaultyDriver& d) { return d.plan().counts(); })
      .def("reset", &FaultyDriver::reset);
}

}  // namespace kvcached
