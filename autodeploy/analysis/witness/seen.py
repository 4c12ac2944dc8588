"""A rank's JSON, as the program in `stand_ins` writes it, as counts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from autodeploy.analysis.witness.documents import Counts, Message

if TYPE_CHECKING:
    from collections.abc import Mapping

STEP_PHASES = frozenset({"forward", "backward", "forward_backward", "between"})
PASS_PHASES = STEP_PHASES - {"between"}
# Of a group with several names, the one that a message is of.
EXCHANGED = ("ep", "cp", "tp_ep", "tp")
GATHERED = ("tp", "cp", "etp", "ep", "dp", "edp", "dp_cp", "pp")


def seen_counts(answer: Mapping[str, Any], stage: int) -> Counts:
    """The counts of the last step that the rank ran."""
    last = max((one["step"] for one in answer["passes"]), default=-1)
    passes = [one for one in answer["passes"] if one["step"] == last]
    chunks = answer["chunks"]
    return Counts(
        stage=stage,
        parameters=tuple(chunk["parameters"] for chunk in chunks),
        expert_parameters=tuple(chunk["expert_parameters"] for chunk in chunks),
        weight_bytes=sum(chunk["bytes"] for chunk in chunks),
        gradient_bytes=answer["gradient_bytes"],
        optimizer_bytes=answer["optimizer_bytes"],
        kept_bytes=max((one["live_bytes"] for one in passes), default=0) - answer["constants"].get(str(last), 0),
        order=tuple(_pass(one) for one in passes if one["kind"] != "head"),
        messages=_messages(answer, last),
    )


def _pass(one: Mapping[str, Any]) -> str:
    return f"{one['kind']}{one['chunk']}.{one['micro']}" if len(one["kind"]) == 1 else str(one["kind"])


def _messages(answer: Mapping[str, Any], last: int) -> tuple[Message, ...]:
    found: Counter[tuple[str, str, int]] = Counter()
    for row in answer["collectives"]:
        if row["step"] == last and row["phase"] in STEP_PHASES and (row["size"] > 1 or row["operation"] == "isend"):
            operation = row["operation"]
            if operation in ("irecv", "recv", "barrier"):
                continue
            size = row["received"] if operation == "all_gather" else row["sent"]
            found[_group(row), "send" if operation in ("isend", "send") else operation, size] += row["calls"]
    return tuple(Message(group=g, operation=o, size_bytes=b, calls=n) for (g, o, b), n in sorted(found.items()))


def _group(row: Mapping[str, Any]) -> str:
    if row["operation"] in ("isend", "send"):
        return "cp" if row["phase"] in PASS_PHASES and "cp" in row["group"].split("=") else "pp"
    names = str(row["group"]).split("=")
    wanted = EXCHANGED if row["operation"] == "all_to_all" else GATHERED
    return next((name for name in wanted if name in names), names[0])
