"""Resource plans: parameters and stages. tests/end_to_end compares them with models that Megatron builds."""

from types import SimpleNamespace

import pytest

from mb_plan import PlanError, make_plan, read_shape
from mb_plan.shape.products import layer_products

LLAMA_8B = {
    "num_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_query_groups": 8,
    "ffn_hidden_size": 14336,
    "gated_linear_unit": True,
    "bias_activation_fusion": True,
    "normalization": "RMSNorm",
    "add_bias_linear": False,
    "position_embedding_type": "rope",
    "vocab_size": 128256,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "bf16": True,
}
DEEPSEEK_V3 = {
    "num_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "ffn_hidden_size": 18432,
    "moe_ffn_hidden_size": 2048,
    "num_moe_experts": 256,
    "moe_router_topk": 8,
    "moe_layer_freq": [0] * 3 + [1] * 58,
    "moe_shared_expert_intermediate_size": 2048,
    "gated_linear_unit": True,
    "normalization": "RMSNorm",
    "add_bias_linear": False,
    "qk_layernorm": True,
    "position_embedding_type": "rope",
    "vocab_size": 129280,
    "transformer": {
        "multi_latent_attention": True,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_head_dim": 128,
        "qk_pos_emb_head_dim": 64,
        "v_head_dim": 128,
    },
    "bf16": True,
}
HUGE = 999_999_999
TINY = {
    "num_layers": 4,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "vocab_size": 16,
    "position_embedding_type": "rope",
}


def run(model, *, world_size=None, **train):
    sections = {
        "model": model,
        "train": {"global_batch_size": 128, "micro_batch_size": 1, **train},
        "optimizer": {"bf16": True},
        "ddp": {"use_distributed_optimizer": True, "grad_reduce_in_fp32": True},
        "dataset": {"seq_length": 8192},
    }
    return make_plan(sections, world_size=world_size)


def test_a_published_dense_model():
    plan = run(LLAMA_8B, world_size=8)
    assert (plan.parameters, plan.active_parameters, plan.embedding_parameters) == (
        8_030_261_248,
        8_030_261_248,
        2 * 128256 * 4096,
    )


def test_a_published_moe_model_with_latent_attention():
    plan = run(DEEPSEEK_V3)
    assert (plan.parameters, plan.active_parameters) == (671_026_404_352, 37_552_282_624)


VISION_LANGUAGE = {
    **TINY,
    "vision_num_layers": 1,
    "vision_hidden_size": 4,
    "vision_num_attention_heads": 2,
    "image_size": 4,
    "patch_size": 2,
}


ENCODER = 3 * 4 * 4 + 4 + 4 * 4 + 4 * 4 * 5 + 16 * 9 + 4 + 2 * 8 + 8


@pytest.mark.parametrize(
    ("layout", "fewest", "stages"),
    [
        ({}, 1, 1),
        ({"vision_tensor_model_parallel_size": 2}, 2, 1),
        ({"language_rank_offset": 2}, 3, 2),
        ({"language_rank_offset": 2, "tensor_model_parallel_size": 2}, 4, 2),
    ],
)
def test_encoder_and_language_model(layout, fewest, stages):
    plan = run({**VISION_LANGUAGE, **layout}, global_batch_size=4)
    assert (plan.world_size, len(plan.stages), plan.num_microbatches) == (fewest, stages, 4)
    assert plan.bubble_fraction == (0.0 if stages == 1 else None)
    assert plan.peak.rank_bytes.activations > 0
    assert (plan.parts["encoder"], plan.parts["projection"]) == (ENCODER, 8 * 5 + 8 * 9)


def test_processes_that_do_not_fit_the_modules_are_noted():
    plan = run({**VISION_LANGUAGE, "language_rank_offset": 2, "tensor_model_parallel_size": 2}, world_size=3)
    assert "leave the encoder 2 ranks for tp 2, and the language model 1 for tp 2" in plan.notes[0]


def test_replicas_that_do_not_divide_each_other_are_noted():
    plan = run(
        {**VISION_LANGUAGE, "language_rank_offset": 2, "vision_tensor_model_parallel_size": 1}, world_size=5
    )
    assert "have 2 replicas of the encoder and 3 of the language model" in plan.notes[0]


T5_BASE = {
    "num_layers": 12,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "ffn_hidden_size": 3072,
    "normalization": "RMSNorm",
    "add_bias_linear": False,
    "position_embedding_type": "rope",
    "share_embeddings_and_output_weights": True,
    "seq_length": 512,
    "decoder_seq_length": 128,
    "vocab_size": 32128,
}


