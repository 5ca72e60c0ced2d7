"""Masking of secrets in output and files, and reading of masked secrets."""

import json
import time

import pytest

from mb_config import (
    Change,
    ManyReadErrors,
    MaskedValueError,
    OverrideError,
    Provenance,
    RNGConfig,
    UnknownKeyError,
    WrongTypeError,
    apply_overrides,
    apply_yaml,
    from_dict,
    non_default_values,
    show,
    to_dict,
)
from mb_schema.rules import Rule
from mb_schema.secrets import MASK, is_secret, masked, masked_argument, masked_text

CLEAR = "c0ffee-in-clear"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("comet_api_key", "x"),
        ("hf_token", "x"),
        ("wandb_key", "x"),
        ("WANDB_API_KEY", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("db_password", 1234),
        ("DB_PASS_2", "x"),
        ("PGPASSWORD", "x"),
        ("SESSION_COOKIE", 7),
        ("SLACK_WEBHOOK", "https://hooks.example/T0"),
        ("note", "hf_abcdefghijklmnopqrstuvwxyz"),
        ("note", "ghp_abcdefghijklmnopqrst"),
        ("uri", "postgres://me:pass@host/db"),
    ],
)
def test_secrets_are_recognized(name, value):
    assert is_secret(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("comet_api_key", None),
        ("comet_api_key", ""),
        ("eos_token", "</s>"),
        ("json_key", "text"),
        ("label_key", "output"),
        ("pad_token", 3),
        ("num_tokens", "12"),
        ("monkey", "x"),
        ("uri", "https://host/path"),
        ("path", "s3://bucket/key"),
    ],
)
def test_other_values_are_not_secrets(name, value):
    assert not is_secret(name, value)


def test_only_the_password_of_a_url_is_masked():
    assert masked("uri", "postgres://me:pass@host/db") == f"postgres://me:{MASK}@host/db"


def test_mappings_and_lists_are_searched():
    assert masked("env", {"a": [{"api_key": "x"}], "b": 1}) == {"a": [{"api_key": MASK}], "b": 1}


def test_free_text():
    assert masked_text("cannot read logger.comet_api_key='a b' x=1") == (
        f"cannot read logger.comet_api_key={MASK} x=1"
    )
    assert masked_text(f"'api_key={MASK}': is wrong") == f"'api_key={MASK}': is wrong"


