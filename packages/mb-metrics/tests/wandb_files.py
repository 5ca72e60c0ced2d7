"""Contents of the run files that W&B writes in offline mode."""

import json
import struct
import time

from wandb.proto import wandb_internal_pb2

BLOCK, HEAD = 32 * 1024, 7


def records(path):
    """Yield the records of a run file: blocks of 32 KiB, each part of a record with checksum, length and type."""
    data, at, whole = path.read_bytes(), HEAD, b""
    while at + HEAD <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEAD:
            at += left
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + HEAD])
        whole += data[at + HEAD : at + HEAD + length]
        at += HEAD + length
        if kind in (1, 4):  # the full record, or its last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def runs(folder):
    """Return the records of each run file of a folder, oldest first, once W&B's own process has written the end."""
    deadline = time.monotonic() + 120
    while True:
        found = [list(records(path)) for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb"))]
        if all(any(record.WhichOneof("record_type") == "exit" for record in run) for run in found):
            return found
        assert time.monotonic() < deadline, "W&B did not finish its file"
        time.sleep(0.05)


def history(run):
    rows = []
    for record in run:
        if record.WhichOneof("record_type") == "history":
            items = {
                item.key or ".".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            rows.append(
                {name: value for name, value in items.items() if name not in ("_timestamp", "_runtime")}
            )
    return rows


def artifacts(run):
    requests = (record.request for record in run if record.WhichOneof("record_type") == "request")
    logged = [each.log_artifact.artifact for each in requests if each.HasField("log_artifact")]
    return logged + [record.artifact for record in run if record.WhichOneof("record_type") == "artifact"]


def settings(run):
    return next(record.run for record in run if record.WhichOneof("record_type") == "run")
