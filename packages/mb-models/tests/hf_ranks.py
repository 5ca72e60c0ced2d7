"""Functions that ranks run in tests of the Hugging Face format: load a part of a model, compare, compute."""

import dataclasses

import torch
from megatron.core import dist_checkpointing
from tiny_training import start

from mb_host.megatron.families import HOST_LAYERS
from mb_models.evaluation.generation import all_logits
from mb_models.evaluation.sampling_options import SamplingOptions
from mb_models.evaluation.scoring import BatchedModel, TextRequest
from mb_models.families import family_of
from mb_models.gpt.transformer import DTYPES
from mb_models.hf.config_json import read_config, section_of
from mb_models.hf.load import load_hf_weights

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 64,
}
TOKENS = torch.arange(40).reshape(2, 20) * 7 % 96


def build(section, groups, **options):
    family = family_of(section)
    layers = HOST_LAYERS[family.name]
    provider = family.provider(section, layer_spec=layers, device=torch.device("cpu"), **options)
    chunks = provider.provide_chunks(groups)
    return chunks[0].to(DTYPES[section.params_dtype]).eval()


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def scores_on_this_rank(folder, layout, pairs):
    """Load a folder into a part of a model that returns its part of the logits; return scores and a greedy text."""
    groups = start(layout)
    section = dataclasses.replace(
        section_of(read_config(folder), dtype="float32"), transformer_impl="local", **layout
    )
    chunk = build(section, groups)
    load_hf_weights([chunk], folder, pg_collection=groups)
    size = {"vocab_size": SMALL["vocab_size"], "context_length": 64, "batch_size": 2}
    model = BatchedModel.of(all_logits(chunk), **size)
    request = TextRequest(prompt=pairs[0][0], options=SamplingOptions(max_new_tokens=5))
    return model.score(pairs), model.continue_texts([request])


def losses_on_this_rank(folder, layout, rows, *, groups=None):
    """Load a folder into a part of a model with padding up to `rows`; return the losses and the padding's gradient."""
    groups = groups or start(layout)
    section = dataclasses.replace(
        section_of(read_config(folder), dtype="float32"),
        transformer_impl="local",
        vocab_size=rows,
        unpadded_vocab_size=SMALL["vocab_size"],
        **layout,
    )
    chunk = build(section, groups)
    load_hf_weights([chunk], folder, pg_collection=groups)
    losses = chunk(TOKENS, torch.arange(20).expand(2, -1), None, labels=TOKENS.roll(-1, 1))
    losses.mean().backward()
    share = rows // groups.tp.size()
    padding = chunk.shared_embedding_or_output_weight().grad[
        max(0, SMALL["vocab_size"] - share * groups.tp.rank()) :
    ]
    return losses.detach(), float(padding.abs().sum())


def on_this_rank(folder, checkpoint, layout):
    """Load a folder into a part of the model; return whether it equals a checkpoint's, its size, and the logits."""
    groups = start(layout)
    section = dataclasses.replace(
        section_of(read_config(folder), dtype="float32"),
        transformer_impl="local",
        parallel_output=False,
        **layout,
    )
    chunk, other = build(section, groups), build(section, groups)
    load_hf_weights([chunk], folder, pg_collection=groups)
    other.load_state_dict(dist_checkpointing.load(other.sharded_state_dict(), checkpoint))
    equal = same(dict(chunk.named_parameters()), dict(other.named_parameters()))
    size = sum(value.numel() for value in chunk.parameters())
    with torch.no_grad():
        if not chunk.pre_process:
            hidden = torch.empty(20, 2, SMALL["hidden_size"])
            torch.distributed.recv(hidden, src=0)
            chunk.set_input_tensor(hidden)
        output = chunk(TOKENS, torch.arange(20).expand(2, -1), None)
        if not chunk.post_process:
            torch.distributed.send(output.contiguous(), dst=1)
    return equal, size, output
