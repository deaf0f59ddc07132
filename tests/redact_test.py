"""User names, passwords and tokens are removed from URLs, and nothing else."""

import pytest

from trivium.redact import redact, redacted, secrets_in
from trivium.units import plain

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "text",
    [
        f"https://user:{SECRET}@host/x",
        f"https://{SECRET}:pw@host:8080/x",
        f"https://{SECRET}@github.com/a/b.git",
        f"https://user:p@{SECRET}@host/x",
        f"https://user:a/{SECRET}@host/x",
        f"https://user:a#{SECRET}@host/x",
        f"s3://key:{SECRET}@bucket/x",
        f"s3:/key:{SECRET}@bucket/x",  # as Path normalises it
        f"ray://user:{SECRET}@head:10001",
        f"simplecache::https://user:{SECRET}@host/x",
        f"git+https://x:{SECRET}@host/r.git@v1",
        f"postgresql://user:{SECRET}@[::1]:5432/db",
        f"a 'https://user:{SECRET}@host/x', and {{'b': 1}}",
        f"--set=plan=https://user:{SECRET}@host",
        f"https://host/x?X-Amz-Signature={SECRET}&y=1",
        f"https://host/x?x-amz-credential={SECRET}%2F2026",
        f"https://host/x?a=1&X-Amz-Security-Token={SECRET}",
        f"https://host/x?X-Goog-Signature={SECRET}",
        f"https://host/x?sv=2&sig={SECRET}%3D",
        f"https://host/x?token={SECRET}",
        f"https://host/x?access_token={SECRET}#top",
        f"https://host/x#access_token={SECRET}",
        f"https://host/x?api_key={SECRET}",
        f"https://host/x?apikey={SECRET};b=2",
        f"https://host/x?AWSAccessKeyId={SECRET}",
        f"https://host/x?password={SECRET}",
        f"https://host/x?client_secret={SECRET}",
        f"HTTPS://HOST/X?TOKEN={SECRET}",
    ],
)
def test_secrets_in_urls_are_hidden(text):
    for found in (
        redact(text),
        redacted({text: [text, (text,)]}),
        plain(f"{text}\n{text}"),
        *secrets_in({"a": [text]}),
    ):
        assert SECRET not in str(found) and "***" in str(found)
    assert next(secrets_in({"a": ["", text]}))[0] == "a.1"


@pytest.mark.parametrize(
    "text",
    [
        "https://host:8080/a@b",
        "https://cdn.example/npm/plotly@2.0/x.js",
        "s3://bucket/key@v1",
        "see https://a.example and write to c@d.example",
        "file:///home/a@b/c",
        "https://host/x?page=2&tokens_per_page=",
        "https://host/x?q=signature",
        "a: b@c, user:pw@host",
        "10:30 a/b@c",
        "",
    ],
)
def test_other_text_is_unchanged(text):
    assert redact(text) == text and not list(secrets_in({"a": text}))
