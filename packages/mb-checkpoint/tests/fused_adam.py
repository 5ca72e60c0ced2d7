"""FusedAdam of Transformer Engine 2.20 and of Apex on the CPU: they keep their state as the originals do.

The update is computed by torch's own `adamw`, so that runs that change between these classes and `torch.optim.AdamW`
are equal bit for bit. Main parameters that the classes would round differently are avoided.
Imports Megatron: for the processes of a rank pool.
"""

import inspect
import textwrap
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from types import FunctionType

import torch
from megatron.core import optimizer as megatron_optimizer
from megatron.core.optimizer import distrib_optimizer
from megatron.core.optimizer.cpu_offloading import hybrid_optimizer
from torch.optim.adamw import adamw

KINDS = ("torch", "apex", "te", "te precision-aware", "te remainders", "hybrid")


class ApexFusedAdam(torch.optim.Optimizer):
    """One count of steps for each group that has parameters on this rank."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, **options):
        defaults = {
            "lr": lr,
            "bias_correction": True,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)
        assert options.get("adam_w_mode", True)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            if group["params"]:
                group["step"] = group.get("step", 0) + 1
                self._update(group, [p for p in group["params"] if self._gradient(p) is not None])

    def _gradient(self, parameter):
        return parameter.grad

    def _initialize(self, parameter):
        self.state[parameter] |= {
            name: torch.zeros_like(parameter.data, dtype=torch.float32) for name in ("exp_avg", "exp_avg_sq")
        }

    def _update(self, group, parameters):
        for parameter in parameters:
            if not self.state[parameter]:
                self._initialize(parameter)
        self._apply(group, parameters, [parameter.data for parameter in parameters])

    def _apply(self, group, parameters, values):
        adamw(
            values,
            [self._gradient(parameter).float() for parameter in parameters],
            *[
                [self.state[parameter][name] for parameter in parameters]
                for name in ("exp_avg", "exp_avg_sq")
            ],
            [],
            [torch.tensor(group["step"] - 1.0) for _ in parameters],
            foreach=False,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        _avoid_ties(values)


def _avoid_ties(values):
    """Move each float32 halfway between two of bfloat16 by one bit: remainders round it up, a cast rounds to even."""
    for bits in (value.view(torch.int32) for value in values if value.dtype == torch.float32):
        bits += ((bits & 0xFFFF) == 0x8000).int()


_torch_adam = import_module("torch.optim.adam")
_adam = _torch_adam.adam


def _adam_without_ties(params, *args, **options):
    _adam(params, *args, **options)
    _avoid_ties(params)


_torch_adam.adam = _adam_without_ties  # of torch.optim.AdamW


class TransformerEngineFusedAdam(ApexFusedAdam):
    """Counts in every group; knows its states by name, and may keep the main parameters, or their low halves."""

    def __init__(self, params, *args, master_weights=False, store_param_remainders=False, **options):
        super().__init__(params, *args, **options)
        self.decoupled = options.get("use_decoupled_grad", False)
        self.master_weights = master_weights
        self.store_param_remainders = store_param_remainders and master_weights
        self.name_to_dtype_map = dict.fromkeys(("exp_avg", "exp_avg_sq", "master_param"), torch.float32)

    def _gradient(self, parameter):
        return getattr(parameter, "decoupled_grad", None) if self.decoupled else parameter.grad

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = (
                group.get("step", 0) + 1
            )  # an int here; a float is an error of the kernel's binding
            assert isinstance(group["step"], int)
            if group["params"]:
                self._update(group, [p for p in group["params"] if self._gradient(p) is not None])

    def _update(self, group, parameters):
        for parameter in parameters:
            if not self.state[parameter]:
                self.initialize_state(parameter, self._has_remainder(parameter))
        if not self.master_weights:
            self._apply(group, parameters, [parameter.data for parameter in parameters])
            return
        masters = [self._master(parameter) for parameter in parameters]
        self._apply(group, parameters, masters)
        for parameter, master in zip(parameters, masters, strict=True):
            if self._has_remainder(parameter):
                self._split(parameter, master)
            else:
                self.state[parameter]["master_param"].copy_(master)
                parameter.data.copy_(master)

    def _has_remainder(self, parameter):
        return self.store_param_remainders and parameter.dtype == torch.bfloat16

    def _master(self, parameter):
        if not self._has_remainder(parameter):
            return self.state[parameter]["master_param"]
        low = self.state[parameter]["master_param"].int()
        high = parameter.data.view(torch.int16).int() - (low < 0).int()  # undo the rounding
        return ((high << 16) | (low & 0xFFFF)).view(torch.float32)

    def _split(self, parameter, master):
        bits = master.view(torch.int32)
        low = (bits & 0xFFFF).to(torch.int16)
        self.state[parameter]["master_param"].copy_(low)
        parameter.data.view(torch.int16).copy_((bits >> 16) + (low < 0).int())

    def get_unscaled_state(self, parameter, name):
        self.name_to_dtype_map[name]
        return self.state[parameter][name]

    def set_scaled_state(self, parameter, name, value):
        remainder = name == "master_param" and self._has_remainder(parameter)
        assert value.dtype == (torch.int16 if remainder else torch.float32)
        if name not in self.state[parameter]:
            self.state[parameter][name] = torch.empty_like(value, dtype=self.name_to_dtype_map[name])
            if remainder:
                self.state[parameter][name] = torch.zeros_like(value)
        self.state[parameter][name].copy_(value)

    def initialize_state(self, parameter, store_param_remainders):
        self._initialize(parameter)
        if self.master_weights:
            self.state[parameter]["master_param"] = (
                torch.zeros_like(parameter.data, dtype=torch.int16)
                if store_param_remainders
                else parameter.data.detach().clone().float()
            )

    def state_dict(self):
        found = super().state_dict()
        flat = [parameter for group in self.param_groups for parameter in group["params"]]
        found["state"] = {
            number: {name: self.get_unscaled_state(flat[number], name) for name in values}
            for number, values in found["state"].items()
        }
        return found

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        flat = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, values in state_dict["state"].items():
            self.state[flat[number]] = {}
            for name, value in values.items():
                if value is not None:
                    remainder = name == "master_param" and self._has_remainder(flat[number])
                    self.set_scaled_state(flat[number], name, value if remainder else value.float())


class FusedAdamWithRemainders(TransformerEngineFusedAdam):
    """What Megatron requests if it knows the version of Transformer Engine."""

    def __init__(self, params, *args, **options):
        super().__init__(params, *args, store_param_remainders=True, **options)


_CLASSES = {
    "apex": ApexFusedAdam,
    "te": TransformerEngineFusedAdam,
    "te precision-aware": TransformerEngineFusedAdam,
    "te remainders": FusedAdamWithRemainders,
    "hybrid": TransformerEngineFusedAdam,
}


def _host_copy(parameter):
    copy = parameter.detach().clone()
    copy.on_host = True
    return copy


def _float_copy(parameter):
    copy = parameter.detach().clone().float()
    copy.on_host = _on_host(parameter)
    return copy


def _on_host(parameter):
    return getattr(parameter, "on_host", False)


def _offload_on_the_cpu():
    """Let HybridDeviceOptimizer take parameters for some on a GPU, and only its own copies for the host's."""
    owner = hybrid_optimizer.HybridDeviceOptimizer
    source = textwrap.dedent(inspect.getsource(owner._get_sub_optimizer_param_groups))
    for old, new in (
        ("param.detach().clone().cpu().pin_memory()", "_host_copy(param)"),
        ("param.detach().clone().float()", "_float_copy(param)"),
        ("param.is_cuda", "not _on_host(param)"),
    ):
        assert old in source
        source = source.replace(old, new)
    exec(source, scope := dict(globals()))
    owner._get_sub_optimizer_param_groups = scope["_get_sub_optimizer_param_groups"]


