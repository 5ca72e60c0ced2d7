"""Arguments of a small run of Megatron-LM on the CPU, and its losses in the form in which it prints them."""

FLAGS = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 --lr 1e-3 "
    "--min-lr 1e-4 --lr-decay-style cosine --lr-warmup-iters 2 --micro-batch-size 2 --global-batch-size 8 "
    "--train-iters 9 --eval-iters 2 --eval-interval 3 --split 90,5,5 --tokenizer-type NullTokenizer --vocab-size 64 "
    "--no-create-attention-mask-in-dataloader --log-interval 1 --num-workers 0 --make-vocab-size-divisible-by 8"
)
HOST = (
    "--transformer-impl local --no-gradient-accumulation-fusion --no-masked-softmax-fusion --no-bias-dropout-fusion "
    "--no-bias-gelu-fusion --no-persist-layer-norm --no-rope-fusion"
)


def as_printed(found):
    return {step: f"{loss:.6E}" for step, loss in found.items()}
