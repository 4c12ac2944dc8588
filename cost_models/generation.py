"""Generation: the time of one output token, of a prompt, and the bytes of the keys and values that are kept.

A step of decoding makes one token for every sequence of a batch. Its operators are those of the forward pass with as
many rows as there are sequences: weights are read once a step whatever the batch is, keys and values once a sequence.

    TPOT = constant of the layers + linear layers + keys and values + all-reduces + dispatch and combine

Prices are those of `compute`: max(matrix rate, memory rate) of each product, so that weights bind small batches and
the matrix units large ones. What remains a constant a layer is launches, norms, the latency of collectives.

Parameters
----------
exchanges : tokens are dispatched to experts of other ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.all_to_all import flat_s
from cost_models.collectives import Group, Tier, gather_rate
from cost_models.compute import ComputeRates, attention_flops, attention_s, gemm_s, grouped_gemm_s

if TYPE_CHECKING:
    from cost_models.arrays import Floats, Number


def experts_touched(experts: Number, chosen: Number, tokens: Number) -> Floats:
    """Expected number of a rank's experts that at least one token is sent to (count).

    E_local (1 - (1 - k / E)^T): tokens choose k of E experts independently and evenly. Skew touches fewer.

    Parameters
    ----------
    experts : on the rank, E_local [experts]. chosen : share of all experts that a token is sent to, k / E [fraction].
    tokens : of the group of ranks over which the experts lie [tokens].
    """
    return np.asarray(experts * (1.0 - (1.0 - np.asarray(chosen, dtype=np.float64)) ** tokens))


@dataclass(frozen=True, slots=True)
class Product:
    """One matrix multiplication of a layer with a weight, and how often a pass of the model has it.

    columns, depth : of the weight on this rank [elements]. layers : that have it [count].
    wide : stays in 16 bits where linear layers run in 8. last_only : of each sequence's last token alone, in a prompt.
    experts : of the rank, each with such a weight; 0: it is no expert's [experts]. chosen : share of all experts that a
        token is sent to [fraction]. rows_per_token : rows of all experts of the rank for one token that the rank holds.
        group_ranks : ranks' batches that reach the experts of this rank.
    """

    columns: float
    depth: float
    layers: float
    wide: bool = False
    last_only: bool = False
    experts: float = 0.0
    chosen: float = 1.0
    rows_per_token: float = 1.0
    group_ranks: float = 1.0

    @property
    def weights(self) -> float:
        """Elements of the weights on this rank, of all layers."""
        return self.columns * self.depth * self.layers * max(self.experts, 1.0)


@dataclass(frozen=True, slots=True)
class Cache:
    """Keys and values of the layers of one kind on one rank, and the attention over them.

    token_bytes : of one token and layer [B]. heads : query heads of the rank. qk_dim, v_dim : widths that decoding
    multiplies with, per head: under latent attention those of the latent. prompt_qk_dim, prompt_v_dim : of a prompt,
    whose heads have keys and values of their own. window : tokens a query sees at most; None: all before it.
    """

    layers: float
    token_bytes: float
    heads: float
    qk_dim: float
    v_dim: float
    prompt_qk_dim: float
    prompt_v_dim: float
    window: float | None = None

    def kept(self, context: Number) -> Floats:
        """Tokens of a sequence whose keys and values a step reads [n]."""
        context = np.asarray(context, dtype=np.float64)
        return context if self.window is None else np.minimum(context, self.window)


@dataclass(frozen=True, slots=True)
class GenerationRates:
    """Rates of a device and an engine in generation. Numbers may be arrays, so that a fit can vary them.

    compute : of training, without fixed costs; `operand_fraction` is that at which a step's weights stream.
    expert_fraction : of the bandwidth, at which weights of touched experts stream [fraction]. cache_fraction : keys and
        values [fraction].
    reduce_fraction : of a tier's rate, by which an all-reduce of decode grows with its rows [fraction].
    prefill : rate of a prompt's pass against what the formulas of training give [ratio].
    layer_s : constant of a layer in a step of decoding, by the engine's mode and the tensor-parallel degree [s].
    expert_layer : of a layer with experts beyond it, against it: router, sorting, sums [ratio].
    issue_s : of a layer whose operators the host issues one by one, as it does in a prompt's pass [s].
    exchange_s : of one dispatch or combine before its first byte [s].
    dispatch_loss, combine_loss : as in training, per doubling of a tier's ranks beyond 8 [fraction].
    half_width : relative, of the 80 % interval of a predicted TPOT [fraction].
    """

    compute: ComputeRates
    expert_fraction: Number
    cache_fraction: Number
    reduce_fraction: Number
    prefill: Number
    layer_s: Number
    expert_layer: Number
    issue_s: Number
    exchange_s: Number
    dispatch_loss: Number = 0.0
    combine_loss: Number = 0.0
    half_width: float = 0.0


@dataclass(frozen=True)
class RankWork:
    """Work of one rank of a replica in a pass, and its memory.

    layers, expert_layers : of the model [count]. products, caches : what a pass multiplies and keeps, on one rank.
    reduced_bytes : of all-reduces, for one row of one pass [B]. reduces : of them [count].
    vector_bytes : of norms, activations and rotary embeddings for one token of a prompt, all layers [B].
    weights_bytes : resident on a rank [B].
    """

    layers: float
    expert_layers: float
    products: tuple[Product, ...]
    caches: tuple[Cache, ...]
    reduced_bytes: float
    reduces: float
    vector_bytes: float
    weights_bytes: float


@dataclass(frozen=True)
class Generation(RankWork):
    """A model as one replica generates with it: `batch` counts sequences of one data-parallel rank (tp devices).

    tensor_group, expert_group : ranks that cut a layer, and over which experts lie; dispatched where `exchanges`.
        tensor_ranks : of the first.
    tiers : of the network. hidden_size : of a token that is dispatched [elements]. choices : experts a token goes to
        [experts].
    dispatch_bytes : of an element on its way to an expert; it returns in 16 bits [B].
    cache_space_bytes : of a rank for keys and values [B].
    """

    rates: GenerationRates
    tensor_group: Group
    expert_group: Group
    tiers: tuple[Tier, ...]
    hidden_size: float
    choices: float
    exchanges: bool
    dispatch_bytes: float
    cache_space_bytes: float

    @property
    def tensor_ranks(self) -> float:
        """Devices of a data-parallel rank."""
        return float(np.max(self.tensor_group.size))

    # -- keys and values -------------------------------------------------------------------------------------

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of keys and values of one token on each device of the rank, all layers, windows aside [B]."""
        return sum(cache.layers * cache.token_bytes for cache in self.caches)

    def cache_bytes(self, context: Number) -> Floats:
        """Bytes of the KV cache of a sequence of `context` tokens, on each device of its rank [B]."""
        return np.asarray(sum(cache.layers * cache.token_bytes * cache.kept(context) for cache in self.caches))

    def requests_that_fit(self, context: Number, *, space_bytes: Number | None = None) -> Floats:
        """Sequences of `context` tokens whose keys and values fit on a data-parallel rank (whole number, may be 0).

        Parameters
        ----------
        space_bytes : of each device for keys and values; absent: what is left of the device's memory.
        """
        space = self.cache_space_bytes if space_bytes is None else space_bytes
        return np.asarray(np.floor(np.maximum(space, 0.0) / np.maximum(self.cache_bytes(context), 1.0)))

    # -- one token -------------------------------------------------------------------------------------------

    def tpot_s(self, batch: Number, context: Number, group_batch: Number | None = None) -> Floats:
        """Seconds per output token (TPOT): a decode step makes one token for each of `batch` sequences.

        Parameters
        ----------
        batch : sequences of the data-parallel rank; where ranks differ, of the fullest, which all wait for [sequences].
        context : mean tokens of them, prompts included [tokens].
        group_batch : sequences of all ranks that share experts; absent: as many on each as on this one [sequences].
        """
        return np.asarray(sum(self.parts_s(batch, context, group_batch=group_batch).values()))

    def parts_s(
        self, batch: Number, context: Number, *, group_batch: Number | None = None
    ) -> dict[str, npt.NDArray[np.float64]]:
        """The parts of `tpot_s`, which add up to it [s]."""
        batch, context = np.asarray(batch, dtype=np.float64), np.asarray(context, dtype=np.float64)
        rates, zero = self.rates, np.zeros(np.broadcast_shapes(batch.shape, context.shape))
        constant = (self.layers + self.expert_layers * np.asarray(rates.expert_layer)) * rates.layer_s
        return {
            "constant_s": zero + constant,
            "weights_s": zero + self._dense_s(batch, batch),
            "experts_s": zero + self._experts_s(batch, group_batch),
            "cache_s": zero + self._attention_s(batch, context),
            "reduce_s": zero + self._reduce_s(batch, rates.reduce_fraction),
            "exchange_s": zero + self._exchange_s(batch),
        }

    def _dense_s(self, rows: Floats, last_rows: Number) -> Floats:
        """Seconds of all products but those of experts."""
        wide, narrow = self.rates.compute.wide(), self.rates.compute
        total = np.zeros(())
        for each in self.products:
            if not each.experts:
                m = last_rows if each.last_only else rows
                total = total + each.layers * gemm_s(m, each.columns, each.depth, wide if each.wide else narrow)
        return total

    def _experts_s(self, rows: Floats, group_rows: Number | None = None) -> Floats:
        """Seconds of the experts' products: weights of those that some token reaches are read."""
        rates = replace(self.rates.compute, operand_fraction=self.rates.expert_fraction)
        total = np.zeros(())
        for each in self.products:
            if each.experts:
                reach = rows * each.group_ranks if group_rows is None else np.asarray(group_rows)
                groups = np.maximum(experts_touched(each.experts, each.chosen, reach), 1e-9)
                # The rows of this rank are the group's, spread over the ranks that hold its experts.
                received = reach / each.group_ranks * each.rows_per_token
                total = total + each.layers * grouped_gemm_s(groups, received / groups, each.columns, each.depth, rates)
        return total

    def _attention_s(self, batch: Floats, context: Floats) -> Floats:
        """Seconds of attention: keys and values are read, or multiplied, whichever takes longer."""
        rates, total = self.rates.compute, np.zeros(())
        for cache in self.caches:
            kept = cache.kept(context)
            read_s = batch * kept * cache.token_bytes / (rates.hbm_bytes_per_s * np.asarray(self.rates.cache_fraction))
            flops = attention_flops(batch, kept, cache.heads, cache.qk_dim, cache.v_dim)
            peak = rates.peak_flops if rates.wide_peak_flops is None else rates.wide_peak_flops
            multiply_s = flops / (np.asarray(peak) * rates.attention_forward)
            total = total + cache.layers * np.maximum(read_s, multiply_s)
        return total

    def _reduce_s(self, rows: Number, fraction: Number) -> Floats:
        """Seconds by which all-reduces grow with their rows: 2 (g - 1) / g of the bytes at a share of the rate."""
        if self.tensor_ranks <= 1.0:
            return np.zeros(())
        per_byte = 2.0 * gather_rate(self.tensor_group, self.tiers).s_per_byte
        return np.asarray(np.asarray(rows) * self.reduced_bytes * per_byte / fraction)

    def _exchange_s(self, rows: Number) -> Floats:
        """Seconds of the dispatches and combines of all layers with experts: a start each, then their bytes.

        A token is at home on each rank of its tensor-parallel group, which share in sending it.
        """
        if not self.exchanges:
            return np.zeros(())
        tiers = tuple(replace(tier, latency_s=0.0, half_size_bytes=0.0) for tier in self.tiers)
        tokens = np.asarray(rows) / self.tensor_ranks * self.hidden_size
        ways = ((self.dispatch_bytes, self.rates.dispatch_loss), (2.0, self.rates.combine_loss))
        total = np.zeros(())
        for element, loss in ways:
            exchange = flat_s(tokens * element, self.choices, self.expert_group, tiers, 0.0, loss=loss)
            total = total + self.expert_layers * (exchange + np.asarray(self.rates.exchange_s))
        return total

    # -- a prompt --------------------------------------------------------------------------------------------

    def prefill_s(self, tokens: Number, *, length: Number | None = None) -> Floats:
        """Seconds of prefill: one pass over `tokens` of prompts on a data-parallel rank, no less than the host takes.

        Parameters
        ----------
        length : mean tokens of a prompt; absent: all are one prompt. Attention grows with its square, so give it where
            tokens are those of many prompts [tokens].
        """
        return np.maximum(self.prefill_device_s(tokens, length=length), self.issue_floor_s)

    @property
    def issue_floor_s(self) -> Floats:
        """Seconds in which the host issues a pass that is not recorded as a graph."""
        return np.asarray(self.layers * np.asarray(self.rates.issue_s))

    def prefill_device_s(self, tokens: Number, *, length: Number | None = None) -> Floats:
        """Seconds of `prefill_s` on the device, were the host never late: the forward pass of training."""
        tokens = np.asarray(tokens, dtype=np.float64)
        length = np.maximum(tokens if length is None else np.asarray(length, dtype=np.float64), 1e-9)
        sequences = tokens / np.maximum(length, 1.0)
        rates = self.rates.compute
        seconds = self._dense_s(np.maximum(tokens, 1e-9), np.maximum(sequences, 1e-9)) + self._experts_s(tokens)
        for cache in self.caches:
            keys = np.minimum(length / 2.0, cache.kept(length))
            flops = attention_flops(tokens, keys, cache.heads, cache.prompt_qk_dim, cache.prompt_v_dim)
            head_dim = (cache.prompt_qk_dim + cache.prompt_v_dim) / 2.0
            seconds = seconds + cache.layers * attention_s(flops, head_dim, length, rates.wide(), backward=False)
        seconds = seconds + tokens * self.vector_bytes / (rates.hbm_bytes_per_s * np.asarray(rates.hbm_fraction))
        seconds = seconds / np.asarray(self.rates.prefill) + self._reduce_s(tokens, 1.0) + self._exchange_s(tokens)
        return np.asarray(np.where(tokens > 0.0, seconds, 0.0))
