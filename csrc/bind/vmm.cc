// kvcached_core.vmm in C++: drivers, arenas, their tensors, granules, the probe. Every call that
// may reach a driver, and the end of every object that owns one, runs without the interpreter lock.
#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <utility>

#include "bind/bind.h"
#include "bind/vmm_faults.h"
#include "vmm/arena.h"
#include "vmm/cuda_driver.h"
#include "vmm/dlpack.h"
#include "vmm/granules.h"
#include "vmm/hip_driver.h"
#include "vmm/machine_memory.h"
#include "vmm/probe.h"
#include "vmm/text.h"

namespace py = pybind11;

namespace kvcached {
namespace {

using namespace vmm;
using NoGil = py::call_guard<py::gil_scoped_release>;

// Runs `work` without the interpreter lock, whether or not this thread has it, also after the
// interpreter is gone.
template <class Work>
void without_gil(Work&& work) {
  if (Py_IsInitialized() && PyGILState_Check()) {
    const py::gil_scoped_release released;
    work();
  } else {
    work();
  }
}

void delete_without_gil(Arena* arena) {
  without_gil([arena] { delete arena; });
}

// A pointer to the same driver, or fence, whose last copy lets it go without the interpreter lock.
template <class Kept>
std::shared_ptr<Kept> ends_without_gil(std::shared_ptr<Kept> kept) {
  struct Keeper {
    std::shared_ptr<Kept> kept;
    ~Keeper() {
      without_gil([this] { kept.reset(); });
    }
  };
  Kept* const raw = kept.get();
  auto keeper = std::make_shared<Keeper>();
  keeper->kept = std::move(kept);
  return std::shared_ptr<Kept>(std::move(keeper), raw);
}

void delete_unconsumed(PyObject* capsule) {
  if (!PyCapsule_IsValid(capsule, "dltensor")) return;  // a consumer has renamed it
  auto* tensor = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
  tensor->deleter(tensor);
}

// What Arena.tensor returns: a range to be taken up by any DLPack consumer, any number of times.
struct TensorView {
  std::shared_ptr<Arena> arena;
  Bytes offset;
  Bytes size;

  std::pair<int, int> device() const {
    return {arena->driver().dlpack_device_type(), arena->driver().dlpack_device_id()};
  }

