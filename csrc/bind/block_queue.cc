// _native.BlockQueue: the engine's free queue, on the engine's own block objects.
//
// A type of CPython's own making, not pybind11's: its methods run for every block of every request,
// most often for one block, and then the call itself is most of what they cost.
#include <pybind11/pybind11.h>
#include <structmember.h>

#include <cstddef>
#include <exception>
#include <stdexcept>
#include <string>

#include "bind/bind.h"
#include "bind/ids.h"
#include "pool/ledger.h"

namespace py = pybind11;

namespace kvcached {
namespace {

using pool::Id;
using pool::Ids;

struct BlockQueue {
  PyObject ob_base;
  pool::Ledger* ledger;
  PyObject *owner, *blocks, *before_evict;  // the ledger, a list, a callable or null
  PyTypeObject* type;                       // of the blocks, if block_id lies in a slot of it
  Py_ssize_t slot;                          // its offset in a block
};

BlockQueue& queue_of(PyObject* self) { return *reinterpret_cast<BlockQueue*>(self); }

// Runs a method's body; a C++ exception becomes Python's, and the answer null.
template <typename Body>
PyObject* guarded(PyObject* self, Body body) {
  try {
    if (queue_of(self).ledger == nullptr) throw std::runtime_error("BlockQueue is not initialized");
    return body(queue_of(self));
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::invalid_argument& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

// The offset of `block_id` in objects of this type, as __slots__ lays it out; 0 if it is no slot.
Py_ssize_t slot_of(PyTypeObject* type, PyObject* name) {
  if (type->tp_getattro != PyObject_GenericGetAttr) return 0;
  const auto found =
      py::reinterpret_steal<py::object>(PyObject_GetAttr(reinterpret_cast<PyObject*>(type), name));
  if (!found) {
    PyErr_Clear();
    return 0;
  }
  if (Py_TYPE(found.ptr()) != &PyMemberDescr_Type) return 0;
  const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(found.ptr())->d_member;
  return member->type == T_OBJECT_EX ? member->offset : 0;
}

Id id_of(BlockQueue& queue, PyObject* block) {
  // Interned and kept for the life of the process, so that the look-up compares pointers.
  static PyObject* const block_id = PyUnicode_InternFromString("block_id");
  if (Py_TYPE(block) == queue.type) {
    PyObject* const number =
        *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(block) + queue.slot);
    if (number != nullptr) return to_id(number);
  }
  const auto number = py::reinterpret_steal<py::object>(PyObject_GetAttr(block, block_id));
  if (!number) throw py::error_already_set();
  return to_id(number.ptr());
}

Ids ids_of(BlockQueue& queue, PyObject* blocks) {
  return ids_from(py::reinterpret_borrow<py::object>(blocks),
                  [&queue](PyObject* block) { return id_of(queue, block); });
}

PyObject* none() { return py::none().release().ptr(); }

PyObject* popleft_n(PyObject* self, PyObject* count) {
  return guarded(self, [count](BlockQueue& queue) {
    const long n = PyLong_AsLong(count);
    if (n == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (queue.before_evict != nullptr && n > queue.ledger->num_free()) {
      const auto answer =
          py::reinterpret_steal<py::object>(PyObject_CallOneArg(queue.before_evict, count));
      if (!answer) throw py::error_already_set();
    }
    return list_of(queue.ledger->pop(n),
                   [&queue](Id id) {
                     PyObject* const block = PyList_GET_ITEM(queue.blocks, id);
                     Py_INCREF(block);
                     return block;
                   })
        .release()
        .ptr();
  });
}

PyObject* append_n(PyObject* self, PyObject* blocks) {
  return guarded(self, [blocks](BlockQueue& queue) {
    queue.ledger->push_cached(ids_of(queue, blocks));
    return none();
  });
}

PyObject* prepend_n(PyObject* self, PyObject* blocks) {
  return guarded(self, [blocks](BlockQueue& queue) {
    queue.ledger->push_free(ids_of(queue, blocks));
    return none();
  });
}

PyObject* remove(PyObject* self, PyObject* block) {
  return guarded(self, [block](BlockQueue& queue) {
    queue.ledger->take(id_of(queue, block));
    return none();
  });
}

PyObject* num_free_blocks(PyObject* self, void*) {
  return guarded(self, [](BlockQueue& queue) {
    return PyLong_FromLong(queue.ledger->num_blocks() - 1 - queue.ledger->num_used());
  });
}

int init(PyObject* self, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"blocks", "ledger", "before_evict", nullptr};
  PyObject *blocks = nullptr, *owner = nullptr, *before = Py_None;
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, "O!O|O", const_cast<char**>(names),
                                  &PyList_Type, &blocks, &owner, &before) == 0) {
    return -1;
  }
  BlockQueue& queue = queue_of(self);
  if (queue.ledger != nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "BlockQueue is initialized already");
    return -1;
  }
  if (!py::isinstance<pool::Ledger>(owner)) {
    PyErr_SetString(PyExc_TypeError, "BlockQueue: ledger must be a Ledger");
    return -1;
  }
  auto& ledger = py::cast<pool::Ledger&>(py::handle(owner));
  if (PyList_GET_SIZE(blocks) != ledger.num_blocks()) {
    PyErr_Format(PyExc_ValueError, "BlockQueue: the list has %zd blocks, the ledger %d",
                 PyList_GET_SIZE(blocks), static_cast<int>(ledger.num_blocks()));
    return -1;
  }
  static PyObject* const block_id = PyUnicode_InternFromString("block_id");
  PyTypeObject* const type = Py_TYPE(PyList_GET_ITEM(blocks, 0));
  if ((queue.slot = slot_of(type, block_id)) > 0) {
    Py_INCREF(type);
    queue.type = type;
  }
  // Copied, so that nobody can take a block out of it while its id is handed out.
  queue.blocks = PyList_GetSlice(blocks, 0, PyList_GET_SIZE(blocks));
  if (queue.blocks == nullptr) return -1;
  Py_INCREF(owner);
  queue.owner = owner;
  if (before != Py_None) {
    Py_INCREF(before);
    queue.before_evict = before;
  }
  queue.ledger = &ledger;
  return 0;
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  BlockQueue& queue = queue_of(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(queue.type);
  Py_VISIT(queue.owner);
  Py_VISIT(queue.blocks);
  Py_VISIT(queue.before_evict);
  return 0;
}

int clear(PyObject* self) {
  BlockQueue& queue = queue_of(self);
  queue.ledger = nullptr;
  Py_CLEAR(queue.type);
  Py_CLEAR(queue.owner);
  Py_CLEAR(queue.blocks);
  Py_CLEAR(queue.before_evict);
  return 0;
}

void dealloc(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMethodDef methods[] = {{"popleft_n", popleft_n, METH_O, nullptr},
                         {"append_n", append_n, METH_O, nullptr},
                         {"prepend_n", prepend_n, METH_O, nullptr},
                         {"remove", remove, METH_O, nullptr},
                         {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};

PyGetSetDef properties[] = {{"num_free_blocks", num_free_blocks, nullptr, nullptr, nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};

template <typename F>
void* address(F* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

void bind_block_queue(py::module_& m) {
  PyType_Slot slots[] = {{Py_tp_init, address(init)},
                         {Py_tp_dealloc, address(dealloc)},
                         {Py_tp_traverse, address(traverse)},
                         {Py_tp_clear, address(clear)},
                         {Py_tp_methods, methods},
                         {Py_tp_getset, properties},
                         {0, nullptr}};
  PyType_Spec spec{"kvcached_core._native.BlockQueue", sizeof(BlockQueue), 0,
                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};
  const auto type = py::reinterpret_steal<py::object>(PyType_FromSpec(&spec));
  if (!type) throw py::error_already_set();
  m.attr("BlockQueue") = type;
}

}  // namespace kvcached
