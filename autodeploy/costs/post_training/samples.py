"""Samples of a step packed to sequences, and the context in which those are priced."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, TypedDict, Unpack

from autodeploy.costs.inputs.build_context import spec_context
from autodeploy.costs.inputs.context import Packs
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.rl import ResponseLength
from autodeploy.specs.search import SearchSpec
from autodeploy.specs.software import SoftwareSpec, run_of, software_for, stack_for
from autodeploy.specs.spec import Spec
from autodeploy.specs.training import ROUTER_FIELDS, TRAINED_IMBALANCE, BatchSize, TrainingSpec
from autodeploy.stack.frameworks import UNRESTRICTED, post_trainers
from autodeploy.stack.software import default_stack, unnamed_features
from cost_models.hbm import GIB
from cost_models.sample_packing import packing

if TYPE_CHECKING:
    from autodeploy.costs.inputs.context import Context
    from autodeploy.specs.cluster import ClusterSpec
    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.rl import RlTraining
    from autodeploy.specs.strategy import Strategy
    from cost_models.response_lengths import Lengths
    from cost_models.sample_packing import Packing
    from hardware_profiles.profile import Profile


# Why a step of post-training can't run.
class InfeasibleRlError(SpecError):
    """A step that no device can run as it is laid out.

    rule : short name of what binds. share : of what would be needed, that is there.
    """

    def __init__(self, message: str, *, rule: str, path: str, hint: str, share: float = 0.0) -> None:
        super().__init__(message, path=path, hint=hint)
        self.rule, self.share = rule, share


def training_too_large(peak_bytes: float, limit_bytes: float) -> InfeasibleRlError:
    """Says that training needs more memory than a die has."""
    return InfeasibleRlError(
        Message("post_training.training_exceeds_die", needed=peak_bytes / GIB, limit=limit_bytes / GIB),
        rule="update_memory",
        path="/strategy",
        hint=Message("post_training.save_memory"),
    )


PACK_PATH = "/strategy/rl/pack_tokens"


@lru_cache(maxsize=64)
def _lengths(document: str) -> Lengths:
    return ResponseLength.model_validate_json(document).distribution()


@lru_cache(maxsize=64)
def _packs(packed: Packing) -> Packs:
    """The same object for the same packs, by which contexts of them are known to be alike."""
    return Packs(packed.squares, packed.keys, packed.documents)


def lengths_of(rl: RlTraining) -> Lengths:
    """Lengths of the responses; of equal documents the same object, by which formulas keep what they found."""
    return _lengths(rl.response_length.model_dump_json())


@dataclass(frozen=True)
class Samples:
    """The sequences of a pass over the samples of a step, and of one over those of an update.

    tokens : of a mean sequence. full_tokens : of the fullest. rows, update_rows : sequences of a pass on all replicas.
    """

    packing: Packing
    tokens: int
    full_tokens: int
    rows: int
    update_rows: int


def samples_of(rl: RlTraining, strategy: Strategy, dp: int, pack_tokens: int | None) -> Samples:
    """The sequences that `dp` replicas train on, `micro_batch_size` of them at a time.

    pack_tokens : that a sequence is packed to; None: each sample is a sequence.

    Raises InfeasibleRlError if the longest sample does not fit into a pack.
    """
    prompt = rl.prompt_length.mean_tokens
    update = rl.samples // rl.updates_per_step
    try:
        packed = packing(lengths_of(rl), prompt, None if pack_tokens is None else float(pack_tokens), update)
    except ValueError as error:
        most = ceil(prompt + lengths_of(rl).longest)
        raise InfeasibleRlError(
            f"{error}", rule="pack_tokens", path=PACK_PATH, hint=Message("post_training.at_least_or_null", tokens=most)
        ) from error
    at_once = dp * strategy.micro_batch_size

    def rows(samples: int) -> int:
        return ceil(round(packed.packs * samples, 6) / at_once) * at_once

    tokens = update * packed.tokens / rows(update)
    full = pack_tokens if pack_tokens is not None else ceil(packed.longest)
    return Samples(packed, max(1, round(tokens)), full, rows(rl.samples), rows(update))


def software_of(spec: Spec, vendor: str) -> SoftwareSpec | None:
    """The software of a spec's updates: its own, else that of its launch target; None: the usual one."""
    stack = default_stack(spec.search.target, vendor)
    return spec.software or (SoftwareSpec(stack=stack.name) if stack.trains == "updates" else None)


def update_training(samples: Samples, routed: TrainingSpec | None = None) -> TrainingSpec:
    """An update as a step of pre-training: sequences as long as the mean pack, as many as it has.

    routed : what its router does; absent: as trained weights route.
    """
    router = dict(zip(ROUTER_FIELDS, TRAINED_IMBALANCE, strict=False)) if routed is None else routed.routed
    batch = BatchSize(value=samples.update_rows)
    return TrainingSpec(seq_length=samples.tokens, global_batch_size=batch, **router)


def unnamed_in_updates(vendor: str) -> frozenset[str]:
    """Features that the usual software of post-training has on without naming them."""
    return unnamed_features(post_trainers()[0], vendor)


class Trained(TypedDict, total=False):
    """Update beside its spec. software : absent: the usual one of post-training. routed : as of `update_training`."""

    software: SoftwareSpec | None
    routed: TrainingSpec | None


def update_context(
    model: ModelSpec,
    profile: Profile,
    cluster: ClusterSpec,
    strategy: Strategy,
    samples: Samples,
    *,
    npus: int,
    features: frozenset[str] | None = None,
    **trained: Unpack[Trained],
) -> Context:
    """The context of an update on `npus` cards: packs of whole samples, in which attention stays.

    features : that are on; absent: the strategy's, and what today's software has on without naming it.
    """
    software, routed = trained.get("software"), trained.get("routed")
    on = frozenset(strategy.features) | unnamed_in_updates(profile.vendor) if features is None else features
    spec = Spec(
        model=model,
        cluster=cluster,
        training=update_training(samples, routed),
        search=SearchSpec(target=UNRESTRICTED),
    )
    named = frozenset(strategy.features) | ({"swap_optimizer"} if strategy.swap_optimizer else frozenset())
    run = run_of(model, spec.training.precision, strategy, named)
    stack = stack_for(software, post_trainers()[0], profile.vendor)
    facts = software_for(software, stack, run)
    context = spec_context(
        spec,
        profile,
        on | facts.memory | ({"fsdp"} if strategy.fsdp else frozenset()),
        num_npus=npus,
        distributed_optimizer=strategy.distributed_optimizer,
        host=facts.host.of_strategy(strategy.optimizer_offload_fraction),
    )
    packs = _packs(samples.packing)
    operators = replace(context.operators, mean_keys=packs.keys, documents=packs.documents)
    return replace(context, packs=packs, operators=operators)
