"""From a Hugging Face folder and own conversations to an adapted model in transformers and in peft, by the commands.

LoRA on a small Qwen3 from its folder, stopped, resumed under the same and under another layout, merged, exported.
"""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from runs import losses, mb, mb_here, metrics

from mb_trainer.run.saved_run import SavedRun
from mb_trainer.sampling import loaded_model

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
given_files = pytest.importorskip("given_files")

TOKENS = torch.arange(3, 43).reshape(2, 20)


def command(out, *more):
    return [
        *("finetune", "sft_tiny", "checkpoint.pretrained_checkpoint=qwen3", "dataset.dataset_root=chat"),
        "dataset.dataset_kwargs={chat: true, use_hf_tokenizer_chat_template: true}",
        *("dataset.do_test=false", "dataset.seq_length=64", "model.seq_length=64", "train.train_iters=6"),
        *("train.global_batch_size=4", "train.micro_batch_size=2", "validation.eval_iters=1"),
        *("checkpoint.save_interval=3", "optimizer.lr=0.01", "scheduler.lr_warmup_iters=0"),
        *("peft=lora", "peft.dim=4", "--out", out, *more),
    ]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


def logits_of_run(run):
    """Return the logits of Megatron's model with the adapters of a run."""
    saved = SavedRun.find(Path(run), purpose="test", log=print)
    with loaded_model(saved, tokenizer_vocab_size=1) as model, torch.no_grad():
        return model(TOKENS, torch.arange(20).expand(2, -1), None)


@pytest.mark.slow
def test_a_hugging_face_folder_is_adapted_to_conversations_and_goes_back(tmp_path, monkeypatch):
    peft = pytest.importorskip("peft")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MB_CACHE_DIR", str(tmp_path / "cache"))
    given_files.qwen3(tmp_path / "qwen3")
    given_files.conversations(tmp_path / "chat")

    stopped = mb(*command("one", "train.exit_interval=3"))
    assert stopped.returncode == 0, stopped.stderr
    assert "converting qwen3 into Megatron's layout, once" in stopped.stdout
    shutil.copytree("one", "two")
    one = mb(*command("one"))
    assert one.returncode == 0, one.stderr
    assert "converting" not in one.stdout
    changes = ["model.tensor_model_parallel_size=2", "ddp.use_distributed_optimizer=true"]
    changes.append("checkpoint.also_save_hf_checkpoint=true")
    changes.append("checkpoint.hf_distributed_save=true")
    two = mb(*command("two", "--nproc", "2", "--resume-with-changes", *changes))
    assert two.returncode == 0, two.stderr
    assert "step 6 in Hugging Face format in two/checkpoints/iter_0000006/hf" in two.stdout
    assert [row["step"] for row in metrics(tmp_path / "two") if "lm loss" in row] == [1, 2, 3, 4, 5, 6]
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-4)

    for flag in ("merge", "adapters"):
        done = mb_here("export-hf", "two", "--out", flag, f"--{flag}")
        assert done.returncode == 0, done.stderr
    copy = Path("two/checkpoints/iter_0000006/hf")
    assert contents(copy) == contents(Path("merge"))
    load = partial(transformers.AutoModelForCausalLM.from_pretrained, dtype="float32")
    base, merged = load("qwen3").eval(), load("merge").eval()
    assert (logits(base) - logits(merged)).abs().max() > 1e-2
    assert (logits(merged) - logits_of_run("two")[..., :321]).abs().max() < 1e-5
    adapted = peft.PeftModel.from_pretrained(base, "adapters").eval()
    assert (logits(adapted) - logits(merged)).abs().max() < 1e-5
    assert json.loads(Path("adapters/adapter_config.json").read_text())["base_model_name_or_path"] == "qwen3"

    sizes = (
        merged.config.vocab_size,
        merged.config.eos_token_id,
        merged.generation_config.repetition_penalty,
    )
    assert sizes == (321, 2, 1.25)
    texts = [transformers.AutoTokenizer.from_pretrained(name).chat_template for name in ("qwen3", "merge")]
    assert texts[0] == texts[1]
