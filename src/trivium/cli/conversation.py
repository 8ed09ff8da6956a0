"""The terminal conversation: history, slash commands and streaming, whoever answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Final, TextIO, cast

from trivium import log
from trivium.cli.remote import Message, Talker
from trivium.errors import ConfigError, InvalidRequest, TriviumError
from trivium.types import SamplingParams

HELP: Final = """\
/help              this list
/clear             forget the conversation
/system [TEXT]     set the system message, or show it
/set NAME VALUE    set a sampling parameter: {names}
/set               show the sampling parameters
/unset NAME        leave a sampling parameter to the model
/retry             answer the last message again
/exit              leave (so do Ctrl-D and /quit)
Ctrl-C stops an answer. A line that ends with a backslash goes on."""

SAMPLING: Final[dict[str, Callable[[str], Any]]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "max_tokens": int,
    "seed": int,
    "repetition_penalty": float,
    "frequency_penalty": float,
    "presence_penalty": float,
}


def parse_sampling(name: str, text: str) -> Any:
    """Raises `ConfigError` for a parameter or value that can't be."""
    _check_name(name)
    try:
        value = SAMPLING[name](text)
    except ValueError:
        raise ConfigError(f"{name}: {text!r} is not a number", param=name) from None
    try:
        SamplingParams(**{name: value})
    except InvalidRequest as error:
        raise ConfigError(error.message, param=name) from None
    return value


def _check_name(name: str) -> None:
    if name not in SAMPLING:
        raise ConfigError(f"there is no sampling parameter {name}; there are {', '.join(SAMPLING)}", param=name)


class Conversation:
    """Turns so far, and how the next is sampled. Text from the model is escaped, so that it can't drive the terminal."""

    def __init__(self, talker: Talker, *, system: str | None, sampling: Mapping[str, Any], out: TextIO) -> None:
        self._talker = talker
        self._system = system
        self._sampling = dict(sampling)
        self._out = out
        self.turns: list[Message] = []

    @property
    def messages(self) -> list[Message]:
        first: list[Message] = [{"role": "system", "content": self._system}] if self._system else []
        return first + self.turns

    def say(self, text: str) -> None:
        """One user turn and its streamed answer. An interrupted answer stays in the history as far as it came; a failed turn does not."""
        self.turns.append({"role": "user", "content": text})
        pieces: list[str] = []
        try:
            with closing(cast(Any, self._talker.reply(self.messages, self._sampling))) as reply:
                for piece in reply:
                    pieces.append(piece)
                    self._show(piece)
        except TriviumError:
            self.turns.pop()
            raise
        except KeyboardInterrupt:
            self._out.write(" …")
        self._out.write("\n")
        self._out.flush()
        self.turns.append({"role": "assistant", "content": "".join(pieces)})

    def _show(self, piece: str) -> None:
        self._out.write(log.escape(piece, keep_newlines=True))
        self._out.flush()

    def command(self, line: str) -> bool:
        """Carry out a line that starts with a slash. Returns False when the conversation is to end."""
        name, _, rest = line[1:].strip().partition(" ")
        rest = rest.strip()
        match name:
            case "exit" | "quit" | "bye":
                return False
            case "clear":
                self.turns.clear()
                self._say_so("forgotten")
            case "system":
                self._set_system(rest)
            case "set":
                self._set(rest)
            case "unset":
                self._unset(rest)
            case "retry":
                self._retry()
            case "help" | "?":
                self._say_so(HELP.format(names=", ".join(SAMPLING)))
            case _:
                self._say_so(f"there is no command /{name}; /help lists them")
        return True

    def _say_so(self, text: str) -> None:
        self._out.write(log.escape(text, keep_newlines=True) + "\n")

    def _set_system(self, text: str) -> None:
        if text:
            self._system = text
        self._say_so(f"system: {self._system or '(none)'}")

    def _set(self, rest: str) -> None:
        if rest:
            name, _, text = rest.partition(" ")
            try:
                self._sampling[name] = parse_sampling(name, text.strip())
            except ConfigError as error:
                self._say_so(error.message)
                return
        self._show_sampling()

    def _unset(self, name: str) -> None:
        try:
            _check_name(name)
        except ConfigError as error:
            self._say_so(error.message)
            return
        self._sampling.pop(name, None)
        self._show_sampling()

    def _show_sampling(self) -> None:
        self._say_so(", ".join(f"{name} {value}" for name, value in self._sampling.items()) or "the model's own defaults")

    def _retry(self) -> None:
        if len(self.turns) < 2:
            self._say_so("nothing was said yet")
            return
        text = self.turns[-2]["content"]
        del self.turns[-2:]
        self.say(text)


def talk(conversation: Conversation, *, read: Callable[[str], str], warn: Callable[[str], None]) -> None:
    """Read lines until the end; `read` gets the prompt and raises `EOFError` at the end. Failed turns are told through `warn`."""
    lines: list[str] = []
    while True:
        try:
            line = read("... " if lines else ">>> ")
        except EOFError:
            return
        except KeyboardInterrupt:
            lines.clear()
            warn("(/exit or Ctrl-D leaves)")
            continue
        if line.endswith("\\"):
            lines.append(line[:-1])
            continue
        text = "\n".join([*lines, line]).strip()
        lines.clear()
        try:
            if text.startswith("/"):
                if not conversation.command(text):
                    return
            elif text:
                conversation.say(text)
        except TriviumError as error:
            warn(f"error: {error.message}")
