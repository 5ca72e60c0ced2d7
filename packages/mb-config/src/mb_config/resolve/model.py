"""Resolution of fields that follow from the model section."""

from __future__ import annotations

from collections.abc import Mapping

from mb_config.resolve.state import ResolverState
from mb_config.rules.environment import GRAPH_REGISTER, LIBRARY_SETTINGS, registers_growing_buffers
from mb_schema.rules import NOTHING

_IN_BATCH, _LENGTHS = "dataset.pack_sequences_in_batch", "model.variable_seq_lengths"
_TOKENIZERS, _ROWS = "tokenizer.use_tokenizer_vocab_size", "model.vocab_size"
_STAGES = "model.pipeline_model_parallel_size"
_DISPATCHER, _BACKEND = "model.moe_token_dispatcher_type", "model.moe_flex_dispatcher_backend"


def resolve_model(state: ResolverState, *, facts: Mapping[str, object] = NOTHING) -> None:
    """Set variables of libraries, whether pipeline stages exchange lengths (V110), and the MoE dispatcher (V158).

    The size of the embedding is that of the tokenizer where the configuration requests it (D25).

    The variables are those for deterministic mode (V142) and CUDA graphs (V152b).
    `facts["env"]` contains the environment variables of the run. Without it, only those of the configuration are
    known.
    """
    if state.get("model.deterministic_mode"):
        _settings_of_libraries(state)
    if not facts.get("cpu"):
        _settings_of_graphs(state, facts.get("env"))
    _varying_lengths(state)
    if state.has(_ROWS) and state.get(_TOKENIZERS):
        state.set(_ROWS, None, rule="D25", why=f"{_TOKENIZERS} takes the size of the tokenizer")
    if state.has(_BACKEND) and state.get(_DISPATCHER) == "flex" and state.get(_BACKEND) is None:
        state.set(_DISPATCHER, "alltoall", rule="V158", why="the flex dispatcher has no backend")


def _varying_lengths(state: ResolverState) -> None:
    """Let pipeline stages exchange the shape of each micro-batch if samples are packed in it."""
    if not (state.get(_IN_BATCH) and state.has(_LENGTHS)) or (state.get(_STAGES) or 1) == 1:
        return
    state.set(_LENGTHS, True, rule="V110", why=f"{_IN_BATCH} makes micro-batches of different lengths")
    # Megatron Core rejects this dispatcher with varying lengths, also in a model without experts.
    if state.get(_DISPATCHER) == "allgather" and not state.get("model.num_moe_experts"):
        state.set(_DISPATCHER, "alltoall", rule="V110", why="the model has no experts")


def _settings_of_libraries(state: ResolverState) -> None:
    variables = state.config.env_vars
    for name, values in LIBRARY_SETTINGS.items():
        if name not in variables:
            variables[name] = values[0]
            why = "the library is then deterministic; a value in the shell takes precedence"
            state.record(f"env_vars.{name}", None, values[0], rule="V142", why=why)


def _settings_of_graphs(state: ResolverState, shell: object) -> None:
    variables = state.config.env_vars
    env = {name: str(value) for name, value in variables.items()}
    env |= shell if isinstance(shell, Mapping) else {}
    growing = registers_growing_buffers(state.get("model.cuda_graph_impl"), env)
    if growing is not None and GRAPH_REGISTER not in env:
        variables[GRAPH_REGISTER] = "0"
        why = f"NCCL must not register captured buffers that grow ({growing}={env[growing]})"
        state.record(f"env_vars.{GRAPH_REGISTER}", None, "0", rule="V152b", why=why)
