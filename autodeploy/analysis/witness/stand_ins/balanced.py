"""Routing that gives every expert as many tokens, so that what experts receive is what a plan counts on."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .record import NOTES

FAR = 50.0  # above any logit of a fresh router


def balance_routing() -> None:
    """Sends the tokens to the experts in turn: token t to experts t x k ... t x k + k - 1, modulo their number."""
    router = importlib.import_module("megatron.core.transformer.moe.router").TopKRouter
    routing = router.routing

    @functools.wraps(routing)
    def even(self: Any, logits: Any, *args: Any, **named: Any) -> Any:
        before, NOTES.quiet = NOTES.quiet, True
        with torch.no_grad():
            experts, taken = logits.shape[-1], self.topk
            tokens = logits.numel() // experts
            places = (torch.arange(tokens)[:, None] * taken + torch.arange(taken)) % experts
            raised = torch.zeros(tokens, experts).scatter_(1, places, FAR).view(logits.shape).to(logits.dtype)
        NOTES.quiet = before
        found = routing(self, logits + raised, *args, **named)
        return (found[0], _real(found[1], places, experts), *found[2:])

    router.routing = even


def _real(chosen: Any, places: Any, experts: int) -> Any:
    """The same choice in numbers where sizes alone are known: a map of tokens by experts, or a token's experts."""
    if not isinstance(chosen, FakeTensor):
        return chosen
    before, NOTES.quiet = NOTES.quiet, True
    with torch.no_grad():
        if chosen.shape[-1] == experts:
            places = torch.zeros(places.shape[0], experts, dtype=torch.bool).scatter_(1, places, True)
        out = places.view(chosen.shape).to(chosen.dtype)
    NOTES.quiet = before
    return out
