"""Work of the ranks in tests of changed schedules; fast to import, like `rank_work`."""

from rank_work import new_run


def set_optimizer(run, overrides=None, **settings):
    """Build a run's optimizer and scheduler again with other settings."""
    from megatron.core.optimizer import get_megatron_optimizer
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
    from tiny_run import optimizer_config

    flags = {name: settings.pop(name) for name in ("override", "stored") if name in settings}
    warmup, decay = settings.pop("warmup", 16), settings.pop("weight_decay", 0.01)
    config = optimizer_config(run.shape)
    vars(config).update({"lr": 1e-2, "min_lr": 1e-4, **settings})
    run.optimizer = get_megatron_optimizer(config, run.model, config_overrides=keyed(overrides))
    run.config.grad_scale_func = run.optimizer.scale_loss
    run.scheduler = OptimizerParamScheduler(
        run.optimizer, 0.0, config.lr, config.min_lr, warmup, 400, "cosine", decay, decay, 400, "constant",
        override_opt_param_scheduler=flags.get("override", False),
        use_checkpoint_opt_param_scheduler=flags.get("stored", False),
    )  # fmt: skip


def keyed(overrides):
    """Return overrides by the end of a parameter's name, as Megatron wants them."""
    from megatron.core.optimizer.optimizer_config import ParamKey

    return (
        None if overrides is None else {ParamKey(name=name): dict(each) for name, each in overrides.items()}
    )


def tensors_of(run):
    """Return the optimizer's tensors as texts, in an order that does not depend on the groups."""
    return sorted(
        str((value.double().sum().item(), *value.shape)) for value in run.optimizer_tensors().values()
    )


def resumed(shape, folder, saved, wanted, overrides=(None, None)):
    """Train 3 steps and save with some settings, resume with others, train a step.

    Return the notes, whether the moments are those that were saved, and rates, decays and betas of the groups that have
    parameters on this rank, as the next step uses them.
    """
    run = new_run(shape, save=folder)
    set_optimizer(run, overrides[0], **saved)
    run.train(3)
    run.save()
    before = tensors_of(run)
    again = new_run({"seed": 99, **shape}, load=folder)
    set_optimizer(again, overrides[1], **wanted)
    notes = again.load().notes
    same = tensors_of(again) == before
    used = [
        {name: group[name] for name in ("lr", "max_lr", "weight_decay", "betas", "wd_mult")}
        for group in again.optimizer.param_groups
        if group["params"]
    ]
    again.train(1)
    return notes, same, used, again.scheduler.state_dict()
