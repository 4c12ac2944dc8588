"""The engines that generate, by what they do with prompts and memory: capabilities, which everything else asks for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine.

    memory_fraction : of a device's memory that it takes for weights and keys and values, unless told.
    prefill_batch_tokens : it prefills all prompts that wait, in passes of so many tokens, before it decodes again;
    None: prompts are taken up beside decoding, and a request waits for those of a share `together` of all others.
    """

    name: str
    title: str
    memory_fraction: float = 0.9
    prefill_batch_tokens: float | None = None
    together: float = 0.1


# together: on H100 the time to the first token grows by a tenth of a prompt's pass for each further request of vLLM
# (records of serving). Defaults of the engines: gpu_memory_utilization (vllm, config), mem_fraction_static of cards
# with 80 GB and max_prefill_tokens (sglang, server_args), kv_cache_free_gpu_mem_fraction (trtllm, llmapi).
ENGINES: dict[str, Engine] = {
    each.name: each
    for each in (
        Engine("vllm", "vLLM"),
        Engine("sglang", "SGLang", memory_fraction=0.88, prefill_batch_tokens=16_384.0),
        Engine("trtllm", "TensorRT-LLM"),
        Engine("vllm-ascend", "vLLM-Ascend"),
    )
}
