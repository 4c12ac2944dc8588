#!/bin/bash
# A made-up dense model in the manner of Megatron-LM's examples: arrays, defaults, conditions.

export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"4"}
CHECKPOINT_PATH=${1:-"checkpoints/dense"}
TOKENIZER=$2
PRECISION="fp8"

mkdir -p "$(dirname "$CHECKPOINT_PATH")"

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
)

MODEL_ARGS=(
    --num-layers 30
    --hidden-size 3072   # own width
    --num-attention-heads 24
    --seq-length 4096
    --max-position-embeddings 4096
    --decoder-first-pipeline-num-layers 7
    --decoder-last-pipeline-num-layers 5
    --swiglu
    --position-embedding-type rope
)

TRAINING_ARGS=(
    --micro-batch-size 2
    --global-batch-size 256
    --train-samples 1000000
    --bf16
)
if [[ "$PRECISION" == "fp8" ]]; then
    TRAINING_ARGS+=(
        "--fp8-format hybrid"
    )
fi
if [ -n "${WANDB_API_KEY}" ]; then
    TRAINING_ARGS+=(--wandb-project mine)
fi
[ -d "$CHECKPOINT_PATH" ] || echo "starts from scratch"

PARALLEL_ARGS=(
    --tensor-model-parallel-size 2
    --pipeline-model-parallel-size 4
    --use-distributed-optimizer
    --recompute-activations
)
LOGGING_ARGS=(--save "$CHECKPOINT_PATH" --save-interval 1000 --log-interval 10)
TRAINING_ARGS+=("${LOGGING_ARGS[@]}")

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${MODEL_ARGS[@]} \
    ${PARALLEL_ARGS[@]} \
    ${TRAINING_ARGS[@]} \
    --tokenizer-type GPT2BPETokenizer
