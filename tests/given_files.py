"""Files that pages of the documentation take as given, small: a Qwen3 of Hugging Face, conversations, documents."""

import json

import tokenizers
import torch
import transformers

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
)


def qwen3(folder):
    """Save a small random Qwen3 with an odd vocabulary, a tokenizer with a chat template and generation settings."""
    models, byte_level = tokenizers.models, tokenizers.pre_tokenizers.ByteLevel
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = byte_level(), tokenizers.decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=byte_level.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(["two and three is five"] * 9, trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(1)
    config = transformers.Qwen3Config(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=321,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=fast.eos_token_id,
    )
    model = transformers.Qwen3ForCausalLM(config)
    model.generation_config.repetition_penalty = 1.25
    model.save_pretrained(folder)


def conversations(folder):
    """Write sums as questions and answers."""
    folder.mkdir(parents=True)
    for name, first in (("training", 0), ("validation", 5)):
        rows = [
            [{"role": "user", "content": f"{a} + {a}?"}, {"role": "assistant", "content": f"{2 * a}"}]
            for a in range(first, 60, 2)
        ]
        text = "".join(json.dumps({"messages": row}) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text)


def documents(file):
    """Write documents of one sentence as JSON lines."""
    lines = (json.dumps({"text": f"{n} and {n} is {2 * n}. " * 20}) for n in range(400))
    file.write_text("".join(f"{line}\n" for line in lines))


def byte_tokenizer(file):
    """Write a tokenizer of bytes in the format of the library tokenizers."""
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = byte_level(), tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        special_tokens=["<|endoftext|>"], initial_alphabet=byte_level.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([], trainer)
    tokenizer.save(str(file))
