"""A step does not depend on how its batch is cut: microbatches, replicas, ranks, padding and packs.

A batch of eight rows with random loss masks, some of them empty, as one microbatch on one rank: any other cut has the
same gradient, and logs the same losses. What is defined on microbatches, `aux_loss` and all losses without
`calculate_per_token_loss`, is compared with the same microbatches on one rank; `global_aux_loss` with microbatches of
the rows of all replicas. One microbatch on one rank is right because it is Megatron's own, which mb-guard does not
change, but for balancing losses under masks: those are compared with full masks in the tests of mb-guard.
"""

from collections.abc import Mapping
from itertools import count

import pytest
import torch
from family_cases import CP2, EP2, EXPERTS, FAMILIES, PP2, RECOMPUTE, SP2, TP2, VP2, FamilyCase, stages
from family_ranks import build, read_start, write_start
from invariance_ranks import Cut, difference, shards, train, train_here, weights

import mb_guard
from mb_guard.catalogue import FAULTS

MASKS = ("all", "random", "answers", "one token")
STRONG = {**EXPERTS, "moe_aux_loss_coeff": 0.5, "moe_z_loss_coeff": 0.05}
BIAS = {
    **EXPERTS,
    "moe_aux_loss_coeff": 0.0,
    "moe_router_load_balancing_type": "none",
    "moe_router_score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
}
SHARED = {"moe_shared_expert_intermediate_size": 24, "moe_shared_expert_gate": True}
SEQUENCES = {**STRONG, "moe_router_load_balancing_type": "seq_aux_loss"}
AHEAD = {"mtp_num_layers": 2, "mtp_loss_scaling_factor": 1.0}
MODELS: Mapping[str, FamilyCase] = {
    "dense": FamilyCase(family="GPT"),
    "latent attention": FamilyCase(family="GPT, latent attention"),
    "aux_loss": FamilyCase(family="GPT", model={**STRONG, "moe_router_load_balancing_type": "aux_loss"}),
    "seq_aux_loss": FamilyCase(family="GPT", model=SEQUENCES),
    "global_aux_loss": FamilyCase(
        family="GPT", model={**STRONG, "moe_router_load_balancing_type": "global_aux_loss"}
    ),
    "expert bias": FamilyCase(family="GPT", model=BIAS),
    "shared experts": FamilyCase(family="GPT", model={**SEQUENCES, **SHARED}),
    "MTP": FamilyCase(family="GPT", model=AHEAD),
    "MTP with experts": FamilyCase(family="GPT", model={**SEQUENCES, **AHEAD, "mtp_num_layers": 1}),
    "means of microbatches": FamilyCase(
        family="GPT", model={**SEQUENCES, **AHEAD, "mtp_num_layers": 1, "calculate_per_token_loss": False}
    ),
    "recomputed": FamilyCase(family="GPT", model={**SEQUENCES, **AHEAD, "mtp_num_layers": 1, **RECOMPUTE}),
    "experts recomputed": FamilyCase(
        family="GPT", model={**SEQUENCES, "recompute_granularity": "selective", "recompute_modules": ["moe"]}
    ),
    "hybrid": FamilyCase(family="hybrid", model=SEQUENCES),
    "hybrid MTP": FamilyCase(family="hybrid", model={**SEQUENCES, "hybrid_layer_pattern": "MG*-E/*E"}),
    "Mamba": FamilyCase(family="hybrid", model={**SEQUENCES, "hybrid_layer_pattern": "M*-ME"}),
    "Mamba MTP": FamilyCase(family="hybrid", model={**SEQUENCES, "hybrid_layer_pattern": "M*-ME/*M"}),
    "T5": FamilyCase(family="T5"),
    "MIMO": FamilyCase(family="MIMO"),
    "LoRA": FamilyCase(family="LoRA"),
}
ONE_RANK = (
    Cut(micro_batch=2),
    Cut(micro_batch=1),
    Cut(micro_batch=4, form="short"),
    Cut(micro_batch=1, form="short"),
    Cut(micro_batch=4, form="packs"),
    Cut(micro_batch=1, form="packs"),
)
TWO_RANKS = (
    Cut(micro_batch=4, ranks=2),
    Cut(micro_batch=1, ranks=2, form="short"),
    Cut(micro_batch=2, ranks=2, form="packs"),
    Cut(micro_batch=4, ranks=2, layout=SP2),
    Cut(micro_batch=2, ranks=2, layout=SP2, form="packs"),
    Cut(micro_batch=8, ranks=2, layout=TP2),
    Cut(micro_batch=2, ranks=2, layout=PP2),
    Cut(micro_batch=2, ranks=2, layout=VP2),
    Cut(micro_batch=2, ranks=2, layout=PP2, form="packs"),
    Cut(micro_batch=4, ranks=2, layout=CP2),
    Cut(micro_batch=2, ranks=2, layout=CP2, form="packs"),
    Cut(micro_batch=2, ranks=2, layout=EP2),
    Cut(micro_batch=2, ranks=2, layout=EP2, form="packs"),
    Cut(micro_batch=2, ranks=2, layout={**PP2, **stages("MG*|-E")}),
    Cut(micro_batch=1, ranks=2, layout={**VP2, **stages("M|G|*-|E")}),
)
FOUR_RANKS = (
    Cut(micro_batch=1, ranks=4),
    Cut(micro_batch=2, ranks=4, layout={**SP2, **PP2}),
    Cut(micro_batch=2, ranks=4, layout={**CP2, **PP2}),
    Cut(micro_batch=2, ranks=4, layout={**SP2, **CP2}),
    Cut(micro_batch=2, ranks=4, layout={**EP2, **PP2}, form="packs"),
)
IN_EVERY_RUN = (
    ("dense", CP2, "padded"),
    ("seq_aux_loss", SP2, "packs"),
    ("seq_aux_loss", EP2, "padded"),
    ("MTP with experts", CP2, "packs"),
    ("global_aux_loss", {}, "padded"),
)
"""Cuts over several ranks that also run outside of the matrix: model, layout and form."""


