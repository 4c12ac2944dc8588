"""The fixed words of the accuracy page."""

from __future__ import annotations

HEADING = """
# Accuracy

Predictions compared with published measurements, generated from the shipped records by `make accuracy`; `make
scoreboard` prints the first table. Time errors are errors of tokens per second, predicted / measured - 1: positive
means predicted too fast. *In sample*: the fit has seen the run. *Left out*: the fit has seen no run of the same
model family. That is what a new model gets, so it is the figure to read. Vendor scripts are predicted as
`autodeploy check` predicts them, with its defaults, by a fit that excludes their run.

![Predicted against measured tokens per second and card](images/accuracy.svg)
"""

EXPERTS_INTRO = """
Every timed MoE run on 800T A2 (A2) and CloudMatrix 384 (A3): the error left out and in sample, and whether the
measured time lies in the 80 % interval of the left-out prediction. RL update phases, and runs whose source is
unsure of the configuration, are in no fit; the reasons are given below. MoE runs on H100 are grouped by model and
number format, and predicted both without Grok-1 (most of the rows, all from one source) and in sample.
""".strip()

MEMORY_INTRO = """
Peak memory, counted the way each source counts it (allocated, reserved or used on the card). No part of the memory
model is fitted, so every figure is out of sample. Runs that are off by more than 8 % are listed below. In two of
them the record contradicts its own log or script: a vocabulary that the allocated memory rules out
(`ST_minicpm_2b_tp1_pp1` implies 32,000 entries), and a script that trains quantised weights (`ST104`). Without these
two, 3 of 36 are under-predicted by more than 8 %: two by up to 10 % and of less than 20 GiB, `ST055` by 12 %.
""".strip()

INTERVALS_INTRO = """
The interval of a prediction starts from the spread of left-out residuals in its class (chip, dense or MoE), with
every configuration counted once. It widens with the uncertainty of the fitted numbers and with the distance from
the records. The share inside should be 80 %; the half-width shows the price of that coverage.
""".strip()

BESIDE_INTRO = """
Mean errors of the same runs, each predicted by a fit without its family of models (kinds that no fit sees: without
its source), and by what anybody has without a model: the utilisation of the record that ran most alike, of another
family of models, carried over. Other programs are given the same inputs where they can say them.
""".strip()

KINDS_INTRO = """
Each kind of run on a line of its own: predicted by the fit that is named. *Without their source*: what is fitted to
such runs, the cost of a shape that the host has not issued before, is taken from the runs of other sources. *In no
fit*: nothing is fitted to any run of this kind.
""".strip()

HOST_CONSTANTS_INTRO = """
What the host costs is fitted to runs in these numbers alone; all other numbers of stacks' hosts are counted,
documented or assumed ([the host](explanation/host_and_swap.md)), and those of a chip (`host.issue_us_per_op`,
`host.sync_us`) are factors of the fit of NVIDIA's chips, and assumed on Ascend. A number that stacks share counts
once.
""".strip()

CLASSES_INTRO = """
A class is a software stack, a kind of run, a chip, and dense or with experts. Each is left out whole, predicted and
given its interval by the runs of all other classes, one a configuration. Beside it: one width for everything, the one
that holds 80 % of the runs of all other classes, and the error of the record that ran most alike. The score is the
mean interval score on log time (alpha 0.2), the width plus ten times what lies outside: less is better.
""".strip()

WORST_INTRO = """
## The worst records

By left-out error, with one configuration per model family and device: the first five, and every other MoE run that
is off by more than 20 %. The causes are judgements based on the parts of the prediction, on similar layouts and on
repeated measurements.
""".strip()

SHARED_NOTES = """
Layouts with two or four such groups per node ran up to 1.5 times longer than predicted, without a clear pattern:
all else being equal, a larger micro batch, with its longer bubble, ran no slower. The excess follows the bytes of
no form of parallelism. Each layout was measured once, and no record says what else the nodes were running. Without
them (selected by layout alone, except for the first row that leaves some out, which flatters the result):
""".strip()

HOW = """
## How it is computed

Records are in `autodeploy/calibration/records/`, each with its source; runs of only a few iterations count for
memory but not for time. Rows that differ only in the number of devices, or that repeat a run, share one weight.
Refits without a family or a run are one weighted solve on the model linearised at the full fit; fits to small
clusters are complete. [Calibration and uncertainty](explanation/calibration.md) describes the fit; the overlays in
`hardware_profiles/data/calibrated/` hold its results. `autodeploy validate
autodeploy/calibration/records/ascend.jsonl` compares every run with its shipped prediction; with `-f json` it also
lists the shapes that no measured efficiency covers.
"""

NOT_MODELLED = """
## What is not modelled

- Routing that changes from step to step: records and plans assume a fixed imbalance, records balanced experts.
- Other jobs on shared switches, failing links, slow cards (the user states a cluster's slowest-device factor).
- Data loading, checkpoint writing, evaluation, garbage collection, and compilation in the first iterations.
- Differences between releases within one software band, and between versions of drivers and collective libraries.
"""

NOT_COVERED = """
## What no record covers

- **A3**: two pre-training runs, one dense and one MoE, from one source. The model of its fabric rests on published
  benchmarks.
- **Expert parallelism across nodes on 800T A2**: in two runs (`ML047`, EP2; `MF063F`, EP4) expert groups span two
  nodes, because each expert is split over tensor-parallel ranks.
- MoE runs on A100; H800, which is carried over from H100; B200 beyond one node, where experts are 22 % too fast
  and too slow.
- The chip grade of most Ascend records is inferred; neighbouring grades differ by up to 18 %.
"""
