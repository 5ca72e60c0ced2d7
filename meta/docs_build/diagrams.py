"""Write the diagrams of the documentation: `python diagrams.py` writes `../docs/assets/*.svg`, which are committed.

A diagram has its own light background, so that it reads in both colour schemes and on a code host.
"""

from collections.abc import Iterable
from html import escape
from pathlib import Path

ASSETS = Path(__file__).parents[1] / "docs" / "assets"
INK, MUTED, LINE, PAPER = "#1f2d3a", "#5b6b7a", "#9fb0bf", "#f6f8fa"
FILLS = {
    "plain": "#ffffff",
    "main": "#d9eef2",
    "good": "#dff3e4",
    "bad": "#fbe3df",
    "note": "#fdf3d7",
    "none": "none",
}
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif"


class Diagram:
    """Boxes, arrows and texts of an SVG file."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
            f'font-family="{FONT}" font-size="13" fill="{INK}"><title>{escape(title)}</title>',
            '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="{MUTED}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" rx="10" fill="{PAPER}" stroke="{LINE}" stroke-opacity="0.5"/>',
        ]

    def box(
        self, at: tuple[int, int], size: tuple[int, int], title: str, *lines: str, kind: str = "plain"
    ) -> None:
        """Draw a box with a bold title and further lines, all centred."""
        (x, y), (width, height) = at, size
        dashed = ' stroke-dasharray="5 4"' if kind == "none" else ""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{FILLS[kind]}" '
            f'stroke="{LINE}"{dashed}/>'
        )
        texts = ([(title, "600", INK)] if title else []) + [(line, "400", MUTED) for line in lines]
        top = y + 18 if kind == "none" else y + height / 2 - (len(texts) - 1) * 8.5 + 4.5
        for number, (text, weight, colour) in enumerate(texts):
            size_of_text = 13 if weight == "600" else 11.5
            self.text(
                (x + width // 2, round(top + 17 * number)),
                text,
                weight=weight,
                colour=colour,
                size=size_of_text,
            )

    def text(
        self,
        at: tuple[int, int],
        text: str,
        *,
        weight: str = "400",
        colour: str = INK,
        size: float = 13,
        anchor: str = "middle",
    ) -> None:
        """Draw a line of text."""
        self.parts.append(
            f'<text x="{at[0]}" y="{at[1]}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" '
            f'fill="{colour}">{escape(text)}</text>'
        )

    def arrow(self, *points: tuple[int, int], both: bool = False) -> None:
        """Draw an arrow along some points."""
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        start = ' marker-start="url(#end)"' if both else ""
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{MUTED}" stroke-width="1.4" marker-end="url(#end)"{start}/>'
        )

    def save(self, name: str) -> None:
        """Write the file."""
        (ASSETS / f"{name}.svg").write_text("\n".join([*self.parts, "</svg>", ""]), encoding="utf-8")


def packages() -> None:
    """Draw the packages and the trainer above them."""
    drawn = Diagram(
        860, 400, "Packages that import none of each other, on mb-schema, and mb-trainer, which wires them"
    )
    drawn.box(
        (20, 18),
        (820, 58),
        "mb-trainer",
        "recipes, wiring, the command mb: no algorithm of its own",
        kind="main",
    )
    parts = (
        ("mb-config", "typed configuration", "overrides, rules"),
        ("mb-plan", "memory, step time", "best layouts"),
        ("mb-data", "text to tokens to samples", "exact position"),
        ("mb-models", "Megatron Core models", "adapters, weights"),
        ("mb-loop", "step, evaluation, exits", "callbacks"),
        ("mb-checkpoint", "crash-consistent saves", "exact resume"),
        ("mb-metrics", "loss, throughput, MFU", "sinks, reports"),
        ("mb-resilience", "agreed stops, hangs", "slow ranks, restarts"),
        ("mb-overlap", "communication overlap", "presets, rules"),
        ("mb-launch", "ranks, groups, seeds", "Slurm"),
        ("mb-verify", "proof of an exact", "resume"),
        ("mb-guard", "known faults of", "Megatron Core"),
        ("mb-host", "Megatron Core", "without a GPU"),
        ("mb-schema", "rules, sections, secrets", "the ground of all others"),
    )
    for number, (name, *lines) in enumerate(parts):
        row, column = divmod(number, 5)
        drawn.box((20 + 166 * column, 118 + 86 * row), (156, 72), name, *lines)
    for column in range(5):
        drawn.arrow((98 + 166 * column, 76), (98 + 166 * column, 116))
    drawn.text((740, 318), "no arrow between", size=12, colour=MUTED)
    drawn.text((740, 334), "any two of the others", size=12, colour=MUTED)
    drawn.text(
        (430, 384), "plain values, torch's types and small Protocols cross the edges", size=12, colour=MUTED
    )
    drawn.save("packages")


def step() -> None:
    """Draw the way of a step."""
    drawn = Diagram(860, 520, "The way of a step, from the command line to the exit")
    for number, (name, *lines) in enumerate(
        (
            ("recipe, files, overrides", "mb-config"),
            ("check, resolve, check", "all rules"),
            ("build", "groups, model, data, ..."),
            ("load", "newest intact checkpoint"),
        )
    ):
        drawn.box((20 + 210 * number, 20), (190, 54), name, *lines, kind="main" if number == 1 else "plain")
        if number:
            drawn.arrow((20 + 210 * number - 20, 47), (20 + 210 * number - 2, 47))
    drawn.arrow((745, 74), (745, 96), (215, 96), (215, 126))
    drawn.box((20, 112), (390, 392), "", kind="none")
    drawn.text((30, 130), "train_step (mb-loop)", anchor="start", weight="600", size=12)
    inside = (
        ("data iterator", "global batch, in microbatches (mb-data)"),
        ("forward and backward", "Megatron's schedule, mb-models' forward step"),
        ("gradients", "reduced over data-parallel ranks, clipped"),
        ("optimizer, then scheduler", "a step with infinite gradients is skipped"),
        ("StepResult", "losses stay tensors on the device"),
    )
    for number, (name, line) in enumerate(inside):
        drawn.box((50, 144 + 70 * number), (330, 52), name, line, kind="good" if number == 4 else "plain")
        if number:
            drawn.arrow((215, 144 + 70 * number - 18), (215, 144 + 70 * number - 2))
    after = (
        ("callbacks, in order", "metrics.record: one row on the device", "heartbeat, profiler, events"),
        ("evaluation", "if due, or the last step", ""),
        ("checkpoint", "if due; written in the background", "a poll after each step"),
        ("exit decision", "signal, duration, length, slow rank:", "agreed by all ranks"),
    )
    for number, (name, *lines) in enumerate(after):
        drawn.box((470, 126 + 92 * number), (350, 74), name, *filter(None, lines))
        if number:
            drawn.arrow((645, 126 + 92 * number - 18), (645, 126 + 92 * number - 2))
    drawn.arrow((380, 450), (440, 450), (440, 163), (468, 163))
    drawn.arrow((645, 476), (645, 490), (30, 490), (30, 170), (48, 170))
    drawn.text((430, 484), "next step", size=11.5, colour=MUTED)
    drawn.text((735, 492), "or TrainOutcome", size=11.5, colour=MUTED)
    drawn.save("step")


def checkpoint() -> None:
    """Draw the order of a save, and what a kill leaves."""
    drawn = Diagram(
        860, 300, "The commit of a checkpoint: the order of a save, and what a kill at each moment leaves"
    )
    parts = (
        ("stage", "to the host"),
        ("write", "data, hashed"),
        ("fsync", "each file"),
        ("manifest", "sizes, hashes"),
        ("fsync", "the folder"),
        ("rename", "iter_0000100"),
        ("trackers", "name it"),
        ("prune", "old ones"),
    )
    for number, (name, line) in enumerate(parts):
        x = 16 + 105 * number
        drawn.box((x, 30), (93, 58), name, line, kind="main" if name == "trackers" else "plain")
        if number:
            drawn.arrow((x - 12, 59), (x - 1, 59))
    drawn.box((16, 108), (93, 34), "", "training waits", kind="note")
    drawn.box(
        (121, 108),
        (723, 34),
        "",
        "in a process of its own, with async_save: training continues and polls",
        kind="note",
    )
    drawn.text((16, 176), "A kill here leaves, and a resume reads:", anchor="start", weight="600")
    drawn.box(
        (16, 190),
        (618, 44),
        "",
        "the previous checkpoint; the unfinished folder is removed later",
        kind="bad",
    )
    drawn.box((646, 190), (93, 44), "", "one or", "the other", kind="note")
    drawn.box((751, 190), (93, 44), "", "the new one", kind="good")
    drawn.text(
        (16, 270),
        "Never a mixture: a checkpoint is complete once it has its name, and current",
        anchor="start",
        size=12,
        colour=MUTED,
    )
    drawn.text(
        (16, 286),
        "once the trackers have been replaced, each by one atomic rename.",
        anchor="start",
        size=12,
        colour=MUTED,
    )
    drawn.save("checkpoint")


def resolving() -> None:
    """Draw where values come from and what resolving does."""
    drawn = Diagram(860, 330, "Resolving: where values come from, and what fills in the others")
    for number, (name, line) in enumerate(
        (
            ("class default", "lowest"),
            ("recipe", "gpt_tiny"),
            ("files", "base, --config"),
            ("command line", "highest"),
        )
    ):
        drawn.box((20, 24 + 68 * number), (160, 52), name, line)
        drawn.arrow((180, 50 + 68 * number), (230, 50 + 68 * number), (230, 152), (258, 152))
    drawn.box((260, 116), (150, 72), "configuration", "each value knows", "its origin")
    drawn.arrow((410, 152), (448, 152))
    drawn.box((450, 116), (130, 72), "check", "all rules,", "as written")
    drawn.arrow((580, 152), (618, 152))
    drawn.box((620, 116), (150, 72), "resolve", "fills in what follows", "from other values", kind="main")
    drawn.arrow((695, 188), (695, 232), (580, 232))
    drawn.box((450, 206), (130, 52), "check again", "as resolved")
    drawn.arrow((450, 232), (412, 232))
    drawn.box((260, 206), (150, 52), "run_config.yaml", "what the run uses", kind="good")
    drawn.box(
        (450, 28),
        (320, 58),
        "",
        "errors: exit code 1, all problems together,",
        "each with values, origin, reason and fix",
        kind="bad",
    )
    drawn.arrow((515, 116), (515, 88))
    drawn.box(
        (620, 256),
        (220, 54),
        "",
        "a value that the user set stays;",
        "what cannot stay is an error",
        kind="note",
    )
    drawn.text((260, 290), "list of changes: field, from, to, reason", anchor="start", size=12, colour=MUTED)
    drawn.save("resolving")


def process_groups() -> None:
    """Draw the groups of eight ranks under TP 2, PP 2, DP 2."""
    drawn = Diagram(860, 400, "Process groups of eight ranks: tensor 2, pipeline 2, data 2")
    stages = (("pipeline stage 0", "layers 0 to 15"), ("pipeline stage 1", "layers 16 to 31"))
    for stage, (name, line) in enumerate(stages):
        left = 150 + 360 * stage
        drawn.text((left + 140, 32), f"{name}: {line}", weight="600")
        for replica in range(2):
            top = 60 + 150 * replica
            drawn.box((left, top), (280, 96), "tensor-parallel group", kind="none")
            for tensor in range(2):
                rank = tensor + 2 * replica + 4 * stage
                box = (left + 24 + 128 * tensor, top + 30)
                drawn.box(box, (104, 50), f"rank {rank}", f"matrix half {tensor}", kind="main")
        for tensor in range(2):
            x = left + 76 + 128 * tensor
            drawn.arrow((x, 156), (x, 210), both=True)
    for replica in range(2):
        y = 108 + 150 * replica
        drawn.arrow((430, y), (510, y), both=True)
        drawn.text((78, y - 4), f"replica {replica}", weight="600")
        drawn.text((78, y + 13), f"half {replica} of the batch", size=11.5, colour=MUTED)
    drawn.text((470, 98), "activations", size=11.5, colour=MUTED)
    drawn.text((470, 248), "activations", size=11.5, colour=MUTED)
    drawn.text((290, 187), "gradients", size=11.5, colour=MUTED)
    drawn.text((650, 187), "gradients", size=11.5, colour=MUTED)
    rows = (
        ("tensor (TP)", "0 1 | 2 3 | 4 5 | 6 7", "every layer: fastest links"),
        ("data (DP)", "0 2 | 1 3 | 4 6 | 5 7", "once per step: gradients, parameters"),
        ("pipeline (PP)", "0 4 | 1 5 | 2 6 | 3 7", "per microbatch: one tensor"),
    )
    for number, (name, groups, use) in enumerate(rows):
        y = 336 + 22 * number
        drawn.text((150, y), name, anchor="start", weight="600", size=12)
        drawn.text((270, y), groups, anchor="start", size=12)
        drawn.text((470, y), use, anchor="start", size=12, colour=MUTED)
    drawn.save("process-groups")


def main(diagrams: Iterable = (packages, step, checkpoint, resolving, process_groups)) -> None:
    """Write all diagrams."""
    for draw in diagrams:
        draw()


if __name__ == "__main__":
    main()
