"""The fixed words of the accuracy page."""

from __future__ import annotations

HEADING = """
# Accuracy

Predictions against published measurements, made from the shipped records by

```sh
make accuracy
```

Errors of time are of tokens per second, predicted / measured - 1: positive is predicted too fast. *In sample* the
fit has seen the run; *family left out* predicts every run by a fit that has seen no run of its family of models,
which is what a new model meets. Read the second. Repeats of one configuration in the records differ by about 3.5 %.
All aims are for predictions out of sample; a miss says so.

![Predicted against measured tokens per second and card](images/accuracy.svg)
"""

UNEXPLAINED_RUN = "ML031"
UNEXPLAINED = """
`ML031` is the farthest of the runs with experts. Its script names what ML049's does (asynchronous permutation,
all-gather dispatch, grouped multiplication, unfused accumulation), yet some 18 ms a layer and micro batch are missing
there and not in ML049. What differs are 64 cards on eight nodes beyond what a doubling of the nodes costs other runs of
its release, Ulysses over four ranks and the reduction of 12 GB of expert gradients over two nodes that nothing hides. A
trace of one step would tell which.
""".strip()

HOW = """
## How it is computed

Records: `autodeploy/calibration/records/`, each with its source. Runs marked as a few iterations count for memory,
not for time. A family is an architecture line without size or spelling; for A100, where all models are GPT, one
source and model name. The refits without a family are one weighted solve on the model linearised at the full fit,
with its weights; the fits to small clusters are complete fits. [Calibration and
uncertainty](explanation/calibration.md) says how a fit is made.

The same comparison for each run, with the shipped fit:

```sh
autodeploy validate autodeploy/calibration/records/ascend.jsonl
autodeploy validate autodeploy/calibration/records/nvidia.jsonl -f html -o nvidia.html
```
"""

PARAMETERS_INTRO = """
## Fitted parameters

At most ten factors a device, none for a model or a record. ± is the standard deviation of the logarithm after the
fit; where it is hardly below that of the prior, the records say little about the parameter.
""".strip()

WORST_INTRO = """
## The worst records

By left-out error, one configuration counted once; after the first ten, every further model with experts that is off
by more than 20 %. Causes are judgement from the parts of the prediction, sibling layouts and repeated measurements.
""".strip()

NOT_MODELLED = """
## What is not modelled

- Routing that changes from step to step: records and plans take a fixed imbalance, records balanced experts.
- Other jobs on shared switches, failing links, slow cards (a cluster's slowest-device factor is the user's
  statement).
- Data loading, checkpoint writing, evaluation, garbage collection and the first iterations' compilation.
- Differences between releases inside one software band, and between driver and collective-library versions.
- Fragmentation of the allocator beyond a fixed share of the card.
"""

NOT_COVERED = """
## What no record covers

- **Training on CloudMatrix 384**: no published run is among the records. Its efficiencies are carried over from
  800T A2, its fabric from published benchmarks; both are assumed, and its plans' intervals are widened for it.
- **Expert parallelism across nodes on Ascend**: two runs (`ML047`, EP2; `MF063F`, EP4) have expert groups that
  reach a second node because each expert is split over tensor-parallel ranks; no run has wide expert groups over
  several nodes. Dispatch and combine over RoCE and over the supernode fabric are assumed from the tiers' rates.
- Expert groups larger than 8 on Ascend, DualPipeV, swap of optimizer states or activations at measured speed.
- H800: carried over from H100. B200: its profile's own numbers, never fitted.
- The chip grade of every Ascend record is inferred; neighbouring grades differ by up to 18 %.
"""

SHARED_INTRO = """
Layouts with two or four such groups in a node (TP4, TP2) ran up to 1.5 times longer than predicted, and not by a
rule: with all else the same, a larger micro batch, whose bubble is longer by more than 5 %, ran no slower (PAIRS).
The excess of TP2 is about 0.15 to 0.3 s a micro batch with 3 or 6 layers a stage and 2, 3 or 6 sequences. So it
does not follow the bytes of tensor, pipeline or data parallelism, nor memory; the TP1 layout of the same model and
TP2 layouts of GPT-18.4B do not have it. No record says what else the nodes and their shared network cards did, and
each layout was measured once. The records stay in the fit and in all other figures; without them:
""".strip()

SHARED_NOTES = """
The second row leaves out what was seen to be slow and flatters; the third is chosen by layout alone. Of GPT-18.4B the
model places these AHEAD. The two TP4 PP2 layouts share nodes; the one with micro batch 4 took longer than the one with
micro batch 8 (`vtrain_multi_030`), whose bubble is twice as long. `vtrain_multi_027` is alone on its nodes: its micro
batch of 16 took 9 % longer than that of 8 for the same work without a pipeline, which no size of operator explains.
Each was measured once, and repeats differ by 3.5 % where the regret aimed at is 2 %. Without all three, the last row,
the layout predicted fastest is the fastest.
""".strip()
