"""Each command that reads a run folder answers damage in any of its files with a line, quickly and in little memory.

A mutation changes one file: bytes, or what is known to be hostile to its format. Half of those inside a checkpoint are
sealed again, so that they pass the manifest. `MB_MUTATIONS=2000` makes that many for each command; `nox -s mutations`.
"""

import json
import os
import pickle
import random
import shutil
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import pytest
from measured_mb import MeasuredCommands
from runs import train_here
from safetensors import safe_open

from mb_checkpoint import upload_checkpoint
from mb_checkpoint.formats.manifest import FileEntry, encode_manifest, hash_file, read_manifest
from mb_checkpoint.storage.storage import open_storage

COUNT = int(os.environ.get("MB_MUTATIONS", "6"))
SEED = int(os.environ.get("MB_SEED", "0"))
SECONDS, MEMORY_MIB = 1.0, 500
"""Limits of a command on a damaged folder, beyond what it takes on an intact one."""
STEP = "iter_0000002"

COMMANDS = {
    "report": ["report", "{run}", "--out", "{scratch}/report.html"],
    "watch": ["watch", "{run}"],
    "data at": ["data", "at", "{run}", "--step", "1"],
    "ckpt ls": ["ckpt", "ls", "{run}"],
    "ckpt show": ["ckpt", "show", "{run}"],
    "ckpt verify": ["ckpt", "verify", "{run}"],
    "ckpt diff": ["ckpt", "diff", "{run}", "{intact}", "--values"],
    "ckpt prune": ["ckpt", "prune", "{run}", "--keep", "1", "--dry-run"],
    "ckpt upload": ["ckpt", "upload", "{run}", "{scratch}/storage"],
    "ckpt stored": ["ckpt", "stored", "{run}/storage"],
    "ckpt fetch": ["ckpt", "fetch", "{run}/storage", "{scratch}/fetched"],
    "check": ["check", "{run}/run_config.yaml"],
    "plan": ["plan", "{run}/run_config.yaml"],
    "config show": ["config", "show", "{run}/run_config.yaml"],
    "sample": ["sample", "{run}", "--tokens", "1"],
    "export-hf": ["export-hf", "{run}", "--out", "{scratch}/exported"],
    "eval": ["eval", "{run}"],
    "import-hf": ["import-hf", "{run}/hf", "--out", "{scratch}/imported"],
}
RUN_FILES = ["run_config.yaml", "metrics.jsonl", "events.jsonl", "log.txt"]
CHECKPOINT_FILES = [
    f"checkpoints/{STEP}/{name}"
    for name in (
        ".metadata",
        "manifest.json",
        "train_state.pt",
        "metadata.json",
        "run_config.yaml",
        "__0_0.distcp",
    )
] + ["checkpoints/latest_train_state.pt", "checkpoints/latest_checkpointed_iteration.txt"]
HF_FILES = ["hf/config.json", "hf/model.safetensors", "hf/model.safetensors.index.json"]
STORAGE = ("storage",)
READS = {
    **dict.fromkeys(["report", "watch"], RUN_FILES),
    "data at": RUN_FILES[:3],
    **dict.fromkeys(["check", "plan", "config show"], RUN_FILES[:1]),
    **dict.fromkeys([name for name in COMMANDS if name.startswith("ckpt")], CHECKPOINT_FILES),
    **dict.fromkeys(["ckpt stored", "ckpt fetch"], STORAGE),
    "sample": CHECKPOINT_FILES,
    "export-hf": CHECKPOINT_FILES,
    "eval": CHECKPOINT_FILES,
    "import-hf": HF_FILES,
}


def bomb(kind: str) -> bytes:
    """Return a file of a few bytes that a careless reader expands to gigabytes, or never finishes."""
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("archive/data.pkl", zlib.decompress(zlib.compress(bytes(1 << 26))))
        made.writestr("archive/version", "3")
    return {
        "archive": buffer.getvalue(),
        "number of an object": b"\x80\x02Nr\xff\xff\xff\x7f.",
        "length": b"\x80\x04\x8e" + struct.pack("<Q", 6 * 10**9) + b"x.",
        "bytearray": b"cbuiltins\nbytearray\n(I6000000000\ntR.",
        "class": b"\x80\x02cpathlib\nPosixPath\nN}X\x04\x00\x00\x00_strX\x07\x00\x00\x00/victims\x86b.",
        "depth": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
        "tuples": b"\x80\x02})" + b"\x85" * 200_000 + b"Ns.",
        "tuples among lists": b"\x80\x02})" + b"\x85]0" * 200_000 + b"Ns.",
        "header": struct.pack("<Q", 2**62) + b"{}",
        "header of 10 GB": struct.pack("<Q", 10**10) + b"{" * 100,
    }[kind]


