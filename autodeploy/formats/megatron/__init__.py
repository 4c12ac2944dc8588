"""Launch scripts of Megatron-LM and MindSpeed-LLM, read and written."""
