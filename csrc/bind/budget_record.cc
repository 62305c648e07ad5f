#include "bind/budget_record.h"

#include <pybind11/stl.h>

#include <chrono>

#include "budget/budget.h"

namespace kvcached {
namespace {

namespace py = pybind11;
using budget::Budget;
using budget::Bytes;
using budget::Grant;
using budget::RowInfo;
using std::chrono::milliseconds;

void bind_row_info(py::module_& m) {
  py::class_<RowInfo>(m, "RowInfo")
      .def_readonly("instance", &RowInfo::instance)
      .def_readonly("rank", &RowInfo::rank)
      .def_readonly("pid", &RowInfo::pid)
      .def_readonly("start_time", &RowInfo::start_time)
      .def_readonly("limit", &RowInfo::limit)
      .def_readonly("floor", &RowInfo::floor)
      .def_readonly("claim", &RowInfo::claim)
      .def_readonly("lease", &RowInfo::lease)
      .def_readonly("created", &RowInfo::created)
      .def_readonly("want", &RowInfo::want)
      .def_readonly("idle", &RowInfo::idle)
      .def_readonly("weight", &RowInfo::weight)
      .def_readonly("alive", &RowInfo::alive)
      .def("__repr__", [](const RowInfo& row) {
        return "RowInfo(instance='" + row.instance + "', rank=" + std::to_string(row.rank) +
               ", lease=" + std::to_string(row.lease) + ", created=" + std::to_string(row.created) +
               ")";
      });
}

}  // namespace

void bind_budget_record(py::module_& m) {
  auto error = py::register_exception<budget::BudgetError>(m, "BudgetError", PyExc_RuntimeError);
  py::register_exception<budget::CapacityConflict>(m, "CapacityConflict", error);
  py::register_exception<budget::RowGone>(m, "RowGone", error);
  py::enum_<Grant>(m, "Grant")
      .value("GRANTED", Grant::kGranted)
      .value("REFUSED", Grant::kRefused)
      .value("MISSED", Grant::kMissed);
  bind_row_info(m);

  // Without the interpreter lock wherever a call may block.
  const py::call_guard<py::gil_scoped_release> released;
  py::class_<Budget, std::shared_ptr<Budget>>(m, "Budget")
      .def_static("open", &Budget::open, py::arg("directory"), py::arg("device"),
                  py::arg("capacity"), py::arg("headroom"), released)
      .def("capacity", &Budget::capacity)
      .def("headroom", &Budget::headroom)
      .def("join", &Budget::join, py::arg("instance"), py::arg("rank"), py::arg("limit"),
           py::arg("floor") = 0, py::arg("claim") = 0, py::arg("weight") = 100, released)
      .def(
          "set_terms",
          [](Budget& self, int row, Bytes limit, Bytes floor, Bytes claim, long deadline_ms) {
            return self.set_terms(row, limit, floor, claim, milliseconds(deadline_ms));
          },
          py::arg("row"), py::arg("limit"), py::arg("floor"), py::arg("claim"),
          py::arg("deadline_ms"), released)
      .def("leave", &Budget::leave, py::arg("row"), released)
      .def(
          "lease",
          [](Budget& self, int row, Bytes bytes, Bytes device_free, long deadline_ms,
             Bytes created_before) {
            return self.lease(row, bytes, device_free, milliseconds(deadline_ms), created_before);
          },
          py::arg("row"), py::arg("bytes"), py::arg("device_free"), py::arg("deadline_ms"),
          py::arg("created_before") = budget::kNotSampled, released)
      .def("unlease", &Budget::unlease, py::arg("row"), py::arg("bytes"), released)
      .def("mark_created", &Budget::mark_created, py::arg("row"), py::arg("bytes"), released)
      .def("mark_released", &Budget::mark_released, py::arg("row"), py::arg("bytes"), released)
      .def("created", &Budget::created)
      .def(
          "available",
          [](const Budget& self, int row, Bytes free, Bytes created) {
            return self.available(row, {free, created});
          },
          py::arg("row"), py::arg("device_free"), py::arg("created_before") = budget::kNotSampled)
      .def(
          "reachable",
          [](const Budget& self, int row, Bytes free, Bytes created) {
            return self.reachable(row, {free, created});
          },
          py::arg("row"), py::arg("device_free"), py::arg("created_before") = budget::kNotSampled)
      .def("set_want", &Budget::set_want, py::arg("row"), py::arg("bytes"), released)
      .def("set_idle", &Budget::set_idle, py::arg("row"), py::arg("bytes"))
      .def("others_want", &Budget::others_want, py::arg("row"))
      .def(
          "reclaim_target",
          [](const Budget& self, int row, Bytes free, Bytes created, Bytes own_idle) {
            return self.reclaim_target(row, {free, created}, own_idle);
          },
          py::arg("row"), py::arg("device_free") = budget::kNotSampled,
          py::arg("created_before") = budget::kNotSampled,
          py::arg("own_idle") = budget::kNotSampled)
      .def(
          "fair_share",
          [](const Budget& self, int row, Bytes free, Bytes created) {
            return self.fair_share(row, {free, created});
          },
          py::arg("row"), py::arg("device_free") = budget::kNotSampled,
          py::arg("created_before") = budget::kNotSampled)
      .def(
          "wait_event",
          [](const Budget& self, std::uint32_t seen, long deadline_ms) {
            return self.wait_event(seen, milliseconds(deadline_ms));
          },
          py::arg("seen"), py::arg("deadline_ms"), released)
      .def("event", &Budget::event)
      .def(
          "wait_wanted",
          [](const Budget& self, int row, std::uint32_t seen, long deadline_ms) {
            return self.wait_wanted(row, seen, milliseconds(deadline_ms));
          },
          py::arg("row"), py::arg("seen"), py::arg("deadline_ms"), released)
      .def("reap", &Budget::reap, released)
      .def("rows", &Budget::rows, released)
      .def("detached", &Budget::detached, released);
}

}  // namespace kvcached