GATED_DELTA = ("hybrid", "hybrid MTP")
"""Models with gated-delta layers."""


def applies(model: str, cut: Cut) -> bool:
    """Return whether a model supports a cut."""
    row, layout = MODELS[model], cut.layout
    kind, experts = FAMILIES[row.family].kind, row.model.get("num_moe_experts")
    staged, split = "pipeline_model_parallel_size" in layout, "tensor_model_parallel_size" in layout
    if "hybrid_layer_pattern" in layout or (staged and kind == "hybrid"):
        return "hybrid_layer_pattern" in layout and model == "hybrid"
    if kind in ("t5", "mimo") and (cut.form != "padded" or staged):
        return False
    if kind == "t5" and "context_parallel_size" in layout:
        return False
    if (
        kind == "hybrid"
        and cut.form == "packs"
        and (model in GATED_DELTA or "context_parallel_size" in layout)
    ):
        return False  # Megatron Core packs them on a GPU only
    if kind == "hybrid" and split and "context_parallel_size" in layout:
        return False  # too few heads
    if not experts and "expert_model_parallel_size" in layout:
        return False
    if experts and split and "sequence_parallel" not in layout:
        return False
    return not (row.model.get("mtp_num_layers") and "virtual_pipeline_model_parallel_size" in layout)


def cases(cuts: tuple[Cut, ...]) -> list[object]:
    """Return the cases of some cuts; most run in the matrix only."""
    found = []
    for model in MODELS:
        for cut in cuts:
            if not applies(model, cut):
                continue
            always = cut in ONE_RANK[3:5] or (model, cut.layout, cut.form) in IN_EVERY_RUN
            marks = [] if always else [pytest.mark.matrix]
            found.append(pytest.param(model, cut, marks=marks, id=f"{model}, {cut}"))
    return found


