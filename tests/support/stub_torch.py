"""A torch of words: it computes nothing and notes what is called, so that a script's paths run without the library."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class Word:
    """Anything that torch may give: every attribute, call and sum of it is another, noted by its dotted name."""

    def __init__(self, name: str, calls: set[str]) -> None:
        self._name, self._calls = name, calls

    def __getattr__(self, name: str) -> Word:
        if name.startswith("__"):
            raise AttributeError(name)
        return Word(f"{self._name}.{name}", self._calls)

    def __call__(self, *_: Any, **__: Any) -> Word:
        self._calls.add(self._name)
        return Word("tensor", self._calls)

    def __iter__(self) -> Iterator[Word]:
        return iter([Word("tensor", self._calls)])

    def __getitem__(self, _: Any) -> Word:
        return Word("tensor", self._calls)

    def __bool__(self) -> bool:
        return True

    def __float__(self) -> float:
        return 1.0

    def _same(self, _: Any) -> Word:
        return self

    __add__ = __mul__ = __matmul__ = __floordiv__ = __mod__ = _same


def stub_modules(kind: str, calls: set[str]) -> dict[str, ModuleType | None]:
    """The modules of a machine with devices of `kind` (cpu, cuda or npu), as `sys.modules` has them."""
    torch = _Module("torch", calls)
    device = SimpleNamespace(
        is_available=lambda: True,
        set_device=lambda _: None,
        synchronize=lambda: None,
        empty_cache=lambda: None,
        mem_get_info=lambda: (2**35, 2**36),
        memory_reserved=lambda: 2**30,
        get_device_name=lambda _: f"stub {kind}",
        get_device_properties=lambda _: SimpleNamespace(total_memory=2**36),
    )
    nothing = SimpleNamespace(is_available=lambda: False)
    torch.cuda = device if kind == "cuda" else nothing
    torch.npu = device if kind == "npu" else nothing
    torch.version = SimpleNamespace(cuda="0.0", cann="0.0")
    torch.get_num_threads = lambda: 2
    torch.set_num_threads = lambda _: None
    torch.__version__ = "0.0+stub"
    modules: dict[str, ModuleType | None] = {"torch": torch, "torch_npu": None}
    if kind == "npu":
        npu = _Module("torch_npu", calls)
        npu.__version__ = "0.0+stub"
        modules["torch_npu"] = npu
    return modules


class _Module(ModuleType):
    def __init__(self, name: str, calls: set[str]) -> None:
        super().__init__(name)
        self.__dict__["_calls"] = calls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Word(f"{self.__name__}.{name}", self.__dict__["_calls"])

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__[name] = value


@contextmanager
def stub_torch(kind: str) -> Iterator[set[str]]:
    """As long as it lasts `import torch` gives the stub; what was called, by dotted name."""
    calls: set[str] = set()
    modules = stub_modules(kind, calls)
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)  # type: ignore[arg-type]
    try:
        yield calls
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
