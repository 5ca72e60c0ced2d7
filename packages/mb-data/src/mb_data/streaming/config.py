"""Configuration section of a streamed Hugging Face dataset. Standard library only."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from mb_data.dataset_provider import BuiltInDatasetConfig
from mb_data.rules import check_section


@dataclass(kw_only=True)
class HuggingFaceStreamConfig(BuiltInDatasetConfig):
    """Section for the documents of a Hugging Face dataset, streamed and cut into sequences.

    Nothing is tokenized in advance. The documents are read in their order, each data-parallel rank its own part, again
    and again; a checkpoint stores the position of every rank, so that a resume with as many ranks is exact. There are
    no validation data: set `validation.eval_interval` to null. Requires the extra `streaming`.
    """

    builder: ClassVar[str] = "mb_data.streaming.hugging_face:build_stream"

    seq_length: int
    """Tokens in one sequence."""

    hf_dataset: str = "json"
    """Dataset for `datasets.load_dataset`: the folder of a dataset, its name on the hub, or a format such as json."""

    hf_subset: str | None = None
    """Configuration of the dataset; None: its only one."""

    hf_data_files: str | list[str] | None = None
    """Files of a format, as paths or patterns."""

    hf_split: str = "train"
    """Split whose documents are read."""

    text_key: str = "text"
    """Column of the text."""

    dataloader_type: Literal["external"] = "external"
    """Always external: the stream yields complete batches."""

    def finalize(self) -> None:
        """Compute the derived fields of the loader, and reject contradictions.

        Raises:
            ConfigError: The section violates rules; the message lists all of them.
        """
        check_section(self, section="dataset")
        super().finalize()
