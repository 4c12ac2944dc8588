#!/bin/bash
# Layout and kernels of Ascend/MindSpeed-LLM @ c77308a1 examples/mcore/qwen3_moe/pretrain_qwen3_30b_a3b_4K_ptd.sh, whose speed the
# table of docs/en/pytorch/features/README.md states; without data, optimizer and checkpoints.
export CUDA_DEVICE_MAX_CONNECTIONS=1
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \
    --attention-dropout 0.0 \
    --bf16 \
    --context-parallel-algo ulysses_cp_algo \
    --context-parallel-size 1 \
    --disable-bias-linear \
    --expert-model-parallel-size 8 \
    --ffn-hidden-size 6144 \
    --first-k-dense-replace -1 \
    --gemm-gradient-accumulation-fusion \
    --global-batch-size 256 \
    --group-query-attention \
    --hidden-dropout 0.0 \
    --hidden-size 2048 \
    --kv-channels 128 \
    --make-vocab-size-divisible-by 1 \
    --max-position-embeddings 4096 \
    --micro-batch-size 1 \
    --moe-aux-loss-coeff 0.001 \
    --moe-ffn-hidden-size 768 \
    --moe-grouped-gemm \
    --moe-layer-freq -1 \
    --moe-permutation-async-comm \
    --moe-router-load-balancing-type aux_loss \
    --moe-router-topk 8 \
    --moe-token-dispatcher-type alltoall_seq \
    --no-gradient-accumulation-fusion \
    --norm-topk-prob \
    --normalization RMSNorm \
    --num-attention-heads 32 \
    --num-experts 128 \
    --num-layers 48 \
    --num-query-groups 4 \
    --padded-vocab-size 151936 \
    --pipeline-model-parallel-size 2 \
    --position-embedding-type rope \
    --qk-layernorm \
    --recompute-granularity full \
    --recompute-method uniform \
    --recompute-num-layers 1 \
    --seq-length 4096 \
    --sequence-parallel \
    --spec mindspeed_llm.tasks.models.spec.qwen3_spec layer_spec \
    --swiglu \
    --tensor-model-parallel-size 1 \
    --transformer-impl local \
    --untie-embeddings-and-output-weights \
    --use-distributed-optimizer \
    --use-flash-attn \
    --use-fused-rmsnorm \
    --use-fused-rotary-pos-emb \
    --use-fused-swiglu \
    --use-mcore-models \
    --use-rotary-position-embeddings
