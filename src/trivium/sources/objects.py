"""Object stores behind URLs: s3://, oss://, gs:// and http(s)://, through obstore (`trivium[buckets]`).

Credentials come from the environment, under each provider's own names: AWS_*, GOOGLE_*, OSS_*.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from trivium import env
from trivium.errors import ConfigError, ModelLoadError

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

SCHEMES: Final = ("s3", "oss", "gs", "http", "https")
INSTALL_COMMAND: Final = "pip install 'trivium[buckets]'"
MAX_OBJECTS: Final = 10_000
"""A folder with more is no model."""


@dataclass(frozen=True)
class Location:
    """A URL taken apart. `host` is the bucket, or host and port; `prefix` the path without slashes around it."""

    scheme: str
    host: str
    prefix: str

    @property
    def lists(self) -> bool:
        """Whether the store can say what is in a folder; a web server can't."""
        return self.scheme not in ("http", "https")


@dataclass(frozen=True)
class StoredObject:
    """One object: its full path in the store, bytes, and the tag that changes when the contents do: the store's own, or the time of change."""

    path: str
    size: int
    tag: str
    has_own_tag: bool = True

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def is_url(model: str) -> bool:
    return "://" in model


def parse_url(url: str) -> Location:
    """Raises `ConfigError` for a scheme that isn't one of `SCHEMES`, for credentials or a query in the URL, and for a missing bucket."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ConfigError(f"{url}: models come from {', '.join(f'{scheme}://' for scheme in SCHEMES)}, not from {parts.scheme}://.", param="model")
    if "@" in parts.netloc:
        raise ConfigError("A model's URL must not hold credentials: they are read from the environment.", param="model")
    if parts.query or parts.fragment:
        raise ConfigError("A model's URL must be a plain path, without ? and #.", param="model")
    if not parts.netloc:
        raise ConfigError(f"{url} names no bucket or host.", param="model")
    prefix = unquote(parts.path).strip("/")
    if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
        raise ConfigError(f"{url} is no plain path.", param="model")
    return Location(parts.scheme, parts.netloc, prefix)


def open_store(location: Location) -> ObjectStore:
    """The store that holds `location`. Raises `ConfigError` without obstore or with settings it refuses."""
    try:
        from obstore.exceptions import BaseError
        from obstore.store import GCSStore, HTTPStore, S3Store
    except ImportError:
        raise ConfigError(f"{location.scheme}:// needs obstore: {INSTALL_COMMAND}", param="model") from None
    options: Any = {"timeout": "120s", "connect_timeout": "10s", "allow_http": True}
    try:
        match location.scheme:
            case "s3":
                return S3Store(location.host, client_options=options)
            case "oss":
                return S3Store(location.host, client_options=options, **_oss_settings(location.host))
            case "gs":
                return GCSStore(location.host, client_options=options)
            case _:
                return HTTPStore.from_url(f"{location.scheme}://{location.host}", client_options=options)
    except BaseError as error:
        raise ConfigError(f"{location.scheme}://{location.host} can't be opened: {error}", param="model") from None


def _oss_settings(bucket: str) -> dict[str, Any]:
    """OSS speaks S3's protocol, but only with the bucket in the host name."""
    endpoint = env.get("OSS_ENDPOINT")
    if endpoint is None:
        raise ConfigError("oss:// needs OSS_ENDPOINT, as in https://oss-cn-hangzhou.aliyuncs.com.", param="model")
    parts = urlsplit(endpoint if "://" in endpoint else f"https://{endpoint}")
    settings: dict[str, Any] = {
        "endpoint": f"{parts.scheme}://{bucket}.{parts.netloc}",
        "region": env.get("OSS_REGION", "oss"),
        "virtual_hosted_style_request": True,
    }
    key, secret = env.get("OSS_ACCESS_KEY_ID"), env.get("OSS_ACCESS_KEY_SECRET")
    if key is None or secret is None:
        return {**settings, "skip_signature": True}
    return {**settings, "access_key_id": key, "secret_access_key": secret}


def head(store: ObjectStore, path: str) -> StoredObject | None:
    """The object at `path`, or None if there is none. Raises `ModelLoadError` for what else goes wrong."""
    from obstore import head as obstore_head
    from obstore.exceptions import BaseError

    try:
        meta = obstore_head(store, path)
    except FileNotFoundError:
        return None
    except (BaseError, OSError) as error:
        raise ModelLoadError(f"Asking for {path} failed: {first_line(error)}") from None
    return _stored(meta)


def children(store: ObjectStore, prefix: str) -> Iterator[StoredObject]:
    """Objects directly in the folder `prefix`. Raises `ModelLoadError`, also for more than `MAX_OBJECTS`."""
    from obstore import list_with_delimiter  # pyright: ignore[reportUnknownVariableType]
    from obstore.exceptions import BaseError

    try:
        found: Sequence[ObjectMeta] = list_with_delimiter(store, prefix)["objects"]  # pyright: ignore[reportUnknownVariableType]
    except (BaseError, OSError) as error:
        raise ModelLoadError(f"Listing {prefix or 'the bucket'} failed: {first_line(error)}") from None
    if len(found) > MAX_OBJECTS:
        raise ModelLoadError(f"{prefix or 'The bucket'} holds {len(found)} objects: that is no model's folder.")
    for meta in found:
        yield _stored(meta)


def _stored(meta: ObjectMeta) -> StoredObject:
    tag = meta["e_tag"]
    if tag:
        return StoredObject(meta["path"], meta["size"], tag)
    return StoredObject(meta["path"], meta["size"], f"modified {meta['last_modified'].isoformat()}", has_own_tag=False)


_METADATA_HOSTS: Final = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")
"""What the library asks for credentials when the environment holds none."""


def first_line(error: Exception) -> str:
    """What went wrong in one line: the library's messages go on with its own state."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = lines[0][:300] if lines else type(error).__name__
    if any(host in line for host in _METADATA_HOSTS):
        return "no credentials in the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket)"
    return line
