"""The framework as witness: what an exported launch does on the CPU, held against what was predicted of it."""
