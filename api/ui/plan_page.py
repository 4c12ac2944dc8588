"""The page of one plan, and the conditions and strategies that its what-if and why-not boxes ask about."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from api.http.languages import texts, title
from api.ui.search_page import axes, expected, rl_charts, rl_context, step_shares
from autodeploy.analysis.launch_requests import read_strategy
from autodeploy.kit.errors import FieldError, SpecError
from autodeploy.messages import Message
from autodeploy.reports import figures
from autodeploy.reports.figures.layout import PART_COLOURS
from autodeploy.reports.operator_table import tier_name
from autodeploy.reports.plan_report import count_on_line, evidence_line, evidence_table, measured_mfu
from autodeploy.reports.recommendation import box_table, ignorance_lines, rescaled_line
from autodeploy.reports.wording import choices, degrees, field_name, part_names, swap_names
from autodeploy.specs.derived_fields import RESHAPING, of_launch
from autodeploy.specs.planset import PARTS as PART_FIELDS
from autodeploy.specs.search import Axis
from autodeploy.specs.spec import parse_spec, spec_of
from autodeploy.specs.strategy import Dispatcher, SwapModule
from cost_models.schedule import schedule, searched
from hardware_profiles import ProfileError, list_profiles, load_profile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from api.ui.views import Views
    from autodeploy.messages import Language
    from autodeploy.service.searches.views import PlanView
    from autodeploy.specs.planset import Loss, Plan
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy
    from hardware_profiles import Profile


GRADE = "{device}"
"""Stands in a path for the chip grade that the spec says, which may be one of the things that were turned."""
LINK = "gb_per_s_per_npu"
HBM = "usable_hbm_gib"


@dataclass(frozen=True, slots=True)
class Condition:
    """A value of the spec that can be changed: where it stands and what it is now.

    `least` and `step` are of numbers; `options` are the words of a choice. `tier` is the level of the interconnect
    that a bandwidth is of.
    """

    name: str
    path: tuple[str, ...]
    value: str
    least: str = "1"
    step: str = "1"
    options: tuple[str, ...] = ()
    tier: str = ""


def conditions_of(plan: Plan, spec: Mapping[str, Any]) -> tuple[Condition, ...]:
    """Conditions of the work and the cluster that can be turned; none of post-training, whose lengths say it all."""
    training, strategy = spec["training"], plan.strategy
    if training.get("rl"):
        return ()
    batch = plan.micro_batches * strategy.micro_batch_size * (strategy.dp or 1)
    conditions = [
        Condition("num_npus", ("cluster", "num_npus"), str(plan.num_npus_used)),
        Condition("global_batch_size", ("training", "global_batch_size"), str(batch)),
        Condition("seq_length", ("training", "seq_length"), str(training["seq_length"])),
    ]
    uneven = training.get("routing_imbalance")
    if spec["model"].get("n_routed_experts") and isinstance(uneven, int | float):
        path = ("training", "routing_imbalance")
        conditions.append(Condition("routing_imbalance", path, f"{uneven:g}", step="0.05"))
    conditions += _of_hardware(spec["cluster"])
    risk = spec.get("search", {}).get("risk", "averse")
    conditions.append(Condition("risk", ("search", "risk"), risk, options=("averse", "neutral")))
    return tuple(conditions)


def profile_of_plan(cluster: Mapping[str, Any]) -> Profile | None:
    """The hardware profile with the spec's own numbers; None where it is not there any more."""
    try:
        return load_profile(str(cluster["profile"]), cluster.get("overrides") or None)
    except ProfileError:
        return None


def grade_of(cluster: Mapping[str, Any]) -> str:
    """The chip grade that the spec says, or its profile's default; empty where the profile is gone."""
    profile = profile_of_plan(cluster)
    return str(cluster.get("device") or (profile.default_device if profile else ""))


def _of_hardware(cluster: Mapping[str, Any]) -> list[Condition]:
    """Chip grade, usable memory (GiB) and the bandwidth of each level of the interconnect (GB/s a card, one way)."""
    profile = profile_of_plan(cluster)
    if profile is None:
        return []
    conditions, grade = [], grade_of(cluster)
    if len(profile.devices) > 1:
        conditions.append(Condition("device", ("cluster", "device"), grade, options=tuple(profile.devices)))
    memory = profile.quantities.get(f"devices.{grade}.{HBM}")
    if memory is not None:
        path = ("cluster", "overrides", f"devices.{GRADE}.{HBM}")
        conditions.append(Condition(HBM, path, f"{memory.value:g}", step="any"))
    for name, quantity in profile.quantities.items():
        tier, _, number = name.rpartition(".")
        if number == LINK:
            path = ("cluster", "overrides", name)
            conditions.append(Condition(name, path, f"{quantity.value:g}", least="0", step="any", tier=tier))
    return conditions


