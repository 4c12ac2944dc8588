"""A launch held against the framework that it is for, stage by stage."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from autodeploy.analysis.launch_checks.launch import launch_of
from autodeploy.analysis.witness.compare import differences, unpredicted
from autodeploy.analysis.witness.documents import StageReport, WitnessReport
from autodeploy.analysis.witness.predicted import Prediction
from autodeploy.analysis.witness.run import refuse_missing, run_rank
from autodeploy.analysis.witness.seen import seen_counts
from autodeploy.analysis.witness.toy import ToyLaunch, toy_launch
from autodeploy.formats.import_document import import_document
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.stack.releases import release_named, release_of
from hardware_profiles import load_profile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autodeploy.analysis.launch_checks.launch import Launch
    from autodeploy.stack.releases import Release

TIMEOUT_S = 900.0
# Latent attention turns positions by a Triton kernel otherwise.
NVIDIA: dict[str, tuple[str, ...]] = {"--no-rope-fusion": ()}
STAND_INS = {False: "transformer_engine", True: "torch_npu"}


def toy_prediction(launch: Launch, release: str, *, real_widths: bool = False) -> tuple[ToyLaunch, Prediction]:
    """A launch at toy widths, or at its own, and what is predicted of it.

    Raises SpecError where it has no script, or doesn't say how many ranks it starts.
    """
    if launch.script is None or launch.ranks is None:
        raise SpecError(
            Message("witness.no_script"), path="/strategy", hint=Message("checks.strategy_or_launch_script")
        )
    older = "mindspeed" in release_named(release).components
    kernels = not older and "--multi-latent-attention" in launch.script.flags
    toy = toy_launch(launch.script, launch.ranks, NVIDIA if kernels else {}, spare_token=older, real_widths=real_widths)
    imported = import_document(marked_script(toy, launch, release), "toy.sh")
    return toy, Prediction.of(launch_of(imported))


def marked_script(toy: ToyLaunch, launch: Launch, release: str) -> str:
    """The script of a toy launch with the cluster and the release that it is for."""
    cluster = launch.spec.cluster
    marks = f"# autodeploy: cluster={cluster.profile} num_npus={cluster.num_npus} release={release}"
    return toy.script.replace("\n", f"\n{marks}\n", 1)


def release_of_launch(launch: Launch) -> Release:
    """The release that a launch is for.

    Raises SpecError where none of its framework's is known.
    """
    search, vendor = launch.spec.search, load_profile(launch.spec.cluster.profile).vendor
    return release_of(search.target, vendor, search.target_release)


def verify(
    launch: Launch,
    trees: Mapping[str, Path],
    *,
    python: str,
    stages: Sequence[int] | None = None,
    real_widths: bool = False,
    told: Callable[[StageReport], None] = lambda report: None,
) -> WitnessReport:
    """Runs the first rank of these stages (None: the first, a middle and the last) and compares.

    Raises SpecError where torch or a tree is missing, or a stage isn't there.
    """
    of = release_of_launch(launch)
    release, components = of.name, of.components
    given = {name: tree for name, tree in trees.items() if name in components}
    if missing := [name for name in components if name not in given]:
        raise SpecError(
            Message("witness.needs_trees", release=release, names=", ".join(f"--{name}" for name in missing)),
            path=f"--{missing[0]}",
            hint=Message("witness.export_a_tree"),
        )
    refuse_missing(python, given, adapters=launch.script is not None and "--lora-r" in launch.script.flags)
    toy, prediction = toy_prediction(launch, release, real_widths=real_widths)
    count = prediction.stages
    wanted = sorted({0, count // 2, count - 1}) if stages is None else list(stages)
    if wrong := [stage for stage in wanted if not 0 <= stage < count]:
        raise SpecError(Message("common.is_outside", value=str(wrong[0]), range=f"0-{count - 1}"), path="--stages")

    def reported(stage: int) -> StageReport:
        rank = stage * (toy.ranks // count)
        answer, seconds = run_rank(toy, given, rank, python=python, folder=Path(folder), timeout_s=TIMEOUT_S)
        report = StageReport(stage=stage, rank=rank, seconds=round(seconds, 1))
        if answer["error"]:
            return report.model_copy(update={"error": answer["error"], "where": answer["where"] or ""})
        predicted, seen = prediction.counts(stage), seen_counts(answer, stage)
        by = STAND_INS["mindspeed" in given]
        rows = differences(predicted, seen, answer["padding_bytes"], by, real_widths=real_widths)
        return report.model_copy(update={"numbers": rows, "unpredicted": unpredicted(predicted, seen)})

    reports = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        for report in pool.map(reported, wanted):  # each waits for a process of its own
            told(report)
            reports.append(report)
    return WitnessReport(
        release=release,
        commits={name: part.commit for name, part in components.items() if name in given},
        ranks=toy.ranks,
        changed=toy.changed,
        stages=tuple(reports),
    )
