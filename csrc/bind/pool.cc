// _native.Ledger. The conversions are by hand: the calls that take and give lists of ids, and of
// the engine's block objects, are on the path of every step.
#include <pybind11/pybind11.h>

#include <limits>
#include <stdexcept>
#include <string>

#include "bind/bind.h"
#include "pool/ledger.h"

namespace py = pybind11;

namespace kvcached {
namespace {

using pool::BlockState;
using pool::Id;
using pool::Ids;
using pool::Ledger;
using pool::PageState;

Id to_id(PyObject* number) {
  const long value = PyLong_AsLong(number);
  if (value == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  if (value < std::numeric_limits<Id>::min() || value > std::numeric_limits<Id>::max()) {
    throw std::invalid_argument("id " + std::to_string(value) + " is not a 32-bit integer");
  }
  return static_cast<Id>(value);
}

// Calls `id_of` on each item of any iterable; lists and tuples are not copied. `id_of` may run
// Python code, which may shorten the list: so the size is read anew and each item is held.
template <typename IdOf>
Ids ids_from(const py::object& items, IdOf id_of) {
  const auto fast = py::reinterpret_steal<py::object>(
      PySequence_Fast(items.ptr(), "expected a list, or another iterable, of ids or blocks"));
  if (!fast) throw py::error_already_set();
  Ids ids;
  ids.reserve(static_cast<std::size_t>(PySequence_Fast_GET_SIZE(fast.ptr())));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.ptr()); ++i) {
    const auto item = py::reinterpret_borrow<py::object>(PySequence_Fast_GET_ITEM(fast.ptr(), i));
    ids.push_back(id_of(item.ptr()));
  }
  return ids;
}

Ids ids_of_numbers(const py::object& numbers) { return ids_from(numbers, to_id); }

Ids ids_of_blocks(const py::object& blocks) {
  // Interned and kept for the life of the process, so that the look-up compares pointers.
  static PyObject* const block_id = PyUnicode_InternFromString("block_id");
  return ids_from(blocks, [](PyObject* block) {
    const auto number = py::reinterpret_steal<py::object>(PyObject_GetAttr(block, block_id));
    if (!number) throw py::error_already_set();
    return to_id(number.ptr());
  });
}

// A list of make(id), which gives a new reference or null with an error set.
template <typename Make>
py::list list_of(const Ids& ids, Make make) {
  auto out = py::reinterpret_steal<py::list>(PyList_New(static_cast<Py_ssize_t>(ids.size())));
  if (!out) throw py::error_already_set();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    PyObject* const item = make(ids[i]);
    if (item == nullptr) throw py::error_already_set();
    PyList_SET_ITEM(out.ptr(), static_cast<Py_ssize_t>(i), item);
  }
  return out;
}

py::list numbers(const Ids& ids) {
  return list_of(ids, [](Id id) { return PyLong_FromLong(id); });
}

py::list pop_blocks(Ledger& ledger, const py::list& blocks, std::int64_t n) {
  if (PyList_GET_SIZE(blocks.ptr()) != ledger.num_blocks()) {
    throw std::invalid_argument("pop_blocks: the list has " +
                                std::to_string(PyList_GET_SIZE(blocks.ptr())) +
                                " blocks, the ledger " + std::to_string(ledger.num_blocks()));
  }
  return list_of(ledger.pop(n), [&blocks](Id id) {
    PyObject* const block = PyList_GET_ITEM(blocks.ptr(), id);
    Py_INCREF(block);
    return block;
  });
}

PageState page_state_named(const std::string& wanted) {
  std::string allowed;
  for (std::size_t i = 0; i < pool::kPageStates; ++i) {
    const auto state = static_cast<PageState>(i);
    if (wanted == pool::name(state)) return state;
    allowed += (i == 0 ? "" : ", ") + std::string(pool::name(state));
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
      .def("pop_blocks", &pop_blocks, py::arg("blocks"), py::arg("n"))
      .def(
          "push_free_blocks", [](Ledger& l, O objs) { l.push_free(ids_of_blocks(objs)); },
          py::arg("objs"))
      .def(
          "push_cached_blocks", [](Ledger& l, O objs) { l.push_cached(ids_of_blocks(objs)); },
          py::arg("objs"))
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
          py::arg("max_pages"));
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
