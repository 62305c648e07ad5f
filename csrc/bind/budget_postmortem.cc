#include "bind/budget_postmortem.h"

#include <cstring>

#include "budget/segment.h"

namespace py = pybind11;

namespace kvcached {
namespace {

using budget::PageState;
using budget::Segment;

py::dict pages_by_state(const Segment& segment, std::uint32_t rank) {
  std::uint32_t owned = 0, quarantined = 0;
  for (std::uint32_t page = 0; page < segment.num_pages(); ++page) {
    const PageState state = segment.page_state(rank, static_cast<std::int32_t>(page));
    owned += state == PageState::kOwned;
    quarantined += state == PageState::kQuarantined;
  }
  py::dict counts;
  counts["virtual"] = segment.num_pages() - owned - quarantined;
  counts["owned"] = owned;
  counts["quarantined"] = quarantined;
  return counts;
}

py::dict rank_report(const Segment& segment, std::uint32_t rank) {
  const budget::RankPart& part = segment.part(rank);
  py::dict report;
  report["rank"] = rank;
  report["joined"] = part.joined.load() != 0;
  report["row"] = part.row;
  report["device"] = py::str(part.device, strnlen(part.device, sizeof(part.device)));
  report["mapped_bytes"] = part.mapped_bytes.load();
  report["created_bytes"] = part.created_bytes.load();
  report["released_epoch"] = part.released_epoch.load();
  report["entries_resolved"] = part.grow_done.load();
  report["failure"] = segment.failure(rank);
  report["pages"] = pages_by_state(segment, rank);
  return report;
}

py::dict transition_report(const budget::Transition& from) {
  py::dict report;
  report["who"] = from.who == budget::kSchedulerHalf ? py::object(py::str("scheduler"))
                                                     : py::object(py::int_(from.who));
  report["sequence"] = from.sequence;
  report["time_ns"] = from.time_ns;
  report["page"] = from.page;
  report["from"] = name(from.from);
  report["to"] = name(from.to);
  report["epoch"] = from.epoch;
  return report;
}

py::dict read_segment(const std::string& path, std::size_t last) {
  const std::shared_ptr<const Segment> segment = Segment::view(path);
  const budget::SegmentHeader& header = segment->header();
  const budget::Trace trace = segment->trace(last);
  py::dict report;
  report["path"] = path;
  report["version"] = header.version;
  report["pid"] = header.pid;
  report["made_wall_ns"] = header.made_wall_ns;
  report["made_monotonic_ns"] = header.made_monotonic_ns;
  report["num_pages"] = header.num_pages;
  report["entries_asked"] = header.grow_head.load();
  report["wish_pages"] = header.wish_pages.load();
  report["idle_pages"] = header.idle_pages.load();
  py::list ranks, transitions;
  for (std::uint32_t rank = 0; rank < segment->num_ranks(); ++rank)
    ranks.append(rank_report(*segment, rank));
  for (const budget::Transition& transition : trace.transitions)
    transitions.append(transition_report(transition));
  report["ranks"] = ranks;
  report["transitions"] = transitions;
  report["torn"] = trace.torn;
  return report;
}

}  // namespace

void bind_budget_postmortem(py::module_& m) {
  m.def("read_segment", &read_segment, py::arg("path"), py::arg("last") = budget::kRecords);
}

}  // namespace kvcached
