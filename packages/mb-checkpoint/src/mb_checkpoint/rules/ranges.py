"""Rules of the `checkpoint` section that bound a number."""

from math import inf

from mb_schema.rule_kinds import in_range
from mb_schema.rules import Rule

MAX_THREADS = 1024
"""Upper bound of the number of threads of one rank; larger values are typing errors."""

_BOUNDS: tuple[tuple[int, str, int, float, int, str, str], ...] = (
    (16, "save_retain_interval", 1, inf, 1000,
     "it is the interval in steps of the checkpoints that are never deleted", "1 or more, or to null"),
    (17, "async_hang_seconds", 1, inf, 600,
     "a background process that writes nothing for this time is killed, and a disk may pause briefly",
     "1 or more, such as 600"),
    (18, "async_ckpt_cpu_priority", 0, 19, 10,
     "it is a nice value, and a process can only lower its own priority", "0 to 19"),
    (21, "async_ckpt_io_priority", 0, 3, 3,
     "the classes are 0 to 3", "0 to 3, or to null for the default of the system"),
    (37, "dist_ckpt_workers", 1, MAX_THREADS, 1,
     "each rank that writes starts that many threads", f"1 to {MAX_THREADS}"),
    (38, "ckpt_step", 0, inf, 100,
     "steps are counted from 0", "the step of a checkpoint, or leave it out for the newest"),
    (39, "replication_jump", 1, inf, 8,
     "it is the distance in ranks between two holders of the same copy", "the number of ranks on a node, or to null"),
    (40, "replication_factor", 1, inf, 2,
     "it counts the nodes that hold each copy", "2 or more"),
    (59, "hf_save_every_n_ranks", 1, inf, 8,
     "it is the distance in ranks between two that write", "the number of ranks on a node, or to 1 for all ranks"),
)  # fmt: skip
"""Number of the rule, name, lowest and highest value, example of a valid one, reason, and the value to set."""

NUMBERS: tuple[Rule, ...] = tuple(
    in_range(
        f"CK{number}",
        f"checkpoint.{name}",
        low,
        high,
        why=why,
        fix=f"Set checkpoint.{name} to {valid}.",
        passes=example,
    )
    for number, name, low, high, example, why, valid in _BOUNDS
)
