"""The engines that generate, by what they do with prompts and memory: capabilities, which everything else asks for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine.

    memory_fraction : of a device's memory that it takes for weights and keys and values, unless told.
    max_num_seqs : sequences that a data-parallel rank runs at once, unless told.
    prefill_batch_tokens : it prefills all prompts that wait, in passes of so many tokens, before it decodes again;
    None: prompts are taken up beside decoding, and a request waits for those of a share `together` of all others.
    """

    name: str
    title: str
    memory_fraction: float = 0.9
    max_num_seqs: int = 1024
    prefill_batch_tokens: float | None = None
    together: float = 0.1


# together: on H100 the time to the first token grows by a tenth of a prompt's pass for each further request of vLLM
# (records of serving). Defaults of the engines: gpu_memory_utilization (vllm, config), mem_fraction_static of cards
# with 80 GB and max_prefill_tokens (sglang, server_args), kv_cache_free_gpu_mem_fraction (trtllm, llmapi);
# max_num_seqs on cards with 70 GiB and more (vllm, engine/arg_utils.py), else 256 (vllm-ascend), max_batch_size
# (trtllm, llmapi), what fits (sglang).
ENGINES: dict[str, Engine] = {
    each.name: each
    for each in (
        Engine("vllm", "vLLM"),
        Engine("sglang", "SGLang", memory_fraction=0.88, max_num_seqs=4096, prefill_batch_tokens=16_384.0),
        Engine("trtllm", "TensorRT-LLM", max_num_seqs=2048),
        Engine("vllm-ascend", "vLLM-Ascend", max_num_seqs=256),
    )
}
