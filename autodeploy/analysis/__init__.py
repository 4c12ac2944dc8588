"""Questions about a plan or a launch beyond the search: checks, what-if, ablation, rehearsal, probe."""
