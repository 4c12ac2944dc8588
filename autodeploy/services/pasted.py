"""A file that somebody pasted into the page, with the fields beside it, becomes a spec."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autodeploy.errors import SpecError
from autodeploy.importers.amounts import card_count
from autodeploy.importers.import_document import import_document
from autodeploy.messages import Message
from autodeploy.services.intake import refuse_profile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.errors import FieldError
    from autodeploy.importers.imported import Imported

# What a field beside a pasted text can say.
FIELD_HINTS = {
    "/cluster/profile": Message("api.choose_cluster_beside_text"),
    "/cluster/num_npus": Message("api.give_cards_beside_text_such_as_128_or"),
}


def pasted_document(text: str, beside: Mapping[str, str]) -> tuple[dict[str, Any], Imported]:
    """The spec in a pasted file, and what was read.

    Parameters
    ----------
    beside : `filename`; `cluster` and `num_npus`, which the file's own give way to; and `seq_length` and
        `global_batch_size`, which hold where it has none.

    Raises
    ------
    SpecError
        with line and column, or with what is missing.
    """
    cluster, cards = beside.get("cluster", "").strip(), beside.get("num_npus", "").strip()
    imported = import_document(text, beside.get("filename", "").strip()[:200] or None)
    refuse_unstorable(dict(imported.document))
    own = imported.document.get("cluster")
    profile = cluster or (own.get("profile") if isinstance(own, dict) else None)
    refuse_profile(profile)
    count = card_count(cards, profile) if cards else None
    if cards and count is None:
        raise SpecError(Message("api.is_no_number_of_cards", value=repr(cards[:40])), path="/cluster/num_npus")
    try:
        document = imported.spec_document(cluster or None, None, count)
    except SpecError as error:
        raise SpecError(errors=tuple(map(_in_words_of_the_page, error.errors))) from error
    training = dict(document.get("training") or {})
    for name in ("seq_length", "global_batch_size"):
        given = beside.get(name, "").strip()
        if name not in training and given:
            training[name] = int(given) if given.isascii() and given.isdigit() and len(given) < 10 else given
    document.pop("strategy", None)
    return document | {"training": training}, imported


def _in_words_of_the_page(error: FieldError) -> FieldError:
    """A complaint about what stands in a field beside the text, where the command line would name its options."""
    hint = FIELD_HINTS.get(error.path) if error.hint.startswith("--") else None
    return error if hint is None else replace(error, hint=hint)


def refuse_unstorable(document: Any) -> None:
    """Text that no database keeps: NUL characters and halves of surrogate pairs."""
    text = json.dumps(document, ensure_ascii=False, default=str)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SpecError(Message("api.text_with_nul_character_or_half_surrogate_pair")) from error
    if "\\u0000" in text:
        raise SpecError(Message("api.text_with_nul_character_or_half_surrogate_pair"))
