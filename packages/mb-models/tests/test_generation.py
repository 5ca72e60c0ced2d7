"""Text generation: greedy and sampled tokens, the window, padding rows and the stop token."""

import pytest
import torch

from mb_models import GPTModelConfig, ModelConfigError, T5ModelConfig
from mb_models.evaluation.generation import PromptError, generate
from mb_models.families import GPT, require_text_family
from mb_models.training.unsharded import unshard


class CountsUp(torch.nn.Module):
    """A model with 10 tokens that predicts the successor of the last token, and records its inputs."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.windows = []

    def forward(self, tokens, position_ids, attention_mask):
        assert attention_mask is None
        assert position_ids.tolist() == [list(range(tokens.shape[1]))]
        self.windows.append(tokens[0].tolist())
        return 50.0 * torch.nn.functional.one_hot((tokens + 1) % 10, 10)


def follow(prompt, *, model=None, max_new_tokens=4, vocab_size=10, context_length=8, **choices):
    bounds = {"max_new_tokens": max_new_tokens, "vocab_size": vocab_size, "context_length": context_length}
    return list(generate(model or CountsUp(), prompt, **bounds, **choices))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_each_token_follows_the_last(temperature):
    random = torch.Generator().manual_seed(1)
    assert follow([3], temperature=temperature, generator=random) == [4, 5, 6, 7]


def test_the_stop_token_ends_the_text_and_is_not_part_of_it():
    assert follow([3], stop_token=6) == [4, 5]


def test_the_input_is_limited_to_the_last_tokens():
    model = CountsUp()
    follow([1, 2], model=model, max_new_tokens=3, context_length=3, temperature=0.0)
    assert model.windows == [[1, 2], [1, 2, 3], [2, 3, 4]]


def test_padding_rows_are_never_sampled():
    assert 9 not in follow([8], max_new_tokens=1, vocab_size=9, temperature=0.0)


def test_an_empty_prompt_is_rejected():
    with pytest.raises(PromptError, match="prompt: is empty"):
        follow([])


def test_only_families_that_continue_text_are_sampled():
    size = {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1}
    assert require_text_family(GPTModelConfig(**size)) is GPT
    with pytest.raises(ModelConfigError, match="a T5ModelConfig continues no text"):
        require_text_family(T5ModelConfig(**size))


@pytest.mark.parametrize(
    ("trained", "processes", "replicas", "size"), [(4, 2, False, 2), (2, 8, True, 2), (1, 3, True, 1)]
)
def test_processes_keep_the_tensor_parallelism_of_training_or_a_divisor(trained, processes, replicas, size):
    section = GPTModelConfig(
        num_layers=1, hidden_size=8, num_attention_heads=4, tensor_model_parallel_size=trained
    )
    assert unshard(section, processes=processes, replicas=replicas).tensor_model_parallel_size == size


def test_processes_that_cannot_divide_a_model_are_rejected():
    section = GPTModelConfig(num_layers=1, hidden_size=8, num_attention_heads=4, tensor_model_parallel_size=2)
    with pytest.raises(ModelConfigError, match="trained with 2 cannot be divided among 4 processes"):
        unshard(section, processes=4)