def memory_by_grade(cluster: Mapping[str, Any]) -> dict[str, str]:
    """Usable memory of each chip grade as the box writes it, GiB."""
    profile = profile_of_plan(cluster)
    paths = {} if profile is None else {grade: f"devices.{grade}.{HBM}" for grade in profile.devices}
    return {grade: f"{profile.quantities[path].value:g}" for grade, path in paths.items() if profile is not None}


def changed_spec(spec: Spec, conditions: tuple[Condition, ...], given: Mapping[str, Any]) -> Spec:
    """The spec with the conditions that a form changed; another number of cards has no broken nodes.

    Raises SpecError with every bad field.
    """
    document = spec.model_dump(mode="json")
    memory = memory_by_grade(document["cluster"])
    for condition in conditions:
        text = str(given.get(condition.name, condition.value)).strip()
        grade = document["cluster"].get("device") or grade_of(document["cluster"])
        own = memory.get(grade) if condition.name == HBM else None  # the box shows that of the grade that was chosen
        if text in ("", condition.value, own):
            continue
        *parents, field = (step.replace(GRADE, grade) for step in condition.path)
        place = document
        for parent in parents:
            place[parent] = {**(place.get(parent) or {})}
            place = place[parent]
        place[field] = value = text if condition.options else _number(text)
        if condition.name == "num_npus":
            place.pop("blocks", None)
        peak = place.get("routing_imbalance_peak")
        if condition.name == "routing_imbalance" and isinstance(peak, float) and isinstance(value, float):
            place["routing_imbalance_peak"] = max(peak, value)
    document.pop("strategy", None)
    return parse_spec(document)


def _number(text: str) -> Any:
    """A whole number, a fraction, or the text, of which the spec says what is wrong."""
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        return text


KNOBS: dict[str, tuple[str, ...]] = {
    "tp": ("1", "2", "4", "8", "16"),
    "pp": ("1", "2", "4", "8", "12", "16", "24", "32"),
    "vpp": ("1", "2", "3", "4", "5", "6", "8"),
    "cp": ("1", "2", "4", "8"),
    "ep": ("1", "2", "4", "8", "16", "32", "48", "64", "96", "128", "256"),
    "micro_batch_size": ("1", "2", "4", "8"),
    "schedule": tuple(each.name for each in searched()),
    "recompute": ("none", "selective", "full"),
    "moe_dispatcher": get_args(Dispatcher),
    "swap": ("none", *get_args(SwapModule)),
    "swap_optimizer": ("false", "true"),
    "reuse_fp32_param": ("false", "true"),
}


@dataclass(frozen=True, slots=True)
class Knob:
    """A field that can be changed: what it is now and what it could be."""

    name: str
    value: str
    options: tuple[str, ...]


def other_values(strategy: Strategy, *, moe: bool) -> list[tuple[str, str, Strategy]]:
    """Every other value of every knob with the strategy that it makes; none where that contradicts itself.

    What follows from a degree and can be chosen stays as it is: rules are to say what is wrong with the degree.
    """
    strategies = []
    free = strategy.model_copy(update={"dp": None, "layers_per_stage": None, "swap_per_stage": None})
    for knob in knobs_of(strategy, moe=moe):
        for value in knob.options:
            if value == knob.value:
                continue
            try:
                changed = changed_strategy(strategy, {knob.name: value})
            except SpecError:
                continue
            if knob.name in RESHAPING:
                changed = of_launch(free, free.model_copy(update={knob.name: getattr(changed, knob.name)}))
            strategies.append((knob.name, value, changed))
    return strategies


def knobs_of(strategy: Strategy, *, moe: bool = True) -> tuple[Knob, ...]:
    """Every knob with its value in the plan; one without experts has no expert degree."""
    knobs = []
    for name, options in KNOBS.items():
        if name in {"ep", "moe_dispatcher"} and not moe:
            continue
        text = _knob_value(strategy, name)
        numeric = text.isdecimal()
        options_shown = sorted({*options, text}, key=int) if numeric else [*dict.fromkeys((*options, text))]
        knobs.append(Knob(name, text, tuple(options_shown)))
    return tuple(knobs)


def _knob_value(strategy: Strategy, name: str) -> str:
    """The value as its options are written; what is left to the framework is its default."""
    if name == "recompute":
        return strategy.recompute.granularity
    if name == "swap":
        return "+".join(sorted({*swap_names(strategy)} - {"optimizer"})) or "none"
    value = getattr(strategy, name)
    if name == "moe_dispatcher":
        return value or "alltoall"
    return str(value).lower() if isinstance(value, bool) else str(value)


