// The tensors of an arena; csrc/vmm/arena.h has their contract.
#include <memory>

#include "vmm/arena.h"
#include "vmm/dlpack.h"

namespace kvcached::vmm {
namespace {

// What a tensor owns: the range's keeper and the arrays that its DLTensor points to.
struct Tensor {
  std::shared_ptr<Arena> arena;
  std::int64_t shape;
  std::int64_t stride = 1;
  DLManagedTensor managed{};
};

}  // namespace

void Arena::check_tensor(Bytes offset, Bytes size) const {
  check_process("tensor");
  check_range("tensor", offset, size);
}

DLManagedTensor* Arena::to_dlpack(Bytes offset, Bytes size) {
  check_tensor(offset, size);
  auto tensor = std::make_unique<Tensor>();
  tensor->arena = shared_from_this();
  tensor->shape = static_cast<std::int64_t>(size);
  DLTensor& t = tensor->managed.dl_tensor;
  t.data = address(offset);
  t.device = {driver_->dlpack_device_type(), driver_->dlpack_device_id()};
  t.ndim = 1;
  t.dtype = {kDLInt, 8, 1};
  t.shape = &tensor->shape;
  t.strides = &tensor->stride;
  tensor->managed.manager_ctx = tensor.get();
  tensor->managed.deleter = [](DLManagedTensor* self) {
    delete static_cast<Tensor*>(self->manager_ctx);
  };
  return &tensor.release()->managed;
}

}  // namespace kvcached::vmm
