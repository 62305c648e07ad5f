"""What the package index offers, by its JSON interface (PEP 691). The index is the one pip uses."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.error import URLError
from urllib.parse import quote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version
from upstream import Refusal, Variant

_JSON = "application/vnd.pypi.simple.v1+json"
_DEFAULT = "https://pypi.org/simple"
_SETTING = "index-url"
_SECONDS = 60


@dataclass(frozen=True)
class Offer:
    """A wheel on the index."""

    file: str
    version: Version
    size: int | None
    sha256: str
    uploaded: str
    """The day, YYYY-MM-DD; empty if the index does not say."""


def index_url() -> str:
    """The index that pip would ask: its setting, from environment or configuration, or PyPI."""
    if os.environ.get("PIP_INDEX_URL"):
        return os.environ["PIP_INDEX_URL"]
    command = [sys.executable, "-m", "pip", "config", "list"]
    said = subprocess.run(command, check=False, capture_output=True, text=True).stdout
    pairs = (line.partition("=") for line in said.splitlines())
    found = {key.strip(): value.strip().strip("'\"") for key, _, value in pairs}
    return found.get(f"download.{_SETTING}") or found.get(f"global.{_SETTING}") or _DEFAULT


@cache
def _page(index: str, package: str) -> dict[str, Any]:
    parts = urlsplit(index)
    host = parts.netloc.rpartition("@")[2]
    path = f"{parts.path.rstrip('/')}/{quote(canonicalize_name(package))}/"
    url = urlunsplit((parts.scheme, host, path, "", ""))
    request = Request(url, headers={"Accept": _JSON})
    if parts.username:
        pair = f"{parts.username}:{parts.password or ''}".encode()
        request.add_header("Authorization", f"Basic {base64.b64encode(pair).decode()}")
    try:
        context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or None)
        with urlopen(request, timeout=_SECONDS, context=context) as answer:
            page = json.load(answer)
    except (URLError, OSError, ValueError) as error:
        raise Refusal(
            url,
            f"no page of {package} in JSON ({error})",
            "set pip's index-url to an index that answers as PEP 691 says",
        ) from error
    return dict(page)


def forget_pages() -> None:
    """Asks the index anew from here on; within one command it is asked once for each package."""
    _page.cache_clear()


def offers(package: str) -> list[Offer]:
    """Every wheel of the package that is not withdrawn and has a sha256. Raises Refusal."""
    found = []
    for entry in _page(index_url(), package).get("files", []):
        name, digest = str(entry.get("filename")), entry.get("hashes", {}).get("sha256")
        if entry.get("yanked") or not digest:
            continue
        try:
            version = parse_wheel_filename(name)[1]
        except InvalidWheelFilename:
            continue
        day = str(entry.get("upload-time") or "")[:10]
        found.append(Offer(name, version, entry.get("size"), digest, day))
    return found


def like(variant: Variant, version: Version) -> Offer | None:
    """The wheel of `version` for the machines that the variant's pinned wheel is for."""
    wanted = parse_wheel_filename(variant.file)[3]
    of_version = [offer for offer in offers(variant.package) if offer.version == version]
    for offer in of_version:
        if parse_wheel_filename(offer.file)[3] == wanted:
            return offer
    # Releases raise the C library that they ask for; the rest of a tag says which machine.
    kinds = {(t.interpreter, t.abi, _machine(t.platform)) for t in wanted}
    for offer in of_version:
        tags = parse_wheel_filename(offer.file)[3]
        if kinds & {(t.interpreter, t.abi, _machine(t.platform)) for t in tags}:
            return offer
    return None


def _machine(platform: str) -> str:
    """manylinux_2_28_x86_64 -> x86_64"""
    system, _, rest = platform.partition("_")
    if not system.startswith("manylinux"):
        return platform
    parts = rest.split("_")
    numbers = next((i for i, part in enumerate(parts) if not part.isdigit()), 0)
    return "_".join(parts[numbers:])


def newer(variants: list[Variant], than: Version) -> list[Version]:
    """Finished releases that some variant has a wheel of, the newest first."""
    found = {offer.version for variant in variants for offer in offers(variant.package)}
    return sorted((v for v in found if v > than and not v.is_prerelease), reverse=True)
