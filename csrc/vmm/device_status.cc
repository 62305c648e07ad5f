#include "vmm/device_status.h"

namespace kvcached::vmm {
namespace {

// The numbers are part of both libraries' ABI. Names are CUDA's, without CUDA_ERROR_.
Outcome common_outcome(Status status) {
  switch (status) {
    case 0:  // SUCCESS
      return Outcome::kDone;
    case 600:  // NOT_READY
      return Outcome::kPending;
    case 2:  // OUT_OF_MEMORY
      return Outcome::kOutOfMemory;
    case 205:  // MAP_FAILED
    case 304:  // OPERATING_SYSTEM
    case 701:  // LAUNCH_OUT_OF_RESOURCES
      return Outcome::kHostLimit;
    case 3:    // NOT_INITIALIZED: the library has been torn down
    case 4:    // DEINITIALIZED: the process is exiting
    case 100:  // NO_DEVICE
    case 201:  // INVALID_CONTEXT: ours was reset
    case 214:  // ECC_UNCORRECTABLE
    case 700:  // ILLEGAL_ADDRESS
    case 702:  // LAUNCH_TIMEOUT
    case 709:  // CONTEXT_IS_DESTROYED
    case 710:  // ASSERT
    case 719:  // LAUNCH_FAILED
      return Outcome::kLost;
    case 1:    // INVALID_VALUE
    case 101:  // INVALID_DEVICE
    case 208:  // ALREADY_MAPPED
    case 211:  // NOT_MAPPED
    case 400:  // INVALID_HANDLE
    case 907:  // CAPTURED_EVENT: the fence's stream was capturing a graph
      return Outcome::kContract;
    default:
      return Outcome::kOther;
  }
}

}  // namespace

Outcome cuda_outcome(Status status) {
  switch (status) {
    case 808:  // MPS_MAX_CLIENTS_REACHED
    case 809:  // MPS_MAX_CONNECTIONS_REACHED
      return Outcome::kHostLimit;
    case 802:  // SYSTEM_NOT_READY
    case 807:  // MPS_SERVER_NOT_READY
    case 909:  // TIMEOUT
      return Outcome::kTransient;
    case 46:   // DEVICE_UNAVAILABLE
    case 220:  // NVLINK_UNCORRECTABLE
    case 226:  // CONTAINED
    case 714:  // HARDWARE_STACK_ERROR
    case 715:  // ILLEGAL_INSTRUCTION
    case 716:  // MISALIGNED_ADDRESS
    case 717:  // INVALID_ADDRESS_SPACE
    case 718:  // INVALID_PC
    case 721:  // TENSOR_MEMORY_LEAK
    case 805:  // MPS_CONNECTION_FAILED
    case 806:  // MPS_RPC_FAILURE
    case 810:  // MPS_CLIENT_TERMINATED
    case 911:  // EXTERNAL_DEVICE
      return Outcome::kLost;
    default:
      return common_outcome(status);
  }
}

Outcome hip_outcome(Status status) {
  switch (status) {
    case 53:  // hipErrorPriorLaunchFailure
      return Outcome::kLost;
    case 17:  // hipErrorInvalidDevicePointer
      return Outcome::kContract;
    default:
      return common_outcome(status);
  }
}

}  // namespace kvcached::vmm