_METHODS = ("state_dict", "load_state_dict", "_set_main_param_and_optimizer_states")


def _originals():
    """Return methods without the patches for torch's Adam, which a process has from its imports on, by name."""
    spec = spec_from_file_location("megatron.core.optimizer.unpatched", distrib_optimizer.__file__)
    unpatched = module_from_spec(spec)
    spec.loader.exec_module(unpatched)
    found = {name: vars(unpatched.DistributedOptimizer)[name] for name in _METHODS}
    return {
        name: FunctionType(each.__code__, vars(distrib_optimizer), name, each.__defaults__, each.__closure__)
        for name, each in found.items()
    }


def use(kind):
    """Let Megatron build this kind of Adam from now on, as it does if the package can be imported."""
    if kind not in _CLASSES:
        return
    if kind == "hybrid":
        _offload_on_the_cpu()
    for name, function in _originals().items():
        setattr(distrib_optimizer.DistributedOptimizer, name, function)
    for module in (megatron_optimizer, distrib_optimizer):
        module.Adam = _CLASSES[kind]
    megatron_optimizer.USING_PYTORCH_OPTIMIZER = False
    distrib_optimizer.HAVE_APEX_OR_TE = True
    distrib_optimizer.USING_TE_OPTIMIZER = kind != "apex"
    distrib_optimizer.USING_APEX_OPTIMIZER = kind == "apex"


def configure(config, kind):
    """Set what `OptimizerConfig` only accepts where Transformer Engine can be imported."""
    if kind in ("te precision-aware", "te remainders"):
        config.use_precision_aware_optimizer = True
        config.use_precision_aware_optimizer_no_fp8_or_ds_fp8 = True
        config.store_param_remainders = kind == "te remainders"
    return config


def options(kind):
    """Return the options of `OptimizerConfig` for a kind."""
    if kind != "hybrid":
        return {}
    return {
        "optimizer_cpu_offload": True,
        "use_precision_aware_optimizer": True,
        "optimizer_offload_fraction": 0.5,
        "overlap_cpu_optimizer_d2h_h2d": False,
        "pin_cpu_grads": False,
        "pin_cpu_params": False,
    }
