"""Settings of an engine's elastic storage, and sizes as people write them."""

from kvcached_core.config.settings import Settings, SettingsError, parse_settings
from kvcached_core.config.sizes import format_size, parse_size

__all__ = ["Settings", "SettingsError", "format_size", "parse_settings", "parse_size"]
