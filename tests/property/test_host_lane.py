"""A late host in the estimate: the same seconds as operator-by-operator accounting has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.property.test_independent_accounting import assert_equal, estimated
from tests.support.accounting.cases import DENSE, HOSTS, MOE, case_of, cluster
from tests.support.accounting.ranks import Degrees
from tests.support.accounting.step import account

if TYPE_CHECKING:
    from autodeploy.stack.host import HostSoftware


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize(("model", "ep"), [(DENSE, 1), (MOE, 4)], ids=["dense", "experts"])
@pytest.mark.parametrize("choice", ["norm", "activation", "full"])
def test_a_late_host_is_accounted_operator_by_operator(
    host: HostSoftware, model: dict[str, Any], ep: int, choice: str
) -> None:
    case = case_of(model, cluster("nodes"), frozenset({"flash_attention", "grouped_gemm"}), host=host)
    d = Degrees(case.world, tp=2, ep=ep, micro_batches=2, sequence_parallel=True, swap_optimizer=host.updates)
    applied = {choice: [3]}
    assert_equal(estimated(case, d, [[8]], applied), account(case.run, d, case.machine, [[8]], applied))
