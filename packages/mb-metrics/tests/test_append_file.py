"""Files on a disk that is full for a while: whole pieces only, and nothing is lost."""

import io
import json
import shutil
from pathlib import Path
from threading import Lock
from unittest.mock import Mock

import pytest

from mb_metrics.sinks.append_file import MAX_KEPT, AppendFile, LineFile


class Disk:
    """A disk with a number of free bytes; None: without a limit. Only writes of `AppendFile` count."""

    def __init__(self, monkeypatch):
        self.free = None
        self.writing = Lock()
        real = Path.open

        def limited(path, mode="r", buffering=-1, **options):
            file = real(path, mode, buffering, **options)
            return Limited(file, self) if mode in ("ab", "a+b") and buffering == 0 else file

        monkeypatch.setattr(Path, "open", limited)


class Limited:
    """A file on such a disk: writes what fits, as a file system does."""

    def __init__(self, file, disk):
        self._file, self._disk = file, disk

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def write(self, content):
        with self._disk.writing:  # files are written by several threads
            if self._disk.free is None:
                return self._file.write(content)
            if self._disk.free == 0:
                raise OSError(28, "No space left on device")
            written = self._file.write(content[: self._disk.free])
            self._disk.free -= written
            return written


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


def test_a_piece_that_does_not_fit_leaves_no_part(disk, tmp_path):
    file = AppendFile(tmp_path / "file")
    file.append(b"one\n")
    disk.free = 2
    with pytest.raises(OSError, match="No space left"):
        file.append(b"two\n")
    assert (tmp_path / "file").read_bytes() == b"one\n"
    disk.free = None
    file.append(b"three\n")
    file.fsync()
    file.close()
    assert (tmp_path / "file").read_bytes() == b"one\nthree\n"


def test_a_write_that_makes_no_progress_is_an_error(disk, tmp_path, monkeypatch):
    file = AppendFile(tmp_path / "file")
    monkeypatch.setattr(Limited, "write", lambda _self, _content: 0)
    with pytest.raises(OSError, match="no progress"):
        file.append(b"one\n")


def test_lines_are_written_when_there_is_space_again(disk, tmp_path):
    warnings = []
    file = LineFile(tmp_path / "log.txt", warn=warnings.append)
    file.append("one")
    disk.free = 3
    file.append("two")
    file.append("three\nfour")  # the failure is reported once
    file.close()
    assert warnings == [
        f"{tmp_path}/log.txt: no space left on device; its lines are kept in memory and written when that is possible",
        f"{tmp_path}/log.txt: 3 lines were not written",
    ]
    disk.free = None
    file.append("five")
    file.close()
    assert len(warnings) == 2
    assert (tmp_path / "log.txt").read_text() == "one\ntwo\nthree\nfour\nfive\n"


def test_the_number_of_kept_lines_is_limited(disk, tmp_path):
    warnings = []
    file = LineFile(tmp_path / "log.txt", warn=warnings.append)
    disk.free = 0
    file._kept.extend([b"line\n"] * (MAX_KEPT - 1))
    file.append("line", "line", "line")
    file.close()
    assert warnings == [f"{tmp_path}/log.txt: {MAX_KEPT + 2} lines were not written"]
    disk.free = None
    file.close()
    assert warnings[1:] == [f"{tmp_path}/log.txt: 2 lines were not written"]


def test_a_folder_that_was_deleted_and_made_again_receives_the_lines(tmp_path):
    folder, warnings = tmp_path / "run", []
    folder.mkdir()
    file = LineFile(folder / "log.txt", warn=warnings.append)
    folder.rmdir()
    file.append("one")
    assert warnings[0].startswith(f"{folder}/log.txt: no such file or directory; ")
    folder.mkdir()
    file.append("two")
    assert (folder / "log.txt").read_text() == "one\ntwo\n"


def test_a_full_disk_does_not_stop_the_output_of_a_rank(disk, tmp_path, capsys):
    pytest.importorskip("rich", reason="needs mb-metrics[cli]")
    from mb_metrics.run.rank_console import RankConsole

    console = RankConsole(stream=io.StringIO())
    console.open_log(tmp_path / "log.txt")
    disk.free = 0
    console.print("one")
    console.print("two")
    assert capsys.readouterr().err.count("warning: ") == 1
    disk.free = None
    console.print("three")
    console.close()
    assert (tmp_path / "log.txt").read_text() == "one\ntwo\nthree\n"
    disk.free = 0
    console.open_log(tmp_path / "log.txt")
    console.print("four")
    console.close()
    assert f"warning: {tmp_path}/log.txt: 1 lines were not written" in capsys.readouterr().err


