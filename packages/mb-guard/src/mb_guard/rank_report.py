"""The diagnosis of all ranks of a job, printed by rank 0. Imports torch."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist

from mb_guard.doctor import as_data, as_text, exit_code, find_problems, read_facts, verdict
from mb_guard.nodes import differences
from mb_guard.rank_checks import check_collectives, collective_findings, gather, join


def examine_ranks(folder: Path, *, as_json: bool) -> int:
    """Compare the nodes, check the collectives, print the result on rank 0, and return the exit code. Collective.

    The first rank of each node reads the facts about it.
    """
    device = join()
    is_first = os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) == "0"
    facts = read_facts(folder, os.environ) if is_first else None
    own = facts and as_data(facts, find_problems(facts))
    nodes: list[dict[str, Any]] = [each for each in gather(own) if each]
    result = check_collectives(device)
    is_last = dist.get_rank() != 0
    dist.destroy_process_group()
    findings = [
        *differences(nodes),
        *collective_findings(result, nvlinks=nodes[0]["nvlinks"], nodes=len(nodes)),
    ]
    if is_last or facts is None:
        return exit_code(findings)
    everything = [*findings, *find_problems(facts)]
    if as_json:
        data = {
            "nodes": nodes,
            "collectives": asdict(result),
            "findings": [asdict(each) for each in findings],
        }
        text = json.dumps({"verdict": verdict(everything).removeprefix("verdict: "), **data})
    else:
        text = "\n".join(
            [
                f"nodes        {len(nodes)}: {', '.join(node['machine']['host'] for node in nodes)}",
                result.line(),
                *map(str, findings),
                "",
                f"The first node, {facts.machine.host}:",
                as_text(facts, everything[len(findings) :]).rpartition("\n")[0],
                verdict(everything),
            ]
        )
    sys.stdout.write(text + "\n")
    return exit_code(everything)
