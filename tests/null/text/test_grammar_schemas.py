"""Random schemas, random answers: whatever a grammar lets through and lets end is JSON that its schema takes, by an implementation of its own."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import llguidance
import numpy as np
import pytest

from trivium.text.grammar import to_llguidance
from trivium.types import StructuredOutputsParams

guidance: Any = llguidance
NUM_SCHEMAS = 150
MAX_BYTES = 200
PATTERNS = ["^a+b?$", "[0-9]{2}", "^(ab|c){1,3}$", r"^\d+$", r"^\w{2,4}$", "^[^x]{3}$", "a.c", "^.$", r"\.$"]
FORMATS = ["uuid", "ipv4", "ipv6", "email", "hostname", "duration"]
"""Not `date`: the 29th of February of any year is let through."""
VALUES = [1, 2.5, "a", 'é\n"', None, True, {"x": [1]}, [], "日本"]


def make_schema(source: random.Random, depth: int = 0) -> dict[str, Any]:
    def inner() -> dict[str, Any]:
        return make_schema(source, depth + 1)

    def several(most: int) -> list[dict[str, Any]]:
        return [inner() for _ in range(source.randint(1, most))]

    leaves = {
        "string": lambda: {"type": "string", "minLength": source.randint(0, 3), "maxLength": source.randint(3, 8)},
        "integer": lambda: {"type": "integer", "minimum": source.randint(-50, 20), "exclusiveMaximum": source.randint(22, 500)},
        "multiple": lambda: {"type": "integer", "multipleOf": source.randint(1, 12)},
        "number": lambda: {"type": "number", "minimum": round(source.uniform(-5, 2), 2), "maximum": round(source.uniform(3, 50), 1)},
        "types": lambda: {"type": source.sample(["string", "integer", "null", "boolean"], 2), "minimum": source.randint(0, 5), "maxLength": 4},
        "enum": lambda: {"enum": source.sample(VALUES, source.randint(1, 4))},
        "const": lambda: {"const": source.choice(VALUES)},
        "pattern": lambda: {"type": "string", "pattern": source.choice(PATTERNS)},
        "format": lambda: {"type": "string", "format": source.choice(FORMATS)},
    }
    names = source.sample(["a", "b", "dé", "e f", 'q"'], source.randint(0, 4))
    branches = {
        "array": lambda: {"type": "array", "items": inner(), "minItems": source.randint(0, 1), "maxItems": source.randint(1, 3)},
        "tuple": lambda: {"type": "array", "prefixItems": several(3), "items": source.choice([False, inner()]), "maxItems": 4},
        "object": lambda: {
            "type": "object",
            "properties": {name: inner() for name in names},
            "required": [name for name in names if source.random() < 0.6],
            "additionalProperties": source.choice([False, inner()]),
        },
        "map": lambda: {"type": "object", "additionalProperties": inner()},
        "patterns": lambda: {"type": "object", "patternProperties": {source.choice(["^x", "y$"]): inner()}, "additionalProperties": False},
        "anyOf": lambda: {"anyOf": several(3)},
        "oneOf": lambda: {"oneOf": several(2)},
        "allOf": lambda: {"allOf": several(2)},
    }
    kinds = leaves if depth > 2 else {**leaves, **branches}
    return kinds[source.choice(list(kinds))]()


def random_answer(matcher: Any, tokenizer: Any, source: random.Random) -> bytes | None:
    """One that the grammar lets end; None if it did not come to an end in time."""
    answer = bytearray()
    mask = np.zeros(tokenizer.vocab_size // 32 + 1, dtype=np.int32)
    while len(answer) < MAX_BYTES:
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        assert not matcher.is_error(), matcher.get_error()
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
        if tokenizer.eos_token in allowed and (len(allowed) == 1 or source.random() < 0.5):
            return bytes(answer)
        allowed = [token_id for token_id in allowed if token_id < 256]
        closing = [token_id for token_id in allowed if token_id in b'}],"']
        answer.append(source.choice(closing if closing and source.random() < 0.3 else allowed))
        matcher.try_consume_tokens([answer[-1]])
    return None


@pytest.mark.parametrize("seed", [1, 2])
def test_what_may_end_is_valid(seed: int) -> None:
    source = random.Random(seed)
    tokenizer = guidance.LLTokenizer("byte")
    num_checked = 0
    for _ in range(NUM_SCHEMAS):
        schema = make_schema(source)
        matcher = guidance.LLMatcher(tokenizer, to_llguidance(StructuredOutputsParams(json=schema)), log_level=0)
        if matcher.is_error():
            assert any(reason in matcher.get_error() for reason in ("Unsatisfiable", "oneOf")), matcher.get_error()
            continue
        validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
        for _ in range(2):
            answer = random_answer(matcher.deep_copy(), tokenizer, source)
            if answer is not None:
                validator.validate(json.loads(answer))
                num_checked += 1
    assert num_checked > NUM_SCHEMAS
