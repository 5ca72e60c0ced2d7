from mb_metrics import LoggerConfig, SinkFailure, hide_secrets
from mb_metrics.redact import hide_in_settings, hide_in_text
from mb_schema.secrets import MASK, is_secret
from mb_schema.value_types import MismatchError


def test_a_wrong_type_under_the_name_of_a_secret_is_masked_by_the_same_names():
    names = ("logger.comet_api_key", "db.passwd", "MY_PAT", "tokenizer.eos_token", "train.seed")
    masked = [MASK in str(MismatchError(5, "str", path=name)) for name in names]
    assert masked == [is_secret(name, "5") for name in names] == [True, True, True, False, False]


def test_secrets_are_hidden_by_name_and_nested_settings_become_paths():
    config = {
        "logger": {
            "comet_api_key": "abc",
            "wandb_project": "gpt",
            "mlflow_tracking_uri": "http://me:pw@host/x",
        },
        "tokenizer": {"hf_token": "abc", "tokenizer_model": "gpt2", "eos_token": "</s>", "api_key": None},
        "train": {"train_iters": 10},
        "empty": {},
    }
    assert hide_secrets(config) == {
        "logger.comet_api_key": MASK,
        "logger.wandb_project": "gpt",
        "logger.mlflow_tracking_uri": f"http://me:{MASK}@host/x",
        "tokenizer.hf_token": MASK,
        "tokenizer.tokenizer_model": "gpt2",
        "tokenizer.eos_token": "</s>",
        "tokenizer.api_key": None,
        "train.train_iters": 10,
        "empty": {},
    }


def test_a_failure_does_not_show_the_key_of_the_environment(monkeypatch, recorder):
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    error = PermissionError("key 0123456789abcdef refused by https://me:pw@host")
    text = str(SinkFailure(sink=recorder, count=1, first=error))
    assert (
        text
        == f"Recorder: failed once, first with PermissionError('key {MASK} refused by https://me:{MASK}@host')"
    )


def test_a_short_value_of_the_environment_is_no_secret(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "a")
    assert hide_in_text("a text") == "a text"


def test_a_configuration_does_not_show_its_key():
    assert "abc" not in repr(LoggerConfig(comet_api_key="abc"))


def test_secrets_are_hidden_in_the_text_of_a_settings_file():
    text = """logger:
  comet_api_key: s1 s1
  "wandb_pat": 's2'
  mlflow_tracking_uri: http://me:s3@host/x
  eos_token: </s>
  api_key: null
  more: {lr: 0.1, password: s4, b: 2}
  secret: |
    s5

    s5
  name: sk-s6s6s6s6s6s6s6s6
  credentials:
    - s7
  seed: 5"""
    assert hide_in_settings(text).splitlines() == [
        "logger:",
        f"  comet_api_key: {MASK}",
        f'  "wandb_pat": {MASK}',
        f"  mlflow_tracking_uri: http://me:{MASK}@host/x",
        "  eos_token: </s>",
        "  api_key: null",
        f"  more: {{lr: 0.1, password: {MASK}",
        f"  secret: {MASK}",
        f"  name: {MASK}",
        f"  credentials: {MASK}",
        "  seed: 5",
    ]
