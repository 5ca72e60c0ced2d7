"""The model interface of lm-evaluation-harness, compared with its own model for transformers on the same weights."""

import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

pytest.importorskip("lm_eval")
pytest.importorskip("safetensors")
pytest.importorskip("transformers")

import transformers
from hf_models import make
from hf_ranks import SMALL, build
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from lm_eval_ranks import CHARACTERS, TEMPLATE, Characters, results_on_this_rank
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mb_models.evaluation.lm_eval import TrainedLM, read_generation_options, register_model
from mb_models.evaluation.lm_eval_tasks import TaskError, TaskSettings, evaluate_tasks, load_tasks, metrics_of
from mb_models.evaluation.sampling_options import SamplingOptionError
from mb_models.evaluation.scoring import ScoreError
from mb_models.hf.config_json import read_config, section_of
from mb_models.hf.load import load_hf_weights

QUESTIONS = [
    {"question": f"What is {n} + 1?", "choices": [" two", " 3", " four or five"], "gold": n % 3}
    for n in range(5)
]
TEXTS = [{"text": "a b " * n} for n in (1, 7, 40)]
TASKS = {
    "questions": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "texts": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "text",
        "metric_list": [{"metric": "bits_per_byte"}],
    },
    "answers": {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "gold",
        "generation_kwargs": {"until": ["\n", "e"], "max_gen_toks": 9},
        "metric_list": [{"metric": "exact_match"}],
    },
}


NO_TASKS = TaskManager(include_defaults=False)
QUICK = {"task_manager": NO_TASKS, "bootstrap_iters": 0}
"""Options of lm_eval that leave out its index of tasks, which takes ten seconds, and error estimates."""


