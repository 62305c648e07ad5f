"""SGLang's engine processes: as vLLM's, with another runner and other variables."""

from __future__ import annotations

from engine.processes import TESTS, Engines

VARIABLES = {"SGLANG_USE_CPU_ENGINE": "1"}


class SglangEngines(Engines):
    """The scheduler is always a process of its own, a child of the runner's."""

    package = "sglang"
    scripts = TESTS / "engine_sglang"

    def variables(self, in_process: bool) -> dict[str, str]:
        assert not in_process
        return VARIABLES
