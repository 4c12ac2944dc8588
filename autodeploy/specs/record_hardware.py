"""Which profile and device a published run means: names that mean the same, and the nearest one to hardware that has no
profile.
"""

from __future__ import annotations

import re
from functools import cache

from autodeploy.specs.record_words import key
from hardware_profiles.loader import list_profiles, load_profile

# Names that mean a profile: boards, clusters and chips.
_SAME = (
    (r"(ascend_)?(atlas_)?(800t|800|900)_a2(_pod[a-z]*)?|(ascend_)?910b", "ascend-800t-a2"),
    (r"cloudmatrix(_384)?(_supernode)?", "cloudmatrix-384"),
    (r"(nvidia_)?(dgx_)?a100(_80gb?)?(_sxm4?)?(_80gb?)?", "nvidia-a100-80g"),
    (r"(nvidia_)?(dgx_)?h100(_80gb?)?(_sxm5?)?(_80gb?)?", "nvidia-h100"),
    (r"(nvidia_)?h800(_80gb?)?(_sxm5?)?", "nvidia-h800"),
    (r"(nvidia_)?(dgx_)?b200", "nvidia-b200"),
)
# The profile whose chip is most alike: of its generation first, then of its maker.
_NEAREST = (
    (r".*(a3|910c|910_93\w*|superpod).*", "cloudmatrix-384"),
    (r".*(910|ascend|atlas).*", "ascend-800t-a2"),
    (r".*(h200|h100|hopper).*", "nvidia-h100"),
    (r".*h800.*", "nvidia-h800"),
    (r".*(a100|a800|v100|a30|a40|h20).*", "nvidia-a100-80g"),
    (r".*(b200|b300|b100|blackwell).*", "nvidia-b200"),
)
# Names that host tools give to a grade, by profile.
_GRADES = {
    "ascend-800t-a2": ((r"(ascend_?)?910_?b(2c)?", "910B2"), (r"(ascend_?)?910_?b4_1", "910B4-1")),
    # Names of one die: npu-smi and platform_config of Atlas 800 A3.
    "cloudmatrix-384": ((r"(ascend_?)?910_?(93|9392|9382|9362|c)", "910C"),),
}
# 910A has 32 GB and the cube peak nearest to 910B4's.
_NEAREST_GRADES = {"ascend-800t-a2": ((r"(ascend_?)?910(_?a|_?pro\w*|_?premium\w*)?", "910B4"),)}


def profile_named(name: str) -> tuple[str | None, bool]:
    """The shipped profile that a name means, and whether it means that one; (None, False) without any near."""
    if name in list_profiles() or name.endswith((".yaml", ".yml")) or "/" in name:
        return name, True
    word = key(name)
    spelled = {key(known): known for known in list_profiles()}
    if word in spelled:
        return spelled[word], True
    if found := _match(word, _SAME):
        return found, True
    return _match(word, _NEAREST), False


def profile_of_device(device: str) -> str | None:
    """The shipped profile that has a device."""
    return next((p for p in list_profiles() if device_named(p, device)[1]), None)


def device_named(profile: str, name: str) -> tuple[str | None, bool]:
    """The device of a shipped profile that a name means, and whether it means that one; None: the profile's default."""
    grades = _devices(profile)
    word = key(name)
    for known in grades:
        if word in {key(known), f"ascend{key(known)}", f"ascend_{key(known)}", f"nvidia_{key(known)}"}:
            return known, True
    if found := _match(word, _GRADES.get(profile, ())):
        return found, True
    if len(grades) == 1 and profile_named(name) == (profile, True):
        return grades[0], True
    return _match(word, _NEAREST_GRADES.get(profile, ())), False


@cache
def _devices(profile: str) -> tuple[str, ...]:
    return tuple(load_profile(profile, calibrated=False).devices) if profile in list_profiles() else ()


def _match(word: str, table: tuple[tuple[str, str], ...]) -> str | None:
    return next((found for pattern, found in table if re.fullmatch(pattern, word)), None)