def changed_by(view: PlanView, given: Mapping[str, str]) -> tuple[Spec, Strategy]:
    """The spec and the strategy of a plan with what a form changed.

    Raises SpecError with every bad field.
    """
    spec = spec_of(view.plan_set.search)
    changed = changed_spec(spec, conditions_of(view.plan, view.plan_set.search.spec), given)
    return changed, changed_strategy(view.plan.strategy, {name: given[name] for name in KNOBS if name in given})


def searched_from(view: PlanView, given: Mapping[str, str]) -> dict[str, Any]:
    """The spec of a search that begins where the form stands: axes that were turned are fixed, all others are searched.

    Errors as `changed_by`.
    """
    spec, strategy = changed_by(view, given)
    now = {knob.name: knob.value for knob in knobs_of(view.plan.strategy)}
    turned = [name for name in get_args(Axis) if name in now and given.get(name, now[name]) != now[name]]
    document = spec.model_dump(mode="json", exclude_none=True)
    search = document["search"]
    search["fix"] = {**search.get("fix", {}), **{name: getattr(strategy, name) for name in turned}}
    for limits in ("allow", "forbid"):
        search[limits] = {name: values for name, values in search.get(limits, {}).items() if name not in turned}
    return document


def changed_once(view: PlanView, given: Mapping[str, str]) -> tuple[str, Spec, Iterator[Strategy]]:
    """The knobs of a form in words, its spec, and the strategies of one more turn, the nearest values of all knobs
    first. Of a form that is turned all values of the turned knobs come first, and of others only the nearest.

    Errors as `changed_by`.
    """
    spec, _ = changed_by(view, given)
    turned = {name: given[name] for name in KNOBS if name in given}
    return f"{spec.model_dump_json()} {sorted(turned.items())}", spec, one_more_turn(view.plan.strategy, turned)


def ask_ahead(view: PlanView, views: Views, given: Mapping[str, str]) -> None:
    """Has the changes that are one turn away computed; those of post-training, each a long search, are not."""
    if view.plan.strategy.rl is None:
        with suppress(SpecError, ProfileError):
            views.services.ask_ahead(view, *changed_once(view, given))


def one_more_turn(strategy: Strategy, turned: Mapping[str, str]) -> Iterator[Strategy]:
    """The strategies of `changed_once`."""
    knobs = knobs_of(strategy)
    moved = {knob.name for knob in knobs if turned.get(knob.name, knob.value) != knob.value}
    turns = []
    for place, knob in enumerate(knobs):
        value = turned.get(knob.name)
        now = knob.options.index(value if value in knob.options else knob.value)
        for at, value in enumerate(knob.options):
            distance = abs(at - now)
            if distance == 1 or (distance and (not moved or knob.name in moved)):
                turns.append((knob.name not in moved, distance, place, value))
    for _, _, place, value in sorted(turns):
        with suppress(SpecError):
            yield changed_strategy(strategy, {**turned, knobs[place].name: value})


def knob_word(name: str, value: str, lang: Language) -> str:
    """A knob's value in words: schedules by their own names, switches as yes and no, others as they are."""
    words = texts(lang)

    if value in {"true", "false", "none"}:
        return words[{"true": "label.yes", "false": "label.no", "none": "label.none"}[value]]
    if name == "schedule":
        return schedule(value).title_in(lang)
    return words.get(f"granularity.{value}", words.get(f"option.{value}", value))


def changed_strategy(strategy: Strategy, changes: Mapping[str, Any]) -> Strategy:
    """The strategy with some fields changed; what followed from the old ones is left to follow anew.

    Raises SpecError with every bad field.
    """
    now = {knob.name: knob.value for knob in knobs_of(strategy)}
    wanted = {name: _typed(value) for name, value in changes.items() if str(value) != now.get(name)}
    if isinstance(swap := wanted.get("swap"), str):
        wanted["swap"] = [] if swap == "none" else swap.split("+")
    return read_strategy(wanted, strategy)


def stated_strategy(changes: Mapping[str, Any]) -> Strategy:
    """A strategy that says no more than this.

    Raises SpecError with every bad field.
    """
    return read_strategy({name: _typed(value) for name, value in changes.items()})


def _typed(value: Any) -> Any:
    if isinstance(value, str):
        if value.isdecimal() and len(value) < 10:
            return int(value)
        return {"true": True, "false": False}.get(value, value)
    return value


