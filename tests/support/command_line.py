from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def options(arguments: Mapping[str, Any]) -> list[str]:
    """Of a server, for what is an argument in Python. A flag that is False is left out."""
    words = []
    for key, value in arguments.items():
        option = "--" + key.replace("_", "-")
        if value is not False:
            words += [option] if value is True else [option, str(value)]
    return words
