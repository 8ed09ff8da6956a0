"""Grammars in the sampler: masks for the right lines, tokens read one step later, ends, preemption, and what is wrong with one fails it alone."""

from __future__ import annotations

import json
import weakref

import msgspec
import numpy as np
import pytest
import torch
from helpers_scripted_engine import EOS_ID, VOCAB_SIZE, byte_tokenizer

from trivium.engine import grammar, grammar_compiler
from trivium.engine.grammar_compiler import MAX_CACHED, GrammarCompiler
from trivium.engine.sampler import Sampler
from trivium.errors import InvalidRequest
from trivium.scheduling.step import NewRow
from trivium.text.grammar import to_llguidance
from trivium.types import SamplingParams, StructuredOutputsParams

WIDTH = VOCAB_SIZE + 5
"""Models' vocabularies are wider than their tokenizers'."""
STOPS = [EOS_ID, 259]


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(byte_tokenizer, WIDTH)


@pytest.fixture
def sampler(compiler: GrammarCompiler) -> Sampler:
    return Sampler(WIDTH, 8, "cpu", 0, compiler)


def row(index: int, outputs: bytes = b"", *, stops: list[int] | None = None, **wanted: object) -> NewRow:
    text = to_llguidance(StructuredOutputsParams(**wanted)) if wanted else ""  # type: ignore[arg-type]
    return NewRow(
        row=index,
        request_id=f"r{index}",
        params=SamplingParams(temperature=0.0),
        prompt_token_ids=[1],
        output_token_ids=list(outputs),
        stop_token_ids=STOPS if stops is None else stops,
        bad_words_token_ids=[],
        grammar=text,
    )


def favouring(*texts: bytes) -> torch.Tensor:
    """Logits [lines, WIDTH] that make the first byte of each text the most likely, the others after it in order."""
    logits = torch.zeros(len(texts), WIDTH)
    for line, text in enumerate(texts):
        for place, byte in enumerate(reversed(text)):
            logits[line, byte] = 1.0 + place
    return logits


def steps(sampler: Sampler, rows: list[int], wishes: list[tuple[bytes, ...]]) -> list[list[int]]:
    """Tokens of each step; `wishes` has for each step what each row would like."""
    found = []
    for step in wishes:
        output = sampler.sample(favouring(*step), rows)
        found.append(sampler.finish(output).token_ids)
    return found


def test_only_what_the_grammar_allows_is_sampled(sampler: Sampler) -> None:
    sampler.add_row(row(0, regex="a(b|c)+d"))
    sampled = steps(sampler, [0], [(b"zda",), (b"adc",), (b"ab",), (b"ad",), (b"abcd",)])
    assert bytes(token for [token] in sampled[:4]) == b"acbd"
    assert sampled[4][0] in STOPS


def test_ends_are_masked_until_the_grammar_accepts(sampler: Sampler) -> None:
    sampler.add_row(row(0, regex="ab?"))
    logits = favouring(b"z")
    logits[:, STOPS] = 9.0
    assert sampler.finish(sampler.sample(logits.clone(), [0])).token_ids == [ord("a")]
    assert sampler.finish(sampler.sample(logits.clone(), [0])).token_ids[0] in STOPS


def test_rows_without_a_grammar_are_left_alone(sampler: Sampler) -> None:
    """A batch of both kinds: plain rows sample what they would alone."""
    sampler.add_row(row(0, regex="a+"))
    sampler.add_row(row(1))
    sampler.add_row(row(2, choice=["xy", "xz"]))
    sampled = steps(sampler, [1, 0, 2], [(b"q", b"q", b"q"), (b"r", b"za", b"zz"), (b"s", b"s", b"s")])
    assert [step[0] for step in sampled] == list(b"qrs")
    assert [step[1] for step in sampled[:2]] == list(b"aa")
    assert [step[2] for step in sampled[:2]] == list(b"xz")
    assert sampled[2][2] in STOPS
    sampler.add_row(row(0))
    assert steps(sampler, [0], [(b"q",)]) == [[ord("q")]]


def test_special_tokens_and_those_beyond_the_tokenizer_are_never_text(sampler: Sampler) -> None:
    sampler.add_row(row(0, regex="(.|\\n)*", stops=[]))
    logits = torch.zeros(1, WIDTH)
    logits[:, 256:] = 5.0
    [token] = sampler.finish(sampler.sample(logits, [0])).token_ids
    assert token < 256


def test_a_preempted_row_goes_on_where_it_was(sampler: Sampler) -> None:
    sampler.add_row(row(3, b"tr", choice=["true", "trap"]))
    assert bytes(token for [token] in steps(sampler, [3], [(b"zu",), (b"ae",)])) == b"ue"


def test_the_token_in_flight_of_a_row_that_is_taken_over_does_not_count(sampler: Sampler) -> None:
    sampler.add_row(row(0, choice=["ab"]))
    assert steps(sampler, [0], [(b"a",)]) == [[ord("a")]]
    sampler.add_row(row(0, choice=["ab"]))
    assert steps(sampler, [0], [(b"ba",)]) == [[ord("a")]]


