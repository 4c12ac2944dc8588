#!/bin/bash
# A made-up mixture of experts in the manner of MindSpeed-LLM's examples.

export CUDA_DEVICE_MAX_CONNECTIONS=1
export CPU_AFFINITY_CONF=1
export TASK_QUEUE_ENABLE=2
export HCCL_CONNECT_TIMEOUT=1800
export MY_OWN_SWITCH=on

NPUS_PER_NODE=16
NNODES=8
NODE_RANK=${NODE_RANK:-0}
MASTER_ADDR=localhost # the first node
WORLD_SIZE=$(($NPUS_PER_NODE*$NNODES))

DATA_PATH="where the data is"
SAVE_DIR="where checkpoints go"

TP=2
PP=4
EP=16
VPP_LAYERS=2
SEQ=8192
MBS=1
GBS=$((MBS * 512))

DISTRIBUTED_ARGS="
    --nproc_per_node $NPUS_PER_NODE \
    --nnodes $NNODES \
    --node_rank $NODE_RANK \
    --master_addr $MASTER_ADDR
"

MOE_ARGS="
    --num-experts 64 \
    --moe-router-topk 6 \
    --moe-ffn-hidden-size 1024 \
    --moe-shared-expert-intermediate-size 2048 \
    --moe-grouped-gemm \
    --moe-token-dispatcher-type alltoall \
    --moe-alltoall-overlap-comm \
    --moe-permute-fusion \
    --first-k-dense-replace 1 \
    --moe-layer-freq 1 \
    --moe-router-load-balancing-type aux_loss
"

MEM_ARGS="
    --recompute-granularity full \
    --recompute-method block \
    --recompute-num-layers 1 \
    --swap-optimizer \
"

GPT_ARGS="
    --use-mcore-models \
    --tensor-model-parallel-size ${TP} \
    --pipeline-model-parallel-size ${PP} \
    --expert-model-parallel-size ${EP} \
    --expert-tensor-parallel-size 1 \
    --num-layers-per-virtual-pipeline-stage ${VPP_LAYERS} \
    --noop-layers 22,23 \
    --sequence-parallel \
    --num-layers 24 \
    --hidden-size 2048 \
    --ffn-hidden-size 6144 \
    --num-attention-heads 16 \
    --group-query-attention \
    --num-query-groups 4 \
    --kv-channels 128 \
    --qk-layernorm \
    --seq-length ${SEQ} \
    --max-position-embeddings ${SEQ} \
    --micro-batch-size ${MBS} \
    --global-batch-size ${GBS} \
    --vocab-size 100000 \
    --untie-embeddings-and-output-weights \
    --position-embedding-type rope \
    --normalization RMSNorm \
    --swiglu \
    --use-flash-attn \
    --use-fused-swiglu \
    --use-distributed-optimizer \
    --overlap-grad-reduce \
    --train-iters 1000 \
    --lr 1.0e-4 \
    --some-flag-of-ours 1 2 \
    --bf16
"

python -m torch.distributed.launch $DISTRIBUTED_ARGS pretrain_gpt.py \
    $GPT_ARGS \
    $MOE_ARGS \
    $MEM_ARGS \
    --data-path $DATA_PATH \
    --save $SAVE_DIR --save-interval 1000 \
    --distributed-backend nccl | tee logs/train.log
