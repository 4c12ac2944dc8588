"""Result of an import: (part of) a spec, its source, what is missing; the comments that exports leave for importers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_args

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message, joined
from autodeploy.specs.attention import ATTENTION_KINDS
from autodeploy.specs.diagnostics import MAX_DOUBTS, Diagnostics, Note
from autodeploy.specs.model import HiddenAct, NormLayout
from autodeploy.specs.presets import preset_names
from autodeploy.specs.spec import vendor_of
from autodeploy.stack.features import FEATURES
from autodeploy.stack.frameworks import FRAMEWORKS, UNRESTRICTED
from autodeploy.stack.releases import framework_for, release_named, releases
from autodeploy.stack.software import Run, default_stack, resolved
from hardware_profiles import list_profiles, load_profile

if TYPE_CHECKING:
    from pathlib import Path

    from autodeploy.formats.common.launch_script import LaunchScript
    from autodeploy.specs.diagnostics import DiagnosticsLog
    from autodeploy.specs.spec import Spec
    from autodeploy.stack.releases import Release


UNNAMED = "imported model"
SHOWN_UNKNOWN = 20


@dataclass(frozen=True, slots=True)
class KeptFlag:
    """A flag or key that the flag table doesn't know, kept as it stands, with its line."""

    name: str
    value: str
    line: int


