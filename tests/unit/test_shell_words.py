"""Words of launch scripts: those that bash makes of the same text."""

from __future__ import annotations

import contextlib
import random

import pytest

from autodeploy.formats.common.launch_script import read_launch_script
from autodeploy.formats.shell.follow import follow
from autodeploy.kit.errors import SpecError
from tests.support.cpu_time import least_cpu_s
from tests.support.shell_snippets import MARK, Snippets, words_in_bash

SHAPE = "--num-layers 4 --hidden-size 64 --num-attention-heads 4"


def words_of(text):
    """The words of each call of `p`."""
    return [[value.text for value in words[1:]] for _, words in follow(text).commands if words[0].text == MARK]


@pytest.mark.parametrize("seed", range(5))
def test_generated_words_are_those_of_bash(seed, tmp_path):
    source = Snippets(random.Random(seed))
    snippets = [source.snippet() for _ in range(160)]
    expected = words_in_bash(snippets, tmp_path)
    read = [(snippet, words) for snippet, words in zip(snippets, expected, strict=True) if words is not None]
    assert len(read) > 140, "bash takes nearly all of them"
    differences = [(snippet, words, words_of(snippet)) for snippet, words in read if words_of(snippet) != words]
    assert not differences, differences[0]


@pytest.mark.parametrize(
    "snippet",
    [
        'EXTRA=()\np --bf16 "${EXTRA[@]}" --lr 1',
        'launch() { p a "$@" b; }\nlaunch',
        'launch() { p "${@:2}" "${*:2}"; }\nlaunch one "two 2" three',
        'NODES=(n0 "" n2)\np ${#NODES[@]} "${NODES[@]:1}" "${NODES[*]}" ${NODES[@]}',
        'unset LOAD\np "--load=${LOAD:-none}" ${LOAD:+--load $LOAD} "${LOAD:-}" "${LOAD-"a b"}"',
        'STEP=iter_0001000\np ${STEP:5} "${STEP: -4:2}" ${#STEP} "${STEP:99}"',
        'NOTE="two  words "\np $NOTE"x" "$NOTE"x ${NOTE:-} ${OTHER:="a  b"} "$OTHER"',
        'A=z; A+=y; B=(1 2); B+=(3); B=first\np "$A" "${B[@]}" "${B[-1]}" $\'a\\tb\\x21\' "\\$A\\n"',
        'A=()\nif [[ -z "${A[@]}" && ${UNSET:-a b} == "a b" ]]; then p empty; fi',
        'set -- --lr "1 2" ""\np "$@" $#\nshift 2\np "${@:1}" $#\nset --\np a "$@" b $#',
        'N=2; ((N++)); ((N*=4)); let "N -= 5"; let --N\np $N $((N+1))',
        'set_all() { ALL=("$@"); }\nset_all "" x\np "${ALL[@]}" "${ALL[@]+set}" "<${ALL[@]}>"',
    ],
)
def test_words_of_scripts_are_those_of_bash(snippet, tmp_path):
    (words,) = words_in_bash([snippet + "\n"], tmp_path)
    assert words
    assert words_of(snippet) == words


@pytest.mark.parametrize("nothing", ['"${EXTRA[@]}"', "${EXTRA[*]}", '"${EXTRA[@]:1}"', '"$@"', "$*", '"${@:2}"'])
def test_no_element_is_no_value_of_the_flag_before_it(nothing):
    script = read_launch_script(f"EXTRA=()\ntorchrun pretrain_gpt.py {SHAPE} --bf16 {nothing} --swiglu {nothing}\n")
    assert [flag.values for name, flag in script.flags.items() if name in {"--bf16", "--swiglu"}] == [(), ()]


@pytest.mark.parametrize("word", ["{a,b}c", "--n={1..4}", "$X{,.bak}", "x{a,{b,c}}"])
def test_words_that_braces_multiply_stay_unknown(word):
    ((first, second),) = [words for _, words in follow(f"X=1\np {word}").commands]
    assert first.text == MARK
    assert second.unknown
    assert not follow(f"Y='{word}'; Z=a{{b,c}}\np \"$Y\" $Z").commands[0][1][1].unknown


def test_an_array_that_loses_an_element_is_not_known():
    assert words_of('A=(x y z); unset "A[1]"\np "${A[@]}"') == [["$A"]]


def test_an_element_that_nobody_sets_stays_unknown():
    assert words_of('p "$NEVER_SET" "${NEVER_SET:1}" "${#NEVER_SET}"') == [["$NEVER_SET"] * 3]
    assert words_of("x=abc\np ${x: 2: -2} ${x:$NEVER_SET}") == [["$x", "$x"]]


@pytest.mark.parametrize(
    "text",
    [
        "((MOD" + "\t" * 20_000 + " x))\n",
        "((" + " " * 20_000 + "N))\n",
        "let 'MOD" + "\t" * 20_000 + " x'\n",
        "((N" + " " * 20_000 + "= 1))\n",
        "x=" + "$(cat <<E\na=(b c)\n" * 2_000 + "a\nE\n)\n",
        "((9))" + "$(cat <<E\nshift\n" * 5_000 + "E\n)\n",
    ],
)
def test_what_is_repeated_is_read_or_refused_in_linear_time(text: str) -> None:
    def read() -> None:
        with contextlib.suppress(SpecError):
            follow(text)

    assert least_cpu_s(read, limit_s=0.5) < 0.5


@pytest.mark.parametrize(
    "text",
    [
        "f() { a=$((" + "1+" * 1_990 + "1)); }\n" + "f\n" * 9_000,
        "f() { : " + '"" ' * 1_800 + "; }\n" + "f\n" * 9_000,
        "f() { case a in " + "b) ;; " * 1_500 + "esac; }\n" + "f\n" * 9_000,
        "w=" + "a" * 100_000 + "\ncase $w in " + "*b*b);; " * 9_000 + "esac\n",
        "b=(" + "a " * 9_000 + ")\n" + "a=${b[@]:1:2}\n" * 9_000,
        "b=(" + "a " * 9_000 + ")\n" + "a=${#b[@]}\n" * 9_000,
        "a=(" + '"" ' * 1_000 + ')\nf() { : "${a[@]}"; }\n' + "f\n" * 9_000,
        "".join(f"a{name}=1\n" for name in range(8_000)) + "f() { a=1; }\n" + "f\n" * 9_000,
    ],
)
def test_what_bodies_and_calls_multiply_is_followed_so_far_or_refused(text: str) -> None:
    def read() -> None:
        with contextlib.suppress(SpecError):
            follow(text)

    assert least_cpu_s(read, limit_s=0.8) < 0.8


@pytest.mark.parametrize("negations", [0, 1, 2, 3, 15_000, 15_001])
@pytest.mark.parametrize("negated", ["a", "''"])
def test_conditions_are_negated_as_often_as_they_say(negations: int, negated: str) -> None:
    text = f"if [[ {'! ' * negations}{negated} ]]; then {MARK} yes; else {MARK} no; fi"
    assert words_of(text) == [["yes" if (negations % 2 == 0) == (negated == "a") else "no"]]


def test_arguments_of_a_call_are_gone_after_it() -> None:
    body = f"{MARK} $# $1 $3; shift 2; {MARK} $# $1"
    text = f"set -- a b c\nf() {{ {body}; }}\nf x y z\n{MARK} $# $2\nshift\n{MARK} $# $2 $9"
    assert words_of(text) == [["3", "x", "z"], ["1", "z"], ["3", "b"], ["2", "c"]]