def hostile_lines(random_: random.Random) -> bytes:
    """Return a line that damages a text: of JSON, YAML or a log."""
    deep = random_.choice([100, 1000, 50_000])
    return random_.choice(
        [
            b"[" * deep + b"\n",
            b'{"step": ' + b'{"a": ' * deep + b"}\n",
            b'{"step": 9223372036854775808, "time": 1, "lm loss": 1}\n',
            b'{"step": 2, "time": 1e300, "lm loss": 1}\n',
            b'{"step": 2, "time": -1e300, "lm loss": ' + b"9" * 400 + b"}\n",
            b'{"step": 2, "time": ' + b"9" * 5000 + b"}\n",
            b'{"step": null, "time": null}\n',
            b'{"step": 3, "time": NaN, "lm loss": Infinity, "learning-rate": "x", "batch-size": []}\n',
            b'{"event": "resume", "step": "x", "time": [], "seconds": {}, "changes": {"a": 5}, "set_by_user": [[]]}\n',
            b'{"event": "resume", "step": 1, "time": 5, "changes": {"a": [1]}, "code": 5}\n',
            b'{"event": "start", "world_size": "many", "step": -1, "time": 1e18}\n',
            b'{"event": [], "time": 1}\n',
            b"null\n",
            b"5\n",
            b"\xff\xfe\x00\x00\n",
            b"\x00" * 1000 + b"\n",
            b"a: " + b"[" * deep + b"\n",
            b"a: &a [*a]\n",
            b"a: !!python/object/apply:os.system [id]\n",
            b"a: &a [x,x,x,x,x,x,x,x,x]\n"
            + b"".join(
                b"%c: &%c [%s]\n" % (98 + n, 98 + n, b",".join([b"*%c" % (97 + n)] * 9)) for n in range(9)
            ),
            b"model: x\n",
            b"checkpoint: {save: [], load: 5}\n",
            b"a: " + b"9" * 5000 + b"\n",
            b"a: 2024-99-99\n",
            b"? [a]\n: b\n",
            b"x" * (1 << 20) + b"\n",
        ]
    )


def mutate(content: bytes, random_: random.Random) -> bytes:
    """Return the content of a file with one kind of damage."""
    kind = random_.randrange(9)
    place = random_.randrange(len(content) + 1)
    if kind == 0:
        return content[:place]
    if kind == 1:
        return content[:place] + content[place + random_.randrange(1, 200) :]
    if kind == 2:
        return random_.choice([b"", b"\n", b"null\n", b"[]\n", b"{}", b"5", b"\xff" * 100, bytes(1000)])
    if kind == 3:
        return bomb(
            random_.choice(["archive", "number of an object", "length", "bytearray", "class", "depth"])
        )
    if kind == 4:
        return bomb(random_.choice(["tuples", "tuples among lists", "header", "header of 10 GB"]))
    if kind in (5, 6):
        lines = content.splitlines(keepends=True)
        lines.insert(random_.randrange(len(lines) + 1), hostile_lines(random_))
        return b"".join(lines)
    changed = bytearray(content or b"x")
    for _ in range(random_.choice([1, 1, 4, 40])):
        changed[random_.randrange(len(changed))] = random_.randrange(256)
    return bytes(changed)


HOSTILE_ENTRIES = [
    {"name": "../../../../../../etc/hostname"},
    {"name": "/etc/hostname"},
    {"name": "a/../../x"},
    {"size": 2**70},
    {"size": -1},
    {"size": "5"},
    {"checksum": "md5:0"},
    {"checksum": None},
]


def reseal(checkpoint: Path, random_: random.Random, *, hostile: bool = False) -> None:
    """Write a manifest that has the checksums of the files as they are, sometimes with a hostile entry."""
    manifest = read_manifest(checkpoint)
    names = [entry.name for entry in manifest.files]
    files = [hash_file(checkpoint / name, name=name) for name in names]
    if hostile or random_.random() < 0.3:
        values = {"name": "x", "size": 1, "checksum": "sha256:00", **random_.choice(HOSTILE_ENTRIES)}
        files.append(FileEntry(**values))
    object.__setattr__(manifest, "files", tuple(files))
    (checkpoint / "manifest.json").write_bytes(encode_manifest(manifest))


def damage_storage(storage: Path, random_: random.Random) -> None:
    """Change a file of a storage, or its manifest, whose hash is in the name of its folder."""
    if random_.random() < 0.6:
        file = random_.choice(sorted(path for path in storage.rglob("*") if path.is_file()))
        file.write_bytes(mutate(file.read_bytes(), random_))
        return
    (folder,) = storage.glob("iter_*")
    reseal(folder, random_, hostile=True)
    seal = sha256((folder / "manifest.json").read_bytes()).hexdigest()[:12]
    renamed = folder.rename(folder.with_name(f"{folder.name.rpartition('.')[0]}.{seal}"))
    (storage / "latest.json").write_text(json.dumps({"folder": renamed.name, "step": 2}))


