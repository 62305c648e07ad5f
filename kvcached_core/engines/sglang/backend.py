"""The backend that SGLang finds under the name ``kvcached``."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.kv_storage import KVStorageBackend

from kvcached_core.config import Settings, format_size, parse_settings
from kvcached_core.engines.sglang import attention, support
from kvcached_core.engines.sglang.device import device_of
from kvcached_core.engines.sglang.log import logger
from kvcached_core.engines.sglang.memory import Memory
from kvcached_core.engines.sglang.opening import Opening
from kvcached_core.engines.sglang.ranks.team import team_of
from kvcached_core.engines.sglang.stepper import Stepper
from kvcached_core.engines.sglang.stock import Stock
from kvcached_core.provenance import sglang as provenance

if TYPE_CHECKING:
    import torch
    from sglang.srt.server_args import ServerArgs

SOURCE = "--kv-storage-config"


def settings_of(server_args: ServerArgs) -> Settings:
    """The parsed settings. Raises SettingsError."""
    return parse_settings(server_args.kv_storage_config or {}, SOURCE)


class KvcachedBackend(KVStorageBackend):  # type: ignore[misc]
    """KV tensors with fixed addresses, whose memory comes with use and goes without."""

    name = "kvcached"
    preallocates = False

    @classmethod
    def check_server_args(cls, server_args: ServerArgs) -> None:
        provenance.check()
        support.check_supported(server_args)
        given = server_args.kv_storage_config or {}
        support.check_settings(server_args, given)
        if settings_of(server_args).name is None:
            # One identity, fixed by the first process that sees the arguments and passed on.
            server_args.kv_storage_config = {**given, "name": f"sglang-{uuid.uuid4().hex[:12]}"}

    def __init__(self, server_args: ServerArgs, *, device: str, gpu_id: int) -> None:
        self._server_args = server_args
        settings = settings_of(server_args)
        block_major = settings.layout == "block-major" and attention.takes_strides(server_args)
        self._memory = Memory(
            settings,
            device_of(device, settings, gpu_id),
            block_major=block_major,
            windows=attention.windows_of(server_args),
        )
        self._opening: Opening | None = None
        self._stepper: Stepper | None = None

    # --- start ---

    def kv_budget_gb(
        self,
        profiled_gb: float,
        *,
        available_gb: float,
        before_load_gb: float,
        cpu_group: Any,
    ) -> float:
        # What SGLang would leave free, by its own options, for activations and graphs.
        self._memory.device.plan_workspace(int((available_gb - profiled_gb) * (1 << 30)))
        self._memory.team = team_of(cpu_group)
        return self._memory.agree_on_budget() / (1 << 30)

    def new_buffer(
        self,
        owner: Any,
        shape: Sequence[int],
        *,
        dtype: torch.dtype,
        device: str,
        tokens_per_row: int = 1,
    ) -> torch.Tensor:
        return self._memory.tensors.new(owner, shape, dtype, device, tokens_per_row)

    def token_allocator_cls(self) -> Any:
        from kvcached_core.engines.sglang.allocator import ElasticTokenAllocator  # noqa: PLC0415

        return ElasticTokenAllocator

    def paged_allocator_cls(self) -> Any:
        from kvcached_core.engines.sglang.allocator import ElasticPagedAllocator  # noqa: PLC0415

        return ElasticPagedAllocator

    def open_stock(self, allocator: Any) -> Stock:
        """For an allocator that is being made: gives its pool's first page memory, and joins the
        budget. Raises ValueError, BudgetError."""
        support.check_pool(allocator.get_kvcache())
        if self._opening is None:
            context = self._server_args.get_model_config().context_len
            self._opening = Opening(self._memory, allocator, context)
        stock = self._opening.open(allocator)
        if pools := self._opening.pools():
            self._stepper = Stepper(self._opening.plan, self._memory, pools)
            _log_start(self._opening, self._memory)
        return stock

    def max_request_tokens(self, default: int) -> int:
        assert self._opening is not None
        pages = self._opening.pages
        return min(default, pages.tokens_of_request(self._memory.most_pages))

    # --- steps ---

    def bind(self, params: Any, tree_cache: Any) -> None:
        assert self._stepper is not None
        self._memory.lower_claim(now=True)
        self._stepper.bind(tree_cache, support.limits_of(self._server_args, params))

    def wakeup_fd(self) -> int | None:
        assert self._stepper is not None
        return self._stepper.wake.fd

    def begin_step(self, waiting: Sequence[Any], chunked: Any, running: Any) -> None:
        assert self._stepper is not None
        self._stepper.begin(waiting, chunked, running)

    def on_forward(self, forward_ct: int, forward_stream: Any) -> None:
        assert self._stepper is not None
        self._stepper.note_forward(forward_stream)

    # --- sleep and end ---

    def release(self) -> None:
        assert self._stepper is not None
        self._stepper.release()

    def resume(self) -> None:
        assert self._stepper is not None
        self._stepper.resume()

    def close(self, graceful: bool) -> None:
        stepper, self._stepper = self._stepper, None
        if stepper is None:
            return
        stepper.stop()
        if graceful:
            self._memory.close()
            stepper.supply.close()
        else:
            self._memory.abandon()

    def report(self) -> dict[str, Any]:
        """What this rank holds now: counts of pages and of tokens, and bytes."""
        return {} if self._stepper is None else self._stepper.report()


def _log_start(opening: Opening, memory: Memory) -> None:
    plan = opening.plan
    tokens = [str(pool.page_tokens) for pool in opening.pages.pools]
    logger.info(
        "KV storage: kvcached, %sengine %s on budget %s: reserved %s in %d pages of %s "
        "(%s tokens each, %s), mapped %s, floor %s, limit %s, capacity %s; %s",
        f"rank {plan.rank} of " if plan.num_ranks > 1 else "",
        plan.instance,
        plan.device,
        format_size(plan.reserved_bytes),
        plan.num_pages,
        format_size(plan.page_bytes),
        " of sliding windows or ".join(tokens),
        "block-major" if memory.tensors.is_block_major else "per-layer",
        format_size(memory.rank.mapped_bytes),
        format_size(plan.floor),
        format_size(plan.limit),
        format_size(plan.capacity),
        provenance.provenance(),
    )
