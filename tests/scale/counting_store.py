"""Key-value store in memory that counts messages, keys and bytes; it behaves as `torch.distributed.TCPStore`."""

from collections import Counter
from collections.abc import Sequence


class CountingStore:
    """Store whose operations are counted: the requests that a TCPStore would serve, in one thread for all ranks.

    Args:
        data: Values; a second store with the same values counts apart, as another connection to one server.
    """

    def __init__(self, data: dict[str, bytes] | None = None) -> None:
        self.data: dict[str, bytes] = {} if data is None else data
        self.calls: Counter[str] = Counter()
        self.keys = 0
        self.bytes = 0

    @property
    def messages(self) -> int:
        """Number of requests."""
        return self.calls.total()

    def another_connection(self) -> "CountingStore":
        """Return a store with the same values and its own counters."""
        return CountingStore(self.data)

    def _count(self, call: str, keys: Sequence[str], *values: bytes) -> None:
        self.calls[call] += 1
        self.keys += len(keys)
        self.bytes += sum(map(len, keys)) + sum(map(len, values))

    def set(self, key: str, value: str | bytes, /) -> None:
        """Write a value."""
        self.data[key] = value.encode() if isinstance(value, str) else value
        self._count("set", [key], self.data[key])

    def get(self, key: str, /) -> bytes:
        """Return an existing value; a TCPStore would block."""
        self._count("get", [key], self.data[key])
        return self.data[key]

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """Return existing values in one request."""
        values = [self.data[key] for key in keys]
        self._count("multi_get", keys, *values)
        return values

    def check(self, keys: list[str], /) -> bool:
        """Return whether all keys exist."""
        self._count("check", keys)
        return all(key in self.data for key in keys)

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter, and return its new value."""
        value = int(self.data.get(key, b"0")) + amount
        self.data[key] = str(value).encode()
        self._count("add", [key], self.data[key])
        return value

    def append(self, key: str, value: str, /) -> None:
        """Append to a value."""
        self.data[key] = self.data.get(key, b"") + value.encode()
        self._count("append", [key], value.encode())

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Replace the expected value, "" for none; return the value after it, or `expected` without a value."""
        found = self.data.get(key)
        if (found is None and expected == "") or found == expected.encode():
            self.data[key] = desired.encode()
        value = self.data.get(key, expected.encode())
        self._count("compare_set", [key], value)
        return value

    def delete_key(self, key: str, /) -> bool:
        """Remove a key."""
        self._count("delete_key", [key])
        return self.data.pop(key, None) is not None
