"""vLLM's plugin that puts all ranks of an engine on its first GPU, where a machine has but one.

NCCL takes one rank a GPU, so sums between ranks go through the host, by gloo, and no graph can be
captured. Ranks share the GPU's budget then, each with its lease.
"""

from __future__ import annotations

from typing import Any

ENGINE = {"enforce_eager": True}
ENVIRONMENT = {
    "VLLM_DISABLE_PYNCCL": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
}


def register() -> None:
    """Called by vLLM in each of its processes, once or more often."""
    from vllm.platforms import current_platform
    from vllm.v1.worker.gpu_worker import Worker

    from kvcached_core.engines.vllm import device

    if type(current_platform).dist_backend == "gloo":
        return
    type(current_platform).dist_backend = "gloo"
    device._cuda_index = lambda config, rank: 0
    begin = Worker.init_device

    def init_device(worker: Any) -> None:
        worker.local_rank = 0
        begin(worker)

    Worker.init_device = init_device
