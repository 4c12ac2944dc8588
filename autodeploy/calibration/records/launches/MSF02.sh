#!/bin/bash
# Layout and kernels of Ascend/MindSpeed-LLM @ c77308a1 examples/mcore/qwen3/pretrain_qwen3_8b_4K_ptd_A3.sh, whose speed the
# table of docs/en/pytorch/features/README.md states; without data, optimizer and checkpoints.
export CUDA_DEVICE_MAX_CONNECTIONS=1
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True
export TASK_QUEUE_ENABLE=2
torchrun --nproc_per_node 16 --nnodes 1 pretrain_gpt.py \
    --attention-dropout 0.0 \
    --bf16 \
    --disable-bias-linear \
    --ffn-hidden-size 12288 \
    --global-batch-size 128 \
    --group-query-attention \
    --hidden-dropout 0.0 \
    --hidden-size 4096 \
    --make-vocab-size-divisible-by 1 \
    --max-position-embeddings 4096 \
    --micro-batch-size 1 \
    --normalization RMSNorm \
    --num-attention-heads 32 \
    --num-layers 36 \
    --num-query-groups 8 \
    --overlap-grad-reduce \
    --overlap-param-gather \
    --padded-vocab-size 151936 \
    --pipeline-model-parallel-size 1 \
    --position-embedding-type rope \
    --qk-layernorm \
    --reuse-fp32-param \
    --seq-length 4096 \
    --spec mindspeed_llm.tasks.models.spec.qwen3_spec layer_spec \
    --swiglu \
    --tensor-model-parallel-size 2 \
    --transformer-impl local \
    --untie-embeddings-and-output-weights \
    --use-ascend-coc \
    --use-distributed-optimizer \
    --use-flash-attn \
    --use-fused-rmsnorm \
    --use-fused-rotary-pos-emb \
    --use-fused-swiglu \
    --use-mcore-models \
    --use-rotary-position-embeddings
