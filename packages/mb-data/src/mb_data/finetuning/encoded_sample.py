"""Token ids of a fine-tuning sample with the mask of its loss. Standard library only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedSample:
    """Token ids of a sample, and a mask of those that the loss covers."""

    ids: list[int]
    loss_mask: list[bool]

    def first(self, count: int) -> "EncodedSample":
        """Return the sample of the first `count` ids."""
        return EncodedSample(ids=self.ids[:count], loss_mask=self.loss_mask[:count])
