"""Settings of an engine's elastic storage, and sizes as people write them."""

from kvcached_core.config.settings import Key, Settings, keys, parse_settings
from kvcached_core.config.sizes import format_size, parse_size
from kvcached_core.config.values import SettingsError

__all__ = [
    "Key",
    "Settings",
    "SettingsError",
    "format_size",
    "keys",
    "parse_settings",
    "parse_size",
]
