"""text-generation-launcher's flags and variables, and what each one means here: a pure function from their texts to Trivium's settings.

The list is that of launcher/src/main.rs; every flag has a variable, its name in capitals. A flag is translated, or accepted because it asks for what
happens anyway (then the log says so where one could expect more), or refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from trivium.errors import ConfigError

Check = Callable[[str], str]
"""From the flag's text to the setting's. Raises `ConfigError`."""

TRUE: Final = frozenset({"1", "true", "yes", "on"})
FALSE: Final = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, kw_only=True)
class TgiFlag:
    """One flag. Exactly one of `setting`, `note`, `refusal` and `is_special` says what becomes of it."""

    name: str
    help: str
    setting: str | None = None
    convert: Check | None = None
    note: str | None = None
    """Accepted without effect: why."""
    refusal: str | None = None
    """Refused, but for the `accepted` values: why."""
    accepted: tuple[str, ...] = ()
    is_special: bool = False
    """`translate` has a line for it."""
    is_bool: bool = False
    is_multiple: bool = False
    short: str | None = None

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return self.name.upper()


def _kv_cache_dtype(text: str) -> str:
    if text in ("fp8_e4m3fn", "fp8_e4m3", "fp8"):
        return "fp8"
    if text == "auto":
        return text
    raise ConfigError(f"--kv-cache-dtype {text} is refused: fp8_e4m3fn is the one type besides the model's own.", param="kv_cache_dtype")


def _quantization(text: str) -> str:
    if text == "exl2":
        raise ConfigError("--quantize exl2 is refused: EXL2 checkpoints are not supported.", param="quantize")
    return text


def _cuda_graphs(text: str) -> str:
    """Only 0, "none", changes anything: the engine captures every size that its batches can have."""
    sizes = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in sizes):
        raise ConfigError(f"--cuda-graphs must be a list of batch sizes, got {text!r}.", param="cuda_graphs")
    return "true" if sizes == ["0"] else "false"


def _chat_template(text: str) -> str:
    """The template in a tokenizer_config.json; of several the one called default."""
    path = Path(text)
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--tokenizer-config-path: {path} can't be read: {error}", param="tokenizer_config_path") from None
    template: Any = cast("dict[str, Any]", found).get("chat_template") if isinstance(found, dict) else None
    if isinstance(template, list):
        named = [cast("dict[str, Any]", entry) for entry in cast("list[Any]", template) if isinstance(entry, dict)]
        template = next((entry.get("template") for entry in named if entry.get("name") == "default"), None)
    if not isinstance(template, str):
        raise ConfigError(f"--tokenizer-config-path: {path} has no chat_template.", param="tokenizer_config_path")
    return template


def _flag(name: str, help_text: str, setting: str | None = None, **more: Any) -> TgiFlag:
    return TgiFlag(name=name, help=help_text, setting=setting, **more)


_PREFILL_IS_CHUNKED: Final = "prompts are always processed in chunks beside running answers, where TGI doesn't look at it either"
_ONE_HOST: Final = "the shards of a model run on one machine"
_LATER: Final = "not supported yet"

FLAGS: Final[tuple[TgiFlag, ...]] = (
    _flag("model_id", "Folder, hub name or URL of the model; without it, the packaged model.", "model"),
    _flag("revision", "Branch, tag or commit of a hub model.", "revision"),
    _flag("validation_workers", "Threads that tokenize prompts.", "tokenizer_threads"),
    _flag("sharded", "Use all visible GPUs.", is_special=True),
    _flag("num_shard", "GPUs that share the model.", is_special=True),
    _flag("quantize", "How weights are kept: awq, bitsandbytes, bitsandbytes-nf4, …", "quantization", convert=_quantization),
    _flag("speculate", "Speculative tokens.", refusal=f"speculation is {_LATER}", accepted=("0",)),
    _flag("dtype", "float16 or bfloat16.", "dtype"),
    _flag("kv_cache_dtype", "Type of cached keys and values.", "kv_cache_dtype", convert=_kv_cache_dtype),
    _flag("trust_remote_code", "Refused: no code from a model folder ever runs.", "trust_remote_code", is_bool=True),
    _flag("max_concurrent_requests", "Requests that run and wait in all; more are answered with 429.", "max_concurrent_requests"),
    _flag("max_best_of", "Largest best_of.", "max_best_of"),
    _flag("max_stop_sequences", "Most stop strings of a request.", "max_stop_sequences"),
    _flag("max_top_n_tokens", "Largest top_n_tokens.", "max_top_n_tokens"),
    _flag("max_input_tokens", "Longest prompt, in tokens.", "max_input_tokens"),
    _flag("max_input_length", "Older name of --max-input-tokens.", is_special=True),
    _flag("max_total_tokens", "Longest prompt and answer together, in tokens.", "max_model_len"),
    _flag("waiting_served_ratio", "Without effect here.", note=_PREFILL_IS_CHUNKED),
    _flag("max_batch_prefill_tokens", "Tokens of one step.", "max_num_batched_tokens"),
    _flag("max_batch_total_tokens", "Tokens that the KV cache holds.", is_special=True),
    _flag("max_waiting_tokens", "Without effect here.", note=_PREFILL_IS_CHUNKED),
    _flag("max_batch_size", "Most requests that run at once.", "max_num_seqs"),
    _flag("cuda_graphs", "0: no CUDA graphs; else every batch size has one.", "enforce_eager", convert=_cuda_graphs),
    _flag("hostname", "Address to listen on.", "host"),
    _flag("port", "Port to listen on.", "port", short="-p"),
    _flag("prometheus_port", "Second port that serves /metrics.", "metrics_port"),
    _flag("shard_uds_path", "Without effect here.", note="shards find each other by themselves"),
    _flag("master_addr", "Without effect here.", refusal=_ONE_HOST, accepted=("localhost", "127.0.0.1")),
    _flag("master_port", "Without effect here.", note="shards find each other by themselves"),
    _flag("huggingface_hub_cache", "Folder of downloaded hub models.", is_special=True),
    _flag("weights_cache_override", "Refused.", refusal="name the folder with --model-id"),
    _flag("disable_custom_kernels", "Plain torch attention.", is_special=True, is_bool=True),
    _flag("cuda_memory_fraction", "Share of the GPU's memory that may be used.", "gpu_memory_utilization"),
    _flag("rope_scaling", "Refused.", refusal="set rope_scaling in the model's config.json"),
    _flag("rope_factor", "Refused.", refusal="set rope_scaling in the model's config.json"),
    _flag("json_output", "Log as JSON.", is_special=True, is_bool=True),
    _flag("otlp_endpoint", "Refused.", refusal=f"traces are {_LATER}"),
    _flag("otlp_service_name", "Refused.", refusal=f"traces are {_LATER}"),
    _flag("cors_allow_origin", "Origins whose web pages may call the server; default: any.", "allowed_origins", is_multiple=True),
    _flag("api_key", "Key that requests must carry.", "api_key"),
    _flag("watermark_gamma", "Refused.", refusal=f"watermarks are {_LATER}"),
    _flag("watermark_delta", "Refused.", refusal=f"watermarks are {_LATER}"),
    _flag("ngrok", "Refused.", refusal="TGI's no longer works either", accepted=("false",), is_bool=True),
    _flag("ngrok_authtoken", "Refused.", refusal="TGI's no longer works either"),
    _flag("ngrok_edge", "Refused.", refusal="TGI's no longer works either"),
    _flag("tokenizer_config_path", "tokenizer_config.json with the chat template to use.", "chat_template", convert=_chat_template),
    _flag("disable_grammar_support", "Refuse grammars.", "disable_grammar_support", is_bool=True),
    _flag("env", "Print what is installed here, then serve.", is_special=True, is_bool=True, short="-e"),
    _flag("max_client_batch_size", "Most prompts of one request.", "max_client_batch_size"),
    _flag("lora_adapters", "Refused.", refusal=f"adapters are {_LATER}", accepted=("",)),
    _flag("usage_stats", "Nothing is ever sent.", refusal="must be on, off or no-stack", accepted=("on", "off", "no-stack")),
    _flag("payload_limit", "Largest request body, in bytes.", "max_body_bytes"),
    _flag("enable_prefill_logprobs", "Requests that ask for them get them anyway.", refusal="", accepted=("true", "false"), is_bool=True),
    _flag("graceful_termination_timeout", "Seconds that accepted requests have to finish after SIGTERM.", "drain_timeout_s", short="-g"),
    _flag("max_image_fetch_size", "Refused.", refusal="only text goes in"),
)
BY_NAME: Final[Mapping[str, TgiFlag]] = {flag.name: flag for flag in FLAGS}

VARIABLES: Final[Mapping[str, str]] = {
    "COMPUTE_TYPE": "compute_type",
    "PREFIX_CACHING": "enable_prefix_caching",
}
"""TGI's variables that are no flags, and the settings they are here."""
HUB_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "HF_TOKEN": ("HUGGING_FACE_HUB_TOKEN", "HF_API_TOKEN"),
    "HF_HUB_CACHE": ("HUGGINGFACE_HUB_CACHE",),
}
"""The hub's variables and older names that TGI takes for them."""

