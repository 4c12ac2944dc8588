#!/bin/bash
# Layout and kernels of Ascend/MindSpeed-LLM @ c77308a1 examples/mcore/deepseek3/pretrain_deepseek3_671b_4k_A3_ptd.sh, whose speed the
# table of docs/en/pytorch/features/README.md states; without data, optimizer and checkpoints.
export CUDA_DEVICE_MAX_CONNECTIONS=1
export CPU_AFFINITY_CONF=1
export TASK_QUEUE_ENABLE=2
export PYTORCH_NPU_ALLOC_CONF="expandable_segments:True"
export STREAMS_PER_DEVICE=32
torchrun --nproc_per_node 16 --nnodes 32 pretrain_gpt.py \
    --attention-dropout 0.0 \
    --bf16 \
    --context-parallel-algo ulysses_cp_algo \
    --context-parallel-size 1 \
    --disable-bias-linear \
    --expert-model-parallel-size 32 \
    --expert-tensor-parallel-size 1 \
    --ffn-hidden-size 18432 \
    --first-k-dense-replace 3 \
    --gemm-gradient-accumulation-fusion \
    --global-batch-size 3840 \
    --hidden-dropout 0.0 \
    --hidden-size 7168 \
    --kv-lora-rank 512 \
    --make-vocab-size-divisible-by 1 \
    --max-position-embeddings 163840 \
    --micro-batch-size 1 \
    --mla-fa-without-pad \
    --mla-mm-split \
    --moe-aux-loss-coeff 0.0001 \
    --moe-fb-overlap \
    --moe-ffn-hidden-size 2048 \
    --moe-grouped-gemm \
    --moe-layer-freq 1 \
    --moe-permutation-async-comm \
    --moe-permute-fusion \
    --moe-router-dtype fp32 \
    --moe-router-enable-expert-bias \
    --moe-router-group-topk 4 \
    --moe-router-load-balancing-type none \
    --moe-router-num-groups 8 \
    --moe-router-score-function sigmoid \
    --moe-router-topk 8 \
    --moe-router-topk-scaling-factor 2.5 \
    --moe-shared-expert-intermediate-size 2048 \
    --moe-token-dispatcher-type alltoall \
    --mtp-loss-scaling-factor 0.3 \
    --mtp-mem-efficient-logits \
    --mtp-num-layers 1 \
    --multi-latent-attention \
    --noop-layers 61,62,63 \
    --normalization RMSNorm \
    --num-attention-heads 128 \
    --num-experts 256 \
    --num-layers 64 \
    --padded-vocab-size 129280 \
    --pipeline-model-parallel-size 8 \
    --position-embedding-type rope \
    --q-lora-rank 1536 \
    --qk-head-dim 128 \
    --qk-layernorm \
    --qk-pos-emb-head-dim 64 \
    --recompute-granularity full \
    --recompute-method block \
    --recompute-num-layers 8 \
    --reset-attention-mask \
    --schedules-method dualpipev \
    --seq-aux \
    --seq-length 4096 \
    --sequence-parallel \
    --spec mindspeed_llm.tasks.models.spec.deepseek_spec layer_spec \
    --swap-optimizer \
    --swiglu \
    --tensor-model-parallel-size 2 \
    --transformer-impl local \
    --untie-embeddings-and-output-weights \
    --use-distributed-optimizer \
    --use-flash-attn \
    --use-fused-rmsnorm \
    --use-fused-rotary-pos-emb \
    --use-fused-swiglu \
    --use-mcore-models \
    --use-rotary-position-embeddings \
    --v-head-dim 128 \
    --vocab-size 129280
