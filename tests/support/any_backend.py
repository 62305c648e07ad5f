"""The storage backend that the conformance kit judges: named by the environment, or a test's own.

``KVCACHED_TEST_BACKEND`` is the name of its entry point; ``KVCACHED_TEST_PROFILE`` a file of JSON:

* ``config``: its settings, what ``--kv-storage-config`` takes; none by default.
* ``tight``: what is added to them where memory is to be short; nothing by default: the engine's own
  space of blocks is small then.
* ``unused``: ``accessible`` (default) if memory of blocks that nobody uses may be written at any
  time, ``inaccessible`` if it can be neither read nor written.
* ``path``: a folder, relative to that of the file, with its modules and entry point, if it is not
  installed.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

UNUSED = ("accessible", "inaccessible")


@dataclass(frozen=True)
class Subject:
    name: str
    config: dict[str, Any] = field(default_factory=dict)
    tight: dict[str, Any] = field(default_factory=dict)
    unused: str = UNUSED[0]
    path: str = ""  # more of PYTHONPATH, where its entry point is found

    def __post_init__(self) -> None:
        if self.unused not in UNUSED:
            raise ValueError(f"unused: {self.unused!r} is none of {UNUSED}")

    @property
    def accessible(self) -> bool:
        return self.unused == UNUSED[0]

    def engine(self, **more: Any) -> dict[str, Any]:
        """Arguments of the engine that choose it; `more` settings."""
        return {"kv_storage_backend": self.name, "kv_storage_config": {**self.config, **more}}


def from_environment() -> Subject | None:
    """The backend that is named there. Raises ValueError for a profile that is none."""
    name = os.environ.get("KVCACHED_TEST_BACKEND")
    if not name:
        return None
    profile = os.environ.get("KVCACHED_TEST_PROFILE")
    given = json.loads(Path(profile).read_text()) if profile else {}
    if unknown := set(given) - {"config", "tight", "unused", "path"}:
        raise ValueError(f"{profile}: unknown key {min(unknown)!r}")
    if profile and "path" in given:
        given["path"] = str(Path(profile).resolve().parent / given["path"])
    return Subject(name, **given)


def installed(site: Path, group: str, name: str, target: str) -> str:
    """Makes a distribution of one entry point in folder `site`; returns the folder."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {target}\n")
    return str(site)
