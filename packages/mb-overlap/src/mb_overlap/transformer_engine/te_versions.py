"""Parameters and settings of Transformer Engine's `initialize_ub`, with the release that introduced each.

Source: the published sources of releases 1.9.0.post1, 1.10 to 1.13 and 2.1 to 2.20.2; no parameter was removed between
them. Before 1.9, user buffers require MPI.
"""

from collections.abc import Mapping

from mb_schema.versions import release

Release = tuple[int, ...]

OLDEST: Release = (1, 9)
"""First release that initializes user buffers without MPI."""
NEWEST: Release = (2, 20)
"""Last release covered; later ones are assumed to be identical."""
NEWEST_VERSION = "2.20"
"""`NEWEST` as a version string."""

PARAMETERS: Mapping[str, Release] = {
    "shape": (1, 9),
    "tp_size": (1, 9),
    "use_fp8": (1, 9),
    "dtype": (1, 9),
    "ub_cfgs": (1, 9),
    "bootstrap_backend": (1, 9),
    "quantization_modes": (2, 8),
    "with_cublasmp": (2, 17),
}
"""Parameter of `initialize_ub` to the first release that has it."""

QUANTIZATION_MODES: Release = PARAMETERS["quantization_modes"]
"""First release that creates buffers per quantization mode and deprecates `use_fp8`."""

GEMMS: Mapping[str, Release] = {
    "qkv_fprop": (1, 9),
    "qkv_dgrad": (1, 9),
    "qkv_wgrad": (1, 9),
    "proj_fprop": (1, 9),
    "proj_dgrad": (1, 9),
    "proj_wgrad": (2, 7),
    "fc1_fprop": (1, 9),
    "fc1_dgrad": (1, 9),
    "fc1_wgrad": (1, 9),
    "fc2_fprop": (1, 9),
    "fc2_dgrad": (1, 9),
    "fc2_wgrad": (2, 7),
}
"""Key of `ub_cfgs` to the first release that supports it."""

SETTINGS: Mapping[str, tuple[Release, type]] = {
    "method": ((1, 9), str),
    "is_reduce_scatter": ((1, 9), bool),
    "num_sm": ((1, 9), int),
    "cga_size": ((1, 9), int),
    "set_sm_margin": ((1, 9), bool),
    "num_splits": ((1, 9), int),
    "aggregate": ((1, 9), bool),
    "atomic_gemm": ((1, 9), bool),
    "use_ce": ((1, 9), bool),
    "fp8_buf": ((1, 9), bool),
    "comm_priority": ((2, 1), int),
    "gemm_priority": ((2, 1), int),
    "pipeline_rs_overlap_first_gemm": ((2, 1), bool),
}
"""Key of one GEMM's entry to the first release that supports it and the type of its value."""

METHODS: Mapping[str, Release] = {
    "ring_exchange": (1, 9),
    "pipeline": (1, 9),
    "bulk": (1, 9),
    "external": (2, 7),
}
"""Value of `method` to the first release that supports it."""

REDUCE_SCATTERS = ("proj_fprop", "fc2_fprop", "qkv_wgrad", "fc1_wgrad")
"""GEMMs that reduce-scatter their output; all others all-gather their input, except a `qkv_dgrad` or `fc1_dgrad` that
is not bulk."""

EXTERNAL = ("proj_wgrad", "fc2_wgrad")
"""GEMMs that only overlap with the communication of another GEMM."""


def parse_version(version: str) -> Release:
    """Return the leading numbers of a version: (2, 6, 0) for "2.6.0.post1" and for "2.6.0a0+34c6371d24".

    Raises:
        ValueError: the version does not begin with a number.
    """
    if not (numbers := release(version)):
        raise ValueError(
            f"version: {version!r} is invalid, because a version begins with a number. Pass a version such as '2.20'."
        )
    return numbers


def format_version(release: Release) -> str:
    """Return a release as a dotted version string, such as "2.7"."""
    return ".".join(map(str, release))
