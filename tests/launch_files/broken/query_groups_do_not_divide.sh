#!/bin/bash
# 32 heads in 6 groups
export CUDA_DEVICE_MAX_CONNECTIONS=1

NPUS_PER_NODE=8
NNODES=16
NODE_RANK=${NODE_RANK:-0}

torchrun --nproc_per_node $NPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK --master_addr localhost pretrain_gpt.py \
    --use-mcore-models \
    --num-layers 32 \
    --hidden-size 2048 \
    --ffn-hidden-size 6144 \
    --num-attention-heads 32 \
    --group-query-attention \
    --num-query-groups 6 \
    --kv-channels 128 \
    --seq-length 4096 \
    --max-position-embeddings 4096 \
    --vocab-size 96000 \
    --untie-embeddings-and-output-weights \
    --disable-bias-linear \
    --swiglu \
    --normalization RMSNorm \
    --position-embedding-type rope \
    --num-experts 96 \
    --moe-router-topk 6 \
    --moe-ffn-hidden-size 1024 \
    --moe-grouped-gemm \
    --moe-token-dispatcher-type alltoall \
    --moe-permute-fusion \
    --moe-router-load-balancing-type aux_loss \
    --tensor-model-parallel-size 2 \
    --pipeline-model-parallel-size 4 \
    --expert-model-parallel-size 8 \
    --expert-tensor-parallel-size 1 \
    --sequence-parallel \
    --micro-batch-size 1 \
    --global-batch-size 512 \
    --use-distributed-optimizer \
    --use-flash-attn \
    --use-fused-swiglu \
    --recompute-granularity full \
    --recompute-method block \
    --recompute-num-layers 4 \
    --lr 1e-4 \
    --min-lr 1e-5 \
    --train-iters 1000 \
    --bf16 \
    --mock-data \
    --tokenizer-type NullTokenizer \
    --distributed-backend nccl
