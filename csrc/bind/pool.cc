// _native.Ledger.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "bind/bind.h"
#include "bind/ids.h"
#include "pool/ledger.h"

namespace py = pybind11;

namespace kvcached {
namespace {

using pool::BlockState;
using pool::Id;
using pool::Ids;
using pool::Ledger;
using pool::PageState;

// A view of `array` if it holds C ints in a row, such as array('i') or numpy's int32; else empty.
class IntBuffer {
 public:
  IntBuffer(const py::object& array, int flags) {
    if (PyObject_CheckBuffer(array.ptr()) == 0) return;
    held_ = PyObject_GetBuffer(array.ptr(), &view_, PyBUF_FORMAT | PyBUF_ND | flags) == 0;
    if (!held_) PyErr_Clear();
    ints_ = held_ && view_.ndim == 1 && view_.itemsize == sizeof(Id) && view_.format != nullptr &&
            std::strcmp(view_.format, "i") == 0;
  }
  IntBuffer(const IntBuffer&) = delete;
  IntBuffer& operator=(const IntBuffer&) = delete;
  ~IntBuffer() {
    if (held_) PyBuffer_Release(&view_);
  }
  explicit operator bool() const { return ints_; }
  Id* begin() const { return static_cast<Id*>(view_.buf); }
  Id* end() const { return begin() + view_.shape[0]; }

 private:
  Py_buffer view_{};
  bool held_ = false, ints_ = false;
};

Ids ids_of_numbers(const py::object& numbers) {
  if (const IntBuffer ints{numbers, 0}) return Ids(ints.begin(), ints.end());
  return ids_from(numbers, to_id);
}

void pop_into(Ledger& ledger, const py::object& out) {
  const IntBuffer ints{out, PyBUF_WRITABLE};
  if (!ints) throw py::type_error("pop_into: out must be a writable array of int32, in a row");
  const Ids ids = ledger.pop(ints.end() - ints.begin());
  std::copy(ids.begin(), ids.end(), ints.begin());
}

py::list numbers(const Ids& ids) {
  return list_of(ids, [](Id id) { return PyLong_FromLong(id); });
}

PageState page_state_named(const std::string& wanted) {
  for (std::size_t i = 0; i < pool::kPageStates; ++i) {
    if (wanted == pool::name(static_cast<PageState>(i))) return static_cast<PageState>(i);
  }
  std::string allowed;
  for (std::size_t i = 0; i < pool::kPageStates; ++i) {
    allowed += (i == 0 ? "" : ", ") + std::string(pool::name(static_cast<PageState>(i)));
  }
  throw std::invalid_argument("pages: there is no page state '" + wanted + "', states are " +
                              allowed);
}

void bind_blocks(py::class_<Ledger>& c) {
  using O = const py::object&;
  c.def(
       "pop", [](Ledger& l, std::int64_t n) { return numbers(l.pop(n)); }, py::arg("n"))
      .def(
          "push_free", [](Ledger& l, O ids) { l.push_free(ids_of_numbers(ids)); }, py::arg("ids"))
      .def(
          "push_cached", [](Ledger& l, O ids) { l.push_cached(ids_of_numbers(ids)); },
          py::arg("ids"))
      .def("pop_into", &pop_into, py::arg("out"))
      .def("take", &Ledger::take, py::arg("block"))
      .def(
          "uncache", [](Ledger& l, O ids) { l.uncache(ids_of_numbers(ids)); }, py::arg("ids"))
      .def("reset_cached", &Ledger::reset_cached)
      .def("take_first_used", [](Ledger& l) { return numbers(l.take_first_used()); });
}

void bind_pages(py::class_<Ledger>& c) {
  using O = const py::object&;
  c.def(
       "plan_growth", [](Ledger& l, std::int64_t n) { return numbers(l.plan_growth(n)); },
       py::arg("max_pages"))
      .def(
          "grown", [](Ledger& l, O pages) { l.grown(ids_of_numbers(pages)); }, py::arg("pages"))
      .def(
          "growth_failed", [](Ledger& l, O pages) { l.growth_failed(ids_of_numbers(pages)); },
          py::arg("pages"))
      .def(
          "retire_empty", [](Ledger& l, std::int64_t n) { return numbers(l.retire_empty(n)); },
          py::arg("max_pages"))
      .def(
          "kept", [](Ledger& l, O pages) { l.kept(ids_of_numbers(pages)); }, py::arg("pages"))
      .def(
          "released", [](Ledger& l, O pages) { l.released(ids_of_numbers(pages)); },
          py::arg("pages"))
      .def(
          "quarantine", [](Ledger& l, O pages) { l.quarantine(ids_of_numbers(pages)); },
          py::arg("pages"))
      .def(
          "victims_for_pages",
          [](const Ledger& l, std::int64_t n) { return numbers(l.victims_for_pages(n)); },
          py::arg("n_pages"))
      .def(
          "victims_over_bound",
          [](const Ledger& l, std::int64_t n) { return numbers(l.victims_over_bound(n)); },
          py::arg("max_pages"))
      .def("is_over_bound", &Ledger::is_over_bound, py::arg("max_pages"));
}

void bind_views(py::class_<Ledger>& c) {
  using O = const py::object&;
  c.def_property_readonly("num_blocks", &Ledger::num_blocks)
      .def_property_readonly("blocks_per_page", &Ledger::blocks_per_page)
      .def("num_pages", &Ledger::num_pages)
      .def("num_free", &Ledger::num_free)
      .def("num_cached", &Ledger::num_cached)
      .def("num_used", &Ledger::num_used)
      .def("available", &Ledger::available)
      .def("obtainable", &Ledger::obtainable, py::arg("most_pages"), py::arg("coming_pages"))
      .def(
          "pages",
          [](const Ledger& l, const std::string& s) { return l.pages(page_state_named(s)); },
          py::arg("state"))
      .def("empty_pages", &Ledger::empty_pages)
      .def("cached_only_pages", &Ledger::cached_only_pages)
      .def("used_pages", &Ledger::used_pages)
      .def(
          "state_of", [](const Ledger& l, Id block) { return pool::name(l.state_of(block)); },
          py::arg("block"))
      .def(
          "page_state", [](const Ledger& l, Id page) { return pool::name(l.page_state(page)); },
          py::arg("page"))
      .def("block_page", &Ledger::block_page, py::arg("block"))
      .def(
          "pages_of",
          [](const Ledger& l, O ids) { return numbers(l.pages_of(ids_of_numbers(ids))); },
          py::arg("ids"))
      .def("free_ids", [](const Ledger& l) { return numbers(l.free_ids()); })
      .def("check_integrity", &Ledger::check_integrity);
}

}  // namespace

void bind_pool(py::module_& m) {
  py::class_<Ledger> c(m, "Ledger",
                       "The state of every block and page of one pool, and the choice of what is "
                       "handed out, grown and given back. An edge that is not allowed is a "
                       "ValueError and changes nothing. Not synchronised: one thread at a time.");
  c.def(py::init<std::int64_t, std::int64_t>(), py::arg("num_blocks"), py::arg("blocks_per_page"));
  bind_blocks(c);
  bind_pages(c);
  bind_views(c);
}

}  // namespace kvcached
