"""Text and tokens: tokenizer, chat template, incremental detokenizer, stop strings. Torch-free."""

from __future__ import annotations

from trivium.text.chat_template import ChatTemplate
from trivium.text.detokenizer import IncrementalDetokenizer
from trivium.text.load import load_chat_template, load_tokenizer
from trivium.text.output import OutputText
from trivium.text.stop import StopStringMatcher
from trivium.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "IncrementalDetokenizer", "OutputText", "StopStringMatcher", "Tokenizer", "load_chat_template", "load_tokenizer"]
