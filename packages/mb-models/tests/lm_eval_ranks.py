"""Tasks of lm-evaluation-harness on ranks that share the requests, with a model that is a table."""

import torch

from mb_models.evaluation.lm_eval import TrainedLM
from mb_models.evaluation.lm_eval_tasks import evaluate_tasks, load_tasks
from mb_models.evaluation.scoring import BatchedModel

CHARACTERS = [chr(number) for number in range(32, 127)]
TEMPLATE = (
    "{% for each in messages %}[{{ each.role }}]{{ each.content }}{% endfor %}"
    "{% if add_generation_prompt %}[a]{% endif %}"
)


class Characters:
    """Tokenizer with an entry for each printable character, and one for the end of a document."""

    eod, bos, vocab_size, fingerprint, chat_template = 95, None, 96, "characters", TEMPLATE
    end_of_answer = None

    def encode(self, text, *, add_bos=True):
        return [CHARACTERS.index(each) for each in text.replace("\n", "~")]

    def decode(self, ids):
        return "".join(CHARACTERS[number] for number in ids if number != self.eod)

    def render(self, messages, *, add_generation_prompt):
        return (
            "".join(f"[{each['role']}]{each['content']}" for each in messages) + "[a]" * add_generation_prompt
        )


def results_on_this_rank(files, settings):
    """Return the results of tasks, with errors of their metrics that depend on the order of the documents."""
    table = torch.randn(96, 96, generator=torch.Generator().manual_seed(1))
    sizes = {"vocab_size": Characters.vocab_size, "context_length": 64, "batch_size": 2}
    model = BatchedModel(logits=lambda tokens: table[tokens.cumsum(-1) % 96], **sizes)
    lm = TrainedLM(model, Characters(), replicas=torch.distributed.group.WORLD)
    return evaluate_tasks(lm, load_tasks(files), settings)["results"]