DEFAULTS: Final[Mapping[str, str]] = {
    "port": "3000",
    "drain_timeout_s": "90",
    "allowed_origins": "*",
    "max_client_batch_size": "4",
    "metrics_names": "vllm,tgi",
    "ignore_unknown_fields": "true",
    "ignore_unknown_models": "true",
}
"""Settings that are TGI's under the launcher where nothing else is said."""


@dataclass(frozen=True)
class Translation:
    """What the flags mean."""

    settings: Mapping[str, str]
    sources: Mapping[str, str]
    """Setting to the flag it came from."""
    environment: Mapping[str, str]
    """Variables to be set for this process and the engine's."""
    notes: tuple[str, ...]
    wants_report: bool


def translate(given: Mapping[str, str], *, num_visible: Callable[[], int | None], block_size: int) -> Translation:
    """From flag names and texts. `num_visible` counts the GPUs that may be used, None where nothing says. Raises `ConfigError`."""
    given = {name: text for name, text in given.items() if not (text == "" and BY_NAME[name].refusal is None)}
    _check_together(given)
    settings: dict[str, str] = {}
    sources: dict[str, str] = {}
    notes: list[str] = []
    for name, text in given.items():
        flag = BY_NAME[name]
        if flag.refusal is not None and text not in flag.accepted:
            raise ConfigError(f"{flag.flag}{'' if flag.is_bool else f' {text}'} is refused: {flag.refusal}.", param=name)
        if flag.note is not None:
            notes.append(f"{flag.flag} has no effect: {flag.note}")
        if flag.setting is not None:
            settings[flag.setting] = text if flag.convert is None else flag.convert(text)
            sources[flag.setting] = flag.flag
    special = _special(given, num_visible=num_visible, block_size=block_size)
    environment = {"HF_HUB_CACHE": given["huggingface_hub_cache"]} if "huggingface_hub_cache" in given else {}
    if _is_on(given, "json_output"):
        environment["TRIVIUM_LOG_FORMAT"] = "json"
    return Translation(
        settings | {name: text for name, (text, _) in special.items()},
        sources | {name: source for name, (_, source) in special.items()},
        environment,
        tuple(notes),
        wants_report=_is_on(given, "env"),
    )


