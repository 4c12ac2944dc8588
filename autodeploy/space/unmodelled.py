"""What a spec may say but nothing models yet: refused by name, never ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.kit.errors import FieldError, UnsupportedError
from autodeploy.messages import Message
from cost_models.schedule import schedule

if TYPE_CHECKING:
    from autodeploy.specs.spec import Spec


def refuse_unmodelled(spec: Spec) -> None:
    """Refuse everything in a spec that would have no effect.

    Raises
    ------
    UnsupportedError
        with each field that is not modelled yet.
    """
    training, search = spec.training, spec.search
    refusals = [
        (
            "/training/kind",
            training.kind not in {"pretrain", "sft", "dpo"},
            Message("strategies.this_question_about", kind=training.kind),
            Message("strategies.plan_estimate_and_check_read_such_specs"),
        ),
    ]
    for field in ("fix", "allow"):
        wanted = getattr(search, field).get("schedule", ())
        names = wanted if isinstance(wanted, tuple) else (wanted,)
        unknown = [name for name in names if not schedule(str(name)).searched]
        refusals.append(
            (
                f"/search/{field}/schedule",
                bool(unknown),
                Message("strategies.search_over", names=", ".join(map(str, unknown))),
                Message("strategies.dualpipev_needs_no_second_copy_of_parameters_estimate"),
            )
        )
    errors = [
        FieldError(path, Message("common.is_not_modelled_yet", what=what), hint)
        for path, asked, what, hint in refusals
        if asked
    ]
    if errors:
        raise UnsupportedError(errors=tuple(errors))
