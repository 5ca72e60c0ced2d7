"""Pieces of a file, which a rank reads in order and hashes on the way, and sends to the ranks that share the file.

The reader receives from each of the others the spans of their pieces. It sends each piece in messages of at most
`MESSAGE_BYTES`, and a number ahead of each message: its bytes; 0 after the last one; or, if the reader failed, the
negative length of the reason, which follows. All ranks that share a file must exhaust their iterator, whatever happens.
"""

import io
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
import torch.distributed as dist

from mb_checkpoint.collectives import host_group
from mb_checkpoint.errors import CheckpointReadError, cause_of
from mb_checkpoint.formats.manifest import ContentHash, FileEntry
from mb_schema.file_names import path_inside

MESSAGE_BYTES = 4 << 20
MAX_REASON_BYTES = 1000

Span = tuple[int, int]
"""Offset and length."""


def read_pieces(
    directory: Path, *, like: FileEntry, spans: Sequence[Span], receivers: Mapping[int, int]
) -> Generator[io.BytesIO, None, FileEntry]:
    """Yield pieces of a file, and send other ranks theirs; return the entry of the file after its end.

    Args:
        directory: The checkpoint folder.
        like: Entry of the file in the manifest, with the algorithm of the checksum.
        spans: Pieces of this rank, in order.
        receivers: Rank -> number of its pieces.

    Raises:
        OSError: The file cannot be read, or ends within a piece; the receivers are notified.
        FileNameError: It is not in the folder.
    """
    file = _SentFile(like, receivers)
    try:
        with path_inside(directory, like.name).open("rb") as stream:
            own = set(spans)
            for offset, length in sorted(own.union(file.ranks_of)):
                file.skip(stream, offset - file.end)
                piece = io.BytesIO(bytes(length)) if (offset, length) in own else None
                file.read(stream, (offset, length), None if piece is None else piece.getbuffer())
                if piece is not None:
                    yield piece
            file.skip(stream, None)
    except Exception as error:
        file.abort(cause_of(error))
        raise
    file.finish()
    return file.entry


def receive_pieces(name: str, *, spans: Sequence[Span], reader: int) -> Iterator[io.BytesIO]:
    """Yield pieces of a file that another rank reads.

    Args:
        name: Name of the file.
        spans: Pieces of this rank, in order.
        reader: The rank that reads it.

    Raises:
        CheckpointReadError: It could not read the file.
    """

    def receive(tensor: torch.Tensor) -> torch.Tensor:
        dist.recv(tensor, reader, group=host_group())
        return tensor

    def next_length() -> int:
        length = int(receive(torch.zeros(1, dtype=torch.int64)))
        if length < 0:
            reason = bytes(receive(torch.zeros(-length, dtype=torch.uint8)).tolist()).decode(errors="replace")
            raise CheckpointReadError(f"rank {reader}, which reads {name} for this rank, failed: {reason}")
        return length

    dist.send(torch.tensor(spans, dtype=torch.int64), reader, group=host_group())
    for _, length in spans:
        piece = io.BytesIO(bytes(length))
        free = piece.getbuffer()
        while free:
            received = next_length()
            receive(torch.frombuffer(free[:received], dtype=torch.uint8))
            free = free[received:]
        yield piece
    next_length()


class _SentFile:
    """File that is read in order, hashed, and sent in part to other ranks."""

    def __init__(self, like: FileEntry, receivers: Mapping[int, int]) -> None:
        self._name = like.name
        self._content = ContentHash(like.algorithm)
        self._receivers = receivers
        self._sends: list[Any] = []
        self.ranks_of: dict[Span, list[int]] = {}
        """Piece -> the ranks that receive it."""
        for rank, count in receivers.items():
            spans = torch.zeros(count, 2, dtype=torch.int64)
            dist.recv(spans, rank, group=host_group())
            for offset, length in spans.tolist():
                self.ranks_of.setdefault((offset, length), []).append(rank)

    @property
    def entry(self) -> FileEntry:
        """Entry of the file, which has been read to its end."""
        return self._content.entry(self._name)

    @property
    def end(self) -> int:
        """Bytes read so far."""
        return self._content.size

    def skip(self, stream: BinaryIO, count: int | None) -> None:
        """Hash the next bytes; None: all of them."""
        while count is None or count > 0:
            chunk = stream.read(MESSAGE_BYTES if count is None else min(count, MESSAGE_BYTES))
            self._content.update(chunk)
            if not chunk:
                return
            count = None if count is None else count - len(chunk)

    def read(self, stream: BinaryIO, span: Span, into: memoryview | None) -> None:
        """Read a piece, and send it to the ranks that need it."""
        ranks, left = self.ranks_of.get(span, ()), span[1]
        while left:
            count = min(left, MESSAGE_BYTES)
            chunk = memoryview(bytearray(count)) if into is None else into[-left:][:count]
            if stream.readinto(chunk) != count:  # type: ignore[attr-defined]  # a buffered file has it
                raise OSError(f"{self._name}: ends at byte {self.end}, within a piece")
            self._content.update(chunk)
            left -= count
            if ranks:
                self._wait()  # for the chunk before, which was sent while this one was read
                length, data = torch.tensor([count]), torch.frombuffer(chunk, dtype=torch.uint8)
                self._send(ranks, length, data)

    def finish(self) -> None:
        """Send the end to all receivers."""
        self._send(list(self._receivers), torch.tensor([0]))
        self._wait()

    def abort(self, reason: str) -> None:
        """Send all receivers why there is nothing more; the failure is raised by the caller, and is the only one."""
        text = bytearray(reason.encode()[:MAX_REASON_BYTES])
        for rank in self._receivers:
            with suppress(RuntimeError):
                self._send([rank], torch.tensor([-len(text)]), torch.frombuffer(text, dtype=torch.uint8))
        with suppress(RuntimeError):
            self._wait()

    def _send(self, ranks: Sequence[int], *messages: torch.Tensor) -> None:
        self._sends += [
            dist.isend(message, rank, group=host_group()) for rank in ranks for message in messages
        ]

    def _wait(self) -> None:
        sends, self._sends = self._sends, []
        failures: list[RuntimeError] = []
        for send in sends:
            try:
                send.wait()
            except RuntimeError as error:
                failures.append(error)  # raised when no other send uses the buffer
        if failures:
            raise failures[0]