  // The stream is ignored: a page is handed out only when its zeros are there.
  py::capsule dlpack(const py::object& /*stream*/, const py::kwargs& options) const {
    if (options.contains("copy") && py::object(options["copy"]).is(py::bool_(true))) {
      throw py::buffer_error("an arena's tensor is a view, it cannot be exported as a copy");
    }
    if (options.contains("dl_device") && !options["dl_device"].is_none() &&
        options["dl_device"].cast<std::pair<int, int>>() != device()) {
      throw py::buffer_error(text("this tensor is on DLPack device (", device().first, ", ",
                                  device().second, ") and cannot be exported to another"));
    }
    DLManagedTensor* tensor = arena->to_dlpack(offset, size);
    PyObject* capsule = PyCapsule_New(tensor, "dltensor", delete_unconsumed);
    if (capsule == nullptr) {
      tensor->deleter(tensor);
      throw py::error_already_set();
    }
    return py::reinterpret_steal<py::capsule>(capsule);
  }
};

void* pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }

void bind_errors(py::module_& m) {
  const auto& error = py::register_exception<DriverError>(m, "DriverError", PyExc_RuntimeError);
  py::register_exception<OutOfMemory>(m, "OutOfMemory", error);
  py::register_exception<InvalidArgument>(m, "InvalidArgument", error);
  py::register_exception<HostLimit>(m, "HostLimit", error);
  py::register_exception<DeviceLost>(m, "DeviceLost", error);
  py::register_exception<DeviceUnavailable>(m, "DeviceUnavailable", error);
  py::register_exception<Quarantined>(m, "Quarantined", error);
}

void bind_drivers(py::module_& m) {
  py::class_<Handle>(m, "Handle")
      .def(py::init([](std::uint64_t id, Bytes size) { return Handle{id, size}; }), py::arg("id"),
           py::arg("size"))
      .def_readonly("id", &Handle::id)
      .def_readonly("size", &Handle::size)
      .def("__bool__", [](const Handle& h) { return static_cast<bool>(h); })
      .def("__repr__", [](const Handle& h) { return text("Handle(", h.id, ", ", h.size, ")"); });

  py::class_<Fence, std::shared_ptr<Fence>>(m, "Fence")
      .def("passed", &Fence::passed, NoGil())
      .def(
          "wait",
          [](Fence& f, int milliseconds) {
            return f.wait(std::chrono::milliseconds(milliseconds));
          },
          py::arg("milliseconds"), NoGil())
      .def("describe", &Fence::describe);

  py::class_<Driver, std::shared_ptr<Driver>>(m, "Driver")
      .def("name", &Driver::name)
      .def("granularity", &Driver::granularity)
      .def("dlpack_device",
           [](const Driver& d) { return std::pair(d.dlpack_device_type(), d.dlpack_device_id()); })
      .def("creates_zeroed", &Driver::creates_zeroed)
      .def(
          "reserve",
          [](Driver& d, Bytes size) { return reinterpret_cast<std::uintptr_t>(d.reserve(size)); },
          py::arg("size"), NoGil())
      .def(
          "unreserve",
          [](Driver& d, std::uintptr_t base, Bytes size) { d.unreserve(pointer(base), size); },
          py::arg("base"), py::arg("size"), NoGil())
      .def("create", &Driver::create, py::arg("size"), NoGil())
      .def("release", &Driver::release, py::arg("handle"), NoGil())
      .def(
          "map", [](Driver& d, std::uintptr_t a, Handle handle) { d.map(pointer(a), handle); },
          py::arg("address"), py::arg("handle"), NoGil())
      .def(
          "set_access",
          [](Driver& d, std::uintptr_t a, Bytes size) { d.set_access(pointer(a), size); },
          py::arg("address"), py::arg("size"), NoGil())
      .def(
          "unmap", [](Driver& d, std::uintptr_t a, Bytes size) { d.unmap(pointer(a), size); },
          py::arg("address"), py::arg("size"), NoGil())
      .def(
          "zero", [](Driver& d, std::uintptr_t a, Bytes size) { d.zero(pointer(a), size); },
          py::arg("address"), py::arg("size"), NoGil())
      .def("finish", &Driver::finish, NoGil())
      .def(
          "fence",
          [](Driver& d, std::uintptr_t stream) { return ends_without_gil(d.fence(stream)); },
          py::arg("stream") = 0, NoGil())
      .def("adopt_thread", &Driver::adopt_thread, NoGil())
      .def("check_alive", &Driver::check_alive, NoGil())
      .def("free_bytes", &Driver::free_bytes, NoGil())
      .def("held_bytes", &Driver::held_bytes, NoGil());

  m.def(
      "HostDriver",
      [](Bytes granularity) { return ends_without_gil(make_host_driver(granularity)); },
      py::arg("granularity") = 0, NoGil());

  py::class_<DeviceDriver, Driver, std::shared_ptr<DeviceDriver>>(m, "DeviceDriver")
      .def("device_key", &DeviceDriver::device_key);
  m.def(
      "CudaDriver",
      [](int device, const std::string& library) {
        return ends_without_gil(make_cuda_driver(device, library));
      },
      py::arg("device") = 0, py::arg("library") = "libcuda.so.1", NoGil());
  m.def(
      "HipDriver",
      [](int device, const std::string& library) {
        return ends_without_gil(make_hip_driver(device, library));
      },
      py::arg("device") = 0, py::arg("library") = "", NoGil());
}

// In Python, map and zero of arenas and granules end when the zeros are there.
void bind_arena(py::module_& m) {
  py::class_<TensorView>(m, "TensorView")
      .def("__dlpack__", &TensorView::dlpack, py::arg("stream") = py::none())
      .def("__dlpack_device__", &TensorView::device);

  py::class_<Arena, std::shared_ptr<Arena>>(m, "Arena")
      .def_static(
          "reserve",
          [](std::shared_ptr<Driver> driver, Bytes size) {
            return Arena::reserve(std::move(driver), size, delete_without_gil);
          },
          py::arg("driver").none(false), py::arg("size"), NoGil())
      .def_property_readonly(
          "base", [](const Arena& a) { return reinterpret_cast<std::uintptr_t>(a.base()); })
      .def_property_readonly("size", &Arena::size)
      .def_property_readonly("mapped_bytes", &Arena::mapped_bytes)
      .def_property_readonly("quarantined_bytes", &Arena::quarantined_bytes)
      .def(
          "map",
          [](Arena& a, Bytes offset, Handle handle, bool fresh) {
            a.map(offset, handle, fresh);
            a.driver().finish();
          },
          py::arg("offset"), py::arg("handle"), py::arg("fresh") = true, NoGil())
      .def("unmap", &Arena::unmap, py::arg("offset"), NoGil())
      .def(
          "zero",
          [](Arena& a, Bytes offset, Bytes size) {
            a.zero(offset, size);
            a.driver().finish();
          },
          py::arg("offset"), py::arg("size"), NoGil())
      .def("is_mapped", &Arena::is_mapped, py::arg("offset"), NoGil())
      .def("release", &Arena::release, NoGil())
      .def(
          "tensor",
          [](std::shared_ptr<Arena> arena, Bytes offset, Bytes size) {
            arena->check_tensor(offset, size);
            return TensorView{std::move(arena), offset, size};
          },
          py::arg("offset"), py::arg("size"));
}

void bind_granules(py::module_& m) {
  py::class_<Granules>(m, "Granules")
      .def(py::init<std::shared_ptr<Arena>, Bytes, std::size_t>(), py::arg("arena").none(false),
           py::arg("page_bytes"), py::arg("num_pages"))
      .def_property_readonly("page_bytes", &Granules::page_bytes)
      .def_property_readonly("most_bytes", &Granules::most_bytes)
      .def_property_readonly("created_bytes", &Granules::created_bytes)
      .def_property_readonly("mapped_bytes", &Granules::mapped_bytes)
      .def("holds", &Granules::holds, py::arg("page"))
      .def("create", &Granules::create, py::arg("page"), NoGil())
      .def(
          "map",
          [](Granules& g, std::size_t page) {
            g.map(page);
            g.finish();
          },
          py::arg("page"), NoGil())
      .def("release", &Granules::release, py::arg("page"), NoGil())
      .def("close", &Granules::close, NoGil());
}

}  // namespace

void bind_vmm(py::module_& m) {
  bind_errors(m);
  bind_drivers(m);
  bind_vmm_faults(m);
  bind_arena(m);
  bind_granules(m);
  m.def(
      "probe",
      [](std::uintptr_t address, std::uint64_t size) {
        return readable_bytes(address, size) == size;
      },
      py::arg("address"), py::arg("size"), NoGil());
  m.def("readable_bytes", &readable_bytes, py::arg("address"), py::arg("size"), NoGil());
  m.def(
      "machine_free_bytes", [](const std::string& proc) { return MachineMemory(proc).available(); },
      py::arg("proc") = "/proc", NoGil());
}

}  // namespace kvcached
