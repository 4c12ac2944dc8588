"""Numbers of a stage as predicted beside the same as seen, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.analysis.witness.documents import Difference, Message, Verdict

if TYPE_CHECKING:
    from autodeploy.analysis.witness.documents import Counts

CLOSE = {"kept_bytes": 0.03, "total_bytes": 0.04}
LANES = frozenset({"tp", "cp", "ep", "etp", "pp"})


def differences(
    predicted: Counts, seen: Counts, padding_bytes: int, decided_by: str, *, real_widths: bool
) -> tuple[Difference, ...]:
    """All numbers of a stage; what it keeps and holds in all at real widths alone, where tables and indices are small.

    padding_bytes : what the framework added to its gradients to fill buckets. decided_by : stand-ins that decide kept
    bytes.
    """
    rows = [
        _exact("parameters", predicted.parameters, seen.parameters),
        _exact("expert_parameters", predicted.expert_parameters, seen.expert_parameters),
        _exact("weight_bytes", predicted.weight_bytes, seen.weight_bytes),
        _padded("gradient_bytes", predicted.gradient_bytes, seen.gradient_bytes, padding_bytes),
        _padded("optimizer_bytes", predicted.optimizer_bytes, seen.optimizer_bytes, 3 * padding_bytes),
        _exact("order", predicted.order, seen.order),
    ]
    there = {(m.group, m.operation, m.size_bytes): m.calls for m in seen.messages}
    if heads := _of_heads(predicted):
        rows.append(_exact("cp all_to_all bytes", _volume(heads), _volume(_of_heads(seen)), decided_by))
    for message in predicted.messages:
        if message in heads:
            continue
        calls = there.get((message.group, message.operation, message.size_bytes), 0)
        name = f"{message.group} {message.operation} {message.size_bytes}"
        by = decided_by if message.group == "cp" else ""
        rows.append(_exact(name, message.calls, calls, by))
    if real_widths:
        rows += [
            _near("kept_bytes", predicted.kept_bytes, seen.kept_bytes, decided_by),
            _near("total_bytes", predicted.total_bytes, seen.total_bytes, decided_by),
        ]
    return tuple(rows)


def unpredicted(predicted: Counts, seen: Counts) -> tuple[Message, ...]:
    """Messages in the groups of layers that no predicted exchange accounts for."""
    known = {(m.group, m.operation, m.size_bytes) for m in predicted.messages}
    known |= {(m.group, m.operation, m.size_bytes) for m in _of_heads(seen) if _of_heads(predicted)}
    return tuple(m for m in seen.messages if m.group in LANES and (m.group, m.operation, m.size_bytes) not in known)


def _of_heads(counts: Counts) -> tuple[Message, ...]:
    """Exchanges of heads over context parallel ranks: predicted as one of all tensors, sent one by one."""
    return tuple(m for m in counts.messages if (m.group, m.operation) == ("cp", "all_to_all"))


def _volume(messages: tuple[Message, ...]) -> int:
    return sum(message.size_bytes * message.calls for message in messages)


def _exact(name: str, predicted: object, seen: object, by: str = "") -> Difference:
    verdict: Verdict = "equal" if predicted == seen else "differs"
    if by:
        verdict = "stand_in"
    return Difference(name=name, predicted=_said(predicted), seen=_said(seen), verdict=verdict, decided_by=by)


def _said(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _padded(name: str, predicted: int, seen: int, padding: int) -> Difference:
    verdict: Verdict = "equal" if predicted == seen else "padding" if abs(seen - predicted) <= padding else "differs"
    return Difference(name=name, predicted=str(predicted), seen=str(seen), verdict=verdict)


def _near(name: str, predicted: int, seen: int, by: str) -> Difference:
    near = abs(predicted - seen) <= CLOSE[name] * seen
    verdict: Verdict = "equal" if predicted == seen else "close" if near else "differs"
    return Difference(name=name, predicted=str(predicted), seen=str(seen), verdict=verdict, decided_by=by)