@pytest.mark.parametrize("pattern", ["x", "x.", "a1", "://a:", "x= ", "a='", "http://a:b", " ", "=", "-+."])
def test_the_time_of_masking_is_linear_in_the_length(pattern):
    """A text of 100,000 characters takes less than a second, whatever it repeats."""
    text = pattern * (100_000 // len(pattern))
    started = time.process_time()
    masked_text(text)
    masked("name", text)
    assert time.process_time() - started < 1


def test_a_password_is_masked_for_any_text_before_the_url():
    for scheme in ("http", "1http", "xhttp", "s3+http", "(http"):
        assert masked_text(f"see {scheme}://me:pass@host") == f"see {scheme}://me:{MASK}@host"


def test_long_values_are_truncated_in_messages():
    error = WrongTypeError("x" * 5_000, "int", path="train.train_iters")
    assert len(str(error)) < 300
    assert "4,800 more characters" in str(error)
    assert len(str(UnknownKeyError("no such field", path="y" * 5_000))) < 300
    several = ManyReadErrors([error, error])
    assert str(several) == f"{error}\n{error}"


@pytest.fixture
def secret(make):
    config = make(env_vars={"WANDB_API_KEY": CLEAR, "N": 1})
    config.logger.comet_api_key = CLEAR
    return config


def test_files_and_listings_do_not_contain_it(secret, tmp_path):
    secret.to_yaml(tmp_path / "new" / "run.yaml")
    shown = show(secret, Provenance.of(secret), origin=True)
    texts = [(tmp_path / "new" / "run.yaml").read_text(), shown, non_default_values(secret)]
    assert [CLEAR in text for text in texts] == [False, False, False]
    assert [MASK in text for text in texts] == [True, True, True]


def test_the_repr_of_a_config_does_not_contain_it(secret):
    assert CLEAR not in repr(secret)
    assert repr(RNGConfig(seed=3)) == (
        "RNGConfig(seed=3, te_rng_tracker=False, inference_rng_tracker=False, data_parallel_random_init=False)"
    )


@pytest.mark.parametrize(
    "override",
    [
        f"logger.comet_api_key=[{CLEAR}]",
        f"logger.comet_api_key={CLEAR}(",
        f"~logger.comet_api_key={CLEAR}1",
        f"logger.comet_api_key={{a: {CLEAR}}}",
    ],
)
def test_errors_do_not_contain_it(secret, override):
    with pytest.raises((OverrideError, WrongTypeError)) as caught:
        apply_overrides(secret, [override])
    assert CLEAR not in str(caught.value)


def test_a_change_does_not_contain_it():
    change = Change(field="logger.comet_api_key", old=None, new=CLEAR, why="...")
    assert CLEAR not in json.dumps(change.to_dict()) + str(change)


def test_a_masked_value_that_is_read_counts_as_not_set(secret, kinds, tmp_path):
    secret.to_yaml(tmp_path / "run.yaml")
    provenance = Provenance()
    config = kinds["Config"].from_yaml(tmp_path / "run.yaml", provenance=provenance)
    assert (config.logger.comet_api_key, config.env_vars) == (None, {"N": 1})
    assert (
        provenance.origin("logger.comet_api_key") == provenance.origin("env_vars.WANDB_API_KEY") == "default"
    )


def test_an_overlay_with_a_masked_value_keeps_the_current_one(secret, tmp_path):
    (tmp_path / "over.yaml").write_text(
        f"logger: {{comet_api_key: {MASK}, name: new}}\nenv_vars: {{WANDB_API_KEY: {MASK}}}\n"
    )
    provenance = apply_yaml(secret, tmp_path / "over.yaml", provenance=Provenance())
    assert (secret.logger.comet_api_key, secret.logger.name) == (CLEAR, "new")
    assert secret.env_vars["WANDB_API_KEY"] == CLEAR
    assert provenance.origin("logger.comet_api_key") == "default"


@pytest.mark.parametrize("data", [{"rank": 1, "targets": ["a", MASK]}, {"rank": MASK}])
def test_a_masked_value_that_cannot_be_omitted_is_rejected(kinds, data):
    with pytest.raises(
        MaskedValueError, match=r"is masked, because secrets are not written.*Replace it by the secret"
    ):
        from_dict(kinds["Adapter"], data)


def test_a_masked_value_on_a_command_line_is_an_error(secret):
    with pytest.raises(MaskedValueError):
        apply_overrides(secret, [f"logger.comet_api_key='{MASK}'"])


def test_secrets_are_written_on_request(secret):
    assert to_dict(secret, secrets=True)["env_vars"]["WANDB_API_KEY"] == CLEAR


def test_the_value_of_an_argument_is_masked_if_it_is_a_secret():
    assert masked_argument("env_vars.OPENAI_API_KEY=c0ffee") == "env_vars.OPENAI_API_KEY=<masked>"
    assert masked_argument("optimizer.lr=1e-3") == "optimizer.lr=1e-3"
    assert masked_argument("gpt_tiny") == "gpt_tiny"


def rule(test, *fields):
    return Rule(id="X", fields=fields, test=test, why="y", fix="z", fails={}, passes={})


@pytest.mark.parametrize(
    "options", [{"secret": CLEAR}, {"client": {"password": CLEAR}}, {"url": f"s3://me:{CLEAR}@host"}]
)
def test_the_message_of_a_rule_has_no_secret_inside_a_value(options):
    storage = rule(lambda given: f"requires storage ({given})", "checkpoint.storage_options")
    problem = storage.check({"checkpoint.storage_options": options})
    assert problem.message == f"requires storage ({problem.values['checkpoint.storage_options']})"
    assert CLEAR not in str(problem)
    assert MASK in str(problem)


def test_a_rule_on_the_text_of_a_secret_prints_none():
    short = rule(lambda given: f"{given}: short" if len(given) < len(MASK) else None, "a.password")
    assert short.check({"a.password": "S3CRET"}).message == f"{MASK}: short"


@pytest.mark.parametrize("other", ["", "h"])
def test_only_the_secret_is_replaced_in_a_message(other):
    short = rule(
        lambda given, user: f"{given}: short" if len(given) < len(MASK) else None, "a.password", "a.user"
    )
    assert short.check({"a.password": "S3CRET", "a.user": other}).message == f"{MASK}: short"


def test_a_number_that_is_a_secret_is_not_printed_by_a_rule_on_its_type():
    text = rule(lambda given: None if isinstance(given, str) else f"{given}: not text", "a.password")
    assert text.check({"a.password": 12345678}).message == f"{MASK}: not text"


def test_a_value_without_secrets_is_passed_as_it_is():
    options = {"a": {1, 2}, "eos_token": "x"}
    assert rule(lambda _given: "x", "a.options").check({"a.options": options}).values["a.options"] is options
