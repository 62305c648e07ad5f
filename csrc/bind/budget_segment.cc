#include "bind/budget_segment.h"

#include <pybind11/stl.h>

#include <cstring>
#include <stdexcept>

#include "budget/rank.h"
#include "budget/segment.h"

namespace py = pybind11;

namespace kvcached {
namespace {

using budget::Milliseconds;
using budget::Rank;
using budget::Segment;
using no_gil = py::call_guard<py::gil_scoped_release>;

py::dict rank_info(const Segment& segment, std::uint32_t rank) {
  const budget::RankPart& part = segment.part(rank);
  py::dict info;
  info["joined"] = part.joined.load() != 0;
  info["row"] = part.row;
  info["device"] = py::str(part.device, strnlen(part.device, sizeof(part.device)));
  info["mapped_bytes"] = part.mapped_bytes.load();
  info["created_bytes"] = part.created_bytes.load();
  return info;
}

py::tuple poll(Segment& segment) {
  budget::Resolved resolved = segment.poll();
  return py::make_tuple(resolved.owned, resolved.refused, resolved.partial);
}

budget::TracedState traced_state(const std::string& text) {
  for (std::size_t i = 0; i < budget::kTracedStates; ++i) {
    const auto state = static_cast<budget::TracedState>(i);
    if (text == name(state)) return state;
  }
  throw std::invalid_argument("a page has no state '" + text +
                              "'; allowed are virtual, preparing, owned, mapped, retiring and "
                              "quarantined");
}

py::dict counters(const Rank& rank) {
  const budget::RankCounters now = rank.counters();
  py::dict counts;
  counts["created"] = now.created;
  counts["released"] = now.released;
  counts["mapped_ahead"] = now.mapped_ahead;
  counts["mapped_in_step"] = now.mapped_in_step;
  counts["refused"] = now.refused;
  return counts;
}

py::list take_outcomes(Rank& rank) {
  py::list all;
  for (const budget::Outcome& outcome : rank.take_outcomes()) {
    const char* kind = outcome.kind == budget::Outcome::Kind::kAttempted ? "attempted"
                       : outcome.kind == budget::Outcome::Kind::kSettled ? "settled"
                                                                         : "fenced";
    all.append(py::make_tuple(kind, outcome.id, outcome.held, outcome.lost));
  }
  return all;
}

// The end of a rank calls its driver, so it is without the interpreter lock.
void end_rank(Rank* rank) {
  if (Py_IsInitialized() && PyGILState_Check()) {
    const py::gil_scoped_release released;
    delete rank;
  } else {
    delete rank;
  }
}

std::shared_ptr<Rank> make_rank(
    std::shared_ptr<Segment> segment, std::uint32_t rank, std::shared_ptr<budget::Budget> record,
    std::string device, int row, std::shared_ptr<vmm::Driver> driver,
    const std::vector<std::pair<std::shared_ptr<vmm::Arena>, budget::Bytes>>& extents,
    int fence_deadline_ms, std::pair<double, double> pace) {
  std::vector<budget::Extent> list;
  for (const auto& [arena, bytes] : extents) {
    if (!arena) throw std::invalid_argument("an extent without an arena");
    list.push_back({arena, bytes});
  }
  return {new Rank(std::move(segment), rank, std::move(record), std::move(device), row,
                   std::move(driver), std::move(list), Milliseconds(fence_deadline_ms),
                   budget::PaceTerms{pace.first, pace.second}),
          end_rank};
}

void bind_segment(py::module_& m) {
  py::class_<Segment, std::shared_ptr<Segment>>(m, "Segment")
      .def_static("create", &Segment::create, py::arg("path"), py::arg("num_pages"),
                  py::arg("num_ranks"))
      .def_static("open", &Segment::open, py::arg("path"))
      .def_property_readonly("path", &Segment::path)
      .def_property_readonly("num_pages", &Segment::num_pages)
      .def_property_readonly("num_ranks", &Segment::num_ranks)
      .def("request", &Segment::request, py::arg("pages"))
      .def("poll", &poll)
      .def("outstanding", &Segment::outstanding)
      .def("released_epoch", &Segment::released_epoch)
      .def("is_quarantined", &Segment::is_quarantined, py::arg("page"))
      .def("set_wish", &Segment::set_wish, py::arg("pages"))
      .def("set_idle", &Segment::set_idle, py::arg("pages"))
      .def("ring_ranks", &Segment::ring_ranks)
      .def(
          "sample",
          [](const Segment& s, std::uint32_t rank) {
            const auto found = s.sample(rank);
            return std::make_pair(found.device_free, found.created_before);
          },
          py::arg("rank"))
      .def(
          "record",
          [](Segment& s, const std::vector<std::int32_t>& pages, const std::string& from,
             const std::string& to,
             std::uint64_t epoch) { s.record(pages, traced_state(from), traced_state(to), epoch); },
          py::arg("pages"), py::arg("from_state"), py::arg("to_state"), py::arg("epoch"))
      .def("failure", py::overload_cast<>(&Segment::failure, py::const_))
      .def("progress", &Segment::progress)
      .def(
          "wait_progress",
          [](const Segment& s, std::uint32_t seen, int milliseconds) {
            return s.wait_progress(seen, Milliseconds(milliseconds));
          },
          py::arg("seen"), py::arg("milliseconds"), no_gil())
      .def("rank_info", &rank_info, py::arg("rank"));
}

void bind_rank(py::module_& m) {
  py::class_<Rank, std::shared_ptr<Rank>>(m, "Rank")
      .def(py::init(&make_rank), py::arg("segment").none(false).none(false).none(false),
           py::arg("rank"), py::arg("budget").none(false), py::arg("device"), py::arg("row"),
           py::arg("driver").none(false), py::arg("extents"),
           py::arg("fence_deadline_ms") = Milliseconds(Rank::kFenceDeadline).count(),
           py::arg("pace") =
               std::pair(budget::PaceTerms{}.bytes_per_second, budget::PaceTerms{}.burst),
           no_gil())
      .def("make_ready", &Rank::make_ready, py::arg("pages"), no_gil())
      .def("retire", &Rank::retire, py::arg("pages"), py::arg("epoch"),
           py::arg("fences") = Rank::Fences{}, no_gil())
      .def("take", &Rank::take, py::arg("id"), py::arg("pages"), no_gil())
      .def("unmap", &Rank::unmap, py::arg("id"), py::arg("pages"), no_gil())
      .def("settle",
           py::overload_cast<std::uint64_t, std::vector<std::int32_t>, std::vector<std::int32_t>>(
               &Rank::settle),
           py::arg("id"), py::arg("own"), py::arg("release"), no_gil())
      .def("outcomes_fd", &Rank::outcomes_fd)
      .def("take_outcomes", &take_outcomes)
      .def(
          "drain", [](Rank& r, int milliseconds) { return r.drain(Milliseconds(milliseconds)); },
          py::arg("milliseconds"), no_gil())
      .def_property_readonly("page_bytes", &Rank::page_bytes)
      .def_property_readonly("mapped_bytes", &Rank::mapped_bytes)
      .def("counters", &counters)
      .def("close", &Rank::close, no_gil());
}

}  // namespace

void bind_budget_segment(py::module_& m) {
  bind_segment(m);
  bind_rank(m);
}

}  // namespace kvcached
