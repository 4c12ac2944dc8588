"""The training frameworks that a plan is for, and what each can do: capabilities, which everything else asks for.

A plan for no framework (`any`) keeps to arithmetic alone. What a framework's release can launch is not said here: it
follows from the flags that the release registers. The table is TOML, which Python reads by itself: commands list
frameworks in their help.
"""

from __future__ import annotations

import tomllib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


# The engines that generate, by what they do with prompts and memory.
@dataclass(frozen=True, slots=True)
class Engine:
    """One engine.

    memory_fraction : of a device's memory that it takes for weights and keys and values, unless told.
    max_num_seqs : sequences that a data-parallel rank runs at once, unless told.
    prefill_batch_tokens : it prefills all prompts that wait, in passes of so many tokens, before it decodes again;
    None: prompts are taken up beside decoding, and a request waits for those of a share `together` of all others.
    """

    name: str
    title: str
    memory_fraction: float = 0.9
    max_num_seqs: int = 1024
    prefill_batch_tokens: float | None = None
    together: float = 0.1


@dataclass(frozen=True, slots=True)
class Framework:
    """One framework.

    configured_by : flags of a command line, a file of keys, keys of a command line, or nothing, where no framework is
        meant.
    uniform_options : memory choices hold for the same number of layers on every stage, as its flags say them.
    graph_mode : it compiles the step: fixed sizes, no host beside it.
    pipelined_exchange : the two steps of a hierarchical All-to-All run at the same time.
    recomputes_in_waits : what is recomputed may run while the backward pass waits for an exchange.
    shards_alone : it cuts a model by sharding, sequences and experts alone: tp and pp are 1.
    one_stage : its plans have no pipeline.
    post_trains : it launches post-training by reinforcement learning, and no pre-training.
    generates_beside : generation can run on cards of its own, in turn with training or beside it.
    generation_precisions : of linear layers, in which it generates; empty: any.
    models : how it lists those that it trains: classes of models with experts, flavors of all; empty: it has no list.
    export : writes a plan's launch file, for a framework that the package has no exporter of.
    """

    name: str
    title: str
    configured_by: Literal["flags", "file", "keys", ""] = "flags"
    uniform_options: bool = True
    graph_mode: bool = False
    pipelined_exchange: bool = True
    recomputes_in_waits: bool = False
    shards_alone: bool = False
    one_stage: bool = False
    post_trains: bool = False
    generates_beside: bool = True
    generation_precisions: Sequence[str] = ()
    models: Literal["classes", "flavors", ""] = ""
    export: Callable[[Any, Any], Any] | None = None

    @property
    def launches(self) -> bool:
        """Whether it launches plans, so that its releases restrict them."""
        return bool(self.configured_by)


_TABLES = tomllib.loads(Path(__file__).with_name("frameworks.toml").read_text(encoding="utf-8"))
ENGINES = {name: Engine(name, **row) for name, row in _TABLES["engines"].items()}
FRAMEWORKS = {name: Framework(name, **row) for name, row in _TABLES["frameworks"].items()}
DEFAULT = next(iter(FRAMEWORKS))
UNRESTRICTED = next(name for name, each in FRAMEWORKS.items() if not each.launches)


def post_trainers() -> tuple[str, ...]:
    """Names of the frameworks that train by reinforcement, the default first."""
    return tuple(name for name, each in FRAMEWORKS.items() if each.post_trains)


def launchers() -> tuple[str, ...]:
    """Names of the frameworks that launch plans, in order."""
    return tuple(name for name, each in FRAMEWORKS.items() if each.launches)


def title_of(name: str) -> str:
    """Spelling of a framework's name by itself; of what is none, the name as it stands."""
    return FRAMEWORKS[name].title if name in FRAMEWORKS else name


@contextmanager
def registered(framework: Framework) -> Iterator[Framework]:
    """Knows another framework as long as the context lasts.

    Raises ValueError where its name is taken.
    """
    from autodeploy.stack.records import known  # loads pydantic, which commands that list frameworks need not wait for

    with known(FRAMEWORKS, {framework.name: framework}):
        yield framework
