"""What errors of Python's own libraries say, by key where the catalogue has it."""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING

from autodeploy.messages.message import message_or

if TYPE_CHECKING:
    from json import JSONDecodeError


def json_fault(error: JSONDecodeError) -> str:
    """What is wrong with a JSON text, without the place."""
    words = error.msg.replace("','", "comma").replace("':'", "colon").lower()
    return message_or(error.msg, "json." + re.sub(r"[^a-z]+", "_", words).strip("_"))


def os_fault(error: OSError) -> str:
    """Why a file, address or device can't be used."""
    name = errno.errorcode.get(error.errno or 0, "").lower()
    return message_or(error.strerror or str(error), f"os.{name}")