def test_an_encoder_and_its_decoder():
    plan = run(T5_BASE)
    assert plan.parts == {
        "norms": 12 * 5 * 768 + 2 * 768,
        "attention": 24 * 4 * 768**2,
        "cross_attention": 12 * 4 * 768**2,
        "mlp": 24 * 2 * 768 * 3072,
        "embedding": 32128 * 768,
        "output": 32128,
    }
    [stage] = plan.stages
    assert stage.layers == 24
    assert stage.rank_bytes.activations > 0
    assert "tokens are those of the encoder" in plan.notes


def test_an_encoder_with_its_own_number_of_layers_and_positions_for_the_longer_sequence():
    learned = {**T5_BASE, "position_embedding_type": "learned_absolute", "decoder_seq_length": 600}
    assert run(learned).parts["positions"] == 600 * 768
    assert run({**T5_BASE, "encoder_num_layers": 6}).parts["attention"] == 18 * 4 * 768**2


def test_all_fields_of_a_small_plan():
    plan = run({**LLAMA_8B, "pipeline_model_parallel_size": 4}, world_size=64)
    flops = {
        "attention_linear": 6 * 32 * 4096 * (2 * 4096 + 2 * 1024),
        "attention_core": 6 * 32 * 8192 * 4096,
        "mlp": 6 * 32 * 3 * 4096 * 14336,
        "logits": 6 * 4096 * 128_256,
    }
    assert plan.to_dict() == {
        "parameters": {
            "total": 8_030_261_248,
            "adapters": None,
            "active": 8_030_261_248,
            "embedding": 1_050_673_152,
            "per_stage": [2_270_232_576, 1_744_896_000, 1_744_896_000, 2_270_236_672],
            "per_rank_max": 2_270_236_672,
        },
        "bytes_per_rank": {
            "weights": 2 * 2_270_232_576,
            "gradients": 4 * 2_270_232_576,
            "optimizer": 12 * 2_270_232_576 // 16,
            "activations": 36_540_776_448,
            "total": 51_864_846_336,
        },
        "flops_per_token": {"total": sum(flops.values()), **flops},
        "flops_per_step": sum(flops.values()) * 128 * 8192,
        "overhead_bytes": {
            "cuda": 640 * 2**20,
            "nccl": 2 * 256 * 2**20,
            "fragmentation": 1_827_038_822,
            "graphs": 0,
        },
        "num_microbatches": 8,
        "data_parallel_size": 16,
        "bubble_fraction": 3 / 11,
        "checkpoint_bytes": 14 * 8_030_261_248,
    }


def test_adapters_alone_have_gradients_and_a_state_in_the_optimizer():
    peft = {
        "_target_": "mb_models.LoRA",
        "dim": 32,
        "target_modules": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"],
    }
    model = {**LLAMA_8B, "bf16": True, "recompute_granularity": None}
    plan = make_plan({"model": model, "peft": peft}, world_size=1)
    widths = (
        (4096 + 6144) + (4096 + 4096) + (4096 + 2 * 14336) + (14336 + 4096)
    )  # inputs and outputs of each layer
    trained = 32 * 32 * widths
    memory = plan.peak.rank_bytes
    assert (plan.parameters, plan.adapter_parameters) == (8_030_261_248, trained)
    assert memory.weights == 2 * (8_030_261_248 + trained)
    assert (memory.gradients, memory.optimizer) == (2 * trained, 12 * trained)
    assert plan.checkpoint_bytes == 14 * trained


def test_a_method_whose_trained_weights_are_not_known_is_rejected():
    with pytest.raises(PlanError, match="peft: what dict trains is not known"):
        make_plan({"model": LLAMA_8B, "peft": {"dim": 4}})
    single = {"dim": 4, "target_modules": ["*.local_experts.3.linear_fc1"]}
    with pytest.raises(PlanError, match="selects single experts"):
        make_plan({"model": LLAMA_8B, "peft": single})
    experts = {**LLAMA_8B, "num_moe_experts": 8, "moe_router_topk": 2, "moe_grouped_gemm": True}
    divided = {"dim": 7, "target_modules": ["linear_fc1"], "normalize_moe_lora": True}
    with pytest.raises(PlanError, match=r"peft\.dim: 7 is not a multiple of model\.moe_router_topk=2"):
        make_plan({"model": experts, "peft": divided})


