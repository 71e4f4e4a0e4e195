"""Fine-tuning on conversations, put together: sources by name, the validation that the loop is handed."""

from nanogka.data.chat import ConversationSource, validation_rows
from nanogka.distributed import Ranks
from nanogka.evaluate.chat_loss import measure_chat_loss
from nanogka.model import GPT
from nanogka.problems import Problems
from nanogka.train.chat import ChatPreparation, ChatSettings, open_base, prepare_chat
from nanogka.train.loop import Evaluation
from tasks.chat_data import open_source, parse_mixture


def prepare(settings: ChatSettings, ranks: Ranks, problems: Problems) -> ChatPreparation:
    """Open the base model and the sources, check everything.

    Raises:
        ValueError: one line for each problem.
        OSError: if the hub cannot be reached.
    """
    settings.check(problems)
    base = problems.attempt(lambda: open_base(settings))
    mixture = problems.attempt(lambda: parse_mixture(settings.data)) or []
    sources: list[ConversationSource] = []
    if not problems.lines:  # nothing is fetched for a call that will be refused
        for name, _ in mixture:
            source = problems.attempt(lambda name=name: open_source(name, settings.seed))
            sources += [source] if source else []
    return prepare_chat(settings, base, sources, [weight for _, weight in mixture], ranks, problems)


def validation(preparation: ChatPreparation) -> Evaluation:
    """Nats a token that the assistant says, of each source and (`val_loss`) in the shares of the mixture."""
    settings, ranks = preparation.settings, preparation.ranks
    bos_id, row_len, rows_at_once = preparation.tokenizer.bos_id, preparation.row_len, preparation.device_batch_size
    most = max(1, settings.eval_tokens // row_len)
    mixture = preparation.corpus
    rows = [validation_rows(source.val, bos_id, row_len)[:most] for source in mixture.sources]

    def run(model: GPT) -> dict[str, float]:
        sums = []
        for own in rows:
            sums += measure_chat_loss(model, own[ranks.rank :: ranks.world_size], bos_id, rows_at_once)
        sums = ranks.sum(sums, preparation.device)
        losses = [nats / count for nats, count in zip(sums[::2], sums[1::2])]
        total = sum(share * loss for share, loss in zip(mixture.shares, losses))
        if len(losses) == 1:
            return {"val_loss": float(total)}
        of_each = {f"val_loss {source.name}": loss for source, loss in zip(mixture.sources, losses)}
        return {"val_loss": float(total), **of_each}

    return Evaluation(settings.eval_every, run)
