"""Recipes of T5 on span corruption: the encoder reads text with masked spans, the decoder generates the spans."""

from mb_config.trainer_api import recipe
from mb_trainer.config import (
    ConfigContainer,
    SchedulerConfig,
    T5DatasetConfig,
    T5ModelConfig,
    T5TextCorpusConfig,
    TokenizerConfig,
    TrainingConfig,
    ValidationConfig,
)
from mb_trainer.recipes.gpt import TINY, gpt_tiny
from mb_trainer.recipes.pretraining import pretraining

SENTINELS = 100
"""Number of sentinel tokens, as in the published models: enough for an encoder of 1,800 tokens, which reads one for
each masked span of 3 out of 20 tokens."""


@recipe("T5, 2 M parameters, Python sources with gaps; under a minute on two CPU cores")
def t5_tiny() -> ConfigContainer:
    """Build a T5 of 2 million parameters on the Python standard library's sources, for two CPU cores."""
    config = gpt_tiny()
    config.train = TrainingConfig(train_iters=150, global_batch_size=16, micro_batch_size=16)
    config.validation = ValidationConfig(eval_interval=50, eval_iters=8)
    config.model = T5ModelConfig(
        num_layers=2,
        hidden_size=160,
        ffn_hidden_size=384,
        num_attention_heads=4,
        seq_length=128,
        decoder_seq_length=32,
        **TINY,
    )
    config.dataset = T5TextCorpusConfig(
        seq_length=128, decoder_seq_length=32, vocab_size=4096, dataloader_type="single", num_workers=0
    )
    config.tokenizer = TokenizerConfig(vocab_extra_ids=SENTINELS)
    config.checkpoint.save_interval = 50
    return config


@recipe("T5 base, 223 M parameters, 512 tokens read and 128 written; 8 GPUs and multiples", processes=8)
def t5_base() -> ConfigContainer:
    """Build T5 base for multiples of 8 GPUs: 222.9 million parameters, data parallel.

    The base model of Raffel et al. (2020): 12 layers each, width 768, 12 heads, an MLP of 3,072 with ReLU, RMSNorm, no
    biases, tied embeddings of 32,128 rows, 512 input and 114 target tokens, a million batches of 2,048 pairs. The
    original has 222,903,552 parameters. This model has 768 fewer, because positions are rotary instead of two tables
    of 32 relative positions for 12 heads, and 32,128 more, because Megatron Core's tied output layer has a bias. Adam
    with a different learning rate replaces Adafactor, and targets are padded to 128 tokens.
    """
    model = T5ModelConfig(
        num_layers=12,
        hidden_size=768,
        ffn_hidden_size=3072,
        num_attention_heads=12,
        position_embedding_type="rope",
        normalization="RMSNorm",
        activation_func="relu",
        add_bias_linear=False,
        hidden_dropout=0.1,
        attention_dropout=0.1,
        seq_length=512,
        decoder_seq_length=128,
        bias_dropout_fusion=True,
        cross_entropy_loss_fusion=True,
        calculate_per_token_loss=True,
    )
    config = pretraining(model, global_batch_size=2048, learning_rate=6e-4, train_iters=1_000_000)
    config.train.micro_batch_size = 32
    config.dataset = T5DatasetConfig(seq_length=512, decoder_seq_length=128, split="9999,8,2", num_workers=8)
    config.tokenizer = TokenizerConfig(
        tokenizer_type="NullTokenizer", vocab_size=32_000, vocab_extra_ids=SENTINELS
    )
    config.scheduler = SchedulerConfig(lr_decay_style="inverse-square-root", lr_warmup_iters=10_000)
    return config
