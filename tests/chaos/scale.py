"""How much the tests of this folder do: `KVCACHED_NIGHTLY=1` for a night, else what CI affords."""

import os

NIGHTLY = os.environ.get("KVCACHED_NIGHTLY", "") not in ("", "0")


def scale(ci: int, nightly: int) -> int:
    return nightly if NIGHTLY else ci