def _special(given: Mapping[str, str], *, num_visible: Callable[[], int | None], block_size: int) -> dict[str, tuple[str, str]]:
    """Settings that don't follow from one flag alone, each with the flag it is from."""
    found: dict[str, tuple[str, str]] = {}
    shards = num_shards(given, num_visible)
    if shards > 1 or "num_shard" in given:
        found["tensor_parallel_size"] = (str(shards), "--num-shard")
    if "max_input_length" in given:
        found["max_input_tokens"] = (given["max_input_length"], "--max-input-length")
    if "max_batch_total_tokens" in given:
        blocks = -(-_count(given, "max_batch_total_tokens") // block_size)
        found["num_gpu_blocks_override"] = (str(blocks), "--max-batch-total-tokens")
    if _is_on(given, "disable_custom_kernels"):
        found["attention_backend"] = ("reference", "--disable-custom-kernels")
    return found


def num_shards(given: Mapping[str, str], num_visible: Callable[[], int | None]) -> int:
    """TGI's rule: --num-shard; else all visible GPUs, unless --sharded says false."""
    is_sharded = None if "sharded" not in given else _bool("sharded", given["sharded"])
    if is_sharded is False:
        return 1
    if "num_shard" in given:
        count = _count(given, "num_shard")
        if count < 1:
            raise ConfigError("--num-shard must be at least 1.", param="num_shard")
        return count
    visible = num_visible() or 1
    if is_sharded and visible <= 1:
        raise ConfigError(f"--sharded true needs more than one GPU, but {visible} is visible; say how many with --num-shard.", param="sharded")
    return visible


def _check_together(given: Mapping[str, str]) -> None:
    """TGI's checks of flags against each other."""
    if "max_input_tokens" in given and "max_input_length" in given:
        raise ConfigError("--max-input-tokens and --max-input-length are one flag by two names: set one of them.", param="max_input_length")
    longest = "max_input_length" if "max_input_length" in given else "max_input_tokens"
    pairs = [(longest, "max_total_tokens", "less than"), ("max_total_tokens", "max_batch_total_tokens", "at most")]
    pairs += [("max_batch_prefill_tokens", "max_batch_total_tokens", "at most")]
    for small, large, relation in pairs:
        if small in given and large in given:
            least, most = _count(given, small), _count(given, large)
            if least > most or (least == most and relation == "less than"):
                raise ConfigError(f"{BY_NAME[small].flag} ({least}) must be {relation} {BY_NAME[large].flag} ({most}).", param=small)
    if "dtype" in given and "quantize" in given and not given["quantize"].startswith("bitsandbytes"):
        raise ConfigError("--dtype and --quantize exclude each other, but for bitsandbytes.", param="dtype")


def _count(given: Mapping[str, str], name: str) -> int:
    text = given[name]
    if not text.strip().isdecimal():
        raise ConfigError(f"{BY_NAME[name].flag} must be a whole number, got {text!r}.", param=name)
    return int(text)


def _is_on(given: Mapping[str, str], name: str) -> bool:
    return name in given and _bool(name, given[name])


def _bool(name: str, text: str) -> bool:
    word = text.strip().lower()
    if word not in TRUE | FALSE:
        raise ConfigError(f"{BY_NAME[name].flag} must be true or false, got {text!r}.", param=name)
    return word in TRUE
