"""Every kind of secret in every shape that logs, dumps and command lines give it: the value never survives."""

import json
import shlex
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.text import redact, shown

UPPER, DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789"
ALNUM = UPPER + UPPER.lower() + DIGITS


def word(alphabet: str, low: int, high: int | None = None) -> st.SearchStrategy[str]:
    return st.text(alphabet=alphabet, min_size=low, max_size=high or low)


# Known by their own form, wherever they stand.
TOKENS: dict[str, st.SearchStrategy[str]] = {
    "hugging face": word(ALNUM, 34).map("hf_".__add__),
    "github classic": word(ALNUM, 36).map("ghp_".__add__),
    "github app": word(ALNUM, 36).map("ghs_".__add__),
    "github fine-grained": word(ALNUM + "_", 60, 82).map("github_pat_".__add__),
    "gitlab": word(ALNUM, 20).map("glpat-".__add__),
    "aws key id": word(UPPER + DIGITS, 16).map("AKIA".__add__),
    "aws session id": word(UPPER + DIGITS, 16).map("ASIA".__add__),
    "google api key": word(ALNUM, 35).map("AIza".__add__),
    "google oauth": word(ALNUM, 40, 60).map("ya29.".__add__),
    "google client secret": word(ALNUM, 28).map("GOCSPX-".__add__),
    "slack bot": word(ALNUM, 24, 40).map("xoxb-".__add__),
    "slack user": word(ALNUM, 24, 40).map("xoxp-".__add__),
    "slack app": word(ALNUM, 30, 60).map("xapp-1-".__add__),
    "slack hook": st.tuples(word(UPPER + DIGITS, 9), word(UPPER + DIGITS, 9), word(ALNUM, 24)).map(
        lambda parts: "https://hooks.slack.com/services/" + "/".join(parts)
    ),
    "openai": word(ALNUM, 40).map("sk-proj-".__add__),
    "anthropic": word(ALNUM, 60).map("sk-ant-api03-".__add__),
    "stripe": word(ALNUM, 24).map("sk_live_".__add__),
    "npm": word(ALNUM, 36).map("npm_".__add__),
    "pypi": word(ALNUM, 60).map("pypi-AgEI".__add__),
    "sendgrid": st.tuples(word(ALNUM, 22), word(ALNUM, 43)).map(lambda p: f"SG.{p[0]}.{p[1]}"),
    "docker": word(ALNUM, 27).map("dckr_pat_".__add__),
    "databricks": word("abcdef" + DIGITS, 32).map("dapi".__add__),
    "digitalocean": word("abcdef" + DIGITS, 64).map("dop_v1_".__add__),
    "replicate": word(ALNUM, 37).map("r8_".__add__),
    "nvidia": word(ALNUM, 40).map("nvapi-".__add__),
    "groq": word(ALNUM, 40).map("gsk_".__add__),
    "gitlab runner": word(ALNUM, 20).map("glrt-".__add__),
    "langsmith": word("abcdef" + DIGITS, 32).map("lsv2_pt_".__add__),
    "atlassian": word(ALNUM, 40).map("ATATT3xF".__add__),
    "runpod": word(UPPER + DIGITS, 40).map("rpa_".__add__),
    "vault": word(ALNUM, 40).map("hvs.".__add__),
    "jwt": st.tuples(word(ALNUM, 20, 30), word(ALNUM, 20, 30), word(ALNUM, 30)).map(
        lambda p: f"eyJ{p[0]}.eyJ{p[1]}.{p[2]}"
    ),
}
FRAMES = ("{}", "using {} now", "({})", '"{}"', "x={}", "log in with {}, please", "[{}]", "step 7\t{}\n", "a: {}")
PUBLIC = {"slack hook": "https://hooks.slack.com/services/"}


@pytest.mark.parametrize("kind", sorted(TOKENS))
def test_a_token_is_known_by_its_form_wherever_it_stands(kind: str) -> None:
    @given(TOKENS[kind], st.sampled_from(FRAMES))
    @settings(max_examples=25)
    def check(token: str, frame: str) -> None:
        hidden = token.removeprefix(PUBLIC.get(kind, ""))
        assert hidden not in shown(frame.replace("{}", token)), frame

    check()