@dataclass(frozen=True, slots=True)
class ImportResult:
    """A foreign file as a spec document.

    `document` has the keys of a spec that the file says something of; a launch file names a number of ranks
    (processes, one a die) and seldom the chips, so that `cluster` is often missing. `target` is the framework whose
    file it is. `plan_id` is that of the plan the file was exported from, `flags` are those of a launch script with
    their values, `script` is that script. `generation_ranks` only
    generate. `replica_batch` are sequences that a replica takes in a step, where the batch follows from them.
    """

    kind: str
    document: Mapping[str, Any]
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    ranks: int | None = None
    target: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    kept: tuple[KeptFlag, ...] = ()
    plan_id: str | None = None
    flags: Mapping[str, str] = field(default_factory=dict)
    base_dir: Path | None = None
    script: LaunchScript | None = None
    generation_ranks: int | None = None
    replica_batch: int = 0

    @property
    def pre_trains(self) -> bool:
        """Whether it is a launch of pre-training, which says by flags and keys everything that is on."""
        return self.target is not None and not FRAMEWORKS[self.target].post_trains

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions, contradictions and gaps, in words."""
        return (*self.diagnostics.assumptions, *self._unknown)

    @property
    def _unknown(self) -> tuple[str, ...]:
        if not self.kept:
            return ()
        names = [flag.name[:60] for flag in self.kept[:SHOWN_UNKNOWN]]
        unnamed = len(self.kept) - len(names)
        named = joined((*names, Message("common.more", count=unnamed)), "and") if unnamed else joined(names)
        return (Message("common.place", place=named, message=Message("importers.unknown_key")),)

    def with_doubts(self) -> ImportResult:
        """The same with its doubts in the document, so that they travel with the spec."""
        said = {
            "unmodelled": list(self.diagnostics.doubts[:MAX_DOUBTS]),
            "doubts": [*self.diagnostics.assumptions[: MAX_DOUBTS - 1], *self._unknown],
        }
        return replace(self, document={**self.document, **{name: texts for name, texts in said.items() if texts}})

    def for_release(self, name: str | None, doubt: str = "") -> ImportResult:
        """The same for a release by name, and with what there is to say of the checkout that its launch lies in.

        Raises SpecError where the release is of a framework that does not read such files.
        """
        if doubt and self.kind in {"launch-script", "verl-script"}:
            doubted = (*self.diagnostics.doubted, Note("", "", "", doubt))
            return replace(self, diagnostics=replace(self.diagnostics, doubted=doubted)).with_doubts()
        if name is None or self.kind == "hf-config":
            return self
        release = release_named(name)
        reads = FRAMEWORKS[release.framework].configured_by == "flags"
        fits = reads if self.kind == "launch-script" else self.target in {None, release.framework}
        if not fits:
            fault = Message("stack.release_is_of", name=name, framework=release.framework)
            raise SpecError(fault, path="/search/target_release")
        search = {**self.document.get("search", {}), "target": release.framework, "target_release": name}
        return replace(self, document={**self.document, "search": search})

    def spec_document(
        self, cluster: str | None = None, device: str | None = None, num_npus: int | None = None
    ) -> dict[str, Any]:
        """The document with a cluster: the one named here, else the file's own.

        Raises SpecError when the file names no chip and `cluster` none either, or no number of cards follows from
        anything.
        """
        document = dict(self.document)
        own = document.get("cluster")
        if own is not None and not isinstance(own, Mapping):
            return document  # who validates it says what is wrong
        if own is not None and cluster is None and device is None and num_npus is None:
            return self._on_chips(document, str(own.get("profile")))
        own = dict(own or {})
        profile = cluster or own.get("profile")
        if profile is None:
            profiles = ", ".join(list_profiles())
            hint = Message("importers.cluster_options", names=profiles)
            raise SpecError(Message("common.is_required", name="profile"), path="/cluster/profile", hint=hint)
        if cluster is not None and cluster != own.get("profile"):
            own = {key: value for key, value in own.items() if key in {"num_npus", "nodes", "use", "spare_npus"}}
        own["profile"] = profile
        if device is not None:
            own["device"] = device
        if num_npus is not None:
            own = {key: value for key, value in own.items() if key not in {"blocks", "nodes"}}
            own["num_npus"] = num_npus
        elif not {"num_npus", "blocks", "nodes"} & own.keys():
            own["num_npus"] = self._cards(profile)
        return self._on_chips(document | {"cluster": own}, profile)

    def _on_chips(self, document: dict[str, Any], profile: str) -> dict[str, Any]:
        """The document with the cards that generate, which a launch counts as ranks, and what its software has on there
        without a flag; a file of ours names all that its plan counts on.

        A script that names no release is of a framework that has one for the chips, whatever its flags look like.
        """
        search = document.get("search", {})
        if self.kind == "launch-script" and search.get("target") != UNRESTRICTED and "target_release" not in search:
            document = document | {"search": {**search, "target": framework_for(search["target"], vendor_of(profile))}}
        if self.pre_trains:
            document = self._with_batch(self._with_unnamed(document, profile), profile)
        if self.generation_ranks is None:
            return document
        strategy = document["strategy"]
        cards = self.generation_ranks // load_profile(profile).devices_per_npu
        return document | {"strategy": {**strategy, "rl": {**strategy["rl"], "generation_npus": cards}}}

    def _with_batch(self, document: dict[str, Any], profile: str) -> dict[str, Any]:
        """The document with the batch of all replicas, where the file says only what one takes and cards are known."""
        training, strategy, cards = document["training"], document["strategy"], document["cluster"].get("num_npus")
        if not self.replica_batch or "global_batch_size" in training or not isinstance(cards, int):
            return document
        cut = math.prod(int(strategy.get(axis) or 1) for axis in ("tp", "pp", "cp"))
        replicas = cards * load_profile(profile).devices_per_npu // cut
        batch = {"global_batch_size": self.replica_batch * replicas} if replicas else {}
        return document | {"training": {**training, **batch}}

    def _with_unnamed(self, document: dict[str, Any], profile: str) -> dict[str, Any]:
        """The document with the features that its target's stack has on without being asked, and number formats that
        its flags ask for. Facts of the stack that no launch switches are added wherever a spec is priced.
        """
        model, strategy = document["model"], document["strategy"]
        named = frozenset(strategy["features"])
        kinds = [kind.name for kind in ATTENTION_KINDS if kind.field in model] + ["moe"] * ("n_routed_experts" in model)
        run = Run(
            document["training"].get("precision", "bf16"),
            frozenset(kinds),
            strategy.get("pp", 1),
            strategy.get("etp") or 1,
            named,
            frozenset({*self.flags, *(f"{name}={value}" for name, value in self.flags.items())}),
        )
        spelled = self.script is not None and self.script.is_spelled  # another program, over Megatron-LM's modules
        stack = default_stack("megatron" if spelled else document["search"]["target"], vendor_of(profile))
        usual, own = (resolved(stack, each) for each in (replace(run, flags=frozenset()), run))
        unnamed = own.features - (usual.features - FEATURES.keys()) if self.plan_id is None else frozenset()
        others = {f"formats.{name}": value for name, value in own.formats.items() - usual.formats.items()}
        told = {"overrides": others} if others else {}
        software = {"software": {"stack": stack.name} | told} if others or spelled else {}
        return software | document | {"strategy": {**strategy, "features": sorted(named | unnamed)}}

    def spec(self, cluster: str | None = None, device: str | None = None, num_npus: int | None = None) -> Spec:
        """The validated spec; as `spec_document`.

        Raises SpecError with every bad or missing field: JSON pointer, message and hint.
        """
        from autodeploy.specs.reading import read_spec_document

        if self.kind == "launch-script" and "seq_length" not in self.document["training"]:
            spelled = self.script is not None and self.script.is_spelled
            missing = Message("importers.set_it", option="--max_length N") if spelled else ""
            unread = [note.reason for note in self.diagnostics.ignored if _is_unread(note.reason)]
            raise SpecError(
                Message("common.is_required", name="--seq-length"),
                path="/training/seq_length",
                hint=joined(unread, "semicolon") if unread else missing,
            )
        return read_spec_document(self.spec_document(cluster, device, num_npus), base_dir=self.base_dir)

    def _cards(self, profile: str) -> int:
        if self.ranks is None:
            raise SpecError(
                Message("common.is_required", name="num_npus"),
                path="/cluster/num_npus",
                hint=joined((Message("importers.unknown_rank_count"), "--num-npus N"), "semicolon"),
            )
        per_card = load_profile(profile).devices_per_npu
        if self.ranks % per_card:
            raise SpecError(
                Message("importers.partial_cards", ranks=self.ranks, dies=per_card),
                path="/cluster/num_npus",
                hint="--num-npus N",
            )
        return self.ranks // per_card


def _is_unread(reason: str) -> bool:
    """Whether it says that a value of the script stays unknown."""
    return isinstance(reason, Message) and reason.key == "importers.not_executed"


_MARK = re.compile(r"^# autodeploy:((?: [a-z_]+=[\w./+-]+)+)\s*$", re.MULTILINE)
_PLAN = re.compile(r"^#.*\bplan (p_[a-z2-7]{8})\b", re.MULTILINE)
_LENGTH = re.compile(r"([1-9]\d{0,8})/(\d{1,15}(?:\.\d{1,17})?)")
_USES = frozenset({"exactly", "at_most"})
# What of a model some releases have no flag for: field -> the values that a mark may say.
_MODEL: dict[str, frozenset[str]] = {
    "norm_layout": frozenset(get_args(NormLayout)),
    "hidden_act": frozenset(get_args(HiddenAct)),
}


def take_marks(text: str, spec: dict[str, Any], strategy: dict[str, Any], log: DiagnosticsLog) -> None:
    """Puts marked features into the strategy, marked cluster, model and lengths into the spec; notes each."""
    # Those without a flag, `features=rect_fa+vector_sort`; unknown names are left out.
    if features := [name for name in _marks(text).get("features", "").split("+") if name in FEATURES]:
        log.take("# autodeploy:", "/strategy/features", " ".join(features))
        strategy["features"] = sorted({*strategy["features"], *features})
    for name, value in _marks(text).items():
        if value in _MODEL.get(name, ()):
            log.take("# autodeploy:", f"/model/{name}", value)
            spec["model"][name] = value
    if lengths := marked_lengths(text):
        log.take("# autodeploy:", "/training/sequence_length_histogram", len(lengths))
        spec["training"]["sequence_length_histogram"] = lengths
    cluster = marked_cluster(text)
    if cluster is not None:
        log.take("# autodeploy:", "/cluster", cluster["profile"])
        spec["cluster"] = cluster


def marked_cluster(text: str) -> dict[str, Any] | None:
    """The `cluster` of a line `# autodeploy: cluster=PROFILE device=GRADE num_npus=N use=exactly`, if there is one."""
    marks = _marks(text)
    if "cluster" not in marks:
        return None
    cluster: dict[str, Any] = {"profile": marks["cluster"]}
    if "device" in marks:
        cluster["device"] = marks["device"]
    if marks.get("num_npus", "").isdigit() and len(marks["num_npus"]) < 10:
        cluster["num_npus"] = int(marks["num_npus"])
    if marks.get("use") in _USES:
        cluster["use"] = marks["use"]
    return cluster


def marked_lengths(text: str) -> dict[str, float]:
    """Lengths of packed documents and their shares, `lengths=512/0.5+2048/0.5`; none where a part is no such pair."""
    lengths = {}
    for part in _marks(text).get("lengths", "").split("+"):
        pair = _LENGTH.fullmatch(part)
        if pair is None:
            return {}
        lengths[pair[1]] = float(pair[2])
    return lengths


def marked_preset(text: str) -> str | None:
    """The preset that the same line names, `preset=NAME`, of which the file has the path alone."""
    name = _marks(text).get("preset")
    return name if name in preset_names() else None


def plan_id_of(text: str) -> str | None:
    """The id of the plan that the file was exported from, as its first comment names it."""
    match = _PLAN.search(text)
    return match[1] if match else None


def release_of_marks(text: str) -> Release | None:
    """The release that the same line names, `release=NAME`; None where it names none that is known."""
    name = _marks(text).get("release")
    return next((release for release in releases() if release.name == name), None)


def with_release(text: str, release: Release) -> str:
    """The text with the line that names a release, in place of any that it names itself."""
    match = _MARK.search(text)
    if match is None:
        return f"{text}\n\n# autodeploy: release={release.name}\n"
    kept = " ".join(pair for pair in match[1].split() if not pair.startswith("release="))
    return text[: match.start()] + f"# autodeploy: release={release.name} {kept}".rstrip() + text[match.end() :]


def search_of_marks(text: str, target: str) -> dict[str, Any]:
    """`search` of a launch file of a framework: the framework, and a release of it that the line names."""
    release = release_of_marks(text)
    if release is None or release.framework != target or release.is_default:
        return {"target": target}
    return {"target": target, "target_release": release.name}


def _marks(text: str) -> dict[str, str]:
    match = _MARK.search(text)
    return dict(pair.split("=", 1) for pair in match[1].split()) if match else {}
