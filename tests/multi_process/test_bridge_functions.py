"""Functions of Megatron-Bridge's training package on two ranks: the results of one process."""

import pytest
import torch
from runs import rank_pool, run_ranks

from mb_trainer.requests import read_request

SETTINGS = (
    "gpt_tiny",
    "model.num_layers=2",
    "model.hidden_size=32",
    "model.ffn_hidden_size=64",
    "model.num_attention_heads=4",
    "model.vocab_size=64",
    "model.seq_length=16",
    "dataset.seq_length=16",
    "tokenizer.tokenizer_type=NullTokenizer",
    "tokenizer.tokenizer_model=null",
    "tokenizer.vocab_size=63",
    "train.global_batch_size=4",
    "train.micro_batch_size=1",
    "validation.eval_iters=3",
)


def batches(rank, size):
    """Yield this rank's microbatches of a stream: every `size`-th row of random tokens, with masks of other lengths."""
    generator = torch.Generator().manual_seed(0)
    number = 0
    while True:
        tokens = torch.randint(0, 60, (1, 17), generator=generator)
        mask = torch.randint(0, 2, (1, 16), generator=generator).float()
        if number % size == rank:
            yield {
                "tokens": tokens[:, :-1],
                "labels": tokens[:, 1:],
                "loss_mask": mask,
                "position_ids": torch.arange(16)[None],
            }
        number += 1


def in_a_rank(arguments):
    """Load common weights, evaluate, save, change the weights, load: return what was found."""
    from megatron.core.utils import unwrap_model

    from mb_launch import World
    from mb_trainer.bridge.training.checkpointing import (
        init_checkpointing_context,
        load_checkpoint,
        maybe_finalize_async_save,
        save_checkpoint,
    )
    from mb_trainer.bridge.training.eval import evaluate, evaluate_and_print_results
    from mb_trainer.bridge.training.gpt_step import forward_step
    from mb_trainer.bridge.training.state import GlobalState
    from mb_trainer.run.model import build_model, model_groups, select_layers
    from mb_trainer.run.preflight import resolve_and_check
    from mb_trainer.run.user_code import UserCode

    layout, folder, asynchronous = arguments
    world = World(rank=torch.distributed.get_rank(), world_size=torch.distributed.get_world_size())
    request = read_request(
        [*SETTINGS, *layout, f"checkpoint.save={folder}/own", f"checkpoint.load={folder}/own",
         f"checkpoint.async_save={str(asynchronous).lower()}"]
    )  # fmt: skip
    resolve_and_check(request.config, world_size=world.world_size, provenance=request.provenance)
    config, cpu = request.config, torch.device("cpu")
    with model_groups(world, config, device=cpu) as groups:
        state = GlobalState()
        state.cfg = config
        model = build_model(
            config,
            groups=groups,
            layers=select_layers(config.model, cpu),
            tokenizer_vocab_size=63,
            device=cpu,
            code=UserCode(),
        )
        start = None if world.world_size == 1 else init_checkpointing_context(config.checkpoint)
        if start is not None:
            config.checkpoint.load = f"{folder}/one"
            load_checkpoint(state, model.chunks, None, None)
            config.checkpoint.load = f"{folder}/own"
        chunks, ranks = model.chunks, groups.dp
        losses, collected, stopped = evaluate(
            state, forward_step, batches(ranks.rank(), ranks.size()), chunks, None, config,
            non_loss_data_func=len,
        )  # fmt: skip
        printed = evaluate_and_print_results(
            state, "step 5", forward_step, batches(ranks.rank(), ranks.size()), chunks, config
        )
        state.train_state.step = 5
        config.checkpoint.save = f"{folder}/one" if world.world_size == 1 else config.checkpoint.save
        save_checkpoint(state, chunks, model.optimizer, model.scheduler, 7, checkpointing_context=start)
        maybe_finalize_async_save(state, config.checkpoint, blocking=True, terminate=True)
        right = [
            parameter.detach().clone() for chunk in chunks for parameter in unwrap_model(chunk).parameters()
        ]
        with torch.no_grad():
            for chunk in chunks:
                for parameter in chunk.parameters():
                    parameter.zero_()
        config.checkpoint.load = config.checkpoint.save
        fresh = GlobalState(cfg=config)
        step = load_checkpoint(fresh, chunks, model.optimizer, model.scheduler, pg_collection=groups)
        found = [parameter for chunk in chunks for parameter in unwrap_model(chunk).parameters()]
        return {
            "losses": {name: float(loss) for name, loss in losses.items()},
            "printed": {name: float(loss) for name, loss in printed.items()},
            "others": (
                collected,
                stopped,
                step,
                fresh.train_state.step,
                state.train_state.consumed_valid_samples,
            ),
            "equal": all(torch.equal(a, b) for a, b in zip(right, found, strict=True)),
            "is_last_stage": groups.pp.rank() == groups.pp.size() - 1,
        }


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """The folder of a checkpoint of one process, and its losses."""
    folder = tmp_path_factory.mktemp("one")
    [found] = run_ranks(in_a_rank, 1, ((), folder, False))
    return folder, found["losses"]


@pytest.fixture(scope="module")
def two_ranks():
    with rank_pool(2) as pool:
        yield pool


@pytest.mark.parametrize(
    ("layout", "asynchronous"),
    [
        ((), True),
        (("model.tensor_model_parallel_size=2", "model.sequence_parallel=true"), False),
        (("model.pipeline_model_parallel_size=2",), True),
        (("model.context_parallel_size=2",), False),
    ],
    ids=["dp", "tp", "pp", "cp"],
)
def test_an_evaluation_and_a_checkpoint_of_two_ranks_are_those_of_one(
    two_ranks, one_process, layout, asynchronous
):
    folder, losses = one_process
    for found in two_ranks.run(in_a_rank, (layout, folder, asynchronous)):
        right = pytest.approx(losses, rel=1e-4) if found["is_last_stage"] else {}
        assert (found["losses"], found["printed"]) == (right, right)
        # twelve samples in each evaluation, after those that the checkpoint counts
        assert found["others"] == (1, False, (5, 7), 5, 24 + 24)
        assert found["equal"]