NAMES = [
    "password",
    "passwd",
    "pwd",
    "secret",
    "token",
    "api_key",
    "apikey",
    "api-key",
    "access_token",
    "auth_token",
    "client_secret",
    "secret_key",
    "private_key",
    "aws_secret_access_key",
    "AWS_SECRET_ACCESS_KEY",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "GITHUB_TOKEN",
    "GH_TOKEN",
    "WANDB_API_KEY",
    "SLACK_BOT_TOKEN",
    "OPENAI_API_KEY",
    "AZURE_STORAGE_KEY",
    "account_key",
    "connection_secret",
    "db_password",
    "DB_PASS",
    "PGPASSWORD",
    "MYSQL_PWD",
    "session_token",
    "refresh_token",
    "bearer_token",
    "passphrase",
    "credentials",
    "wandb.api_key",
    "hubToken",
    "clientSecret",
]
VALUE = (
    st.text(alphabet=ALNUM + "+/=_-.!", min_size=5, max_size=37)
    .filter(lambda text: not text.startswith("-"))
    .map(lambda text: f"{text}Zq7")  # so that no word around it is its equal, such as "password"
)
SHAPES: dict[str, Callable[[str, str], str]] = {
    "environment": lambda name, value: f"{name}={value}",
    "exported": lambda name, value: f"export {name}={value}",
    "option with equals": lambda name, value: f"--{name}={value} --epochs 3",
    "option with a space": lambda name, value: f"--{name} {value} --epochs 3",
    "option, quoted for a shell": lambda name, value: shlex.join([f"--{name}", value + " x", "--epochs"]),
    "json": lambda name, value: json.dumps({"a": 1, name: value, "b": [2]}),
    "json, indented": lambda name, value: json.dumps({"a": {name: value}}, indent=2),
    "json in a json text": lambda name, value: json.dumps({"config": json.dumps({name: value})}),
    "python": lambda name, value: repr({"a": 1, name: value}),
    "yaml": lambda name, value: f"train:\n  {name}: {value}\n  epochs: 3\n",
    "yaml, quoted": lambda name, value: f"{name}: '{value}'\nepochs: 3\n",
    "toml": lambda name, value: f'{name} = "{value}"\n',
    "argv": lambda name, value: json.dumps(["python", "train.py", f"--{name}", value]),
    "query": lambda name, value: f"GET https://h.invalid/v1?page=1&{name}={value.replace('=', '')}&x=1",
    "dockerfile": lambda name, value: f"ENV {name.upper().replace('-', '_')}_1 7{value}" if "_" in name else "",
    "list": lambda name, value: f"{name}: ['{value}', '2{value}'] then",
    "escaped in a query": lambda name, value: f"https://h.invalid/?next=%2F&{name}%3D{value.replace('=', '')}",
    "namespace": lambda name, value: f"Namespace(lr=0.1, {name.replace('-', '_').replace('.', '_')}='{value}')",
}


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_the_value_of_a_secret_name_is_masked_in_every_shape(shape: str) -> None:
    @given(st.sampled_from(NAMES), VALUE)
    @settings(max_examples=60)
    def check(name: str, value: str) -> None:
        text = SHAPES[shape](name, value)
        hidden = value.replace("=", "") if "query" in shape else value
        assert hidden not in redact(text), text
        if "epochs" in SHAPES[shape](name, ""):
            assert "epochs" in redact(text)

    check()


