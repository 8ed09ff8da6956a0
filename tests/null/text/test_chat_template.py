"""Chat templates: what models' templates need works, what is wrong with one is told, what runs away is stopped."""

from __future__ import annotations

import io
import json
import os
import re
import runpy
import sys
from datetime import datetime

import pytest
from helpers_tokenizers import byte_level_tokenizer

from trivium.errors import ConfigError, InvalidRequest, ModelLoadError
from trivium.text import ChatTemplate, chat_template, template_worker, worker_process
from trivium.types import ChatMessage

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HELLO = [{"role": "user", "content": "Hi 你好 <b>"}]
STRICT = "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('No ' + m.role + ' here') }}{% endif %}{% endfor %}"


def rendered(source: str, **variables: object) -> dict[str, str]:
    """In this process, as the worker does it."""
    request = {"source": source, "variables": {"messages": HELLO, **variables}}
    return template_worker.Renderer(max_chars=1000).answer(json.dumps(request).encode())


@pytest.fixture(scope="module")
def chatml():
    template = ChatTemplate(CHATML, special_tokens={"bos_token": "<s>"})
    yield template
    template.close()


def test_messages_become_a_prompt(chatml):
    assert chatml.render(HELLO) == "<|im_start|>user\nHi 你好 <b><|im_end|>\n<|im_start|>assistant\n"
    assert chatml.render(HELLO, add_generation_prompt=False) == "<|im_start|>user\nHi 你好 <b><|im_end|>\n"
    assert chatml.render([ChatMessage(role="user", content="x")], add_generation_prompt=False) == "<|im_start|>user\nx<|im_end|>\n"


def test_the_final_message_can_be_continued(chatml):
    turns = [*HELLO, {"role": "assistant", "content": "The capital "}]
    text = chatml.render(turns, add_generation_prompt=False, continue_final_message=True)
    assert text == "<|im_start|>user\nHi 你好 <b><|im_end|>\n<|im_start|>assistant\nThe capital "
    turns[-1]["content"] = ""
    assert chatml.render(turns, add_generation_prompt=False, continue_final_message=True).endswith("<|im_start|>assistant\n")


def test_a_template_that_trims_contents_trims_the_one_to_continue():
    template = ChatTemplate("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}")
    turns = [{"role": "user", "content": " hi "}, {"role": "assistant", "content": "The capital "}]
    assert template.render(turns, add_generation_prompt=False, continue_final_message=True) == "[hi][The capital"
    template.close()


@pytest.mark.parametrize(
    ("messages", "options", "message"),
    [
        (HELLO, {"continue_final_message": True}, "exclude each other"),
        ([], {"add_generation_prompt": False, "continue_final_message": True}, "needs a last message with text"),
        ([ChatMessage(role="user")], {"add_generation_prompt": False, "continue_final_message": True}, "needs a last message with text"),
        (HELLO, {"kwargs": {"messages": []}}, "can't replace 'messages'"),
        ([{"role": "user", "content": object()}], {}, "can't be given to a chat template"),
        ([ChatMessage(role="user")], {}, "fails on these messages"),
    ],
)
def test_requests_that_make_no_sense_are_refused(chatml, messages, options, message):
    with pytest.raises(InvalidRequest, match=message):
        chatml.render(messages, **options)


def test_a_template_that_hides_the_last_message_can_not_continue_it():
    template = ChatTemplate("{{ messages[0].content }}")
    with pytest.raises(InvalidRequest, match="does not show the last message"):
        template.render([*HELLO, *HELLO], add_generation_prompt=False, continue_final_message=True)
    template.close()


def test_variables_are_special_tokens_then_the_requests_own():
    template = ChatTemplate("{{ bos_token }}|{{ thinking }}|{{ tools }}|{{ name is defined }}", special_tokens={"bos_token": "<s>"})
    assert template.render(HELLO, kwargs={"thinking": True}) == "<s>|True|None|False"
    assert template.render(HELLO, kwargs={"bos_token": "<x>"}, tools=[{"type": "function"}]) == "<x>||[{'type': 'function'}]|False"
    template.close()


def test_a_name_is_there_only_if_it_was_given():
    template = ChatTemplate("{{ 'name' in messages[0] }}{{ messages[0].content }}")
    assert template.render([ChatMessage(role="user", content="a", name="bo")]) == "Truea"
    assert template.render([ChatMessage(role="user")]) == "FalseNone"
    template.close()


def test_a_template_for_a_tokenizer_knows_its_special_tokens():
    template = ChatTemplate.for_tokenizer("{{ bos_token }}{{ eos_token }}", byte_level_tokenizer())
    assert template.render(HELLO) == "<s></s>"
    template.close()
    with pytest.raises(InvalidRequest, match="not a valid Jinja template: line 1"):
        ChatTemplate.for_tokenizer("{% for %}", byte_level_tokenizer())


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages | tojson }}", '[{"role": "user", "content": "Hi 你好 <b>"}]'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=2, sort_keys=true) }}", '{\n  "a": 2,\n  "b": 1\n}'),
        ("{{ 'é' | tojson(ensure_ascii=true) }}", '"\\u00e9"'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "02"),
        ("a{% generation %}b{{ messages[0].role }}{% endgeneration %}c", "abuserc"),
        ("  {% if true %}\nx\n  {% endif %}\n", "x\n"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("{{ missing }}|{{ missing is defined }}", "|False"),
        ("{{ strftime_now('%Y') }}", str(datetime.now().year)),
    ],
)
def test_what_models_templates_use_works_as_in_transformers(source, expected):
    assert rendered(source) == {"text": expected}


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        ("{% for %}", "syntax", "line 1: .*"),
        ("{{ messages[0].content.missing.more }}", "render", "'str object' has no attribute 'missing'"),
        ("{{ messages[0]['content'] + 1 }}", "render", "TypeError: .*"),
        ("{{ raise_exception('no system message') }}", "raised", "no system message"),
        ("{{ ''.__class__.__mro__ }}", "render", "access to attribute '__class__' of 'str' object is unsafe."),
        ("{{ messages.append(1) }}", "render", ".*unsafe.*|.*not safely callable.*"),
        ("{{ messages.__init__.__globals__ }}", "render", ".*unsafe.*"),
        ("{% include 'x' %}", "render", ".*no loader.*"),
        ("{% for i in range(1001) %}x{% endfor %}", "limit", "OverflowError"),
        ("{% for i in range(1000000) %}{% endfor %}", "limit", "OverflowError"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "limit", "RecursionError"),
    ],
)
def test_what_goes_wrong_has_a_kind_and_a_message(source, kind, message):
    answer = rendered(source)
    assert answer["error"] == kind
    assert re.fullmatch(message, answer["message"])


