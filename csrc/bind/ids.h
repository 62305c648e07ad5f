// Ids of blocks and pages to and from Python, by hand: lists of them are on the path of every step.
#pragma once

#include <pybind11/pybind11.h>

#include <limits>
#include <stdexcept>
#include <string>

#include "pool/ledger.h"

namespace kvcached {

inline pool::Id to_id(PyObject* number) {
  using pool::Id;
  const long value = PyLong_AsLong(number);
  if (value == -1 && PyErr_Occurred() != nullptr) throw pybind11::error_already_set();
  if (value < std::numeric_limits<Id>::min() || value > std::numeric_limits<Id>::max()) {
    throw std::invalid_argument("id " + std::to_string(value) + " is not a 32-bit integer");
  }
  return static_cast<Id>(value);
}

// Calls `id_of` on each item of any iterable; lists and tuples are not copied. `id_of` may run
// Python code, which may shorten the list: so the size is read anew and each item is held.
template <typename IdOf>
pool::Ids ids_from(const pybind11::object& items, IdOf id_of) {
  const auto fast = pybind11::reinterpret_steal<pybind11::object>(
      PySequence_Fast(items.ptr(), "expected a list, or another iterable, of ids or blocks"));
  if (!fast) throw pybind11::error_already_set();
  pool::Ids ids;
  ids.reserve(static_cast<std::size_t>(PySequence_Fast_GET_SIZE(fast.ptr())));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.ptr()); ++i) {
    const auto item =
        pybind11::reinterpret_borrow<pybind11::object>(PySequence_Fast_GET_ITEM(fast.ptr(), i));
    ids.push_back(id_of(item.ptr()));
  }
  return ids;
}

// A list of make(id), which gives a new reference or null with an error set.
template <typename Make>
pybind11::list list_of(const pool::Ids& ids, Make make) {
  auto out =
      pybind11::reinterpret_steal<pybind11::list>(PyList_New(static_cast<Py_ssize_t>(ids.size())));
  if (!out) throw pybind11::error_already_set();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    PyObject* const item = make(ids[i]);
    if (item == nullptr) throw pybind11::error_already_set();
    PyList_SET_ITEM(out.ptr(), static_cast<Py_ssize_t>(i), item);
  }
  return out;
}

}  // namespace kvcached
