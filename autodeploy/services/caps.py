"""What an operator, or a key, allows one search to ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.errors import FieldError, SpecError
from autodeploy.messages import Message
from hardware_profiles import load_profile

if TYPE_CHECKING:
    from autodeploy.services.access import Principal
    from autodeploy.settings import Settings
    from autodeploy.specs.spec import Spec


def within_caps(spec: Spec, settings: Settings, principal: Principal) -> Spec:
    """The spec, its time limit lowered to what is allowed where it says none of its own.

    Raises
    ------
    SpecError
        with every field that asks for more than is allowed.
    """
    own = principal.max_time_limit_s
    most_s = settings.max_time_limit_s if own is None else own
    search, errors = spec.search, []
    if search.time_limit_s > most_s:
        if "time_limit_s" in search.model_fields_set:
            limit = (
                Message("services.this_server_allows_at_most", most=most_s)
                if own is None
                else Message("services.this_key_allows_at_most", most=most_s)
            )
            errors.append(FieldError("/search/time_limit_s", limit))
        else:
            spec = spec.model_copy(update={"search": search.model_copy(update={"time_limit_s": most_s})})
    if not isinstance(search.effort, str) and search.effort > settings.max_effort:
        message = Message("services.this_server_allows_at_most", most=settings.max_effort)
        errors.append(FieldError("/search/effort", message))
    if _cards(spec) > settings.max_cards:
        place = "/cluster/num_npus" if spec.cluster.blocks is None else "/cluster/blocks"
        errors.append(
            FieldError(place, Message("services.this_server_plans_for_at_most_cards", most=settings.max_cards))
        )
    if errors:
        raise SpecError(errors=tuple(errors))
    return spec


def _cards(spec: Spec) -> int:
    blocks = spec.cluster.blocks
    if blocks is None:
        return spec.cluster.num_npus or 0
    return sum(block.nodes for block in blocks) * load_profile(spec.cluster.profile).npus_per_node
