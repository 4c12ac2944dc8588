"""The part of a launch script that looks whether the checkouts on the machine are those of its release.

Where git shows another commit, on no branch of the release's name, the script stops; where nothing can be read, as of a
package without its repository, it warns and goes on. `ALLOW_OTHER_RELEASE=1` turns the stop into a warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autodeploy.stack.releases import Component, Release

_FIND = "import importlib.util as u; print(u.find_spec('mindspeed').submodule_search_locations[0] + '/..')"
# The checkouts of what a script is not started in. `megatron` of MindSpeed-LLM is a copied folder, or a link to one.
_ELSEWHERE = {
    "mindspeed": f'"$(python -c "{_FIND}" 2> /dev/null || true)"',
    "megatron": '"$([[ ! -L megatron ]] || echo "$(readlink -f megatron)/..")"',
}
# verl imports both as packages, from checkouts that are installed in place.
_INSTALLED = f'"$(python -c "{_FIND.replace("mindspeed", "megatron")}" 2> /dev/null || true)"'
_FUNCTION = """\
check_release() {
    local name="$1" commit="$2" branch="$3" top="" head="" now=""
    if [[ -n "$4" ]]; then
        top="$(cd "$4" 2> /dev/null && pwd -P)" || top=""
    fi
    if [[ -n "${top}" && "$(git -C "${top}" rev-parse --show-toplevel 2> /dev/null)" == "${top}" ]]; then
        head="$(git -C "${top}" rev-parse --quiet --verify HEAD 2> /dev/null)" || head=""
    fi
    if [[ -z "${head}" ]]; then
        echo "warning: the commit of ${name} can't be read, this script is for ${commit:0:8} (${branch})" >&2
        return 0
    fi
    if [[ "${head}" == "${commit}" ]]; then
        return 0
    fi
    now="$(git -C "${top}" for-each-ref --points-at HEAD --format='%(refname:lstrip=2)' | paste -sd ' ' -)"
    local found="${name} in ${top} is at ${head:0:8} (${now:-no branch}), this script is for ${commit:0:8} (${branch})"
    if [[ " ${now} " == *[\\ /]"${branch} "* ]] ||
        git -C "${top}" merge-base --is-ancestor "${commit}" "${head}" 2> /dev/null; then
        echo "warning: ${found}" >&2
        return 0
    fi
    if [[ "${ALLOW_OTHER_RELEASE:-0}" != 0 ]]; then
        echo "warning: ${found}" >&2
        return 0
    fi
    echo "${found}: check that out, or set ALLOW_OTHER_RELEASE=1 to go on" >&2
    exit 2
}
"""


def release_lines(release: Release) -> list[str]:
    """The release in words, for comments: its title, and repository, commit and branch of each component."""
    parts = (f"{part.repository} {part.commit[:12]} ({part.branch})" for part in release.components.values())
    return [f"For {release.title}, {release.name}: {', '.join(parts)}."]


def release_check(release: Release) -> str:
    """The function, and a call for each component."""
    parts = _in_order(release)
    elsewhere = _ELSEWHERE | ({"megatron": _INSTALLED} if release.has("verl") else {})
    calls = [_call(part, '"."' if part is parts[0] else elsewhere[part.name]) for part in parts]
    return "# Is this the release that the flags are for?\n" + _FUNCTION + "".join(calls)


def _in_order(release: Release) -> list[Component]:
    return [
        release.components[name] for name in ("verl", "mindspeed-llm", "megatron", "mindspeed") if release.has(name)
    ]


def _call(part: Component, folder: str) -> str:
    name = part.repository.rpartition("/")[2]
    return f'check_release {name} {part.commit} "{part.branch}" \\\n    {folder}\n'