def test_the_models_own_refusal_is_the_message():
    template = ChatTemplate(STRICT)
    with pytest.raises(InvalidRequest, match="^No system here$") as caught:
        template.render([{"role": "system", "content": "x"}])
    assert caught.value.param == "messages"
    template.close()


def test_a_bad_template_is_an_error_of_the_kind_asked_for():
    with pytest.raises(ModelLoadError, match="model.gguf is not a valid Jinja template: line 2"):
        ChatTemplate("a\n{% if %}", origin="model.gguf")
    with pytest.raises(ConfigError, match="at most 1048576"):
        ChatTemplate("x" * ((1 << 20) + 1), error=ConfigError)
    with pytest.raises(ModelLoadError, match="not a valid Jinja template: RecursionError"):
        ChatTemplate("{{ " + "(" * 20000 + " }}")


def test_a_runaway_template_is_stopped_and_the_next_request_is_served():
    source = "{% if messages | length > 1 %}{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}{% endif %}fine"
    template = ChatTemplate(source, cpu_seconds=0.1)
    assert template.render(HELLO) == "fine"
    with pytest.raises(InvalidRequest, match="out of time"):
        template.render([*HELLO, *HELLO])
    assert template.render(HELLO) == "fine"
    template.close()


def test_a_template_that_takes_all_memory_fails_alone():
    template = ChatTemplate("{{ ('x' * 3000000000) | length }}")
    with pytest.raises(InvalidRequest, match="too much time or memory.*MemoryError"):
        template.render(HELLO)
    template.close()


def test_too_long_an_output_is_refused():
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", max_output_chars=20)
    assert len(template.render(HELLO)) < 20
    with pytest.raises(InvalidRequest, match="OverflowError"):
        template.render(HELLO * 3)
    template.close()


def test_a_lost_process_is_replaced():
    template = ChatTemplate("{{ messages[0].content }}")
    process = template._worker._process
    assert process is not None
    assert os.getpgid(process.pid) == process.pid, "the terminal's Ctrl-C is not for it"
    process.kill()
    process.wait()
    assert template.render(HELLO) == HELLO[0]["content"]
    template.close()
    assert template.render(HELLO) == HELLO[0]["content"], "closed is not gone"
    template.close()
    template.close()


@pytest.mark.parametrize(
    ("then", "message"),
    [
        (["sys.stdin.buffer.readline()", "sys.exit(3)"], "its process ended with 3"),
        (["os.close(0)", "time.sleep(60)"], "its process ended with -9"),
    ],
)
def test_a_process_that_dies_while_asked_is_told_as_such(monkeypatch, tmp_path, then, message):
    script = tmp_path / "worker.py"
    script.write_text("\n".join(["import os, sys, time", "sys.stdin.buffer.readline()", 'print(\'{"text": ""}\', flush=True)', *then]))
    monkeypatch.setattr(chat_template, "_WORKER_FILE", script)
    monkeypatch.setattr(worker_process, "GRACE_SECONDS", 0.05 if "-9" in message else 60)
    template = ChatTemplate("x")
    process = template._worker._process
    assert process is not None
    with pytest.raises(InvalidRequest, match=message):
        template.render([{"role": "user", "content": "y" * 1_000_000}])
    assert process.poll() is not None
    template.close()


def test_the_worker_serves_line_by_line_until_its_input_ends():
    requests = [{"source": "a", "variables": {}}, {"source": "{{ n }}", "variables": {"n": 1}}, {"source": "a", "variables": None}]
    answers = io.BytesIO()
    template_worker.serve(io.BytesIO(b"".join(json.dumps(each).encode() + b"\n" for each in requests)), answers, max_chars=10, cpu_seconds=60.0)
    assert [json.loads(line) for line in answers.getvalue().splitlines()] == [{"text": "a"}, {"text": "1"}, {"text": ""}]


def test_the_worker_limits_its_own_memory(monkeypatch):
    limits: list[object] = []
    stdout = io.BytesIO()
    monkeypatch.setattr(template_worker.resource, "setrlimit", lambda kind, limit: limits.append(limit))
    monkeypatch.setattr(sys, "argv", ["worker", "10", "60", "12345"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"source": "a", "variables": {}}\n')))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(stdout, write_through=True))
    runpy.run_path(template_worker.__file__, run_name="__main__")
    assert limits == [(12345, 12345)]
    assert stdout.getvalue() == b'{"text": "a"}\n'
