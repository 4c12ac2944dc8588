"""Routing that gives every expert as many tokens, so that what experts receive is what a plan counts on."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch

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
        return routing(self, logits + raised, *args, **named)

    router.routing = even
