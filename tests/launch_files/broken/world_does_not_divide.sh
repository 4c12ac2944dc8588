#!/bin/bash
# 3 stages x 2 on 128 ranks
export CUDA_DEVICE_MAX_CONNECTIONS=1

NPUS_PER_NODE=8
NNODES=16
NODE_RANK=${NODE_RANK:-0}

torchrun --nproc_per_node $NPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK --master_addr localhost pretrain_gpt.py \
    --use-mcore-models \
    --num-layers 30 \
    --hidden-size 2048 \
    --ffn-hidden-size 6144 \
    --num-attention-heads 32 \
    --group-query-attention \
    --num-query-groups 8 \
    --kv-channels 128 \
    --seq-length 4096 \
    --max-position-embeddings 4096 \
    --vocab-size 96000 \
    --untie-embeddings-and-output-weights \
    --disable-bias-linear \
    --swiglu \
    --normalization RMSNorm \
    --position-embedding-type rope \
    --tensor-model-parallel-size 2 \
    --pipeline-model-parallel-size 3 \
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