def test_a_model_without_images_has_no_image_encoder():
    with pytest.raises(PlanError, match="vision_num_layers"):
        read_shape(TINY).image_encoder  # noqa: B018 - a property that raises


def test_the_peak_stage_is_the_first_for_large_activations_and_the_last_for_a_large_output_layer():
    wide = {**LLAMA_8B, "pipeline_model_parallel_size": 4}
    assert run(wide, world_size=64).peak_stage == 0
    recomputed = {**wide, "recompute_granularity": "full", "recompute_method": "uniform"}
    assert run(recomputed, world_size=64).peak_stage == 3


def test_without_a_world_size_one_replica_is_planned():
    plan = run({**LLAMA_8B, "tensor_model_parallel_size": 2, "context_parallel_size": 2})
    assert (plan.world_size, plan.data_parallel_size, plan.num_microbatches) == (4, 1, 128)


@pytest.mark.parametrize(
    ("train", "microbatches", "tokens", "note"),
    [
        ({"step_batch_size_schedule": "0:64 1B:256"}, 32, 256 * 8192, "planned for the last batch size, 256"),
        ({"step_batch_size_schedule": "0:64"}, 8, 64 * 8192, None),
        ({"rampup_batch_size": [64, 64, 1000]}, 16, 128 * 8192, "planned for the last batch size, 128"),
        ({"step_batch_size_schedule": "64"}, None, None, None),  # TR08 refuses it
        ({"global_batch_size": None}, None, None, None),
    ],
)
def test_a_batch_that_changes_is_planned_with_its_last_size(train, microbatches, tokens, note):
    plan = run(LLAMA_8B, world_size=8, **train)
    assert (plan.num_microbatches, plan.tokens_per_step) == (microbatches, tokens)
    assert [text for text in plan.notes if "batch" in text] == ([] if note is None else [note])


def test_experts_can_require_more_processes_than_the_dense_part():
    experts = {"num_moe_experts": 16, "expert_model_parallel_size": 4, "tensor_model_parallel_size": 2}
    assert read_shape({**TINY, **experts, "context_parallel_size": 2}).smallest_world == 8
    one = {**TINY, **experts, "expert_tensor_parallel_size": 1, "context_parallel_size": 3}
    assert read_shape(one).smallest_world == 12
    with pytest.raises(PlanError, match="context_parallel_size: must be an integer of at least 1"):
        read_shape({**TINY, "context_parallel_size": 0})


def test_unknown_values_are_none_and_noted():
    plan = make_plan({"model": {**TINY, "tensor_model_parallel_size": 2}}, world_size=3)
    assert (plan.data_parallel_size, plan.num_microbatches, plan.bubble_fraction) == (None, None, None)
    assert (plan.peak.rank_bytes.activations, plan.peak.rank_bytes.total) == (None, None)
    assert plan.notes == (
        "3 processes are not a multiple of tp x pp x cp = 2",
        "the sequence length is not known, so that floating-point operations are not counted",
    )


def test_a_note_on_activations_of_local_layers():
    assert (
        "local layers without fused kernels save more"
        in run({**LLAMA_8B, "transformer_impl": "local"}).notes[0]
    )


def test_sections_can_be_objects_with_fields_in_a_transformer_mapping():
    model = SimpleNamespace(**{**TINY, "num_layers": 2}, transformer={"mtp_num_layers": 1})
    with_mtp = make_plan({"model": model}).parameters
    assert with_mtp - make_plan({"model": {**TINY, "num_layers": 2}}).parameters == 3 * 16 + 128 + 872


def test_down_projections_of_latent_attention_are_replicated_with_transformer_engine():
    model = {**DEEPSEEK_V3, "tensor_model_parallel_size": 8}
    engine, local = run(model), run({**model, "transformer_impl": "local"})
    assert engine.parameters == local.parameters
    copied = 61 * 7168 * (1536 + 512 + 64)
    assert engine.stages[0].rank_parameters - local.stages[0].rank_parameters == copied * 7 // 8


def test_the_vocabulary_size_can_be_passed():
    model = {name: value for name, value in TINY.items() if name != "vocab_size"}
    assert make_plan({"model": model}, vocab_size=16).parameters == make_plan({"model": TINY}).parameters


