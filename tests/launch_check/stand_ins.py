"""Stand-ins for the heavy packages that the frameworks import and their argument parsers do not need."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
import typing

VERSION = "2.7.1"
HEAVY = frozenset(
    {
        *("accelerate", "acl", "amp_C", "apex"),
        *("bitsandbytes", "bs4"),
        *("causal_conv1d",),
        *("datasets", "deepspeed"),
        *("einops",),
        *("fla", "flash_attn", "fused_layer_norm_cuda"),
        *("highspy",),
        *("joblib", "jsonargparse", "jsonlines"),
        *(
            "mamba_ssm",
            "matplotlib",
            "megatron_adaptor",
            "mindio_ttp",
            "mindspeed_ops",
            "mindspore",
            "mindtorch",
            "modelopt",
            "multi_storage_client",
        ),
        *("nltk", "numpy", "nvidia_modelopt"),
        *("omegaconf", "one_logger_utils"),
        *("pandas", "peft", "prettytable", "psutil", "pulp", "pybind11", "pydantic"),
        *("ray", "regex"),
        *("safetensors", "scipy", "sentencepiece", "sklearn", "sympy"),
        *(
            "te",
            "tensorboard",
            "tensordict",
            "tensorstore",
            "tiktoken",
            "tokenizers",
            "torch",
            "torch_npu",
            "torchair",
            "torchvision",
            "tqdm",
            "transformer_engine",
            "transformer_engine_torch",
            "transformers",
            "triton",
            "trl",
        ),
        *("vllm",),
        *("wandb",),
        *("yaml",),
        *("zarr",),
    }
)


class _Meta(type(typing.Protocol)):  # type: ignore[misc]
    def __getattr__(cls, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Anything

    def __fspath__(cls):
        return "absent"

    def __iter__(cls):
        return iter(())

    def __getitem__(cls, key):
        return Anything

    def __lt__(cls, other):
        return False

    def __gt__(cls, other):
        return False

    def __ge__(cls, other):
        return True

    def __le__(cls, other):
        return False


class Anything(metaclass=_Meta):
    """A value that can be called, entered, iterated over, compared and computed with, and means nothing."""

    __file__ = "absent"  # of a module that was compiled

    def __fspath__(self):
        return "absent"

    def __init__(self, *args, **kwargs):
        pass

    def __init_subclass__(cls, **kwargs):
        pass

    def __class_getitem__(cls, key):
        return cls

    def __call__(self, *args, **kwargs):
        decorates = len(args) == 1 and callable(args[0]) and not kwargs
        return args[0] if decorates else self

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Anything()

    def __enter__(self):
        return self

    def __exit__(self, *args):
        return False

    def __iter__(self):
        return iter(())

    def __getitem__(self, key):
        return Anything()

    def __bool__(self):
        return False

    def __eq__(self, other):
        return self is other

    def __hash__(self):
        return 1

    def __int__(self):
        return 8

    __index__ = __int__

    def __ge__(self, other):
        return True

    __gt__ = __ge__

    def __lt__(self, other):
        return False

    __le__ = __lt__

    def __mul__(self, other):
        return self

    __rmul__ = __add__ = __radd__ = __sub__ = __truediv__ = __mul__


class Stub(types.ModuleType):
    """A module that has every name."""

    def __getattr__(self, name):
        if name == "__version__":
            return VERSION
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        return sys.modules.get(full) or (type(name, (Anything,), {}) if name[:1].isupper() else Anything)


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every heavy package, and all that is in it, as a stub."""

    def __init__(self, packages=HEAVY):
        self.packages = packages

    def find_spec(self, name, path, target=None):
        found = name.split(".")[0] in self.packages
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if found else None

    def create_module(self, spec):
        return stub(spec.name)

    def exec_module(self, module):
        pass


def stub(name: str, **attributes: object) -> Stub:
    """A stub of that name, with some attributes that mean something."""
    module = Stub(name)
    module.__path__, module.__version__, module.__file__ = [], VERSION, __file__
    for attribute, value in attributes.items():
        setattr(module, attribute, value)
    return module


def put_stub(name: str, **attributes: object) -> Stub:
    """A stub where `import` finds it."""
    sys.modules[name] = stub(name, **attributes)
    return sys.modules[name]


def bare_package(name: str, path: object) -> types.ModuleType:
    """A package whose own `__init__` is not run, so that only the modules asked for are imported."""
    module = types.ModuleType(name)
    module.__path__ = [str(path)]
    sys.modules[name] = module
    return module
