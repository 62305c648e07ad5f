"""The pin of another release, made from the one we have: its text, comments and all."""

from __future__ import annotations

import re
import zipfile
from dataclasses import replace
from email.parser import Parser
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from upstream import Layout, Pin, Refusal, parse_pin

from .index import like, offers


def repin(layout: Layout, pin: Pin, to: str) -> tuple[Layout, str]:
    """The place and the text of the pin of `to`, its wheels looked up on the index.

    `layout` and `pin` are those of the release that we have. Raises Refusal if a variant has no
    wheel of that release.
    """
    place = Layout(layout.root, layout.engine, to)
    wanted, text = {}, layout.pin_file.read_text(encoding="utf-8")
    for name, variant in pin.variants.items():
        offer = like(variant, Version(to))
        if offer is None:
            have = sorted(o.file for o in offers(variant.package) if str(o.version) == to)
            raise Refusal(
                f"{variant.package}=={to}",
                f"the index has no wheel like {variant.file}",
                f"it has: {', '.join(have) or 'none of that version'}",
            )
        size = None if variant.size is None else offer.size
        wanted[name] = replace(variant, file=offer.file, size=size, sha256=offer.sha256)
        text = text.replace(variant.file, f"\0{name}\0").replace(variant.sha256, offer.sha256)
        text = re.sub(rf"\bsize: {variant.size}\b", f"size: {size}", text)
    text = re.sub(rf"(?<![\w.=<>~])(v?){re.escape(pin.version)}(?!\d|\.\d)", rf"\g<1>{to}", text)
    for name, variant in wanted.items():  # last, since names of files hold versions
        text = text.replace(f"\0{name}\0", variant.file)
    text = re.sub(r"(?m)^commit: [0-9a-f]{7,}", "commit: unknown", text)
    text = re.sub(r"(?m)^revision: \d+", "revision: 1", text)
    made = parse_pin(place, text)
    if (made.version, made.variants, made.revision) != (to, wanted, 1):
        raise Refusal(
            layout.shown(layout.pin_file),
            f"cannot be rewritten for {to}",
            "write keys as block YAML, one a line, as the pins of the other engines are",
        )
    return place, text


def requirement_notes(pin: Pin, variant: str, old_wheel: Path, new_wheel: Path) -> list[str]:
    """What the pin replaces among upstream's requirements, where upstream asks for another now."""
    old, new = _requirements(old_wheel), _requirements(new_wheel)
    notes = []
    for name, ours in pin.variants[variant].replace.items():
        before, after = old.get(name, []), new.get(name, [])
        if before != after:
            asked = f"upstream asked for {' and '.join(before)}, now for {' and '.join(after)}"
            notes.append(f"{pin.path}: variants.{variant}.replace.{name} is {ours!r}; {asked}")
    return notes


def _requirements(wheel: Path) -> dict[str, list[str]]:
    """Requirements by project name, without those of extras."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        fields = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []
    found: dict[str, list[str]] = {}
    for field in fields:
        try:
            asked = Requirement(field)
        except InvalidRequirement:
            continue
        if "extra ==" not in str(asked.marker or ""):
            of_name = found.setdefault(canonicalize_name(asked.name), [])
            of_name += {f"{asked.name}{asked.specifier}"} - set(of_name)  # markers aside
    return found