@pytest.mark.parametrize(
    ("layout", "layers"),
    [
        ({"pipeline_model_parallel_size": 2}, [2, 2]),
        ({"pipeline_model_parallel_size": 2, "num_layers_in_first_pipeline_stage": 1}, [1, 3]),
        ({"pipeline_model_parallel_size": 2, "num_layers_in_last_pipeline_stage": 1}, [3, 1]),
        ({"pipeline_model_parallel_size": 3, "account_for_embedding_in_pipeline_split": True,
          "account_for_loss_in_pipeline_split": True}, [1, 2, 1]),
        ({"pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "Et*3|tL"}, [3, 1]),
        ({"pipeline_model_parallel_size": 2, "pipeline_model_parallel_layout": "E|(t|)*2ttL"}, [1, 3]),
        ({"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2}, [2, 2]),
        ({"pipeline_model_parallel_size": 2, "hybrid_layer_pattern": "M-M*"}, [2, 2]),
        ({"pipeline_model_parallel_size": 2, "hybrid_layer_pattern": "M-M*",
          "num_layers_in_last_pipeline_stage": 1}, [3, 1]),
    ],
)  # fmt: skip
def test_layers_of_the_stages(layout, layers):
    assert [stage.layers for stage in make_plan({"model": {**TINY, **layout}}).stages] == layers


PP2 = {"pipeline_model_parallel_size": 2}


@pytest.mark.parametrize(
    ("change", "blamed"),
    [
        ({"is_hybrid_model": True}, "model.is_hybrid_model: is not supported"),
        ({"vision_num_layers": 2}, "model.vision_hidden_size: must be an integer of at least 1"),
        (
            {
                "vision_num_layers": 2,
                "vision_hidden_size": 9,
                "vision_num_attention_heads": 2,
                "image_size": 8,
                "patch_size": 3,
            },
            "9 channels for 2 heads, and patches of 3 in images of 8 pixels",
        ),
        ({"hybrid_layer_pattern": "M+"}, "'M+' is invalid (+)"),
        ({"hybrid_layer_pattern": "|"}, "no layers"),
        ({"hybrid_layer_pattern": ""}, "no layers"),
        ({"hybrid_layer_pattern": "ME"}, "model.num_moe_experts: is not set"),
        ({"hybrid_layer_pattern": "M*/*/-"}, "multi-token predictions with the layers '*', '-'"),
        ({"hybrid_layer_pattern": "M*/"}, "multi-token predictions with the layers ''"),
        ({**PP2, "hybrid_layer_pattern": "M|*|-"}, "has 3 parts for 2 stages"),
        ({"hybrid_layer_pattern": "M", "tensor_model_parallel_size": 16}, "heads in 8 groups cannot be split into 16"),
        ({**PP2, "decoder_seq_length": 8}, "an encoder and its decoder are one stage"),
        ({"gtp_weight_remat_size": 2}, "model.gtp_weight_remat_size: is not supported"),
        ({"window_size": [4, 0], "window_attn_skip_freq": [1]}, "model.window_attn_skip_freq: [1] is not valid"),
        ({"num_layers": None}, "model.num_layers: must be an integer of at least 1"),
        ({"hidden_size": True}, "model.hidden_size: must be an integer of at least 1"),
        ({"vocab_size": None}, "model.vocab_size: is not set"),
        ({"position_embedding_type": "learned_absolute"}, "model.seq_length: is not set"),
        ({"num_moe_experts": 2, "moe_layer_freq": [1]}, "model.moe_layer_freq: [1] is not valid"),
        ({"num_moe_experts": 3, "expert_model_parallel_size": 2}, "model.num_moe_experts: 3 experts"),
        ({"vocab_size": 17, "tensor_model_parallel_size": 2}, "model.vocab_size: 17 cannot be split"),
        ({"pipeline_model_parallel_size": 3}, "model.num_layers: 4 layers cannot be divided equally over 3 stages"),
        ({**PP2, "num_layers_in_first_pipeline_stage": 4, "num_layers_in_last_pipeline_stage": 1},
         "is 4, but the stages have 5 layers"),
        ({**PP2, "num_layers_in_first_pipeline_stage": 1, "account_for_loss_in_pipeline_split": True}, "excludes"),
        ({**PP2, "num_layers": 3, "virtual_pipeline_model_parallel_size": 3,
          "account_for_loss_in_pipeline_split": True}, "2 layers cannot be divided equally over 3 virtual stages"),
        ({**PP2, "pipeline_model_parallel_layout": "Ett|xxL"}, "is not a layout"),
        ({**PP2, "pipeline_model_parallel_layout": 7}, "is not a layout"),
        ({**PP2, "pipeline_model_parallel_layout": "Ett|t|tL"}, "3 parts do not match pp=2"),
        ({**PP2, "pipeline_model_parallel_layout": "Ett|ttmL"}, "has 1 layers of multi-token prediction, but"),
        ({**PP2, "pipeline_model_parallel_layout": "Ett|tL"}, "is 4, but the stages have 3 layers"),
        ({"num_layers": HUGE}, "model.num_layers: 999,999,999 layers exceed"),
        ({"num_layers": HUGE, "num_moe_experts": 4}, "model.num_layers: 999,999,999 layers exceed"),
        ({"mtp_num_layers": HUGE}, "model.mtp_num_layers: 999,999,999 layers exceed"),
        ({"decoder_seq_length": 8, "encoder_num_layers": HUGE}, "model.encoder_num_layers: 999,999,999 layers exceed"),
        ({"vision_num_layers": HUGE}, "model.vision_num_layers: 999,999,999 layers exceed"),
        ({"pipeline_model_parallel_size": HUGE}, "model.pipeline_model_parallel_size: 999,999,999 stages"),
        ({**PP2, "virtual_pipeline_model_parallel_size": HUGE},
         "model.virtual_pipeline_model_parallel_size: 1,999,999,998 stages"),
        ({**PP2, "pipeline_model_parallel_layout": "Et*999999999|L"}, "layout: 999,999,999 parts exceed"),
        ({**PP2, "pipeline_model_parallel_layout": "E(t*9999|)*99999L"}, "layout: 699,993 parts exceed"),
        ({**PP2, "pipeline_model_parallel_layout": "Et*" + 5000 * "9"}, "layout: 1,000,000,000 parts exceed"),
    ],
)  # fmt: skip
def test_sizes_that_cannot_be_counted_are_rejected_with_their_path(change, blamed):
    model = {**TINY, **change}
    with pytest.raises(PlanError) as rejected:
        make_plan({"model": model})
    assert blamed in str(rejected.value)


def test_a_hybrid_is_counted_layer_by_layer():
    model = {**TINY, "hybrid_layer_pattern": "M-*-|M*", "pipeline_model_parallel_size": 2}
    plan = make_plan({"model": model})
    assert [stage.layers for stage in plan.stages] == [4, 2]
    assert plan.parameters == sum(plan.parts.values()) == sum(stage.parameters for stage in plan.stages)
    assert {"mamba", "mlp", "attention"} < {*plan.parts}
    assert plan.stages[0].rank_bytes.activations is None
    assert "activations of Mamba and gated-delta layers are those that fused kernels save" in plan.notes


def test_multi_token_predictions_that_share_their_layers_count_once():
    model = {**TINY, "num_moe_experts": 4, "mtp_use_repeated_layer": True}
    one, two = (
        make_plan({"model": {**model, "hybrid_layer_pattern": text}}) for text in ("ME*/E", "ME*/E/E")
    )
    assert (two.parameters, two.active_parameters) == (one.parameters, one.active_parameters)
    assert two.parameters - two.active_parameters == 2 * (4 - 2) * (2 * 8 * 32 + 32 + 8)


def test_a_huge_group_of_microbatches_is_rejected():
    vp = {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2, "seq_length": 8}
    model = {**TINY, **vp, "microbatch_group_size_per_vp_stage": 10**8 - 1}
    assert run(model, micro_batch_size=1, global_batch_size=8).num_microbatches == 8
    with pytest.raises(PlanError, match="99,999,999 consecutive microbatches exceed the limit of 1,024"):
        run(model, micro_batch_size=1, global_batch_size=10**8)


def test_a_notebook_shows_a_plan_as_a_table():
    html = make_plan({"model": TINY})._repr_html_()
    assert (
        f'parameters</td><td style="text-align:right">{make_plan({"model": TINY}).parameters:,}</td>' in html
    )
    assert 'microbatches</td><td style="text-align:right">?</td>' in html


@pytest.mark.parametrize(
    ("letter", "field"), [("E", "num_moe_experts"), ("+", "multi_latent_attention"), ("M", "hybrid_layer")]
)
def test_a_model_without_a_kind_of_layer_has_no_products_of_it(letter, field):
    with pytest.raises(PlanError, match=field):
        layer_products(read_shape(TINY), letter)
