"""When work on bounds alone ends before its budget does."""

from __future__ import annotations

from autodeploy.search.branch_and_bound.candidate_bounds import MIN_PROGRESS, _Proof


def test_a_proof_goes_on_while_the_gap_narrows_and_ends_when_it_has_not_for_long() -> None:
    proof = _Proof(patience=100)
    assert not proof.stalls(1000, 0.08)
    assert not proof.stalls(901, 0.08)
    assert not proof.stalls(880, 0.08 - MIN_PROGRESS)  # what it narrows by begins the wait anew
    assert not proof.stalls(781, 0.08 - 1.5 * MIN_PROGRESS)
    assert proof.stalls(780, 0.08 - 1.5 * MIN_PROGRESS)
