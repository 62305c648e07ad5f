"""The storage backend that the conformance kit judges: named by the environment, or a test's own.

``KVCACHED_TEST_BACKEND`` is the name of its entry point; ``KVCACHED_TEST_PROFILE`` a file of JSON:

* ``config``: its settings, what ``--kv-storage-config`` takes; none by default.
* ``tight``: what is added to them where memory is to be short; nothing by default: the engine's own
  space of blocks is small then.
* ``unused``: ``accessible`` (default) if memory of blocks that nobody uses may be written at any
  time, ``inaccessible`` if it can be neither read nor written.
* ``path``: a folder, relative to that of the file, with its modules and entry point, if it is not
  installed.

    python -m support.any_backend ENGINE   (with tests/ on PYTHONPATH)

says what is wrong with them, if anything is, and ends with 2 then.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.processes import Engines, Run

UNUSED = ("accessible", "inaccessible")
KEYS = ("config", "path", "tight", "unused")
BUILT_IN = "static"  # of either engine; it has no entry point


@dataclass(frozen=True)
class Subject:
    name: str
    config: dict[str, Any] = field(default_factory=dict)
    tight: dict[str, Any] = field(default_factory=dict)
    unused: str = UNUSED[0]
    path: str = ""  # more of PYTHONPATH, where its entry point is found

    @property
    def accessible(self) -> bool:
        return self.unused == UNUSED[0]

    def job(
        self,
        engines: Engines,
        *,
        config: dict[str, Any] | None = None,
        engine: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        **job: Any,
    ) -> dict[str, Any]:
        """A runner's job that chooses it; `config` on top of its settings."""
        settings = {**self.config, **(config or {})}
        chosen = {"kv_storage_backend": self.name, "kv_storage_config": settings}
        path = os.pathsep.join(filter(None, [engines.environment()["PYTHONPATH"], self.path]))
        variables = {"PYTHONPATH": path, **(environment or {})}
        return {"engine": {**chosen, **(engine or {})}, "environment": variables, **job}


def from_environment(engine: str) -> Subject | None:
    """The backend that is named there, to be judged on ``vllm`` or ``sglang``; None if none is.

    Raises ValueError, which names the file and key, for a profile that is none, and for a name
    that no entry point has.
    """
    name = os.environ.get("KVCACHED_TEST_BACKEND")
    if not name:
        return None
    file = os.environ.get("KVCACHED_TEST_PROFILE")
    subject = Subject(name, **(_profile(Path(file)) if file else {}))
    there = {BUILT_IN, *_names(f"{engine}.kv_storage_backends", subject.path)}
    if name not in there:
        raise ValueError(
            f"backend {name!r}: no entry point of {engine}.kv_storage_backends, here or in "
            f"the profile's path {subject.path!r}; there are: {', '.join(sorted(there))}"
        )
    return subject


def _profile(file: Path) -> dict[str, Any]:
    try:
        given = json.loads(file.read_text())
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{file}: not JSON: {error}") from None
    if not isinstance(given, dict):
        raise ValueError(f"{file}: {given!r} is no JSON object with keys {', '.join(KEYS)}")
    if unknown := set(given) - set(KEYS):
        raise ValueError(f"{file}: unknown key {min(unknown)!r}; keys are {', '.join(KEYS)}")
    for key in ("config", "tight"):
        if not isinstance(given.get(key, {}), dict):
            raise ValueError(f"{file}: {key}: {given[key]!r} is no JSON object of settings")
    if given.get("unused", UNUSED[0]) not in UNUSED:
        raise ValueError(f"{file}: unused: {given['unused']!r} is none of {', '.join(UNUSED)}")
    if "path" in given:
        given["path"] = _folder(file, given["path"])
    return given


def _folder(file: Path, path: Any) -> str:
    if not isinstance(path, str) or not (folder := file.resolve().parent / path).is_dir():
        raise ValueError(f"{file}: path: {path!r} is no folder; it is relative to the profile's")
    return str(folder)


def _names(group: str, path: str) -> set[str]:
    found = distributions(path=[*filter(None, [path]), *sys.path])
    return {entry.name for one in found for entry in one.entry_points if entry.group == group}


def installed(site: Path, group: str, name: str, target: str) -> str:
    """Makes a distribution of one entry point in folder `site`; returns the folder."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {target}\n")
    return str(site)


def run_to_its_end(
    engines: Engines, job: dict[str, Any], ready: str, theirs: Sequence[str] = ()
) -> tuple[Run, list[str]]:
    """A run that ends by itself, and the names of what it left of the shared memory that it had
    when it logged `ready`, but for those that begin as `theirs`: the engine's own way to end."""
    started = engines.spawn("any-ended", job, {**engines.environment(), **job["environment"]})
    shared: set[Path] = set()
    try:
        started.wait_for_log(ready)
        shared = started.shared_memory()
        started.wait_for_end()
        left = {path for path in shared if path.exists()}
    finally:
        started.kill()
        own = {path for path in shared if path.name.startswith(tuple(theirs))}
        for path in own:
            path.unlink(missing_ok=True)
    return started.run(), sorted(path.name for path in left - own)


if __name__ == "__main__":
    try:
        from_environment(sys.argv[1])
    except ValueError as wrong:
        print(f"conformance: {wrong}", file=sys.stderr)
        sys.exit(2)
