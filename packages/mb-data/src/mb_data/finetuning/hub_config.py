"""Fine-tuning data of the Hugging Face hub, and how rows become samples. Standard library only.

Names and defaults are Megatron-Bridge's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from mb_schema.sections import StrictFields


@dataclass(frozen=True, slots=True, kw_only=True)
class HubPreset:
    """Dataset of the hub whose rows become samples with a prompt and a completion."""

    path: str
    subset: str | None = None
    split: str = "train"
    prompt: str | None = None
    """Text with columns in braces; None: the rows are conversations."""
    completion: str = ""
    """Column of the answer; of a list of answers, the first."""


PRESETS: Mapping[str, HubPreset] = MappingProxyType(
    {
        "squad": HubPreset(
            path="rajpurkar/squad",
            prompt="Context: {context} Question: {question} Answer:",
            completion="answers.text",
        ),
        "gsm8k": HubPreset(
            path="openai/gsm8k", subset="main", prompt="Question: {question} Answer:", completion="answer"
        ),
        "openmathinstruct2": HubPreset(
            path="nvidia/OpenMathInstruct-2",
            split="train_1M",
            prompt="Problem: {problem} Solution:",
            completion="generated_solution",
        ),
        "tulu3": HubPreset(path="allenai/tulu-3-sft-mixture"),
    }
)
"""Name of a dataset -> where it is, and the form of its rows."""


@dataclass(kw_only=True)
class HFDatasetSourceConfig(StrictFields):
    """A split of a dataset of the hub, or of a folder or file that `datasets.load_dataset` reads."""

    dataset_name: str | None = None
    """Name in `PRESETS`."""
    path_or_dataset: str | None = None
    """Any other dataset, whose rows have the columns of the preprocessing, or `messages`."""
    split: str | None = None
    """Split, or part of one, such as "train[:90%]"; None: that of the preset, or train."""
    subset: str | None = None
    """Configuration of the dataset; None: its only one."""
    load_kwargs: dict[str, Any] | None = None
    """Further arguments of `datasets.load_dataset`."""
    schema_adapter: str | None = None
    """Name in `PRESETS` with a prompt: rows of `path_or_dataset` have the columns of this dataset."""


@dataclass(kw_only=True)
class ChatSFTPreprocessingConfig(StrictFields):
    """Rows are conversations, which the tokenizer's chat template renders."""

    loss_mode: Literal["assistant", "full"] = "assistant"
    """Tokens of the loss: the messages of the assistant, or all."""

    def options(self) -> dict[str, Any]:
        """Return the fields of `FinetuningOptions`."""
        answers = {} if self.loss_mode == "assistant" else {"answer_only_loss": False}
        return {"chat": True, "use_hf_tokenizer_chat_template": True, **answers}


@dataclass(kw_only=True)
class PromptCompletionSFTPreprocessingConfig(StrictFields):
    """Rows are a prompt and a completion."""

    prompt_column: str = "prompt"
    """Column of the prompt."""
    completion_column: str = "completion"
    """Column of the answer."""
    prompt_template: str = "{prompt}"
    """Text around the prompt."""
    separator: str = ""
    """Text between prompt and answer."""
    loss_mode: Literal["completion", "full"] = "completion"
    """Tokens of the loss: the answer, or all."""
    strip_whitespace: bool = True
    """Remove spaces around prompt and answer when rows of the hub are read; lines of a file are read as they are."""
    add_bos: bool = False
    """Begin every sample with the tokenizer's beginning-of-sequence token."""
    add_sep: bool = False
    """Insert the token `dataset_kwargs.sep_id` between prompt and answer."""
    add_eos: bool = True
    """Append the end-of-document token to every answer."""
    truncation_method: Literal["left", "right"] = "right"
    """Side on which a long prompt is truncated."""

    def options(self) -> dict[str, Any]:
        """Return the fields of `FinetuningOptions`."""
        prompt = self.prompt_template.replace("{prompt}", f"{{{self.prompt_column}}}")
        return {
            "prompt_template": f"{prompt}{self.separator}{{{self.completion_column}}}",
            "label_key": self.completion_column,
            "truncation_field": self.prompt_column,
            "truncation_method": self.truncation_method,
            "answer_only_loss": self.loss_mode == "completion",
            "add_bos": self.add_bos,
            "add_sep": self.add_sep,
            "add_eos": self.add_eos,
        }
