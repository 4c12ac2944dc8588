import runpy

import mindspeed.megatron_adaptor  # noqa: F401 - has to be imported before Megatron

runpy.run_path("pretrain_gpt.py", run_name="__main__")
