"""Which series it is: one hash over what the fork is made from."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

from upstream import Layout, Pin

from .store import read_files

# Of the pin: what does not change a wheel. Where it lies, and how many lines the series may have.
_NO_CONTENT = ("path", "budget_added", "budget_removed")
SHORT = 12


def series_hash(layout: Layout, pin: Pin) -> str:
    """sha256, in hex, over the pin and every file of the series.

    The pin counts by its values, of all variants, not by its text: a comment changes nothing. Files
    count by name and content, in the order of their names. People write the first SHORT digits.
    """
    facts = {key: value for key, value in asdict(pin).items() if key not in _NO_CONTENT}
    parts = {"pin": json.dumps(facts, sort_keys=True).encode(), **_files(layout, pin)}
    digest = hashlib.sha256()
    for name in sorted(parts):
        digest.update(f"{name}\0{len(parts[name])}\0".encode())
        digest.update(parts[name])
    return digest.hexdigest()


def _files(layout: Layout, pin: Pin) -> dict[str, bytes]:
    files = read_files(layout, pin.version)
    return {f"patches/{name}": data for name, data in files.items()}
