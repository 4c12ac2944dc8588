"""What the first reader of each page would wait for, made ready while the server starts."""

from __future__ import annotations

from api.ui.languages import LANGUAGES, texts
from api.ui.rendering import ENVIRONMENT
from autodeploy.jobs.planning import load_planner
from autodeploy.reports.translation import sentences
from autodeploy.specs.spec import parse_spec
from autodeploy.specs.strategy import Strategy
from autodeploy.strategies.rules import load_rules
from hardware_profiles import list_profiles, load_profile


def warm_up(planner: str) -> None:
    """Reads templates, texts, rules and profiles; simulates one small pipeline, which loads the compiled loops.

    Some two seconds of work, all of it kept for the life of the process.
    """
    for name in list_profiles():
        load_profile(name)
    load_rules()
    for name in ENVIRONMENT.list_templates(extensions=["html"]):
        ENVIRONMENT.get_template(name)
    for lang in LANGUAGES:
        texts(lang)
    sentences()
    spec = parse_spec(
        {
            "model": "qwen3-0.6b",
            "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
            "training": {"seq_length": 4096, "global_batch_size": 16},
        }
    )
    load_planner(planner).timeline(spec, Strategy(pp=2))
