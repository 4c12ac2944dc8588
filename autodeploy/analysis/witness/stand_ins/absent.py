"""Packages that a framework imports and a step on the CPU never needs: empty modules that answer anything."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

VERSION = "2.7.1"


class _AnyClass(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything

    def __iter__(cls) -> Any:
        return iter(())

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__


class Anything(metaclass=_AnyClass):
    """An object that can be called, entered, indexed and inherited from; a decorator returns what it decorates."""

    def __init__(self, *_: Any, **__: Any):
        pass

    def __init_subclass__(cls, **_: Any):
        pass

    def __class_getitem__(cls, key: Any) -> Any:
        return cls

    def __call__(self, *args: Any, **named: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not named else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __getitem__(self, key: Any) -> Any:
        return self

    def __iter__(self) -> Any:
        return iter(())

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def __bool__(self) -> bool:
        return False


class AbsentModule(types.ModuleType):
    """A module whose every attribute exists."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.startswith("register"):
            return lambda *_, **__: lambda decorated: decorated
        return sys.modules.get(f"{self.__name__}.{name}") or (
            type(name, (Anything,), {}) if name[:1].isupper() else Anything()
        )


def module(name: str, kind: type[types.ModuleType] = AbsentModule, **attributes: Any) -> types.ModuleType:
    """A module with these attributes; registered under its name, and in its parent."""
    made = kind(name)
    made.__path__, made.__file__ = [], __file__
    made.__dict__["__version__"] = VERSION
    made.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    made.__dict__.update(attributes)
    sys.modules[name] = made
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, made)
    return made


class AbsentFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module of the packages named."""

    def __init__(self, packages: frozenset[str]):
        self.packages = packages

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        """A module of this finder, where it is of such a package."""
        return (
            importlib.machinery.ModuleSpec(name, self, is_package=True)
            if name.partition(".")[0] in self.packages
            else None
        )

    def create_module(self, spec: Any) -> types.ModuleType:
        """The empty module."""
        made = AbsentModule(spec.name)
        made.__path__, made.__file__ = [], __file__
        made.__dict__["__version__"] = VERSION
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is left to run."""


def stand_in_for(packages: str) -> None:
    """Answers for the packages that are not installed, named with blanks between them."""
    sys.meta_path.append(AbsentFinder(frozenset(packages.split())))
