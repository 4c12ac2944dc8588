"""The fixed words of the accuracy page."""

from __future__ import annotations

HEADING = """
# Accuracy

Predictions against published measurements, made from the shipped records by `make accuracy`; `make scoreboard`
prints the first table. Errors of time are of tokens per second, predicted / measured - 1: positive is predicted too
fast. *In sample* the fit has seen the run. *Left out* it has seen no run of the same family of models, which is
what a new model meets; read that one. A vendor's script is predicted as `autodeploy check` does it, with its
defaults, by a fit without its run.

![Predicted against measured tokens per second and card](images/accuracy.svg)
"""

EXPERTS_INTRO = """
Every timed run with experts on 800T A2 (A2) and CloudMatrix 384 (A3); the error left out, in sample, and whether
the measured time lies in the 80 % interval of the left-out prediction. Update phases of reinforcement learning and
runs whose source is not sure of its configuration are in no fit; their causes follow. H100's runs with experts
stand by model and number format, predicted without Grok-1 (most of the rows, one source) and in sample.
""".strip()

MEMORY_INTRO = """
Peak of memory, counted as each source counts it (allocated, reserved or on the card). Nothing in memory is fitted, so
every figure is out of sample. Runs that are off by more than 8 % follow. In four of them the record contradicts its own
log or script: a vocabulary that allocated memory rules out (`ST_minicpm_2b_tp1_pp1` fits 32,000 entries, `ST055` about
59,000), a script that trains quantised weights (`ST104`), a layer list that the record lacks (`ST112`). Without these
four, 2 of 29 are under-predicted by more than 8 %, both by 10 % and neither above 20 GiB.
""".strip()

INTERVALS_INTRO = """
The interval of a prediction comes from the records its fit has seen: the spread of left-out residuals in the class
(chip, dense or with experts), each configuration once, widened with what the fitted numbers leave open and with the
distance from the records. One run stands for each configuration. The share inside should be 80 %; the half-width
says how much that costs.
""".strip()

WORST_INTRO = """
## The worst records

By left-out error, one configuration of a family of models on a device: the first five, and every other with experts
that is off by more than 20 %. Causes are judgement from the parts of the prediction, sibling layouts and repeated
measurements.
""".strip()

SHARED_NOTES = """
Layouts with two or four such groups in a node ran up to 1.5 times longer than predicted, and not by a rule: with
all else the same a larger micro batch, whose bubble is longer, ran no slower. That does not follow the bytes of any
parallelism; each layout was measured once, and no record says what else the nodes ran. Without them (chosen by
layout alone, but for the first row that leaves some out, which flatters):
""".strip()

HOW = """
## How it is computed

Records: `autodeploy/calibration/records/`, each with its source; runs marked as a few iterations count for memory,
not for time. Rows that differ in the number of devices alone, or repeat a run, share one weight. Refits without a
family or a run are one weighted solve on the model linearised at the full fit; fits to small clusters are complete.
[Calibration and uncertainty](explanation/calibration.md) says how a fit is made, the overlays in
`hardware_profiles/data/calibrated/` what it gave. `autodeploy validate autodeploy/calibration/records/ascend.jsonl`
holds each run against its shipped prediction; with `-f json` it lists the shapes that no measured efficiency covers.
"""

NOT_MODELLED = """
## What is not modelled

- Routing that changes from step to step: records and plans take a fixed imbalance, records balanced experts.
- Other jobs on shared switches, failing links, slow cards (a cluster's slowest-device factor is the user's
  statement).
- Data loading, checkpoint writing, evaluation, garbage collection and the first iterations' compilation.
- Differences between releases inside one software band, and between driver and collective-library versions.
"""

NOT_COVERED = """
## What no record covers

- **A3**: two pre-training runs, one dense and one with experts, of one source. Its fabric rests on published
  benchmarks.
- **Expert parallelism across nodes on 800T A2**: two runs (`ML047`, EP2; `MF063F`, EP4) have expert groups that
  reach a second node, because each expert is split over tensor-parallel ranks.
- Runs with experts on A100; H800, which is carried over from H100; B200, never fitted.
- The chip grade of most Ascend records is inferred; neighbouring grades differ by up to 18 %.
"""
