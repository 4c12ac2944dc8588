"""schemathesis over a whole OpenAPI document: every answer is as documented."""

from __future__ import annotations

import copy
import json
import re
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
import yaml
from schemathesis.config import SchemathesisConfig
from schemathesis.core import NOT_SET
from schemathesis.core.deserialization import get_yaml_loader
from schemathesis.core.jsonschema.bundler import BUNDLE_STORAGE_KEY
from schemathesis.core.media_types import YAML_MEDIA_TYPES
from schemathesis.engine import Status, from_schema
from schemathesis.engine.events import FatalError, NonFatalError, ScenarioFinished
from schemathesis.openapi import from_dict
from schemathesis.python.asgi import shutdown_lifespans
from schemathesis.specs.openapi import examples as examples_of_schemas

from api.app import create_app
from api.http.openapi import INSIDE
from autodeploy.service.requests.callers import AccessService
from autodeploy.service.store.database import Database
from autodeploy.service.store.migration import upgrade
from tests.integration.conftest import QUICK, quick_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from fastapi import FastAPI
    from schemathesis import DeserializationContext
    from schemathesis.checks import CheckContext
    from schemathesis.core.transport import Response

# Every check is on, as schemathesis ships it. Where the schema allows a request that is refused, a check of our own
# (`refused_by_documented_rules`) wants the rule from the document; without one that is a failure as before.
REFUSED = ["400", "413", "422"]
ACCEPTED = ["2xx", "3xx", "401", "403", "404", "409", "429"]
CONFIG: dict[str, Any] = {
    "continue-on-failure": True,
    "suppress-health-check": ["too_slow"],  # on a busy machine everything is
    "request-timeout": 120.0,  # an ablation computes; `AUTODEPLOY_CALL_LIMIT_S` bounds it
    "checks": {"positive_data_acceptance": {"expected-statuses": [*ACCEPTED, *REFUSED]}},
}
COVERAGE = "coverage"
ENGLISH = "en"
WITH_THE_SAME_SPEC = (
    *("create_ablation", "create_batch", "create_check", "create_estimate"),
    *("compare_clusters", "export_strategy", "improve_launch", "recommend_cards", "why_not"),
)
# These keep nothing: a database answers them in one way or is not asked.
WITHOUT_A_TABLE = (
    *("create_check", "compare_clusters", "improve_launch", "recommend_cards"),
    *(
        "list_hardware_profiles",
        "get_hardware_profile",
        "list_software_stacks",
        "get_software_stack",
        "list_models",
        "get_model",
        "list_schemas",
        "get_schema",
    ),
    *("livez", "version"),
)
# Of a document that the service gave, as a whole.
TAKE_DOCUMENTS = frozenset({"compare_plans", "create_check"})
# Documents with a schema of their own, and lines of a file.
# Keys of names of things and of lists.
NAMES = ("list.", "label.", "release_title.")
_INSIDE = re.compile(r"/hf_config/|/software/stack/|^/\d+$")


class YamlOfToday(yaml.CSafeDumper):
    """Puts texts into quotes that are numbers in YAML 1.2, which the service reads, and none in 1.1."""


YamlOfToday.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|[-+]?0o[0-7]+$"),
    list("-+.0123456789"),
)


@schemathesis.deserializer(*YAML_MEDIA_TYPES)
def documents_of(_context: DeserializationContext, response: Response) -> Any:
    """The document of an answer in YAML; a list where it has several, as a job for Kubernetes."""
    documents = list(yaml.load_all(response.content.decode(), get_yaml_loader()))
    return documents[0] if len(documents) == 1 else documents


@schemathesis.check
def refused_by_documented_rules(ctx: CheckContext, response: Response, case: schemathesis.Case) -> None:
    """A request that fits the schema is refused by rules alone that the OpenAPI document has for that operation."""
    if str(response.status_code) not in REFUSED or not fits_schema(case):
        return
    if response.headers.get("content-language", [ENGLISH]) != [ENGLISH]:
        return  # the document's sentences are English; that each has its Chinese is tested elsewhere
    document = case.operation.schema.raw_schema
    groups = set(case.operation.definition.raw.get("x-refusals", ()))
    known, inside = documented_keys(document, groups - {INSIDE}), documented_keys(document, groups & {INSIDE})
    takes_document = case.operation.definition.raw.get("operationId") in TAKE_DOCUMENTS
    problem = response.json()
    unsaid = [
        said
        for said in problem["errors"] or [problem]
        if not keys_of(said) <= (known | inside if takes_document or _INSIDE.search(said.get("pointer", "")) else known)
    ]
    if unsaid:
        raise AssertionError(f"refused, but no rule of the document says so: {unsaid}")


def fits_schema(case: schemathesis.Case) -> bool:
    """Whether the request was made to fit, in all its parts; schemathesis notes it."""
    return case.meta is not None and case.meta.generation.mode.is_positive


def documented_keys(document: Mapping[str, Any], groups: Iterable[str]) -> set[str]:
    """The keys of these groups."""
    return {key for group in groups for key in document["x-refusals"][group]}


