"""Upstream's METADATA and WHEEL made into ours. Order, extras and description stay upstream's."""

from __future__ import annotations

import re
from dataclasses import dataclass

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.tags import Tag
from packaging.utils import canonicalize_name
from packaging.version import Version
from upstream import Pin, Refusal, Variant

# Room for this many releases of our series on one upstream version, before its next `.postN`.
_REVISIONS = 100
# Where upstream's people would get questions about a build that is not theirs.
_CONTACTS = frozenset({"maintainer", "maintainer-email"})
_KEPT_URLS = frozenset({"homepage", "documentation"})


def our_version(pin: Pin) -> str:
    """Upstream's version with a post-release of ours.

    A public index takes no local versions (`+...`), so the revision is a post number:
    0.26.0 -> 0.26.0.post1. A release that is itself a post-release keeps room for it:
    0.5.15.post1 -> 0.5.15.post101, that is 1 * 100 + revision 1.
    """
    base = Version(pin.version)
    if base.is_devrelease or base.local or not 1 <= pin.revision < _REVISIONS:
        raise Refusal(
            pin.path,
            f"version {pin.version} with revision {pin.revision} makes no index version",
            f"pin a release, and a revision from 1 to {_REVISIONS - 1}",
        )
    post = (base.post or 0) * _REVISIONS + pin.revision
    public = re.sub(r"\.post\d+$", "", str(base))
    return str(Version(f"{public}.post{post}"))


@dataclass(frozen=True)
class Identity:
    """Who our wheel is: its project name, version, and the same as file names spell them."""

    name: str
    version: str

    @property
    def stem(self) -> str:
        return f"{canonicalize_name(self.name).replace('-', '_')}-{self.version}"


def identity(pin: Pin, variant: Variant) -> Identity:
    return Identity(variant.distribution, our_version(pin))


def headers(text: str) -> tuple[list[tuple[str, str]], str]:
    """METADATA as its header fields, in order, and the description below them."""
    head, _, body = text.replace("\r\n", "\n").partition("\n\n")
    fields: list[tuple[str, str]] = []
    for line in head.split("\n"):
        if line[:1] in (" ", "\t") and fields:
            key, value = fields[-1]
            fields[-1] = (key, f"{value}\n{line}")
        else:
            key, _, value = line.partition(":")
            fields.append((key, value.strip()))
    return fields, body


def metadata(text: str, pin: Pin, variant: Variant, series_hash: str) -> str:
    """Upstream's METADATA under our name: version, summary and requirements are ours.

    The description says which series the build carries.
    """
    fields, body = headers(text)
    who = identity(pin, variant)
    out: list[tuple[str, str]] = []
    replaced: set[str] = set()
    for key, value in fields:
        match key.lower():
            case "name":
                out.append((key, who.name))
            case "version":
                out.append((key, who.version))
            case "summary":
                out.append((key, f"{value} (fork of {pin.engine} {pin.version} by kvcached-forks)"))
            case "requires-dist":
                out += [(key, r) for r in _requirement(value, variant, replaced)]
            case "project-url" if value.split(",")[0].strip().lower() not in _KEPT_URLS:
                pass
            case contact if contact in _CONTACTS:
                pass
            case _:
                out.append((key, value))
    absent = sorted(variant.replace.keys() - replaced)
    if absent:
        raise Refusal(
            pin.path,
            f"variants.{variant.name}.replace names {absent[0]}, which upstream does not require",
            "remove the entry",
        )
    out += [("Requires-Dist", requirement) for requirement in pin.requires]
    out.append(("License-File", "NOTICE"))
    note = (
        f"This is a modified build of {pin.engine} {pin.version} ({pin.repository}); report its "
        f"faults to kvcached-forks, not upstream.\nSeries: {series_hash}\n"
        "The text below is upstream's."
    )
    return "".join(f"{key}: {value}\n" for key, value in out) + f"\n{note}\n\n{body}"


def _requirement(value: str, variant: Variant, replaced: set[str]) -> list[str]:
    try:
        wanted = Requirement(value)
    except InvalidRequirement:
        return [value]
    name = canonicalize_name(wanted.name)
    if name not in variant.replace:
        return [value]
    ours, first = variant.replace[name], name not in replaced
    replaced.add(name)
    if ours is None:
        return []
    if wanted.marker and _of_an_extra(wanted.marker):
        return [f"{ours}; {wanted.marker}"]
    return [ours] if first else []


def _of_an_extra(marker: Marker) -> bool:
    return bool(re.search(r"\bextra\b", str(marker)))


def wheel_file(text: str, tags: frozenset[Tag]) -> str:
    """WHEEL with the tags of the file name, which upstream's need not repeat faithfully."""
    pure = next(
        (value for key, value in headers(text)[0] if key.lower() == "root-is-purelib"), "false"
    )
    lines = ["Wheel-Version: 1.0", "Generator: kvcached-forks", f"Root-Is-Purelib: {pure}"]
    return "\n".join(lines + [f"Tag: {tag}" for tag in sorted(map(str, tags))]) + "\n"
