"""What the first reader of each page would wait for, made ready before the server listens."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from api.ui.assets import PLOTLY, SCRIPTS, STYLE, compressed
from api.ui.languages import texts
from api.ui.rendering import ENVIRONMENT
from autodeploy.messages import LANGUAGES
from autodeploy.reports.figures.charts import MEMORY_FILE, shipped_points
from autodeploy.reports.figures.layout import plotly_style_ids
from autodeploy.service.calls import SMALL_SPEC
from autodeploy.space.rules import load_rules
from autodeploy.specs.spec import parse_spec
from hardware_profiles import list_profiles, load_profile

if TYPE_CHECKING:
    from autodeploy.service.session import Services

READY_LIMIT_S = 20.0


def make_ready(services: Services) -> None:
    """Reads templates, texts, rules and profiles, while the processes that compute for requests start beside.

    Some two seconds of work on two cores, all of it kept for the life of the server. Who asked in these seconds would
    wait for all of it at once, or be refused because too many wait. Where a machine is so busy that it takes long, the
    processes go on beside the first requests.
    """
    end_s = time.monotonic() + READY_LIMIT_S
    starting = threading.Thread(target=services.make_ready, daemon=True)
    starting.start()
    warm_up()
    services.planner.check_space(parse_spec(SMALL_SPEC))  # as each submission does
    starting.join(max(0.0, end_s - time.monotonic()))


def warm_up() -> None:
    """What pages read, whichever planner computes."""
    for name in list_profiles():
        load_profile(name)
    load_rules()
    for name in ENVIRONMENT.list_templates(extensions=["html"]):
        ENVIRONMENT.get_template(name)
    for lang in LANGUAGES:
        texts(lang)
    shipped_points()
    shipped_points(MEMORY_FILE)
    plotly_style_ids()
    for name in (STYLE, SCRIPTS, PLOTLY):
        compressed(name)
