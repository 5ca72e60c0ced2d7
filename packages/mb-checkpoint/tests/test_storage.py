"""Copies of checkpoints in a storage: a folder, fsspec's memory, and S3; kills, damage, outages, and whole runs."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import complete_checkpoint
import pytest
import torch
from script_ranks import ScriptRanks
from torch import nn
from torch.distributed import HashStore

from mb_checkpoint import (
    CheckpointConfig,
    CheckpointNotFoundError,
    TorchCheckpointer,
    fetch_checkpoint,
    select_checkpoint,
    upload_checkpoint,
    verify_checkpoint,
)
from mb_checkpoint.errors import NoIntactCheckpointError, StorageError
from mb_checkpoint.formats.manifest import Manifest
from mb_checkpoint.save.commit import fsync_and_write_manifest
from mb_checkpoint.storage.checkpoints import (
    check_storage_writable,
    find_stored,
    list_stored,
    read_latest,
    set_latest,
    upload_share,
)
from mb_checkpoint.storage.mirror import complete_storage
from mb_checkpoint.storage.owner import claim_storage
from mb_checkpoint.storage.storage import open_storage
from mb_checkpoint.storage.uploader import Destination, StorageUploader, UploadRanks

EXAMPLE = Path(__file__).parents[1] / "examples" / "fsdp2_loop.py"
KILL = Path(__file__).with_name("storage_kill.py")


@pytest.fixture(scope="session")
def s3():
    pytest.importorskip("moto")
    pytest.importorskip("s3fs")
    import storage_server

    with storage_server.running() as server:
        yield server


@pytest.fixture
def aws(s3, monkeypatch):
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3


@pytest.fixture(params=["folder", "memory", "s3"])
def address(request, tmp_path):
    """Return the address of an empty storage."""
    if request.param == "folder":
        return str(tmp_path / "storage")
    if request.param == "memory":
        pytest.importorskip("fsspec")
        return f"memory://{tmp_path.name}"
    server = request.getfixturevalue("aws")
    return server.bucket(tmp_path.name.replace("_", "-").lower()) + "/run"


def steps(storage):
    return [each.step for each in list_stored(storage)]


def test_a_checkpoint_comes_back_as_it_was(address, tmp_path):
    saved = complete_checkpoint.save(tmp_path / "run", 10)
    (tmp_path / "run" / "nested").mkdir()
    storage = open_storage(address)
    assert find_stored(storage) is None
    done = upload_checkpoint(saved, storage)
    assert done.copied_bytes == done.total_bytes > 0
    assert upload_checkpoint(saved, storage).copied_bytes == 0  # it is there already
    fetched = fetch_checkpoint(open_storage(address), tmp_path / "copy")
    assert select_checkpoint(tmp_path / "copy").path == fetched
    assert verify_checkpoint(tmp_path / "copy") == {fetched: []}
    for file in saved.iterdir():
        assert (fetched / file.name).read_bytes() == file.read_bytes()


def test_old_checkpoints_and_unfinished_copies_are_deleted(address, tmp_path):
    storage = open_storage(address)
    file = tmp_path / "file"
    file.write_text("unfinished")
    storage.put(file, "iter_0000005.0123456789ab/__0_0.distcp")
    for step in (10, 20, 30, 40):
        done = upload_checkpoint(
            complete_checkpoint.save(tmp_path / "run", step), storage, keep=2, retain_interval=20
        )
        if step == 10:
            assert done.removed == ("iter_0000005.0123456789ab",)
    assert steps(storage) == [40, 30, 20]
    assert {name.partition(".")[0] for name in storage.sizes()} == {
        "latest",
        "run",
        "iter_0000020",
        "iter_0000030",
        "iter_0000040",
    }


def test_another_checkpoint_of_the_same_step_replaces_the_first(address, tmp_path):
    storage = open_storage(address)
    first = upload_checkpoint(complete_checkpoint.save(tmp_path / "run", 10), storage)
    other = complete_checkpoint.save(tmp_path / "run", 10, {"weight": torch.zeros(4)})
    second = upload_checkpoint(other, storage)
    assert second.removed == (first.folder,)
    assert [each.folder for each in list_stored(storage)] == [second.folder]


def test_the_step_that_latest_names_counts(address, tmp_path):
    """As the trackers of a folder do: later steps belong to another branch of the run."""
    storage = open_storage(address)
    folders = {
        step: upload_checkpoint(complete_checkpoint.save(tmp_path / "run", step), storage).folder
        for step in (10, 20, 30)
    }
    set_latest(storage, step=20, folder=folders[20])
    assert find_stored(storage).step == 20
    assert find_stored(storage, step=30).step == 30
    assert find_stored(storage, rejected=[folders[20]]).step == 10
    set_latest(storage, step=20, folder=None)
    assert find_stored(storage).step == 20
    damaged = tmp_path / "damaged"
    damaged.write_text("{")
    storage.put(damaged, "latest.json")
    assert read_latest(storage) == (None, None)
    assert find_stored(storage).step == 30


def test_a_listing_that_lags_hides_no_named_checkpoint(tmp_path):
    storage = open_storage(str(tmp_path / "storage"))
    upload_checkpoint(complete_checkpoint.save(tmp_path / "run", 10), storage)
    storage.sizes = lambda _prefix="": {}
    assert find_stored(storage).step == 10
    assert steps(storage) == [10]


def test_damage_in_the_storage_leads_to_the_older_checkpoint(address, tmp_path):
    storage = open_storage(address)
    for step in (10, 20):
        upload_checkpoint(complete_checkpoint.save(tmp_path / "run", step), storage)
    newest = find_stored(storage).folder
    torn = tmp_path / "torn"
    torn.write_bytes(b"torn")
    storage.put(torn, f"{newest}/__0_0.distcp")
    storage.delete(f"{newest}/train_state.pt")
    assert fetch_checkpoint(storage, tmp_path / "copy").name == "iter_0000010"
    with pytest.raises(
        NoIntactCheckpointError, match=r"__0_0.distcp differs from the manifest.*lacks train_state"
    ):
        fetch_checkpoint(storage, tmp_path / "copy", step=20)
    storage.put(torn, f"{newest}/manifest.json")
    assert steps(storage) == [10]
    with pytest.raises(CheckpointNotFoundError, match="no step 20; steps there: 10"):
        fetch_checkpoint(storage, tmp_path / "copy", step=20)


def kill_points(address, tmp_path, keep, ranks=1):
    """Kill a copy at every access; check that a checkpoint remains, and that the copy can be continued."""
    saved = {step: complete_checkpoint.save(tmp_path / "run", step) for step in (1, 2, 3)}
    count, number, problems = None, 0, []
    while count is None:
        for moment in ("before", "after"):
            where = f"{address}/{number}{moment}"
            storage = open_storage(where)
            for step in (1, 2):
                upload_checkpoint(saved[step], storage)
            command = [
                sys.executable,
                str(KILL),
                where,
                str(saved[3]),
                str(keep),
                str(number),
                moment,
                str(ranks),
            ]
            done = subprocess.run(
                command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": SOURCE}
            )
            if done.returncode == 0:
                count = json.loads(done.stdout)
                continue
            assert done.returncode == -signal.SIGKILL, done.stderr
            copy = fetch_checkpoint(storage, tmp_path / "copies" / f"{number}{moment}")
            if copy.name not in ("iter_0000002", "iter_0000003"):
                problems.append((number, moment, copy.name))
            upload_checkpoint(saved[3], storage, keep=keep)
            if find_stored(storage).step != 3 or steps(storage) != [3, 2, 1][:keep]:
                problems.append((number, moment, steps(storage)))
        number += 1
    return count, problems


SOURCE = str(Path(__file__).parents[1] / "src")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_copy_that_is_killed_at_any_access_loses_nothing(tmp_path, ranks):
    count, problems = kill_points(str(tmp_path / "storage"), tmp_path, keep=2, ranks=ranks)
    assert count > 10
    assert problems == []


@pytest.mark.matrix
def test_a_copy_to_s3_that_is_killed_at_any_access_loses_nothing(aws, tmp_path):
    count, problems = kill_points(aws.bucket("killed"), tmp_path, keep=2)
    assert count > 10
    assert problems == []


class Lines(list):
    """A log."""

    def __call__(self, line):
        self.append(line)

    def of(self, begin):
        return [line for line in self if line.startswith(begin)]


def run(folder, storage, *, steps, log, **options):
    """Train one parameter; return its values."""
    torch.manual_seed(1)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    state = {"model": model, "optimizer": optimizer}
    values = {}
    with TorchCheckpointer(folder, state, storage=storage, log=log, **options) as checkpointer:
        for step in range(checkpointer.load() + 1, steps + 1):
            optimizer.zero_grad()
            model(torch.randn(2, 4)).square().mean().backward()
            optimizer.step()
            values[step] = model.weight[0, 0].item()
            checkpointer.save(step)
            if checkpointer._saver._mirror is not None:
                checkpointer._saver._mirror._uploader.wait()
    return values


def test_a_run_whose_disk_is_lost_resumes_from_the_storage(address, tmp_path):
    whole = run(tmp_path / "whole", None, steps=4, log=print)
    lines = Lines()
    if address.startswith("memory"):  # other processes do not see it
        return
    first = run(tmp_path / "run", address, steps=2, log=lines, most_recent_k=1)
    assert len(lines.of("copied iter_")) == 2
    shutil.rmtree(tmp_path / "run")
    second = run(tmp_path / "run", address, steps=4, log=lines, async_save=True)
    assert {**first, **second} == whole
    assert len(lines.of(f"fetched {address}/iter_0000002.")) == 1
    assert steps(open_storage(address)) == [4, 3, 2]


def test_a_damaged_checkpoint_on_the_disk_is_replaced_by_the_copy(tmp_path):
    address, lines = str(tmp_path / "storage"), Lines()
    whole = run(tmp_path / "run", address, steps=3, log=lines)
    newest = tmp_path / "run" / "iter_0000003" / "__0_0.distcp"
    newest.write_bytes(bytes(len(newest.read_bytes())))
    assert run(tmp_path / "run", address, steps=4, log=lines).keys() == {4}
    assert len(lines.of(f"fetched {address}/iter_0000003.")) == 1
    for file in (tmp_path / "run").glob("iter_*/__0_0.distcp"):
        file.write_bytes(bytes(len(file.read_bytes())))
    assert run(tmp_path / "run", address, steps=5, log=lines).keys() == {5}
    assert list(whole) == [1, 2, 3]


def test_a_copy_that_was_killed_is_made_by_the_next_run(tmp_path):
    address = str(tmp_path / "storage")
    run(tmp_path / "run", None, steps=2, log=print)
    lines = Lines()
    run(tmp_path / "run", address, steps=2, log=lines)
    assert steps(open_storage(address)) == [2]
    assert lines[-1].startswith("copied iter_0000002") or lines.of("copied iter_0000002")


def test_a_complete_run_copies_its_last_checkpoint_once(tmp_path):
    """A process that is killed after the last save, before the copy has ended, leaves nothing to train."""
    address, folder, lines = str(tmp_path / "storage"), tmp_path / "run", Lines()
    run(folder, address, steps=1, log=print)
    run(folder, None, steps=3, log=print)
    section = CheckpointConfig(save=str(folder), storage=address, most_recent_k=1)
    for _ in range(2):
        complete_storage(section, folder / "iter_0000003", log=lines)
    assert steps(open_storage(address)) == [3]
    assert len(lines.of("copied iter_0000003")) == len(lines.of("copied")) == 1
    complete_storage(section, tmp_path / "elsewhere" / "iter_0000009", log=lines)
    complete_storage(CheckpointConfig(save=str(folder)), folder / "iter_0000003", log=lines)
    assert len(lines.of("copied")) == 1


def test_a_run_that_resumes_an_older_step_copies_it_if_the_storage_lacks_it(tmp_path):
    """Of several checkpoints that wait for a copy the newest is copied, and `ckpt_step` names one of the others."""
    address, folder = str(tmp_path / "storage"), tmp_path / "run"
    run(folder, None, steps=3, log=print)
    run(folder, address, steps=3, log=print)
    assert steps(open_storage(address)) == [3]
    run(folder, address, steps=2, log=print, ckpt_step=2)
    assert find_stored(open_storage(address)).step == 2


def test_a_run_that_resumes_an_older_step_records_it_in_the_storage(tmp_path):
    address, folder = str(tmp_path / "storage"), tmp_path / "run"
    run(folder, address, steps=3, log=print)
    run(folder, address, steps=2, log=print, ckpt_step=2)
    assert read_latest(open_storage(address))[0] == 2
    shutil.rmtree(folder)
    assert run(folder, address, steps=3, log=print).keys() == {3}


def test_a_run_that_starts_again_does_not_write_over_what_is_stored(tmp_path):
    address = str(tmp_path / "storage")
    run(tmp_path / "one", address, steps=2, log=print)
    section = CheckpointConfig(save=str(tmp_path / "one"), load=None)
    with pytest.raises(StorageError, match=r"is at step 2, and this run starts at step 0"):
        run(section, address, steps=1, log=print)
    assert steps(open_storage(address)) == [2, 1]


@pytest.mark.parametrize("fault", ["no bucket", "no server", "no credentials"])
def test_a_run_whose_storage_cannot_be_read_does_not_start(aws, tmp_path, monkeypatch, fault):
    reason = "specified bucket does not exist"
    if fault == "no server":
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        reason = "Could not connect"
    if fault == "no credentials":
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        reason = "Unable to locate credentials"
    with pytest.raises(StorageError, match=rf"s3://absent/run: .*{reason}.*Check the address"):
        run(tmp_path / "run", "s3://absent/run", steps=1, log=print)


def test_a_run_continues_while_the_storage_is_gone(tmp_path, monkeypatch):
    pytest.importorskip("moto")
    pytest.importorskip("s3fs")
    import storage_server

    with storage_server.running() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        address = server.bucket("gone") + "/run"
        lines = Lines()

        def log(line):
            lines(line)
            if line.startswith("copied iter_0000002"):
                server.stop()

        values = run(tmp_path / "run", address, steps=4, log=log)
    assert list(values) == [1, 2, 3, 4]
    failed = lines.of("error: checkpoint.storage: iter_0000004 was not copied: s3://gone/run: cannot")
    assert len(failed) == 1
    assert failed[0].endswith("The checkpoint on the disk is complete; the next one is copied as usual.")
    assert all(not problems for problems in verify_checkpoint(tmp_path / "run").values())


def test_a_storage_that_is_full_or_read_only(tmp_path, monkeypatch):
    """What is in the storage remains."""
    address, lines = tmp_path / "storage", Lines()
    run(tmp_path / "run", str(address), steps=1, log=lines)
    kept = steps(open_storage(str(address)))
    storage = open_storage(str(address))
    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(StorageError, match=r"cannot store .*No space left on device"):
        upload_checkpoint(complete_checkpoint.save(tmp_path / "run", 2), storage)
    with pytest.raises(StorageError, match=r"cannot store .probe"):
        check_storage_writable(storage)
    monkeypatch.undo()
    assert steps(storage) == kept


def full(*_):
    raise OSError(28, "No space left on device")


def test_only_the_newest_of_several_waiting_checkpoints_is_copied(tmp_path):
    lines = Lines()
    uploader = StorageUploader(Destination(address=str(tmp_path / "storage")), log=lines)
    saved = [complete_checkpoint.save(tmp_path / "run", step) for step in (1, 2, 3)]
    uploader.submit(saved[0])
    while not uploader._busy:
        time.sleep(0.001)
    for each in saved[1:]:
        uploader.submit(each)
    assert uploader.busy
    uploader.wait()
    assert not uploader.busy
    assert steps(open_storage(str(tmp_path / "storage"))) == [3, 1]
    assert len(lines.of("not copied to")) == 1
    shutil.rmtree(saved[1])
    uploader.submit(saved[1])
    uploader.wait()
    assert lines[-1].endswith("iter_0000002, which was deleted before its turn")
    uploader.submit(saved[0])
    uploader.stop()
    uploader.wait()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_of_the_log_ends_one_copy(tmp_path):
    lines = Lines()
    errors = iter([OSError(errno.ENOSPC, "No space left on device")])

    def log(text):
        for error in errors:
            raise error
        lines(text)

    uploader = StorageUploader(Destination(address=str(tmp_path / "storage")), log=log)
    for step in (1, 2):
        uploader.submit(complete_checkpoint.save(tmp_path / "run", step))
        uploader.wait()
    assert len(lines.of("copied iter_0000002")) == 1


class Uploaders:
    """Uploaders of several ranks, which share a store; the processes of some of them fail."""

    def __init__(self, root, address, *, failing=()):
        storage, store, self.lines = open_storage(address), HashStore(), Lines()
        owner = claim_storage(storage, root, name="storage")
        self.all = [
            StorageUploader(
                Destination(address=address, owner=owner, keep=2),
                log=self.lines,
                ranks=UploadRanks(store=store, rank=rank, world_size=3, name="upload/a"),
            )
            for rank in range(3)
        ]
        for rank in failing:
            self.all[rank]._run = lambda part, checkpoint: {"failure": "no network"}

    def submit(self, checkpoint):
        for uploader in reversed(self.all):  # the others before rank 0
            uploader.submit(checkpoint)

    def wait(self):
        for uploader in self.all:
            uploader.wait()


@pytest.mark.parametrize("failing", [(), (2,)])
def test_ranks_copy_together_what_rank_0_chooses(tmp_path, failing):
    saved = [complete_checkpoint.save(tmp_path / "run", step) for step in (1, 2, 3, 4)]
    ranks = Uploaders(tmp_path / "run", str(tmp_path / "storage"), failing=failing)
    ranks.submit(saved[0])
    ranks.wait()
    ranks.all[0]._line.append((0, saved[1]))  # in line, so that another one replaces it
    ranks.submit(saved[2])
    ranks.submit(saved[3])
    ranks.wait()
    assert steps(open_storage(str(tmp_path / "storage")))[0] == 4
    copies = [line.endswith("by 3 ranks)") for line in ranks.lines if line.startswith("copied iter_")]
    assert copies
    assert set(copies) == {not failing}
    assert sum("iter_0000002, as iter_0000003 follows" in line for line in ranks.lines) == 1
    assert any("rank 2: no network; rank 0 copies" in line for line in ranks.lines) == bool(failing)
    fetched = fetch_checkpoint(open_storage(str(tmp_path / "storage")), tmp_path / "copies")
    assert verify_checkpoint(fetched) == {fetched: []}


def test_ranks_that_wait_for_rank_0_end_when_it_stops(tmp_path):
    saved = complete_checkpoint.save(tmp_path / "run", 1)
    ranks = Uploaders(tmp_path / "run", str(tmp_path / "storage"))
    for uploader in ranks.all[1:]:
        uploader.submit(saved)
    ranks.all[0]._line.append((1, saved))
    ranks.all[0].stop()
    ranks.wait()
    assert steps(open_storage(str(tmp_path / "storage"))) == []


@pytest.mark.parametrize("ranks", [1, 4])
def test_each_rank_sends_what_it_wrote_and_rank_0_the_manifest(tmp_path, ranks):
    saved = complete_checkpoint.save(tmp_path / "run", 1)
    layout = {"world_size": ranks}
    (saved / "manifest.json").unlink()
    for rank in range(ranks):
        (saved / f"__{rank}_0.distcp").write_bytes(bytes(2000))
    fsync_and_write_manifest(saved, Manifest(step=1, files=(), layout=layout))
    storage = Counted(open_storage(str(tmp_path / "storage")))
    owner = claim_storage(storage, tmp_path / "run", name="storage")
    for rank in range(ranks):
        storage.names.clear()
        copied = upload_share(saved, storage, owner=owner, rank=rank, world_size=ranks, read_back=True)
        data = [name.partition("/")[2] for name in storage.names["put"] if name.endswith(".distcp")]
        assert data == [f"__{rank}_0.distcp"]
        assert copied < 2000 + 3000
    storage.names.clear()
    done = upload_checkpoint(saved, storage, owner=owner, shared=True, keep=1)
    assert storage.names["put"] == [f"{done.folder}/manifest.json", "latest.json"]
    assert not any(name.endswith(".distcp") for name in storage.names["read"])


class Counted:
    """Storage that records the files that are sent and read."""

    def __init__(self, storage):
        self._storage, self.names = storage, defaultdict(list)

    def put(self, source, name):
        self.names["put"].append(name)
        self._storage.put(source, name)

    def read(self, name):
        self.names["read"].append(name)
        return self._storage.read(name)

    def __getattr__(self, name):
        return getattr(self._storage, name)


@pytest.mark.parametrize(
    ("address", "options", "message"),
    [
        ("nonsense://bucket/run", {}, "nonsense://bucket/run: Protocol not known"),
        ("/mnt/run", {"anon": True}, "a folder has no options, and anon"),
        ("memory://run", {"unknown_option": 1}, None),
    ],
)
def test_what_cannot_be_opened_is_rejected(address, options, message):
    pytest.importorskip("fsspec")
    if message is None:
        open_storage(address, options)  # accepted by fsspec itself
        return
    with pytest.raises(StorageError, match=message):
        open_storage(address, options)


def test_a_missing_package_is_named(monkeypatch):
    pytest.importorskip("fsspec")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(StorageError, match=r"install mb-checkpoint\[storage\]"):
        open_storage("s3://bucket/run")


def test_only_checkpoints_with_a_manifest_are_copied(tmp_path):
    saved = complete_checkpoint.save(tmp_path / "run", 1)
    storage = open_storage(str(tmp_path / "storage"))
    (saved / "manifest.json").write_text("{}")
    with pytest.raises(StorageError, match="is not a manifest"):
        upload_checkpoint(saved, storage)
    (saved / "manifest.json").unlink()
    with pytest.raises(StorageError, match=r"has no readable manifest.json \(No such file or directory\)"):
        upload_checkpoint(saved, storage)


def test_a_sharded_loop_that_loses_its_machine_resumes_from_s3(aws, tmp_path):
    """Killed at any moment, with another disk afterwards: the same losses bit for bit."""

    def start(folder, *options):
        return ScriptRanks(EXAMPLE, folder, "--steps=12", *options)

    def losses(text):
        return set(re.findall(r"^rank \d step \d+ loss \d+\.\d+$", text, re.MULTILINE))

    whole = losses(start(tmp_path / "whole").output())
    storage = ["--storage", aws.bucket("sharded") + "/run"]
    first = start(tmp_path / "run", *storage).kill(after="copied iter_")
    shutil.rmtree(tmp_path / "run")
    second = start(tmp_path / "run", *storage).output()
    assert "fetched s3://sharded/run/iter_" in second, f"{first}second run:\n{second}"
    assert losses(first + second) == whole
    assert len(whole) == 24