def test_tensorboard_and_jsonl_continue_after_a_full_disk(disk, tmp_path):
    pytest.importorskip("tensorboard")
    from test_tensorboard import scalars

    from mb_metrics import BackgroundSink, JsonlSink, Metrics, TensorBoardSink

    tensorboard = BackgroundSink(TensorBoardSink(tmp_path / "tb"), retry_seconds=0.01)
    rows = tmp_path / "metrics.jsonl"
    with Metrics([tensorboard, JsonlSink(rows)], log_interval=1) as metrics:
        for step in range(1, 31):
            if step == 10:
                disk.free = 100
            if step == 20:
                disk.free = None
            metrics.record(step, {"lm loss": float(step)})
    assert [json.loads(line)["step"] for line in rows.read_text().splitlines()] == [*range(1, 31), 30]
    assert scalars(tmp_path / "tb")["lm loss"] == [(step, float(step)) for step in range(1, 31)]
    assert not any(failure.dropped for failure in tensorboard.failures)


def test_a_file_that_two_writers_share_keeps_the_lines_of_both(tmp_path, caplog):
    path = tmp_path / "file"
    files = [AppendFile(path) for _ in range(2)]
    for content in (b"one\n", b"two\n", b"three\n"):
        for file in files:
            file.append(content)
    assert path.read_bytes() == b"one\none\ntwo\ntwo\nthree\nthree\n"
    assert len(caplog.messages) == len(files)
    assert all("lines of all are kept" in message for message in caplog.messages)


def test_a_file_that_is_emptied_is_continued(tmp_path):
    path = tmp_path / "file"
    file = AppendFile(path)
    file.append(b"before\n")
    path.write_bytes(b"")
    file.append(b"after\n")
    assert path.read_bytes() == b"after\n"


def test_remains_of_a_piece_are_removed_before_the_next(disk, tmp_path, monkeypatch):
    file = AppendFile(tmp_path / "file")
    file.append(b"one\n")
    disk.free = 2
    with monkeypatch.context() as broken:
        broken.setattr(Limited, "truncate", Mock(side_effect=OSError(5, "Input/output error")), raising=False)
        with pytest.raises(OSError, match="No space left"):
            file.append(b"two\n")
    assert (tmp_path / "file").read_bytes() == b"one\ntw"
    disk.free = None
    file.append(b"three\n")
    assert (tmp_path / "file").read_bytes() == b"one\nthree\n"


@pytest.mark.parametrize("lose", [shutil.rmtree, lambda folder: folder.rename(folder.with_name("moved"))])
def test_a_file_that_is_deleted_or_moved_with_its_folder_is_written_again(tmp_path, caplog, lose):
    path = tmp_path / "run" / "file"
    path.parent.mkdir()
    file = AppendFile(path)
    file.append(b"before\n")
    lose(path.parent)
    file.append(b"after\n")
    file.append(b"end\n")
    file.close()
    assert path.read_bytes() == b"before\nafter\nend\n"
    assert caplog.messages == [
        f"{path}: was deleted or moved while the run writes it; it is written again, with all its lines"
    ]


def test_a_copy_that_does_not_fit_leaves_no_part_and_is_made_later(tmp_path, monkeypatch):
    path = tmp_path / "file"
    file = AppendFile(path)
    file.append(b"one\n")
    path.unlink()
    with monkeypatch.context() as full_disk:
        full_disk.setattr("os.pread", Mock(side_effect=[b"on", OSError(28, "No space left on device")]))
        with pytest.raises(OSError, match="No space left"):
            file.append(b"two\n")
    assert not path.exists()
    file.append(b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"


def test_the_file_of_another_process_is_not_replaced(tmp_path):
    path = tmp_path / "file"
    file = AppendFile(path)
    file.append(b"one\n")
    path.unlink()
    path.write_bytes(b"of another run\n")
    with pytest.raises(FileExistsError):
        file.append(b"two\n")
    assert path.read_bytes() == b"of another run\n"


@pytest.mark.parametrize("lose", [shutil.rmtree, lambda folder: folder.rename(folder.with_name("moved"))])
def test_lines_of_a_log_that_is_deleted_or_moved_are_written_again(tmp_path, lose):
    """By the first of the ranks that write it; the others continue with its copy."""
    path, warnings = tmp_path / "run" / "log.txt", []
    path.parent.mkdir()
    log, of_another_rank = (LineFile(path, warn=warnings.append) for _ in range(2))
    log.append("one")
    of_another_rank.append("[rank 1] one")
    lose(path.parent)
    log.append("two")
    of_another_rank.append("[rank 1] two")
    of_another_rank.close()
    assert path.read_text() == "one\n[rank 1] one\ntwo\n[rank 1] two\n"
    assert warnings == []
    path.unlink()
    path.write_text("of another run\n")
    log.append("three")
    log.close()
    assert path.read_text() == "of another run\n"
    assert len(warnings) == 2  # that its lines are kept, and at the end that one was not written


def test_a_log_without_a_line_is_not_opened(tmp_path):
    log = LineFile(tmp_path / "log.txt", warn=pytest.fail)
    log.append()
    log.close()
    assert list(tmp_path.iterdir()) == []