def changes_of(text: str) -> dict[str, str]:
    """`tp=8,pp=4` as a mapping.

    Raises SpecError when a part is not AXIS=VALUE.
    """
    changes: dict[str, str] = {}
    for part in text[:1000].replace("，", ",").split(","):
        name, sign, value = (piece.strip() for piece in part.partition("="))
        if not (sign and name and value):
            raise SpecError(
                errors=(
                    FieldError(
                        "/strategy",
                        Message("common.is_not_of_form", value=repr(part.strip()), form="AXIS=VALUE"),
                        "tp=8,pp=4",
                    ),
                )
            )
        changes[name.lower()] = value
    return changes


def strategy_words(strategy: Strategy, lang: Language) -> str:
    """Degrees, schedule and memory choices in one line."""
    return f"{degrees(strategy)}, {choices(strategy, lang)}"


def devices_per_node(profile: str) -> int | None:
    """Devices (dies) of a node, for profiles that come with the product."""
    if profile not in list_profiles():
        return None
    shipped = load_profile(profile)
    return int(shipped.npus_per_node * shipped.devices_per_npu)


def waterfall(plan: Plan, lang: Language) -> list[tuple[str, str, float, float, Loss | None]]:
    """MFU of the plan and what each loss adds, up to the peak: name, part whose colour it has, from, to, the loss."""
    words, high = texts(lang), plan.mfu
    steps: list[tuple[str, str, float, float, Loss | None]] = [
        (words["plan.this_plan"], "optimizer_s", 0.0, high, None)
    ]
    for loss in plan.headroom:
        name = words["label.below_peak"] if loss.part == "compute_s" else part_names(lang)[loss.part]
        low, high = high, max(high, loss.mfu_up_to_here)
        steps.append((title(name), loss.part, low, high, loss))
    return steps


def commands_of(view: PlanView) -> list[str]:
    """Commands that launch the plan, try it on two nodes first, and check it by the framework itself."""
    plan, spec = view.plan, view.plan_set.search.spec
    export = f"autodeploy export {plan.plan_id} --to {spec['search']['target']}"
    if plan.strategy.rl is not None:
        return [export]
    return [
        f"{export} -o pretrain.sh",
        f"{export} --rehearse 2nodes -o rehearsal.sh",
        f"autodeploy verify {plan.plan_id}",
    ]


def plan_context(view: PlanView, lang: Language) -> dict[str, Any]:
    """Everything that the template of a plan reads but the answers of its boxes."""
    strategy, spec = view.plan.strategy, view.plan_set.search.spec
    per_node = devices_per_node(spec["cluster"]["profile"])
    drawn = rl_charts(view.plan, lang)
    if per_node is not None:
        drawn["chart-groups"] = figures.groups_on_nodes(strategy, per_node, lang)
    return {
        "plan": view.plan,
        **rl_context(view.plan, lang),
        "plan_set": view.plan_set,
        "spec": spec,
        "stale": view.stale,
        "layout": degrees(strategy),
        "waterfall": waterfall(view.plan, lang),
        "commands": commands_of(view),
        "count_on": count_on_line(view.plan, lang),
        "chosen_words": choices(strategy, lang),
        "strategy_words": partial(strategy_words, lang=lang),
        "expected": expected(view.plan),
        "rescaled": rescaled_line(view.plan, lang),
        "evidence": evidence_line(view.plan, lang),
        "evidence_table": evidence_table(view.plan, lang),
        "uncertain_numbers": box_table(view.plan_set.risk, lang),
        "ignorances": ignorance_lines(view.plan_set.risk, lang),
        "sure": bool(view.plan.evidence) or view.plan.p_fits is not None,
        "axes": axes(strategy, lang),
        "part_names": part_names(lang),
        "spans": figures.group_spans(strategy, per_node) if per_node is not None else (),
        "charts": {name: figures.figure_json(figure) for name, figure in drawn.items()},
        "knobs": knobs_of(strategy, moe=bool(spec["model"].get("n_routed_experts"))),
        "conditions": conditions_of(view.plan, spec),
        "plan_shares": step_shares(view.plan.breakdown, view.plan.step_time_s, lang),
        "changed_shares": (),
        "tier_word": partial(tier_name, lang=lang),
        "title_of": lambda name: title(field_name(lang, name)),
        "measured_mfu": measured_mfu(view.plan, lang),
        "knob_word": lambda name, value: knob_word(name, value, lang),
        "what_if_data": {
            "parts": [name for name in PART_FIELDS if getattr(view.plan.breakdown, name) > 0.0],
            "grade": grade_of(spec["cluster"]),
            "memory": memory_by_grade(spec["cluster"]),
            "bar": {name: part_names(lang)[name] for name in PART_COLOURS},
            "breakdown": view.plan.breakdown.model_dump(mode="json"),
            "step_time_s": view.plan.step_time_s,
            "peak_memory_gib": view.plan.peak_memory_gib,
        },
    }
