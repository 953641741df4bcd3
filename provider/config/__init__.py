"""Configuration: flags > environment > TOML file > defaults, every key checked, every fault named.

A key is `section.key` (`contract` stands alone). In the environment it is `MALIBU_PROVIDER_SECTION__KEY`; a
list may be given there as comma-separated text. `configs/provider.example.toml` documents each key. Only
`cli` and `provider.app` read this; every other room takes plain values.

`sections` says which keys there are, `layers` lays one source over another, `faults` words what is wrong.
"""

from provider.config.layers import ENV_CONFIG, ENV_HOME, LoadedConfig, load, named_files
from provider.config.sections import (
    MetricsSection,
    PolicySection,
    Settings,
    StatusSection,
    known_keys,
)

__all__ = [
    "ENV_CONFIG",
    "ENV_HOME",
    "LoadedConfig",
    "MetricsSection",
    "PolicySection",
    "Settings",
    "StatusSection",
    "known_keys",
    "load",
    "named_files",
]