class Reference:
    """Steps on one rank, each run once."""

    def __init__(self, groups, folder):
        self.groups, self.folder, self.number = groups, folder, count()
        self.starts, self.steps = {}, {}

    def new_folder(self):
        path = self.folder / str(next(self.number))
        path.mkdir()
        return str(path)

    def start(self, model):
        """Return the folder and the tensors of the initial weights of a model."""
        if model not in self.starts:
            row, folder, own = MODELS[model], self.new_folder(), self.new_folder()
            write_start(row, folder, self.groups)
            _, chunks = build(row, self.groups)
            read_start(chunks, folder)
            torch.save([shard for chunk in chunks for shard in shards(chunk)], f"{own}/0.pt")
            self.starts[model] = folder, weights(own)
        return self.starts[model]

    def step(self, model, cut, mask):
        """Return the folder of the weights, and the losses, of the step that a cut must equal."""
        replicas = cut.ranks
        for name, size in cut.layout.items():
            if name in (
                "tensor_model_parallel_size",
                "pipeline_model_parallel_size",
                "context_parallel_size",
            ):
                replicas //= size
        same, union = Cut(), 0
        if model in ("aux_loss", "means of microbatches"):
            same = Cut(micro_batch=cut.micro_batch)
        if model == "global_aux_loss":
            same, union = Cut(micro_batch=cut.micro_batch), replicas
        key = model, str(same), union, mask
        if key not in self.steps:
            out = self.new_folder()
            row = MODELS[model]
            logged = train(row, same, mask, self.start(model)[0], out, self.groups, union_of=union)
            self.steps[key] = out, logged
        return self.steps[key]


@pytest.fixture(scope="module")
def reference(groups, tmp_path_factory):
    """Return the steps on one rank."""
    mb_guard.install(quiet=True)
    return Reference(groups, tmp_path_factory.mktemp("steps"))


OWN = [(model, "full") for model in MODELS] + [
    (model, mask) for model in ("dense", "MTP", "T5") for mask in MASKS[1:]
]


@pytest.mark.parametrize(("model", "mask"), OWN)
def test_one_microbatch_on_one_rank_is_megatrons_own(model, mask, reference):
    folder, initial = reference.start(model)
    right, losses = reference.step(model, Cut(), mask)
    out = reference.new_folder()
    with mb_guard.without(*(fault.id for fault in FAULTS if fault.patches)):
        logged = train(MODELS[model], Cut(), mask, folder, out, reference.groups)
    assert max(difference(initial, right, out).values()) < 1e-5
    assert logged == pytest.approx(losses, rel=1e-5, abs=1e-6)


def check(reference, model, cut, outs, logged):
    """Compare the steps of all masks."""
    _, initial = reference.start(model)
    for mask, out in outs.items():
        right, losses = reference.step(model, cut, mask)
        apart = difference(initial, right, out)
        assert {name: each for name, each in apart.items() if each > 1e-5} == {}, mask
        assert logged[mask] == {
            name: pytest.approx(value, rel=1e-5, abs=rounded_to_zero(mask) if name == "zeros" else 1e-6)
            for name, value in losses.items()
        }, mask


def rounded_to_zero(mask):
    """Return the number of gradients that may round to zero in another order of additions.

    A token that attends to itself alone has gradients of its query and key that are zero but for rounding, which
    depends on the CPU.
    """
    return 3 * 512 if mask == "one token" else 2


@pytest.mark.parametrize(("model", "cut"), cases(ONE_RANK))
def test_one_rank(model, cut, reference):
    folder, _ = reference.start(model)
    outs = {mask: reference.new_folder() for mask in MASKS}
    logged = {
        mask: train(MODELS[model], cut, mask, folder, out, reference.groups) for mask, out in outs.items()
    }
    check(reference, model, cut, outs, logged)


@pytest.mark.parametrize(("model", "cut"), cases(TWO_RANKS))
def test_two_ranks(model, cut, reference, pool):
    run_on(pool, model, cut, reference)


@pytest.mark.parametrize(("model", "cut"), cases(FOUR_RANKS))
def test_four_ranks(model, cut, reference, four_ranks):
    run_on(four_ranks, model, cut, reference)


def run_on(ranks, model, cut, reference):
    folder, _ = reference.start(model)
    outs = {mask: reference.new_folder() for mask in MASKS}
    found = ranks.run(train_here, MODELS[model], cut, folder, outs)[-1]
    check(reference, model, cut, outs, found)
