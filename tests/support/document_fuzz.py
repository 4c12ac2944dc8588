"""A fuzzer of documents: none may end in anything but an answer or a refusal, or cost more than it may.

Each document is made in a process of its own kind, whose processor time and memory are measured around the reading.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import random
import re
import resource
import signal
import time
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from autodeploy.kit.errors import AutoDeployError
from tests.support.document_grammars import FORMATS, Format

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST_CHARACTERS: Final = 200_000
MOST_S: Final = 2.0
MOST_MB: Final = 300.0
STOPPED_AFTER_S: Final = 6
MOST_ADDRESSES: Final = 4 << 30
_SYMBOL: Final = re.compile(r"<([a-z]+)>")
_TOKEN: Final = re.compile(r"\w+|\s+|[^\w\s]")


@dataclass
class Findings:
    """What became of the documents of one format; `faults` has the worst documents, cut off."""

    documents: int = 0
    accepted: int = 0
    refused: int = 0
    tracebacks: int = 0
    slow: int = 0
    most_s: float = 0.0
    most_mb: float = 0.0
    faults: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether no document was too much."""
        return not self.tracebacks and not self.slow and self.most_s < MOST_S and self.most_mb < MOST_MB


class _Stopped(BaseException):
    """The reading took too long to be waited for."""


def fuzz(name: str, seconds: float, seed: int) -> Findings:
    """Reads generated documents of a format for so many seconds."""

    def made() -> Iterator[str]:
        end_s = time.monotonic() + seconds
        yield from itertools.takewhile(lambda _: time.monotonic() < end_s, documents(FORMATS[name], seed))

    return _elsewhere(name, made())


def pumped_all(name: str, stride: int = 1) -> Findings:
    """Reads every piece of a format, repeated to the full size, in several places of a document."""
    form = FORMATS[name]
    texts = [
        (before + piece * (MOST_CHARACTERS // len(piece)))[: MOST_CHARACTERS - len(after)] + after
        for piece in form.pieces
        for before, after in (
            (form.seeds[0], ""),
            ("", form.seeds[-1]),
            ('a: "', '"\n'),
            ("a = ", "\n"),
            ("a " + piece, "!"),
        )
    ]
    return _elsewhere(name, texts[::stride])


def judge(name: str, texts: Iterable[str]) -> Findings:
    """Reads these documents."""
    return _elsewhere(name, texts)


def documents(form: Format, seed: int) -> Iterator[str]:
    """Documents without end: sentences of the grammar, changed files, and pieces repeated to the full size."""
    source = random.Random(seed)
    while True:
        kind = source.random()
        if kind < 0.35:
            text = sentence(form, "document", source)
        elif kind < 0.7:
            text = _changed(form, source)
        elif kind < 0.95:
            text = _pumped(form, source, source.choice((500, 5_000, 50_000)))
        else:
            text = _pumped(form, source, MOST_CHARACTERS)
        yield text[:MOST_CHARACTERS]


def sentence(form: Format, symbol: str, source: random.Random, depth: int = 0) -> str:
    """A sentence of the grammar; beyond some depth only productions without more symbols, where there are any."""
    productions = form.grammar[symbol]
    if depth > 12:
        productions = [p for p in productions if not _SYMBOL.search(p)] or productions[:1]
    chosen = source.choice(productions)
    return _SYMBOL.sub(
        lambda match: (
            "" if depth > 40 else sentence(form, match[1], source, depth + 1) if match[1] in form.grammar else match[0]
        ),
        chosen,
    )


def _changed(form: Format, source: random.Random) -> str:
    """A seed with a few of its lines and words dropped, doubled, moved, or replaced by sentences."""
    lines = source.choice(form.seeds).splitlines(keepends=True)
    for _ in range(source.randint(1, 6)):
        at = source.randrange(len(lines) + 1)
        match source.randrange(5):
            case 0:
                del lines[at : at + source.randint(1, 3)]
            case 1:
                lines[at:at] = lines[at : at + source.randint(1, 3)]
            case 2:
                lines.insert(at, sentence(form, source.choice(list(form.grammar)), source))
            case 3:
                lines[at:at] = source.choice(form.seeds).splitlines(keepends=True)[:5]
            case _ if lines:
                words = _TOKEN.findall(lines[at % len(lines)])
                if words:
                    new = source.choice(
                        (sentence(form, source.choice(list(form.grammar)), source), source.choice(form.pieces))
                    )
                    words[source.randrange(len(words))] = new
                lines[at % len(lines)] = "".join(words)
    return "".join(lines)


def _pumped(form: Format, source: random.Random, size: int) -> str:
    """One to three pieces repeated, between the two parts of a seed or sentence."""
    piece = "".join(source.choices(form.pieces, k=source.choice((1, 1, 2, 3))))
    around = source.choice((source.choice(form.seeds), sentence(form, "document", source), ""))
    at = source.randrange(len(around) + 1)
    closing = "".join(source.choices(form.pieces, k=source.choice((0, 1))))
    return around[:at] + piece * (max(0, size - len(around)) // len(piece)) + closing + around[at:]


def _elsewhere(name: str, texts: Iterable[str]) -> Findings:
    """Reads documents in a process of its own, so that its peak of memory is theirs."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)

    def work() -> None:
        sending.send(_read_all(FORMATS[name], texts))

    process = context.Process(target=work)
    process.start()
    sending.close()
    try:
        found: Findings = receiving.recv()
    except EOFError:
        process.join()
        return Findings(tracebacks=1, faults=[f"{name}: the process ended with {process.exitcode}"])
    process.join()
    return found


def _read_all(form: Format, texts: Iterable[str]) -> Findings:
    def stop(*_: Any) -> None:
        raise _Stopped

    signal.signal(signal.SIGPROF, stop)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    for text in form.seeds:  # what is imported and remembered once is nobody's
        with contextlib.suppress(AutoDeployError):
            form.read(text)
    found, idle_mb = Findings(), _peak_mb()
    for text in texts:
        before_mb, started_s = _peak_mb(), time.process_time()
        signal.setitimer(signal.ITIMER_PROF, STOPPED_AFTER_S)
        fault = ""
        try:
            form.read(text)
            found.accepted += 1
        except AutoDeployError:
            found.refused += 1
        except _Stopped:
            fault = "not over"
        except Exception:
            found.tracebacks += 1
            fault = traceback.format_exc()[-600:]
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        took_s, peak_mb = time.process_time() - started_s, _peak_mb()
        found.documents += 1
        if took_s >= MOST_S or peak_mb - max(before_mb, idle_mb) >= MOST_MB:
            found.slow += 1
            fault = fault or "too much"
        if fault:
            found.faults.append(
                f"{took_s:.1f} s, {peak_mb - before_mb:.0f} MB: {text[:200]!r}...{text[-60:]!r}: {fault}"
            )
        found.most_s, found.most_mb = max(found.most_s, took_s), max(found.most_mb, peak_mb - idle_mb)
    return found


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
