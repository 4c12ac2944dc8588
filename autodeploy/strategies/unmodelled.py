"""What a spec may say but nothing models yet: refused by name, never ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.errors import FieldError, UnsupportedError
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
    found = [
        (
            "/training/kind",
            training.kind not in {"pretrain", "sft", "dpo"},
            f"this question about {training.kind}",
            "plan, estimate and check read such specs",
        ),
    ]
    for field in ("fix", "allow"):
        wanted = getattr(search, field).get("schedule", ())
        names = wanted if isinstance(wanted, tuple) else (wanted,)
        unknown = [name for name in names if not schedule(str(name)).searched]
        found.append(
            (
                f"/search/{field}/schedule",
                bool(unknown),
                f"a search over {', '.join(map(str, unknown))}",
                "dualpipev needs no second copy of the parameters; `estimate` predicts dualpipe",
            )
        )
    errors = [FieldError(path, f"{what} is not modelled yet", hint) for path, asked, what, hint in found if asked]
    if errors:
        raise UnsupportedError(errors=tuple(errors))
