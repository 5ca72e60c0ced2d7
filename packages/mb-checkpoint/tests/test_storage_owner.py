"""A storage belongs to one run: another one neither reads nor deletes there. A copy is compared before others go."""

import json
import os
import shutil
import threading
from pathlib import Path

import complete_checkpoint
import pytest
import torch

from mb_checkpoint import CheckpointConfig, TorchCheckpointer, fetch_checkpoint, upload_checkpoint
from mb_checkpoint.errors import StorageError
from mb_checkpoint.storage.checkpoints import find_stored, list_stored, set_latest
from mb_checkpoint.storage.owner import (
    StorageOwner,
    claim_storage,
    put_json,
    read_owner,
    read_small,
    require_owner,
    run_of_folder,
)
from mb_checkpoint.storage.run_config import stored_run_config
from mb_checkpoint.storage.storage import open_storage
from mb_checkpoint.storage.uploader import Destination, StorageUploader

BELONGS = (
    r"belongs to the run [0-9a-f]{12} in {one} on .*, and this is the run in {two} on .*Choose another URL"
)


def steps(storage):
    return [each.step for each in list_stored(storage)]


def belongs(one, two):
    return BELONGS.replace("{one}", str(one)).replace("{two}", str(two))


def names_in(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.fixture
def storage(tmp_path):
    return open_storage(str(tmp_path / "storage"))


def train(folder, address, steps):
    """Save steps from the newest one on; return the lines of the log."""
    lines = []
    state = {"model": torch.nn.Linear(2, 2)}
    with TorchCheckpointer(folder, state, storage=str(address), most_recent_k=1, log=lines.append) as run:
        for step in range(run.load() + 1, steps + 1):
            run.save(step)
            run._saver._mirror._uploader.wait()
    return lines


def test_a_second_run_is_refused_by_a_line_that_names_both(tmp_path):
    address = tmp_path / "storage"
    train(tmp_path / "one", address, 2)
    before = names_in(address)
    with pytest.raises(StorageError, match=belongs(tmp_path / "one", tmp_path / "two")):
        train(tmp_path / "two", address, 3)
    assert names_in(address) == before
    assert not (tmp_path / "two").exists() or names_in(tmp_path / "two") == []


def test_an_empty_disk_takes_over_at_the_same_path_and_by_a_fetch_elsewhere(tmp_path):
    address = tmp_path / "storage"
    train(tmp_path / "one", address, 1)
    shutil.rmtree(tmp_path / "one")
    train(tmp_path / "one", address, 2)
    run = run_of_folder(tmp_path / "one")
    assert steps(open_storage(str(address))) == [2]
    fetch_checkpoint(open_storage(str(address)), tmp_path / "two")
    assert run_of_folder(tmp_path / "two") == run
    train(tmp_path / "two", address, 3)
    owner = read_owner(open_storage(str(address)))
    assert (owner.run, owner.folder) == (run, str(tmp_path / "two"))


def test_two_jobs_at_once_leave_a_complete_checkpoint_of_one_of_them(tmp_path):
    for number in range(5):
        storage = open_storage(str(tmp_path / f"storage{number}"))
        errors = []

        def job(name, storage=storage, errors=errors, number=number):
            for step in (1, 2, 3, 4):
                saved = complete_checkpoint.save(tmp_path / f"{name}{number}", step)
                try:
                    upload_checkpoint(saved, storage, keep=1)
                except StorageError as raised:
                    errors.append(str(raised))

        threads = [threading.Thread(target=job, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        owner = read_owner(storage)
        assert find_stored(storage).step == 4
        assert errors
        assert all(str(owner) in error for error in errors), (owner, errors)
        copy = fetch_checkpoint(storage, tmp_path / f"copy{number}")
        winner = Path(owner.folder)
        assert (copy / "manifest.json").read_bytes() == (winner / copy.name / "manifest.json").read_bytes()


def test_a_folder_is_listed_while_others_write_and_delete_there(tmp_path, storage):
    source, ended = tmp_path / "file", threading.Event()
    source.write_bytes(b"1234")

    def write():
        while not ended.is_set():
            storage.put(source, "iter/new")
            storage.delete("iter/new")

    writers = [threading.Thread(target=write) for _ in range(2)]
    storage.put(source, "iter/old")
    for writer in writers:
        writer.start()
    try:
        assert all(storage.sizes()["iter/old"] == 4 for _ in range(2000))
    finally:
        ended.set()
    for writer in writers:
        writer.join()


def test_nothing_of_another_run_is_read_or_deleted(tmp_path, storage):
    """As it may be there after two jobs claimed an empty storage in the same moment."""
    other = upload_checkpoint(complete_checkpoint.save(tmp_path / "b", 9), storage).folder
    storage.delete("run.json")
    done = upload_checkpoint(complete_checkpoint.save(tmp_path / "a", 1), storage, keep=1)
    assert done.removed == ()
    assert find_stored(storage).folder == done.folder
    assert steps(storage) == [1]
    set_latest(storage, step=9, folder=other)
    assert find_stored(storage).folder == done.folder
    assert storage.sizes(f"{other}/")


def test_a_storage_of_an_older_version_is_adopted(tmp_path, storage):
    """Its folders have no run in their names, and there is no record."""
    saved = [complete_checkpoint.save(tmp_path / "run", step) for step in (1, 2)]
    for each in saved:
        done = upload_checkpoint(each, storage)
        run = run_of_folder(tmp_path / "run")
        folder = tmp_path / "storage" / done.folder
        folder.rename(folder.with_name(folder.name.replace(f".{run}.", ".")))
    storage.delete("run.json")
    set_latest(storage, step=2, folder=done.folder.replace(f".{run}.", "."))
    shutil.rmtree(tmp_path / "run")
    assert fetch_checkpoint(storage, tmp_path / "run").name == "iter_0000002"
    assert run_of_folder(tmp_path / "run") is None
    done = upload_checkpoint(complete_checkpoint.save(tmp_path / "run", 3), storage, keep=2)
    assert [name.partition(".")[0] for name in done.removed] == ["iter_0000001"]
    assert steps(storage) == [3, 2]


def test_a_later_start_of_the_run_takes_over_and_the_earlier_one_copies_nothing(tmp_path, storage):
    root = tmp_path / "run"
    saved = complete_checkpoint.save(root, 1)
    earlier = claim_storage(storage, root, name="the storage")
    assert claim_storage(storage, root, name="the storage") == earlier
    later = StorageOwner(run=earlier.run, folder="/elsewhere", host="node2", process="7-8")
    put_json(storage, "run.json", _fields(later))
    lines = []
    uploader = StorageUploader(
        Destination(address=str(tmp_path / "storage"), keep=1, owner=earlier), log=lines.append
    )
    uploader.submit(saved)
    uploader.wait()
    assert "taken over by" in lines[0]
    assert f"the run {earlier.run} in /elsewhere on node2" in lines[0]
    assert steps(storage) == []


def _fields(owner):
    return {name: getattr(owner, name) for name in ("run", "folder", "host", "process")}


def test_a_copy_of_a_run_folder_does_not_write_while_the_run_does(tmp_path, storage):
    own = claim_storage(storage, tmp_path / "run", name="the storage")
    status = Path(f"/proc/{os.getppid()}/stat").read_text()
    parent = f"{os.getppid()}-{status.rpartition(')')[2].split()[19]}"
    put_json(storage, "run.json", {**_fields(own), "process": parent})
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    with pytest.raises(StorageError, match=rf"in use by process {os.getppid()} of the run {own.run}"):
        claim_storage(storage, tmp_path / "copy", name="the storage")


def test_a_record_that_was_deleted_is_written_again(tmp_path, storage):
    own = claim_storage(storage, tmp_path / "run", name="the storage")
    storage.delete("run.json")
    require_owner(storage, own)
    assert read_owner(storage) == own


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "5" * 5000, "[" * 100_000, '{"run": 5}', "x" * 70_000]
    + [
        json.dumps({"run": run, "folder": "/", "host": "h", "process": ""})
        for run in ("../../x", 5, "A" * 12)
    ],
)
def test_a_damaged_record_is_an_error(tmp_path, storage, content):
    file = tmp_path / "file"
    file.write_text(content)
    storage.put(file, "run.json")
    if read_small(storage, "run.json") is None:  # too large to be one
        return
    with pytest.raises(StorageError, match=r"damaged run\.json.*Delete the file"):
        claim_storage(storage, tmp_path / "run", name="the storage")


def test_a_checkpoint_of_a_run_is_not_fetched_into_the_folder_of_another(tmp_path, storage):
    upload_checkpoint(complete_checkpoint.save(tmp_path / "a", 1), storage)
    claim_storage(open_storage(str(tmp_path / "other")), tmp_path / "b", name="the storage")
    with pytest.raises(StorageError, match=r"is the folder of the run .* Fetch into a new folder"):
        fetch_checkpoint(storage, tmp_path / "b")


class Truncating:
    """Storage that cuts the data of a step short, a number of times."""

    def __init__(self, storage, times):
        self._storage, self._times = storage, times

    def __getattr__(self, name):
        return getattr(self._storage, name)

    def put(self, source, name):
        self._storage.put(source, name)
        if "iter_0000002" in name and name.endswith(".distcp") and self._times:
            self._times -= 1
            short = Path(source).with_suffix(".short")
            short.write_bytes(Path(source).read_bytes()[:-1])
            self._storage.put(short, name)
            short.unlink()


def test_the_older_copy_is_kept_if_the_storage_cuts_the_newer_one_short(tmp_path, storage):
    older, newer = (complete_checkpoint.save(tmp_path / "run", step) for step in (1, 2))
    upload_checkpoint(older, storage, keep=1)
    with pytest.raises(StorageError, match=r"differs from the manifest after two attempts \(__0_0.distcp\)"):
        upload_checkpoint(newer, Truncating(storage, times=9), keep=1)
    assert fetch_checkpoint(storage, tmp_path / "copy").name == "iter_0000001"
    assert upload_checkpoint(newer, Truncating(storage, times=1), keep=1).removed
    assert fetch_checkpoint(storage, tmp_path / "copy2").name == "iter_0000002"


def test_a_copy_that_was_damaged_at_equal_size_is_repaired_by_the_next_one(tmp_path, storage):
    saved = complete_checkpoint.save(tmp_path / "run", 1)
    folder = upload_checkpoint(saved, storage).folder
    stored = tmp_path / "storage" / folder / "__0_0.distcp"
    stored.write_bytes(bytes(stored.stat().st_size))
    assert upload_checkpoint(saved, storage).copied_bytes == stored.stat().st_size
    assert fetch_checkpoint(storage, tmp_path / "copy").name == "iter_0000001"


def test_nothing_is_deleted_while_the_listing_lags(tmp_path, storage):
    older, newer = (complete_checkpoint.save(tmp_path / "run", step) for step in (1, 2))
    upload_checkpoint(older, storage, keep=1)
    lagging = Truncating(storage, times=0)
    lagging.sizes = lambda prefix="": {
        name: size for name, size in storage.sizes(prefix).items() if "iter_0000002" not in name
    }
    assert upload_checkpoint(newer, lagging, keep=1).removed == ()
    assert steps(storage) == [2, 1]
    assert upload_checkpoint(newer, storage, keep=1).removed
    assert steps(storage) == [2]


def test_an_older_copy_that_is_damaged_does_not_count_among_those_that_are_kept(tmp_path, storage):
    saved = [complete_checkpoint.save(tmp_path / "run", step) for step in (1, 2, 3)]
    upload_checkpoint(saved[0], storage)
    folder = upload_checkpoint(saved[1], storage).folder
    (tmp_path / "storage" / folder / "__0_0.distcp").write_bytes(b"short")
    assert upload_checkpoint(saved[2], storage, keep=2).removed == ()
    assert steps(storage) == [3, 2, 1]


def test_the_settings_of_a_run_are_read_from_its_storage_before_a_checkpoint_is_fetched(tmp_path, storage):
    """Those of the newest intact checkpoint, as the fetch takes it."""
    root, address = tmp_path / "run", str(tmp_path / "storage")
    section = CheckpointConfig(save=str(root), load=str(root), storage=address)
    assert stored_run_config(section) is None
    for step in (1, 2):
        upload_checkpoint(
            complete_checkpoint.save(root, step, files={"run_config.yaml": f"step: {step}"}), storage
        )
    shutil.rmtree(root)
    found = stored_run_config(section)
    assert (found.content, Path(found.source).parent) == ("step: 2", tmp_path / "storage")
    Path(found.source, "run_config.yaml").write_text("step: 3")  # of equal size
    assert stored_run_config(section).content == "step: 1"
    Path(found.source, "run_config.yaml").write_text("step: 2")
    section.ckpt_step = 1
    assert stored_run_config(section).content == "step: 1"
    assert not root.exists()


def test_only_a_run_that_fetches_reads_settings_from_its_storage(tmp_path, storage):
    root, address = str(tmp_path / "run"), str(tmp_path / "storage")
    upload_checkpoint(complete_checkpoint.save(tmp_path / "run", 1), storage)
    options = {"save": root, "load": root, "storage": address}
    assert stored_run_config(CheckpointConfig(**options)) is None  # the checkpoint has no settings
    for changed in ({"storage": None}, {"finetune": True}, {"load": str(tmp_path / "other")}):
        assert stored_run_config(CheckpointConfig(**options | changed)) is None
    other = dict.fromkeys(("save", "load"), str(tmp_path / "other"))
    assert stored_run_config(CheckpointConfig(**options | other)) is None  # of another run