PLACES: dict[str, Callable[[str], str]] = {
    "url": lambda value: f"postgres://app:{value}@db.invalid:5432/x",
    "git remote": lambda value: f"fatal: could not read from https://x-access-token:{value}@github.com/a/b.git",
    "redis": lambda value: f"redis://:{value}@cache.invalid:6379/0",
    "proxy": lambda value: f"http_proxy=http://user:{value}@proxy.invalid:3128",
    "basic header": lambda value: f"Authorization: Basic {value}",
    "bearer header": lambda value: f"> authorization: Bearer {value}",
    "token header": lambda value: f"Authorization: token {value}",
    "header in a dict": lambda value: repr({"Authorization": f"Bearer {value}", "Accept": "x"}),
    "header in json": lambda value: json.dumps({"headers": {"x-api-key": value}}),
    "curl": lambda value: f"curl -u user:{value} https://h.invalid/",
    "netrc in a line": lambda value: f"machine api.wandb.ai login user password {value}",
    "netrc in lines": lambda value: f"machine huggingface.co\n  login me\n  password {value}\n",
    "azure": lambda value: f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={value};EndpointSuffix=x",
    "signed url": lambda value: f"https://b.invalid/o?X-Amz-Expires=60&X-Amz-Signature={value}&X-Amz-Date=1",
    "sas url": lambda value: f"https://a.invalid/c?sv=2022&sig={value}&se=2026",
    "cookie": lambda value: f"Set-Cookie: session={value}; Path=/",
    "digest header": lambda value: f'Authorization: Digest username="u", nonce="n", response="{value}"',
    "sentence": lambda value: f"Using API key 7{value}",
    "sentence with a colon": lambda value: f"API key: {value}",
    "sentence of a password": lambda value: f"the password is 7{value}",
    "quoted after the word": lambda value: f'Enter passphrase "{value}"',
    "xml": lambda value: f"<server><password>{value}</password></server>",
    "attributes": lambda value: f'<add key="ApiKey" value="{value}"/>',
    "kubernetes": lambda value: f"env:\n- name: HF_TOKEN\n  value: {value}\n",
    "task definition": lambda value: json.dumps([{"name": "WANDB_API_KEY", "value": value}]),
    "wandb": lambda value: f"wandb login --relogin {value}xxxx",
    "wandb in python": lambda value: f"wandb.login(host='h', key='{value}')",
    "mysql": lambda value: f"mysql -uroot -p{value} db",
    "ssh": lambda value: f"sshpass -p {value} ssh host",
}


@pytest.mark.parametrize("place", sorted(PLACES))
def test_a_secret_is_masked_by_its_place(place: str) -> None:
    @given(st.text(alphabet=ALNUM, min_size=9, max_size=37).map(lambda text: f"{text}Zq7"))
    @settings(max_examples=40)
    def check(value: str) -> None:
        text = PLACES[place](value)
        assert value not in redact(text), text

    check()


@pytest.mark.parametrize(
    "label", ["RSA PRIVATE KEY", "EC PRIVATE KEY", "PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "OPENSSH PRIVATE KEY"]
)
@pytest.mark.parametrize("form", ["lines", "json", "cut off", "pgp"])
def test_key_blocks_are_masked_whole(label: str, form: str) -> None:
    body = "\n".join("MIIEpAIBAAKCAQEA" + str(n) * 20 for n in range(3))
    if form == "pgp":
        label = "PGP PRIVATE KEY BLOCK"
    block = f"-----BEGIN {label}-----\n{body}\n-----END {label}-----"
    text = {"lines": block, "json": json.dumps({"data": block}), "cut off": block[:90], "pgp": block}[form]
    assert "MIIE" not in redact(f"before {text}")
    assert redact(f"before {text}").startswith("before ")


HARMLESS = (
    "model: gpt2 tokenizer: bpe max_new_tokens: 128 pad_token_id: 0 eos_token: </s>",
    "optimizer adam lr 0.001 passes 3 step 5 of 10",
    "loss 0.25 acc 0.75 tokens/s 12345 key_padding_mask None",
    "https://huggingface.co/bert-base-uncased/resolve/main/config.json",
    "sha256:" + "0123456789abcdef" * 4,
    "password policy: see docs; machine learning on machine gpu01",
    "git@github.com:owner/repository.git branch main",
    "curl -u https://h.invalid; docker run -p 8080:80 -u 1000:1000 image",
    "PWD=/home/x OLDPWD=/root cache_key=abc num_keys=3",
    "API key missing; the password is wrong; token is required; no access token given",
    "missing_key layer.0.weight and unexpected_key head_bias_0001",
    "name: text\nvalue: 3",
    "mysql -u root db -p",
    "SG.head skip-connection sk-learn hf_hub r8_x npm_config_cache=/x",
)


@pytest.mark.parametrize("text", HARMLESS)
def test_ordinary_words_stay(text: str) -> None:
    assert redact(text) == text