def keys_of(said: Any) -> set[str]:
    """The keys of a message and of those among its values, but for names of things and lists; of plain text none that
    any document knows.
    """
    values = said.get("values", {}).values()
    nested = [each for value in values for each in (value if isinstance(value, list) else [value])]
    found = {key for each in nested if isinstance(each, dict) for key in keys_of(each)}
    return found | ({said["key"]} if not str(said["key"]).startswith(NAMES) else set())


@contextmanager
def answering_app(database_url: str, *, with_keys: bool = False) -> Iterator[FastAPI]:
    """An app whose quick planner answers searches at once; its event streams end soon.

    schemathesis starts it with the first request. `app.state.test_headers` has a key where it asks for one.
    """
    database = Database(database_url, pool_size=1)
    upgrade(database)
    key = AccessService(database).create("schemathesis", "admin")[0] if with_keys else ""
    database.close()
    auth = "keys" if with_keys else None
    chosen = quick_settings(database_url, wait_limit_s=0.0, stream_limit_s=0.2, auth=auth, key_searches=10_000)
    app = create_app(chosen, planner=QUICK)
    app.state.test_headers = {"Authorization": f"Bearer {key}"} if with_keys else {}
    try:
        yield app
    finally:
        shutdown_lifespans()


@dataclass
class Findings:
    """What a run of schemathesis found: requests and seconds by operation, and answers that are not as documented."""

    sent: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def run_phases(app: FastAPI, phases: Iterable[str], examples: int, left_out: Sequence[str] = ()) -> Findings:
    """All checks on all operations: requests that fit the schema, and such that do not, in these phases.

    Parameters
    ----------
    phases : of examples, coverage, fuzzing, stateful.
    examples : generated requests of an operation in fuzzing, and scenarios of stateful tests.
    left_out : operations, by id.
    """
    wanted = set(phases)
    found = Findings()
    # Every operation that takes a spec reads it by the same function, and a spec has thousands of boundaries.
    for chosen, repeated in ((wanted - {COVERAGE}, ()), (wanted & {COVERAGE}, WITH_THE_SAME_SPEC)):
        if chosen:
            _run(app, chosen, examples, (*left_out, *repeated), found)
    return found


def _run(app: FastAPI, chosen: set[str], examples: int, left_out: Sequence[str], findings: Findings) -> None:
    config = CONFIG | {
        "headers": dict(app.state.test_headers),
        "phases": {name: {"enabled": name in chosen} for name in ("examples", COVERAGE, "fuzzing", "stateful")},
        "generation": {"max-examples": examples, "mode": "all", "database": "none"},
    }
    schema = from_dict(app.openapi(), config=SchemathesisConfig.from_dict(config))
    schema.app = app
    if left_out:
        schema = schema.exclude(operation_id=list(left_out))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examples_of_schemas, "_generate_single_example", _made_once())
        patch.setattr(yaml, "CSafeDumper", YamlOfToday)
        # Its thread would end with all that it has still to ask, and nobody would hear of it.
        patch.setattr(threading, "excepthook", lambda ended: findings.failures.append(repr(ended.exc_value)))
        for event in from_schema(schema).execute():
            if isinstance(event, ScenarioFinished):
                _note(event, findings)
            elif isinstance(event, NonFatalError | FatalError):
                findings.failures.append(str(getattr(event, "info", event)))


def _made_once() -> Callable[..., Any]:
    """schemathesis' value of a schema without an example, which it would make anew in each operation that takes a spec:
    always the same one.
    """
    make = examples_of_schemas._generate_single_example
    made: dict[tuple[str, str], Any] = {}
    bundles: dict[int, tuple[Any, str]] = {}  # kept, so that no other gets the number

    def once(schema: Any, *how: Any) -> Any:
        if not isinstance(schema, dict):
            return make(schema, *how)
        bundle = schema.get(BUNDLE_STORAGE_KEY)
        if id(bundle) not in bundles:
            bundles[id(bundle)] = (bundle, json.dumps(bundle, sort_keys=True))
        own = json.dumps({key: value for key, value in schema.items() if key != BUNDLE_STORAGE_KEY}, sort_keys=True)
        key = own, bundles[id(bundle)][1]
        if key not in made:
            made[key] = make(schema, *how)
        return made[key] if made[key] is NOT_SET else copy.deepcopy(made[key])

    return once


def _note(event: ScenarioFinished, findings: Findings) -> None:
    recorder = event.recorder
    findings.seconds[f"{event.phase.value} {event.label}"] += event.elapsed_time  # type: ignore[assignment]
    for case_id, node in recorder.cases.items():
        findings.sent[node.value.operation.label] += 1
        for check in recorder.checks.get(case_id, ()):
            if check.status is Status.FAILURE:
                sample = "" if check.failure_info is None else check.failure_info.code_sample
                failure = "" if check.failure_info is None else repr(check.failure_info.failure)
                findings.failures.append(
                    f"{event.phase.value} {node.value.operation.label}: {check.name}: {failure}\n{sample}"
                )
