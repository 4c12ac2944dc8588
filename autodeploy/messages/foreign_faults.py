"""What errors of Python's own libraries say, by key where the catalogue has it."""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING

from autodeploy.messages.catalogue import is_text
from autodeploy.messages.message import Message

if TYPE_CHECKING:
    from json import JSONDecodeError


def json_fault(error: JSONDecodeError) -> str:
    """What is wrong with a JSON text, without the place."""
    words = error.msg.replace("','", "comma").replace("':'", "colon").lower()
    return _known("json", re.sub(r"[^a-z]+", "_", words).strip("_"), error.msg)


def os_fault(error: OSError) -> str:
    """Why a file, address or device can't be used."""
    return _known("os", errno.errorcode.get(error.errno or 0, "").lower(), error.strerror or str(error))


def _known(section: str, name: str, otherwise: str) -> str:
    key = f"{section}.{name}"
    return Message(key) if is_text("en", key) else otherwise
