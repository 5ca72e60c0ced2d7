"""Storage that fsspec reaches: S3, Google Cloud Storage, Azure and others. Requires the extra `storage`; no torch."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from mb_checkpoint.errors import StorageError
from mb_checkpoint.storage.storage import CHUNK_BYTES, chunks_of, storage_errors


class FsspecStorage:
    """Storage below a URL.

    Credentials come from the environment and the configuration files of the provider.

    Args:
        url: URL, such as `s3://bucket/run`.
        options: Arguments of the file system, such as `endpoint_url`.

    Raises:
        StorageError: fsspec, or the package for this kind of URL, is not installed, or rejects the options.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._url = url.rstrip("/")
        try:
            open_url = import_module("fsspec.core").url_to_fs
            # A separate instance, without a cache of listings: another process may write at any time.
            opened = open_url(self._url, skip_instance_cache=True, use_listings_cache=False, **options)
        except ImportError as error:
            raise StorageError(
                f"{url}: a package for this kind of URL is missing ({error}). For S3 install mb-checkpoint[storage]; "
                "for other kinds install fsspec and the named package."
            ) from error
        except (ValueError, TypeError) as error:
            raise StorageError(f"{url}: {error}. Correct the URL or the options.") from error
        self._files: Any = opened[0]
        self._root = str(opened[1]).rstrip("/")

    def put(self, source: Path, name: str) -> None:
        """See `storage.Storage`."""
        with storage_errors(self._url, f"cannot store {name}"):
            self._files.put_file(str(source), f"{self._root}/{name}")

    def read(self, name: str) -> Iterator[bytes] | None:
        """See `storage.Storage`."""
        with storage_errors(self._url, f"cannot read {name}"):
            try:
                stream = self._files.open(f"{self._root}/{name}", "rb", block_size=CHUNK_BYTES)
            except FileNotFoundError:
                return None
        return chunks_of(stream, self._url, name)

    def sizes(self, prefix: str = "") -> Mapping[str, int]:
        """See `storage.Storage`."""
        with storage_errors(self._url, "cannot be listed"):
            start = len(self._root) + 1
            listing = self._files.find(f"{self._root}/{prefix}".rstrip("/"), detail=True)
            return {name[start:]: int(info["size"]) for name, info in listing.items()}

    def delete(self, name: str) -> None:
        """See `storage.Storage`."""
        with storage_errors(self._url, f"cannot delete {name}"):
            try:
                self._files.rm_file(f"{self._root}/{name}")
            except FileNotFoundError:
                return
