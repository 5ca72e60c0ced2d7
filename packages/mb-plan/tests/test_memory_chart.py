"""Memory chart of a plan."""

from xml.etree import ElementTree

from mb_plan import GPU_MEMORY, make_plan, render_memory_chart
from mb_plan.memory.memory_chart import KINDS

SVG = "{http://www.w3.org/2000/svg}"
MODEL = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 256,
    "position_embedding_type": "rope",
    "pipeline_model_parallel_size": 2,
}


def draw(*, train=True, **options):
    batch = {"global_batch_size": 8, "micro_batch_size": 1} if train else {}
    plan = make_plan({"model": MODEL, "train": batch, "dataset": {"seq_length": 32}})
    return plan, ElementTree.fromstring(render_memory_chart(plan, **options))


def heights(root, kind):
    return [float(bar.get("height")) for bar in root.iter(f"{SVG}rect") if bar.get("class") == KINDS[kind]][
        1:
    ]


def words(root):
    return ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]


def test_a_bar_has_the_proportions_of_the_plan():
    plan, root = draw()
    first = plan.stages[0].rank_bytes
    scale = heights(root, "weights")[0] / first.weights
    drawn = [heights(root, kind)[0] / scale for kind in ("gradients", "optimizer", "activations")]
    assert all(
        abs(one / two - 1) < 0.02
        for one, two in zip(drawn, (first.gradients, first.optimizer, first.activations), strict=True)
    )
    assert len(heights(root, "weights")) == 2


def test_the_memory_of_a_gpu_is_a_line_above_everything_that_fits():
    _, root = draw(title="a < b", limit_bytes=GPU_MEMORY["h100"].size, limit="h100")
    (line,) = [line for line in root.iter(f"{SVG}line") if line.get("class") == "limit"]
    tops = [
        float(bar.get("y")) for bar in root.iter(f"{SVG}rect") if bar.get("class") == KINDS["activations"]
    ][1:]
    assert float(line.get("y1")) < min(tops)
    assert {"h100 79 GiB", "a < b", "pipeline stages 0 to 1"} <= set(words(root))


def test_parts_that_are_not_counted_are_in_the_caption():
    _, root = draw(train=False)
    assert words(root)[-1] == "pipeline stages 0 to 1; not counted: activations"


def test_grid_lines_are_few_and_round():
    _, root = draw()
    labels = [float(word) for word in words(root) if word.replace(".", "").isdigit()]
    assert len(labels) < 16


def test_each_memory_size_has_a_source():
    assert all(10**9 < memory.size < 10**12 and memory.source for memory in GPU_MEMORY.values())
    assert round(GPU_MEMORY["h100"].size / 2**30, 1) == 79.1
