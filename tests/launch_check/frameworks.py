"""The parser and validators that a release starts with: MindSpeed-LLM's, MindSpeed's over Megatron-LM, Megatron's own.

Modules of the frameworks are imported as they are, once a process: another release needs another process. torch and the
other heavy packages are stubs, so what needs a tensor is not checked.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys
import traceback
import typing
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.launch_check import stand_ins
from tests.launch_check.after_parser import after_the_parser

if TYPE_CHECKING:
    import pathlib
    import types
    from collections.abc import Iterator, Mapping

# What MindSpeed's newer features read of the arguments of features that are not in every list.
READ_BY_FEATURES: dict[str, Any] = {
    "unaligned_linear": False,
    "embed_layernorm": False,
    "enable_share_memory": False,
    "return_document_ids": False,
    "attention_mask_on_cpu": False,
    "output_layer_slice_num": 1,
    "use_fused_mlp": False,
}

EXPORTED = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}  # by nearly every script


class Refused(Exception):
    """What a parser says where it would end the process."""


class _ParserBuiltError(Exception):
    """Stops an old `parse_args` where its parser is complete."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a flag is registered: file, line, and the class that a flag is made from where a factory makes it."""

    file: str
    line: int
    made_from: type | None = None


class Frameworks:
    """The parser of one release and its validators.

    Parameters
    ----------
    trees : component ("mindspeed-llm", "mindspeed", "megatron") -> work tree; what a release has decides its parser.
    """

    def __init__(self, trees: Mapping[str, pathlib.Path]):
        warnings.filterwarnings("ignore")
        if not hasattr(typing, "override"):  # of Python 3.12, in newer Megatron-LM
            typing.override = lambda method: method  # type: ignore[attr-defined]
        self.trees = dict(trees)
        self.places: dict[int, Place] = {}
        self._current: list[argparse.Namespace | None] = [None]
        sys.path[:0] = [str(tree) for tree in trees.values()]
        sys.meta_path.insert(0, stand_ins.StubFinder())
        self._put_stubs()
        self._features: Any = None
        self._older: Any = None  # MindSpeed's validators before it had a manager of features
        with self._noting_places(), contextlib.redirect_stdout(io.StringIO()):
            self.arguments = importlib.import_module("megatron.training.arguments")
            if "mindspeed" in trees:
                self._load_mindspeed()
            self.parser = self._make_parser()
        self.arguments._print_args = lambda *a, **k: None

    def _put_stubs(self) -> None:
        """Packages whose own start needs tensors, and functions that ask for a device."""
        import megatron  # noqa: F401

        megatron_tree = self.trees["megatron"]
        training = stand_ins.bare_package("megatron.training", megatron_tree / "megatron/training")
        training.get_args = lambda: self._current[0]
        training.print_rank_0 = lambda *a: None
        training.get_tokenizer = lambda: None
        stand_ins.put_stub(
            "megatron.training.utils",
            get_device_arch_version=lambda: 8,
            update_use_dist_ckpt=lambda args: setattr(args, "use_dist_ckpt", args.ckpt_format != "torch"),
            print_rank_0=lambda *a: None,
            print_rank_last=lambda *a: None,
            warn_rank_0=lambda *a: None,
        )
        if "mindspeed" in self.trees:
            import mindspeed.ops  # noqa: F401

            stand_ins.put_stub(
                "mindspeed.ops.npu_matmul_add",
                check_npu_version=lambda version: False,
                NPUVersion=stand_ins.Anything,
            )
        if tree := self.trees.get("mindspeed-llm"):
            stand_ins.bare_package("mindspeed_llm", tree / "mindspeed_llm")
            stand_ins.bare_package("mindspeed_llm.tasks", tree / "mindspeed_llm/tasks")
            stand_ins.bare_package("mindspeed_llm.training", tree / "mindspeed_llm/training")
            stand_ins.put_stub("mindspeed_llm.training.utils")

    def _load_mindspeed(self) -> None:
        package = "mindspeed_llm" if "mindspeed-llm" in self.trees else "mindspeed"
        features = importlib.import_module(f"{package}.features_manager")
        if not hasattr(features, "create_features_list"):
            self._older = importlib.import_module("mindspeed.arguments")
            return
        manager = importlib.import_module("mindspeed.features_manager.features_manager").MindSpeedFeaturesManager
        manager.set_features_list(features.create_features_list() or features.FEATURES_LIST)
        self._features = manager

    def _make_parser(self) -> argparse.ArgumentParser:
        parser = self._megatron_parser()
        if self._features is not None:
            self._features.register_features_args(parser)
        elif self._older is not None:
            self._older.process_args(parser)
        return parser

    def _megatron_parser(self) -> argparse.ArgumentParser:
        if hasattr(self.arguments, "add_megatron_arguments"):
            parser = argparse.ArgumentParser(allow_abbrev=False)
            self.arguments.add_megatron_arguments(parser)
            return parser
        built: list[argparse.ArgumentParser] = []

        def catch(parser: argparse.ArgumentParser) -> None:
            built.append(parser)
            raise _ParserBuiltError

        with contextlib.suppress(_ParserBuiltError):
            self.arguments.parse_args(catch)
        return built[0]

    @contextlib.contextmanager
    def _noting_places(self) -> Iterator[None]:
        """Notes for every argument which line registers it."""
        containers = argparse._ActionsContainer
        register = containers.add_argument
        notes = self.places

        def add_argument(container: Any, *args: Any, **kwargs: Any) -> argparse.Action:
            action = register(container, *args, **kwargs)
            frame: types.FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename == argparse.__file__:
                frame = frame.f_back
            if frame is not None:
                made_from = getattr(frame.f_locals.get("self"), "src_cfg_class", None)
                notes[id(action)] = Place(frame.f_code.co_filename, frame.f_lineno, made_from)
            return action

        containers.add_argument = add_argument  # type: ignore[method-assign]
        try:
            yield
        finally:
            containers.add_argument = register  # type: ignore[method-assign]

    def verdict(
        self, argv: list[str], world: int, devices: int = 8, environment: Mapping[str, str] | None = None
    ) -> str:
        """ "OK", or what the parser or a validator says, with its file and line.

        Parameters
        ----------
        world, devices : ranks of the job and of a node. environment : variables that the launch exports.
        """

        def refuse(message: str) -> None:
            raise Refused(message)

        self.parser.error = refuse  # type: ignore[assignment, method-assign]
        os.environ["WORLD_SIZE"] = str(world)
        os.environ |= EXPORTED | dict(environment or {})
        sys.modules["torch"].npu = stand_ins.stub("torch.npu", device_count=lambda: devices)  # type: ignore[attr-defined]
        quiet = io.StringIO()
        try:
            with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
                args = self._validated(argv, world)
            return after_the_parser(args, world, copies_groups="mindspeed" not in self.trees) or "OK"
        except Refused as error:
            return f"parser: {error}"
        except BaseException as error:  # a validator may raise anything, SystemExit too
            at = traceback.extract_tb(error.__traceback__)[-1]
            said = str(error)[:300]
            return f"{type(error).__name__}: {said} ({self.relative(at.filename)[1]}:{at.lineno})"

    def _validated(self, argv: list[str], world: int) -> argparse.Namespace:
        args = self.parser.parse_args(argv)
        self._current[0], args.rank, args.world_size = args, 0, world
        args._is_global_batch_size_explicitly_specified = args.global_batch_size is not None
        if self._older is not None:
            wrapped = self._older.validate_args_wrapper(self.arguments.validate_args)
            wrapped(args, {})
            return args
        if self._features is None:
            self.arguments.validate_args(args, {})
            return args
        self._features.pre_validate_features_args(args)
        self.arguments.validate_args(args, {})
        self._features.post_validate_features_args(args=args)
        for name, value in READ_BY_FEATURES.items():
            setattr(args, name, value)
        self._features.validate_features_args(args=args)
        return args

    def relative(self, file: str) -> tuple[str | None, str]:
        """The component that a file is of, and its path there; no component: the path as it is."""
        for name, tree in self.trees.items():
            if file.startswith(f"{tree}/"):
                return name, file.removeprefix(f"{tree}/")
        return None, file
