"""The host stands in for CUDA before any test imports megatron; without effect where there is a GPU."""

import mb_host

mb_host.install()
