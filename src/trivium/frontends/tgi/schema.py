"""Request bodies of TGI's routes. Names and types are those of `GenerateParameters` in TGI's router; null means absent everywhere.

Each body exists twice: the strict one names unknown fields, the lax one ignores them, as TGI does. `parse` uses both.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast, get_type_hints

import msgspec

from trivium.errors import UnknownField
from trivium.frontends.limits import parse_json
from trivium.frontends.openai.schema import Message

T = TypeVar("T", bound=msgspec.Struct)


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    best_of: int | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    typical_p: float | None = None
    do_sample: bool | None = None
    max_new_tokens: int | None = None
    return_full_text: bool | None = None
    stop: list[str] | None = None
    truncate: int | None = None
    watermark: bool | None = None
    details: bool | None = None
    decoder_input_details: bool | None = None
    seed: int | None = None
    top_n_tokens: int | None = None
    grammar: dict[str, Any] | None = None
    adapter_id: str | None = None

    @property
    def stop_strings(self) -> list[str]:
        return self.stop or []

    @property
    def has_sampling_field(self) -> bool:
        """What TGI's check of `best_of` takes for sampling: `do_sample`, or any of its fields with whatever value."""
        fields = (self.temperature, self.top_k, self.top_p, self.typical_p)
        return bool(self.do_sample) or any(value is not None for value in fields)

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn at random: a temperature of 1 alone does not ask for it."""
        return (
            bool(self.do_sample)
            or self.temperature not in (None, 1.0)
            or any(value is not None for value in (self.top_k, self.top_p, self.typical_p))
        )


class LaxParameters(Parameters, frozen=True, kw_only=True, forbid_unknown_fields=False):
    pass


def settings_of(parameters: Parameters | None) -> Parameters:
    """TGI's default where the object is missing altogether: to sample."""
    return Parameters(do_sample=True) if parameters is None else parameters


class GenerateBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`POST /generate`, `/generate_stream`, `/` and `/tokenize`. `model` is Trivium's: it counts only where it names a model there is."""

    inputs: str
    parameters: Parameters | None = None
    stream: bool | None = None
    model: str | None = None

    @property
    def settings(self) -> Parameters:
        return settings_of(self.parameters)


class LaxGenerateBody(GenerateBody, frozen=True, kw_only=True, forbid_unknown_fields=False):
    parameters: LaxParameters | None = None


class ChatTokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /chat_tokenize`: the parts of a chat request that its prompt depends on."""

    messages: list[Message]
    model: str | None = None
    tools: Any = None


class LaxChatTokenizeBody(ChatTokenizeBody, kw_only=True, forbid_unknown_fields=False):
    pass


class VertexChat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conversation among the instances of `POST /vertex`."""

    messages: list[Message]
    parameters: Parameters | None = None

    @property
    def settings(self) -> Parameters:
        return settings_of(self.parameters)


class LaxVertexChat(VertexChat, frozen=True, kw_only=True, forbid_unknown_fields=False):
    parameters: LaxParameters | None = None


class VertexBody(msgspec.Struct, kw_only=True):
    instances: list[msgspec.Raw]


class Parser(Generic[T]):
    """One body type. Unknown fields are ignored but named: a misspelt field that does nothing should be found in testing."""

    def __init__(self, strict: type[T], lax: type[T]) -> None:
        self._type = strict
        self._strict = msgspec.json.Decoder(strict)
        self._lax = msgspec.json.Decoder(lax)

    def __call__(self, raw: bytes, ignored: list[str], *, where: str = "") -> T:
        """The body; names of fields that were ignored are added to `ignored`, behind `where`. Raises `InvalidRequest`."""
        try:
            return parse_json(raw, self._strict)
        except UnknownField:
            body = parse_json(raw, self._lax)
            ignored += unknown_fields(self._type, msgspec.json.decode(raw), where)
            return body


def unknown_fields(body: type[Any], value: Any, where: str = "") -> list[str]:
    """Paths of the keys of a JSON object (lists of objects included) that a struct type has no field for."""
    hints = get_type_hints(body)
    found: list[str] = []
    for name, inner in cast("dict[str, Any]", value).items():
        path = f"{where}{name}"
        if name not in hints:
            found.append(path)
            continue
        nested = [kind for kind in _members(hints[name]) if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]
        for place, item in enumerate(cast("list[Any]", inner) if isinstance(inner, list) else [inner]):
            if nested and isinstance(item, dict):
                found += unknown_fields(nested[0], item, f"{path}[{place}]." if isinstance(inner, list) else f"{path}.")
    return found


def _members(hint: Any) -> list[Any]:
    """The hint itself and all it is made of."""
    return [hint, *(inner for part in getattr(hint, "__args__", ()) for inner in _members(part))]
