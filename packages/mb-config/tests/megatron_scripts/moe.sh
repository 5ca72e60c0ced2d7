# A mixture of experts in bfloat16 with grouped GEMMs and overlapped communication.
OPTIONS=" \
  --bf16 --swiglu --disable-bias-linear --untie-embeddings-and-output-weights \
  --normalization RMSNorm --position-embedding-type rope --rotary-base 1000000 --no-masked-softmax-fusion \
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
  --group-query-attention --num-query-groups 8 --seq-length 4096 --max-position-embeddings 32768 \
  --attention-dropout 0.0 --hidden-dropout 0.0 --init-method-std 0.01 \
  --num-experts 8 --moe-router-topk 2 --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2 \
  --moe-grouped-gemm --moe-token-dispatcher-type alltoall --overlap-param-gather --overlap-grad-reduce \
  --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4 \
  --expert-model-parallel-size 8 --use-distributed-optimizer --sequence-parallel \
  --micro-batch-size 1 --global-batch-size 256 --lr 1e-4 --train-iters 500000 --lr-decay-iters 320000 \
  --lr-decay-style cosine --min-lr 1.0e-5 --weight-decay 0.1 --lr-warmup-iters 500 --clip-grad 1.0 \
  --tokenizer-type HuggingFaceTokenizer --tokenizer-model mixtral --use-mcore-models --use-flash-attn \
  --no-load-optim --no-load-rng --log-throughput"
python pretrain_gpt.py $OPTIONS --data-path 0.3 first_text_document 0.7 second_text_document --split 99990,8,2
