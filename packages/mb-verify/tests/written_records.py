"""Records as a recorder writes them, without training."""

import json

from mb_verify import compare, read_record

STATE = {"counters: step": "{step}", "random streams: torch": "ab{step}", "parameters: weight": "cd{step}"}
STEP = {"samples: tokens of chunk 0": "a{step},b{step} c{step},d{step}", "losses: lm loss": "2.{step}"}


def written(folder, *, steps, rank=0, start=0, state=STATE, step_values=STEP, reads=True, conditions=None):
    """Write what a recorder writes for some steps, the step before the first one being what was loaded."""
    folder.mkdir(exist_ok=True)
    began = {"kind": "start", "step": steps[0], "values": {"rank": str(rank), "reads": str(reads)}}
    rows = [{**began, "conditions": conditions or {}}]
    for step in steps:
        for kind, values in (("step", step_values), ("state", state)):
            if kind == "state" or step > steps[0]:
                filled = {name: text.format(step=step) for name, text in values.items()}
                rows.append({"kind": kind, "step": step, "values": filled})
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / f"rank-{rank}.{start}.jsonl").write_text(lines)


def compared(tmp_path, **changed):
    """Compare three steps in one start with the same three in two, of which the second is changed."""
    written(tmp_path / "uninterrupted", steps=range(4))
    written(tmp_path / "interrupted", steps=range(3))
    written(tmp_path / "interrupted", steps=range(2, 4), start=1, **changed)
    return compare(read_record(tmp_path / "uninterrupted"), read_record(tmp_path / "interrupted"))