@pytest.fixture(scope="module")
def task_files(tmp_path_factory):
    """Return the paths of three tasks with their data, by the name of the task."""
    folder = tmp_path_factory.mktemp("tasks")
    for name, rows in {"questions": QUESTIONS, "answers": QUESTIONS, "texts": TEXTS}.items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        task = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}, "cache_dir": str(folder / "cache")},
            "test_split": "test",
            **TASKS[name],
        }
        (folder / f"{name}.yaml").write_text(json.dumps(task))
    return {name: str(folder / f"{name}.yaml") for name in TASKS}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of a random model of transformers."""
    path = tmp_path_factory.mktemp("weights")
    make("llama", path)
    return path


@pytest.fixture(scope="module")
def ours(folder, groups):
    section = section_of(read_config(folder), dtype="float32")
    section.transformer_impl = "local"
    chunk = build(section, groups)
    load_hf_weights([chunk], folder, pg_collection=groups)
    length = SMALL["max_position_embeddings"]
    return TrainedLM.of(chunk, Characters(), context_length=length, batch_size=2, info={"step": 3})


@pytest.fixture(scope="module")
def theirs(folder):
    entries = {each: number for number, each in enumerate([*CHARACTERS, "<eos>"])}
    tokenizer = Tokenizer(models.WordLevel(entries, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<eos>", chat_template=TEMPLATE
    )
    network = transformers.AutoModelForCausalLM.from_pretrained(folder)
    network.generation_config.eos_token_id = Characters.eod
    # its cache takes the wrong rows for continuations of several lengths with equal inputs, as in periodic texts
    words = {"batch_size": 3, "device": "cpu", "dtype": "float32", "logits_cache": False}
    return HFLM(pretrained=network, tokenizer=fast, **words)


def responses(model, files, **options):
    found = simple_evaluate(model, tasks=list(files.values()), **QUICK, **options)
    return {
        name: [response for row in rows for (response,) in row["resps"]]
        for name, rows in found["samples"].items()
    }


@pytest.mark.parametrize("options", [{"num_fewshot": 0}, {"num_fewshot": 0, "apply_chat_template": True}])
def test_responses_equal_those_of_the_model_for_transformers(ours, theirs, task_files, options):
    found, expected = (responses(model, task_files, **options) for model in (ours, theirs))
    assert found["answers"] == expected["answers"]
    assert any(found["answers"])
    assert found["texts"] == pytest.approx(expected["texts"], rel=1e-5)
    assert [greedy for _, greedy in found["questions"]] == [greedy for _, greedy in expected["questions"]]
    likelihoods = [[value for value, _ in each["questions"]] for each in (found, expected)]
    assert likelihoods[0] == pytest.approx(likelihoods[1], rel=1e-5)
    assert len(likelihoods[0]) == 15


def test_responses_are_read_from_a_cache(ours, task_files, tmp_path):
    calls = []
    counted = TrainedLM(ours._model, Characters(), progress=lambda kind, count: calls.append((kind, count)))
    first = responses(counted, task_files, use_cache=str(tmp_path / "cache"))
    computed = list(calls)
    assert {kind for kind, _ in computed} == {"continuations", "windows of texts", "texts"}
    assert responses(counted, task_files, use_cache=str(tmp_path / "cache")) == first
    assert calls == computed


def test_metrics_are_listed_by_task(ours, task_files):
    tasks = load_tasks([task_files["questions"], task_files["texts"]])
    results = evaluate_tasks(ours, tasks, TaskSettings(limit=3))
    found = metrics_of(results)
    assert [(each.task, each.metric, each.documents) for each in found] == [
        ("questions", "acc", 3),
        ("questions", "acc_norm", 3),
        ("texts", "bits_per_byte", 3),
    ]
    assert found[0].row[:2] == ("questions", "acc")
    assert found[2].stderr is None
    assert found[2].row[3] == "-"


@pytest.mark.parametrize(
    ("names", "settings"),
    [
        (["questions", "texts"], TaskSettings(num_fewshot=2)),
        (["questions", "texts", "answers"], TaskSettings(limit=1)),
    ],
)
def test_results_do_not_depend_on_the_number_of_replicas(names, settings, one_rank, pool, task_files):
    files = [task_files[name] for name in names]
    [expected] = one_rank.run(results_on_this_rank, files, settings)
    assert pool.run(results_on_this_rank, files, settings) == [expected, expected]


def test_special_tokens_end_a_text(ours):
    def text_of(lm, until=()):
        request = SimpleNamespace(args=("ab", {"until": list(until), "max_gen_toks": 9}), doc_id=0, repeats=1)
        return lm.generate_until([request])[0]

    text = text_of(ours)
    end = CHARACTERS.index(text[5])
    before = text[: text.index(text[5])]

    class WithEnd(Characters):
        end_of_answer = end

        def encode(self, text, *, add_bos=True):
            return super().encode(text.removesuffix("<end>")) + [end] * text.endswith("<end>")

        def decode(self, ids):
            return super().decode([number for number in ids if number != end])

    assert len(text) == 9
    assert text_of(TrainedLM(ours._model, WithEnd())) == text.replace(text[5], "")
    assert text_of(TrainedLM(ours._model, WithEnd()), ["<end>"]) == before
    assert text_of(TrainedLM(ours._model, WithEnd(), stop_tokens=[end])) == before
    in_chat = TrainedLM(ours._model, WithEnd())
    in_chat.apply_chat_template([{"role": "user", "content": "a"}])
    assert text_of(in_chat) == before, "the template ends an answer with the token"


def test_sampled_texts_do_not_depend_on_the_number_of_replicas(ours):
    settings = {"temperature": 2.0, "max_gen_toks": 9}
    documents = [SimpleNamespace(args=("ab", settings), doc_id=number, repeats=2) for number in range(4)]
    alone, first, second = (
        ours.generate_until([each for each in documents[start::step] for _ in range(2)])
        for start, step in [(0, 1), (0, 2), (1, 2)]
    )
    assert first == [*alone[0:2], *alone[4:6]]
    assert second == [*alone[2:4], *alone[6:8]]
    assert len(set(alone)) == 8


def test_examples_precede_each_question(ours, task_files):
    (task,) = load_tasks([task_files["questions"]])
    evaluate_tasks(ours, [task], TaskSettings(num_fewshot=2, limit=2))
    assert all(instance.args[0].count("What is") == 3 for instance in task.instances)
    task.set_config(key="num_fewshot", value=0)
    with pytest.raises(TaskError, match="the task questions sets num_fewshot: 0"):
        evaluate_tasks(ours, [task], TaskSettings(num_fewshot=2))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("missing.yaml", "no such file"),
        ("{folder}/wrong.yaml", "cannot be loaded"),
        ("unknown_task", "is not a task that is installed"),
    ],
)
def test_unknown_tasks_are_rejected(tmp_path, name, problem):
    (tmp_path / "wrong.yaml").write_text(
        "task: x\ndataset_path: json\ndataset_kwargs: {data_files: {test: missing.jsonl}}\ntest_split: test\n"
    )
    with pytest.raises(TaskError, match=problem):
        load_tasks([name.format(folder=tmp_path)], manager=NO_TASKS)


def test_a_registered_model_is_opened_by_its_arguments(ours, task_files):
    opened = []

    @contextmanager
    def open_model(**arguments):
        opened.append(arguments)
        yield ours

    register_model("a-model", open_model)
    words = {"tasks": [task_files["questions"]], "limit": 1, **QUICK}
    found = simple_evaluate("a-model", model_args="run=here", batch_size=4, **words)
    assert found["config"]["step"] == 3
    simple_evaluate("a-model", model_args={"run": "there"}, **words)
    assert opened == [{"run": "here", "batch_size": 4}, {"run": "there"}]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [({"num_beams": 4}, "unknown options .num_beams."), ({"do_sample": True}, "needs a temperature above 0")],
)
def test_generation_options_without_effect_are_rejected(settings, problem):
    with pytest.raises(SamplingOptionError, match=problem):
        read_generation_options(settings)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"temperature": "hot"}, r"^generation_kwargs\.temperature: 'hot' is not a number"),
        ({"top_p": [1]}, r"top_p: \[1\] is not a number"),
        ({"temperature": float("nan")}, "temperature: nan is not a number"),
        ({"max_gen_toks": "many"}, "max_gen_toks: 'many' is not a number"),
        ({"max_tokens": 7.9}, r"max_tokens: 7\.9 is not a whole number"),
        ({"top_k": float("inf")}, "top_k: inf is not a whole number"),
    ],
)
def test_generation_options_that_are_not_numbers_are_rejected(settings, problem):
    with pytest.raises(SamplingOptionError, match=problem):
        read_generation_options(settings)


def test_null_in_a_task_file_is_the_default():
    names = ("until", "do_sample", "temperature", "top_k", "top_p", "max_gen_toks")
    assert read_generation_options(dict.fromkeys(names)) == read_generation_options({})


def test_generation_options_of_other_libraries_are_read():
    settings = {"until": "x", "max_new_tokens": 5, "temperature": 0.5, "top_k": 3, "top_p": 0.9}
    options, stops = read_generation_options(settings)
    assert (options.max_new_tokens, options.temperature, options.top_k, options.top_p) == (5, 0.5, 3, 0.9)
    assert stops == ["x"]
    assert read_generation_options({"temperature": 0.5, "do_sample": False})[0].temperature == 0.0


def test_an_empty_continuation_is_rejected(ours):
    request = type("Request", (), {"args": ("", "")})
    with pytest.raises(ScoreError, match="continuation has no tokens"):
        ours.loglikelihood([request])
