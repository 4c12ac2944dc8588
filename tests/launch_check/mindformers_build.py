"""Builds the networks of MindFormers configurations with its own code: a line of JSON for every file.

    python -m tests.launch_check.mindformers_build SOURCE FILE...

SOURCE: a work tree of MindFormers. Runs where MindSpore is installed, on the CPU and without its device; parameters are
declared, not filled. Every file is laid over the general template, as its comment asks.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import tempfile
from typing import Any

from tests.launch_check.stand_ins import StubFinder

# What MindFormers imports and no network needs.
UNUSED = frozenset(
    {
        *("cv2", "datasets", "deprecated", "ftfy", "jieba", "mindpet", "nltk", "pyarrow", "rouge_chinese"),
        *("setproctitle", "tensorboardX", "tiktoken"),
    }
)
TEMPLATE = "configs/general/llm_pretrain_dense_template.yaml"
# The template reads the model from a folder of Hugging Face's, which the file stands for.
OF_TEMPLATE = "pretrained_model_dir"


def laid_over(template: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """Sections of both; where both have a key, the document's value."""
    merged = dict(template)
    for key, value in document.items():
        below = merged.get(key)
        merged[key] = laid_over(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def built(source: pathlib.Path, path: pathlib.Path) -> dict[str, Any]:
    """The class of the network and its parameters, or the words of the error that it isn't built for."""
    import yaml

    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    template = yaml.safe_load((source / TEMPLATE).read_text("utf-8"))
    merged = laid_over({key: value for key, value in template.items() if key != OF_TEMPLATE}, document)
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump(merged, file, sort_keys=False)
            file.flush()
            network = _network(file.name)
    except Exception as error:
        return {"refused": " ".join(str(error).split())}
    sizes = [_product(parameter.shape) for parameter in network.trainable_params()]
    return {"network": type(network).__name__, "parameters": sum(sizes)}


def _network(path: str) -> Any:
    """The network as the trainer makes it (mindformers/trainer/base_trainer.py, training_process)."""
    import mindspore
    from mindformers.core.context.build_context import MFContextOperator
    from mindformers.core.parallel_config import build_parallel_config
    from mindformers.models import build_network
    from mindformers.tools.register import MindFormerConfig
    from mindspore.nn.utils import no_init_parameters

    mindspore.set_context(device_target="CPU")
    config = MindFormerConfig(path)
    MFContextOperator(config)
    build_parallel_config(config)
    if interleaved := config.parallel.get("pipeline_config"):
        mindspore.set_auto_parallel_context(pipeline_config=dict(interleaved))
    arguments = {"parallel_config": config.parallel_config, "moe_config": config.moe_config}
    arguments |= {"dataset_config": config.train_dataset, "calculate_per_token_loss": False, "batch_size": 1}
    with no_init_parameters():
        return build_network(config.model, default_args=arguments)


def _product(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= int(length)
    return size


def main(source: pathlib.Path, paths: list[pathlib.Path]) -> None:
    """Forks for every file: MindFormers keeps what it was told."""
    os.environ["RUN_MODE"] = "train"
    sys.meta_path.insert(0, StubFinder(UNUSED))
    sys.path.insert(0, str(source))
    out = os.dup(1)
    os.dup2(2, 1)  # its log
    import mindformers  # noqa: F401

    for path in paths:
        if (child := os.fork()) == 0:
            os.write(out, (json.dumps({"file": path.stem} | built(source, path)) + "\n").encode())
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), [pathlib.Path(each) for each in sys.argv[2:]])
