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


LOOPS = [
    "arr=()\nfor ((i=0; i<5; i++)); do if ((i < 2)); then arr+=(0); else arr+=(1); fi; done\n"
    'printf -v F \'[%s]\' "$(IFS=\', \'; echo "${arr[*]}")"\np "$F" $F',
    'A=; for x in 1 "2 3" 4; do A="$A,$x"; done; p "$A" "$x"',
    "i=0; while [ $i -lt 7 ]; do i=$((i + 2)); [ $i -eq 4 ] && continue; p $i; done; p end $i",
    "i=0; until [[ $i == 3 ]]; do ((i++)); p a$i; done",
    "for ((i = 3; i > 0; i--)); do for j in a b; do if [ $i = 2 ]; then break; fi; p $i$j; done; done",
    "set -- x y; for w; do p $w; done; for w in; do p never; done",
    'f() { for a in "$@"; do p "<$a>"; done; }; f 1 \'2 3\'',
    "for x in a b c; do case $x in b) continue ;; esac; p $x; done",
    'IFS=,; L=1,2,,3; p $L; A=(x y z); p "${A[*]}" "${A[@]}" ${A[*]}',
    "IFS=; L='a b'; p $L; A=(x y); p \"${A[*]}\"",
    "IFS=': '; L=' a : b::c '; p $L",
    'IFS=, read -r a b <<< 1,2; A=(x y); p "${A[*]}"',
    'p "$(printf \'%s-\' a b c)" "$(echo -n x)" $(echo a   b) "$(printf \'%d%%\\n\\n\' 007)"',
    "printf -v N '%s=%d ' a 1 b; p \"$N\"; printf -v M x; p $M",
    'X=a; Y=$(X=b; echo $X); p "$X" "$Y"',
    "for ((;0;)); do p never; done; for ((i=1;i<=2;i+=1)); do :; done; p $i",
]


@pytest.mark.parametrize("snippet", LOOPS)
def test_loops_and_separators_are_those_of_bash(snippet, tmp_path):
    (expected,) = words_in_bash([snippet], tmp_path)
    assert expected is not None
    assert words_of(snippet) == expected


@pytest.mark.parametrize(
    "loop",
    [
        "while true; do A=1; if curl x; then break; fi; sleep 5; done",
        "until grep -q x y; do A=2; done",
        "for f in $(ls); do A=$f; done",
        "for ((i=0; i<$UNKNOWN; i++)); do A=$i; done",
        "select x in a b; do A=$x; done",
        'while [ "$S" != done ]; do S=$(squeue); done',
    ],
)
def test_loops_that_nobody_knows_are_told_and_left(loop):
    read = follow(f"A=0\n{loop}\np end")
    assert [words[0].text for _, words in read.commands][-1] == MARK
    assert [message.key for _, message in read.notes if hasattr(message, "key")]


def test_loops_without_end_are_left_in_time():
    body = "i=0; while true; do ((i++)); for ((j=0; j<9; j++)); do A+=x; done; done"

    def read() -> None:
        with contextlib.suppress(SpecError):
            follow(body)

    assert least_cpu_s(read, limit_s=1.6) < 1.6
    assert follow("i=0; while true; do ((i++)); done\np $i").notes


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

    assert least_cpu_s(read, limit_s=1.6) < 1.6


@pytest.mark.parametrize("negations", [0, 1, 2, 3, 15_000, 15_001])
@pytest.mark.parametrize("negated", ["a", "''"])
def test_conditions_are_negated_as_often_as_they_say(negations: int, negated: str) -> None:
    text = f"if [[ {'! ' * negations}{negated} ]]; then {MARK} yes; else {MARK} no; fi"
    assert words_of(text) == [["yes" if (negations % 2 == 0) == (negated == "a") else "no"]]


def test_arguments_of_a_call_are_gone_after_it() -> None:
    body = f"{MARK} $# $1 $3; shift 2; {MARK} $# $1"
    text = f"set -- a b c\nf() {{ {body}; }}\nf x y z\n{MARK} $# $2\nshift\n{MARK} $# $2 $9"
    assert words_of(text) == [["3", "x", "z"], ["1", "z"], ["3", "b"], ["2", "c"]]