def damage(run: Path, name: str, random_: random.Random) -> None:
    """Change a file of a run folder."""
    if name == "storage":
        damage_storage(run / name, random_)
        return
    file, checkpoint = run / name, run / "checkpoints" / STEP
    if name.endswith("manifest.json"):
        if random_.random() < 0.5:
            reseal(checkpoint, random_)
            return
    elif name.endswith(".metadata") and random_.random() < 0.5:
        file.write_bytes(hostile_index(file.read_bytes(), random_))
        reseal(checkpoint, random_)
        return
    file.write_bytes(mutate(file.read_bytes(), random_))
    if file.parent == checkpoint and random_.random() < 0.5 and not name.endswith("manifest.json"):
        reseal(checkpoint, random_)


def hostile_index(content: bytes, random_: random.Random) -> bytes:
    """Return an index whose values are absurd."""
    index = pickle.loads(content)
    key = random_.choice(list(index.storage_data))
    piece, entry = index.storage_data[key], index.state_dict_metadata.get(key.fqn)
    change: Callable[[], object] = random_.choice(
        [
            lambda: setattr(
                piece, "relative_path", random_.choice(["../../x", "/etc/passwd", 5, None, "", "a\0"])
            ),
            lambda: setattr(piece, "offset", random_.choice([-1, 10**15, "x", None])),
            lambda: setattr(piece, "length", random_.choice([-1, 10**15, "x", None])),
            lambda: setattr(entry, "size", random_.choice([(10**18,), (-1,), "x", None, [2**62, 2**62]])),
            lambda: setattr(entry, "properties", random_.choice([None, "x", 5])),
            lambda: setattr(entry, "chunks", random_.choice([None, [None], "x"])),
            lambda: index.storage_data.clear(),
            lambda: index.state_dict_metadata.update({5: None, "x": "y"}),
            lambda: setattr(index, "storage_data", random_.choice([None, 5, {"x": 5}])),
            lambda: setattr(index, "state_dict_metadata", random_.choice([None, 5, {}])),
        ]
    )
    change()
    return pickle.dumps(index, protocol=random_.choice([2, 4]))


@pytest.fixture(scope="module")
def commands():
    """Commands in processes of their own."""
    with MeasuredCommands() as found:
        yield found


@pytest.fixture(scope="module")
def base(overrides, tmp_path_factory):
    """The folder of a run of two steps, with a model in the Hugging Face format in it."""
    out = tmp_path_factory.mktemp("base") / "run"
    words = [*overrides, "train.train_iters=2", "checkpoint.save_interval=1", "validation.eval_iters=1"]
    train_here([*words, "checkpoint.most_recent_k=2"], out)
    upload_checkpoint(out / "checkpoints" / STEP, open_storage(str(out / "storage")))
    made = subprocess.run(
        [sys.executable, "-m", "mb_trainer", "export-hf", str(out), "--out", str(out / "hf")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "weights of step 2" in made.stdout
    with safe_open(out / "hf" / "model.safetensors", "pt") as stored:
        index = {"weight_map": dict.fromkeys(stored.keys(), "model.safetensors")}
    (out / "hf" / "model.safetensors.index.json").write_text(json.dumps(index))
    return out


def names_below(folder: Path) -> list[Path]:
    """Return what is in a folder, apart from the folder that a command may write to."""
    return sorted(path for path in folder.rglob("*") if "scratch" not in path.relative_to(folder).parts)


@pytest.mark.parametrize("name", COMMANDS)
def test_damage_is_one_line(base, commands, tmp_path, name):
    problems = []
    places = {"intact": str(base), "scratch": str(tmp_path / "scratch"), "run": str(tmp_path / "run")}
    words = [word.format(**places) for word in COMMANDS[name]]
    random_ = random.Random(f"{SEED} {name}")
    limit = 0.0
    for number in range(-1, COUNT):
        for folder in ("run", "scratch"):
            shutil.rmtree(tmp_path / folder, ignore_errors=True)
        shutil.copytree(base, tmp_path / "run")
        (tmp_path / "scratch").mkdir()
        file = random_.choice(READS[name])
        if number >= 0:
            damage(tmp_path / "run", file, random_)
        before = names_below(tmp_path)
        found = commands.run(words, tmp_path)
        assert names_below(tmp_path) == before, f"mutation {number} of {file} wrote outside of its folder"
        if number == -1:
            assert not found["traceback"], found
            assert found["code"] == 0, found
            limit = float(found["seconds"]) + SECONDS
            continue
        slow = found.get("seconds", 0) > limit or found.get("mib", 0) > MEMORY_MIB
        if found["traceback"] or slow:
            problems.append({"number": number, "file": file, **found})
            if out := os.environ.get("MB_MUTATIONS_KEEP"):
                shutil.copytree(
                    tmp_path / "run", Path(out) / f"{name.replace(' ', '_')}-{number}", dirs_exist_ok=True
                )
    assert problems == []