def test_after_the_end_nothing_but_the_end_follows(sampler: Sampler) -> None:
    """The step that was in flight when the end was sampled, and answers that ignore it."""
    sampler.add_row(row(0, choice=["a"]))
    logits = favouring(b"a")
    logits[:, EOS_ID] = 0.5
    tokens = [sampler.finish(sampler.sample(logits.clone(), [0])).token_ids[0] for _ in range(4)]
    assert tokens == [ord("a"), EOS_ID, EOS_ID, EOS_ID]


def test_where_nothing_is_left_the_request_fails_alone(sampler: Sampler) -> None:
    wanted = row(0, choice=["a"], stops=[])
    sampler.add_row(wanted)
    sampler.add_row(row(1))
    steps(sampler, [0, 1], [(b"a", b"q")])
    found = sampler.finish(sampler.sample(favouring(b"a", b"q"), [0, 1]))
    assert list(found.failed) == [0]
    assert "grammar" in found.failed[0]
    assert found.token_ids[1] == ord("q")


def test_logprobs_are_of_the_raw_distribution(sampler: Sampler) -> None:
    wanted = row(0, choice=["b"])
    wanted.params.logprobs = 1
    sampler.add_row(wanted)
    logits = favouring(b"ab")
    expected = logits.log_softmax(1)
    entry = sampler.finish(sampler.sample(logits, [0])).logprobs[0]
    assert entry is not None
    assert (entry.token_id, entry.top_ids) == (ord("b"), [ord("a")])
    assert entry.logprob == pytest.approx(float(expected[0, ord("b")]), abs=1e-5)


def test_json(sampler: Sampler) -> None:
    """A model that draws at random writes JSON that its schema takes."""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["name", "n"],
        "additionalProperties": False,
    }
    generator = np.random.default_rng(0)
    rows = list(range(6))
    for index in rows:
        sampler.add_row(row(index, json=schema if index % 2 else json.dumps(schema)))
    texts: dict[int, list[int]] = {index: [] for index in rows}
    going = set(rows)
    for _ in range(600):
        logits = torch.from_numpy(generator.normal(size=(len(rows), WIDTH)).astype(np.float32))
        for index, token in zip(rows, sampler.finish(sampler.sample(logits, rows)).token_ids, strict=True):
            if token in STOPS:
                going.discard(index)
            elif index in going:
                texts[index].append(token)
        if not going:
            break
    assert not going
    for tokens in texts.values():
        value = json.loads(bytes(tokens))
        assert set(value) == {"name", "n"}
        assert 0 <= value["n"] <= 99
        assert len(value["name"]) <= 8


def test_a_bad_grammar_is_refused_and_the_row_stays_usable(sampler: Sampler) -> None:
    with pytest.raises(InvalidRequest, match="grammar is not valid"):
        sampler.add_row(row(0, regex="("))
    sampler.add_row(row(0))
    assert steps(sampler, [0], [(b"q",)]) == [[ord("q")]]
    bare = Sampler(WIDTH, 2, "cpu")
    with pytest.raises(InvalidRequest, match="no tokenizer"):
        bare.add_row(row(0, regex="a"))


def test_a_stop_token_that_is_text_can_not_cut_an_answer_short(sampler: Sampler) -> None:
    """Where the grammar goes on it is no choice, unless there is no other."""
    sampler.add_row(row(0, regex="a[bc]d", stops=[ord("b"), ord("d"), EOS_ID]))
    logits = favouring(b"b")
    assert [sampler.finish(sampler.sample(logits.clone(), [0])).token_ids[0] for _ in range(3)] == list(b"acd")


def test_min_tokens_beyond_the_end_of_the_grammar_are_end_tokens(sampler: Sampler) -> None:
    wanted = row(0, choice=["a"])
    wanted.params.min_tokens = 3
    sampler.add_row(wanted)
    tokens = [sampler.finish(sampler.sample(favouring(b"q"), [0])) for _ in range(4)]
    assert [found.token_ids[0] for found in tokens] == [ord("a"), EOS_ID, EOS_ID, EOS_ID]
    assert not any(found.failed for found in tokens)


def test_a_grammar_that_becomes_too_complex_ends_its_request_alone(sampler: Sampler) -> None:
    names = [f"x{index}" for index in range(1500)]
    ambiguous = "\n".join(["start: " + "? ".join(names) + "?", *(f"{name}: /[a-z]+{name}/" for name in names)])
    sampler.add_row(row(0, grammar=ambiguous))
    sampler.add_row(row(1, choice=["ab"]))
    found = [sampler.finish(sampler.sample(favouring(b"a", b"ab"), [0, 1])) for _ in range(2)]
    assert [step.failed for step in found] == [{}, {0: grammar.TOO_COMPLEX}]
    assert bytes(step.token_ids[1] for step in found) == b"ab"


