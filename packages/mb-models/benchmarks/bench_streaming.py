"""Memory for streaming a Hugging Face folder with the shape of Llama 70B, on a machine without a GPU.

The folder is of sparse files: 141 GB that occupy a few MB of disk. Measured is the largest amount of memory that the
operating system cannot take back (RssAnon) above that before, with the model's own parameters counted apart:

* `read`: all 80 layers into a model without storage (meta tensors), as a rank reads them;
* `in and out`: LAYERS layers into a model with memory-mapped parameters, and from it into a new folder, which writes
  1.7 GB of disk for each layer, and 4.2 GB for the embedding and the output layer, twice.

Usage: python bench_streaming.py [LAYERS ...] (default: 1 3)
"""

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import mb_host

mb_host.install(force=True)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.process_groups_config import ProcessGroupCollection  # noqa: E402

from mb_host.megatron.layers import host_block_spec  # noqa: E402
from mb_models import GPTModelProvider  # noqa: E402
from mb_models.hf.conversion import memory_mapped_model, section_of_folder  # noqa: E402
from mb_models.hf.load import load_hf_weights  # noqa: E402
from mb_models.hf.save import save_hf_model  # noqa: E402

WIDTH, INNER, KEYS, VOCABULARY, LAYERS = 8192, 28672, 1024, 128256, 80
GIB = 2**30


def shapes(layers: int) -> dict[str, list[int]]:
    """Return the tensors of the folder, by name."""
    found = {"model.embed_tokens.weight": [VOCABULARY, WIDTH], "lm_head.weight": [VOCABULARY, WIDTH]}
    found["model.norm.weight"] = [WIDTH]
    for number in range(layers):
        stem = f"model.layers.{number}."
        found |= {f"{stem}{name}_layernorm.weight": [WIDTH] for name in ("input", "post_attention")}
        for part, rows in (("q", WIDTH), ("k", KEYS), ("v", KEYS), ("o", WIDTH)):
            found[f"{stem}self_attn.{part}_proj.weight"] = [rows, WIDTH]
        found |= {f"{stem}mlp.{part}_proj.weight": [INNER, WIDTH] for part in ("gate", "up")}
        found[f"{stem}mlp.down_proj.weight"] = [WIDTH, INNER]
    return found


def sparse_folder(folder: Path, *, layers: int) -> int:
    """Write a folder of sparse files, one for each tensor; return its bytes."""
    content = {
        "model_type": "llama",
        "hidden_act": "silu",
        "num_hidden_layers": layers,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(content))
    total = 0
    for number, (name, shape) in enumerate(shapes(layers).items()):
        size = 2 * torch.Size(shape).numel()
        header = json.dumps({name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, size]}}).encode()
        with (folder / f"part-{number:05d}.safetensors").open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + size)
        total += size
    return total


def anonymous_bytes() -> int:
    """Return the memory of this process that is in no file."""
    text = Path("/proc/self/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0]) * 1024


def measured(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of `work`, and the GiB of memory that it needed at most."""
    before, peaks, done = anonymous_bytes(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peaks.append(anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    work()
    elapsed = time.perf_counter() - began
    done.set()
    watcher.join()
    return elapsed, (max(peaks) - before) / GIB


def row(what: str, layers: int, total: int, result: tuple[float, float]) -> None:
    """Print one measurement."""
    elapsed, peak = result
    print(
        f"{what:12} {layers:3} layers {total / 1e9:6.1f} GB {elapsed:7.1f} s   peak {peak:5.2f} GiB",
        flush=True,
    )


def read(folder: Path, groups: ProcessGroupCollection) -> None:
    """Read all tensors of a folder into a model without storage."""
    section = section_of_folder(folder)
    section.transformer_impl, section.perform_initialization = "local", False
    with torch.device("meta"):
        [chunk] = GPTModelProvider(
            section, layer_spec=host_block_spec, device=torch.device("meta")
        ).provide_chunks(groups)
    load_hf_weights([chunk.to("meta")], folder, pg_collection=groups)


def in_and_out(folder: Path, out: Path, groups: ProcessGroupCollection) -> None:
    """Load a folder into memory-mapped parameters, and export them."""
    section = section_of_folder(folder)
    with memory_mapped_model(section, groups=groups, layer_spec=host_block_spec, folder=out) as chunk:
        load_hf_weights([chunk], folder, pg_collection=groups)
        save_hf_model(chunk, out / "hf", config=section, pg_collection=groups)


def main() -> None:
    """Measure both ways."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    groups = ProcessGroupCollection.use_mpu_process_groups()
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        total = sparse_folder(whole, layers=LAYERS)
        row("read", LAYERS, total, measured(lambda: read(whole, groups)))
    for layers in [int(word) for word in sys.argv[1:]] or [1, 3]:
        with tempfile.TemporaryDirectory() as place:
            part, out = Path(place) / "part", Path(place) / "out"
            total = sparse_folder(part, layers=layers)
            row("in and out", layers, total, measured(lambda: in_and_out(part, out, groups)))  # noqa: B023 - called at once


if __name__ == "__main__":
    main()
