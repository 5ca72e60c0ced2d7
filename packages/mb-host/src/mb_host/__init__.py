"""Megatron Core on a machine without a GPU: CUDA calls of torch run on the CPU.

>>> import mb_host
>>> report = mb_host.install()  # before megatron is imported
>>> import torch
>>> weight = torch.ones(2, 3, device="cuda")  # as Megatron writes it
>>> weight.cuda().sum().item(), torch.cuda.is_available() == (not report)
(6.0, True)
>>> mb_host.run_ranks(torch.distributed.get_rank, 2)  # run a function on two gloo ranks
[0, 1]
"""

from typing import TYPE_CHECKING

from mb_schema import lazy as _lazy

if TYPE_CHECKING:
    from mb_host.installation import HostReport as HostReport
    from mb_host.installation import MegatronAlreadyImportedError as MegatronAlreadyImportedError
    from mb_host.installation import install as install
    from mb_host.log_filters import quiet as quiet
    from mb_host.megatron_import import install_before_megatron as install_before_megatron
    from mb_host.ranks.errors import RankFailedError as RankFailedError
    from mb_host.ranks.errors import RankTimeoutError as RankTimeoutError
    from mb_host.ranks.function_reference import function_in as function_in
    from mb_host.ranks.pool import RankPool as RankPool
    from mb_host.ranks.pool import run_ranks as run_ranks

_HOMES, __getattr__, __dir__ = _lazy.attach(__name__, __file__)
