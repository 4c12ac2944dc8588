"""Formulas of time and memory on numpy arrays: numbers in, numbers out.

Parameters
----------
tiers : all tiers of the network, innermost first.
group : the `Group` that runs a collective.
m, n, k : C[m, n] = A[m, k] B[k, n] [elements].
rates : `ComputeRates` of the device.
fixed_s : fixed cost of one collective.
compute_s, communication_s : computation and communication that overlap.
chunks : pieces of a multiplication that overlaps its collective [count].
params : parameters held on a rank [parameters].
optimizer : `OptimizerFormat` of the run.
distributed_optimizer : optimizer states are split over the data-parallel ranks; gradients scattered, weights gathered.
gradient_bytes : of an element in the reduction.
fused : the update is one operator; of groups, their products are one.
lengths : of responses, with their shares.
rank_loads : load of every rank [..., ranks] [tokens].
"""
