"""Configuration section of the data loader. Standard library only."""

from dataclasses import dataclass
from typing import Literal

from mb_schema.sections import StrictFields
from mb_schema.value_types import reject_wrong_types


@dataclass(kw_only=True)
class DataloaderConfig(StrictFields):
    """Settings of the data loader. Every dataset section inherits these fields."""

    dataloader_type: Literal["single", "cyclic", "batch", "external"] | None = None
    """`single`: one epoch in the dataset's order. `cyclic`: endless epochs, each shuffled. `batch`: as `single`, but
    complete global batches, sorted by sample length. `external`: the dataset is an iterable of finished batches; its
    position is saved if its `iterable` has `save_state()` and `restore_state(state)`. None means `single`."""

    num_workers: int = 2
    """Worker processes of each loader; 0 loads in the training process."""

    data_sharding: bool = True
    """Accepted for compatibility; the loader always behaves as with False. The cyclic order is global over all ranks
    and identical for every data-parallel size. It is never split into one range per rank, as True does in Megatron's
    loader."""

    pin_memory: bool = True
    """Copy batches to page-locked memory. Has no effect without a GPU."""

    drop_last: bool = True
    """Drop the samples at the end of a single epoch that do not fill a micro-batch on every rank."""

    persistent_workers: bool = True
    """Keep worker processes alive between epochs. finalize() sets False if `num_workers` is 0."""

    trust_remote_code: bool | None = None
    """Allow a dataset from the Hugging Face Hub to run the code that it contains."""

    dataloader_save: str | None = None
    """Folder to which the position of an external loader is saved in addition to the checkpoint, in `iter_*`
    subfolders. None: saved in the checkpoint only."""

    dataloader_load: str | None = None
    """Folder from which the position of an external loader is loaded, in `iter_*` subfolders. None: loaded from the
    checkpoint."""

    def finalize(self) -> None:
        """Set `persistent_workers` to False if there are no workers.

        Raises:
            FieldTypeError: Values have a wrong type.
        """
        reject_wrong_types(self, path="dataset")
        if self.num_workers == 0:
            self.persistent_workers = False

    @property
    def is_packed(self) -> bool:
        """True if a sample holds several sequences; every pipeline stage then reads their boundaries."""
        return False

    @property
    def is_padded(self) -> bool:
        """True if a micro-batch holds `padding_mask`, which routers of experts on every pipeline stage read."""
        return False
