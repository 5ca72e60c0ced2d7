"""Consents to execute code come from the command line or the caller's code, never from a file that may be received.

A configuration file names data; these are all keys by which one could bring code in.
"""

from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from mb_config import ConfigReadError, Provenance
from mb_config.container.codec import consents
from mb_metrics.profiling.config import TensorInspectConfig
from mb_trainer.config import ConfigContainer
from mb_trainer.recipes import gpt_tiny
from mb_trainer.requests import read_request
from mb_trainer.run.preflight import all_checks

PAYLOAD = "from pathlib import Path\nPath('executed').touch()\n"
FILES = {
    "base": "base: payload.py:build\n",
    "checkpoint.trust": "base: gpt_tiny\ncheckpoint:\n  trust: true\n",
    "tensor_inspect.allow_custom_feature_dirs": (
        "base: gpt_tiny\ntensor_inspect:\n  enabled: true\n  feature_dirs: [.]\n  allow_custom_feature_dirs: true\n"
    ),
    "tokenizer.trust_remote_code": "base: gpt_tiny\ntokenizer:\n  trust_remote_code: true\n",
    "checkpoint.custom_manager_class": "base: gpt_tiny\ncheckpoint:\n  custom_manager_class: payload.Manager\n",
    "dataset._target_": "base: gpt_tiny\ndataset:\n  _target_: payload.Dataset\n",
    "model._target_": "base: gpt_tiny\nmodel:\n  _target_: payload.Model\n",
    "peft._target_": "base: gpt_tiny\npeft:\n  _target_: payload.Peft\n",
    "optimizer_config_override_provider": (
        "base: gpt_tiny\noptimizer_config_override_provider:\n  _target_: payload.Provider\n"
    ),
}


@pytest.fixture
def payload(tmp_path, monkeypatch):
    (tmp_path / "payload.py").write_text(PAYLOAD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    assert not Path("executed").exists()


@pytest.mark.parametrize("way", ["recipe", "overlay"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_gives_no_consent(payload, name, way):
    Path("received.yaml").write_text(FILES[name])
    arguments, files = (["received.yaml"], []) if way == "recipe" else ([], [Path("received.yaml")])
    with pytest.raises(
        ConfigReadError, match=rf"received\.yaml:\d+: .*{name.partition('_target_')[0]}.*not allowed"
    ):
        read_request(arguments, files=files)


@pytest.mark.parametrize(
    "override",
    [
        "++tokenizer.hf_tokenizer_kwargs={trust_remote_code: true}",
        "checkpoint.hf_trust_remote_code=true",
        "++env_vars={LD_PRELOAD: /data/x.so}",
        "++env_vars={PYTHONPATH: /data}",
        "++env_vars={NCCL_TUNER_PLUGIN: /data/x.so}",
        "++env_vars={TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD: 1}",
        "++env_vars={AWS_CONFIG_FILE: /data/config}",
    ],
)
def test_what_would_run_code_of_elsewhere_is_refused_from_any_source(override):
    config = read_request(["gpt_tiny", override]).config
    problems = config.check(all_checks().rules, world_size=1)
    path = override.lstrip("+").partition("=")[0]
    assert any(path in each.fields for each in problems if each.severity == "error")


def test_the_command_line_and_code_give_the_consent_and_no_file_keeps_it(tmp_path):
    config = read_request(["gpt_tiny", "checkpoint.trust=true"]).config
    assert config.checkpoint.trust
    config.to_yaml(tmp_path / "run_config.yaml")
    assert "trust:" not in (tmp_path / "run_config.yaml").read_text().replace("trust_remote_code:", "")
    assert not ConfigContainer.from_yaml(tmp_path / "run_config.yaml").checkpoint.trust


def test_a_file_that_python_code_reads_gives_no_consent(tmp_path):
    file = tmp_path / "received.yaml"
    text = gpt_tiny().to_yaml()
    file.write_text(text.replace("checkpoint:\n", "checkpoint:\n  trust: true\n"))
    with pytest.raises(
        ConfigReadError, match=r"received\.yaml:\d+: checkpoint\.trust: True is not allowed in a file"
    ):
        ConfigContainer.from_yaml(file, provenance=Provenance())
    file.write_text(text.replace("checkpoint:\n", "checkpoint:\n  trust: false\n"))
    assert not ConfigContainer.from_yaml(file).checkpoint.trust


def test_the_fields_that_give_a_consent_are_marked():
    config = gpt_tiny()
    config.tensor_inspect = TensorInspectConfig()
    assert set(consents(config)) == {
        ("checkpoint", "trust"),
        ("tensor_inspect", "allow_custom_feature_dirs"),
        ("tokenizer", "trust_remote_code"),
    }
    sections = [getattr(config, item.name) for item in fields(config)]
    names = {item.name for each in sections if is_dataclass(each) for item in fields(each)}
    assert {name for name in names if "trust" in name or name.startswith("allow")} == {
        "trust",
        "allow_custom_feature_dirs",
        "trust_remote_code",
        "hf_trust_remote_code",  # refused, also on the command line
        "allow_ambiguous_pad_tokens",  # executes nothing
    }
