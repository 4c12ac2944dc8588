"""What a posted form says."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

MAX_PASTED_BYTES = 1_000_000


async def form_values(request: Request) -> dict[str, str]:
    """The text fields of a posted form."""
    form = await request.form(max_files=0, max_fields=100, max_part_size=MAX_PASTED_BYTES)
    return {name: value for name, value in form.items() if isinstance(value, str)}


FormValues = Annotated[dict[str, str], Depends(form_values)]