@pytest.mark.parametrize("is_leader", [True, False])
def test_a_row_whose_masks_take_too_long_ends_on_rank_0(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, *, is_leader: bool) -> None:
    """Two slow masks are forgiven: one that nobody timed, and one more."""
    sampler = Sampler(WIDTH, 8, "cpu", 0, compiler, is_leader=is_leader)
    sampler.add_row(row(0, regex="[ab]+"))
    sampler.add_row(row(1, regex="[cd]+"))
    monkeypatch.setattr(grammar, "SLOW_STEP_S", -1.0)
    monkeypatch.setattr(grammar, "MAX_MASK_S", -1.0)
    sampled = [sampler.finish(sampler.sample(favouring(b"a", b"c"), [0, 1])) for _ in range(4)]
    slow = {0: grammar.TOO_SLOW, 1: grammar.TOO_SLOW}
    assert [step.failed for step in sampled] == ([{}, {}, slow, slow] if is_leader else [{}] * 4)


def test_no_row_with_a_grammar_changes_what_others_sample(compiler: GrammarCompiler) -> None:
    """Seeds, penalties, filters and logprobs of plain rows, bit for bit, in a batch of seven with and without grammars."""
    params = [
        SamplingParams(temperature=1.0, seed=1, logprobs=3),
        SamplingParams(temperature=0.7, seed=2, top_p=0.8, repetition_penalty=1.2),
        SamplingParams(temperature=0.0, presence_penalty=0.5),
        SamplingParams(temperature=1.3, seed=4, typical_p=0.9),
    ]
    generator = np.random.default_rng(3)
    steps = [torch.from_numpy(generator.normal(size=(7, WIDTH)).astype(np.float32)) for _ in range(12)]

    def run(*, with_grammars: bool) -> list[list[object]]:
        sampler = Sampler(WIDTH, 8, "cpu", 0, compiler)
        for index in range(7):
            wanted = row(index, regex="[a-z]{3}-[0-9]+") if with_grammars and index % 2 else row(index)
            sampler.add_row(msgspec.structs.replace(wanted, params=params[index // 2]))
        found = [sampler.finish(sampler.sample(logits.clone(), list(range(7)))) for logits in steps]
        return [[(step.token_ids[line], step.logprobs[line]) for step in found] for line in (0, 2, 4, 6)]

    assert run(with_grammars=True) == run(with_grammars=False)


def test_seeds_draw_the_same_under_a_grammar(sampler: Sampler) -> None:
    generator = np.random.default_rng(5)
    steps = [torch.from_numpy(generator.normal(size=(1, WIDTH)).astype(np.float32)) for _ in range(20)]

    def run(seed: int) -> bytes:
        sampler.add_row(msgspec.structs.replace(row(2, regex="[a-z]{20}"), params=SamplingParams(temperature=1.0, seed=seed)))
        return bytes(sampler.finish(sampler.sample(logits.clone(), [2])).token_ids[0] for logits in steps)

    assert run(7) == run(7) != run(8)


def test_compiled_grammars_are_kept_but_not_for_ever(compiler: GrammarCompiler) -> None:
    kept, others = to_llguidance(StructuredOutputsParams(regex="kept")), [f"start: /x{index}/" for index in range(2 * MAX_CACHED)]
    first = compiler.prepare(kept)
    assert compiler.prepare(kept) is first
    for other in others:
        compiler.prepare(other)
    assert compiler.prepare(kept) is first, "somebody still has it"
    for other in others:
        compiler.prepare(other).result()
    assert len(compiler._recent) == MAX_CACHED
    assert compiler._seconds.keys() <= compiler._recent.keys()
    alive = weakref.ref(first)
    del first
    assert alive() is None


def test_what_took_long_to_compile_is_not_hoarded(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those in use: whoever holds one keeps it."""
    monkeypatch.setattr(grammar_compiler, "MAX_CACHED_S", 1e-9)
    held = compiler.prepare("start: /held/")
    held.result()
    compiler.prepare("start: /other/").result()
    compiler.prepare("start: /third/")
    assert "start: /other/" not in compiler._recent
    assert compiler.prepare("start: /held/") is held


def test_many_masks_are_made_in_threads(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "MIN_SHARED_ROWS", 3)
    monkeypatch.setattr(grammar.os, "cpu_count", lambda: 8)
    sampler = Sampler(WIDTH, 8, "cpu", 0, compiler)
    texts = [b"ab", b"cd", b"e", b"fg", b"hi"]
    for index, text in enumerate(texts):
        sampler.add_row(row(index, choice=[text.decode()]))
    found = steps(sampler, list(range(5)), [(b"q",) * 5, (b"q",) * 5])
    assert sampler._grammars._threads is not None
    assert [bytes(token for token in column if token < 256) for column in zip(*found, strict=True)] == texts
