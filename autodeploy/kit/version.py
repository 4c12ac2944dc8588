"""Version of the engine: equal specs, profiles and versions give equal plans."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    ENGINE_VERSION = version("autodeploy")
except PackageNotFoundError:  # run from a source tree that is not installed
    ENGINE_VERSION = "0.0.0"
